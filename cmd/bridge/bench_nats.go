package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"delaybridge"
)

// benchNATS is a lane of NATS: the target is a stream, or for core NATS a
// subscription, whose clock is this host's. The source is a stream in both cases.
type benchNATS struct {
	b        *benchRun
	core     bool
	nc       *nats.Conn
	js       jetstream.JetStream
	in, out  string // streams
	subjects []string

	mu   sync.Mutex
	seen []arrival // of core NATS
}

const benchNote = `made by "bridge bench", which removes it at its end`

// newBenchNATS connects, and returns an error where no server answers.
func newBenchNATS(ctx context.Context, b *benchRun, lane string) (*benchNATS, error) {
	n := &benchNATS{b: b, core: lane == delaybridge.SinkNATSCore, in: b.name + "-in", out: b.name + "-out"}
	word := "out"
	if n.core {
		word = "core"
	}
	for i := range b.subjects {
		n.subjects = append(n.subjects, fmt.Sprintf("%s.%s.%d", b.name, word, i))
	}
	var err error
	if n.nc, err = connectNATS(b.settings, &link{use: "bench"}, quiet(), func(error) {}); err != nil {
		return nil, err
	}
	for tries := 0; !n.nc.IsConnected(); tries++ {
		if tries == 100 || ctx.Err() != nil {
			n.nc.Close()
			return nil, fmt.Errorf("nats at %s (BRIDGE_NATS_URL): no server answers: %w", b.settings.NATS.URL, errors.Join(n.nc.LastError(), ctx.Err()))
		}
		time.Sleep(50 * time.Millisecond)
	}
	n.js, err = jetstream.New(n.nc, jetstream.WithPublishAsyncMaxPending(4000))
	return n, err
}

func (n *benchNATS) create(ctx context.Context) (made []string, err error) {
	stream := func(c jetstream.StreamConfig) error {
		c.Description, c.Storage, c.Replicas = benchNote, jetstream.FileStorage, max(1, n.b.replicas)
		if _, err := n.js.CreateStream(ctx, c); err != nil {
			return fmt.Errorf("make stream %s: %w", c.Name, err)
		}
		made = append(made, "stream "+c.Name)
		return nil
	}
	if n.b.path == pathFull {
		// As the bridge makes its own.
		if err := stream(jetstream.StreamConfig{
			Name: n.in, Subjects: []string{n.source()}, Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew,
		}); err != nil {
			return made, err
		}
	}
	if !n.core {
		return made, stream(jetstream.StreamConfig{Name: n.out, Subjects: []string{n.b.name + ".out.*"}})
	}
	sub, err := n.nc.Subscribe(n.b.name+".core.*", func(m *nats.Msg) {
		a := newArrival(m.Header.Get, time.Now())
		n.mu.Lock()
		n.seen = append(n.seen, a)
		n.mu.Unlock()
	})
	if err != nil {
		return made, fmt.Errorf("subscribe to the targets: %w", err)
	}
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		return made, err
	}
	return made, n.nc.FlushTimeout(5 * time.Second)
}

// newArrival reads what a delivered message says of itself.
func newArrival(header func(string) string, at time.Time) arrival {
	due, _ := time.Parse(time.RFC3339, header("Bridge-Due-At")) // what is broken counts as missing
	return arrival{id: header("Bridge-Id"), due: due, at: at}
}

func (n *benchNATS) source() string { return n.b.name + ".in" }

func (n *benchNATS) targets() []delaybridge.Target {
	sink := delaybridge.SinkNATS
	if n.core {
		sink = delaybridge.SinkNATSCore
	}
	all := make([]delaybridge.Target, len(n.subjects))
	for i, s := range n.subjects {
		all[i] = delaybridge.Target{Sink: sink, Name: s}
	}
	return all
}

func (n *benchNATS) settings() map[string]string {
	return map[string]string{
		"NATS_INGEST_STREAM": n.in, "NATS_INGEST_SUBJECTS": n.source(), "NATS_INGEST_DURABLE": n.b.name,
		"NATS_INGEST_CREATE": "false",
	}
}

func (n *benchNATS) publish(ctx context.Context, count int, over, delay time.Duration, payload []byte, done *counter) error {
	targets := n.targets()
	var futures []jetstream.PubAckFuture
	// The window bounds what is not confirmed; outcomes are looked at in order.
	settle := func(most int) error {
		for len(futures) > most {
			select {
			case <-futures[0].Ok():
				done.add(1)
			case err := <-futures[0].Err():
				return fmt.Errorf("publish to %s: %w", n.source(), err)
			case <-ctx.Done():
				return ctx.Err()
			}
			futures = futures[1:]
		}
		return nil
	}
	began := time.Now()
	for i := range count {
		if err := pace(ctx, began, over, i, count); err != nil {
			return err
		}
		m := nats.NewMsg(n.source())
		m.Data = payload
		m.Header["Bridge-Target"] = []string{targets[i%len(targets)].String()}
		m.Header["Bridge-Delay"] = []string{strconv.FormatInt(delay.Milliseconds(), 10) + "ms"}
		f, err := n.js.PublishMsgAsync(m)
		if err != nil {
			return fmt.Errorf("publish to %s: %w", n.source(), err)
		}
		futures = append(futures, f)
		if err := settle(2000); err != nil {
			return err
		}
	}
	return settle(0)
}

// pace waits until the i-th of n is to be sent, for an even pace over a time. It
// sleeps for no less than a millisecond, since shorter sleeps are not to be had.
func pace(ctx context.Context, began time.Time, over time.Duration, i, n int) error {
	ahead := time.Until(began.Add(time.Duration(float64(over) * float64(i) / float64(n))))
	if over == 0 || ahead < time.Millisecond {
		return ctx.Err()
	}
	select {
	case <-time.After(ahead):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *benchNATS) arrived(ctx context.Context) (int64, error) {
	if n.core {
		n.mu.Lock()
		defer n.mu.Unlock()
		return int64(len(n.seen)), nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	s, err := n.js.Stream(ctx, n.out)
	if err != nil {
		return 0, fmt.Errorf("look at stream %s: %w", n.out, err)
	}
	return int64(s.CachedInfo().State.Msgs), nil
}

func (n *benchNATS) read(ctx context.Context, each func(arrival)) error {
	if n.core {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, a := range n.seen {
			each(a)
		}
		return nil
	}
	reading := func(err error) error { return fmt.Errorf("read stream %s: %w", n.out, err) }
	s, err := n.js.Stream(ctx, n.out)
	if err != nil {
		return reading(err)
	}
	last := s.CachedInfo().State.LastSeq
	if last == 0 {
		return nil
	}
	consumer, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{HeadersOnly: true})
	if err != nil {
		return reading(err)
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(5000))
	if err != nil {
		return reading(err)
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return reading(err)
		}
		meta, err := m.Metadata()
		if err != nil {
			return reading(err)
		}
		each(newArrival(m.Headers().Get, meta.Timestamp))
		if meta.Sequence.Stream >= last {
			return nil
		}
	}
}

func (n *benchNATS) remove(ctx context.Context) error {
	defer n.nc.Close()
	var errs []error
	for _, name := range []string{n.in, n.out} {
		err := n.js.DeleteStream(ctx, name)
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			errs = append(errs, fmt.Errorf("remove stream %s: %w: remove it by hand, nats stream rm %[1]s", name, err))
		}
	}
	return errors.Join(errs...)
}
