package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"delaybridge"
)

func newStats() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Count what is pending, in flight, overdue and dead",
		Long: `Count, for each sink, what is pending, in flight, overdue (due and not yet
claimed) and far (due in over an hour), and the dead letters by reason.`,
		Example: `  bridge stats
  bridge stats --watch
  bridge stats -o json`,
		Args: noArgs,
	}
	output := outputFlag(cmd)
	watch := cmd.Flags().BoolP("watch", "w", false, "again every second, until interrupted")
	cmd.RunE = withOperator(func(ctx context.Context, cmd *cobra.Command, _ []string, o operator) error {
		out := cmd.OutOrStdout()
		for {
			s, err := o.Stats(ctx)
			if err != nil {
				if *watch && ctx.Err() != nil {
					return nil
				}
				return err
			}
			if *watch && *output == formatText && isTerminal(out) {
				fmt.Fprint(out, "\x1b[H\x1b[2J")
			}
			if *watch && *output == formatText {
				fmt.Fprintf(out, "%s\n\n", textTime(s.Now))
			}
			if err := printStats(out, s, *output); err != nil {
				return err
			}
			if !*watch {
				return nil
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(time.Second):
			}
		}
	})
	return cmd
}

func printStats(w io.Writer, v statsView, output format) error {
	if output == formatJSON {
		return printJSON(w, v)
	}
	t := newTable(w)
	fmt.Fprintln(t, "SINK\tPENDING\tIN FLIGHT\tOVERDUE\tOVERDUE FOR\tFAR\tNEXT DUE")
	for _, name := range delaybridge.Lanes {
		l := v.Lanes[name]
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\t%d\t%s\n", name, l.Pending, l.InFlight, l.Overdue,
			time.Duration(l.OverdueSeconds*float64(time.Second)), l.Far, orDash(textTime(l.NextDue)))
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "DEAD")
	for _, reason := range delaybridge.Reasons {
		fmt.Fprintf(t, "%s\t%d\n", reason, v.Dead[reason])
	}
	fmt.Fprintln(t)
	return t.Flush()
}

// isTerminal reports whether w is a screen.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
