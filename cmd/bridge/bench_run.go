package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"delaybridge"
	"delaybridge/luascripts"
)

// screenWriter is where something is printed.
type screenWriter = io.Writer

// benchBroker is one lane of a measurement: where its messages come from, with
// the full path, and where they go.
type benchBroker interface {
	// create makes what is needed and returns what that is.
	create(ctx context.Context) (made []string, err error)
	// targets are what messages are delivered to, in turn.
	targets() []delaybridge.Target
	// settings are those of the processes that take in from this lane, without the
	// BRIDGE_ of their names.
	settings() map[string]string
	// publish asks at the source for deliveries to targets in turn after a delay,
	// each with the payload: n of them, as fast as it can, or evenly over a time.
	// Done counts them.
	publish(ctx context.Context, n int, over, delay time.Duration, payload []byte, done *counter) error
	// arrived counts what the target has.
	arrived(ctx context.Context) (int64, error)
	// read calls each for what the target has.
	read(ctx context.Context, each func(arrival)) error
	// remove removes what create made, and forgets about what is not there. It also
	// closes the connections.
	remove(ctx context.Context) error
}

// arrival is one delivered message.
type arrival struct {
	id  string
	due time.Time
	at  time.Time // by the broker's clock
}

// benchRun is one measurement.
type benchRun struct {
	*benchPlan
	settings       *Settings // with a namespace of their own
	stdout, stderr io.Writer
	name           string
	payload        []byte

	client  redis.UniversalClient
	queue   *luascripts.Queue
	brokers []benchBroker
	made    bool
	serving *benchProcesses

	report benchReport
}

func newBenchRun(p *benchPlan, s *Settings, stdout, stderr io.Writer) *benchRun {
	own := *s
	name := "bench-" + strings.ToLower(rand.Text()[:8])
	own.Namespace = text(name)
	b := &benchRun{benchPlan: p, settings: &own, stdout: stdout, stderr: stderr, name: name}
	b.payload = []byte(strings.Repeat("x", p.size))
	return b
}

// measure goes through the stages.
func (b *benchRun) measure(ctx context.Context) error {
	if err := b.prepare(ctx); err != nil {
		return err
	}
	b.say(b.report.heading())
	var err error
	if b.path == pathFull {
		err = b.measureFull(ctx)
	} else {
		err = b.measureQueue(ctx)
	}
	if err != nil {
		return err
	}
	if err := b.readBack(ctx); err != nil {
		return err
	}
	usage, err := b.serving.stop()
	if err != nil {
		return err
	}
	b.report.usage(usage)
	b.say(b.report.processLines())
	if b.output == formatJSON {
		return printJSON(b.stdout, b.report)
	}
	return nil
}

// say prints a part of the report as soon as it is known.
func (b *benchRun) say(lines string) {
	if b.output == formatText {
		_, _ = io.WriteString(b.stdout, lines)
	}
}

// prepare connects to everything and makes what is to be removed later.
func (b *benchRun) prepare(ctx context.Context) error {
	var err error
	if b.queue, b.client, err = openQueue(ctx, b.settings); err != nil {
		return err
	}
	b.made = true
	facts, err := readRedisFacts(ctx, b.client)
	if err != nil {
		facts = redisFacts{} // hosted servers may not tell
	}
	b.report = newBenchReport(b, facts)
	made := []string{"keys " + b.keys() + " in Redis"}
	for _, lane := range b.lanes {
		broker, err := b.newBroker(ctx, lane)
		if err != nil {
			return err
		}
		b.brokers = append(b.brokers, broker)
		names, err := broker.create(ctx)
		made = append(made, names...)
		if err != nil {
			return err
		}
	}
	fmt.Fprintf(b.stderr, "bridge: made for this: %s; all of it is removed at the end, though not after kill -9\n", strings.Join(made, ", "))
	return nil
}

// keys are the patterns of all keys that a measurement may leave when it is killed.
func (b *benchRun) keys() string {
	return fmt.Sprintf("{%s:*}, %[1]s:meta, {%[1]s%[2]s:*} and %[1]s%[2]s:meta", b.name, benchFirst)
}

// benchFirst ends the namespace of the messages by which the rate is learnt.
const benchFirst = ".first"

func (b *benchRun) newBroker(ctx context.Context, lane string) (benchBroker, error) {
	if lane == delaybridge.SinkKafka {
		return newBenchKafka(ctx, b)
	}
	return newBenchNATS(ctx, b, lane)
}

// remove stops the processes and removes everything that was made. It runs to
// its end also when the measurement was interrupted.
func (b *benchRun) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if b.serving != nil {
		b.serving.kill()
	}
	var errs []error
	for _, broker := range b.brokers {
		errs = append(errs, broker.remove(ctx))
	}
	if b.made {
		if err := b.queue.Destroy(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%w: remove the keys %s by hand", err, b.keys()))
		}
	}
	if b.client != nil {
		_ = b.client.Close()
	}
	return errors.Join(errs...)
}

// serve starts the processes and waits until all run.
func (b *benchRun) serve(ctx context.Context) error {
	over := map[string]string{
		"NAMESPACE": b.name, "ROLES": roleScheduler, "METRICS_ADDR": "", "LOG_LEVEL": "info", "LOG_FORMAT": "json",
	}
	if b.path == pathFull {
		over["ROLES"] = roleIngest + "," + roleScheduler
	}
	nats, kafka := false, false
	for i, broker := range b.brokers {
		nats, kafka = nats || b.lanes[i] != delaybridge.SinkKafka, kafka || b.lanes[i] == delaybridge.SinkKafka
		for name, value := range broker.settings() {
			over[name] = value
		}
	}
	var without []string
	if !nats {
		without = append(without, "NATS_")
	}
	if !kafka {
		without = append(without, "KAFKA_")
	}
	var err error
	b.serving, err = startBenchProcesses(ctx, b.processes, over, without)
	return err
}

// measureQueue stores everything with times a little ahead, and waits until all
// of it is delivered.
func (b *benchRun) measureQueue(ctx context.Context) error {
	rate, err := b.calibrate(ctx)
	if err != nil {
		return err
	}
	if err := b.serve(ctx); err != nil {
		return err
	}
	// Half as long again as it should take, so that the last is stored before the
	// first is due.
	began := time.Now()
	first := began.Add(time.Second + time.Duration(1.5*float64(b.count)/rate*float64(time.Second))).Truncate(time.Millisecond)
	before := b.usedMemory(ctx)
	bytes, err := b.store(ctx, b.queue, b.count, "", func(i int) time.Time {
		return first.Add(time.Duration(float64(b.spread) * float64(i) / float64(b.count)))
	})
	if err != nil {
		return err
	}
	took := time.Since(began)
	b.report.Store = newStage(b.count, took)
	b.report.memory(before, b.usedMemory(ctx), bytes)
	b.say(b.report.storeLines())
	if late := time.Since(first); late > 0 {
		b.report.StoredLate = true
		fmt.Fprintf(b.stderr, "bridge: storing took %v longer than planned: the first messages are late by that\n", late.Round(time.Millisecond))
	}
	if err := b.awaitTime(ctx, first); err != nil {
		return err
	}
	return b.awaitAll(ctx, first)
}

// calibrate stores a few messages in a queue of its own to learn the rate.
func (b *benchRun) calibrate(ctx context.Context) (perSecond float64, err error) {
	own := *b.settings
	own.Namespace += benchFirst
	q, err := luascripts.Open(ctx, b.client, own.queueConfig())
	if err != nil {
		return 0, openError(&own, err)
	}
	defer func() {
		removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		if e := q.Destroy(removing); e != nil && err == nil {
			err = e
		}
	}()
	n := min(b.count, 4000)
	began := time.Now()
	if _, err := b.store(ctx, q, n, "", func(int) time.Time { return began.Add(time.Hour) }); err != nil {
		return 0, err
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

// store stores n messages, whose times due tells, and returns the bytes of their
// ids and payloads.
func (b *benchRun) store(ctx context.Context, q *luascripts.Queue, n int, stage string, due func(i int) time.Time) (bytes int64, err error) {
	const batch, workers = 1000, 4
	var targets [][]delaybridge.Target
	for _, broker := range b.brokers {
		targets = append(targets, broker.targets())
	}
	if q == b.queue {
		stage = "store"
	}
	done := &counter{}
	bar := b.progress(stage, n, done)
	defer bar.stop()
	ids := &counter{}
	g, ctx := errgroup.WithContext(ctx)
	starts := make(chan int)
	g.Go(func() error {
		defer close(starts)
		for from := 0; from < n; from += batch {
			select {
			case starts <- from:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	scheduled := time.Now().Truncate(time.Millisecond)
	for range workers {
		g.Go(func() error {
			for from := range starts {
				requests := make([]delaybridge.Request, min(batch, n-from))
				for j := range requests {
					i := from + j
					lane := targets[i%len(targets)]
					p := delaybridge.Position{Source: b.name, Offset: uint64(i)}
					requests[j].Message = delaybridge.Message{
						ID: p.String(), Position: p, Target: lane[i/len(targets)%len(lane)],
						Scheduled: scheduled, Due: due(i), Payload: b.payload,
					}
					ids.add(int64(len(requests[j].Message.ID)))
				}
				for _, r := range q.Store(ctx, requests) {
					if r.Err != nil {
						return fmt.Errorf("store: %w", r.Err)
					}
				}
				done.add(int64(len(requests)))
			}
			return nil
		})
	}
	err = g.Wait()
	return ids.load() + int64(n)*int64(len(b.payload)), err
}

// measureFull fills the sources, and then has everything taken in and delivered;
// with a spread the processes run while it is published.
func (b *benchRun) measureFull(ctx context.Context) error {
	const delay = time.Second
	publish := func() error {
		done := &counter{}
		bar := b.progress("publish", b.count, done)
		defer bar.stop()
		began := time.Now()
		g, ctx := errgroup.WithContext(ctx)
		for i, broker := range b.brokers {
			n := b.count / len(b.brokers)
			if i < b.count%len(b.brokers) {
				n++
			}
			after := delay
			if b.spread == 0 {
				after = 0
			}
			g.Go(func() error { return broker.publish(ctx, n, b.spread, after, b.payload, done) })
		}
		if err := g.Wait(); err != nil {
			return err
		}
		b.report.Publish = newStage(b.count, time.Since(began))
		b.say(b.report.publishLines())
		return nil
	}
	if b.spread > 0 {
		if err := b.serve(ctx); err != nil {
			return err
		}
		began := time.Now().Add(delay)
		if err := publish(); err != nil {
			return err
		}
		return b.awaitAll(ctx, began)
	}
	if err := publish(); err != nil {
		return err
	}
	began := time.Now()
	if err := b.serve(ctx); err != nil {
		return err
	}
	b.report.fromFirst = true // the start of the processes is no part of it
	return b.awaitAll(ctx, began)
}

// awaitTime waits until the first message is due.
func (b *benchRun) awaitTime(ctx context.Context, first time.Time) error {
	select {
	case <-time.After(time.Until(first)):
		return nil
	case err := <-b.serving.failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// awaitAll waits until the targets have everything. It gives up when nothing has
// arrived for a time in which it should have.
func (b *benchRun) awaitAll(ctx context.Context, first time.Time) error {
	b.report.first = first
	patience := 20*time.Second + 2*time.Duration(b.settings.PublishTimeout)
	done := &counter{}
	bar := b.progress("deliver", b.count, done)
	defer bar.stop()
	last, moved := int64(0), time.Now()
	pause := max(20*time.Millisecond, min(200*time.Millisecond, time.Duration(b.count)*time.Microsecond))
	for {
		var n int64
		for _, broker := range b.brokers {
			have, err := broker.arrived(ctx)
			if err != nil {
				return err
			}
			n += have
		}
		done.store(n)
		if n >= int64(b.count) {
			return nil
		}
		if n != last {
			last, moved = n, time.Now()
		}
		if time.Since(moved) > patience {
			return fmt.Errorf("%d of %d messages have arrived, and no more for %v; %s", n, b.count, patience, b.whatIsWrong(ctx))
		}
		select {
		case <-time.After(pause):
		case err := <-b.serving.failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// whatIsWrong asks the queue and the processes why messages do not arrive.
func (b *benchRun) whatIsWrong(ctx context.Context) string {
	var found []string
	if s, err := b.queue.Stats(ctx); err != nil {
		found = append(found, "the queue does not answer: "+err.Error())
	} else {
		for _, lane := range b.lanes {
			l := s.Lanes[lane]
			found = append(found, fmt.Sprintf("%s has %d pending, %d in flight", lane, l.Pending, l.InFlight))
		}
		for _, reason := range delaybridge.Reasons {
			if n := s.Dead[reason]; n > 0 {
				found = append(found, fmt.Sprintf("%d are dead letters, reason %s", n, reason))
			}
		}
	}
	if said := b.serving.lastWords(); said != "" {
		found = append(found, "a process said: "+said)
	}
	return strings.Join(found, "; ")
}

// readBack reads what the targets have, and checks it.
func (b *benchRun) readBack(ctx context.Context) error {
	done := &counter{}
	bar := b.progress("check", b.count, done)
	tally := newTally(b.lanes)
	for i, broker := range b.brokers {
		if err := broker.read(ctx, func(a arrival) { tally.add(b.lanes[i], a); done.add(1) }); err != nil {
			bar.stop()
			return err
		}
	}
	bar.stop()
	b.report.tally(tally, b.count)
	b.say(b.report.deliverLines())
	if b.report.Missing > 0 {
		return fmt.Errorf("%d of %d messages are missing at their targets; %s", b.report.Missing, b.count, b.whatIsWrong(ctx))
	}
	return nil
}

// usedMemory is what all masters of Redis use, -1 where one does not tell.
func (b *benchRun) usedMemory(ctx context.Context) int64 {
	total := int64(0)
	ask := func(ctx context.Context, node redis.Cmdable) error {
		info, err := node.Info(ctx, "memory").Result()
		if err != nil {
			return err
		}
		var n int64
		if _, err := fmt.Sscan(infoFields(info)["used_memory"], &n); err != nil {
			return err
		}
		total += n
		return nil
	}
	var err error
	if cluster, ok := b.client.(*redis.ClusterClient); ok {
		lock := make(chan struct{}, 1)
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error {
			lock <- struct{}{}
			defer func() { <-lock }()
			return ask(ctx, node)
		})
	} else {
		err = ask(ctx, b.client)
	}
	if err != nil {
		return -1
	}
	return total
}

// quiet is the log of connections whose troubles are returned as errors.
func quiet() *zap.Logger { return zap.NewNop() }
