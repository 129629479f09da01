package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"delaybridge/luascripts"
	"delaybridge/scheduler"
)

// drainOptions say what a drain waits for.
type drainOptions struct {
	within  time.Duration // what becomes due within it is waited for
	timeout time.Duration // 0: no limit
	ingest  bool
}

// drainer runs the parts of the bridge until nothing is due any more.
type drainer struct {
	s     *Settings
	o     drainOptions
	log   *zap.Logger
	queue *luascripts.Queue
	lanes []string // that are configured
	began time.Time

	mon       *monitor
	scheduler *scheduler.Scheduler
	sources   []*drainSource

	mu      sync.Mutex
	settled scheduler.Settled
	// When the queue last took a delivery, and when something was last given back,
	// which may be put off for a little.
	deliveredAt, releasedAt time.Time

	// Of the goroutine that waits alone.
	downSince  map[string]time.Time // lanes whose broker is away, since when
	givenUp    map[string]bool      // lanes
	brokers    map[string]string    // what is wrong with them, by lane
	redisSince time.Time            // since when Redis does not answer
	redisErr   error
	held       error     // what was not settled in time
	moved      time.Time // when something last changed
	state      string    // which is what
}

// drainEnd is how a drain has come to its end.
type drainEnd uint8

const (
	drainDone drainEnd = iota
	drainStopped
	drainTimeout
	drainFailed
)

// drain delivers what is due. It returns an error where it did not begin, else what
// it has done and left, and why.
func drain(ctx context.Context, s *Settings, o drainOptions, log *zap.Logger) (*drainView, error) {
	began := time.Now()
	s.Roles = list{roleScheduler}
	if o.ingest {
		s.Roles = append(s.Roles, roleIngest)
	}
	queue, client, err := openQueue(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }()
	if o.ingest {
		if err := reportRedis(ctx, client, bool(s.Redis.Strict), log); err != nil {
			return nil, err
		}
	}
	d := &drainer{
		s: s, o: o, log: log, queue: queue, lanes: s.observedSinks(), began: began,
		brokers: map[string]string{}, downSince: map[string]time.Time{}, givenUp: map[string]bool{}, moved: began,
	}
	d.lookAfter(ctx)
	if !o.ingest {
		// Nothing to do needs no broker.
		if quiet, _, err := d.nothingDue(ctx); err != nil {
			return nil, fmt.Errorf("redis at %s (BRIDGE_REDIS_URL): %w", s.Redis.URL, err)
		} else if quiet {
			return d.sum(ctx, drainDone), nil
		}
	}
	end, err := d.run(ctx)
	if err != nil && isUsage(err) {
		return nil, err
	}
	v := d.sum(ctx, end)
	if err != nil {
		v.Result, v.Problems = "incomplete", append(v.Problems, err.Error())
	}
	return v, nil
}

// lookAfter does once what a scheduler that runs all the time does every minute,
// where there may be none.
func (d *drainer) lookAfter(ctx context.Context) {
	for shard := range d.queue.Shards() {
		if ctx.Err() != nil {
			return
		}
		dropped, err := d.queue.Sweep(ctx, shard)
		if err == nil && dropped > 0 {
			d.log.Warn("dead letters dropped by age", zap.Int("shard", shard), zap.Int("count", dropped))
		}
		var repaired int
		if err == nil {
			repaired, err = d.queue.Repair(ctx, shard)
		}
		if repaired > 0 {
			d.log.Error("messages had fallen out of the queue's index and are due again", zap.Int("shard", shard), zap.Int("count", repaired))
		}
		if err != nil {
			d.log.Warn("cannot look after the queue", zap.Int("shard", shard), zap.Error(err))
		}
	}
}

// run starts what serve starts, and ends it once nothing is due.
func (d *drainer) run(asked context.Context) (end drainEnd, err error) {
	if d.mon, err = startMonitor(d.s, nil, d.log); err != nil {
		return drainFailed, err
	}
	defer d.mon.close()
	ctx, cancel := context.WithCancel(asked)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	onLost := endWhenLost(ctx, g)
	mux, closeSinks, err := d.s.newSinks(ctx, onLost, d.mon, d.log)
	if err != nil {
		return drainFailed, err
	}
	defer closeSinks()
	c := d.s.schedulerConfig(mux, d.log)
	c.Observe, c.Settled = d.mon.metrics, d.settledWere
	if d.scheduler, err = scheduler.New(c, d.mon.tracing.queue(d.queue), d.mon.tracing.sink(mux)); err != nil {
		return drainFailed, err
	}
	if d.o.ingest {
		sources, closeSources, err := d.s.newSources(ctx, d.queue, onLost, d.mon, d.log)
		if err != nil {
			return drainFailed, err
		}
		defer closeSources()
		for _, src := range sources {
			b, ok := src.(interface {
				Behind(context.Context) (int64, error)
			})
			if !ok {
				continue
			}
			d.sources = append(d.sources, &drainSource{source: src, name: sourceName(src), behind: b.Behind, left: -1})
			g.Go(func() error { return src.Run(ctx) })
		}
	}
	g.Go(func() error { return d.scheduler.Run(ctx) })

	end = d.await(ctx)
	broken := ctx.Err() != nil && asked.Err() == nil
	d.nameProblems(asked)
	cancel()
	err = waitFor(g, time.Duration(d.s.ShutdownTimeout)+time.Second)
	switch {
	case err == nil || errors.Is(err, context.Canceled):
		return end, nil
	case broken:
		return drainFailed, err
	}
	d.held = err
	return end, nil
}

// await waits until nothing is due and nothing waits at the sources, or there is
// no point in waiting for longer.
func (d *drainer) await(ctx context.Context) drainEnd {
	var limit <-chan time.Time
	if d.o.timeout > 0 {
		t := time.NewTimer(d.o.timeout - time.Since(d.began))
		defer t.Stop()
		limit = t.C
	}
	for {
		done, wait, failed := d.look(ctx)
		switch {
		case ctx.Err() != nil:
			return drainStopped
		case failed:
			return drainFailed
		case done:
			return drainDone
		}
		select {
		case <-ctx.Done():
			return drainStopped
		case <-limit:
			return drainTimeout
		case <-time.After(wait):
		}
	}
}

// look says whether all is done, else after how long to look again. It fails when
// Redis has not answered for too long.
func (d *drainer) look(ctx context.Context) (done bool, wait time.Duration, failed bool) {
	const soon = 50 * time.Millisecond
	// The sources first: what they are rid of is in Redis by the time that Redis is
	// asked what is due.
	d.watchBrokers()
	if d.behind(ctx) {
		return false, soon, false
	}
	before := d.work()
	quiet, wait, err := d.nothingDue(ctx)
	if err != nil {
		if ctx.Err() == nil && d.redisSince.IsZero() {
			d.redisSince = time.Now()
		}
		d.redisErr = err
		return false, soon, !d.redisSince.IsZero() && time.Since(d.redisSince) > d.patience()
	}
	d.redisSince = time.Time{}
	if !quiet || before.Busy || d.work() != before {
		return false, max(soon, min(wait, time.Second)), false
	}
	return true, 0, false
}

// patience is for how long a broker, or Redis, may be away.
func (d *drainer) patience() time.Duration { return time.Duration(d.s.PublishTimeout) }

// work is what the lanes that are not given up have in hand, all together.
func (d *drainer) work() (sum scheduler.Work) {
	if d.scheduler == nil {
		return sum
	}
	for _, lane := range d.lanes {
		if !d.givenUp[lane] {
			w := d.scheduler.Work(lane)
			sum.Taken, sum.Busy = sum.Taken+w.Taken, sum.Busy || w.Busy
		}
	}
	return sum
}

// nothingDue says whether no lane has anything that is to be waited for, and else
// after how long it may be due.
func (d *drainer) nothingDue(ctx context.Context) (quiet bool, wait time.Duration, err error) {
	rest := max(0, d.o.within-time.Since(d.began), d.postponed())
	wait, quiet = time.Hour, true
	for _, lane := range d.lanes {
		if d.givenUp[lane] {
			continue
		}
		waits, err := d.queue.Peek(ctx, lane, true)
		if err != nil {
			return false, 0, err
		}
		for _, w := range waits {
			if w >= 0 && w <= rest {
				quiet, wait = false, min(wait, w)
			}
		}
	}
	return quiet, wait, nil
}

// settledWere counts; it is scheduler.Config.Settled.
func (d *drainer) settledWere(_ string, s scheduler.Settled) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.settled.Delivered += s.Delivered
	d.settled.Retried += s.Retried
	d.settled.Released += s.Released
	d.settled.Dead += s.Dead
	if s.Delivered > 0 {
		d.deliveredAt = time.Now()
	}
	if s.Released > 0 {
		d.releasedAt = time.Now()
	}
}

// postponed is for how long what the lanes have put off themselves may still be due
// in a little. It was due, and is waited for as long as anything is delivered: its
// target is slow. One that takes nothing is left.
func (d *drainer) postponed() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	last := d.releasedAt
	if d.deliveredAt.Before(last) {
		last = d.deliveredAt
	}
	if last.IsZero() {
		return 0
	}
	return time.Until(last.Add(scheduler.PostponedFor))
}
