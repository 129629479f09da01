package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"delaybridge"
)

// changing are the parts of an output that differ from run to run.
var changing = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z|api:[0-9a-f]{32}:1|0\.\d+s|"overdue_seconds":[0-9.]+|\d+(\.\d+)?ms|(more: --after |"next":")[\w-]+`)

func steady(s string) string { return changing.ReplaceAllString(s, "…") }

// TestCommandsSayTheSameByTheAPI runs each command on Redis and by the API, in
// worlds that are alike: exit code, output and errors are the same.
func TestCommandsSayTheSameByTheAPI(t *testing.T) {
	type script struct {
		stdin string
		args  []string
	}
	in := func(stdin string, args ...string) script { return script{stdin, args} }
	run := func(args ...string) script { return script{"", args} }
	tomorrow := fmt.Sprint(time.Now().Add(24 * time.Hour).UnixMilli())
	// Each line builds on those before it.
	lines := []script{
		run("list"), run("stats"), run("stats", "-o", "json"), run("dead", "list"), run("get", "nobody"), run("get", ""), run("cancel", "nobody"), run("cancel", ""),
		run("cancel", strings.Repeat("x", 300)), run("dead", "show", "nobody"), run("dead", "replay", "nobody"), run("dead", "purge", "nobody"),
		run("schedule", "--target", "nats://orders.a", "--delay", "1h", "--id", "a/b %ü", "payload"),
		run("schedule", "--target", "nats://orders.a", "--delay", "2h", "--id", "a/b %ü", "payload", "-o", "json"),
		in("from stdin", "schedule", "--target", "kafka://orders", "--at", tomorrow, "--id", "far", "-"),
		run("schedule", "--target", "kafka://orders", "--delay", "3h", "--id", "k", "--key", "key", "--expires-after", "1m", "-H", "a=1", "-H", "b=2", "-H", "a=3", "-o", "json"),
		run("schedule", "--target", "kafka://orders", "--delay", "3h", "--id", "bytes", "--key", "\xff\x00", "-H", "a=\xfe", "\xff\xfe"),
		run("schedule", "--target", "kafka://orders", "--delay", "3h", "--id", "tombstone", "-H", "Bridge-Tombstone=true"),
		run("schedule", "-H", "Content-Type=application/vnd.delaybridge+json", "-H", "a=1", "--key", "k", `{"id":"envelope","target":"kafka://orders","delay":"3h","payload":{"n": 1}}`),
		run("schedule", "-H", "content-type=application/vnd.delaybridge+json", `{"dealy":"3h"}`),
		run("schedule", "--target", "nats-core://x", "--delay", "4h", "no id"),
		run("schedule", "--delay", "1h"), run("schedule", "--target", "nats://a"), run("schedule", "--target", "nats://a", "--delay", "5"),
		run("schedule", "--target", "nats://a", "--delay", "1s", "--at", tomorrow), run("schedule", "--target", "nats://a", "--at", "1893456000"),
		run("schedule", "--target", "nats://a", "--delay", "9d"), run("schedule", "--target", "nats://bridge.schedule", "--delay", "1s"),
		run("schedule", "--target", "nats://a", "--delay", "1s", "--id", "x\x01"), run("schedule", "--target", "nats://a", "--delay", "1s", "--id", ""),
		run("schedule", "--target", "nats://a", "--delay", "1s", "--expires-after", "never"),
		run("schedule", "--target", "nats://a", "--delay", "1s", "-H", "Bridge-Dealy=1s"), run("schedule", "--target", "nats://a", "--delay", "1s", "-H", "Bridge-Delay=2s"),
		run("schedule", "--target", "nats://a", "--delay", "1s", "-H", "Bridge-Op=cancel", "--id", "far"), run("schedule", "--target", "nats://a", "--delay", "1s", "-H", "none"),
		run("schedule", "--target", "nats://a", "--delay", "1s", strings.Repeat("x", 1<<20+1)),
		run("list"), run("list", "--limit", "2"), run("list", "--sink", "kafka", "-o", "json"), run("list", "--sink", "mqtt"), run("list", "--after", "???"), run("list", "--limit", "0"),
		run("get", "a/b %ü"), run("get", "k", "-o", "json"), run("get", "bytes", "-o", "json"), run("get", "tombstone"),
		run("get", "k", "--payload"), run("get", "bytes", "--payload"), run("get", "bytes", "--payload", "-o", "json"), run("get", "dead-1", "--payload"), run("get", "nobody", "--payload"), run("get", "", "--payload"),
		run("get", "tried"), run("get", "tried", "-o", "json"), run("get", "tried", "--payload"), run("list", "--sink", "nats"), run("list", "--sink", "nats", "-o", "json"), run("cancel", "tried"),
		run("cancel", "a/b %ü"), run("cancel", "a/b %ü"), run("cancel", "a/b %ü", "-o", "json"), run("get", "a/b %ü"), run("cancel", "k", "-o", "json"),
		run("cancel", "dead-1"), run("get", "dead-1"), run("get", "dead-1", "-o", "json"), run("stats"),
		run("dead", "list"), run("dead", "list", "--limit", "1"), run("dead", "list", "--reason", "attempts", "-o", "json"), run("dead", "list", "--reason", "attempts", "--limit", "2"),
		run("dead", "list", "--target", "nats://orders.a"), run("dead", "list", "--reason", "bored"), run("dead", "list", "--after", "???"),
		run("dead", "show", "dead/2"), run("dead", "show", "dead/2", "-o", "json"), run("dead", "show", "nats:S:1"), run("dead", "show", "rejected:nats:S:1", "-o", "json"),
		run("dead", "replay"), run("dead", "replay", "--all", "--dry-run"), run("dead", "replay", "--all", "--dry-run", "-o", "json"),
		run("dead", "replay", "dead-1", "nobody"), run("dead", "replay", "dead-1"), run("dead", "replay", "again"), run("dead", "replay", "again", "-o", "json"), run("dead", "replay", "again", "--force"),
		run("dead", "replay", "rejected:nats:S:1"), run("dead", "replay", "--reason", "attempts", "-o", "json"),
		run("dead", "purge", "--reason", "rejected", "--dry-run"), in("n\n", "dead", "purge", "--reason", "rejected"), in("y\n", "dead", "purge", "--reason", "permanent"),
		run("dead", "purge", "--target", "nats://orders.a", "--yes", "-o", "json"), run("dead", "purge", "--all", "--yes"), run("dead", "purge", "--all", "--yes"), run("dead", "list", "-o", "json"),
		run("stats", "-o", "json"),
	}
	withToken := func(s *Settings) { s.API.Token = apiTestToken }
	worlds := []*apiWorld{newAPIWorld(t, withToken), newAPIWorld(t, withToken)}
	for _, w := range worlds {
		w.token = apiTestToken
		for i, id := range []string{"dead-1", "dead/2", "again", "dead-4", "dead-5"} {
			w.bury(t, id, delaybridge.Reasons[1+i%2])
		}
		w.schedule(t, "again", "1h")
		w.fail(t, "tried", "no stream holds \"orders.a\"")
		w.reject(t, 1, delaybridge.Header{Name: "Bridge-Delay", Value: []byte("5")}, delaybridge.Header{Name: "Bridge-Target", Value: []byte("nats://orders.a")})
	}
	for _, line := range lines {
		code, out, errOut := worlds[0].command(t, line.stdin, line.args...)
		apiCode, apiOut, apiErr := worlds[1].command(t, line.stdin, append([]string{"--api", worlds[1].url}, line.args...)...)
		if code != apiCode || steady(out) != steady(apiOut) || steady(errOut) != steady(apiErr) {
			t.Errorf("bridge %.100q:\n on Redis %d %s%s\n by API   %d %s%s", line.args, code, out, errOut, apiCode, apiOut, apiErr)
		}
	}
	// What was stored is the same, too, to the byte.
	for _, id := range []string{"far", "bytes", "tombstone", "envelope"} {
		var views [2]map[string]any
		for i, w := range worlds {
			a := w.ask(t, "GET", pathOf("messages", id)+"?payload=true", "")
			if err := json.Unmarshal([]byte(a.body), &views[i]); err != nil {
				t.Fatal(err)
			}
			for _, name := range []string{"due", "next_try", "scheduled_at", "source"} {
				delete(views[i], name)
			}
		}
		if fmt.Sprint(views[0]) != fmt.Sprint(views[1]) || views[0]["state"] != "pending" {
			t.Errorf("%s is %v on Redis and %v by the API", id, views[0], views[1])
		}
	}
}

// TestCommandsSayWhatIsWrongWithTheAPI has a row for each way not to reach it.
func TestCommandsSayWhatIsWrongWithTheAPI(t *testing.T) {
	w := newAPIWorld(t, func(s *Settings) { s.API.Token = apiTestToken })
	wrongToken := &apiWorld{redis: w.redis, settings: defaultSettings(), url: w.url}
	wrongToken.settings.API.Token = "another"
	noToken := &apiWorld{redis: w.redis, settings: defaultSettings(), url: w.url}
	for _, row := range []struct {
		about string
		w     *apiWorld
		args  []string
		code  int
		says  string
	}{
		{"the right token", w, []string{"--api", w.url, "stats"}, 0, ""},
		{"behind the command", w, []string{"dead", "list", "--api", w.url + "/"}, 0, ""},
		{"another token", wrongToken, []string{"--api", w.url, "stats"}, 1, "BRIDGE_API_TOKEN"},
		{"no token", noToken, []string{"--api", w.url, "get", "x"}, 1, "BRIDGE_API_TOKEN"},
		{"nobody there", w, []string{"--api", "http://127.0.0.1:1", "stats"}, 1, "api at http://127.0.0.1:1: "},
		{"an empty URL, which must not mean Redis", w, []string{"--api", "", "dead", "purge", "--all", "--yes"}, 2, "--api: takes the URL of an API"},
		{"an empty URL behind the command", w, []string{"stats", "--api="}, 2, "--api: takes the URL of an API"},
		{"no URL", w, []string{"--api", "127.0.0.1:8080", "stats"}, 2, "--api: takes the URL of an API"},
		{"another scheme", w, []string{"--api", "redis://127.0.0.1:8080", "stats"}, 2, "--api: takes the URL of an API"},
		{"a token in the URL", w, []string{"--api", "http://user:pass@127.0.0.1:8080", "stats"}, 2, "BRIDGE_API_TOKEN"},
		{"a path that is not the API's", w, []string{"--api", w.url + "/other", "stats"}, 1, "is that the API of a bridge?"},
		{"a command that has no use for it", w, []string{"--api", w.url, "config"}, 2, "takes no --api"},
		{"serve has no use for it", w, []string{"serve", "--api", w.url}, 2, "takes no --api"},
	} {
		t.Run(row.about, func(t *testing.T) {
			code, _, errOut := row.w.command(t, "", row.args...)
			if code != row.code || !strings.Contains(errOut, row.says) || strings.Contains(errOut, apiTestToken) || strings.Contains(errOut, "pass@") {
				t.Errorf("code %d, want %d; stderr %q, want %q in it", code, row.code, errOut, row.says)
			}
			if code != 0 && (strings.Count(errOut, "\n") != 1 || !strings.HasPrefix(errOut, "bridge: ")) {
				t.Errorf("stderr is not one line: %q", errOut)
			}
		})
	}
}
