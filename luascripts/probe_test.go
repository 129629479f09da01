package luascripts_test

import (
	"context"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"delaybridge/luascripts"
	"delaybridge/test/servers"
)

// TestProbe has Redis answer PING all the time.
func TestProbe(t *testing.T) {
	ctx := context.Background()
	r := servers.NewRedis(t)
	admin := r.Client(t)
	client, err := luascripts.Connect(r.URL, luascripts.ModeSingle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	q, err := luascripts.Open(ctx, client, luascripts.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	do := func(args ...any) func(*redis.Client) error {
		return func(c *redis.Client) error { return c.Do(ctx, args...).Err() }
	}
	nothing := func(*redis.Client) error { return nil }
	for _, row := range []struct {
		sentence   string
		begin, end func(*redis.Client) error
		want       string
	}{
		{"all is well", nothing, nothing, ""},
		{"a script cache that was emptied is filled again", do("SCRIPT", "FLUSH"), nothing, ""},
		{"a full Redis still runs what empties it", do("CONFIG", "SET", "maxmemory", "1"), do("CONFIG", "SET", "maxmemory", "0"), ""},
		{"a replica writes nothing", do("REPLICAOF", "127.0.0.1", "1"), do("REPLICAOF", "NO", "ONE"), "READONLY"},
		{"scripts may be denied", do("ACL", "SETUSER", "default", "-@scripting"), do("ACL", "SETUSER", "default", "+@all"), "NOPERM"},
		{"what scripts do may be denied", do("ACL", "SETUSER", "default", "-hdel"), do("ACL", "SETUSER", "default", "+@all"), "probe: "},
		{"a shard's key may be another type", do("SET", "{bridge:3}:tries", "x"), do("DEL", "{bridge:3}:tries"), "WRONGTYPE"},
	} {
		if err := row.begin(admin); err != nil {
			t.Fatalf("%s: %v", row.sentence, err)
		}
		if err := admin.Ping(ctx).Err(); err != nil {
			t.Errorf("%s: PING: %v", row.sentence, err)
		}
		err := q.Probe(ctx)
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("%s: %v, want %q", row.sentence, err, row.want)
		}
		if err := row.end(admin); err != nil {
			t.Fatalf("%s: %v", row.sentence, err)
		}
	}
	if keys := admin.Keys(ctx, "*").Val(); len(keys) != 1 {
		t.Errorf("it left keys: %v", keys)
	}
}
