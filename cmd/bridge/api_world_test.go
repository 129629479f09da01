package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/luascripts"
	"delaybridge/test/servers"
)

// apiWorld is an API in front of a real Redis, and the queue behind it.
type apiWorld struct {
	redis    *servers.Redis
	settings *Settings
	queue    *luascripts.Queue
	api      *apiServer
	url      string
	token    string // that ask shows, if it is set
}

const apiTestToken = "s3cret-Token"

// newAPIWorld starts an API without a token, unless change sets one.
func newAPIWorld(t *testing.T, change func(*Settings)) *apiWorld {
	t.Helper()
	w := &apiWorld{redis: servers.NewRedis(t), settings: defaultSettings()}
	w.settings.Redis.URL = address(w.redis.URL)
	w.settings.API.Addr = "127.0.0.1:0"
	if change != nil {
		change(w.settings)
	}
	var err error
	queue, client, err := openQueue(t.Context(), w.settings)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	w.queue = queue
	l, err := w.settings.listenAPI()
	if err != nil {
		t.Fatal(err)
	}
	m := newMetrics([]string{sourceAPI}, []string{delaybridge.SinkNATS})
	w.api = startAPI(w.settings, l, m, zap.NewNop())
	t.Cleanup(w.api.close)
	if err := w.api.open(w.settings, queue); err != nil {
		t.Fatal(err)
	}
	w.url = "http://" + l.Addr().String()
	return w
}

// answer is what the API has said.
type answer struct {
	status int
	header http.Header
	body   string
}

// json decodes the body.
func (a answer) json(t *testing.T) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("%d %q: %v", a.status, a.body, err)
	}
	return v
}

// ask sends a request with a body of JSON, if there is one. Each header is "Name: value".
func (w *apiWorld) ask(t *testing.T, method, path, body string, headers ...string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, w.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	if w.token != "" {
		r.Header.Set("Authorization", "Bearer "+w.token)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
		} else {
			r.Header.Set(name, value)
		}
	}
	client := &http.Client{Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, string(text)}
}

// schedule stores a message, due in an hour unless it says otherwise.
func (w *apiWorld) schedule(t *testing.T, id, delay string) {
	t.Helper()
	body, _ := json.Marshal(map[string]string{"id": id, "target": "nats://orders.a", "delay": delay, "payload": "x"})
	if a := w.ask(t, "POST", "/v1/messages", string(body)); a.status != http.StatusAccepted {
		t.Fatalf("schedule %q: %+v", id, a)
	}
}

// fail has a message fail for a reason, to be tried again in an hour.
func (w *apiWorld) fail(t *testing.T, id, why string) {
	t.Helper()
	if err := w.queue.Retry(t.Context(), []delaybridge.Retry{{Claim: w.inFlight(t, id), After: time.Hour, Error: why}})[0]; err != nil {
		t.Fatal(err)
	}
}

// claim claims what is due.
func (w *apiWorld) claim(t *testing.T) (claims []delaybridge.Claim) {
	t.Helper()
	var asks []delaybridge.Ask
	for shard := range w.queue.Shards() {
		asks = append(asks, delaybridge.Ask{Shard: shard, Limit: 100})
	}
	for _, g := range w.queue.Claim(t.Context(), delaybridge.SinkNATS, asks) {
		if g.Err != nil {
			t.Fatal(g.Err)
		}
		claims = append(claims, g.Claims...)
	}
	return claims
}

// inFlight brings a message of that id into flight.
func (w *apiWorld) inFlight(t *testing.T, id string) delaybridge.Claim {
	t.Helper()
	w.schedule(t, id, "0s")
	var found []delaybridge.Claim
	if !servers.Eventually(func() bool { found = w.claim(t); return len(found) > 0 }) || found[0].ID != id {
		t.Fatalf("claimed %+v, want %q", found, id)
	}
	return found[0]
}

// delivered brings a message of that id to its end.
func (w *apiWorld) delivered(t *testing.T, id string) {
	t.Helper()
	if err := w.queue.Ack(t.Context(), []delaybridge.Claim{w.inFlight(t, id)})[0]; err != nil {
		t.Fatal(err)
	}
}

// bury makes a dead letter of that id.
func (w *apiWorld) bury(t *testing.T, id string, reason delaybridge.Reason) {
	t.Helper()
	err := w.queue.Bury(t.Context(), []delaybridge.Burial{{Claim: w.inFlight(t, id), Reason: reason, Error: "nobody takes it", Failed: 3}})[0]
	if err != nil {
		t.Fatal(err)
	}
}

// reject stores a refused message, as ingest does, and returns its id as a dead letter.
func (w *apiWorld) reject(t *testing.T, offset uint64, headers ...delaybridge.Header) string {
	t.Helper()
	decoder, err := w.settings.newDecoder()
	if err != nil {
		t.Fatal(err)
	}
	r := decoder.Decode(ingest.Record{
		Position: delaybridge.Position{Source: "nats:S", Offset: offset}, Time: time.Now(),
		Origin:  delaybridge.Target{Sink: delaybridge.SinkNATS, Name: "bridge.schedule"},
		Headers: headers, Payload: []byte("refused"),
	})
	if r.Op != delaybridge.OpReject {
		t.Fatalf("it was not refused: %+v", r)
	}
	if res := w.queue.Store(t.Context(), []delaybridge.Request{r})[0]; res.Err != nil {
		t.Fatal(res.Err)
	}
	return r.Message.ID
}

// command runs a command line in this process.
func (w *apiWorld) command(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	clearSettings(t)
	t.Setenv("BRIDGE_REDIS_URL", w.redis.URL)
	if w.settings.API.Token != "" {
		t.Setenv("BRIDGE_API_TOKEN", string(w.settings.API.Token))
	}
	var out, errOut bytes.Buffer
	code = execute(context.WithoutCancel(t.Context()), args, strings.NewReader(stdin), &out, &errOut)
	return code, out.String(), errOut.String()
}

// dial opens a plain connection to the API.
func (w *apiWorld) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	return c
}
