// Package api_test holds the HTTP API to its own description: every operation and
// every status in it is brought about on a running bridge, and each answer must
// be what the description says.
package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pb33f/libopenapi"
	validator "github.com/pb33f/libopenapi-validator"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/luascripts"
	"delaybridge/test/servers"
)

const token = "token-of-the-test"

// bridge is a running process, the Redis behind it, and what it says of itself.
type bridge struct {
	url       string
	validator validator.Validator
	// seen are the statuses that were brought about, by operation.
	seen map[string]map[int]bool
}

// row brings one status of one operation about.
type row struct {
	about, method, path, body string
	headers                   []string
	status                    int
}

func TestAnswersAreAsDescribed(t *testing.T) {
	redis := servers.NewRedis(t)
	program := build(t)
	guarded := &bridge{url: serve(t, program, "BRIDGE_REDIS_URL="+redis.URL, "BRIDGE_API_TOKEN="+token, "BRIDGE_MAX_PAYLOAD=1KiB"), seen: map[string]map[int]bool{}}
	open := &bridge{url: serve(t, program, "BRIDGE_REDIS_URL="+redis.URL), seen: guarded.seen}
	text := guarded.fetchDescription(t)
	doc, err := libopenapi.NewDocument(text)
	if err != nil {
		t.Fatal(err)
	}
	v, errs := validator.NewValidator(doc)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	guarded.validator, open.validator = v, v
	if ok, errs := v.ValidateDocument(); !ok {
		for _, e := range errs {
			t.Errorf("the description is no OpenAPI: %s: %s", e.Message, e.Reason)
		}
	}
	seed(t, redis)

	envelope := `{"id":"a/b %","target":"nats://orders.a","delay":"1h","key":null,"headers":{"a":["1","2"],"b":null},"payload":{"n":1}}`
	at := fmt.Sprintf(`{"target":"kafka://orders","deliver_at":%d,"expires_after":"1m","payload_base64":"/wA="}`, time.Now().Add(time.Hour).UnixMilli())
	for _, r := range []row{
		{"schedule", "POST", "/v1/messages", envelope, nil, 202},
		{"replace", "POST", "/v1/messages", envelope, nil, 202},
		{"schedule bytes at a time", "POST", "/v1/messages", at, nil, 202},
		{"schedule with the envelope's own type", "POST", "/v1/messages", envelope, []string{"Content-Type: application/vnd.delaybridge+json"}, 202},
		{"schedule what is no JSON", "POST", "/v1/messages", "x", nil, 400},
		{"schedule by another type", "POST", "/v1/messages", envelope, []string{"Content-Type: text/plain"}, 415},
		{"schedule what is too large", "POST", "/v1/messages", `{"target":"nats://a","delay":"1h","payload":"` + strings.Repeat("x", 2000) + `"}`, nil, 413},
		{"schedule without a target", "POST", "/v1/messages", `{"delay":"1h"}`, nil, 422},
		{"list", "GET", "/v1/messages?limit=1", "", nil, 200},
		{"list a sink", "GET", "/v1/messages?sink=kafka", "", nil, 200},
		{"list by a bad limit", "GET", "/v1/messages?limit=0", "", nil, 400},
		{"get what is pending", "GET", "/v1/messages/a%2Fb%20%25", "", nil, 200},
		{"get all of it", "GET", "/v1/messages/a%2Fb%20%25?payload=true", "", nil, 200},
		{"get what has failed", "GET", "/v1/messages/failed", "", nil, 200},
		{"get all of what has failed", "GET", "/v1/messages/failed?payload=true", "", nil, 200},
		{"list what has failed", "GET", "/v1/messages?sink=nats", "", nil, 200},
		{"get what is in flight", "GET", "/v1/messages/flying", "", nil, 200},
		{"get what was delivered", "GET", "/v1/messages/delivered?payload=true", "", nil, 200},
		{"get what is dead", "GET", "/v1/messages/dead-0", "", nil, 200},
		{"get nobody", "GET", "/v1/messages/nobody", "", nil, 404},
		{"get by a bad flag", "GET", "/v1/messages/nobody?payload=x", "", nil, 400},
		{"cancel", "DELETE", "/v1/messages/a%2Fb%20%25", "", nil, 200},
		{"cancel too late", "DELETE", "/v1/messages/flying", "", nil, 409},
		{"cancel nobody", "DELETE", "/v1/messages/nobody", "", nil, 404},
		{"cancel with a parameter", "DELETE", "/v1/messages/nobody?x=y", "", nil, 400},
		{"count", "GET", "/v1/stats", "", nil, 200},
		{"count with a parameter", "GET", "/v1/stats?x=y", "", nil, 400},
		{"list dead letters", "GET", "/v1/dead?limit=2", "", nil, 200},
		{"list some dead letters", "GET", "/v1/dead?reason=rejected&target=nats%3A%2F%2Forders.a", "", nil, 200},
		{"list dead letters by a bad reason", "GET", "/v1/dead?reason=x", "", nil, 400},
		{"show a letter", "GET", "/v1/dead/dead-0", "", nil, 200},
		{"show a rejected letter", "GET", "/v1/dead/rejected:nats:S:1", "", nil, 200},
		{"show nobody", "GET", "/v1/dead/nobody", "", nil, 404},
		{"show with a parameter", "GET", "/v1/dead/dead-0?x=y", "", nil, 400},
		{"replay, only checked", "POST", "/v1/dead/dead-0/replay?dry_run=true", "", nil, 202},
		{"replay", "POST", "/v1/dead/dead-0/replay?force=false", "", nil, 202},
		{"replay what is pending again", "POST", "/v1/dead/dead-1/replay", "", nil, 409},
		{"replay what is still invalid", "POST", "/v1/dead/rejected:nats:S:1/replay", "", nil, 422},
		{"replay nobody", "POST", "/v1/dead/nobody/replay", "", nil, 404},
		{"replay by a bad flag", "POST", "/v1/dead/dead-1/replay?force=x", "", nil, 400},
		{"purge", "DELETE", "/v1/dead/dead-2", "", nil, 204},
		{"purge nobody", "DELETE", "/v1/dead/dead-2", "", nil, 404},
		{"purge by a bad time", "DELETE", "/v1/dead/dead-1?died_at=x", "", nil, 400},
		{"the description", "GET", "/v1/openapi.json", "", nil, 200},
	} {
		guarded.check(t, r)
	}
	operations := describedOperations(t, text)
	// Each operation without the token, as another host, and without Redis.
	for _, name := range slices.Sorted(maps.Keys(operations)) {
		method, path, _ := strings.Cut(name, " ")
		r := row{name, method, strings.ReplaceAll(path, "{id}", "x"), "", nil, 0}
		if name == "POST /v1/messages" {
			r.body = envelope
		}
		if slices.Contains(operations[name], "401") {
			r.headers, r.status = []string{"Authorization: Bearer another"}, 401
			guarded.check(t, r)
		}
		r.headers, r.status = []string{"Host: evil.example", "Authorization: "}, 403
		open.check(t, r)
	}
	redis.Kill()
	for _, name := range slices.Sorted(maps.Keys(operations)) {
		if method, path, _ := strings.Cut(name, " "); slices.Contains(operations[name], "503") {
			r := row{name + " without Redis", method, strings.ReplaceAll(path, "{id}", "x"), "", nil, 503}
			if name == "POST /v1/messages" {
				r.body = envelope
			}
			guarded.check(t, r)
		}
	}

	for name, statuses := range operations {
		for _, status := range statuses {
			if !guarded.seen[name][atoi(status)] {
				t.Errorf("%s: nobody has seen %s", name, status)
			}
		}
		for status := range guarded.seen[name] {
			if !slices.Contains(statuses, fmt.Sprint(status)) {
				t.Errorf("%s: %d is not described", name, status)
			}
		}
	}
}

func atoi(s string) (n int) {
	_, _ = fmt.Sscan(s, &n)
	return n
}

// check sends a request, and holds the answer to the row and to the description;
// the request too, where it was a good one.
func (b *bridge) check(t *testing.T, row row) {
	t.Helper()
	r, err := http.NewRequest(row.method, b.url+row.path, strings.NewReader(row.body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if row.body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, h := range row.headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			r.Host = value
			continue
		}
		r.Header.Set(name, value)
	}
	res, err := (&http.Client{Timeout: time.Minute}).Do(r)
	if err != nil {
		t.Fatalf("%s: %v", row.about, err)
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != row.status {
		t.Errorf("%s: %s, want %d: %s", row.about, res.Status, row.status, body)
		return
	}
	name := row.method + " " + templateOf(r.URL.EscapedPath())
	if b.seen[name] == nil {
		b.seen[name] = map[int]bool{}
	}
	b.seen[name][row.status] = true
	res.Body, r.Body = io.NopCloser(bytes.NewReader(body)), io.NopCloser(strings.NewReader(row.body))
	if ok, errs := b.validator.ValidateHttpResponse(r, res); !ok {
		for _, e := range errs {
			t.Errorf("%s: the answer is not as described: %s: %s\n%s", row.about, e.Message, e.Reason, body)
			for _, s := range e.SchemaValidationErrors {
				t.Errorf("  %s at %s", s.Reason, s.FieldPath)
			}
		}
	}
	if row.status >= 300 {
		return
	}
	r.Body = io.NopCloser(strings.NewReader(row.body))
	if ok, errs := b.validator.ValidateHttpRequest(r); !ok {
		for _, e := range errs {
			t.Errorf("%s: it was taken, and is not as described: %s: %s", row.about, e.Message, e.Reason)
		}
	}
}

// templateOf returns the path of the description that a request's path is one of.
func templateOf(path string) string {
	for _, form := range []struct{ pattern, template string }{
		{`^/v1/messages/[^/]+$`, "/v1/messages/{id}"}, {`^/v1/dead/[^/]+$`, "/v1/dead/{id}"}, {`^/v1/dead/[^/]+/replay$`, "/v1/dead/{id}/replay"},
	} {
		if regexp.MustCompile(form.pattern).MatchString(path) {
			return form.template
		}
	}
	return path
}

func (b *bridge) fetchDescription(t *testing.T) []byte {
	t.Helper()
	res, err := http.Get(b.url + "/v1/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", res.Status, err)
	}
	return text
}

// describedOperations are the statuses by "METHOD /path".
func describedOperations(t *testing.T, text []byte) map[string][]string {
	t.Helper()
	var doc struct {
		Paths map[string]map[string]struct{ Responses map[string]any }
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			all[strings.ToUpper(method)+" "+path] = slices.Collect(maps.Keys(op.Responses))
		}
	}
	return all
}

// seed brings messages into the states that no request brings them into.
func seed(t *testing.T, redis *servers.Redis) {
	t.Helper()
	ctx := context.Background()
	client, err := luascripts.Connect(redis.URL, luascripts.ModeSingle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	q, err := luascripts.Open(ctx, client, luascripts.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	n := uint64(0)
	store := func(id string, due time.Time) {
		t.Helper()
		n++
		m := delaybridge.Message{
			ID: id, Position: delaybridge.Position{Source: "api:test", Offset: n}, Target: delaybridge.Target{Sink: delaybridge.SinkNATS, Name: "orders.a"},
			Scheduled: time.Now(), Due: due, ExpiresAfter: time.Hour, Key: []byte{0xff}, Payload: []byte("payload"),
			Headers: []delaybridge.Header{{Name: "null"}, {Name: "bytes", Value: []byte{0xfe}}, {Name: "text", Value: []byte("x")}},
		}
		if r := q.Store(ctx, []delaybridge.Request{{Op: delaybridge.OpSchedule, Message: m}})[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	claim := func(id string) delaybridge.Claim {
		t.Helper()
		store(id, time.Now().Add(-time.Second))
		var asks []delaybridge.Ask
		for shard := range q.Shards() {
			asks = append(asks, delaybridge.Ask{Shard: shard, Limit: 10})
		}
		for _, g := range q.Claim(ctx, delaybridge.SinkNATS, asks) {
			for _, c := range g.Claims {
				if c.ID == id {
					return c
				}
			}
		}
		t.Fatalf("%s was not claimed", id)
		return delaybridge.Claim{}
	}
	for i, reason := range []delaybridge.Reason{delaybridge.ReasonAttempts, delaybridge.ReasonPermanent, delaybridge.ReasonAbandoned, delaybridge.ReasonExpired} {
		b := delaybridge.Burial{Claim: claim(fmt.Sprintf("dead-%d", i)), Reason: reason, Error: "nobody takes it", Failed: 2}
		if err := q.Bury(ctx, []delaybridge.Burial{b})[0]; err != nil {
			t.Fatal(err)
		}
	}
	store("dead-1", time.Now().Add(time.Hour))
	if err := q.Ack(ctx, []delaybridge.Claim{claim("delivered")})[0]; err != nil {
		t.Fatal(err)
	}
	if err := q.Retry(ctx, []delaybridge.Retry{{Claim: claim("failed"), After: time.Hour, Error: "nobody takes it"}})[0]; err != nil {
		t.Fatal(err)
	}
	claim("flying")
	decoder, err := ingest.NewDecoder(ingest.DefaultDecoderConfig())
	if err != nil {
		t.Fatal(err)
	}
	rejected := decoder.Decode(ingest.Record{
		Position: delaybridge.Position{Source: "nats:S", Offset: 1}, Origin: delaybridge.Target{Sink: delaybridge.SinkNATS, Name: "bridge.schedule"}, Time: time.Now(),
		Headers: []delaybridge.Header{{Name: "Bridge-Delay", Value: []byte("5")}},
	})
	if r := q.Store(ctx, []delaybridge.Request{rejected})[0]; r.Err != nil {
		t.Fatal(r.Err)
	}
	// A record that nobody can read.
	keys, err := client.Keys(ctx, "*:deadmsg").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range keys {
		if client.HExists(ctx, key, "dead-3").Val() {
			if err := client.HSet(ctx, key, "dead-3", "garbage").Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func build(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "bridge")
	cmd := exec.Command("go", "build", "-o", program, "./cmd/bridge")
	cmd.Dir = filepath.Join("..", "..")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return program
}

var address = regexp.MustCompile(`"msg":"serving the API and the console","address":"([^"]+)"`)

// serve runs a bridge that has nothing but its API, and returns where that is.
func serve(t *testing.T, program string, env ...string) string {
	t.Helper()
	said := &lines{}
	cmd := exec.Command(program, "serve")
	cmd.Stdout, cmd.Stderr = said, said
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "BRIDGE_METRICS_ADDR=", "BRIDGE_API_ADDR=127.0.0.1:0"}, env...)
	// The process must not outlive a test binary that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the bridge ended with %v; it said\n%s", err, said)
		}
	})
	if !servers.Eventually(func() bool { return strings.Contains(said.String(), `"msg":"running"`) }) {
		t.Fatalf("the bridge does not run; it said\n%s", said)
	}
	return "http://" + address.FindStringSubmatch(said.String())[1]
}

// lines collects what a process says.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
