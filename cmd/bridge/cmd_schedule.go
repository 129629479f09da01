package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"delaybridge"
	"delaybridge/ingest"
)

func newSchedule() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedule --target TARGET (--delay D | --at TIME) [PAYLOAD | -]",
		Short: "Have a message delivered later",
		Long: `Have a message delivered later. The payload is the argument as it is, or what
is read from stdin with "-", or empty. Everything is checked by the rules that
hold for messages from a broker.`,
		Example: `  bridge schedule --target nats://orders.timeout --delay 5s '{"order":7}'
  bridge schedule --target nats://orders.timeout --at 2030-01-01T09:00:00Z --id order-7 - < order.json
  bridge schedule --target nats-core://ping --delay 250ms --header trace=abc --header trace=def`,
		Args: onePayload,
	}
	flags := cmd.Flags()
	flags.String("target", "", "where to deliver: nats://SUBJECT (JetStream), nats-core://SUBJECT or kafka://TOPIC")
	flags.String("delay", "", "how long from now: 250ms, 90s, 1h30m, 7d")
	flags.String("at", "", "when: RFC 3339 with a zone, or Unix milliseconds")
	flags.String("id", "", "the message's identity: scheduling it again replaces it (default: a new one)")
	flags.String("key", "", "Kafka key for the target")
	flags.String("expires-after", "", "how long after its time it may still be delivered")
	headers := flags.StringArrayP("header", "H", nil, "a header that passes through, NAME=VALUE; repeatable")
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		s, err := settingsFor(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		record := ingest.Record{}
		for _, f := range requestFields {
			if f.flag == "" || f.flag == "key" || !flags.Changed(f.flag) {
				continue
			}
			value, _ := flags.GetString(f.flag)
			record.Headers = append(record.Headers, delaybridge.Header{Name: f.header, Value: []byte(value)})
		}
		for _, h := range *headers {
			name, value, ok := strings.Cut(h, "=")
			if !ok || name == "" {
				return usagef("--header %q: takes NAME=VALUE", h)
			}
			record.Headers = append(record.Headers, delaybridge.Header{Name: name, Value: []byte(value)})
		}
		if flags.Changed("key") {
			key, _ := flags.GetString("key")
			record.Key = []byte(key)
		}
		most := s.MaxPayload
		if apiURL(cmd) != "" { // what is too large is the API's to say
			most = maxPayloadSetting
		}
		if record.Payload, err = readPayload(args, cmd.InOrStdin(), int64(most)); err != nil {
			return err
		}
		if apiURL(cmd) == "" { // what is wrong with the request is said without Redis, too
			decoder, err := s.newDecoder()
			if err != nil {
				return err
			}
			if _, err := (&operations{decoder: decoder, fromCLI: true}).parse(record); err != nil {
				return flagError(err)
			}
		}
		o, done, err := openOperator(cmd, s)
		if err != nil {
			return err
		}
		defer done()
		accepted, err := o.Schedule(cmd.Context(), record)
		if err != nil {
			return flagError(err)
		}
		if *output == formatJSON {
			return printJSON(cmd.OutOrStdout(), accepted)
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s for %s at %s\n", accepted.Outcome, printable(accepted.ID), printable(accepted.Target), textTime(accepted.DeliverAt))
		return err
	}
	return cmd
}

// readPayload takes the payload from the argument, or from stdin: one byte more
// than is allowed is enough to see that it is too large.
func readPayload(args []string, in io.Reader, most int64) ([]byte, error) {
	switch {
	case len(args) == 0:
		return []byte{}, nil
	case args[0] != "-":
		return []byte(args[0]), nil
	}
	payload, err := io.ReadAll(io.LimitReader(in, most+1))
	if err != nil {
		return nil, fmt.Errorf("read the payload from stdin: %w", err)
	}
	return payload, nil
}

// reasonOf is what is wrong, without the field, which the caller names.
func reasonOf(err error) string {
	if fe, ok := errors.AsType[*delaybridge.FieldError](err); ok {
		return cmp.Or(fe.Reason, err.Error())
	}
	return err.Error()
}
