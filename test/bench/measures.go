package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"delaybridge"
	"delaybridge/luascripts"
)

// values are figures by their names.
type values map[string]float64

// contender delivers a plan, which it stores first, with times ahead. It returns
// once all of it has arrived.
type contender interface {
	run(ctx context.Context, w *world, p *plan, processes int) (values, error)
}

// Names of the contenders, as the table has them.
const (
	nameOurs   = "bridge"
	nameTwo    = "bridge, two processes"
	nameBare   = "bare loop"
	nameLeased = "bare loop with leases"
	nameNative = "NATS schedules"
	nameAsynq  = "asynq"
	nameAsynq2 = "asynq, 10 ms poll"
)

// measure is one figure or a group of them, for several contenders.
type measure struct {
	name       string
	contenders []string
	run        func(ctx context.Context, b *bench, contender string) (values, error)
}

// contenderOf returns a contender and the options of its target stream.
func contenderOf(name string) (contender, int, []func(*jetstream.StreamConfig)) {
	switch name {
	case nameTwo:
		return ours{}, 2, nil
	case nameBare:
		return bare{}, 1, nil
	case nameLeased:
		return bare{leases: true}, 1, nil
	case nameNative:
		return native{}, 1, []func(*jetstream.StreamConfig){allowSchedules}
	case nameAsynq:
		return queued{}, 1, nil
	case nameAsynq2:
		return queued{every: 10 * time.Millisecond}, 1, nil
	}
	return ours{}, 1, nil
}

// measures are all of them, in the order in which they are taken in each round.
func measures(s sizes) []measure {
	all := []measure{
		{"drain", []string{nameOurs, nameBare, nameLeased, nameNative, nameTwo, nameAsynq, nameAsynq2}, s.drain(s.drainN, 1)},
		// The more schedules NATS has, the slower it delivers each.
		{"drain of half as many", []string{nameOurs, nameNative}, s.drain(s.drainN/2, 1)},
		{"drain, all subjects distinct", []string{nameOurs, nameBare}, s.drain(s.drainN, s.drainN)},
		{"full path JetStream", []string{nameOurs}, s.fullNATS},
		{"full path kfake", []string{nameOurs}, s.fullKfake},
		{"full path Kafka", []string{nameOurs}, s.fullKafka},
	}
	for _, rate := range s.rates {
		who := []string{nameTwo, nameBare, nameNative}
		if rate <= 1000 { // what asynq cannot deliver in time shows there already
			who = append(who, nameAsynq, nameAsynq2)
		}
		all = append(all, measure{fmt.Sprintf("lateness at %d/s", rate), who, s.lateness(rate)})
	}
	all = append(all, measure{"same millisecond", []string{nameOurs, nameBare}, s.burst})
	for _, n := range s.backlogs {
		all = append(all, measure{fmt.Sprintf("backlog of %d", n), []string{nameOurs, nameBare}, s.backlog(n)})
	}
	return append(all,
		measure{"idle", []string{nameOurs}, s.idle},
		measure{"memory", []string{nameOurs, nameBare, nameAsynq}, s.memory},
	)
}

// sizes say how much is measured.
type sizes struct {
	drainN, drainSlow int // the second is for what is slow
	fullN             int
	rates             []int
	seconds           float64 // of each rate
	burstN            int
	backlogs          []int
	backlogDrain      int
	memoryN           int
	idleFar           int
	span              float64 // seconds of idleness
}

func fullSizes() sizes {
	return sizes{
		drainN: 200_000, drainSlow: 20_000, fullN: 200_000, rates: []int{1000, 5000, 10_000}, seconds: 4,
		burstN: 100_000, backlogs: []int{10_000, 100_000, 1_000_000}, backlogDrain: 100_000, memoryN: 100_000,
		idleFar: 1_000_000, span: 10,
	}
}

func quickSizes() sizes {
	return sizes{
		drainN: 2000, drainSlow: 500, fullN: 2000, rates: []int{1000}, seconds: 0.5,
		burstN: 2000, backlogs: []int{1000}, backlogDrain: 1000, memoryN: 2000, idleFar: 1000, span: 1,
	}
}

const size = 256 // bytes of each payload

// drain measures how fast n messages that are all due at once are delivered.
func (s sizes) drain(n, subjects int) func(context.Context, *bench, string) (values, error) {
	return func(ctx context.Context, b *bench, name string) (values, error) {
		c, processes, options := contenderOf(name)
		p := &plan{n: n, size: size, subjects: subjects}
		if name == nameAsynq || name == nameAsynq2 {
			p.n = s.drainSlow
		}
		w, err := newWorld(ctx, b, options...)
		if err != nil {
			return nil, err
		}
		defer w.close()
		v, err := c.run(ctx, w, p, processes)
		if err != nil {
			return nil, err
		}
		r, err := w.readTarget(ctx, p)
		if err != nil {
			return nil, err
		}
		v["per_s"], v["per_s_from_first"], v["twice"] = r.perSecond, r.perSecondFirst, float64(r.twice)
		if _, ok := c.(queued); ok {
			// The seconds until it looks for the first are not held against its rate.
			v["per_s"] = r.perSecondFirst
		}
		w.addCPU(ctx, v, p.n)
		return v, nil
	}
}

// addCPU notes the processor time of all processes, in us a message, storing
// included.
func (w *world) addCPU(_ context.Context, v values, n int) {
	us := func(p *process) float64 { return float64(p.cpu().Microseconds()) / float64(n) }
	v["cpu_us_redis"], v["cpu_us_nats"] = us(w.redis), us(w.nats)
	for _, p := range w.others {
		v["cpu_us_worker"] += us(p)
	}
}

// lateness measures how late messages are that are due at an even rate.
func (s sizes) lateness(rate int) func(context.Context, *bench, string) (values, error) {
	return func(ctx context.Context, b *bench, name string) (values, error) {
		c, processes, options := contenderOf(name)
		n := int(float64(rate) * s.seconds)
		p := &plan{n: n, size: size, subjects: 1, spread: time.Duration(s.seconds * float64(time.Second))}
		w, err := newWorld(ctx, b, options...)
		if err != nil {
			return nil, err
		}
		defer w.close()
		v, err := c.run(ctx, w, p, processes)
		if err != nil {
			return nil, err
		}
		r, err := w.readTarget(ctx, p)
		if err != nil {
			return nil, err
		}
		v["p50_ms"], v["p99_ms"], v["max_ms"] = r.ms(0.5), r.ms(0.99), r.ms(1)
		v["early"], v["twice"] = float64(r.early), float64(r.twice)
		v["within_5ms"], v["within_10ms"] = r.within(5*time.Millisecond), r.within(10*time.Millisecond)
		if _, ok := c.(ours); ok {
			if err := w.addConfirmed(v); err != nil {
				return nil, err
			}
		}
		return v, w.addStalls(ctx, v)
	}
}

// addStalls adds what kept Redis busy for 3 ms and more at a time, by its own
// account: the worst of each kind.
func (w *world) addStalls(ctx context.Context, v values) error {
	events, err := w.client.Do(ctx, "LATENCY", "LATEST").Slice()
	if err != nil {
		return err
	}
	for _, e := range events {
		if fields, ok := e.([]any); ok && len(fields) >= 4 {
			worst, _ := fields[3].(int64)
			v[fmt.Sprintf("redis_stall_%v_ms", fields[0])] = float64(worst)
		}
	}
	return nil
}

const requestStream = "BRIDGE_SCHEDULE"

// fullNATS measures the whole path from a stream that is full to the target.
func (s sizes) fullNATS(ctx context.Context, b *bench, _ string) (values, error) {
	w, err := newWorld(ctx, b)
	if err != nil {
		return nil, err
	}
	defer w.close()
	if _, err := w.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: requestStream, Subjects: []string{"bridge.schedule"}, Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew,
	}); err != nil {
		return nil, err
	}
	p := &plan{n: s.fullN, size: size}
	payload := p.payload()
	began := time.Now()
	var futures []jetstream.PubAckFuture
	for range p.n {
		f, err := w.js.PublishMsgAsync(&nats.Msg{Subject: "bridge.schedule", Data: payload, Header: nats.Header{
			"Bridge-Target": {"nats://out.0"}, "Bridge-Delay": {"0s"},
		}})
		if err != nil {
			return nil, err
		}
		if futures = append(futures, f); len(futures) < 4000 {
			continue
		}
		if err := settled(ctx, futures); err != nil {
			return nil, err
		}
		futures = futures[:0]
	}
	if err := settled(ctx, futures); err != nil {
		return nil, err
	}
	v := values{"publish_per_s": float64(p.n) / time.Since(began).Seconds()}
	if _, err := w.serve(1, map[string]string{"ROLES": "ingest,scheduler"}); err != nil {
		return nil, err
	}
	if err := w.awaitTarget(ctx, p.n); err != nil {
		return nil, err
	}
	info, err := w.target.Info(ctx)
	if err != nil {
		return nil, err
	}
	took := info.State.LastTime.Sub(info.State.FirstTime)
	v["per_s"], v["twice"] = float64(p.n)/took.Seconds(), float64(info.State.Msgs)-float64(p.n)
	w.addCPU(ctx, v, p.n)
	return v, nil
}

func settled(ctx context.Context, futures []jetstream.PubAckFuture) error {
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
}

func (s sizes) fullKfake(ctx context.Context, b *bench, _ string) (values, error) {
	k, err := startKfake()
	if err != nil {
		return nil, err
	}
	defer k.close()
	return s.fullPathKafka(ctx, b, k)
}

func (s sizes) fullKafka(ctx context.Context, b *bench, _ string) (values, error) {
	if b.noKafka {
		return nil, errSkipped
	}
	k, err := startKafka(ctx)
	if k != nil {
		defer k.close()
	}
	if err != nil {
		b.noKafka = true
		b.say("Apache Kafka is left out: %v", err)
		return nil, errSkipped
	}
	return s.fullPathKafka(ctx, b, k)
}

// fullPathKafka measures the whole path from a topic that is full to another.
func (s sizes) fullPathKafka(ctx context.Context, b *bench, k *kafkaBroker) (values, error) {
	w, err := newWorld(ctx, b)
	if err != nil {
		return nil, err
	}
	defer w.close()
	p := &plan{n: s.fullN, size: size}
	if err := k.fill(ctx, p, "kafka://out", "0s"); err != nil {
		return nil, err
	}
	if _, err := w.serve(1, map[string]string{
		"ROLES": "ingest,scheduler", "NATS_URL": "", "KAFKA_BROKERS": strings.Join(k.brokers, ","), "KAFKA_INGEST_TOPICS": "in",
	}); err != nil {
		return nil, err
	}
	rate, err := k.awaitRate(ctx, p.n)
	if err != nil {
		return nil, err
	}
	v := values{"per_s": rate}
	w.addCPU(ctx, v, p.n)
	return v, nil
}

// burst has many messages due in the same millisecond in one lane, and measures
// how late another lane is meanwhile, and how long Redis keeps another client
// waiting.
func (s sizes) burst(ctx context.Context, b *bench, name string) (values, error) {
	w, err := newWorld(ctx, b)
	if err != nil {
		return nil, err
	}
	defer w.close()
	if name == nameBare {
		return s.bareBurst(ctx, w)
	}
	q, err := w.openQueue(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := w.serve(1, nil); err != nil {
		return nil, err
	}
	many := &plan{n: s.burstN, size: size}
	many.ahead(50_000, w.lead)
	many.first = many.first.Add(time.Second)
	// The other lane begins a second before, and goes on for three seconds.
	other := &plan{n: 800, size: size, first: many.first.Add(-time.Second), spread: 4 * time.Second}
	other.first = other.first.Truncate(time.Millisecond)

	var mu sync.Mutex
	var late []time.Duration
	if _, err := w.nc.Subscribe("core.0", func(m *nats.Msg) {
		i, err := numberOf(m.Header)
		if err != nil {
			return
		}
		mu.Lock()
		late = append(late, time.Since(other.due(i)))
		mu.Unlock()
	}); err != nil {
		return nil, err
	}
	if _, err := store(ctx, q, other, form{source: "core:BRIDGE_SCHEDULE", target: func(int) delaybridge.Target {
		return delaybridge.Target{Sink: delaybridge.SinkNATSCore, Name: "core.0"}
	}}); err != nil {
		return nil, err
	}
	if _, err := store(ctx, q, many, form{}); err != nil {
		return nil, err
	}
	if time.Now().After(other.first) {
		return nil, errTooSlow
	}
	if err := w.client.ConfigSet(ctx, "slowlog-log-slower-than", "500").Err(); err != nil {
		return nil, err
	}
	if err := w.client.Do(ctx, "SLOWLOG", "RESET").Err(); err != nil {
		return nil, err
	}
	probe, err := w.startProbe()
	if err != nil {
		return nil, err
	}
	if err := w.awaitTarget(ctx, many.n); err != nil {
		return nil, err
	}
	info, err := w.target.Info(ctx)
	if err != nil {
		return nil, err
	}
	v := values{"burst_took_ms": inMS(info.State.LastTime.Sub(many.first))}
	if v["client_waits_ms"], err = probe.worst(many.first); err != nil {
		return nil, err
	}
	slow, err := w.client.SlowLogGet(ctx, 128).Result()
	if err != nil {
		return nil, err
	}
	for _, e := range slow {
		v["script_max_ms"] = max(v["script_max_ms"], inMS(e.Duration))
	}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		mu.Lock()
		n := len(late)
		mu.Unlock()
		if n >= other.n {
			break
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(late) < other.n {
		return nil, fmt.Errorf("%d of %d messages of the other lane have arrived", len(late), other.n)
	}
	slices.Sort(late)
	v["other_p50_ms"], v["other_p99_ms"], v["other_max_ms"] = inMS(percentile(late, 0.5)), inMS(percentile(late, 0.99)), inMS(percentile(late, 1))
	return v, nil
}

func inMS(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// bareBurst is the burst alone, by the bare loop: how long another client waits for
// Redis where nothing is done but what must be.
func (s sizes) bareBurst(ctx context.Context, w *world) (values, error) {
	p := &plan{n: s.burstN, size: size}
	probe, err := w.startProbe()
	if err != nil {
		return nil, err
	}
	v, err := bare{}.run(ctx, w, p, 1)
	if err != nil {
		return nil, err
	}
	info, err := w.target.Info(ctx)
	if err != nil {
		return nil, err
	}
	v["burst_took_ms"] = inMS(info.State.LastTime.Sub(p.first))
	v["client_waits_ms"], err = probe.worst(p.first)
	return v, err
}

// backlog measures the drain behind messages that are due much later.
func (s sizes) backlog(far int) func(context.Context, *bench, string) (values, error) {
	return func(ctx context.Context, b *bench, name string) (values, error) {
		w, err := newWorld(ctx, b)
		if err != nil {
			return nil, err
		}
		defer w.close()
		later := &plan{n: far, size: size, first: time.Now().Add(24 * time.Hour), spread: time.Hour}
		v := values{}
		if name == nameBare {
			if err := bareStoreAll(ctx, w.client, later, "far:"); err != nil {
				return nil, err
			}
		} else {
			q, err := w.openQueue(ctx)
			if err != nil {
				return nil, err
			}
			if _, err := store(ctx, q, later, form{source: "nats:FAR"}); err != nil {
				return nil, err
			}
			began := time.Now()
			started, err := w.serve(1, nil)
			if err != nil {
				return nil, err
			}
			v["start_ms"] = inMS(time.Since(began))
			time.Sleep(2 * time.Second) // for its memory at rest
			v["memory_at_rest_mib"] = float64(started[0].memory("VmRSS")) / (1 << 20)
			started[0].stop()
			w.others = nil
		}
		c, processes, _ := contenderOf(name)
		p := &plan{n: s.backlogDrain, size: size, subjects: 1}
		more, err := c.run(ctx, w, p, processes)
		if err != nil {
			return nil, err
		}
		maps.Copy(v, more)
		r, err := w.readTarget(ctx, p)
		if err != nil {
			return nil, err
		}
		v["per_s"] = r.perSecond
		if name == nameOurs {
			v["memory_max_mib"] = float64(w.others[0].memory("VmHWM")) / (1 << 20)
		}
		return v, nil
	}
}

// idle measures what a bridge costs that has nothing to deliver: with nothing in
// the queue, and with much that is due later.
func (s sizes) idle(ctx context.Context, b *bench, _ string) (values, error) {
	w, err := newWorld(ctx, b)
	if err != nil {
		return nil, err
	}
	defer w.close()
	q, err := w.openQueue(ctx)
	if err != nil {
		return nil, err
	}
	v := values{}
	for _, state := range []string{"nothing", "far"} {
		if state == "far" {
			later := &plan{n: s.idleFar, size: size, first: time.Now().Add(24 * time.Hour), spread: time.Hour}
			if _, err := store(ctx, q, later, form{source: "nats:FAR"}); err != nil {
				return nil, err
			}
		}
		started, err := w.serve(1, nil)
		if err != nil {
			return nil, err
		}
		time.Sleep(2 * time.Second) // until the start is over
		c0, cpu0 := w.total(ctx), started[0].cpu()
		time.Sleep(time.Duration(s.span * float64(time.Second)))
		c1, cpu1 := w.total(ctx), started[0].cpu()
		v["commands_per_s_"+state] = (c1 - c0) / s.span
		v["cpu_percent_"+state] = 100 * (cpu1 - cpu0).Seconds() / s.span
		started[0].stop()
	}
	w.others = nil
	return v, nil
}

// memory measures what Redis needs for each pending message beyond what the
// message is.
func (s sizes) memory(ctx context.Context, b *bench, name string) (values, error) {
	w, err := newWorld(ctx, b)
	if err != nil {
		return nil, err
	}
	defer w.close()
	p := &plan{n: s.memoryN, size: size, first: time.Now().Add(time.Hour), spread: time.Hour}
	used := func() (int64, error) {
		info, err := w.client.Info(ctx, "memory").Result()
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(info, "used_memory:")
		n, _, _ := strings.Cut(rest, "\r\n")
		return strconv.ParseInt(n, 10, 64)
	}
	v := values{}
	each := func(key string, store func() (own int64, err error)) error {
		before, err := used()
		if err != nil {
			return err
		}
		own, err := store()
		if err != nil {
			return err
		}
		after, err := used()
		if err != nil {
			return err
		}
		v[key] = float64(after-before) / float64(p.n)
		v[key+"_beyond"] = float64(after-before-own) / float64(p.n)
		return w.client.FlushAll(ctx).Err()
	}
	switch name {
	case nameBare:
		err = each("bytes", func() (int64, error) {
			own := int64(p.n) * int64(len("bench:000000")+size)
			return own, bareStoreAll(ctx, w.client, p, "bench:")
		})
	case nameAsynq:
		err = each("bytes", func() (int64, error) { return asynqStore(ctx, w, p) })
	default:
		again := func(f form) func() (int64, error) {
			return func() (int64, error) {
				client, err := luascripts.Connect(w.redisURL, luascripts.ModeSingle)
				if err != nil {
					return 0, err
				}
				defer func() { _ = client.Close() }()
				q, err := luascripts.Open(ctx, client, luascripts.DefaultConfig())
				if err != nil {
					return 0, err
				}
				return store(ctx, q, p, f)
			}
		}
		if err = each("bytes", again(form{})); err != nil {
			return nil, err
		}
		err = each("bytes_own_id_headers", again(form{ownID: true, headers: []delaybridge.Header{
			{Name: "Content-Type", Value: []byte("application/json")}, {Name: "Traceparent", Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")},
		}}))
	}
	return v, err
}

// commands counts what Redis has run so far, by command, and the us that it took.
func (w *world) commands(ctx context.Context) (calls, us map[string]float64, err error) {
	info, err := w.client.Info(ctx, "commandstats").Result()
	if err != nil {
		return nil, nil, err
	}
	calls, us = map[string]float64{}, map[string]float64{}
	for line := range strings.SplitSeq(info, "\r\n") {
		name, fields, ok := strings.Cut(strings.TrimPrefix(line, "cmdstat_"), ":")
		if !ok {
			continue
		}
		for field := range strings.SplitSeq(fields, ",") {
			if n, ok := strings.CutPrefix(field, "calls="); ok {
				calls[name], _ = strconv.ParseFloat(n, 64)
			} else if n, ok := strings.CutPrefix(field, "usec="); ok {
				us[name], _ = strconv.ParseFloat(n, 64)
			}
		}
	}
	return calls, us, nil
}

// total is all of commands but INFO, which is ours.
func (w *world) total(ctx context.Context) (n float64) {
	calls, _, _ := w.commands(ctx)
	for name, c := range calls {
		if name != "info" {
			n += c
		}
	}
	return n
}
