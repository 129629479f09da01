package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"delaybridge"
	"delaybridge/luascripts"
)

// sum says what was done and what is left.
func (d *drainer) sum(ctx context.Context, end drainEnd) *drainView {
	// A stop that was asked for must not keep it from being told what is left.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	d.mu.Lock() // what has not ended in time may still count
	settled := d.settled
	d.mu.Unlock()
	v := &drainView{
		Result: "drained", Delivered: int64(settled.Delivered), Retried: int64(settled.Retried),
		Dead: int64(settled.Dead), Released: int64(settled.Released), Problems: []string{}, Notes: []string{},
		TakenIn: d.counts(),
	}
	horizon := d.began.Add(d.o.within)
	stats, err := d.queue.Stats(ctx)
	if err == nil {
		d.left(ctx, v, stats)
	} else {
		d.redisErr = cmp.Or(d.redisErr, err)
	}
	if d.redisErr != nil && (err != nil || end == drainFailed) {
		v.Problems = append(v.Problems, fmt.Sprintf("redis at %s (BRIDGE_REDIS_URL): %v", d.s.Redis.URL, d.redisErr))
	}
	for _, lane := range d.lanes {
		l, found := stats.Lanes[lane]
		// What became due after the time that was asked for is the next drain's.
		oldest := l.NextDue
		switch {
		case !found || l.Overdue == 0:
		case d.givenUp[lane]:
			v.Problems = append(v.Problems, fmt.Sprintf("%d due for %s are left: its broker cannot be reached: %s", l.Overdue, lane, d.brokers[lane]))
		case end == drainTimeout && !oldest.After(horizon):
			why := ""
			if d.brokers[lane] != "" {
				why = ", and its broker cannot be reached: " + d.brokers[lane]
			}
			v.Problems = append(v.Problems, fmt.Sprintf("%d due for %s are left: --timeout %s is over%s", l.Overdue, lane, duration(d.o.timeout), why))
		}
	}
	if d.held != nil {
		v.Problems = append(v.Problems, "something was left in flight, which loses nothing: "+d.held.Error())
	}
	for _, src := range d.sources {
		switch {
		case src.givenUp:
			v.Problems = append(v.Problems, fmt.Sprintf("not everything was taken in from %s: %v", src.name, src.err))
		case end == drainTimeout && src.left != 0:
			v.Problems = append(v.Problems, fmt.Sprintf("not everything was taken in from %s: --timeout %s is over", src.name, duration(d.o.timeout)))
		}
		if src.left >= 0 {
			if v.Left.AtSources == nil {
				v.Left.AtSources = map[string]int64{}
			}
			v.Left.AtSources[src.name] = src.left
		}
	}
	switch {
	case end == drainStopped:
		v.Result = "stopped"
		v.Notes = append(v.Notes, v.Problems...)
		v.Problems = []string{}
	case len(v.Problems) > 0:
		v.Result = "incomplete"
	}
	v.Seconds = time.Since(d.began).Seconds()
	return v
}

// left counts what is left.
func (d *drainer) left(ctx context.Context, v *drainView, stats luascripts.Stats) {
	v.Left.Lanes = map[string]laneLeft{}
	var next time.Time
	for _, lane := range delaybridge.Lanes {
		l := stats.Lanes[lane]
		left := laneLeft{Due: l.Overdue, InFlight: l.InFlight, Later: l.Pending - l.Overdue}
		v.Left.Lanes[lane] = left
		v.Left.Due, v.Left.InFlight, v.Left.Later = v.Left.Due+left.Due, v.Left.InFlight+left.InFlight, v.Left.Later+left.Later
		if left.Due == 0 && left.Later > 0 && (next.IsZero() || l.NextDue.Before(next)) {
			next = l.NextDue
		}
		if left.Due > 0 && !slices.Contains(d.lanes, lane) {
			v.Notes = append(v.Notes, fmt.Sprintf("%d due for %s are left to a process that publishes to it: no broker of it is configured here", left.Due, lane))
		}
	}
	v.Left.NextDue = stamp(next)
	if v.Left.InFlight == 0 {
		return
	}
	if end, ok := d.firstLeaseEnd(ctx, stats.Now); ok {
		v.Left.FirstLeaseEnd = stamp(end)
		v.Notes = append(v.Notes, fmt.Sprintf("%d are in flight with other processes; should one of these be dead, its messages are due again when their leases end, the first in %v: drain again then",
			v.Left.InFlight, max(0, end.Sub(stats.Now)).Round(time.Second)))
	}
}

// firstLeaseEnd finds when the first lease that is held ends.
func (d *drainer) firstLeaseEnd(ctx context.Context, now time.Time) (first time.Time, ok bool) {
	for _, lane := range delaybridge.Lanes {
		without, err := d.queue.Peek(ctx, lane, false)
		if err != nil {
			return first, ok
		}
		with, err := d.queue.Peek(ctx, lane, true)
		if err != nil {
			return first, ok
		}
		for shard, w := range with {
			// A shard whose first thing due is earlier than its first lease's end
			// does not tell that end.
			if w < 0 || without[shard] >= 0 && without[shard] <= w {
				continue
			}
			if end := now.Add(w); !ok || end.Before(first) {
				first, ok = end, true
			}
		}
	}
	return first, ok
}

// counts are the requests taken in, by outcome.
func (d *drainer) counts() map[string]int64 {
	if d.mon == nil || !d.o.ingest {
		return nil
	}
	counts := map[string]int64{}
	families, _ := d.mon.metrics.registry.Gather()
	for _, f := range families {
		if f.GetName() != "bridge_ingested_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "result" {
					counts[label.GetValue()] += int64(m.GetCounter().GetValue())
				}
			}
		}
	}
	maps.DeleteFunc(counts, func(_ string, n int64) bool { return n == 0 })
	return counts
}
