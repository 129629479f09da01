package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// plan is a set of messages with numbers from 0, and when each is due.
type plan struct {
	n, size  int
	subjects int // that take turns; 1 at least
	first    time.Time
	spread   time.Duration // evenly over it; 0: all at once
}

// due is the time of a message, to the millisecond.
func (p *plan) due(i int) time.Time {
	return p.first.Add(time.Duration(float64(p.spread) * float64(i) / float64(p.n))).Truncate(time.Millisecond)
}

func (p *plan) subject(i int) string { return "out." + strconv.Itoa(i%max(p.subjects, 1)) }

func (p *plan) payload() []byte { return []byte(strings.Repeat("x", p.size)) }

// errTooSlow says that messages were due before all were stored.
var errTooSlow = errors.New("storing took longer than planned")

// ahead lets the first message be due far enough ahead for all to be stored at a
// rate before that, and times further.
func (p *plan) ahead(perSecond, times float64) {
	lead := time.Second + time.Duration(float64(p.n)/perSecond*float64(time.Second))
	p.first = time.Now().Add(time.Duration(times * float64(lead))).Truncate(time.Millisecond)
}

// numberOf finds a message's number in its headers: who delivers it has put it
// into one of these.
func numberOf(h nats.Header) (int, error) {
	id := h.Get("Bridge-Id")
	if id == "" {
		id = h.Get("X-Id")
	}
	if id == "" {
		id = h.Get("Nats-Msg-Id")
	}
	return strconv.Atoi(id[strings.LastIndex(id, ":")+1:])
}

// awaitTarget waits until the target stream has n messages, and gives up when no
// more come for a time.
func (w *world) awaitTarget(ctx context.Context, n int) error {
	const patience = 40 * time.Second
	last, moved := uint64(0), time.Now()
	for {
		var filter []jetstream.StreamInfoOpt
		if w.mixed {
			filter = append(filter, jetstream.WithSubjectFilter("out.>"))
		}
		info, err := w.target.Info(ctx, filter...)
		if err != nil {
			return err
		}
		have := info.State.Msgs
		if w.mixed {
			have = 0
			for _, n := range info.State.Subjects {
				have += n
			}
		}
		if have >= uint64(n) {
			return nil
		}
		if have != last {
			last, moved = have, time.Now()
		}
		if time.Since(moved) > patience {
			return fmt.Errorf("%d of %d messages have arrived, and no more for %v", have, n, patience)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(40 * time.Millisecond):
		}
	}
}

// result is what the target stream says of a plan.
type result struct {
	late                      []time.Duration // sorted
	first, last               time.Time
	missing, twice, early     int
	lateOf                    map[int]time.Duration
	perSecond, perSecondFirst float64
}

// readTarget reads when each message of the plan was stored in the target.
func (w *world) readTarget(ctx context.Context, p *plan) (*result, error) {
	info, err := w.target.Info(ctx)
	if err != nil {
		return nil, err
	}
	consumer, err := w.target.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{HeadersOnly: true, FilterSubjects: []string{"out.>"}})
	if err != nil {
		return nil, err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(5000))
	if err != nil {
		return nil, err
	}
	defer messages.Stop()
	r := &result{lateOf: map[int]time.Duration{}}
	seen := make([]bool, p.n)
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return nil, err
		}
		meta, err := m.Metadata()
		if err != nil {
			return nil, err
		}
		i, err := numberOf(m.Headers())
		if err != nil {
			return nil, fmt.Errorf("a delivered message has no number: %v", m.Headers())
		}
		at := meta.Timestamp
		switch {
		case i < 0 || i >= p.n:
			return nil, fmt.Errorf("a delivered message has the number %d", i)
		case seen[i]:
			r.twice++
		default:
			seen[i] = true
			late := at.Sub(p.due(i))
			if late < 0 {
				r.early++
			}
			r.late = append(r.late, late)
			if r.first.IsZero() || at.Before(r.first) {
				r.first = at
			}
			if at.After(r.last) {
				r.last = at
			}
		}
		if meta.Sequence.Stream >= info.State.LastSeq || meta.NumPending == 0 {
			break
		}
	}
	r.missing = p.n - len(r.late)
	slices.Sort(r.late)
	r.perSecond = float64(len(r.late)) / max(r.last.Sub(p.first).Seconds(), 1e-6)
	r.perSecondFirst = float64(len(r.late)) / max(r.last.Sub(r.first).Seconds(), 1e-6)
	if r.missing > 0 {
		return r, fmt.Errorf("%d of %d messages are missing", r.missing, p.n)
	}
	return r, nil
}

// ms is a percentile of the lateness, in ms.
func (r *result) ms(part float64) float64 {
	return float64(percentile(r.late, part)) / float64(time.Millisecond)
}

// within is the part of the messages that were no later than that.
func (r *result) within(d time.Duration) float64 {
	n, _ := slices.BinarySearch(r.late, d+1)
	return float64(n) / float64(len(r.late))
}

func percentile(sorted []time.Duration, part float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(0, int(math.Ceil(part*float64(len(sorted))))-1)]
}
