package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"delaybridge"
	"delaybridge/test/servers"
)

// TestAPITellsWhatBecameOfAMessage follows ids through the API that paths, JSON and
// terminals have their difficulties with.
func TestAPITellsWhatBecameOfAMessage(t *testing.T) {
	w := newAPIWorld(t, nil)
	for _, id := range []string{
		"order-7", "a/b", "a/../b", "/", "..", ".", "50%", "%2F", "with blanks", "?x=y#z", "füße-世界", "a;b=c&d", `"quoted"\`, "<script>", "replay", "a:b@c",
		strings.Repeat("x", delaybridge.MaxIDBytes),
	} {
		path := pathOf("messages", id)
		body := fmt.Sprintf(`{"id":%q,"target":"nats://orders.a","delay":"1h","key":"k","headers":{"a":["1","2"],"b":null},"payload":{"n": 1}}`, id)
		a := w.ask(t, "POST", "/v1/messages", body)
		if a.status != 202 || a.json(t)["id"] != id || a.json(t)["outcome"] != "scheduled" || a.header.Get("Location") != path {
			t.Errorf("%q: schedule: %+v", id, a)
			continue
		}
		if again := w.ask(t, "POST", "/v1/messages", body); again.status != 202 || again.json(t)["outcome"] != "replaced" {
			t.Errorf("%q: schedule once more: %+v", id, again)
		}
		if got := w.ask(t, "GET", path, ""); got.status != 200 || got.json(t)["id"] != id || got.json(t)["state"] != "pending" || got.json(t)["payload_bytes"] != 8.0 {
			t.Errorf("%q: get: %+v", id, got)
		}
		full := w.ask(t, "GET", path+"?payload=true", "")
		if want := `"key":{"text":"k"},"headers":[{"name":"a","value":{"text":"1"}},{"name":"a","value":{"text":"2"}},{"name":"b","value":null}],"payload":{"text":"{\"n\": 1}"}}`; full.status != 200 || !strings.Contains(full.body, want) {
			t.Errorf("%q: get with payload: %+v", id, full)
		}
		if gone := w.ask(t, "DELETE", path, ""); gone.status != 200 || gone.body != fmt.Sprintf("{\"id\":%s,\"state\":\"cancelled\"}\n", quoted(t, id)) {
			t.Errorf("%q: cancel: %+v", id, gone)
		}
		if late := w.ask(t, "DELETE", path, ""); late.status != 409 || late.json(t)["state"] != "cancelled" || late.json(t)["id"] != id {
			t.Errorf("%q: cancel once more: %+v", id, late)
		}
		if got := w.ask(t, "GET", path, ""); got.status != 200 || got.json(t)["state"] != "cancelled" {
			t.Errorf("%q: get after the cancel: %+v", id, got)
		}
	}
}

func quoted(t *testing.T, s string) string {
	t.Helper()
	var b strings.Builder
	if err := printJSON(&b, s); err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(b.String())
}

// TestAPIRefusesWhatItCannotDo has a row for each way to be wrong.
func TestAPIRefusesWhatItCannotDo(t *testing.T) {
	w := newAPIWorld(t, func(s *Settings) {
		s.MaxPayload = 1 << 10
		s.AllowedTargets = list{"nats://orders.>", "nats://later.>"}
	})
	w.schedule(t, "pending", "1h")
	w.delivered(t, "delivered")
	w.bury(t, "dead", delaybridge.ReasonPermanent)
	w.inFlight(t, "flying")
	still := w.reject(t, 1, delaybridge.Header{Name: "Bridge-Delay", Value: []byte("5")}, delaybridge.Header{Name: "Bridge-Target", Value: []byte("nats://orders.a")})
	good := `{"target":"nats://orders.a","delay":"1h"`
	for _, row := range []struct {
		about, method, path, body string
		headers                   []string
		status                    int
		field, says               string
	}{
		{"no JSON", "POST", "/v1/messages", "hello", nil, 400, "body", "no JSON object"},
		{"an empty body", "POST", "/v1/messages", "", []string{"Content-Type: application/json"}, 400, "body", "no JSON object"},
		{"half an object", "POST", "/v1/messages", `{"target":`, nil, 400, "body", ""},
		{"two objects", "POST", "/v1/messages", good + "}{}", nil, 400, "body", "behind the JSON object"},
		{"an unknown field", "POST", "/v1/messages", good + `,"dealy":"1s"}`, nil, 400, "dealy", "there is no such field"},
		{"a field that comes twice", "POST", "/v1/messages", good + `,"delay":"2h"}`, nil, 400, "delay", "is given twice"},
		{"a number for a text", "POST", "/v1/messages", `{"target":"nats://orders.a","delay":5}`, nil, 400, "delay", "must be a JSON string"},
		{"no target", "POST", "/v1/messages", `{"delay":"1h"}`, nil, 422, "target", "is required"},
		{"no time", "POST", "/v1/messages", `{"target":"nats://orders.a"}`, nil, 422, "delay", "this or deliver_at is required"},
		{"two times", "POST", "/v1/messages", good + `,"deliver_at":"2030-01-01T00:00:00Z"}`, nil, 422, "deliver_at", "delay is given too"},
		{"a delay without unit", "POST", "/v1/messages", `{"target":"nats://orders.a","delay":"5"}`, nil, 422, "delay", "unit"},
		{"Unix seconds", "POST", "/v1/messages", `{"target":"nats://orders.a","deliver_at":1893456000}`, nil, 422, "deliver_at", "seconds"},
		{"too far ahead", "POST", "/v1/messages", `{"target":"nats://orders.a","delay":"8d"}`, nil, 422, "delay", "BRIDGE_MAX_DELAY"},
		{"no sink of ours", "POST", "/v1/messages", `{"target":"mqtt://a","delay":"1h"}`, nil, 422, "target", "no such sink"},
		{"a target that is not allowed", "POST", "/v1/messages", `{"target":"nats://other.a","delay":"1h"}`, nil, 422, "target", "allowed"},
		{"a source of ours", "POST", "/v1/messages", `{"target":"nats://bridge.schedule","delay":"1h"}`, nil, 422, "target", "own sources"},
		{"the service's own subject", "POST", "/v1/messages", `{"target":"nats://bridge.api.schedule","delay":"1h"}`, nil, 422, "target", "own sources"},
		{"the server's own subject", "POST", "/v1/messages", `{"target":"nats://$JS.API.STREAM.DELETE.X","delay":"1h"}`, nil, 422, "target", ""},
		{"a cancel in disguise", "POST", "/v1/messages", `{"op":"cancel","id":"pending"}`, nil, 422, "op", "only schedules"},
		{"a bad id", "POST", "/v1/messages", good + `,"id":"a\u0000b"}`, nil, 422, "id", ""},
		{"a long id", "POST", "/v1/messages", good + `,"id":"` + strings.Repeat("x", 257) + `"}`, nil, 422, "id", "256"},
		{"two payloads", "POST", "/v1/messages", good + `,"payload":1,"payload_base64":"eA=="}`, nil, 422, "payload_base64", "payload is given too"},
		{"a header of ours among the passing ones", "POST", "/v1/messages", good + `,"headers":{"Bridge-Delay":"1s"}}`, nil, 422, "headers", "steers"},
		{"an unknown header of ours", "POST", "/v1/messages", good + `}`, []string{"Bridge-Dealy: 1s"}, 422, "Bridge-Dealy", "misspelt"},
		{"a header that contradicts", "POST", "/v1/messages", good + `}`, []string{"Bridge-Delay: 1s"}, 422, "delay", "more than once"},
		{"a payload that is too large", "POST", "/v1/messages", good + `,"payload":"` + strings.Repeat("x", 1025) + `"}`, nil, 413, "payload", "BRIDGE_MAX_PAYLOAD"},
		{"a body that is too large", "POST", "/v1/messages", good + `,"payload":"` + strings.Repeat("x", 70<<10) + `"}`, nil, 413, "body", "67584"},
		{"another type", "POST", "/v1/messages", good + "}", []string{"Content-Type: text/plain"}, 415, "Content-Type", "application/json"},
		{"a form, as pages of other sites can send", "POST", "/v1/messages", good + "}", []string{"Content-Type: application/x-www-form-urlencoded"}, 415, "Content-Type", ""},
		{"no type", "POST", "/v1/messages", good + "}", []string{"Content-Type: "}, 415, "Content-Type", ""},
		{"a compressed body", "POST", "/v1/messages", good + "}", []string{"Content-Encoding: gzip"}, 415, "Content-Encoding", ""},
		{"an unknown id", "GET", "/v1/messages/nobody", "", nil, 404, "", "nothing is known of nobody"},
		{"an id that cannot be", "GET", "/v1/messages/" + strings.Repeat("x", 300), "", nil, 404, "", "nothing is known"},
		{"cancel of an unknown id", "DELETE", "/v1/messages/nobody", "", nil, 404, "", "nothing is known of nobody"},
		{"cancel of an id that cannot be", "DELETE", "/v1/messages/" + strings.Repeat("x", 300), "", nil, 404, "", "nothing is known"},
		{"cancel of what is in flight", "DELETE", "/v1/messages/flying", "", nil, 409, "", "it is in flight"},
		{"cancel of what is delivered", "DELETE", "/v1/messages/delivered", "", nil, 409, "", "it is delivered"},
		{"cancel of what is dead", "DELETE", "/v1/messages/dead", "", nil, 409, "", "it is dead"},
		{"an unknown sink", "GET", "/v1/messages?sink=mqtt", "", nil, 400, "sink", "nats-core"},
		{"no page", "GET", "/v1/messages?limit=0", "", nil, 400, "limit", "1 to 1000"},
		{"a page of words", "GET", "/v1/messages?limit=all", "", nil, 400, "limit", "1 to 1000"},
		{"an empty limit", "GET", "/v1/messages?limit=", "", nil, 400, "limit", "1 to 1000"},
		{"a long page", "GET", "/v1/dead?limit=1001", "", nil, 400, "limit", "1 to 1000"},
		{"a cursor of nobody's", "GET", "/v1/messages?after=%3F", "", nil, 400, "after", "cursor"},
		{"a cursor of nobody's among letters", "GET", "/v1/dead?after=%3F", "", nil, 400, "after", "cursor"},
		{"a misspelt parameter", "GET", "/v1/messages?limt=5", "", nil, 400, "limt", "limit"},
		{"a parameter that comes twice", "GET", "/v1/messages?limit=5&limit=6", "", nil, 400, "limit", "more than once"},
		{"a parameter where there is none", "GET", "/v1/stats?limit=5", "", nil, 400, "limit", "no such parameter"},
		{"a query that cannot be read", "GET", "/v1/messages?limit=%zz", "", nil, 400, "", "query"},
		{"an unknown reason", "GET", "/v1/dead?reason=bored", "", nil, 400, "reason", "rejected"},
		{"neither yes nor no", "GET", "/v1/messages/pending?payload=maybe", "", nil, 400, "payload", "true or false"},
		{"an unknown letter", "GET", "/v1/dead/nobody", "", nil, 404, "", "no dead letter nobody"},
		{"a letter by its place", "GET", "/v1/dead/nats:S:1", "", nil, 404, "", "but there is rejected:nats:S:1"},
		{"purge of an unknown letter", "DELETE", "/v1/dead/nobody", "", nil, 404, "", "no dead letter nobody"},
		{"purge of a letter of another time", "DELETE", "/v1/dead/dead?died_at=2020-01-01T00:00:00.000Z", "", nil, 404, "", "died again"},
		{"a time that is none", "DELETE", "/v1/dead/dead?died_at=yesterday", "", nil, 400, "died_at", ""},
		{"replay of an unknown letter", "POST", "/v1/dead/nobody/replay", "", nil, 404, "", "no dead letter nobody"},
		{"replay of what is still invalid", "POST", "/v1/dead/" + url.PathEscape(still) + "/replay", "", nil, 422, "Bridge-Delay", "still invalid"},
		{"a dry run of it", "POST", "/v1/dead/" + url.PathEscape(still) + "/replay?dry_run=true", "", nil, 422, "Bridge-Delay", "still invalid"},
		{"nothing at the path", "GET", "/v1/nothing", "", nil, 404, "", "nothing at this path"},
		{"the API's root", "GET", "/v1", "", nil, 404, "", ""},
		{"the API's root with a slash", "GET", "/v1/", "", nil, 404, "", ""},
		{"a slash at the end", "GET", "/v1/stats/", "", nil, 404, "", "nothing at this path"},
		{"no id", "GET", "/v1/messages/", "", nil, 404, "", "nothing at this path"},
		{"an id with a bare slash", "GET", "/v1/messages/a/b", "", nil, 404, "", ""},
		{"metrics are not here", "GET", "/v1/metrics", "", nil, 404, "", ""},
		{"no debug handlers", "GET", "/v1/debug/pprof/", "", nil, 404, "", ""},
		{"another method", "PUT", "/v1/messages", "", nil, 405, "", "GET, HEAD, POST"},
		{"another method on a message", "PATCH", "/v1/messages/pending", "", nil, 405, "", "DELETE, GET, HEAD"},
		{"another method on a letter", "POST", "/v1/dead/dead", "", nil, 405, "", "DELETE, GET, HEAD"},
		{"replay is no reading", "GET", "/v1/dead/dead/replay", "", nil, 405, "", "POST"},
		{"no preflight is answered", "OPTIONS", "/v1/messages", "", []string{"Origin: http://evil.example", "Access-Control-Request-Method: POST"}, 405, "", ""},
		{"the description is only read", "DELETE", "/v1/openapi.json", "", nil, 405, "", "GET, HEAD"},
	} {
		t.Run(row.about, func(t *testing.T) {
			a := w.ask(t, row.method, row.path, row.body, row.headers...)
			v := a.json(t)
			field, _ := v["field"].(string)
			text, _ := v["error"].(string)
			if a.status != row.status || field != row.field || text == "" || !strings.Contains(text, row.says) {
				t.Errorf("%d, field %q: %q; want %d, %q: %q", a.status, field, text, row.status, row.field, row.says)
			}
			if a.header.Get("Content-Type") != "application/json" || a.header.Get("X-Content-Type-Options") != "nosniff" || a.header.Get("Access-Control-Allow-Origin") != "" {
				t.Errorf("headers: %v", a.header)
			}
			if allow := a.header.Get("Allow"); (allow != "") != (a.status == 405) || a.status == 405 && !strings.Contains(text, allow) {
				t.Errorf("Allow is %q", allow)
			}
		})
	}
	// None of that has changed anything.
	if v := w.ask(t, "GET", "/v1/stats", "").json(t); fmt.Sprint(v["dead"]) != "map[abandoned:0 attempts:0 corrupt:0 expired:0 permanent:1 rejected:1]" {
		t.Errorf("%v", v["dead"])
	}
	if a := w.ask(t, "GET", "/v1/messages", ""); strings.Count(a.body, `"id"`) != 1 {
		t.Errorf("pending: %s", a.body)
	}
}

// TestAPIWantsTheToken tells the right token from others, and asks it for all but
// the page and the description, which hold no data.
func TestAPIWantsTheToken(t *testing.T) {
	w := newAPIWorld(t, func(s *Settings) { s.API.Token = apiTestToken })
	for _, row := range []struct {
		about, authorization string
		status               int
	}{
		{"none", "", 401},
		{"the right one", "Bearer " + apiTestToken, 200},
		{"the scheme in any case", "bearer " + apiTestToken, 200},
		{"another one", "Bearer other", 401},
		{"its beginning", "Bearer " + apiTestToken[:5], 401},
		{"more than it", "Bearer " + apiTestToken + "x", 401},
		{"nothing behind the scheme", "Bearer ", 401},
		{"without the scheme", apiTestToken, 401},
		{"by another scheme", "Basic " + apiTestToken, 401},
	} {
		for _, path := range []string{"/v1/stats", "/v1/messages"} {
			a := w.ask(t, "GET", path, "", "Authorization: "+row.authorization)
			if a.status != row.status || (a.header.Get("WWW-Authenticate") != "") != (row.status == 401) || strings.Contains(a.body, apiTestToken) {
				t.Errorf("%s: %s: %+v", row.about, path, a)
			}
		}
	}
	for _, route := range apiRoutes {
		if a := w.ask(t, route.method, strings.ReplaceAll(route.path, "{id}", "x"), ""); a.status != 401 {
			t.Errorf("%s %s without a token: %+v", route.method, route.path, a)
		}
	}
	for _, path := range []string{"/v1/nothing", "/v1/"} {
		if a := w.ask(t, "GET", path, ""); a.status != 401 {
			t.Errorf("%s without a token: %+v", path, a)
		}
	}
	for _, path := range []string{"/", "/v1/openapi.json"} {
		if a := w.ask(t, "GET", path, ""); a.status != 200 {
			t.Errorf("%s without a token: %+v", path, a)
		}
	}
	// A proxy in front has another name, and the token is what counts.
	if a := w.ask(t, "GET", "/v1/stats", "", "Authorization: Bearer "+apiTestToken, "Host: bridge.example"); a.status != 200 {
		t.Errorf("by another name: %+v", a)
	}
}

// TestAPIOfOneHostIsNotForOthersPages: without a token, a page of another site must
// not get at the API by the browser of somebody who visits it.
func TestAPIOfOneHostIsNotForOthersPages(t *testing.T) {
	w := newAPIWorld(t, nil)
	port := w.url[strings.LastIndexByte(w.url, ':'):]
	good := `{"target":"nats://orders.a","delay":"1h"}`
	for _, row := range []struct {
		about, method, path, body string
		headers                   []string
		status                    int
	}{
		{"no browser", "POST", "/v1/messages", good, nil, 202},
		{"its own page", "POST", "/v1/messages", good, []string{"Sec-Fetch-Site: same-origin"}, 202},
		{"its own page in an old browser", "POST", "/v1/messages", good, []string{"Origin: " + w.url}, 202},
		{"typed into the browser", "GET", "/v1/stats", "", []string{"Sec-Fetch-Site: none"}, 200},
		{"a page of another site", "POST", "/v1/messages", good, []string{"Sec-Fetch-Site: cross-site"}, 403},
		{"a page of another port", "POST", "/v1/messages", good, []string{"Sec-Fetch-Site: same-site"}, 403},
		{"a page of another site in an old browser", "POST", "/v1/messages", good, []string{"Origin: http://evil.example"}, 403},
		{"a cancel of another site", "DELETE", "/v1/messages/x", "", []string{"Origin: http://evil.example"}, 403},
		{"a replay of another site, which takes no body", "POST", "/v1/dead/x/replay", "", []string{"Origin: http://evil.example"}, 403},
		{"a sandboxed page", "POST", "/v1/messages", good, []string{"Origin: null"}, 403},
		{"a name that leads here", "GET", "/v1/stats", "", []string{"Host: evil.example" + port}, 403},
		{"a name that leads here, for the description", "GET", "/v1/openapi.json", "", []string{"Host: evil.example"}, 403},
		{"a name that leads here, for the page", "GET", "/", "", []string{"Host: evil.example"}, 403},
		{"a name that only begins like ours", "GET", "/v1/stats", "", []string{"Host: localhost.evil.example"}, 403},
		{"an address of another host", "GET", "/v1/stats", "", []string{"Host: 10.0.0.5" + port}, 403},
		{"localhost", "GET", "/v1/stats", "", []string{"Host: localhost" + port}, 200},
		{"localhost in capitals", "GET", "/v1/stats", "", []string{"Host: LOCALHOST"}, 200},
		{"the other loopback address", "GET", "/v1/stats", "", []string{"Host: [::1]" + port}, 200},
	} {
		t.Run(row.about, func(t *testing.T) {
			if a := w.ask(t, row.method, row.path, row.body, row.headers...); a.status != row.status {
				t.Errorf("%+v, want %d", a, row.status)
			}
		})
	}
}

// TestAPIListensBeyondLoopbackWithATokenOnly holds the settings to it.
func TestAPIListensBeyondLoopbackWithATokenOnly(t *testing.T) {
	for _, row := range []struct {
		addr, token string
		says        string // "" if it listens
	}{
		{"127.0.0.1:0", "", ""},
		{"localhost:0", "", ""},
		{"127.0.0.1:0", "t", ""},
		{"0.0.0.0:0", "t", ""},
		{":0", "t", ""},
		{":0", "", "BRIDGE_API_TOKEN"},
		{"0.0.0.0:0", "", "BRIDGE_API_TOKEN"},
		{"[::]:0", "", "BRIDGE_API_TOKEN"},
		{"192.0.2.1:0", "", "BRIDGE_API_TOKEN"},
		{"localhost.example:0", "", "BRIDGE_API_TOKEN"},
		{"localhost.:0", "", "BRIDGE_API_TOKEN"}, // what that is, a DNS server says
		{"127.0.0.1.:0", "", "BRIDGE_API_TOKEN"},
		{"[::1%lo]:0", "", "BRIDGE_API_TOKEN"},
		{"192.0.2.1:0", "t", "cannot be listened on"},
	} {
		s := defaultSettings()
		s.API.Addr, s.API.Token = listenAddress(row.addr), secret(row.token)
		l, err := s.listenAPI()
		if l != nil {
			_ = l.Close()
		}
		if (err == nil) != (row.says == "") || err != nil && (!strings.Contains(err.Error(), row.says) || !strings.HasPrefix(err.Error(), "BRIDGE_API_ADDR=")) {
			t.Errorf("%q, token %q: %v, want %q", row.addr, row.token, err, row.says)
		}
	}
	for _, token := range []string{"with blanks", "tab\tin it", "füße", "line\nbreak", strings.Repeat("x", apiTokenMax+1)} {
		s := defaultSettings()
		s.API.Token = secret(token)
		if err := s.Validate(); err == nil || strings.Contains(err.Error(), token) || !strings.Contains(err.Error(), "BRIDGE_API_TOKEN") {
			t.Errorf("token %q: %v", token, err)
		}
	}
}

// TestAPIPagesThroughLists follows the cursors of both lists.
func TestAPIPagesThroughLists(t *testing.T) {
	w := newAPIWorld(t, nil)
	for i := range 7 {
		w.bury(t, fmt.Sprintf("dead-%d", i), []delaybridge.Reason{delaybridge.ReasonAttempts, delaybridge.ReasonPermanent}[i%2])
	}
	for i := range 7 {
		w.schedule(t, fmt.Sprintf("p-%d", i), fmt.Sprintf("%dh", i+1))
	}
	follow := func(path string) (ids string, pages int) {
		for after := ""; ; {
			a := w.ask(t, "GET", path+after, "")
			v := a.json(t)
			items, _ := v["items"].([]any)
			for _, item := range items {
				ids += " " + item.(map[string]any)["id"].(string)
			}
			if pages++; v["next"] == nil || pages > 20 {
				return ids, pages
			}
			after = "&after=" + url.QueryEscape(v["next"].(string))
		}
	}
	for _, row := range []struct {
		path, ids string
		pages     int
	}{
		{"/v1/messages?limit=3", " p-0 p-1 p-2 p-3 p-4 p-5 p-6", 3},
		{"/v1/messages?sink=nats&limit=7", " p-0 p-1 p-2 p-3 p-4 p-5 p-6", 1},
		{"/v1/messages?sink=kafka&limit=7", "", 1},
		{"/v1/dead?limit=3", " dead-0 dead-1 dead-2 dead-3 dead-4 dead-5 dead-6", 3},
		{"/v1/dead?limit=2&reason=attempts", " dead-0 dead-2 dead-4 dead-6", 2},
		{"/v1/dead?limit=2&reason=permanent&target=nats%3A%2F%2Forders.a", " dead-1 dead-3 dead-5", 2},
		{"/v1/dead?limit=2&target=nats%3A%2F%2Forders.b", "", 1},
	} {
		if ids, pages := follow(row.path); ids != row.ids || pages != row.pages {
			t.Errorf("%s: %q on %d pages, want %q on %d", row.path, ids, pages, row.ids, row.pages)
		}
	}
}

// TestAPICaresForDeadLetters shows, replays and purges them.
func TestAPICaresForDeadLetters(t *testing.T) {
	w := newAPIWorld(t, nil)
	w.bury(t, "a/b", delaybridge.ReasonAttempts)
	w.bury(t, "again", delaybridge.ReasonAttempts)
	w.schedule(t, "again", "1h")
	w.bury(t, "purged", delaybridge.ReasonExpired)
	mended := w.reject(t, 1, delaybridge.Header{Name: "Bridge-Delay", Value: []byte("1h")}, delaybridge.Header{Name: "Bridge-Id", Value: []byte("mine")}, delaybridge.Header{Name: "Bridge-Target", Value: []byte("mqtt://a")})

	a := w.ask(t, "GET", "/v1/dead/a%2Fb", "")
	v := a.json(t)
	if a.status != 200 || v["reason"] != "attempts" || v["error"] != "nobody takes it" || v["attempts"] != 3.0 || fmt.Sprint(v["payload"]) != "map[text:x]" || v["key"] != nil {
		t.Errorf("show: %+v", a)
	}
	if a := w.ask(t, "POST", "/v1/dead/a%2Fb/replay?dry_run=true", ""); a.status != 202 || a.body != `{"id":"a/b","dry_run":true}`+"\n" {
		t.Errorf("dry run: %+v", a)
	}
	if a := w.ask(t, "GET", "/v1/messages/a%2Fb", ""); a.json(t)["state"] != "dead" {
		t.Errorf("after the dry run: %+v", a)
	}
	if a := w.ask(t, "POST", "/v1/dead/a%2Fb/replay?died_at="+url.QueryEscape(v["died_at"].(string)), ""); a.status != 202 || a.body != `{"id":"a/b"}`+"\n" {
		t.Errorf("replay: %+v", a)
	}
	if a := w.ask(t, "GET", "/v1/messages/a%2Fb", ""); a.json(t)["state"] != "pending" || a.json(t)["attempts"] != 0.0 {
		t.Errorf("after the replay: %+v", a)
	}
	if a := w.ask(t, "POST", "/v1/dead/again/replay", ""); a.status != 409 || !strings.Contains(a.body, "force=true") {
		t.Errorf("replay of what is pending: %+v", a)
	}
	if a := w.ask(t, "POST", "/v1/dead/again/replay?force=true", ""); a.status != 202 {
		t.Errorf("forced replay: %+v", a)
	}
	if a := w.ask(t, "POST", pathOf("dead", mended, "replay"), ""); a.status != 422 || a.json(t)["field"] != "Bridge-Target" {
		t.Errorf("replay of what is still invalid: %+v", a)
	}
	if a := w.ask(t, "DELETE", "/v1/dead/purged", ""); a.status != 204 || a.body != "" || a.header.Get("Content-Type") != "" {
		t.Errorf("purge: %+v", a)
	}
	if a := w.ask(t, "DELETE", "/v1/dead/purged", ""); a.status != 404 {
		t.Errorf("purge once more: %+v", a)
	}
	if a := w.ask(t, "GET", "/v1/dead", ""); strings.Count(a.body, `"id"`) != 1 {
		t.Errorf("left: %s", a.body)
	}
}

// TestAPIPayloadsArriveAsTheyWere goes through every way to write one.
func TestAPIPayloadsArriveAsTheyWere(t *testing.T) {
	w := newAPIWorld(t, nil)
	for _, row := range []struct {
		about, fields string
		headers       []string
		payload, key  string // as GET shows them
	}{
		{"none", ``, nil, `{"text":""}`, `null`},
		{"text", `,"payload":"größe\n"`, nil, `{"text":"größe\n"}`, `null`},
		{"JSON as it was written", `,"payload":{"a": 1.0,  "b":[]}`, nil, `{"text":"{\"a\": 1.0,  \"b\":[]}"}`, `null`},
		{"null is JSON, too", `,"payload":null`, nil, `{"text":"null"}`, `null`},
		{"bytes", `,"payload_base64":"/wA="`, nil, `{"base64":"/wA="}`, `null`},
		{"a tombstone", ``, []string{"Bridge-Tombstone: true"}, `null`, `null`},
		{"a key", `,"key":"k"`, nil, `{"text":""}`, `{"text":"k"}`},
		{"a key of bytes", ``, []string{"Bridge-Key-Base64: /wA="}, `{"text":""}`, `{"base64":"/wA="}`},
	} {
		t.Run(row.about, func(t *testing.T) {
			a := w.ask(t, "POST", "/v1/messages", `{"id":"x","target":"kafka://orders","deliver_at":`+fmt.Sprint(time.Now().Add(time.Hour).UnixMilli())+row.fields+"}", row.headers...)
			if a.status != 202 {
				t.Fatalf("%+v", a)
			}
			got := w.ask(t, "GET", "/v1/messages/x?payload=true", "")
			if !strings.Contains(got.body, `"key":`+row.key+`,"headers":[],"payload":`+row.payload+"}") {
				t.Errorf("%s", got.body)
			}
		})
	}
}

// TestAPIRequestsHavePositionsOfTheirOwn: repeating a request is a new schedule, and
// many at once each count.
func TestAPIRequestsHavePositionsOfTheirOwn(t *testing.T) {
	w := newAPIWorld(t, nil)
	w.delivered(t, "once")
	w.schedule(t, "once", "1h") // not taken for a redelivery of the first
	if a := w.ask(t, "GET", "/v1/messages/once", ""); a.json(t)["state"] != "pending" {
		t.Errorf("%+v", a)
	}
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			body := fmt.Sprintf(`{"target":"nats://orders.a","delay":"1h","payload":%d}`, i)
			if a := w.ask(t, "POST", "/v1/messages", body); a.status != 202 || a.json(t)["outcome"] != "scheduled" {
				t.Errorf("%+v", a)
			}
		})
	}
	wg.Wait()
	v := w.ask(t, "GET", "/v1/stats", "").json(t)
	if n := v["lanes"].(map[string]any)["nats"].(map[string]any)["pending"]; n != 201.0 {
		t.Errorf("%v are pending", n)
	}
}

// TestAPICountsItsRequests holds the counters to what was asked.
func TestAPICountsItsRequests(t *testing.T) {
	w := newAPIWorld(t, nil)
	w.schedule(t, "a", "1h")
	w.schedule(t, "a", "2h")
	w.ask(t, "DELETE", "/v1/messages/a", "")
	w.ask(t, "DELETE", "/v1/messages/a", "")
	w.ask(t, "DELETE", "/v1/messages/nobody", "")
	w.ask(t, "POST", "/v1/messages", `{"target":"nats://orders.a"}`) // refused, and kept nowhere
	process := w.ask(t, "GET", "/v1/stats", "").json(t)["process"].(map[string]any)
	want := "map[cancelled:1 duplicate:0 rejected:0 replaced:1 scheduled:1 too_late:1 unknown:1]"
	if got := fmt.Sprint(process["ingested"].(map[string]any)["api"]); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for _, name := range []string{"version", "started_at"} {
		if s, ok := process[name].(string); !ok || s == "" {
			t.Errorf("%s is %v", name, process[name])
		}
	}
	if w.api.metrics.lanes["nats"] == nil || process["lanes"].(map[string]any)["nats"] == nil {
		t.Errorf("lanes: %v", process["lanes"])
	}
}

// TestAPIHoldsBackWhileTheQueueIsFull has the limit that brokers meet.
func TestAPIHoldsBackWhileTheQueueIsFull(t *testing.T) {
	w := newAPIWorld(t, func(s *Settings) { s.MaxPending = 1 })
	w.schedule(t, "a", "1h")
	full := func() bool {
		a := w.ask(t, "POST", "/v1/messages", `{"id":"b","target":"nats://orders.a","delay":"1h"}`)
		if a.status == 503 && (a.header.Get("Retry-After") == "" || !strings.Contains(a.json(t)["error"].(string), "BRIDGE_MAX_PENDING")) {
			t.Errorf("%+v", a)
		}
		return a.status == 503
	}
	// The answer about the queue may be a second old: one more may get in.
	w.schedule(t, "c", "1h")
	if !servers.Eventually(full) {
		t.Error("it still takes in")
	}
	for _, id := range []string{"a", "b", "c"} {
		w.ask(t, "DELETE", "/v1/messages/"+id, "")
	}
	if !servers.Eventually(func() bool { return !full() }) {
		t.Error("it does not take in again")
	}
}

// TestAPISaysSoWhileRedisIsAway answers at once, and again when it is back.
func TestAPISaysSoWhileRedisIsAway(t *testing.T) {
	w := newAPIWorld(t, nil)
	w.schedule(t, "a", "1h")
	w.redis.Kill()
	for _, row := range []struct{ method, path, body string }{
		{"GET", "/v1/messages/a", ""}, {"DELETE", "/v1/messages/a", ""}, {"GET", "/v1/messages", ""}, {"GET", "/v1/stats", ""}, {"GET", "/v1/dead", ""}, {"GET", "/v1/dead/a", ""},
		{"POST", "/v1/dead/a/replay", ""}, {"DELETE", "/v1/dead/a", ""}, {"POST", "/v1/messages", `{"target":"nats://orders.a","delay":"1h"}`},
	} {
		if a := w.ask(t, row.method, row.path, row.body); a.status != 503 || a.header.Get("Retry-After") != "1" || a.json(t)["error"] == "" {
			t.Errorf("%s %s: %+v", row.method, row.path, a)
		}
	}
	if a := w.ask(t, "GET", "/", ""); a.status != 200 {
		t.Errorf("the page: %+v", a)
	}
	w.redis.Start(t)
	if !servers.Eventually(func() bool { return w.ask(t, "GET", "/v1/stats", "").status == 200 }) {
		t.Error("Redis is back, and the API does not see it")
	}
}

// TestAPIBeforeRedisIsThere has the listener answer while the program starts.
func TestAPIBeforeRedisIsThere(t *testing.T) {
	w := newAPIWorld(t, nil)
	w.api.ops.Store(nil)
	if a := w.ask(t, "GET", "/v1/stats", ""); a.status != 503 || !strings.Contains(a.body, "waiting for Redis") {
		t.Errorf("%+v", a)
	}
}

// TestAPIOnTheWire speaks HTTP by hand.
func TestAPIOnTheWire(t *testing.T) {
	w := newAPIWorld(t, nil)
	say := func(text string) (*http.Response, string) {
		t.Helper()
		c := w.dial(t)
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatalf("%.80q: %v", text, err)
		}
		body, _ := io.ReadAll(res.Body)
		return res, string(body)
	}
	if res, _ := say("GET /v1/stats HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n"); res.StatusCode != 431 {
		t.Errorf("huge headers: %s", res.Status)
	}
	if res, _ := say("GET /v1/stats HTTP/1.1\r\n\r\n"); res.StatusCode != 400 {
		t.Errorf("no host: %s", res.Status)
	}
	if res, _ := say("GET /v1/messages/%zz HTTP/1.1\r\nHost: localhost\r\n\r\n"); res.StatusCode != 400 {
		t.Errorf("a path that cannot be read: %s", res.Status)
	}
	if res, body := say("GET /v1/messages/%ff%fe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); res.StatusCode != 404 || !strings.Contains(body, `"error"`) {
		t.Errorf("an id that is no UTF-8: %s %s", res.Status, body)
	}
	if res, _ := say("GET /v1/messages/../stats HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); res.StatusCode != 404 {
		t.Errorf("steps in the path: %s", res.Status)
	}
	// Nobody sends a body that is refused by its header: the client waits for the word.
	res, _ := say("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 100000\r\nExpect: 100-continue\r\n\r\n")
	if res.StatusCode != 415 {
		t.Errorf("a body that is not wanted: %s", res.Status)
	}
	c := w.dial(t)
	body := `{"id":"expected","target":"nats://orders.a","delay":"1h"}`
	r := bufio.NewReader(c)
	_, _ = fmt.Fprintf(c, "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(body))
	if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
		t.Fatalf("%q, %v", line, err)
	}
	_, _ = r.ReadString('\n')
	_, _ = io.WriteString(c, body)
	if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 202 {
		t.Errorf("%v, %v", res, err)
	}
	// HEAD is GET without the body.
	head := w.ask(t, "HEAD", "/v1/messages/expected", "")
	if head.status != 200 || head.body != "" || head.header.Get("Content-Length") == "0" || head.header.Get("Content-Type") != "application/json" {
		t.Errorf("HEAD: %+v", head)
	}
	if head := w.ask(t, "HEAD", "/v1/messages/nobody", ""); head.status != 404 {
		t.Errorf("HEAD: %+v", head)
	}
	// A body that ends early is none.
	c = w.dial(t)
	_, _ = io.WriteString(c, "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"+body)
	_ = c.(interface{ CloseWrite() error }).CloseWrite()
	if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || res.StatusCode != 400 {
		t.Errorf("half a body: %v, %v", res, err)
	}
	for what, d := range map[string]time.Duration{"header": w.api.server.ReadHeaderTimeout, "request": w.api.server.ReadTimeout, "answer": w.api.server.WriteTimeout, "idle": w.api.server.IdleTimeout} {
		if d <= 0 || d > 5*time.Minute {
			t.Errorf("a slow client may take %v for its %s", d, what)
		}
	}
}

// TestAPIFinishesWhatWasAskedBeforeItStops holds a request half sent over the stop.
func TestAPIFinishesWhatWasAskedBeforeItStops(t *testing.T) {
	w := newAPIWorld(t, nil)
	c := w.dial(t)
	body := `{"id":"last","target":"nats://orders.a","delay":"1h"}`
	_, _ = fmt.Fprintf(c, "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(body))
	r := bufio.NewReader(c)
	if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") { // it is being read
		t.Fatalf("%q, %v", line, err)
	}
	_, _ = r.ReadString('\n')
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.api.run(ctx, time.Minute) }()
	stop()
	if !servers.Eventually(func() bool {
		res, err := http.Get(w.url + "/v1/stats")
		if err == nil {
			_ = res.Body.Close()
		}
		return err != nil
	}) {
		t.Error("it still accepts")
	}
	select {
	case <-ended:
		t.Fatal("it has ended with a request in hand")
	default:
	}
	_, _ = io.WriteString(c, body)
	if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 202 {
		t.Errorf("%v, %v", res, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if s, err := w.queue.Get(t.Context(), "last"); err != nil || s.State != delaybridge.StatePending {
		t.Errorf("%+v, %v", s, err)
	}
}

// TestAPIStopsWaitingForAClientThatSendsNothing bounds the stop.
func TestAPIStopsWaitingForAClientThatSendsNothing(t *testing.T) {
	w := newAPIWorld(t, nil)
	c := w.dial(t)
	_, _ = io.WriteString(c, "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10\r\nExpect: 100-continue\r\n\r\n")
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
		t.Fatalf("%q, %v", line, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if err := w.api.run(ctx, 50*time.Millisecond); err != nil {
		t.Error(err)
	}
}
