package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"delaybridge"
)

func newGet() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get ID",
		Short: "Show what is known of a message: pending, in flight, delivered, cancelled or dead",
		Example: `  bridge get order-7
  bridge get order-7 --payload
  bridge get order-7 --payload -o json | jq -j .payload.text`,
		Args: oneID,
	}
	output := outputFlag(cmd)
	full := cmd.Flags().Bool("payload", false, "show source, key, headers and payload, too")
	cmd.RunE = withOperator(func(ctx context.Context, cmd *cobra.Command, args []string, o operator) error {
		if *full {
			v, err := o.GetFull(ctx, args[0])
			if err != nil {
				return err
			}
			if *output == formatJSON {
				return printJSON(cmd.OutOrStdout(), v)
			}
			return printFullMessage(cmd.OutOrStdout(), v)
		}
		v, err := o.Get(ctx, args[0])
		if err != nil {
			return err
		}
		if *output == formatJSON {
			return printJSON(cmd.OutOrStdout(), v)
		}
		return printMessage(cmd.OutOrStdout(), v)
	})
	return cmd
}

func printMessage(w io.Writer, v messageView) error {
	t := newTable(w)
	messageRows(t, v)
	if v.isKnown() {
		fmt.Fprintf(t, "payload\t%s\n", plural(v.PayloadBytes, "byte"))
	}
	return t.Flush()
}

// printFullMessage prints what the message carries in place of its size, where it
// is still kept.
func printFullMessage(w io.Writer, v fullMessageView) error {
	t := newTable(w)
	messageRows(t, v.messageView)
	if v.isKnown() {
		fmt.Fprintf(t, "source\t%s\nkey\t%s\n", printable(v.Source), v.Key.String())
		for _, h := range v.Headers {
			fmt.Fprintf(t, "header\t%s: %s\n", printable(h.Name), h.Value.String())
		}
		fmt.Fprintf(t, "payload\t%s\n", v.Payload.String())
	}
	return t.Flush()
}

func messageRows(t io.Writer, v messageView) {
	row := func(name, value string) {
		if value != "" {
			fmt.Fprintf(t, "%s\t%s\n", name, value)
		}
	}
	row("id", printable(v.ID))
	row("state", printable(string(v.State)))
	row("target", printable(v.Target))
	row("due", textTime(v.Due))
	row("scheduled at", textTime(v.ScheduledAt))
	row("expires after", printable(v.ExpiresAfter))
	if v.State != delaybridge.StateDelivered && v.State != delaybridge.StateCancelled { // of these only that is kept
		row("attempts", fmt.Sprint(v.Attempts))
		row("lost leases", fmt.Sprint(v.LostLeases))
		row("last error", oneLine(v.LastError))
	}
	if !time.Time(v.NextTry).Equal(time.Time(v.Due)) {
		row("next try", textTime(v.NextTry))
	}
	row("lease ends", textTime(v.LeaseEnd))
}

// textTime is empty where there is no time.
func textTime(t stamp) string {
	if time.Time(t).IsZero() {
		return ""
	}
	return formatTime(time.Time(t))
}
