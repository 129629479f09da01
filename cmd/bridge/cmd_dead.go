package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"delaybridge"
	"delaybridge/luascripts"
)

func newDead() *cobra.Command {
	cmd := group("dead", "List, show, replay and purge dead letters",
		newDeadList(), newDeadShow(), newDeadReplay(), newDeadPurge())
	cmd.Long = `List, show, replay and purge dead letters: messages that were not delivered, kept
with their headers, payload and the error. The reasons are

  rejected   refused when it came in; its id is rejected: and its place in the source
  permanent  the broker will never take it
  attempts   failed as often as BRIDGE_MAX_ATTEMPTS allows
  expired    not delivered within Bridge-Expires-After
  abandoned  its lease ran out BRIDGE_MAX_LOST_LEASES times: processes crashed over it
  corrupt    its record in Redis cannot be read

Where a setting or a broker was at fault, put it right and replay. Where the
message itself is wrong, schedule its payload anew and purge the letter.`
	cmd.Example = `  bridge dead list
  bridge dead replay --reason attempts
  bridge dead show rejected:nats:BRIDGE_SCHEDULE:4 -o json | jq -j .payload.text |
    bridge schedule --target nats://orders.timeout --delay 5s -`
	return cmd
}

func newDeadList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters, the oldest first",
		Example: `  bridge dead list
  bridge dead list --reason attempts --target nats://orders.timeout -o json`,
		Args: noArgs,
	}
	output := outputFlag(cmd)
	page := pageFlags(cmd)
	filter := filterFlags(cmd)
	cmd.PreRunE = func(*cobra.Command, []string) error { return errors.Join(page.check(), filter.check()) }
	cmd.RunE = withOperator(func(ctx context.Context, cmd *cobra.Command, _ []string, o operator) error {
		view := listView[letterView]{Items: []letterView{}}
		// A page may be short though there is more: few may match the filter.
		for rest := *page; ; {
			found, err := o.Letters(ctx, *filter, rest)
			if err != nil {
				return cursorError(err)
			}
			view.Items, view.Next = append(view.Items, found.Items...), found.Next
			rest.limit, rest.after = rest.limit-len(found.Items), found.Next
			if rest.limit <= 0 || rest.after == "" {
				break
			}
		}
		if *output == formatJSON {
			return printJSON(cmd.OutOrStdout(), view)
		}
		t := newTable(cmd.OutOrStdout())
		fmt.Fprintln(t, "DIED\tREASON\tID\tTARGET\tERROR")
		for _, v := range view.Items {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", textTime(v.DiedAt), printable(string(v.Reason)), printable(v.ID), orDash(v.Target), oneLine(v.Error))
		}
		if err := t.Flush(); err != nil {
			return err
		}
		return page.more(cmd, view.Next)
	})
	return cmd
}

func newDeadShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show ID",
		Short:   "Show a dead letter with its headers and payload",
		Example: `  bridge dead show order-7 -o json`,
		Args:    oneID,
	}
	output := outputFlag(cmd)
	cmd.RunE = withOperator(func(ctx context.Context, cmd *cobra.Command, args []string, o operator) error {
		v, err := o.Letter(ctx, args[0])
		if err != nil {
			return err
		}
		if *output == formatJSON {
			return printJSON(cmd.OutOrStdout(), v)
		}
		t := newTable(cmd.OutOrStdout())
		for _, row := range [][2]string{
			{"id", printable(v.ID)}, {"reason", printable(string(v.Reason))}, {"error", oneLine(v.Error)}, {"died", textTime(v.DiedAt)},
			{"target", orDash(v.Target)}, {"due", orDash(textTime(v.Due))}, {"scheduled at", orDash(textTime(v.ScheduledAt))},
			{"expires after", orDash(v.ExpiresAfter)}, {"source", orDash(v.Source)},
			{"attempts", fmt.Sprint(v.Attempts)}, {"lost leases", fmt.Sprint(v.LostLeases)}, {"key", v.Key.String()},
		} {
			fmt.Fprintf(t, "%s\t%s\n", row[0], row[1])
		}
		for _, h := range v.Headers {
			fmt.Fprintf(t, "header\t%s: %s\n", printable(h.Name), h.Value.String())
		}
		fmt.Fprintf(t, "payload\t%s\n", v.Payload.String())
		return t.Flush()
	})
	return cmd
}

func newDeadReplay() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay ID... | --reason R | --target T | --all",
		Short: "Make dead letters pending messages again",
		Long: `Make dead letters pending messages again, without any attempts counted. Each is
checked as if it were new: what is still invalid stays dead, and so does what
has an id that is pending again, unless forced.`,
		Example: `  bridge dead replay order-7 order-8
  bridge dead replay --reason attempts --dry-run
  bridge dead replay --target nats://orders.timeout --reason attempts`,
	}
	output := outputFlag(cmd)
	pick := pickFlags(cmd)
	cmd.PreRunE = pick.checkArgs
	force := cmd.Flags().Bool("force", false, "replace what is pending under the same id")
	cmd.RunE = withOperator(func(ctx context.Context, cmd *cobra.Command, args []string, o operator) error {
		how := replayOptions{force: *force, dryRun: pick.dryRun}
		var done []letterDone
		err := pick.each(ctx, o, args, func(letters []letterView) {
			for _, l := range letters {
				done = append(done, newLetterDone(l, o.Replay(ctx, l, how)))
			}
		})
		if err != nil {
			return err
		}
		return reportLetters(cmd, "replayed", pick.dryRun, done, *output)
	})
	return cmd
}

func newDeadPurge() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "purge ID... | --reason R | --target T | --all",
		Short: "Drop dead letters for good",
		Example: `  bridge dead purge order-7
  bridge dead purge --reason rejected --yes`,
	}
	output := outputFlag(cmd)
	pick := pickFlags(cmd)
	cmd.PreRunE = pick.checkArgs
	yes := cmd.Flags().Bool("yes", false, "do not ask before dropping many")
	cmd.RunE = withOperator(func(ctx context.Context, cmd *cobra.Command, args []string, o operator) error {
		if len(args) == 0 && !pick.dryRun && !*yes {
			n := 0
			if err := pick.each(ctx, o, args, func(letters []letterView) { n += len(letters) }); err != nil {
				return err
			}
			if n > 0 && !confirm(cmd, fmt.Sprintf("Drop %s for good?", plural(n, "dead letter"))) {
				return errors.New("nothing was dropped; with --yes it does not ask")
			}
		}
		var done []letterDone
		err := pick.each(ctx, o, args, func(letters []letterView) {
			errs := make([]error, len(letters))
			if !pick.dryRun {
				errs = o.Purge(ctx, letters)
			}
			for i, l := range letters {
				done = append(done, newLetterDone(l, errs[i]))
			}
		})
		if err != nil {
			return err
		}
		return reportLetters(cmd, "purged", pick.dryRun, done, *output)
	})
	return cmd
}

// letterDone is what became of one letter; Error is empty if it went well.
type letterDone struct {
	ID    string `json:"id"`
	Error string `json:"error,omitempty"`
}

func newLetterDone(l letterView, err error) letterDone {
	d := letterDone{ID: l.ID}
	if err != nil {
		d.Error = replayProblem(err)
	}
	return d
}

func reportLetters(cmd *cobra.Command, verb string, dryRun bool, done []letterDone, output format) error {
	failed := 0
	for _, d := range done {
		if d.Error != "" {
			failed++
		}
	}
	out := cmd.OutOrStdout()
	if output == formatJSON {
		err := printJSON(out, map[string]any{verb: len(done) - failed, "failed": failed, "dry_run": dryRun, "items": slices.Concat([]letterDone{}, done)})
		if err != nil {
			return err
		}
	} else {
		did, would := verb, ""
		if dryRun {
			did, would = "would be "+verb+":", "would be "
		}
		for _, d := range done {
			if d.Error == "" {
				fmt.Fprintf(out, "%s %s\n", did, printable(d.ID))
			} else {
				fmt.Fprintf(cmd.ErrOrStderr(), "bridge: %s: %s\n", printable(d.ID), oneLine(d.Error))
			}
		}
		fmt.Fprintf(out, "%d %s%s, %d not\n", len(done)-failed, would, verb, failed)
	}
	if failed > 0 {
		return errSilent
	}
	return nil
}

// letterFilter picks dead letters by what they are.
type letterFilter struct{ reason, target string }

func filterFlags(cmd *cobra.Command) *letterFilter {
	f := &letterFilter{}
	names := make([]string, len(delaybridge.Reasons))
	for i, r := range delaybridge.Reasons {
		names[i] = string(r)
	}
	cmd.Flags().StringVar(&f.reason, "reason", "", "only those of this reason: "+strings.Join(names, ", "))
	cmd.Flags().StringVar(&f.target, "target", "", "only those for this target")
	return f
}

func (f *letterFilter) check() error {
	if f.reason != "" && !slices.Contains(delaybridge.Reasons, delaybridge.Reason(f.reason)) {
		return fmt.Errorf("--reason %q: takes one of %v", f.reason, delaybridge.Reasons)
	}
	return nil
}

func (f *letterFilter) matches(l *luascripts.Letter) bool {
	return (f.reason == "" || string(l.Reason) == f.reason) && (f.target == "" || l.Target.String() == f.target)
}

// letterPick names the dead letters that a command works on.
type letterPick struct {
	*letterFilter
	all, dryRun bool
}

func pickFlags(cmd *cobra.Command) *letterPick {
	p := &letterPick{letterFilter: filterFlags(cmd)}
	cmd.Flags().BoolVar(&p.all, "all", false, "all of them")
	cmd.Flags().BoolVar(&p.dryRun, "dry-run", false, "only say what would be done")
	return p
}

// checkArgs wants either ids or a choice.
func (p *letterPick) checkArgs(_ *cobra.Command, ids []string) error {
	if (p.all || p.reason != "" || p.target != "") == (len(ids) > 0) {
		return errors.New("takes either ids, or --reason, --target or --all")
	}
	return p.check()
}

// each hands over the picked letters, a page at a time: there may be more than
// fit into memory. A letter that dies again meanwhile does not come again.
func (p *letterPick) each(ctx context.Context, o operator, ids []string, work func([]letterView)) error {
	var named []letterView
	for _, id := range ids { // all of them are there, or none is worked on
		l, err := o.Letter(ctx, id)
		if err != nil {
			return err
		}
		named = append(named, l.letterView)
	}
	if len(named) > 0 {
		work(named)
		return nil
	}
	seen := map[string]bool{}
	for after := ""; ; {
		found, err := o.Letters(ctx, *p.letterFilter, page{limit: letterStep, after: after})
		if err != nil {
			return err
		}
		picked := slices.DeleteFunc(found.Items, func(l letterView) bool { return seen[l.ID] })
		for _, l := range picked {
			seen[l.ID] = true
		}
		work(picked)
		if found.Next == "" {
			return nil
		}
		after = found.Next
	}
}

// confirm asks a person.
func confirm(cmd *cobra.Command, question string) bool {
	fmt.Fprintf(cmd.ErrOrStderr(), "%s [y/N] ", question)
	answer, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if err != nil {
		fmt.Fprintln(cmd.ErrOrStderr()) // nobody has pressed return
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true
	}
	return false
}
