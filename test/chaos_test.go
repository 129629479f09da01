package test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"delaybridge"
	"delaybridge/luascripts"
	"delaybridge/test/servers"
)

var (
	chaosTime = flag.Duration("chaos", 20*time.Second, "how long the chaos run injects faults")
	chaosSeed = flag.Uint64("chaos.seed", 0, "seed of the chaos run, to repeat one; 0 takes the time")
)

// Settings of the chaos run. They are short, so that much happens in little time.
const (
	chaosPartitions = 2
	chaosLease      = 3 * time.Second
	chaosPublish    = 1500 * time.Millisecond
	chaosEach       = 30 * time.Millisecond // between two requests of one producer, on average
)

// TestChaos sends requests of every kind through three bridges by NATS and by
// Kafka, while bridges are killed and stopped, servers restarted, and connections
// cut, delayed and half closed. Afterwards a ledger of everything is held against
// the contract. One line says what happened; its seed repeats the choices.
func TestChaos(t *testing.T) {
	t.Parallel()
	seed := cmp.Or(*chaosSeed, uint64(time.Now().UnixNano()))
	t.Logf("chaos: -chaos=%v -chaos.seed=%d", *chaosTime, seed)
	w := newChaosWorld(t, seed)

	bridges := newFleet(t, 3, w.env)

	// The time runs from here: building the program may take longer than that.
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), *chaosTime)
	defer cancel()
	f := &faults{t: t, ctx: ctx, seed: seed, counts: map[string]int{}, away: map[string]bool{}}
	// Crashes come close together, and then leave time for a group of consumers
	// to work: it waits 10 s for a member that was killed.
	f.every(time.Second, 10*time.Second, func(random *rand.Rand) {
		for range 1 + random.IntN(3) {
			f.count(bridges.ships[random.IntN(len(bridges.ships))].crash(ctx, random))
		}
	})
	f.link(w.links[0], time.Second, 5*time.Second)
	f.link(w.links[1], time.Second, 5*time.Second)
	f.link(w.links[2], 2*time.Second, 14*time.Second)
	either := func(stop, kill func()) func(*rand.Rand) string {
		return func(random *rand.Rand) string {
			if random.IntN(2) == 0 {
				stop()
				return "stop"
			}
			kill()
			return "kill"
		}
	}
	f.restart("redis", 3*time.Second, 8*time.Second, 1500*time.Millisecond, either(w.redis.Stop, w.redis.Kill), func() { w.redis.Start(t) })
	f.restart("nats", 4*time.Second, 9*time.Second, 1500*time.Millisecond,
		func(*rand.Rand) string { w.nats.Stop(); return "stop" }, func() { w.nats.Start(t) })
	f.restart("kafka", 8*time.Second, 40*time.Second, time.Second, either(w.kafka.Stop, w.kafka.Kill), func() { w.kafka.Start(t) })

	w.produce(ctx)
	<-ctx.Done()
	f.wait()
	t.Logf("no more faults after %v: %s", time.Since(began).Round(time.Second), f)
	w.producers.Wait()
	w.drain()
	bridges.stop()
	w.consumeRest()
	w.ending()

	v := w.ledger.judge()
	const most = 30
	for i, p := range v.problems {
		if i == most {
			t.Errorf("and %d more", len(v.problems)-most)
			break
		}
		t.Error(p)
	}
	t.Logf("chaos: %v seed=%d real_kafka=%v messages=%d (%s) delivered=%d dead=%d pending=%d cancelled=%d too_late=%d | faults: %s; SIGTERM exits by code %v | "+
		"lost=%d early=%d after_cancel=%d wrong=%d unsaid=%d | duplicates: attempt>1 %d, sent twice by the producer %d, dropped by JetStream %d; dead though delivered %d | "+
		"lateness by NATS p50 %v p99 %v max %v, by Kafka p50 %v p99 %v max %v",
		*chaosTime, seed, w.kafka.Real, v.accepted, w.kinds(), v.delivered, v.dead, v.pending, v.cancelledInTime, v.cancelledTooLate, f, bridges.codes(),
		v.lost, v.early, v.afterCancel, v.wrong, v.unsaid, v.againByAttempt, v.againByProducer, v.droppedN, v.deadYetDelivered,
		percentile(v.late["nats"], 50), percentile(v.late["nats"], 99), percentile(v.late["nats"], 100),
		percentile(v.late["kafka"], 50), percentile(v.late["kafka"], 99), percentile(v.late["kafka"], 100))
}

// chaosWorld is the servers of a run, the ways to them, and its ledger.
type chaosWorld struct {
	t     *testing.T
	seed  uint64
	redis *servers.Redis
	nats  *servers.NATS
	kafka *servers.Kafka
	// behind is Kafka's own address; clients are told the link's.
	behind string
	links  []*link
	env    Env
	queue  *luascripts.Queue // by a way of its own

	js        jetstream.JetStream
	producer  *kgo.Client
	in, out   string // topics
	producers sync.WaitGroup

	mu      sync.Mutex
	ledger  ledger
	raw     []delivered   // what was published on NATS, as far as it was heard
	offsets map[int]int64 // the end of each partition of the topic in
	marked  map[int32]bool
}

func newChaosWorld(t *testing.T, seed uint64) *chaosWorld {
	t.Helper()
	w := &chaosWorld{t: t, seed: seed, offsets: map[int]int64{}, marked: map[int32]bool{}}
	w.ledger.cancels, w.ledger.grace = map[string]cancelled{}, chaosPublish+time.Second

	w.redis = servers.NewRedis(t, servers.RedisTCP, "--appendonly", "yes", "--appendfsync", "always")
	client, err := luascripts.Connect("unix://"+w.redis.Dir+"/redis.sock?db=0", luascripts.ModeSingle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if w.queue, err = luascripts.Open(context.Background(), client, luascripts.DefaultConfig()); err != nil {
		t.Fatal(err)
	}
	w.nats = servers.NewNATS(t)
	kafkaLink := w.newKafka()
	redisLink := newLink(t, "redis", 0, fmt.Sprintf("127.0.0.1:%d", w.redis.Port))
	natsLink := newLink(t, "nats", 0, strings.TrimPrefix(w.nats.URL, "nats://"))
	w.links = []*link{redisLink, natsLink, kafkaLink}

	w.js = w.nats.JetStream(t)
	stream(t, w.js, "ORDERS", "orders.>")
	// The producers do not wait for a bridge to make its stream.
	if _, err := w.js.CreateStream(context.Background(), jetstream.StreamConfig{
		Name: "BRIDGE_SCHEDULE", Subjects: []string{"bridge.schedule"}, Retention: jetstream.WorkQueuePolicy,
	}); err != nil {
		t.Fatal(err)
	}
	watcher := w.nats.Connect(t)
	if _, err := watcher.Subscribe("orders.>", func(m *nats.Msg) {
		w.mu.Lock()
		defer w.mu.Unlock()
		at := time.Now()
		w.raw = append(w.raw, newDelivered(func(name string) string { return m.Header.Get(name) }, m.Data, at, at))
	}); err != nil {
		t.Fatal(err)
	}
	if err := watcher.Flush(); err != nil {
		t.Fatal(err)
	}
	w.in, w.out = w.kafka.Topic(t, chaosPartitions), w.kafka.Topic(t, chaosPartitions, "message.timestamp.type=LogAppendTime")
	// A producer that waits for a broker for ever ends with its client.
	t.Cleanup(w.producers.Wait)
	w.producer = w.client()
	w.consumeKafka()

	w.env = Env{
		"REDIS_URL": "redis://" + redisLink.addr() + "/0", "NATS_URL": "nats://" + natsLink.addr(), "KAFKA_BROKERS": kafkaLink.addr(),
		"KAFKA_INGEST_TOPICS": w.in, "KAFKA_INGEST_GROUP": servers.TopicName(t),
		"LEASE": chaosLease.String(), "PUBLISH_TIMEOUT": chaosPublish.String(), "SHUTDOWN_TIMEOUT": "5s",
		"RETRY_BASE": "100ms", "RETRY_MAX": "1s", "MAX_ATTEMPTS": "8", "MAX_LOST_LEASES": "1000",
	}
	return w
}

// newKafka starts a broker that tells its clients to come by the link.
func (w *chaosWorld) newKafka() *link {
	t := w.t
	port := servers.FreePort(t)
	front := fmt.Sprintf("127.0.0.1:%d", port)
	own := servers.FreePort(t)
	w.behind = fmt.Sprintf("127.0.0.1:%d", own)
	l := newLink(t, "kafka", port, w.behind)
	if servers.HaveKafka(t) {
		w.kafka = servers.NewKafka(t, servers.KafkaPort(own), "advertised.listeners=PLAINTEXT://"+front)
		return l
	}
	w.kafka = servers.NewKfake(t, kfake.ListenFn(func(network, _ string) (net.Listener, error) {
		l, err := net.Listen(network, w.behind)
		return advertised{l, front}, err
	}))
	return l
}

// client returns a Kafka client of the test's own, which goes round the link.
func (w *chaosWorld) client(options ...kgo.Opt) *kgo.Client {
	return w.kafka.Client(w.t, append(options, kgo.Dialer(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, w.behind)
	}))...)
}

// advertised is a listener that says that it is somewhere else.
type advertised struct {
	net.Listener
	front string
}

// Addr implements net.Listener.
func (a advertised) Addr() net.Addr {
	addr, _ := net.ResolveTCPAddr("tcp", a.front)
	return addr
}

func (w *chaosWorld) kinds() string {
	counts := map[kind]int{}
	for _, r := range w.ledger.requests {
		counts[r.kind]++
	}
	var parts []string
	for _, k := range []kind{kindPlain, kindReplaced, kindCancelled, kindCancelledByHand, kindBad, kindNowhere, kindFar} {
		parts = append(parts, fmt.Sprintf("%d %s", counts[k], k))
	}
	return strings.Join(parts, ", ")
}

// newDelivered reads what the run's own payload and the bridge's headers say.
func newDelivered(header func(string) string, payload []byte, stored, seen time.Time) delivered {
	d := delivered{id: header("Bridge-Id"), stored: stored, seen: seen}
	fields := strings.Fields(string(payload))
	var err1, err2, err3 error
	d.attempt, err1 = strconv.Atoi(header("Bridge-Attempt"))
	d.due, err2 = time.Parse(time.RFC3339, header("Bridge-Due-At"))
	if len(fields) == 2 {
		d.version, err3 = strconv.Atoi(fields[1])
	}
	switch {
	case len(fields) != 2 || fields[0] != d.id:
		d.wrong = fmt.Sprintf("its payload is %q", payload)
	case errors.Join(err1, err2, err3) != nil:
		d.wrong = errors.Join(err1, err2, err3).Error()
	case header("X-Id") != d.id:
		d.wrong = fmt.Sprintf("its own header is %q", header("X-Id"))
	}
	return d
}

// drain waits until everything is over that is to be over soon.
func (w *chaosWorld) drain() {
	// Messages that a killed bridge had taken from JetStream come back after
	// 30 s, and the last of them then have their delay before them.
	const limit = 5 * time.Minute
	began := time.Now()
	what := ""
	for what = w.waitsFor(); what != "" && time.Since(began) < limit; what = w.waitsFor() {
		time.Sleep(250 * time.Millisecond)
	}
	if what != "" {
		w.t.Errorf("%v after the last fault, %s", limit, what)
	}
	w.t.Logf("drained in %v", time.Since(began).Round(time.Second))
	w.leftovers()
}

// leftovers notes what the source stream still holds.
func (w *chaosWorld) leftovers() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := w.js.Stream(ctx, "BRIDGE_SCHEDULE")
	if err != nil {
		w.t.Errorf("source stream: %v", err)
		return
	}
	state := s.CachedInfo().State
	if state.Msgs == 0 {
		return
	}
	c, err := s.Consumer(ctx, "bridge")
	if err != nil {
		w.t.Errorf("consumer of the source stream: %v", err)
		return
	}
	info := c.CachedInfo()
	w.t.Logf("JetStream keeps %d messages, from %d, of %d; delivered %d, acknowledged up to %d, to be delivered %d, to be acknowledged %d",
		state.Msgs, state.FirstSeq, state.LastSeq, info.Delivered.Stream, info.AckFloor.Stream, info.NumPending, info.NumAckPending)
}

// waitsFor says what is not over yet.
func (w *chaosWorld) waitsFor() string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	// Not by what the stream holds: a server that stops between noting that a
	// message is acknowledged and deleting it keeps it, and hands it to nobody.
	c, err := w.js.Consumer(ctx, "BRIDGE_SCHEDULE", "bridge")
	if err != nil {
		return "JetStream says " + err.Error()
	}
	if info := c.CachedInfo(); info.NumPending > 0 || info.NumAckPending > 0 {
		return fmt.Sprintf("%d messages of the source stream are to be delivered and %d to be acknowledged", info.NumPending, info.NumAckPending)
	}
	for p, end := range w.offsets {
		if c := w.kafka.Committed(w.t, w.env["KAFKA_INGEST_GROUP"], w.in, p); c != end {
			return fmt.Sprintf("partition %d of the source topic is committed to %d of %d", p, c, end)
		}
	}
	for _, lane := range delaybridge.Lanes {
		for shard := range 8 {
			tag := fmt.Sprintf("{bridge:%d}:", shard)
			c := w.redis.Client(w.t)
			inflight, err := c.ZCard(ctx, tag+"inflight:"+lane).Result()
			soon, err2 := c.ZCount(ctx, tag+"due:"+lane, "-inf", strconv.FormatInt(time.Now().Add(10*time.Minute).UnixMilli(), 10)).Result()
			_ = c.Close()
			if err := errors.Join(err, err2); err != nil {
				return "Redis says " + err.Error()
			}
			if inflight+soon > 0 {
				return fmt.Sprintf("%d messages are in flight and %d due in lane %s of shard %d", inflight, soon, lane, shard)
			}
		}
	}
	return ""
}

// ending notes what Redis holds.
func (w *chaosWorld) ending() {
	t, ctx, c := w.t, context.Background(), w.redis.Client(w.t)
	end := ending{pending: map[string]bool{}, dead: map[string]string{}, state: map[string]string{}}
	must := func(err error) {
		t.Helper()
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
	}
	for shard := range 8 {
		tag := fmt.Sprintf("{bridge:%d}:", shard)
		indexed := map[string]int{}
		for _, lane := range delaybridge.Lanes {
			due, err := c.ZRange(ctx, tag+"due:"+lane, 0, -1).Result()
			must(err)
			for _, id := range due {
				indexed[id]++
				end.pending[id] = true
			}
			inflight, err := c.ZRange(ctx, tag+"inflight:"+lane, 0, -1).Result()
			must(err)
			for _, id := range inflight {
				indexed[id]++
			}
			end.inflight = append(end.inflight, inflight...)
		}
		records, err := c.HKeys(ctx, tag+"msg").Result()
		must(err)
		for _, id := range records {
			if indexed[id] != 1 {
				end.broken = append(end.broken, fmt.Sprintf("%s has a record and is in %d sets", id, indexed[id]))
			}
			delete(indexed, id)
		}
		for id := range indexed {
			end.broken = append(end.broken, id+" has no record")
		}
		letters, err := c.HKeys(ctx, tag+"deadmsg").Result()
		must(err)
		dead, err := c.ZRange(ctx, tag+"dead", 0, -1).Result()
		must(err)
		slices.Sort(letters)
		slices.Sort(dead)
		if !slices.Equal(letters, dead) {
			end.broken = append(end.broken, fmt.Sprintf("shard %d has letters %v and deaths %v", shard, letters, dead))
		}
	}
	for after := ""; ; {
		letters, next, err := w.queue.Dead(ctx, 500, after)
		must(err)
		for _, l := range letters {
			end.dead[l.ID] = string(l.Reason)
		}
		if after = next; after == "" {
			break
		}
	}
	for id := range w.ledger.cancels {
		s, err := w.queue.Get(ctx, id)
		if !errors.Is(err, luascripts.ErrUnknown) {
			must(err)
		}
		end.state[id] = string(s.State)
	}
	w.ledger.end = end
}
