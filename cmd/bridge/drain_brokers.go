package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// drainSource is a source and what was last heard of it.
type drainSource struct {
	source
	name    string
	behind  func(context.Context) (int64, error)
	left    int64
	err     error
	since   time.Time // of err
	givenUp bool
}

// drainSourceStuck is for how long nothing may move while something is left at a
// source. It is more than what the server waits for a dead process's acknowledgement.
const drainSourceStuck = time.Minute

// watchBrokers gives up on lanes whose broker has been away for too long.
func (d *drainer) watchBrokers() {
	for _, lane := range d.lanes {
		switch m := d.mon.metrics.lanes[lane]; {
		case m == nil || !m.down.Load():
			delete(d.downSince, lane)
		case d.downSince[lane].IsZero():
			d.downSince[lane] = time.Now()
		case time.Since(d.downSince[lane]) > d.patience():
			d.givenUp[lane] = true
		}
	}
}

// behind reports whether something waits at a source that is not given up.
func (d *drainer) behind(ctx context.Context) (some bool) {
	state := ""
	for _, src := range d.sources {
		if src.givenUp {
			continue
		}
		// Once it is empty it is left alone: what comes in later is of the next drain.
		if src.left == 0 && src.err == nil {
			continue
		}
		asking, cancel := context.WithTimeout(ctx, d.patience())
		left, err := src.behind(asking)
		cancel()
		switch {
		case err == nil:
			src.left, src.err, src.since = left, nil, time.Time{}
		case src.since.IsZero():
			src.err, src.since = err, time.Now()
		default:
			src.err = err
			src.givenUp = time.Since(src.since) > d.patience()
		}
		some = some || !src.givenUp && (src.err != nil || src.left > 0)
		state += fmt.Sprint(src.left, " ")
	}
	if len(d.sources) == 0 {
		return false
	}
	d.mu.Lock()
	state += fmt.Sprint(d.settled)
	d.mu.Unlock()
	if state != d.state {
		d.state, d.moved = state, time.Now()
	}
	if time.Since(d.moved) > drainSourceStuck {
		for _, src := range d.sources {
			if src.left != 0 && !src.givenUp {
				src.givenUp, src.err = true, cmp.Or(src.err, fmt.Errorf("nothing has moved for %v", drainSourceStuck))
			}
		}
	}
	return some
}

// sourceName is the broker of a source.
func sourceName(src source) string {
	for name := range src.Lag() {
		if strings.HasPrefix(name, brokerKafka+":") {
			return brokerKafka
		}
	}
	return brokerNATS
}

// nameProblems asks the brokers of lanes that are away what is wrong with them.
func (d *drainer) nameProblems(ctx context.Context) {
	d.mon.health.mu.Lock()
	links := slices.Clone(d.mon.health.links)
	d.mon.health.mu.Unlock()
	for _, l := range links {
		if l.use != useSink || !slices.ContainsFunc(l.lanes, func(lane string) bool { return !d.downSince[lane].IsZero() || d.givenUp[lane] }) {
			continue
		}
		why := "it could not be reached"
		if err := l.check(ctx); err != nil {
			why = err.Error()
		}
		for _, lane := range l.lanes {
			d.brokers[lane] = why
		}
	}
}
