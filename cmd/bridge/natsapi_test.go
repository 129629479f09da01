package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"delaybridge"
	"delaybridge/test/servers"
)

// natsWorld is bridges with the NATS service, and a client of it.
type natsWorld struct {
	*apiWorld
	nats *servers.NATS
	nc   *nats.Conn
}

// newNATSWorld starts a Redis, a NATS server and as many bridges.
func newNATSWorld(t *testing.T, bridges int, change func(*Settings)) *natsWorld {
	t.Helper()
	w := &natsWorld{apiWorld: newAPIWorld(t, nil), nats: servers.NewNATS(t)}
	w.nc = w.nats.Connect(t)
	for range bridges {
		w.start(t, change)
	}
	return w
}

// start runs a bridge with that service until stop is called, or the test ends.
func (w *natsWorld) start(t *testing.T, change func(*Settings)) (stop func()) {
	t.Helper()
	s := defaultSettings()
	s.Redis.URL, s.NATS.URL, s.NATS.API = address(w.redis.URL), address(w.nats.URL), true
	s.ShutdownTimeout = duration(20 * time.Second)
	if change != nil {
		change(s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	before := w.instances(t)
	go func() { ended <- run(ctx, s, zap.NewNop(), nil, listeners{}) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the bridge ended with %v", err)
		}
	})
	t.Cleanup(stop)
	if !servers.Eventually(func() bool { return w.instances(t) == before+1 }) {
		t.Fatal("there is no such service")
	}
	return stop
}

// instances counts the service's instances that are there just now, by the server's
// word: that of the clients is only known when all have answered.
func (w *natsWorld) instances(t *testing.T) int {
	t.Helper()
	last := natsAPIGroup + "." + natsEndpoints[len(natsEndpoints)-1].subject // it is added last
	subs, err := w.nats.Server.Subsz(&server.SubszOptions{Subscriptions: true, Test: last})
	if err != nil {
		t.Fatal(err)
	}
	return subs.Total
}

// services asks all instances of the service who they are, as "nats micro ls" does.
func (w *natsWorld) services(t *testing.T) (found []micro.Info) {
	t.Helper()
	inbox := nats.NewInbox()
	sub, err := w.nc.SubscribeSync(inbox)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := w.nc.PublishRequest("$SRV.INFO.bridge", inbox, nil); err != nil {
		t.Fatal(err)
	}
	for range w.instances(t) {
		m, err := sub.NextMsg(20 * time.Second)
		if err != nil {
			t.Fatalf("after %d answers: %v", len(found), err)
		}
		var info micro.Info
		if err := json.Unmarshal(m.Data, &info); err != nil {
			t.Fatal(err)
		}
		found = append(found, info)
	}
	return found
}

// request asks the service. Each header is "Name: value".
func (w *natsWorld) request(t *testing.T, subject, body string, headers ...string) (code, text string, v map[string]any) {
	t.Helper()
	m := nats.NewMsg("bridge.api." + subject)
	m.Data = []byte(body)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		m.Header.Add(name, value)
	}
	res, err := w.nc.RequestMsg(m, 20*time.Second)
	if err != nil {
		t.Fatalf("%s: %v", subject, err)
	}
	if err := json.Unmarshal(res.Data, &v); err != nil {
		t.Fatalf("%s: %q: %v", subject, res.Data, err)
	}
	return res.Header.Get(micro.ErrorCodeHeader), res.Header.Get(micro.ErrorHeader), v
}

// TestNATSServiceIsOneOfNATSServices finds it the way that tools do.
func TestNATSServiceIsOneOfNATSServices(t *testing.T) {
	w := newNATSWorld(t, 2, nil)
	for _, info := range w.services(t) {
		if info.Name != "bridge" || info.Description == "" || info.Version == "" {
			t.Errorf("%+v", info)
		}
		var subjects []string
		for _, e := range info.Endpoints {
			subjects = append(subjects, e.Subject)
			if e.QueueGroup != "q" || e.Metadata["about"] == "" {
				t.Errorf("%+v", e)
			}
		}
		if got := strings.Join(subjects, " "); got != "bridge.api.schedule bridge.api.cancel bridge.api.get bridge.api.list bridge.api.stats bridge.api.dead.list bridge.api.dead.show bridge.api.dead.replay bridge.api.dead.purge" {
			t.Errorf("endpoints: %s", got)
		}
	}
	// Each request is answered once, by one of them.
	for range 50 {
		if code, text, _ := w.request(t, "get", `{"id":"nobody"}`); code != "404" {
			t.Fatalf("%s %s", code, text)
		}
	}
	total := 0
	for _, info := range w.services(t) {
		res, err := w.nc.Request("$SRV.STATS.bridge."+info.ID, nil, 20*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		var stats micro.Stats
		if err := json.Unmarshal(res.Data, &stats); err != nil {
			t.Fatal(err)
		}
		for _, e := range stats.Endpoints {
			if e.Name == "get" {
				total += e.NumRequests
				if e.NumErrors != e.NumRequests || e.NumErrors > 0 && !strings.Contains(e.LastError, "404") {
					t.Errorf("%+v", e)
				}
			}
		}
	}
	if total != 50 {
		t.Errorf("50 requests were answered %d times", total)
	}
}

// TestNATSServiceDoesWhatTheAPIDoes follows messages through its operations.
func TestNATSServiceDoesWhatTheAPIDoes(t *testing.T) {
	w := newNATSWorld(t, 1, func(s *Settings) { s.Roles = list{roleIngest} }) // nobody delivers
	for _, row := range []struct {
		about, subject, body string
		headers              []string
		code, says           string // says is part of the answer as Go prints it
	}{
		{"an envelope", "schedule", `{"id":"a/b","target":"nats://orders.a","delay":"1h","payload":{"n":1}}`, nil, "", "outcome:scheduled"},
		{"it again", "schedule", `{"id":"a/b","target":"nats://orders.a","delay":"2h"}`, nil, "", "outcome:replaced"},
		{"headers and a payload", "schedule", "plain", []string{"Bridge-Target: nats://orders.a", "Bridge-Delay: 1h", "Bridge-Id: h", "Trace: 1", "Trace: 2"}, "", "id:h"},
		{"headers, and an id of NATS", "schedule", "{}", []string{"bridge-target: nats://orders.a", "BRIDGE-DELAY: 1h", "Nats-Msg-Id: mid"}, "", "id:mid"},
		{"an envelope that its type names, beside a header", "schedule", `{"target":"kafka://orders","delay":"1h","id":"t"}`, []string{"Content-Type: application/vnd.delaybridge+json", "Bridge-Tombstone: true"}, "", "id:t"},
		{"an id of its own", "schedule", `{"target":"nats://orders.a","delay":"1h"}`, nil, "", "id:api:"},
		{"what was stored", "get", `{"id":"h","payload":true}`, nil, "", "headers:[map[name:Trace value:map[text:1]] map[name:Trace value:map[text:2]]] id:h"},
		{"what was stored, in short", "get", `{"id":"h"}`, nil, "", "payload_bytes:5"},
		{"a null payload", "get", `{"id":"t","payload":true}`, nil, "", "payload:<nil>"},
		{"a list", "list", `{"sink":"kafka","limit":5}`, nil, "", "id:t"},
		{"a list of all", "list", "", nil, "", "id:a/b"},
		{"counts", "stats", "", nil, "", "pending:4"},
		{"a cancel", "cancel", `{"id":"h"}`, nil, "", "state:cancelled"},
		{"it again", "cancel", `{"id":"h"}`, nil, "409", "state:cancelled"},
		{"a cancel of nobody", "cancel", `{"id":"nobody"}`, nil, "404", "nothing is known of nobody"},
		{"no target", "schedule", `{"delay":"1h"}`, nil, "422", "field:target"},
		{"no target in headers", "schedule", "x", []string{"Bridge-Delay: 1h"}, "422", "field:target"},
		{"a source of ours", "schedule", `{"target":"nats://bridge.schedule","delay":"1h"}`, nil, "422", "own sources"},
		{"itself", "schedule", `{"target":"nats://bridge.api.schedule","delay":"1h"}`, nil, "422", "own sources"},
		{"itself by core NATS", "schedule", `{"target":"nats-core://bridge.api.cancel","delay":"1h"}`, nil, "422", "own sources"},
		{"the server's own", "schedule", `{"target":"nats://$JS.API.STREAM.DELETE.X","delay":"1h"}`, nil, "422", "field:target"},
		{"a cancel in disguise", "schedule", "", []string{"Bridge-Op: cancel", "Bridge-Id: a/b"}, "422", "only schedules"},
		{"no JSON", "schedule", "hello", nil, "400", "field:body"},
		{"nothing", "schedule", "", nil, "400", "field:body"},
		{"an unknown field", "schedule", `{"target":"nats://orders.a","dealy":"1h"}`, nil, "400", "field:dealy"},
		{"a large payload", "schedule", strings.Repeat("x", 1000), []string{"Bridge-Target: nats://orders.a", "Bridge-Delay: 9d"}, "422", "BRIDGE_MAX_DELAY"},
		{"no id", "get", "{}", nil, "422", "field:id"},
		{"a plain id", "get", "h", nil, "400", "takes a JSON object"},
		{"a list for an object", "get", `["h"]`, nil, "400", "takes a JSON object"},
		{"an id of another type", "get", `{"id":7}`, nil, "400", "field:id"},
		{"a field of another endpoint", "get", `{"id":"h","force":true}`, nil, "400", "field:force"},
		{"a field where there is none", "stats", `{"id":"h"}`, nil, "400", "field:id"},
		{"no page", "list", `{"limit":0}`, nil, "400", "field:limit"},
		{"no sink", "list", `{"sink":"mqtt"}`, nil, "400", "field:sink"},
		{"no cursor", "list", `{"after":"???"}`, nil, "400", "field:after"},
		{"no reason", "dead.list", `{"reason":"bored"}`, nil, "400", "field:reason"},
		{"no time", "dead.purge", `{"id":"x","died_at":"yesterday"}`, nil, "400", "RFC 3339"},
		{"an unknown letter", "dead.show", `{"id":"nobody"}`, nil, "404", "no dead letter nobody"},
		{"replay of nobody", "dead.replay", `{"id":"nobody"}`, nil, "404", "no dead letter nobody"},
		{"purge of nobody", "dead.purge", `{"id":"nobody"}`, nil, "404", "no dead letter nobody"},
	} {
		code, text, v := w.request(t, row.subject, row.body, row.headers...)
		if said := fmt.Sprint(v); code != row.code || !strings.Contains(said, row.says) || (text == "") != (code == "") {
			t.Errorf("%s: %q %q, %s; want %q and %q", row.about, code, text, said, row.code, row.says)
		}
	}
	w.bury(t, "dead", delaybridge.ReasonAttempts)
	w.bury(t, "other", delaybridge.ReasonExpired)
	for _, row := range []struct{ subject, body, code, says string }{
		{"dead.list", `{"reason":"attempts"}`, "", "error:nobody takes it"},
		{"dead.list", `{"target":"nats://orders.b"}`, "", "items:[]"},
		{"dead.show", `{"id":"dead"}`, "", "payload:map[text:x]"},
		{"dead.replay", `{"id":"dead","dry_run":true}`, "", "dry_run:true"},
		{"cancel", `{"id":"dead"}`, "409", "state:dead"},
		{"dead.replay", `{"id":"dead"}`, "", "id:dead"},
		{"get", `{"id":"dead"}`, "", "state:pending"},
		{"dead.purge", `{"id":"other","died_at":"2020-01-01T00:00:00Z"}`, "404", "died again"},
		{"dead.purge", `{"id":"other"}`, "", "id:other"},
		{"dead.list", "", "", "items:[]"},
	} {
		if code, text, v := w.request(t, row.subject, row.body); code != row.code || !strings.Contains(fmt.Sprint(v), row.says) {
			t.Errorf("%s %s: %q %q, %v; want %q and %q", row.subject, row.body, code, text, v, row.code, row.says)
		}
	}
	_, _, v := w.request(t, "stats", "{}")
	if got := fmt.Sprint(v["process"].(map[string]any)["ingested"].(map[string]any)["nats-api"]); got != "map[cancelled:1 duplicate:0 rejected:0 replaced:1 scheduled:5 too_late:2 unknown:1]" {
		t.Errorf("counted: %s", got)
	}
}

// TestNATSServiceTakesNoQuestionForAnother: an id that JSON spoils must not become
// that of another message.
func TestNATSServiceTakesNoQuestionForAnother(t *testing.T) {
	w := newNATSWorld(t, 1, func(s *Settings) { s.Roles = list{roleIngest} }) // nobody delivers
	for _, id := range []string{"a\ufffd", "b"} {
		w.schedule(t, id, "1h")
	}
	for _, row := range []struct{ about, subject, body, says string }{
		{"bytes that are no UTF-8", "cancel", "{\"id\":\"a\xff\"}", "UTF-8"},
		{"half of a surrogate pair", "cancel", `{"id":"a\ud800"}`, "surrogate"},
		{"half of a surrogate pair in a letter's id", "dead.purge", `{"id":"a\ud800"}`, "surrogate"},
		{"an id that comes twice", "cancel", `{"id":"a","id":"b"}`, "id: is given twice"},
		{"an id that comes twice, once escaped", "cancel", `{"id":"a","\u0069d":"b"}`, "id: is given twice"},
		{"an id in capitals", "cancel", `{"ID":"b"}`, "no such field"},
		{"a second object", "cancel", `{"id":"b"}{}`, "takes a JSON object"},
		{"a comma too many", "cancel", `{"id":"b",}`, "takes a JSON object"},
		{"half an object", "cancel", `{"id":"b"`, "takes a JSON object"},
		{"a list", "cancel", `[{"id":"b"}]`, "takes a JSON object"},
		{"null", "cancel", `null`, "takes a JSON object"},
		{"a NUL", "cancel", "\x00", "takes a JSON object"},
	} {
		if code, text, _ := w.request(t, row.subject, row.body); code != "400" || !strings.Contains(text, row.says) {
			t.Errorf("%s: %s %q, want %q in it", row.about, code, text, row.says)
		}
	}
	for _, id := range []string{"a\ufffd", "b"} {
		if a := w.ask(t, "GET", pathOf("messages", id), ""); a.status != 200 || a.json(t)["state"] != "pending" {
			t.Errorf("%q: %+v", id, a)
		}
	}
}

// TestNATSServiceAnswersToInboxesOnly: its answers are published with the bridge's
// own permissions, and must not get where the asker may not publish.
func TestNATSServiceAnswersToInboxesOnly(t *testing.T) {
	w := newNATSWorld(t, 1, nil)
	body := []byte(`{"id":"tricked","target":"nats://orders.a","delay":"1h"}`)
	js := w.nats.JetStream(t)
	w.awaitStream(t)
	for _, reply := range []string{"", "$JS.API.STREAM.DELETE.BRIDGE_SCHEDULE", "bridge.schedule", "bridge.api.schedule", "orders.a", "_inbox.x", "_R_x"} {
		if err := w.nc.PublishMsg(&nats.Msg{Subject: "bridge.api.schedule", Reply: reply, Data: body}); err != nil {
			t.Fatal(err)
		}
	}
	// Requests of one connection are answered in order: those have been seen.
	if code, _, _ := w.request(t, "schedule", `{"id":"fair","target":"nats://orders.a","delay":"1h"}`); code != "" {
		t.Error(code)
	}
	if code, _, v := w.request(t, "get", `{"id":"tricked"}`); code != "404" {
		t.Errorf("it was carried out: %v", v)
	}
	if _, err := js.Stream(t.Context(), "BRIDGE_SCHEDULE"); err != nil {
		t.Errorf("the stream is gone: %v", err)
	}
	if _, _, v := w.request(t, "stats", ""); fmt.Sprint(v["dead"].(map[string]any)["rejected"]) != "0" {
		t.Errorf("an answer was taken for a request: %v", v["dead"])
	}
}

func (w *natsWorld) awaitStream(t *testing.T) {
	t.Helper()
	js := w.nats.JetStream(t)
	if !servers.Eventually(func() bool {
		_, err := js.Stream(t.Context(), "BRIDGE_SCHEDULE")
		return err == nil
	}) {
		t.Fatal("the bridge made no stream")
	}
}

// TestNATSServiceOutlivesItsServers goes on after NATS, and after Redis, was away.
func TestNATSServiceOutlivesItsServers(t *testing.T) {
	w := newNATSWorld(t, 1, nil)
	w.redis.Kill()
	if code, text, _ := w.request(t, "stats", ""); code != "503" || text == "" {
		t.Errorf("without Redis: %q %q", code, text)
	}
	if code, text, _ := w.request(t, "schedule", `{"target":"nats://orders.a","delay":"1h"}`); code != "503" || text == "" {
		t.Errorf("without Redis: %q %q", code, text)
	}
	w.redis.Start(t)
	if !servers.Eventually(func() bool { code, _, _ := w.request(t, "stats", ""); return code == "" }) {
		t.Error("Redis is back, and the service does not see it")
	}
	w.nats.Stop()
	w.nats.Start(t)
	if !servers.Eventually(func() bool {
		_, err := w.nc.Request("bridge.api.stats", nil, time.Second)
		return err == nil
	}) {
		t.Error("NATS is back, and the service is not")
	}
}

// TestNATSServiceLosesNoRequestWhenAProcessStops has clients ask while one of two
// bridges stops: what was taken is answered.
func TestNATSServiceLosesNoRequestWhenAProcessStops(t *testing.T) {
	w := newNATSWorld(t, 1, nil)
	stop := w.start(t, nil)
	var wg sync.WaitGroup
	half := make(chan struct{}, 4)
	for c := range 4 {
		wg.Go(func() {
			for i := range 200 {
				if i == 50 {
					half <- struct{}{}
				}
				body := fmt.Sprintf(`{"id":"%d-%d","target":"nats://orders.a","delay":"1h"}`, c, i)
				if code, text, _ := w.request(t, "schedule", body); code != "" {
					t.Errorf("%s: %s %s", body, code, text)
				}
			}
		})
	}
	<-half
	stop()
	wg.Wait()
	if _, _, v := w.request(t, "stats", ""); v["lanes"].(map[string]any)["nats"].(map[string]any)["pending"] != 800.0 {
		t.Errorf("%v", v["lanes"])
	}
	if !servers.Eventually(func() bool { return w.instances(t) == 1 }) {
		t.Errorf("%d services are left", w.instances(t))
	}
}

// TestNATSServiceIsOffUnlessAsked looks for it beside a bridge that was not asked.
func TestNATSServiceIsOffUnlessAsked(t *testing.T) {
	w := newNATSWorld(t, 1, nil)
	ctx, stop := context.WithCancel(t.Context())
	s := defaultSettings()
	s.Redis.URL, s.NATS.URL, s.NATS.Ingest.Stream, s.NATS.Ingest.Subjects = address(w.redis.URL), address(w.nats.URL), "OTHER", list{"other.schedule"}
	ended := make(chan error, 1)
	core, logged := observer.New(zap.InfoLevel)
	go func() { ended <- run(ctx, s, zap.New(core), nil, listeners{}) }()
	if !servers.Eventually(func() bool { return logged.FilterMessage("running").Len() == 1 }) {
		t.Error("the bridge does not run")
	}
	if n := w.instances(t); n != 1 {
		t.Errorf("%d services", n)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestIngestDoesNotTakeTheServicesRequests refuses settings by which a stream would
// hold them: a request would be taken in twice.
func TestIngestDoesNotTakeTheServicesRequests(t *testing.T) {
	for _, row := range []struct {
		subjects, routes string
		setting          string // that is refused; "" if none is
	}{
		{"bridge.schedule", "", ""},
		{"bridge.api", "", ""}, // the service has nothing on it
		{"bridge.*", "", ""},
		{"bridge.*.schedule", "", "BRIDGE_NATS_INGEST_SUBJECTS"},
		{"bridge.>", "", "BRIDGE_NATS_INGEST_SUBJECTS"},
		{">", "", "BRIDGE_NATS_INGEST_SUBJECTS"},
		{"*.api.>", "", "BRIDGE_NATS_INGEST_SUBJECTS"},
		{"bridge.api.schedule", "", "BRIDGE_NATS_INGEST_SUBJECTS"},
		{"bridge.apis.schedule", "", ""},
		{"bridge.schedule", "nats://bridge.api.later -> nats://orders delay=1s", "BRIDGE_ROUTES"},
		{"bridge.schedule", "nats://later.> -> nats://orders delay=1s", ""},
	} {
		s := defaultSettings()
		s.NATS.URL, s.NATS.API, s.Routes = "nats://127.0.0.1:4222", true, text(row.routes)
		s.NATS.Ingest.Subjects = list{row.subjects}
		err := s.Validate()
		if (err == nil) != (row.setting == "") || err != nil && !strings.HasPrefix(err.Error(), row.setting+"=") {
			t.Errorf("%s, %q: %v, want %q", row.subjects, row.routes, err, row.setting)
		}
		s.NATS.API = false
		if err := s.Validate(); err != nil {
			t.Errorf("%s, %q without the service: %v", row.subjects, row.routes, err)
		}
	}
	s := defaultSettings()
	s.NATS.API, s.Kafka.Brokers = true, list{"127.0.0.1:9092"}
	if e := s.checkBrokers(); e == nil || !strings.Contains(e.Error(), "BRIDGE_NATS_API") {
		t.Errorf("the service without NATS: %v", e)
	}
}

// TestNATSServiceNeedsOnlyThosePermissions is what the documentation gives a client
// that may schedule, and nothing else.
func TestNATSServiceNeedsOnlyThosePermissions(t *testing.T) {
	w := &natsWorld{apiWorld: newAPIWorld(t, nil)}
	w.nats = servers.NewNATS(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "bridge", Password: "b"},
			{Username: "client", Password: "c", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: []string{"bridge.api.schedule"}},
				Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
			}},
		}
	})
	plain := w.nats.URL
	w.nats.URL = strings.Replace(plain, "nats://", "nats://bridge:b@", 1)
	w.nc = w.nats.Connect(t)
	w.start(t, nil)
	refused := make(chan error, 1)
	client, err := nats.Connect(plain, nats.UserInfo("client", "c"), nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
		select {
		case refused <- err:
		default:
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	res, err := client.Request("bridge.api.schedule", []byte(`{"target":"nats://orders.a","delay":"1h"}`), 20*time.Second)
	if err != nil || res.Header.Get(micro.ErrorCodeHeader) != "" {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := client.Request("bridge.api.dead.purge", []byte(`{"id":"x"}`), 300*time.Millisecond); err == nil {
		t.Error("it may purge")
	}
	select {
	case <-refused:
	case <-time.After(20 * time.Second):
		t.Error("the server let it")
	}
}
