package sinks_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"delaybridge"
	"delaybridge/sinks"
	"delaybridge/sinks/sinktest"
	"delaybridge/test/servers"
)

// tooLong is a publish timeout that no test waits for.
const tooLong = time.Minute

func newNATSSink(t *testing.T, nc *nats.Conn, timeout time.Duration) *sinks.NATS {
	t.Helper()
	s, err := sinks.NewNATS(nc, natsConfig(timeout))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func natsClaim(subject, id string) delaybridge.Claim {
	return sinktest.Claim(delaybridge.Target{Sink: delaybridge.SinkNATS, Name: subject}, id)
}

// want fails the test unless err is nil (for "") or of the class, with a text
// that holds part.
func want(t *testing.T, what string, err error, class string, part string) {
	t.Helper()
	got := ""
	if err != nil {
		got = delaybridge.ClassOf(err).String()
	}
	if got != class || err != nil && !strings.Contains(err.Error(), part) {
		t.Errorf("%s: got %q (%v), want %q with %q", what, got, err, class, part)
	}
}

// hears subscribes to a subject by core NATS, and returns when the server knows:
// what is published on another connection may overtake the subscription.
func hears(t *testing.T, s *servers.NATS, subject string) *nats.Subscription {
	t.Helper()
	nc := s.Connect(t)
	sub, err := nc.SubscribeSync(subject)
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return sub
}

func TestNATSClassifies(t *testing.T) {
	s := servers.NewNATS(t)
	js := s.JetStream(t)
	newStream(t, js, jetstream.StreamConfig{Name: "OK", Subjects: []string{"ok.>"}})
	newStream(t, js, jetstream.StreamConfig{Name: "SMALL", Subjects: []string{"small"}, MaxMsgSize: 1000})
	newStream(t, js, jetstream.StreamConfig{Name: "FULL", Subjects: []string{"full"}, MaxMsgs: 1, Discard: jetstream.DiscardNew})
	newStream(t, js, jetstream.StreamConfig{
		Name: "PER", Subjects: []string{"per.>"}, MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true,
	})
	sealed := newStream(t, js, jetstream.StreamConfig{Name: "SEALED", Subjects: []string{"sealed"}})
	sealCfg := sealed.CachedInfo().Config
	sealCfg.Sealed = true
	if _, err := js.UpdateStream(t.Context(), sealCfg); err != nil {
		t.Fatal(err)
	}
	for _, full := range []string{"full", "per.one"} {
		if _, err := js.Publish(t.Context(), full, nil); err != nil {
			t.Fatal(err)
		}
	}
	responder := s.Connect(t)
	for subject, answer := range map[string]string{"responder": "hello", "responder.json": "{}"} {
		if _, err := responder.Subscribe(subject, func(m *nats.Msg) { _ = m.Respond([]byte(answer)) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := responder.Flush(); err != nil {
		t.Fatal(err)
	}
	sink := newNATSSink(t, connect(t, newLink(t, s)), tooLong)
	cases := []struct {
		sentence string
		claim    delaybridge.Claim
		class    string
		part     string
	}{
		{"a stream takes it", natsClaim("ok.1", "a"), "", ""},
		{"no stream holds the subject", natsClaim("nobody", "b"), "transient", "no stream"},
		{"larger than the stream allows", func() delaybridge.Claim {
			c := natsClaim("small", "c")
			c.Payload = bytes.Repeat([]byte("x"), 2000)
			return c
		}(), "permanent", "10054"},
		{"headers larger than JetStream allows", func() delaybridge.Claim {
			c := natsClaim("ok.2", "d")
			c.Headers = []delaybridge.Header{{Name: "h", Value: bytes.Repeat([]byte("x"), 70_000)}}
			return c
		}(), "permanent", "10097"},
		{"larger than the server allows", func() delaybridge.Claim {
			c := natsClaim("ok.3", "e")
			c.Payload = bytes.Repeat([]byte("x"), 2<<20)
			return c
		}(), "permanent", "maximum payload"},
		{"the stream is full", natsClaim("full", "f"), "transient", "10077"},
		{"the stream is full for the subject", natsClaim("per.one", "g"), "transient", "10077"},
		{"the stream is full for another subject", natsClaim("per.two", "h"), "", ""},
		{"the stream is sealed", natsClaim("sealed", "i"), "permanent", "10109"},
		{"a core subscriber answers", natsClaim("responder", "j"), "permanent", "no stream"},
		{"a core subscriber answers with JSON", natsClaim("responder.json", "k"), "permanent", "no stream"},
		{"the server's own subject", natsClaim("$JS.API.STREAM.DELETE.OK", "l"), "permanent", "$"},
		{"a subject with a wildcard", natsClaim("ok.*", "m"), "permanent", "wildcard"},
		{"a subject with a line break", natsClaim("ok.1\r\nPUB ok.2 0", "n"), "permanent", "subject"},
		{"the last of the batch", natsClaim("ok.4", "o"), "", ""},
	}
	batch := make([]delaybridge.Claim, len(cases))
	for i, c := range cases {
		batch[i] = c.claim
	}
	for i, err := range sink.Publish(t.Context(), batch) {
		want(t, cases[i].sentence, err, cases[i].class, cases[i].part)
	}
	info, err := js.Stream(t.Context(), "OK")
	if err != nil {
		t.Fatalf("the stream has been tampered with: %v", err)
	}
	if n := info.CachedInfo().State.Msgs; n != 2 {
		t.Errorf("the stream holds %d messages, want 2", n)
	}
}

func TestNATSSubjectThatNobodyConfirms(t *testing.T) {
	t.Parallel()
	s := servers.NewNATS(t)
	newStream(t, s.JetStream(t), jetstream.StreamConfig{Name: "OK", Subjects: []string{"ok"}})
	heard := hears(t, s, "silent")
	sink := newNATSSink(t, connect(t, newLink(t, s)), 5*time.Second)
	start := time.Now()
	errs := sink.Publish(t.Context(), []delaybridge.Claim{natsClaim("ok", "a"), natsClaim("silent", "b"), natsClaim("ok", "c")})
	if d := time.Since(start); d > 30*time.Second {
		t.Errorf("Publish took %v with a timeout of 5s", d)
	}
	want(t, "the one before", errs[0], "", "")
	want(t, "the silent one", errs[1], "unknown", "did not confirm")
	want(t, "the one behind", errs[2], "", "")
	if _, err := heard.NextMsg(time.Minute); err != nil {
		t.Errorf("the silent subscriber has heard nothing: %v", err)
	}
	if _, err := heard.NextMsg(700 * time.Millisecond); err == nil {
		t.Error("the message was sent twice")
	}
}

// restricted lets a server know a user who may do only so much.
func restricted(publish, subscribe *server.SubjectPermission) func(*server.Options) {
	return func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "a"},
			{Username: "bridge", Password: "b", Permissions: &server.Permissions{Publish: publish, Subscribe: subscribe}},
		}
	}
}

func TestNATSPermissions(t *testing.T) {
	s := servers.NewNATS(t, restricted(&server.SubjectPermission{Deny: []string{"secret.>"}}, nil))
	admin, err := jetstream.New(s.Connect(t, nats.UserInfo("admin", "a")))
	if err != nil {
		t.Fatal(err)
	}
	newStream(t, admin, jetstream.StreamConfig{Name: "ALL", Subjects: []string{"ok.>", "secret.>"}})
	// One connection for both: each has to find its own.
	nc := connect(t, newLink(t, s), nats.UserInfo("bridge", "b"))
	sink := newNATSSink(t, nc, tooLong)
	core, err := sinks.NewNATSCore(nc, natsConfig(tooLong))
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []struct {
		name string
		sink delaybridge.Sink
		lane string
	}{{"JetStream", sink, delaybridge.SinkNATS}, {"core", core, delaybridge.SinkNATSCore}} {
		for round := range 20 {
			var batch []delaybridge.Claim
			for i, subject := range []string{"ok.a", "secret.a", "ok.b", `secret."quoted"`, "secret.ü", "ok.c", "secret.a"} {
				c := natsClaim(subject, fmt.Sprintf("%s-%d-%d", kind.name, round, i))
				c.Target.Sink = kind.lane
				batch = append(batch, c)
			}
			for i, err := range kind.sink.Publish(t.Context(), batch) {
				subject, class := batch[i].Target.Name, ""
				if strings.HasPrefix(subject, "secret") {
					class = "permanent"
				}
				want(t, fmt.Sprintf("%s, round %d, %s", kind.name, round, subject), err, class, fmt.Sprintf("no permission to publish to %q", subject))
			}
		}
	}
	if errs := core.Publish(t.Context(), []delaybridge.Claim{natsClaim("ok.a", "fine")}); errs[0] != nil {
		t.Errorf("a batch without a forbidden subject, after one with: %v", errs[0])
	}
}

func TestNATSAcksThatCannotBeHeard(t *testing.T) {
	t.Parallel()
	s := servers.NewNATS(t, restricted(nil, &server.SubjectPermission{Deny: []string{"_INBOX.>"}}))
	admin, err := jetstream.New(s.Connect(t, nats.UserInfo("admin", "a")))
	if err != nil {
		t.Fatal(err)
	}
	newStream(t, admin, jetstream.StreamConfig{Name: "OK", Subjects: []string{"ok"}})
	sink := newNATSSink(t, connect(t, newLink(t, s), nats.UserInfo("bridge", "b")), 200*time.Millisecond)
	if !servers.Eventually(func() bool {
		err := sink.Publish(t.Context(), []delaybridge.Claim{natsClaim("ok", "a")})[0]
		return delaybridge.ClassOf(err) == delaybridge.ClassUnavailable && strings.Contains(err.Error(), "no permission to subscribe")
	}) {
		t.Error("the sink goes on sending what cannot be confirmed")
	}
}

func TestNATSDropsRepeats(t *testing.T) {
	s := servers.NewNATS(t)
	stream := newStream(t, s.JetStream(t), jetstream.StreamConfig{Name: "T", Subjects: []string{"t.>"}})
	sink := newNATSSink(t, connect(t, newLink(t, s)), tooLong)
	first := natsClaim("t.one", "id")
	again := first
	again.Failed, again.LostLeases = 2, 3
	otherTarget := first
	otherTarget.Target.Name = "t.two"
	next := first
	next.Position.Offset++
	otherSource := first
	otherSource.Position.Source = "nats:OTHER"
	for i, batch := range [][]delaybridge.Claim{{first, again}, {first}, {again, otherTarget}, {next, otherSource, next}} {
		for j, err := range sink.Publish(t.Context(), batch) {
			want(t, fmt.Sprintf("message %d of batch %d", j, i), err, "", "")
		}
	}
	var ids []string
	for subject, n := range map[string]int{"t.one": 3, "t.two": 1} {
		got := readStream(t, stream, subject)
		if len(got) != n {
			t.Errorf("%s holds %d messages, want %d", subject, len(got), n)
		}
		for _, m := range got {
			id := m.Headers().Get("Nats-Msg-Id")
			if !strings.HasPrefix(id, "id.") || len(id) != len("id.")+16 || slices.Contains(ids, id) {
				t.Errorf("Nats-Msg-Id %q", id)
			}
			ids = append(ids, id)
		}
	}
}

func TestNATSBeforeItsFirstConnection(t *testing.T) {
	s := servers.NewNATS(t)
	newStream(t, s.JetStream(t), jetstream.StreamConfig{Name: "OK", Subjects: []string{"ok"}})
	s.Stop()
	opts := append(sinks.NATSOptions(nil), nats.ReconnectWait(10*time.Millisecond))
	nc, err := nats.Connect(s.URL, opts...)
	if err != nil {
		t.Fatalf("a server that is away stops the start: %v", err)
	}
	t.Cleanup(nc.Close)
	sink := newNATSSink(t, nc, tooLong)
	core, err := sinks.NewNATSCore(nc, natsConfig(tooLong))
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []delaybridge.Sink{sink, core} {
		for _, err := range s.Publish(t.Context(), []delaybridge.Claim{natsClaim("ok", "a"), natsClaim("ok", "b")}) {
			want(t, "before the first connection", err, "unavailable", "not connected")
		}
	}
	s.Start(t)
	for _, s := range []delaybridge.Sink{sink, core} {
		if !servers.Eventually(func() bool { return s.Publish(t.Context(), []delaybridge.Claim{natsClaim("ok", "c")})[0] == nil }) {
			t.Error("the sink did not find its server")
		}
	}
	nc.Close()
	for _, s := range []delaybridge.Sink{sink, core} {
		want(t, "after the connection was closed", s.Publish(t.Context(), []delaybridge.Claim{natsClaim("ok", "d")})[0], "unavailable", "closed")
	}
}

func TestNATSOptions(t *testing.T) {
	o := nats.GetDefaultOptions()
	for _, option := range sinks.NATSOptions(nil) {
		if err := option(&o); err != nil {
			t.Fatal(err)
		}
	}
	if o.ReconnectBufSize != -1 {
		t.Errorf("ReconnectBufSize is %d: messages would be kept back and sent later", o.ReconnectBufSize)
	}
	if o.MaxReconnect != -1 || !o.IgnoreAuthErrorAbort || !o.RetryOnFailedConnect {
		t.Error("the connection would give up one day")
	}
	if d := o.PingInterval * time.Duration(o.MaxPingsOut+1); d > 30*time.Second {
		t.Errorf("a dead peer would be noticed after %v", d)
	}
}

func TestNATSCloudEvents(t *testing.T) {
	h := func(pairs ...string) (out []delaybridge.Header) {
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, delaybridge.Header{Name: pairs[i], Value: []byte(pairs[i+1])})
		}
		return out
	}
	s := servers.NewNATS(t)
	stream := newStream(t, s.JetStream(t), jetstream.StreamConfig{Name: "T", Subjects: []string{"t"}})
	sink := newNATSSink(t, connect(t, newLink(t, s)), tooLong)
	cases := []struct {
		sentence   string
		sent, want []delaybridge.Header
	}{
		{
			"an event from Kafka gets the prefix of NATS, and its media type as an attribute too",
			h("ce_specversion", "1.0", "ce_id", "1", "ce_type", "t", "ce_source", "/s", "ce_myext", "Größe 50% \"x\"", "content-type", "text/plain", "other", "o"),
			h("ce-specversion", "1.0", "ce-id", "1", "ce-type", "t", "ce-source", "/s", "ce-myext", "Größe 50% \"x\"", "content-type", "text/plain", "ce-datacontenttype", "text/plain", "other", "o"),
		},
		{
			"an event from NATS stays as it is",
			h("ce-specversion", "1.0", "ce-id", "1", "ce-datacontenttype", "text/plain"),
			h("ce-specversion", "1.0", "ce-id", "1", "ce-datacontenttype", "text/plain"),
		},
		{
			"names of attributes become lower case",
			h("CE_SpecVersion", "1.0", "Ce_Id", "1"),
			h("ce-specversion", "1.0", "ce-id", "1"),
		},
		{
			"without a specversion it is no event",
			h("ce_id", "1", "content-type", "text/plain"),
			h("ce_id", "1", "content-type", "text/plain"),
		},
		{
			"what only looks like an attribute stays",
			h("ce_specversion", "1.0", "ce_", "x", "ce_a_b", "y", "ce_ä", "z"),
			h("ce-specversion", "1.0", "ce_", "x", "ce_a_b", "y", "ce_ä", "z"),
		},
		{
			"structured mode passes",
			h("content-type", "application/cloudevents+json; charset=UTF-8"),
			h("content-type", "application/cloudevents+json; charset=UTF-8"),
		},
		{
			"structured mode with the attributes repeated in headers has no media type of its own there",
			h("content-type", "application/cloudevents+json", "ce_specversion", "1.0"),
			h("content-type", "application/cloudevents+json", "ce-specversion", "1.0"),
		},
	}
	for i, c := range cases {
		claim := natsClaim("t", fmt.Sprint(i))
		claim.Headers = c.sent
		want(t, c.sentence, sink.Publish(t.Context(), []delaybridge.Claim{claim})[0], "", "")
	}
	for i, m := range readStream(t, stream, "t") {
		byName := func(a, b delaybridge.Header) int { return strings.Compare(a.Name, b.Name) }
		got := slices.SortedFunc(slices.Values(decode(t, m.Headers(), m.Data()).Headers), byName)
		wanted := slices.SortedFunc(slices.Values(cases[i].want), byName)
		if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", wanted) {
			t.Errorf("%s: got %q, want %q", cases[i].sentence, got, wanted)
		}
	}
}

func TestNATSConnectionThatBreaksEndsTheWait(t *testing.T) {
	s := servers.NewNATS(t)
	heard := hears(t, s, "silent")
	link := newLink(t, s)
	sink := newNATSSink(t, connect(t, link), tooLong)
	start := time.Now()
	got := make(chan []error)
	go func() { got <- sink.Publish(t.Context(), []delaybridge.Claim{natsClaim("silent", "a")}) }()
	if _, err := heard.NextMsg(time.Minute); err != nil {
		t.Fatal(err)
	}
	// An acknowledgement of what was sent on this connection can only come on it.
	link.Cut()
	want(t, "sent, and then cut", (<-got)[0], "unknown", "broke")
	if d := time.Since(start); d > tooLong/2 {
		t.Errorf("it took %v", d)
	}
}
