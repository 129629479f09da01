package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/luascripts"
	"delaybridge/test/servers"
)

// memory is a queue that remembers what it was given, by position, and can be
// away or full.
type memory struct {
	mu       sync.Mutex
	requests map[string]delaybridge.Request // by position
	tries    map[string]int                 // by position, those while away included
	lives    map[string]string
	away     bool
	full     bool
	refused  int // times that it said to be full
}

func newMemory() *memory {
	return &memory{requests: make(map[string]delaybridge.Request), tries: make(map[string]int), lives: make(map[string]string)}
}

func (m *memory) Store(_ context.Context, rs []delaybridge.Request) []delaybridge.Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	results := make([]delaybridge.Result, len(rs))
	for i, r := range rs {
		at := r.Message.Position.String()
		m.tries[at]++
		switch _, known := m.requests[at]; {
		case m.away:
			results[i].Err = errors.New("connection refused")
		case known:
			results[i].Outcome = delaybridge.Duplicate
		default:
			m.requests[at] = r
		}
	}
	return results
}

func (m *memory) Pressure(context.Context) (delaybridge.Pressure, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return delaybridge.Pressure{}, errors.New("connection refused")
	}
	if m.full {
		m.refused++
		return delaybridge.Pressure{MemoryRatio: 0.95}, nil
	}
	return delaybridge.Pressure{}, nil
}

func (m *memory) Incarnation(_ context.Context, source, mark string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.away {
		return "", errors.New("connection refused")
	}
	if first, ok := m.lives[source]; !ok {
		m.lives[source] = mark
	} else if first != mark {
		return source + "@" + mark, nil
	}
	return source, nil
}

func (m *memory) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func (m *memory) len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.requests)
}

func (m *memory) at(position string) delaybridge.Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.requests[position]
}

// taken returns how often each position was taken in.
func (m *memory) taken() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.tries)
}

// payloads returns what was stored, each once.
func (m *memory) payloads() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for _, r := range m.requests {
		all = append(all, string(r.Message.Payload))
	}
	slices.Sort(all)
	return all
}

// quickNATS has short times, so that what only time mends is mended soon.
func quickNATS() ingest.NATSConfig {
	cfg := ingest.DefaultNATSConfig()
	cfg.AckWait = 2 * time.Second
	cfg.PullExpires, cfg.Heartbeat = 2*time.Second, 200*time.Millisecond
	cfg.LookInterval = 300 * time.Millisecond
	cfg.APITimeout = 2 * time.Second
	return cfg
}

type source struct {
	stop func() error // ends Run and returns what it returned
	nats *ingest.NATS
}

// run starts a source that ends with the test, at the latest.
func run(t *testing.T, n *servers.NATS, q ingest.Queue, cfg ingest.NATSConfig, routes string, change ...func(*ingest.Config)) *source {
	t.Helper()
	parsed, err := ingest.ParseRoutes(routes)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Subjects = slices.Clone(cfg.Subjects)
	for _, r := range parsed {
		cfg.Subjects = append(cfg.Subjects, r.Source.Name)
	}
	decoderConfig := ingest.DefaultDecoderConfig()
	decoderConfig.Routes = parsed
	for _, s := range cfg.Subjects {
		decoderConfig.Sources = append(decoderConfig.Sources, delaybridge.Target{Sink: "nats", Name: s})
	}
	decoder, err := ingest.NewDecoder(decoderConfig)
	if err != nil {
		t.Fatal(err)
	}
	handlerConfig := ingest.DefaultConfig()
	handlerConfig.Queue, handlerConfig.Decoder = q, decoder
	handlerConfig.RetryMin, handlerConfig.RetryMax = 10*time.Millisecond, 100*time.Millisecond
	handlerConfig.Grace = 2 * time.Second
	// What is logged after the end of the test would be a failure of its own.
	log := zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel))
	cfg.Log, handlerConfig.Log = log, log
	for _, c := range change {
		c(&handlerConfig)
	}
	handler, err := ingest.NewHandler(handlerConfig)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ingest.NewNATS(cfg, n.Connect(t), handler)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var once sync.Once
	var result error
	stop := func() error {
		once.Do(func() {
			cancel()
			select {
			case result = <-done:
			case <-time.After(time.Minute):
				result = errors.New("Run did not end")
			}
		})
		return result
	}
	t.Cleanup(func() {
		if err := stop(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			t.Errorf("Run: %v", err)
		}
	})
	return &source{stop, s}
}

// eventually fails the test unless ok comes true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if !servers.Eventually(ok) {
		t.Fatalf("in vain: %s", what)
	}
}

func natsMsg(subject, payload string, headers ...string) *nats.Msg {
	m := &nats.Msg{Subject: subject, Data: []byte(payload), Header: nats.Header{}}
	for i := 0; i < len(headers); i += 2 {
		m.Header[headers[i]] = append(m.Header[headers[i]], headers[i+1])
	}
	return m
}

func good(payload string) *nats.Msg {
	return natsMsg("bridge.schedule", payload, "Bridge-Target", "nats://orders", "Bridge-Delay", "1h")
}

// publish stores a message in its stream, trying again while that is away.
func publish(t *testing.T, js jetstream.JetStream, m *nats.Msg) *jetstream.PubAck {
	t.Helper()
	var ack *jetstream.PubAck
	var err error
	if !servers.Eventually(func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		ack, err = js.PublishMsg(ctx, m)
		return err == nil
	}) {
		t.Fatalf("publish to %s: %v", m.Subject, err)
	}
	return ack
}

func publishMany(t *testing.T, js jetstream.JetStream, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		publish(t, js, good(strconv.Itoa(i)))
	}
}

// wantAll waits until the payloads from..to-1 are stored, and nothing else.
func wantAll(t *testing.T, m *memory, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d messages stored", n), func() bool { return m.len() >= n })
	want := make([]string, n)
	for i := range want {
		want[i] = strconv.Itoa(i)
	}
	slices.Sort(want)
	if got := m.payloads(); !slices.Equal(got, want) {
		t.Fatalf("stored %v, want 0 to %d", got, n-1)
	}
}

func consumerInfo(t *testing.T, js jetstream.JetStream, stream string) *jetstream.ConsumerInfo {
	t.Helper()
	c, err := js.Consumer(t.Context(), stream, "bridge")
	if err != nil {
		t.Fatal(err)
	}
	return c.CachedInfo()
}

func streamInfo(t *testing.T, js jetstream.JetStream, stream string) *jetstream.StreamInfo {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	return s.CachedInfo()
}

// wantSettled waits until nothing of a stream waits for the bridge.
func wantSettled(t *testing.T, js jetstream.JetStream, stream string) {
	t.Helper()
	eventually(t, "everything acknowledged", func() bool {
		c, err := js.Consumer(t.Context(), stream, "bridge")
		return err == nil && c.CachedInfo().NumAckPending == 0 && c.CachedInfo().NumPending == 0
	})
}

func TestNATSTakesIn(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	q := newMemory()
	var mu sync.Mutex
	outcomes := make(map[string]int)
	s := run(t, n, q, quickNATS(), "", func(c *ingest.Config) {
		c.Observe = func(source string, o delaybridge.Outcome) {
			mu.Lock()
			defer mu.Unlock()
			outcomes[source+" "+o.String()]++
		}
	})
	before := time.Now()
	publish(t, js, natsMsg("bridge.schedule", "hello", "Bridge-Target", "kafka://orders", "bridge-delay", "90s",
		"Nats-Msg-Id", "m-1", "b", "2", "b", "1", "a", "x", "B", "y"))
	publish(t, js, natsMsg("bridge.schedule", "", "Bridge-Target", "nats://orders", "Bridge-Delay", "1s"))
	publish(t, js, natsMsg("bridge.schedule", "bad", "Bridge-Target", "nats://orders", "Bridge-Delay", "5"))
	eventually(t, "three stored", func() bool { return q.len() == 3 })
	after := time.Now()

	m := q.at("nats:BRIDGE_SCHEDULE:1").Message
	want := []delaybridge.Header{{Name: "B", Value: []byte("y")}, {Name: "a", Value: []byte("x")}, {Name: "b", Value: []byte("2")}, {Name: "b", Value: []byte("1")}}
	if m.ID != "m-1" || m.Target.String() != "kafka://orders" || string(m.Payload) != "hello" || !reflect.DeepEqual(m.Headers, want) {
		t.Errorf("got %+v", m)
	}
	if m.Scheduled.Before(before.Add(-time.Millisecond)) || m.Scheduled.After(after.Add(time.Millisecond)) || m.Due.Sub(m.Scheduled) != 90*time.Second {
		t.Errorf("scheduled %v, due %v; published between %v and %v", m.Scheduled, m.Due, before, after)
	}
	if m := q.at("nats:BRIDGE_SCHEDULE:2").Message; m.ID != "nats:BRIDGE_SCHEDULE:2" || m.Payload == nil || len(m.Payload) != 0 {
		t.Errorf("an empty body became %+v", m)
	}
	if r := q.at("nats:BRIDGE_SCHEDULE:3"); r.Op != delaybridge.OpReject || r.Message.ID != "rejected:nats:BRIDGE_SCHEDULE:3" || string(r.Message.Payload) != "bad" {
		t.Errorf("a bad request became %+v", r)
	}
	wantSettled(t, js, "BRIDGE_SCHEDULE")
	eventually(t, "no lag", func() bool { lag := s.nats.Lag(); return len(lag) == 1 && lag["nats:BRIDGE_SCHEDULE"] == 0 })
	if err := s.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
	if len(outcomes) != 2 || outcomes["nats://bridge.schedule scheduled"] != 2 || outcomes["nats://bridge.schedule rejected"] != 1 {
		t.Errorf("observed %v", outcomes)
	}
}

func TestNATSCreatesItsStreamAndConsumer(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	run(t, n, newMemory(), quickNATS(), "")
	publish(t, js, good("0"))
	wantSettled(t, js, "BRIDGE_SCHEDULE")

	s := streamInfo(t, js, "BRIDGE_SCHEDULE")
	if c := s.Config; c.Retention != jetstream.WorkQueuePolicy || c.Storage != jetstream.FileStorage ||
		!slices.Equal(c.Subjects, []string{"bridge.schedule"}) || c.Discard != jetstream.DiscardNew {
		t.Errorf("stream %+v", c)
	}
	eventually(t, "what is acknowledged leaves the stream", func() bool { return streamInfo(t, js, "BRIDGE_SCHEDULE").State.Msgs == 0 })
	c := consumerInfo(t, js, "BRIDGE_SCHEDULE").Config
	if c.AckPolicy != jetstream.AckExplicitPolicy || c.AckWait != 2*time.Second || c.MaxDeliver != -1 || c.MaxAckPending != 10_000 ||
		c.DeliverPolicy != jetstream.DeliverAllPolicy || c.FilterSubject != "bridge.schedule" || c.Durable != "bridge" || c.DeliverSubject != "" {
		t.Errorf("consumer %+v", c)
	}
}

// A consumer that someone made with limits of its own would lose messages.
func TestNATSBringsTheConsumerToItsSettings(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "BRIDGE_SCHEDULE", Subjects: []string{"bridge.>"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateConsumer(t.Context(), "BRIDGE_SCHEDULE", jetstream.ConsumerConfig{
		Durable: "bridge", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 3, BackOff: []time.Duration{time.Millisecond}, Metadata: map[string]string{"owner": "me"},
	}); err != nil {
		t.Fatal(err)
	}
	q := newMemory()
	run(t, n, q, quickNATS(), "")
	publish(t, js, natsMsg("bridge.other", "not ours"))
	publish(t, js, good("0"))
	wantAll(t, q, 1)
	c := consumerInfo(t, js, "BRIDGE_SCHEDULE").Config
	if c.MaxDeliver != -1 || len(c.BackOff) != 0 || c.FilterSubject != "bridge.schedule" || c.Metadata["owner"] != "me" {
		t.Errorf("consumer %+v", c)
	}
}

// nats.go takes these for words of the server: the first two would end its loop,
// the others would be swallowed and come again for ever.
func TestNATSTakesInMessagesThatLookLikeControl(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	q := newMemory()
	run(t, n, q, quickNATS(), "")
	publish(t, js, good("first"))
	eventually(t, "the first stored", func() bool { return q.len() == 1 })
	for i, status := range []string{"409 Consumer Deleted", "400 Bad Request", "100 Idle Heartbeat", "404 No Messages", "408 Request Timeout", "503", "409 Leadership Change", "nonsense"} {
		code, description, _ := strings.Cut(status, " ")
		publish(t, js, natsMsg("bridge.schedule", "", "Status", code, "Description", description,
			"Nats-Pending-Messages", "1000000", "Bridge-Target", "nats://orders", "Bridge-Delay", "1h", "n", strconv.Itoa(i)))
	}
	publish(t, js, good("last"))
	eventually(t, "all stored", func() bool { return q.len() == 10 })
	wantSettled(t, js, "BRIDGE_SCHEDULE")
	for at, tries := range q.taken() {
		if r := q.at(at); tries != 1 || r.Op != delaybridge.OpSchedule || len(r.Message.Headers) > 1 {
			t.Errorf("%s: %d tries, %+v", at, tries, r)
		}
	}
}

// TestNATSRefusesHeadersThatItCannotRead has a producer whose client writes
// headers wrong. The client library hands such a message on as if it had none.
func TestNATSRefusesHeadersThatItCannotRead(t *testing.T) {
	n := servers.NewNATS(t)
	q := newMemory()
	run(t, n, q, quickNATS(), "nats://later -> nats://orders delay=1s")
	js := n.JetStream(t)
	publish(t, js, natsMsg("later", "plain"))

	header := "NATS/1.0\r\nBridge-Delay: 1h\r\nno colon\r\n\r\n"
	conn, err := net.Dial("tcp", strings.TrimPrefix(n.URL, "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintf(conn, "CONNECT {\"headers\":true,\"verbose\":false}\r\nHPUB later %d %d\r\n%sbroken\r\n",
		len(header), len(header)+len("broken"), header); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both stored", func() bool { return q.len() == 2 })
	if r := q.at("nats:BRIDGE_SCHEDULE:1"); r.Op != delaybridge.OpSchedule || string(r.Message.Payload) != "plain" {
		t.Errorf("a plain message became %+v", r)
	}
	if r := q.at("nats:BRIDGE_SCHEDULE:2"); r.Op != delaybridge.OpReject || !strings.Contains(r.Error, "invalid_headers") || string(r.Message.Payload) != "broken" {
		t.Errorf("broken headers became %+v", r)
	}
}

func TestNATSSurvivesARestartOfTheServer(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	q := newMemory()
	s := run(t, n, q, quickNATS(), "")
	publishMany(t, js, 0, 50)
	eventually(t, "some stored", func() bool { return q.len() > 0 })
	for i := range 3 {
		n.Stop()
		eventually(t, "disconnected", func() bool { return !s.nats.Connected() })
		n.Start(t)
		publishMany(t, js, 50+10*i, 60+10*i)
	}
	wantAll(t, q, 80)
	wantSettled(t, js, "BRIDGE_SCHEDULE")
}

func TestNATSMakesADeletedConsumerAnew(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	q := newMemory()
	run(t, n, q, quickNATS(), "")
	publishMany(t, js, 0, 20)
	wantAll(t, q, 20)
	for i := range 3 {
		wantSettled(t, js, "BRIDGE_SCHEDULE")
		if err := js.DeleteConsumer(t.Context(), "BRIDGE_SCHEDULE", "bridge"); err != nil {
			t.Fatal(err)
		}
		publishMany(t, js, 20+10*i, 30+10*i)
		wantAll(t, q, 30+10*i)
	}
	wantSettled(t, js, "BRIDGE_SCHEDULE")
}

// A stream that keeps what was acknowledged would deliver all of it again.
func TestNATSDoesNotReadAKeepingStreamAgain(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "EVENTS", Subjects: []string{"bridge.schedule"}}); err != nil {
		t.Fatal(err)
	}
	q := newMemory()
	run(t, n, q, quickNATS(), "")
	publishMany(t, js, 0, 100)
	wantAll(t, q, 100)
	wantSettled(t, js, "EVENTS")
	// The floor is asked for from time to time.
	time.Sleep(2 * quickNATS().LookInterval)
	publish(t, js, good("100"))
	wantAll(t, q, 101)
	if err := js.DeleteConsumer(t.Context(), "EVENTS", "bridge"); err != nil {
		t.Fatal(err)
	}
	publish(t, js, good("101"))
	wantAll(t, q, 102)
	wantSettled(t, js, "EVENTS")
	again := 0
	for _, tries := range q.taken() {
		again += tries - 1
	}
	if again > 5 {
		t.Errorf("%d messages were read again", again)
	}
	if _, err := js.Stream(t.Context(), "BRIDGE_SCHEDULE"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("a stream was created though another holds the subject: %v", err)
	}
}

// Sequence 1 of the new stream is not sequence 1 of the old one, whoever made it
// anew and whatever the bridge was doing meanwhile.
func TestNATSTellsTheLivesOfAStreamApart(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	q := newMemory()
	run(t, n, q, quickNATS(), "")
	publishMany(t, js, 0, 20)
	wantAll(t, q, 20)
	for i := range 3 {
		config := streamInfo(t, js, "BRIDGE_SCHEDULE").Config
		if err := js.DeleteStream(t.Context(), "BRIDGE_SCHEDULE"); err != nil {
			t.Fatal(err)
		}
		if i > 0 { // at once, consumer included, so that pulls find it
			eventually(t, "the stream made anew", func() bool { // the bridge tries the same
				_, err := js.CreateStream(t.Context(), config)
				return err == nil || errors.Is(err, jetstream.ErrStreamNameAlreadyInUse)
			})
			_, _ = js.CreateConsumer(t.Context(), "BRIDGE_SCHEDULE", jetstream.ConsumerConfig{Durable: "bridge", AckPolicy: jetstream.AckExplicitPolicy, FilterSubject: "bridge.schedule"})
		}
		publishMany(t, js, 20+10*i, 30+10*i)
		wantAll(t, q, 30+10*i)
	}
	wantSettled(t, js, "BRIDGE_SCHEDULE")
	q.set(func() {
		if len(q.lives) != 1 {
			t.Errorf("lives %v", q.lives)
		}
	})
}

// The same while the connection is down, so that nothing tells of it.
func TestNATSTellsTheLivesOfAServerApart(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	q := newMemory()
	s := run(t, n, q, quickNATS(), "")
	publishMany(t, js, 0, 20)
	wantAll(t, q, 20)
	wantSettled(t, js, "BRIDGE_SCHEDULE")
	dir := n.Server.StoreDir()
	n.Stop()
	eventually(t, "disconnected", func() bool { return !s.nats.Connected() })
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	n.Start(t)
	publishMany(t, js, 20, 40)
	wantAll(t, q, 40)
	wantSettled(t, js, "BRIDGE_SCHEDULE")
}

// While the queue is away nothing is delivered over and over, and afterwards
// nothing is missing.
//
// B50 (nats-io/nats-server#5564, #7817): what had reached a delivery limit was neither delivered nor removed.
func TestNATSOutlastsTheQueue(t *testing.T) {
	t.Parallel()
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	q := newMemory()
	cfg := quickNATS()
	cfg.AckWait, cfg.Batch = time.Second, 10
	run(t, n, q, cfg, "")
	publishMany(t, js, 0, 10)
	wantAll(t, q, 10)
	q.set(func() { q.away = true })
	publishMany(t, js, 10, 110)
	time.Sleep(5 * cfg.AckWait) // what is tested is that time does no harm
	info := consumerInfo(t, js, "BRIDGE_SCHEDULE")
	if info.Delivered.Consumer > 10+3*10 {
		t.Errorf("%d deliveries of 110 messages while the queue was away", info.Delivered.Consumer)
	}
	q.set(func() { q.away = false })
	wantAll(t, q, 110)
	wantSettled(t, js, "BRIDGE_SCHEDULE")
}

func TestNATSHoldsBackWhileTheQueueIsFull(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	q := newMemory()
	cfg := quickNATS()
	cfg.Batch = 10
	run(t, n, q, cfg, "")
	publishMany(t, js, 0, 10)
	wantAll(t, q, 10)
	q.set(func() { q.full = true })
	published := 10
	eventually(t, "it knows that the queue is full", func() bool {
		publishMany(t, js, published, published+1)
		published++
		var refused int
		q.set(func() { refused = q.refused })
		return refused > 0
	})
	known := published
	publishMany(t, js, published, published+100)
	published += 100
	eventually(t, "the open pulls ran out", func() bool {
		return consumerInfo(t, js, "BRIDGE_SCHEDULE").NumWaiting == 0
	})
	if got := q.len(); got > known+20 {
		t.Errorf("%d messages stored, %d of them after it was known", got, got-known)
	}
	q.set(func() { q.full = false })
	wantAll(t, q, published)
	wantSettled(t, js, "BRIDGE_SCHEDULE")
}

// Messages that another reader holds until it dies come after AckWait.
func TestNATSWaitsForWhatOthersHold(t *testing.T) {
	t.Parallel()
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	q := newMemory()
	cfg := quickNATS()
	cfg.Batch, cfg.MaxAckPending = 5, 10
	first := run(t, n, newMemory(), cfg, "")
	publish(t, js, good("0"))
	wantSettled(t, js, "BRIDGE_SCHEDULE")
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	publishMany(t, js, 0, 30)
	c, err := js.Consumer(t.Context(), "BRIDGE_SCHEDULE", "bridge")
	if err != nil {
		t.Fatal(err)
	}
	held, err := c.Fetch(10, jetstream.FetchMaxWait(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	got := 0
	for range held.Messages() {
		got++
	}
	if got != 10 {
		t.Fatalf("took %d of MaxAckPending", got)
	}
	run(t, n, q, cfg, "")
	wantAll(t, q, 30)
	wantSettled(t, js, "BRIDGE_SCHEDULE")
}

// More processes take in more, and nothing waits in one of them until it is
// delivered again.
//
// B48 (nats-io/nats.go#1929, watermill-nats#37): what was fetched ahead was processed after its time.
func TestNATSIsSharedByProcesses(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	q := newMemory()
	cfg := quickNATS()
	cfg.Batch = 10
	// Plainly slow processes, so that none can take all.
	slow := func(c *ingest.Config) { c.Queue = slowQueue{q} }
	all := []*source{run(t, n, q, cfg, "", slow), run(t, n, q, cfg, "", slow), run(t, n, q, cfg, "", slow)}
	publishMany(t, js, 0, 100)
	if err := all[0].stop(); err != nil {
		t.Fatal(err)
	}
	publishMany(t, js, 100, 200)
	if err := all[1].stop(); err != nil {
		t.Fatal(err)
	}
	publishMany(t, js, 200, 250)
	wantAll(t, q, 250)
	wantSettled(t, js, "BRIDGE_SCHEDULE")
	for at, tries := range q.taken() {
		if tries != 1 {
			t.Errorf("%s was taken in %d times", at, tries)
		}
	}
}

type slowQueue struct{ *memory }

func (q slowQueue) Store(ctx context.Context, rs []delaybridge.Request) []delaybridge.Result {
	time.Sleep(2 * time.Millisecond)
	return q.memory.Store(ctx, rs)
}

// After a stop nothing is left in hand, so nothing waits for AckWait.
func TestNATSStopsWithEmptyHands(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	for i := range 5 {
		q := newMemory()
		s := run(t, n, q, quickNATS(), "", func(c *ingest.Config) { c.Queue = slowQueue{q} })
		go func() {
			for j := range 200 {
				_, _ = js.PublishMsgAsync(good(fmt.Sprint(i, j)))
			}
		}()
		eventually(t, "some stored", func() bool { return q.len() > 10 })
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		// With nobody left to deliver to, what is in hand stays so.
		eventually(t, "nothing left in hand", func() bool { return consumerInfo(t, js, "BRIDGE_SCHEDULE").NumAckPending == 0 })
		<-js.PublishAsyncComplete()
	}
}

// The grace is one for all that is in hand, not one for each batch of it.
func TestNATSStopsInTime(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	q := newMemory()
	cfg := quickNATS()
	cfg.Batch = 10
	s := run(t, n, q, cfg, "", func(c *ingest.Config) { c.Grace = time.Second })
	publishMany(t, js, 0, 10)
	wantAll(t, q, 10)
	q.set(func() { q.away = true })
	publishMany(t, js, 10, 60)
	// The first batch may have been but the first few of them.
	eventually(t, "a batch in hand and more behind it", func() bool { return consumerInfo(t, js, "BRIDGE_SCHEDULE").NumAckPending >= cfg.Batch })
	start := time.Now()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < time.Second || took > 30*time.Second {
		t.Errorf("stopped after %v with a grace of a second", took)
	}
	q.set(func() { q.away = false })
	run(t, n, q, cfg, "")
	wantAll(t, q, 60)
}

func TestNATSStopsWhileNothingWorks(t *testing.T) {
	n := servers.NewNATS(t)
	q := newMemory()
	q.away = true
	s := run(t, n, q, quickNATS(), "")
	publish(t, n.JetStream(t), good("0"))
	if err := s.stop(); err != nil {
		t.Errorf("with the queue away: %v", err)
	}
	s = run(t, n, q, quickNATS(), "")
	n.Stop()
	if err := s.stop(); err != nil {
		t.Errorf("with the server away: %v", err)
	}
}

func TestNATSEndsWithItsConnection(t *testing.T) {
	n := servers.NewNATS(t)
	conn := n.Connect(t)
	handler := newHandler(t, &fakeQueue{}, nil)
	s, err := ingest.NewNATS(quickNATS(), conn, handler)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }()
	eventually(t, "running", func() bool { return len(s.Lag()) == 1 })
	conn.Close()
	if err := <-done; !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("Run: %v", err)
	}
	if err := s.Run(t.Context()); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("Run on a closed connection: %v", err)
	}
}

// Routes are read from whatever streams hold their subjects, which stay as they
// are; what no stream holds is added to the bridge's own.
func TestNATSFollowsRoutes(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	other, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}, MaxMsgs: 1000, Description: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	q := newMemory()
	s := run(t, n, q, quickNATS(), "nats://orders.late.* -> nats://x delay=1h; nats://later.> -> nats://x delay=2h")
	publish(t, js, natsMsg("orders.late.a", "from orders"))
	publish(t, js, natsMsg("orders.now", "not ours"))
	publish(t, js, natsMsg("later.b.c", "from later"))
	publish(t, js, good("from schedule"))
	eventually(t, "three stored", func() bool { return q.len() == 3 })
	if got := q.payloads(); !slices.Equal(got, []string{"from later", "from orders", "from schedule"}) {
		t.Errorf("stored %v", got)
	}
	wantSettled(t, js, "ORDERS")
	wantSettled(t, js, "BRIDGE_SCHEDULE")
	info := streamInfo(t, js, "ORDERS")
	if !reflect.DeepEqual(info.Config, other.CachedInfo().Config) {
		t.Errorf("the stream was changed: %+v", info.Config)
	}
	if got := streamInfo(t, js, "BRIDGE_SCHEDULE").Config.Subjects; !slices.Equal(got, []string{"bridge.schedule", "later.>"}) {
		t.Errorf("own subjects %v", got)
	}
	if lag := s.nats.Lag(); len(lag) != 2 {
		t.Errorf("lag of %v", lag)
	}

	// Another route later: only its subject is added.
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	before := streamInfo(t, js, "BRIDGE_SCHEDULE").Config
	run(t, n, q, quickNATS(), "nats://soon -> nats://x delay=1h")
	publish(t, js, natsMsg("soon", "from soon"))
	eventually(t, "four stored", func() bool { return q.len() == 4 })
	after := streamInfo(t, js, "BRIDGE_SCHEDULE").Config
	before.Subjects = append(before.Subjects, "soon")
	slices.Sort(before.Subjects)
	if !reflect.DeepEqual(before, after) {
		t.Errorf("changed to %+v, want %+v", after, before)
	}
}

func TestNATSWaitsForAStreamItMayNotCreate(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	q := newMemory()
	cfg := quickNATS()
	cfg.Create = false
	run(t, n, q, cfg, "")
	time.Sleep(2 * cfg.LookInterval)
	if _, err := js.Stream(t.Context(), "BRIDGE_SCHEDULE"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Fatalf("the stream was created: %v", err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "MINE", Subjects: []string{"bridge.*"}}); err != nil {
		t.Fatal(err)
	}
	publishMany(t, js, 0, 5)
	wantAll(t, q, 5)
}

// A rolling deploy adds a route: the old process must not take its messages for
// bad ones.
func TestNATSLeavesMessagesOfNewRoutesToNewProcesses(t *testing.T) {
	t.Parallel()
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	old, new := newMemory(), newMemory()
	run(t, n, old, quickNATS(), "")
	publish(t, js, good("0"))
	wantAll(t, old, 1)
	run(t, n, new, quickNATS(), "nats://later -> nats://x delay=1h")
	for i := range 20 {
		publish(t, js, natsMsg("later", strconv.Itoa(i)))
	}
	wantAll(t, new, 20)
	if old.len() != 1 {
		t.Errorf("the old process stored %v", old.payloads())
	}
}

// TestNATSReadsWhatAProcessOfAnotherConfigurationPassedOver takes a route away,
// as a rollback does, and brings it back.
func TestNATSReadsWhatAProcessOfAnotherConfigurationPassedOver(t *testing.T) {
	t.Parallel()
	const route = "nats://later -> nats://x delay=1h"
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	before := newMemory()
	first := run(t, n, before, quickNATS(), route)
	publish(t, js, natsMsg("later", "0"))
	wantAll(t, before, 1)
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	narrow := newMemory()
	run(t, n, narrow, quickNATS(), "")
	eventually(t, "the consumer narrowed", func() bool {
		c, err := js.Consumer(t.Context(), "BRIDGE_SCHEDULE", "bridge")
		return err == nil && c.CachedInfo().Config.FilterSubject == "bridge.schedule"
	})
	for i := range 20 {
		publish(t, js, natsMsg("later", strconv.Itoa(i)))
	}
	publish(t, js, good("0"))
	wantAll(t, narrow, 1)

	wide := newMemory()
	run(t, n, wide, quickNATS(), route)
	wantAll(t, wide, 20)
	wantSettled(t, js, "BRIDGE_SCHEDULE")

	// And again, while the other still runs, which notices it.
	run(t, n, narrow, quickNATS(), "")
	for i := 20; i < 40; i++ {
		publish(t, js, natsMsg("later", strconv.Itoa(i)))
	}
	wantAll(t, wide, 40)
	wantSettled(t, js, "BRIDGE_SCHEDULE")
	if narrow.len() != 1 {
		t.Errorf("the others stored %v", narrow.payloads())
	}
}

func TestNATSTakesInMessagesLargerThanAPull(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	q := newMemory()
	cfg := quickNATS()
	cfg.BatchBytes = 2000
	run(t, n, q, cfg, "")
	big := strings.Repeat("x", 100_000)
	for i := range 10 {
		publish(t, js, good(strconv.Itoa(2*i)))
		publish(t, js, good(strconv.Itoa(2*i+1)+big))
	}
	eventually(t, "all stored", func() bool { return q.len() == 20 })
	wantSettled(t, js, "BRIDGE_SCHEDULE")
}

func TestNATSWithoutJetStreamWaitsForIt(t *testing.T) {
	n := servers.NewNATS(t, func(o *server.Options) { o.JetStream = false })
	q := newMemory()
	s := run(t, n, q, quickNATS(), "")
	eventually(t, "connected", s.nats.Connected)
	n.Stop()
	dir := t.TempDir()
	n = servers.NewNATS(t, func(o *server.Options) {
		o.StoreDir = dir
		_, port, _ := strings.Cut(strings.TrimPrefix(n.URL, "nats://"), ":")
		o.Port, _ = strconv.Atoi(port)
	})
	publish(t, n.JetStream(t), good("0"))
	wantAll(t, q, 1)
}

// From NATS into a real Redis, which is killed in between.
func TestNATSIntoRedis(t *testing.T) {
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	r := servers.NewRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	client, err := luascripts.Connect(r.URL, "single")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	q, err := luascripts.Open(t.Context(), client, luascripts.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	cfg := quickNATS()
	cfg.AckWait = time.Second
	run(t, n, q, cfg, "")
	publishMany(t, js, 0, 100)
	publish(t, js, natsMsg("bridge.schedule", "whole", "Bridge-Target", "nats://x", "Bridge-Delay", "5"))
	publish(t, js, natsMsg("bridge.schedule", "", "Bridge-Op", "cancel", "Bridge-Id", "nats:BRIDGE_SCHEDULE:1"))
	pending := func(want int) func() bool {
		return func() bool {
			items, _, err := q.List(t.Context(), "", 1000, "")
			return err == nil && len(items) == want
		}
	}
	var letters []luascripts.Letter
	eventually(t, "one rejected", func() bool { // which comes behind the others, but for the cancel
		letters, _, err = q.Dead(t.Context(), 10, "")
		return err == nil && len(letters) == 1
	})
	eventually(t, "99 pending", pending(99))
	if letters[0].ID != "rejected:nats:BRIDGE_SCHEDULE:101" || letters[0].Reason != delaybridge.ReasonRejected || string(letters[0].Payload) != "whole" {
		t.Fatalf("dead letters %+v, %v", letters, err)
	}
	if back, err := ingest.RejectedRecord(letters[0].Message); err != nil || string(back.Payload) != "whole" || back.Origin.Name != "bridge.schedule" || len(back.Headers) != 2 {
		t.Errorf("the record came back as %+v, %v", back, err)
	}

	r.Kill()
	publishMany(t, js, 100, 150)
	time.Sleep(2 * cfg.AckWait)
	r.Start(t)
	eventually(t, "149 pending", pending(149))
	wantSettled(t, js, "BRIDGE_SCHEDULE")

	// The stream made anew: the same numbers, other messages.
	if err := js.DeleteStream(t.Context(), "BRIDGE_SCHEDULE"); err != nil {
		t.Fatal(err)
	}
	publishMany(t, js, 150, 250)
	eventually(t, "249 pending", pending(249))
}

// Everything at once, by chance: whatever the stream confirmed is stored. (What
// it did not confirm, for being stopped, may be in it twice.)
func TestNATSLosesNothing(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	q := newMemory()
	cfg := quickNATS()
	cfg.Batch, cfg.AckWait = 20, time.Second
	sources := []*source{run(t, n, q, cfg, ""), run(t, n, q, cfg, "")}

	var published int
	var publisher sync.WaitGroup
	stop := make(chan struct{})
	stopPublishing := sync.OnceFunc(func() { close(stop); publisher.Wait() })
	t.Cleanup(stopPublishing)
	publisher.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				publish(t, js, good(strconv.Itoa(published)))
				published++
				time.Sleep(time.Millisecond) // enough of them
			}
		}
	})
	for range 25 {
		time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
		switch random.IntN(6) {
		case 0:
			n.Stop()
			n.Start(t)
		case 1, 2:
			_ = js.DeleteConsumer(t.Context(), "BRIDGE_SCHEDULE", "bridge")
		case 3:
			q.set(func() { q.away = !q.away })
		case 4:
			q.set(func() { q.full = !q.full })
		case 5:
			i := random.IntN(len(sources))
			if err := sources[i].stop(); err != nil {
				t.Fatal(err)
			}
			sources[i] = run(t, n, q, cfg, "")
		}
	}
	q.set(func() { q.away, q.full = false, false })
	stopPublishing()
	t.Logf("%d published", published)
	// Not by the consumer's word: for a moment a new one knows of no messages.
	eventually(t, "an empty stream", func() bool {
		s, err := js.Stream(t.Context(), "BRIDGE_SCHEDULE")
		return err == nil && s.CachedInfo().State.Msgs == 0
	})
	if got := len(slices.Compact(q.payloads())); got != published {
		t.Errorf("%d of %d stored", got, published)
	}
}
