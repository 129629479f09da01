package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"delaybridge"
	"delaybridge/luascripts"
)

func newList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List pending messages by their next try",
		Long: `List pending messages by their next try: by due time, and after failed attempts
by when they are tried again, with why the last of them failed. What is overdue
with no attempt waits for a broker that cannot be reached, or for a process that
is connected to one of its kind.`,
		Example: `  bridge list --limit 20
  bridge list --sink nats -o json`,
		Args: noArgs,
	}
	output := outputFlag(cmd)
	sink := cmd.Flags().String("sink", "", "only this sink's: "+strings.Join(delaybridge.Lanes[:], ", "))
	page := pageFlags(cmd)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if *sink != "" && !slices.Contains(delaybridge.Lanes[:], *sink) {
			return usagef("--sink %q: takes one of %s", *sink, strings.Join(delaybridge.Lanes[:], ", "))
		}
		return page.check()
	}
	cmd.RunE = withOperator(func(ctx context.Context, cmd *cobra.Command, _ []string, o operator) error {
		view, err := o.List(ctx, *sink, *page)
		if err != nil {
			return cursorError(err)
		}
		if *output == formatJSON {
			return printJSON(cmd.OutOrStdout(), view)
		}
		t := newTable(cmd.OutOrStdout())
		columns := "DUE\tID\tTARGET\tATTEMPTS\tNEXT TRY"
		failed := slices.ContainsFunc(view.Items, func(v messageView) bool { return v.LastError != "" })
		if failed {
			columns += "\tLAST ERROR"
		}
		fmt.Fprintln(t, columns)
		for _, v := range view.Items {
			fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s", textTime(v.Due), printable(v.ID), printable(v.Target), v.Attempts, textTime(v.NextTry))
			if failed { // in each row, or the column would not stand under its name
				fmt.Fprintf(t, "\t%s", oneLine(v.LastError))
			}
			fmt.Fprintln(t)
		}
		if err := t.Flush(); err != nil {
			return err
		}
		return page.more(cmd, view.Next)
	})
	return cmd
}

// page says which part of a list is wanted.
type page struct {
	limit int
	after string
}

func pageFlags(cmd *cobra.Command) *page {
	p := &page{}
	cmd.Flags().IntVar(&p.limit, "limit", defaultLimit, "at most this many, 1 to 1000")
	cmd.Flags().StringVar(&p.after, "after", "", "go on after this cursor, which the list before it printed")
	return p
}

func (p *page) check() error {
	if p.limit < 1 || p.limit > 1000 {
		return usagef("--limit %d: takes a number from 1 to 1000", p.limit)
	}
	return nil
}

// more says how to go on, apart from the list itself.
func (p *page) more(cmd *cobra.Command, next string) error {
	if next == "" {
		return nil
	}
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "more: --after %s\n", printable(next))
	return err
}

func cursorError(err error) error {
	if errors.Is(err, luascripts.ErrCursor) {
		return usagef("--after: takes the cursor that a list printed")
	}
	return err
}
