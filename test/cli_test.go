package test

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"delaybridge/test/servers"
)

// TestExitCodes holds every command to 0 ok, 1 failed, 2 wrong usage, and
// every failure to one line on stderr.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	redis := servers.NewRedis(t)
	env := Env{"REDIS_URL": redis.URL}
	nowhere := Env{"REDIS_URL": "redis://127.0.0.1:1/0"}
	for _, row := range []struct {
		about string
		env   Env
		args  string // blanks divide; ~ stands for a blank
		code  int
		says  string // part of stderr
	}{
		{"no command prints help", env, "", 0, ""},
		{"help", env, "schedule --help", 0, ""},
		{"version", env, "version", 0, ""},
		{"version as a flag", env, "--version", 0, ""},
		{"a misspelt setting", Env{"REDIS_URL": env["REDIS_URL"], "MAX_DELAI": "1h"}, "list", 0, "warning: BRIDGE_MAX_DELAI is set, but nothing reads it; the nearest setting is BRIDGE_MAX_DELAY"},
		{"config", env, "config", 0, ""},
		{"an empty list", env, "list", 0, ""},
		{"empty stats", env, "stats", 0, ""},
		{"no dead letters", env, "dead list", 0, ""},
		{"unknown command", env, "shedule", 2, `unknown command "shedule"`},
		{"unknown command of a group", env, "dead bury", 2, `unknown command "bury"`},
		{"unknown flag", env, "list --fast", 2, "unknown flag"},
		{"unknown format", env, "list -o yaml", 2, "text or json"},
		{"missing argument", env, "get", 2, `takes one id, not 0 (see "bridge get --help")`},
		{"too many arguments", env, "serve now", 2, `takes no argument such as "now" (see "bridge serve --help")`},
		{"two payloads", env, "schedule --target nats://a --delay 5s x y", 2, "takes one payload, not 2"},
		{"no target", env, "schedule --delay 5s x", 2, "--target: is required\n"},
		{"no delay", env, "schedule --target nats://a x", 2, "--delay: this or --at is required\n"},
		{"a delay without unit", env, "schedule --target nats://a --delay 5 x", 2, "--delay"},
		{"a negative delay", env, "schedule --target nats://a --delay=-5s x", 2, "--delay"},
		{"a delay and a time", env, "schedule --target nats://a --delay 5s --at 2030-01-01T00:00:00Z x", 2, "--at"},
		{"a time without a zone", env, "schedule --target nats://a --at 2030-01-01T00:00:00 x", 2, "--at"},
		{"a target of ours", env, "schedule --target nats://bridge.schedule --delay 5s x", 2, "own sources"},
		{"a bad header", env, "schedule --target nats://a --delay 5s --header nonsense x", 2, "NAME=VALUE"},
		{"an unknown sink", env, "list --sink mqtt", 2, "--sink"},
		{"a bad limit", env, "list --limit 0", 2, "--limit"},
		{"a bad cursor", env, "list --after ???", 2, "--after"},
		{"a bad reason", env, "dead list --reason bored", 2, "--reason"},
		{"a bad port", env, "dev --nats-port 70000", 2, "--nats-port"},
		{"a wrong setting", env.With(Env{"SHARDS": "none"}), "list", 2, `BRIDGE_SHARDS="none": takes a whole number`},
		{"a wrong setting of serve", env.With(Env{"LEASE": "1s"}), "serve", 2, "BRIDGE_LEASE"},
		{"serve without a broker", env, "serve", 2, "BRIDGE_NATS_URL"},
		{"another number of shards", env.With(Env{"SHARDS": "3"}), "list", 2, "BRIDGE_SHARDS"},
		{"an unknown id", env, "get nobody", 1, "nothing is known of nobody"},
		{"cancel of an unknown id", env, "cancel nobody", 1, "nothing is known of nobody"},
		{"an unknown dead letter", env, "dead show nobody", 1, "no dead letter nobody"},
		{"replay of an unknown dead letter", env, "dead replay nobody", 1, "no dead letter nobody"},
		{"replay of nothing in particular", env, "dead replay", 2, "--all"},
		{"wrong usage without Redis", nowhere, "list --limit 0", 2, "--limit"},
		{"a wrong filter without Redis", nowhere, "dead list --reason bored", 2, "--reason"},
		{"nothing picked without Redis", nowhere, "dead purge --yes", 2, "--all"},
		{"no target without Redis", nowhere, "schedule --delay 5s x", 2, "--target"},
		{"a port of a broker that is not there", env, "dev --kafka-port 19092", 2, "--kafka"},
		{"no Redis", nowhere, "list", 1, "redis at redis://127.0.0.1:1/0 (BRIDGE_REDIS_URL)"},
	} {
		t.Run(row.about, func(t *testing.T) {
			args := strings.Fields(row.args)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], "~", " ")
			}
			r := Run(t, row.env, "", args...)
			if r.Code != row.code || !strings.Contains(r.Stderr, row.says) {
				t.Errorf("bridge %s: code %d, want %d; stderr %q, want %q in it", row.args, r.Code, row.code, r.Stderr, row.says)
			}
			if r.Code != 0 && (strings.Count(r.Stderr, "\n") != 1 || !strings.HasPrefix(r.Stderr, "bridge: ")) {
				t.Errorf("stderr is not one line: %q", r.Stderr)
			}
		})
	}
}

// TestCommandsTellTheSameStory follows messages through the commands' JSON.
func TestCommandsTellTheSameStory(t *testing.T) {
	t.Parallel()
	redis := servers.NewRedis(t)
	env := Env{"REDIS_URL": redis.URL}
	ok := func(stdin string, args ...string) map[string]any {
		t.Helper()
		r := Run(t, env, stdin, append(args, "-o", "json")...)
		if r.Code != 0 {
			t.Fatalf("bridge %v: %+v", args, r)
		}
		return decode(t, r.Stdout)
	}

	before := time.Now()
	accepted := ok("", "schedule", "--target", "nats://orders.timeout", "--delay", "1h", "--id", "one", "payload")
	at, err := time.Parse(time.RFC3339, accepted["deliver_at"].(string))
	if err != nil || at.Before(before.Add(time.Hour)) || at.After(time.Now().Add(time.Hour+time.Second)) || accepted["id"] != "one" {
		t.Errorf("schedule: %v", accepted)
	}
	if !strings.HasSuffix(accepted["deliver_at"].(string), "Z") || len(accepted["deliver_at"].(string)) != len("2006-01-02T15:04:05.000Z") {
		t.Errorf("deliver_at is %s", accepted["deliver_at"])
	}
	if accepted["outcome"] != "scheduled" {
		t.Errorf("the first of its id: %v", accepted)
	}
	again := ok("from stdin", "schedule", "--target", "nats://orders.timeout", "--delay", "30m", "--id", "one", "-")
	if again["outcome"] != "replaced" {
		t.Errorf("the second of its id: %v", again)
	}
	got := ok("", "get", "one")
	if got["state"] != "pending" || got["target"] != "nats://orders.timeout" || got["due"] != again["deliver_at"] || got["attempts"] != 0.0 || got["payload_bytes"] != 10.0 {
		t.Errorf("get: %v", got)
	}
	if got := ok("", "get", "one", "--payload"); got["state"] != "pending" || got["payload"].(map[string]any)["text"] != "from stdin" || got["key"] != nil {
		t.Errorf("get --payload: %v", got)
	}
	tomorrow := time.Now().Add(24 * time.Hour).Truncate(time.Millisecond)
	other := ok("", "schedule", "--target", "kafka://orders", "--at", tomorrow.Format(time.RFC3339Nano), "--id", "two", "--key", "k", "-H", "a=1", "-H", "a=2")
	if other["deliver_at"] != tomorrow.UTC().Format("2006-01-02T15:04:05.000Z") {
		t.Errorf("schedule at %v: %v", tomorrow, other)
	}
}

// TestListPages follows the cursor.
func TestListPages(t *testing.T) {
	t.Parallel()
	env := Env{"REDIS_URL": servers.NewRedis(t).URL}
	for _, id := range []string{"c", "a", "b", "e", "d"} {
		delay := time.Duration(id[0]-'a'+1) * time.Hour
		if r := Run(t, env, "", "schedule", "--target", "nats://orders.timeout", "--delay", delay.String(), "--id", id, "x"); r.Code != 0 {
			t.Fatal(r)
		}
	}
	var ids []string
	after := ""
	for range 5 {
		v := decode(t, Run(t, env, "", "list", "--limit", "2", "--after", after, "-o", "json").Stdout)
		for _, item := range v["items"].([]any) {
			ids = append(ids, item.(map[string]any)["id"].(string))
		}
		after, _ = v["next"].(string)
		if after == "" {
			break
		}
	}
	if got := strings.Join(ids, ""); got != "abcde" {
		t.Errorf("listed %q", got)
	}
	stats := decode(t, Run(t, env, "", "stats", "-o", "json").Stdout)
	lane := stats["lanes"].(map[string]any)["nats"].(map[string]any)
	if lane["pending"] != 5.0 || lane["far"] != 4.0 && lane["far"] != 5.0 || lane["overdue"] != 0.0 {
		t.Errorf("stats: %v", lane)
	}
	if _, ok := stats["dead"].(map[string]any)["rejected"]; !ok {
		t.Errorf("stats: %v", stats)
	}
}

// TestCancelAnswers tells taken back, too late and unknown apart.
func TestCancelAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	schedule := func(id, delay string) {
		t.Helper()
		if r := Run(t, w.env, "", "schedule", "--target", "nats://orders.timeout", "--delay", delay, "--id", id, "x"); r.Code != 0 {
			t.Fatal(r)
		}
	}
	schedule("later", "1h")
	if r := Run(t, w.env, "", "cancel", "later", "-o", "json"); r.Code != 0 || decode(t, r.Stdout)["state"] != "cancelled" {
		t.Errorf("%+v", r)
	}
	if r := Run(t, w.env, "", "cancel", "later", "-o", "json"); r.Code != 1 || decode(t, r.Stdout)["state"] != "cancelled" {
		t.Errorf("the second time: %+v", r)
	}
	schedule("kept", "1h")
	if r := Run(t, w.env, "", "schedule", "--target", "nats://orders.timeout", "--delay", "1h", "--id", "kept", "-H", "Bridge-Op=cancel"); r.Code != 2 {
		t.Errorf("a cancel in disguise: %+v", r)
	}
	w.awaitState(t, "kept", "pending")
	w.serve(t, nil)
	schedule("now", "0s")
	w.awaitState(t, "now", "delivered")
	if r := Run(t, w.env, "", "cancel", "now"); r.Code != 1 || !strings.Contains(r.Stderr, "too late to cancel now: it is delivered") {
		t.Errorf("%+v", r)
	}
}

// TestDeadLettersLiveAgain replays and purges what was rejected.
func TestDeadLettersLiveAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, Env{"ALLOWED_TARGETS": "nats://other.>"})
	publish(t, w.js, "bridge.schedule", "one", "Bridge-Target: nats://orders.a", "Bridge-Delay: 0s", "Bridge-Id: one")
	publish(t, w.js, "bridge.schedule", "two", "Bridge-Target: nats://orders.a", "Bridge-Delay: 0", "Bridge-Id: two")
	dead := func() []string {
		var ids []string
		for _, item := range decode(t, Run(t, w.env, "", "dead", "list", "-o", "json").Stdout)["items"].([]any) {
			ids = append(ids, item.(map[string]any)["id"].(string))
		}
		return ids
	}
	if !servers.Eventually(func() bool { return len(dead()) == 2 }) {
		t.Fatalf("dead letters: %v", dead())
	}
	// Who has its place in the stream learns what it is called as a dead letter.
	for _, command := range []string{"show", "replay"} {
		r := Run(t, w.env, "", "dead", command, "nats:BRIDGE_SCHEDULE:2")
		if want := "bridge: there is no dead letter nats:BRIDGE_SCHEDULE:2, but there is rejected:nats:BRIDGE_SCHEDULE:2\n"; r.Code != 1 || r.Stderr != want {
			t.Errorf("dead %s: code %d, stderr %q, want %q", command, r.Code, r.Stderr, want)
		}
	}
	// One wrong id: nothing is done to the others.
	if r := Run(t, w.env, "", "dead", "purge", "rejected:nats:BRIDGE_SCHEDULE:2", "nobody"); r.Code != 1 || len(dead()) != 2 {
		t.Errorf("purge with a wrong id: %+v, left: %v", r, dead())
	}

	// With these settings the target of the first is allowed; the second is
	// still wrong.
	if r := Run(t, w.env, "", "dead", "replay", "--all", "--dry-run", "-o", "json"); r.Code != 1 || decode(t, r.Stdout)["replayed"] != 1.0 {
		t.Errorf("dry run: %+v", r)
	}
	r := Run(t, w.env, "", "dead", "replay", "--reason", "rejected")
	if r.Code != 1 || !strings.Contains(r.Stderr, "rejected:nats:BRIDGE_SCHEDULE:2: still invalid") {
		t.Errorf("replay: %+v", r)
	}
	if a := w.table.Await(t, "one"); a.Payload != "one" {
		t.Errorf("arrived: %+v", a)
	}
	if ids := dead(); len(ids) != 1 || ids[0] != "rejected:nats:BRIDGE_SCHEDULE:2" {
		t.Errorf("dead letters after the replay: %v", ids)
	}

	if r := Run(t, w.env, "n\n", "dead", "purge", "--all"); r.Code != 1 || len(dead()) != 1 {
		t.Errorf("purge without a yes: %+v", r)
	}
	if r := Run(t, w.env, "", "dead", "purge", "--all", "--yes"); r.Code != 0 || len(dead()) != 0 {
		t.Errorf("purge: %+v", r)
	}
}

// TestDevShowsAnArrival is the README's quick start.
func TestDevShowsAnArrival(t *testing.T) {
	t.Parallel()
	p := Start(t, Env{}, "dev", "--redis-port", "0", "--nats-port", "0")
	p.Await(t, "NOTHING SURVIVES EXIT")
	p.Await(t, "arrived on dev.hello")
	p.Await(t, "Ctrl-C stops it.")

	// The printed command works as it stands.
	var command string
	for line := range strings.SplitSeq(p.Output(), "\n") {
		if strings.Contains(line, " schedule --target") {
			command = strings.TrimSpace(line)
		}
	}
	setting, _, _ := strings.Cut(command, " ")
	url, ok := strings.CutPrefix(setting, "BRIDGE_REDIS_URL=")
	if !ok {
		t.Fatalf("the command is %q", command)
	}
	if r := Run(t, Env{"REDIS_URL": url}, "", "schedule", "--target", "nats://orders.timeout", "--delay", "100ms", `{"order":7}`); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	p.Await(t, `arrived on orders.timeout: {"order":7}`)
	p.Signal(syscall.SIGINT)
	if code := p.Exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestDevNamesTheTakenPort runs it twice on one port.
func TestDevNamesTheTakenPort(t *testing.T) {
	t.Parallel()
	nats := servers.NewNATS(t)
	port := nats.URL[strings.LastIndexByte(nats.URL, ':')+1:]
	r := Run(t, Env{}, "", "dev", "--redis-port", "0", "--nats-port", port)
	if r.Code != 1 || r.Stderr != "bridge: port "+port+" is taken; choose another with --nats-port (0 takes any free one)\n" {
		t.Errorf("%+v", r)
	}
}

// TestStatsWatch counts again and again until it is interrupted.
func TestStatsWatch(t *testing.T) {
	t.Parallel()
	env := Env{"REDIS_URL": servers.NewRedis(t).URL}
	p := Start(t, env, "stats", "--watch", "-o", "json")
	if !servers.Eventually(func() bool { return strings.Count(p.Output(), "\n") >= 2 }) {
		t.Fatalf("it said %q", p.Output())
	}
	p.Signal(syscall.SIGINT)
	if code := p.Exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for line := range strings.Lines(p.Output()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %q", line)
		}
	}
}

// TestHostileIDsDoNotSteerTheTerminal shows what an id may hold.
func TestHostileIDsDoNotSteerTheTerminal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, nil)
	// What is refused is shown, too, in an error text.
	publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: \x1b[2J\u009b2J5")
	publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: 1h", "Bridge-Id: rtl\u202eend")
	publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: 0s", "Bridge-Id: last")
	w.table.Await(t, "last")
	for _, args := range []string{"list", "list -o json", "dead list", "dead list -o json", "dead show rejected:nats:BRIDGE_SCHEDULE:1", "dead show rejected:nats:BRIDGE_SCHEDULE:1 -o json", "get \x1b[2J", "cancel \u009b2J"} {
		r := Run(t, w.env, "", strings.Fields(args)...)
		for _, c := range r.Stdout + r.Stderr {
			if c != '\n' && (c < ' ' || c >= 0x7f && c <= 0x9f) || (c == '\u202e' && !strings.Contains(args, "json")) {
				t.Errorf("bridge %q prints %q: %q", args, c, r.Stdout+r.Stderr)
				break
			}
		}
	}
}

// TestJSONIsOneLineOfJSON holds for every command that prints.
func TestJSONIsOneLineOfJSON(t *testing.T) {
	t.Parallel()
	env := Env{"REDIS_URL": servers.NewRedis(t).URL}
	for _, args := range []string{"version", "config", "list", "stats", "dead list", "dead replay --all", "dead purge --all"} {
		r := Run(t, env, "", append(strings.Fields(args), "-o", "json")...)
		if r.Code != 0 || strings.Count(r.Stdout, "\n") != 1 || !json.Valid([]byte(r.Stdout)) {
			t.Errorf("bridge %s: %+v", args, r)
		}
	}
}
