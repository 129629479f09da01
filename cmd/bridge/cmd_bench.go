package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"delaybridge"
)

// benchPlan is what "bridge bench" was asked to do.
type benchPlan struct {
	count, size, subjects, partitions, replicas, processes int

	spread time.Duration
	lanes  []string
	path   string
	output format
}

// The paths that can be measured.
const (
	pathQueue = "queue" // Redis -> target
	pathFull  = "full"  // source -> Redis -> target
)

// What the flags take at the most.
const (
	benchMaxCount     = 100_000_000
	benchMaxProcesses = 64
)

func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure throughput and lateness on the servers of the settings",
		Long: `Measure how fast messages are stored and delivered, how late, and what they take
up in Redis, on the servers that the settings name and with the settings that
"serve" has. It starts "bridge serve" processes of its own for that.

Nothing of yours is touched: keys, streams, topics and consumers are made under
a new name, bench-<8 letters and digits>, are told on stderr, and are removed at
the end, after an error or Ctrl-C too. Routes, limits on targets, rates and pending
messages, targets for what was rejected or is dead, and the APIs are left out. The
servers do the work of the measurement, though: do not run it where that hurts.

The stages:
  store    the messages are put into Redis, all before the first is due
  memory   what Redis needs for each (other work on the same Redis shows in it)
  deliver  from the moment when the first is due until the target has them all
  lateness from when each was due until the target's broker had stored it, by
           the broker's clock

With --path full they come from a source instead: a stream or topic is filled,
and then the processes take in, store and deliver everything. With --spread too,
messages are published at an even pace over that time, each with a delay of 1s.

With --spread 0 everything is due at once: the rate counts, and the lateness is
that of a queue. Use a spread for a rate that you expect, to see how late a
message is then: --count 60000 --spread 1m is 1,000/s.`,
		Example: `  bridge bench
  bridge bench --count 60000 --spread 1m
  bridge bench --path full --count 200000 --processes 2
  bridge bench --lanes nats,kafka --size 1024 -o json`,
		Args: noArgs,
	}
	p := &benchPlan{}
	var lanes []string
	flags := cmd.Flags()
	flags.IntVar(&p.count, "count", 100_000, "messages in all")
	flags.IntVar(&p.size, "size", 256, "payload of each, in bytes")
	flags.DurationVar(&p.spread, "spread", 0, "time over which they are due, evenly; 0: all at once")
	flags.StringSliceVar(&lanes, "lanes", nil, "sinks to deliver to, with commas between: nats, nats-core, kafka (default nats, or kafka where there is no NATS)")
	flags.IntVar(&p.processes, "processes", 1, "bridge processes that share the work")
	flags.StringVar(&p.path, "path", pathQueue, "what is measured: queue (Redis to target) or full (source to Redis to target)")
	flags.IntVar(&p.subjects, "subjects", 1, "target subjects of NATS that take turns")
	flags.IntVar(&p.partitions, "partitions", 4, "partitions of the topics of Kafka")
	flags.IntVar(&p.replicas, "replicas", 0, "copies of the streams and topics; 0: 1 in NATS, the broker's default in Kafka")
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := settingsFor(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		p.lanes, p.output = lanes, *output
		if err := p.check(s); err != nil {
			return err
		}
		return p.run(cmd.Context(), s, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

// check fills in the lanes and holds the flags to the settings.
func (p *benchPlan) check(s *Settings) error {
	if len(p.lanes) == 0 {
		p.lanes = []string{delaybridge.SinkNATS}
		if s.NATS.URL == "" {
			p.lanes = []string{delaybridge.SinkKafka}
		}
		if !s.hasBroker(p.lanes[0]) {
			return *wrong("NATS_URL", s.NATS.URL, "is empty and so is BRIDGE_KAFKA_BROKERS: set one of them, as there is nothing to deliver to")
		}
	}
	for i, lane := range p.lanes {
		switch {
		case !slices.Contains(delaybridge.Lanes[:], lane):
			return usagef("--lanes %q: takes %s", lane, strings.Join(delaybridge.Lanes[:], ", "))
		case slices.Contains(p.lanes[:i], lane):
			return usagef("--lanes: %s is there twice", lane)
		case !s.hasBroker(lane) && lane == delaybridge.SinkKafka:
			return usagef("--lanes %s: takes BRIDGE_KAFKA_BROKERS, which is empty", lane)
		case !s.hasBroker(lane):
			return usagef("--lanes %s: takes BRIDGE_NATS_URL, which is empty", lane)
		}
	}
	for _, f := range []struct {
		flag         string
		v, low, high int
	}{
		{"count", p.count, 1, benchMaxCount},
		{"size", p.size, 0, int(s.MaxPayload)},
		{"processes", p.processes, 1, benchMaxProcesses},
		{"subjects", p.subjects, 1, 1_000_000},
		{"partitions", p.partitions, 1, 1000},
		{"replicas", p.replicas, 0, 10},
	} {
		if f.v < f.low || f.v > f.high {
			more := ""
			if f.flag == "size" {
				more = ", which is BRIDGE_MAX_PAYLOAD"
			}
			return usagef("--%s %d: takes a number from %d to %d%s", f.flag, f.v, f.low, f.high, more)
		}
	}
	if p.spread < 0 || p.spread > time.Duration(s.MaxDelay)/2 {
		return usagef("--spread %v: takes 0 to %v, half of BRIDGE_MAX_DELAY", p.spread, time.Duration(s.MaxDelay)/2)
	}
	if p.path != pathQueue && p.path != pathFull {
		return usagef("--path %q: takes %s or %s", p.path, pathQueue, pathFull)
	}
	return nil
}

// run carries the plan out, prints what it finds, and removes what it made.
func (p *benchPlan) run(ctx context.Context, s *Settings, stdout, stderr screenWriter) (err error) {
	b := newBenchRun(p, s, stdout, stderr)
	defer func() {
		if e := b.remove(); e != nil && err == nil {
			err = e
		}
	}()
	err = b.measure(ctx)
	if ctx.Err() != nil {
		fmt.Fprintln(stderr, "bridge: interrupted")
		return errSilent
	}
	return err
}
