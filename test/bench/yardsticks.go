package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/hibiken/asynq"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// queued is asynq, whose handler publishes to JetStream and waits.
type queued struct {
	every time.Duration // between looks at what is due; 0: its default, 5 s
}

const taskType = "deliver"

func (k queued) run(ctx context.Context, w *world, p *plan, processes int) (values, error) {
	for range processes {
		worker, err := startSelf("asynq", w.redisAddr, w.natsURL, k.every.String())
		if err != nil {
			return nil, err
		}
		w.others = append(w.others, worker)
		if _, err := worker.await("running"); err != nil {
			return nil, err
		}
	}
	p.ahead(8_000, w.lead)
	began := time.Now()
	if _, err := asynqStore(ctx, w, p); err != nil {
		return nil, err
	}
	v := values{"store_per_s": float64(p.n) / time.Since(began).Seconds()}
	if time.Now().After(p.first) {
		return nil, errTooSlow
	}
	return v, w.awaitTarget(ctx, p.n)
}

// asynqStore schedules a plan's messages, one call each as it takes them.
func asynqStore(ctx context.Context, w *world, p *plan) (own int64, err error) {
	client := asynq.NewClient(asynq.RedisClientOpt{Addr: w.redisAddr})
	defer func() { _ = client.Close() }()
	payload := p.payload()
	return int64(p.n) * int64(len("bench:000000")+len(payload)), inBatches(ctx, p.n, 50, 16, func(ctx context.Context, from, to int) error {
		for i := from; i < to; i++ {
			task := asynq.NewTask(taskType, payload)
			if _, err := client.EnqueueContext(ctx, task, asynq.TaskID("bench:"+strconv.Itoa(i)), asynq.ProcessAt(p.due(i))); err != nil {
				return err
			}
		}
		return nil
	})
}

// queuedWorker is this program as a server of asynq.
func queuedWorker(args []string) error {
	nc, err := nats.Connect(args[1])
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	every, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	server := asynq.NewServer(asynq.RedisClientOpt{Addr: args[0]}, asynq.Config{DelayedTaskCheckInterval: every, LogLevel: asynq.WarnLevel})
	fmt.Println("running")
	return server.Run(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		m := &nats.Msg{Subject: "out.0", Header: nats.Header{"Nats-Msg-Id": {id}}, Data: t.Payload()}
		_, err := js.PublishMsg(ctx, m)
		return err
	}))
}

// native are the schedules of NATS itself: the server delivers them.
type native struct{}

// allowSchedules makes the target stream hold schedules, too: they must be in the
// stream of their targets.
func allowSchedules(c *jetstream.StreamConfig) {
	c.Subjects = append(c.Subjects, "schedule.>")
	c.AllowMsgSchedules = true
}

func (native) run(ctx context.Context, w *world, p *plan, _ int) (values, error) {
	w.mixed = true
	p.ahead(15_000, w.lead)
	payload := p.payload()
	began := time.Now()
	if err := inBatches(ctx, p.n, 500, 1, func(ctx context.Context, from, to int) error {
		futures := make([]jetstream.PubAckFuture, 0, to-from)
		for i := from; i < to; i++ {
			m := &nats.Msg{Subject: "schedule." + strconv.Itoa(i), Data: payload, Header: nats.Header{
				"Nats-Schedule":        {"@at " + p.due(i).UTC().Format(time.RFC3339Nano)},
				"Nats-Schedule-Target": {p.subject(i)},
				"X-Id":                 {strconv.Itoa(i)},
			}}
			f, err := w.js.PublishMsgAsync(m)
			if err != nil {
				return err
			}
			futures = append(futures, f)
		}
		for _, f := range futures {
			select {
			case <-f.Ok():
			case err := <-f.Err():
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}); err != nil {
		return nil, err
	}
	v := values{"store_per_s": float64(p.n) / time.Since(began).Seconds()}
	if time.Now().After(p.first) {
		return nil, errTooSlow
	}
	return v, w.awaitTarget(ctx, p.n)
}
