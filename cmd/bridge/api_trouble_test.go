package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"delaybridge"
	"delaybridge/luascripts"
	"delaybridge/test/servers"
)

// TestAPISaysWhetherSomethingWasDone: a 503 says what may have come of the request,
// and no more than is known.
func TestAPISaysWhetherSomethingWasDone(t *testing.T) {
	w := newAPIWorld(t, nil)
	w.schedule(t, "a", "1h")
	c := w.redis.Client(t)
	do := func(args ...any) {
		t.Helper()
		if err := c.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	says := func(about, method, path, body, want string) {
		t.Helper()
		a := w.ask(t, method, path, body)
		if text, _ := a.json(t)["error"].(string); a.status != 503 || !strings.HasPrefix(text, want) {
			t.Errorf("%s: %s %s: %d %q, want %q", about, method, path, a.status, text, want)
		}
	}
	do("REPLICAOF", "127.0.0.1", "1")
	says("a replica", "DELETE", "/v1/messages/a", "", "Redis refuses, so that this was not done: cancel: READONLY")
	says("a replica", "POST", "/v1/messages", `{"id":"b","target":"nats://orders.a","delay":"1h"}`, "Redis refuses, so that this was not done: schedule: READONLY")
	do("REPLICAOF", "NO", "ONE")
	do("ACL", "SETUSER", "default", "-evalsha", "-eval")
	says("a user that runs no scripts", "GET", "/v1/messages", "", "Redis refuses to say: list: page: NOPERM")
	// A user that may run some commands of a script, and not all, might have done half of it.
	says("a user that runs no scripts", "DELETE", "/v1/messages/a", "", "the queue did not answer as it should, so that nobody knows whether this was done: cancel: NOPERM")
	do("ACL", "SETUSER", "default", "+evalsha", "+eval")
	w.redis.Kill()
	says("no Redis", "GET", "/v1/messages/a", "", `the queue did not answer: get "a": `)
	says("no Redis", "POST", "/v1/dead/a/replay?dry_run=true", "", "the queue did not answer: ")
	says("no Redis", "DELETE", "/v1/messages/a", "", "the queue did not answer as it should, so that nobody knows whether this was done: ")
}

// redisRefusal is an answer of Redis that is an error.
type redisRefusal string

func (e redisRefusal) Error() string { return string(e) }
func (redisRefusal) RedisError()     {}

// The client of a cluster sends again what is not answered in time: a refusal then
// says nothing of the first time.
func TestRefusalOfARepeatSaysNothingOfTheFirstTry(t *testing.T) {
	refused := fmt.Errorf("schedule: %w", redisRefusal("BUSY Redis is busy running a script"))
	for _, row := range []struct {
		reads, repeats bool
		says           string
	}{
		{false, false, "Redis refuses, so that this was not done: "},
		{false, true, "the queue did not answer as it should, so that nobody knows whether this was done: "},
		{true, true, "Redis refuses to say: "},
	} {
		if status, view := answerOf(refused, row.reads, row.repeats); status != 503 || !strings.HasPrefix(view.Error, row.says) {
			t.Errorf("reads %v, repeats %v: %d %q", row.reads, row.repeats, status, view.Error)
		}
	}
	for mode, repeats := range map[string]bool{luascripts.ModeSingle: false, luascripts.ModeCluster: true} {
		client, err := luascripts.Connect("redis://127.0.0.1:1", mode)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = client.Close() }()
		q, err := luascripts.Inspect(client, luascripts.DefaultConfig())
		if err != nil {
			t.Fatal(err)
		}
		if got := (&operations{queue: q}).repeats(); got != repeats {
			t.Errorf("mode %s repeats: %v", mode, got)
		}
	}
	if (*operations)(nil).repeats() {
		t.Error("what is not there repeats nothing")
	}
}

// TestAPISaysOfAWriteThatItIsNotOnEnoughReplicas, which is there all the same.
func TestAPISaysOfAWriteThatItIsNotOnEnoughReplicas(t *testing.T) {
	w := newAPIWorld(t, func(s *Settings) { s.Redis.WaitReplicas = 1 })
	a := w.ask(t, "POST", "/v1/messages", `{"id":"b","target":"nats://orders.a","delay":"1h"}`)
	if text, _ := a.json(t)["error"].(string); a.status != 503 || !strings.HasPrefix(text, "this was done, but may be lost: ") {
		t.Errorf("%+v", a)
	}
	if a := w.ask(t, "GET", "/v1/messages/b", ""); a.status != 200 {
		t.Errorf("%+v", a)
	}
}

// TestAPIRefusesALargeBodyBeforeItCame needs no more of it than its length.
func TestAPIRefusesALargeBodyBeforeItCame(t *testing.T) {
	w := newAPIWorld(t, nil)
	c := w.dial(t)
	_ = c.SetDeadline(time.Now().Add(apiReadTimeout - 5*time.Second)) // before the server gives up by itself
	if _, err := io.WriteString(c, "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1073741824\r\n\r\n{"); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("HTTP/1.1 413"))
	if _, err := io.ReadFull(c, line); err != nil || string(line) != "HTTP/1.1 413" {
		t.Errorf("%q, %v", line, err)
	}
}

// TestAPISlowSendersHoldUpNobodyElse: who sends a body a byte at a time keeps a
// place of those who send bodies, and of no others.
func TestAPISlowSendersHoldUpNobodyElse(t *testing.T) {
	w := newAPIWorld(t, nil)
	for range apiBodyAtOnce {
		if _, err := io.WriteString(w.dial(t), "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
	}
	if !servers.Eventually(func() bool { return len(w.api.atOnce[routeBody]) == apiBodyAtOnce }) {
		t.Fatalf("%d slow requests are worked on", len(w.api.atOnce[routeBody]))
	}
	for _, path := range []string{"/v1/stats", "/v1/messages", "/v1/dead"} {
		if a := w.ask(t, "GET", path, ""); a.status != 200 {
			t.Errorf("%s: %+v", path, a)
		}
	}
}

// TestCommandStopsReadingWhatIsNoAPI: a server may send JSON without end.
func TestCommandStopsReadingWhatIsNoAPI(t *testing.T) {
	ended := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		defer close(ended)
		w.Header().Set("Content-Type", "application/json")
		for {
			if _, err := fmt.Fprintf(w, "{%s", strings.Repeat(" ", 64<<10)); err != nil {
				return
			}
		}
	}))
	defer s.Close()
	c, err := newAPIClient(s.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.close()
	c.answerMax = 1 << 20
	if _, err := c.Stats(t.Context()); err == nil || !strings.Contains(err.Error(), "more than 1 MiB: is that the API of a bridge?") {
		t.Error(err)
	}
	<-ended
}

// TestAPICountsReplaysAndPurges by the reason that the letter died of, whichever way
// it was asked for, and not what was refused or only tried.
func TestAPICountsReplaysAndPurges(t *testing.T) {
	w := newAPIWorld(t, nil)
	w.bury(t, "a", delaybridge.ReasonAttempts)
	w.bury(t, "b", delaybridge.ReasonPermanent)
	w.reject(t, 1, delaybridge.Header{Name: "Bridge-Delay", Value: []byte("5")})
	for _, row := range []struct {
		method, path string
		status       int
	}{
		{"POST", "/v1/dead/a/replay?dry_run=true", 202}, {"POST", "/v1/dead/a/replay", 202}, {"POST", "/v1/dead/a/replay", 404},
		{"DELETE", "/v1/dead/b", 204}, {"DELETE", "/v1/dead/b", 404},
		{"POST", "/v1/dead/rejected:nats:S:1/replay", 422}, {"DELETE", "/v1/dead/rejected:nats:S:1", 204},
	} {
		if a := w.ask(t, row.method, row.path, ""); a.status != row.status {
			t.Errorf("%s %s: %+v", row.method, row.path, a)
		}
	}
	got := map[string]float64{}
	families, err := w.api.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if !strings.HasPrefix(f.GetName(), "bridge_dead_replayed") && !strings.HasPrefix(f.GetName(), "bridge_dead_purged") {
				continue
			}
			series++
			if n := m.GetCounter().GetValue(); n > 0 {
				got[f.GetName()+" "+m.GetLabel()[0].GetValue()] = n
			}
		}
	}
	want := map[string]float64{"bridge_dead_replayed_total attempts": 1, "bridge_dead_purged_total permanent": 1, "bridge_dead_purged_total rejected": 1}
	if !maps.Equal(got, want) || series != 2*len(delaybridge.Reasons) {
		t.Errorf("%v of %d series, want %v", got, series, want)
	}
}

// TestReplayOfOneLetterTwiceAtOnce: a rejected letter goes out under its own id. Two
// who replay it at once have both read it before either has dropped it.
func TestReplayOfOneLetterTwiceAtOnce(t *testing.T) {
	w := newAPIWorld(t, func(s *Settings) { s.AllowedTargets = list{"nats://later.>"} })
	id := w.reject(t, 1, delaybridge.Header{Name: "Bridge-Target", Value: []byte("nats://orders.a")},
		delaybridge.Header{Name: "Bridge-Delay", Value: []byte("0s")}, delaybridge.Header{Name: "Bridge-Id", Value: []byte("order-7")})
	letter, err := w.queue.DeadLetter(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	w.settings.AllowedTargets = nil // it is valid now
	decoder, err := w.settings.newDecoder()
	if err != nil {
		t.Fatal(err)
	}
	if err := replayLetter(t.Context(), w.queue, decoder, letter, false); err != nil {
		t.Fatal(err)
	}
	var claims []delaybridge.Claim
	if !servers.Eventually(func() bool { claims = w.claim(t); return len(claims) > 0 }) || claims[0].ID != "order-7" {
		t.Fatalf("claimed %+v", claims)
	}
	if err := w.queue.Ack(t.Context(), claims)[0]; err != nil {
		t.Fatal(err)
	}
	// The other one, who is late with the rest of it.
	if err := replayLetter(t.Context(), w.queue, decoder, letter, false); !errors.Is(err, luascripts.ErrUnknown) {
		t.Errorf("replayed again: %v", err)
	}
	if a := w.ask(t, "GET", "/v1/messages/order-7", ""); a.json(t)["state"] != "delivered" {
		t.Errorf("it is delivered a second time: %+v", a)
	}
}

// TestReplayOfALetterThatIsPurgedMeanwhile goes out, and says so.
func TestReplayOfALetterThatIsPurgedMeanwhile(t *testing.T) {
	w := newAPIWorld(t, func(s *Settings) { s.AllowedTargets = list{"nats://later.>"} })
	id := w.reject(t, 1, delaybridge.Header{Name: "Bridge-Target", Value: []byte("nats://orders.a")},
		delaybridge.Header{Name: "Bridge-Delay", Value: []byte("1h")}, delaybridge.Header{Name: "Bridge-Id", Value: []byte("order-7")})
	letter, err := w.queue.DeadLetter(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	w.settings.AllowedTargets = nil // it is valid now
	decoder, err := w.settings.newDecoder()
	if err != nil {
		t.Fatal(err)
	}
	if err := w.queue.Purge(t.Context(), []luascripts.Letter{letter})[0]; err != nil {
		t.Fatal(err)
	}
	err = replayLetter(t.Context(), w.queue, decoder, letter, false)
	if a := w.ask(t, "GET", "/v1/messages/order-7", ""); err != nil || a.json(t)["state"] != "pending" {
		t.Errorf("%v, and then %+v", err, a)
	}
}

// TestCommandsBelieveNoOtherServer: whatever answers at the URL with JSON must not
// have a command say that something was done, nor ask for ever.
func TestCommandsBelieveNoOtherServer(t *testing.T) {
	w := &apiWorld{redis: &servers.Redis{URL: "redis://127.0.0.1:1/0"}, settings: defaultSettings()}
	w.settings.API.Token = apiTestToken
	for _, said := range []struct {
		status int
		body   string
	}{
		{200, `null`}, {200, `{}`}, {200, `{"ok":true}`}, {202, `{"id":"another","outcome":"","state":"pending"}`}, {204, ""},
		{200, `{"id":"another","state":"cancelled","reason":"attempts","outcome":""}`}, {200, `{"items":[],"next":"same"}`}, {200, `[]`},
	} {
		var asked atomic.Int64
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(said.status)
			_, _ = io.WriteString(w, said.body)
		}))
		for _, args := range [][]string{
			{"schedule", "--target", "nats://a", "--delay", "1s", "x"}, {"cancel", "x"}, {"get", "x"}, {"stats"}, {"list"}, {"list", "--after", "same"},
			{"dead", "list"}, {"dead", "show", "x"}, {"dead", "replay", "x"}, {"dead", "replay", "--all"}, {"dead", "purge", "x"}, {"dead", "purge", "--all", "--yes"},
		} {
			asked.Store(0)
			code, out, errOut := w.command(t, "", append([]string{"--api", s.URL}, args...)...)
			aList := args[len(args)-1] == "list" && strings.Contains(said.body, "items")
			if aList && args[0] == "list" {
				continue // that is an empty page, and another one behind it
			}
			if code != 1 || out != "" || asked.Load() > 2 || strings.Count(errOut, "\n") != 1 || !strings.Contains(errOut, "api at "+s.URL+": ") {
				t.Errorf("%v at a server that says %d %s: code %d after %d requests, %q, %q", args, said.status, said.body, code, asked.Load(), out, errOut)
			}
		}
		s.Close()
	}
}
