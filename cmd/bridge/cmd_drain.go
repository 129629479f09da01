package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"delaybridge"
)

func newDrain() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Deliver all that is due, then exit: for a CronJob or a function",
		Long: `Deliver all that is due, to every broker that is configured, and exit when nothing
is: what becomes due meanwhile is delivered too. With --within it also waits for
what becomes due within that time. What is to be retried later is left, as is what
is due later. It may run beside "bridge serve" and beside other drains.

With --ingest it first takes in what waits at the sources, until they are empty.

A broker that cannot be reached for BRIDGE_PUBLISH_TIMEOUT is given up for this
run; its messages stay in Redis. Exit codes: 0 nothing that was due is left, or
SIGTERM stopped it in an orderly way; 1 something that was due is left, and the
last line says why; 2 wrong usage or a wrong setting.

It serves no metrics and no probes. BRIDGE_ROLES is not looked at.`,
		Example: `  bridge drain
  bridge drain --within 10s --timeout 50s        once a minute, from cron
  bridge drain --ingest -o json`,
		Args: noArgs,
	}
	output := outputFlag(cmd)
	o := drainOptions{timeout: 10 * time.Minute}
	cmd.Flags().Var((*durationFlag)(&o.within), "within", "wait also for what becomes due within this time of the start")
	cmd.Flags().Var((*durationFlag)(&o.timeout), "timeout", "stop after this time, whatever is left; 0: no limit")
	cmd.Flags().BoolVar(&o.ingest, "ingest", false, "first take in what waits at the sources")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.timeout > 0 && o.within >= o.timeout {
			return usagef("--within %s: takes less than --timeout, which is %s", duration(o.within), duration(o.timeout))
		}
		s, err := settingsFor(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		if e := s.checkBrokers(); e != nil {
			return *e
		}
		level := text("warn") // the summary says the rest
		if os.Getenv(prefix+"_LOG_LEVEL") != "" {
			level = s.LogLevel
		}
		log := newLog(level, s.LogFormat)
		defer func() { _ = log.Sync() }()
		v, err := drain(cmd.Context(), s, o, log)
		if err != nil {
			return err
		}
		if *output == formatJSON {
			if err := printJSON(cmd.OutOrStdout(), v); err != nil {
				return err
			}
		} else if err := printDrain(cmd.OutOrStdout(), v); err != nil {
			return err
		}
		if len(v.Problems) > 0 {
			return errors.New(strings.Join(v.Problems, "; "))
		}
		return nil
	}
	return cmd
}

// durationFlag is a flag with a duration as settings have it.
type durationFlag time.Duration

func (d *durationFlag) String() string { return duration(*d).String() }
func (d *durationFlag) Type() string   { return "duration" }

// Set is called by the flag parser.
func (d *durationFlag) Set(s string) error {
	if strings.TrimSpace(s) == "" {
		return errors.New("takes a duration with its unit, such as 10s")
	}
	return (*duration)(d).Decode(s)
}

// drainView is what a drain has done, and what it has left.
type drainView struct {
	// Result is drained, incomplete (something that was due is left), or stopped
	// (by a signal).
	Result  string  `json:"result"`
	Seconds float64 `json:"seconds"`

	// TakenIn counts requests by outcome, with --ingest.
	TakenIn   map[string]int64 `json:"taken_in,omitempty"`
	Delivered int64            `json:"delivered"`
	Retried   int64            `json:"retried"`  // failed, and to be tried again later
	Dead      int64            `json:"dead"`     // given up
	Released  int64            `json:"released"` // handed back, untried

	Left leftView `json:"left"`
	// Problems say why what was due is left; there is none when Result is drained.
	Problems []string `json:"problems"`
	// Notes are worth knowing, and no failure.
	Notes []string `json:"notes"`
}

// leftView counts what is left, of all lanes.
type leftView struct {
	Due      int64 `json:"due"`
	InFlight int64 `json:"in_flight"` // claimed by other processes, which may be dead
	Later    int64 `json:"later"`
	// FirstLeaseEnd is when the first of those in flight is due again, unless it
	// is settled; NextDue is when the first of the later ones is.
	FirstLeaseEnd stamp               `json:"first_lease_end"`
	NextDue       stamp               `json:"next_due"`
	Lanes         map[string]laneLeft `json:"lanes"`
	// AtSources is what waits to be taken in, with --ingest, by source.
	AtSources map[string]int64 `json:"at_sources,omitempty"`
}

type laneLeft struct {
	Due      int64 `json:"due"`
	InFlight int64 `json:"in_flight"`
	Later    int64 `json:"later"`
}

func printDrain(w io.Writer, v *drainView) error {
	t := newTable(w)
	row := func(name string, value any, more string) {
		if more != "" {
			more = "\t" + more
		}
		fmt.Fprintf(t, "%s\t%v%s\n", name, value, more)
	}
	fmt.Fprintf(t, "%s in %.1fs\n", v.Result, v.Seconds)
	for o := delaybridge.Scheduled; o <= delaybridge.Rejected; o++ {
		if n := v.TakenIn[o.String()]; n > 0 {
			row("taken in", n, o.String())
		}
	}
	row("delivered", v.Delivered, "")
	row("retried", v.Retried, "")
	row("dead", v.Dead, "")
	row("released", v.Released, "")
	row("left due", v.Left.Due, "")
	ends, next := "", ""
	if !time.Time(v.Left.FirstLeaseEnd).IsZero() {
		ends = "with other processes; the first lease ends at " + textTime(v.Left.FirstLeaseEnd)
	}
	if !time.Time(v.Left.NextDue).IsZero() {
		next = "the first is due at " + textTime(v.Left.NextDue)
	}
	row("left in flight", v.Left.InFlight, ends)
	row("left for later", v.Left.Later, next)
	if err := t.Flush(); err != nil {
		return err
	}
	for _, n := range v.Notes {
		if _, err := fmt.Fprintln(w, "note: "+printable(n)); err != nil {
			return err
		}
	}
	return nil
}
