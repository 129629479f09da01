package scheduler

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"delaybridge"
)

// Scheduler delivers what is due in its lanes. Any number of them, in any number
// of processes, may share a queue.
type Scheduler struct {
	cfg   Config
	queue Queue
	lanes map[string]*lane
}

// New returns a scheduler that publishes to sink. The error names what is wrong
// with cfg.
func New(cfg Config, queue Queue, sink delaybridge.Sink) (*Scheduler, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	s := &Scheduler{cfg: cfg, queue: queue, lanes: map[string]*lane{}}
	for _, name := range cfg.Lanes {
		s.lanes[name] = newLane(name, &s.cfg, queue, sink)
	}
	return s, nil
}

// Run delivers until ctx ends. Then it claims no more, finishes what it holds,
// and returns nil; if that takes longer than the shutdown timeout it returns an
// error that says how many messages it left, which come back when their leases
// have run out. A queue or broker that fails never ends it.
func (s *Scheduler) Run(ctx context.Context) error {
	var g errgroup.Group
	for _, l := range s.lanes {
		g.Go(func() error { return l.run(ctx) })
	}
	g.Go(func() error { s.watch(ctx); return nil })
	g.Go(func() error { s.sweep(ctx); return nil })
	return g.Wait()
}

// Stalled names the loops that have made no turn for that long, none if all is
// well. A lane that waits for its next look at the queue does not stall.
func (s *Scheduler) Stalled(d time.Duration) (names []string) {
	for _, name := range s.cfg.Lanes {
		l := s.lanes[name]
		if l.running.Missed(d + s.cfg.PollMax) {
			names = append(names, "claiming for "+name)
		}
		if l.settling.Missed(d) {
			names = append(names, "settling for "+name)
		}
	}
	return names
}

// watch wakes lanes when something earlier comes in. While the subscription is
// broken the lanes find it by themselves, a poll later.
func (s *Scheduler) watch(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		began := time.Now()
		err := s.queue.Watch(ctx, func(name string, shard int) {
			if shard < 0 {
				for _, l := range s.lanes {
					l.wakeAll()
				}
			} else if l := s.lanes[name]; l != nil {
				l.wake(shard)
			}
		})
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > probeLongest {
			failures = 0
		}
		failures++
		if failures == 1 {
			s.cfg.Log.Warn("wake-ups lost, polling until they are back", zap.Error(err))
		}
		sleep(ctx, probeAfter(failures))
	}
}

// sweep looks after one shard after another: it drops what has outlived its
// time, and finds what is amiss.
func (s *Scheduler) sweep(ctx context.Context) {
	const round = time.Minute
	shards := s.queue.Shards()
	failed := false
	for shard := 0; sleep(ctx, round/time.Duration(shards)); shard = (shard + 1) % shards {
		log := s.cfg.Log.With(zap.Int("shard", shard))
		wiped, err := s.queue.Wiped(ctx)
		if wiped {
			if s.cfg.Observe != nil {
				s.cfg.Observe.Wiped()
			}
			log.Error("Redis has lost its data: what was pending is gone, what comes in from now on is kept")
		}
		if err == nil {
			var dropped int
			if dropped, err = s.queue.Sweep(ctx, shard); dropped > 0 {
				if s.cfg.Observe != nil {
					s.cfg.Observe.DeadTrimmed(dropped)
				}
				log.Warn("dead letters dropped by age", zap.Int("count", dropped))
			}
		}
		if err == nil {
			var repaired int
			if repaired, err = s.queue.Repair(ctx, shard); repaired > 0 {
				if s.cfg.Observe != nil {
					s.cfg.Observe.Repaired(repaired)
				}
				log.Error("messages had fallen out of the queue's index and are due again", zap.Int("count", repaired))
			}
		}
		if err != nil && !failed && ctx.Err() == nil {
			log.Warn("cannot look after the queue, trying on", zap.Error(err))
		}
		failed = err != nil
	}
}

// sleep returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
