package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"delaybridge"
	"delaybridge/luascripts"
)

// openQueue opens the bridge's queue.
func (w *world) openQueue(ctx context.Context) (*luascripts.Queue, error) {
	client, err := luascripts.Connect(w.redisURL, luascripts.ModeSingle)
	if err != nil {
		return nil, err
	}
	w.cleanup = append(w.cleanup, func() { _ = client.Close() })
	return luascripts.Open(ctx, client, luascripts.DefaultConfig())
}

// serve starts bridge processes and waits until all run. Settings are added to
// those of the servers.
func (w *world) serve(n int, settings map[string]string) ([]*process, error) {
	var all []*process
	for range n {
		port, err := freePort()
		if err != nil {
			return all, err
		}
		metrics := fmt.Sprintf("127.0.0.1:%d", port)
		env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
		for name, value := range map[string]string{
			"REDIS_URL": w.redisURL, "NATS_URL": w.natsURL, "ROLES": "scheduler", "METRICS_ADDR": metrics,
		} {
			if _, ok := settings[name]; !ok {
				env = append(env, "BRIDGE_"+name+"="+value)
			}
		}
		for name, value := range settings {
			env = append(env, "BRIDGE_"+name+"="+value)
		}
		p, err := start("bridge", env, w.bridge, "serve")
		if err != nil {
			return all, err
		}
		p.metrics = metrics
		w.others = append(w.others, p)
		all = append(all, p)
	}
	for _, p := range all {
		if _, err := p.await(`"msg":"running"`); err != nil {
			return all, err
		}
	}
	return all, nil
}

// form says what stored messages look like beyond the plan.
type form struct {
	target  func(i int) delaybridge.Target // nats and the plan's subject unless set
	source  string                         // of the positions, and with them of the ids
	headers []delaybridge.Header
	ownID   bool // ids are not those of the positions
}

// store puts the messages of a plan into the bridge's queue, as ingest does it,
// and returns the bytes of their ids, payloads and headers.
func store(ctx context.Context, q *luascripts.Queue, p *plan, f form) (bytes int64, err error) {
	if f.source == "" {
		f.source = "nats:BRIDGE_SCHEDULE"
	}
	if f.target == nil {
		f.target = func(i int) delaybridge.Target {
			return delaybridge.Target{Sink: delaybridge.SinkNATS, Name: p.subject(i)}
		}
	}
	scheduled := time.Now().Truncate(time.Millisecond)
	payload := p.payload()
	var total atomic.Int64
	err = inBatches(ctx, p.n, 1000, 3, func(ctx context.Context, from, to int) error {
		requests := make([]delaybridge.Request, to-from)
		own := 0
		for j := range requests {
			i := from + j
			at := delaybridge.Position{Source: f.source, Offset: uint64(i)}
			id := at.String()
			if f.ownID {
				id = "order-timeout:" + strconv.Itoa(i)
			}
			requests[j].Message = delaybridge.Message{
				ID: id, Position: at, Target: f.target(i), Scheduled: scheduled, Due: p.due(i), Headers: f.headers, Payload: payload,
			}
			own += len(id) + len(payload)
			for _, h := range f.headers {
				own += len(h.Name) + len(h.Value)
			}
		}
		total.Add(int64(own))
		for _, r := range q.Store(ctx, requests) {
			if r.Err != nil {
				return r.Err
			}
		}
		return nil
	})
	return total.Load(), err
}

// inBatches works on 0..n in batches, some of them at a time.
func inBatches(ctx context.Context, n, batch, workers int, work func(ctx context.Context, from, to int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range workers {
		g.Go(func() error {
			for ctx.Err() == nil {
				from := int(next.Add(int64(batch))) - batch
				if from >= n {
					return nil
				}
				if err := work(ctx, from, min(from+batch, n)); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	}
	return g.Wait()
}

// ours is the bridge, as processes of its own.
type ours struct{ settings map[string]string }

func (o ours) run(ctx context.Context, w *world, p *plan, processes int) (values, error) {
	q, err := w.openQueue(ctx)
	if err != nil {
		return nil, err
	}
	v := values{}
	if _, err := w.serve(processes, o.settings); err != nil {
		return nil, err
	}
	before, _, err := w.commands(ctx)
	if err != nil {
		return nil, err
	}
	p.ahead(50_000, w.lead)
	began := time.Now()
	if _, err := store(ctx, q, p, form{}); err != nil {
		return nil, err
	}
	v["store_per_s"] = float64(p.n) / time.Since(began).Seconds()
	if time.Now().After(p.first) {
		return nil, errTooSlow
	}
	stored, usStored, err := w.commands(ctx)
	if err != nil {
		return nil, err
	}
	if err := w.awaitTarget(ctx, p.n); err != nil {
		return nil, err
	}
	after, usAfter, err := w.commands(ctx)
	if err != nil {
		return nil, err
	}
	// Only claims look for what is due, twice each, and only those that find
	// something put it in flight, with one ZADD.
	claims := (after["zrangebyscore"] - before["zrangebyscore"]) / 2
	v["claims_per_message"] = claims / float64(p.n)
	if claims > 0 {
		v["wasted_claims_part"] = 1 - (after["zadd"]-stored["zadd"])/claims
	}
	// What scripts call shows beside the scripts, which contain it.
	for name, us := range usAfter {
		if us = (us - usStored[name]) / float64(p.n); us >= 0.01 && name != "info" {
			v["redis_us_"+name] = us
		}
	}
	return v, nil
}
