package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

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
		record := ingest.Record{Position: newPosition(), Time: time.Now(), FromAPI: true, FromCLI: true}
		for _, f := range headerFlags {
			if !flags.Changed(f.flag) {
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
		if record.Payload, err = readPayload(args, cmd.InOrStdin(), int64(s.MaxPayload)); err != nil {
			return err
		}
		decoder, err := s.newDecoder()
		if err != nil {
			return err
		}
		request, err := decoder.Parse(record)
		if err != nil {
			return flagError(err)
		}
		if request.Op == delaybridge.OpCancel {
			return usagef("--header: Bridge-Op cancel: use bridge cancel")
		}
		q, client, err := openQueue(cmd.Context(), s)
		if err != nil {
			return err
		}
		defer func() { _ = client.Close() }()
		result := q.Store(cmd.Context(), []delaybridge.Request{request})[0]
		if result.Err != nil {
			return result.Err
		}
		m := request.Message
		if *output == formatJSON {
			return printJSON(cmd.OutOrStdout(), acceptedView{m.ID, result.Outcome.String(), stamp(m.Due)})
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s %s for %s at %s\n", result.Outcome, printable(m.ID), printable(m.Target.String()), formatTime(m.Due))
		return err
	}
	return cmd
}

// headerFlags are the flags that stand for a header of ours.
var headerFlags = []struct{ flag, header string }{
	{"target", "Bridge-Target"},
	{"delay", "Bridge-Delay"},
	{"at", "Bridge-Deliver-At"},
	{"id", "Bridge-Id"},
	{"expires-after", "Bridge-Expires-After"},
}

// flagError names the flag where the error names its header.
func flagError(err error) error {
	fe, ok := errors.AsType[*delaybridge.FieldError](err)
	if !ok {
		return err
	}
	named := *fe
	named.Reason = strings.TrimSuffix(named.Reason, ", since the source has no default")
	for _, f := range headerFlags {
		if strings.EqualFold(fe.Field, f.header) {
			named.Field = "--" + f.flag
		}
		named.Reason = strings.ReplaceAll(named.Reason, f.header, "--"+f.flag)
	}
	return fmt.Errorf("%w", &named)
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
