package luascripts_test

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"delaybridge"
	"delaybridge/luascripts"
	"delaybridge/test/servers"
)

// userOf returns a client of a user who may do what the queue needs, but for some
// commands.
func userOf(t *testing.T, r *servers.Redis, q *luascripts.Queue, but ...string) *redis.Client {
	t.Helper()
	p := q.Permissions()
	rules := []any{"ACL", "SETUSER", "queue", "reset", "on", ">secret", "-@all"}
	for _, k := range p.Keys {
		rules = append(rules, "~"+k)
	}
	for _, c := range p.Channels {
		rules = append(rules, "&"+c)
	}
	for _, c := range p.Commands {
		if !slices.Contains(but, c) {
			rules = append(rules, "+"+c)
		}
	}
	admin := r.Client(t)
	if err := admin.Do(context.Background(), rules...).Err(); err != nil {
		t.Fatal(err)
	}
	o := *admin.Options()
	o.Username, o.Password = "queue", "secret"
	c := redis.NewClient(&o)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func TestPermissionsAreEnough(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := servers.NewRedis(t)
	cfg := luascripts.DefaultConfig()
	look, err := luascripts.Inspect(r.Client(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	client := userOf(t, r, look)
	q, err := luascripts.Open(ctx, client, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if denied, err := q.Denied(ctx); err != nil || len(denied) > 0 {
		t.Fatalf("denied %v, error %v", denied, err)
	}
	m := delaybridge.Message{ID: "a", Position: delaybridge.Position{Source: "nats:S", Offset: 1}, Target: delaybridge.Target{Sink: "nats", Name: "x"},
		Scheduled: time.Now(), Due: time.Now().Add(-time.Second), Payload: []byte("p")}
	for _, res := range q.Store(ctx, []delaybridge.Request{{Message: m}}) {
		if res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	claim := func() []delaybridge.Claim {
		var claims []delaybridge.Claim
		for shard := range q.Shards() {
			for _, g := range q.Claim(ctx, "nats", []delaybridge.Ask{{Shard: shard, Limit: 10}}) {
				if g.Err != nil {
					t.Fatal(g.Err)
				}
				claims = append(claims, g.Claims...)
			}
		}
		return claims
	}
	must := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	must(q.Release(ctx, claim())...)
	claims := claim()
	must(q.Retry(ctx, []delaybridge.Retry{{Claim: claims[0]}})...)
	claims = claim()
	must(q.Bury(ctx, []delaybridge.Burial{{Claim: claims[0], Reason: delaybridge.ReasonPermanent, Error: "x", Failed: 1}})...)
	letter, err := q.DeadLetter(ctx, "a")
	must(err, q.Replay(ctx, letter, letter.Message, false))
	must(q.Ack(ctx, claim())...)
	_, err = q.Stats(ctx)
	must(err)
	_, _, err = q.List(ctx, "", 10, "")
	must(err)
	_, err = q.Pressure(ctx)
	must(err)
	_, err = q.Leases(ctx)
	must(err)
	for shard := range q.Shards() {
		_, err = q.Sweep(ctx, shard)
		must(err)
		_, err = q.Repair(ctx, shard)
		must(err)
	}
	must(q.Probe(ctx))
	if log := r.Client(t).Do(ctx, "ACL", "LOG").Val(); len(log.([]any)) > 0 {
		t.Errorf("Redis refused something: %v", log)
	}
}

func TestDeniedNamesWhatIsMissing(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := servers.NewRedis(t)
	look, err := luascripts.Inspect(r.Client(t), luascripts.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	q, err := luascripts.Inspect(userOf(t, r, look, "zadd", "publish"), luascripts.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	denied, err := q.Denied(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"publish bridge:wake", "zadd {bridge:0}:due:nats", "zadd {bridge:7}:dead"} {
		if !slices.Contains(denied, want) {
			t.Errorf("%q is not among %q", want, denied)
		}
	}
	if slices.ContainsFunc(denied, func(s string) bool { return !strings.HasPrefix(s, "zadd ") && !strings.HasPrefix(s, "publish ") }) {
		t.Errorf("too much is denied: %q", denied)
	}
	if n := r.Client(t).DBSize(ctx).Val(); n != 0 {
		t.Errorf("looking has left %d keys", n)
	}
}

// TestPermissionsListEveryCommandOfTheScripts holds the list to the scripts.
func TestPermissionsListEveryCommandOfTheScripts(t *testing.T) {
	look, err := luascripts.Inspect(redis.NewClient(&redis.Options{}), luascripts.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	commands := look.Permissions().Commands
	for name, text := range scriptFiles(t) {
		for _, m := range regexp.MustCompile(`call\(['"]([A-Z]+)['"]`).FindAllStringSubmatch(text, -1) {
			if !slices.Contains(commands, strings.ToLower(m[1])) {
				t.Errorf("%s calls %s, which the permissions do not list", name, m[1])
			}
		}
	}
}

func scriptFiles(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob("*.lua")
	if err != nil || len(names) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	files := map[string]string{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(text)
	}
	return files
}
