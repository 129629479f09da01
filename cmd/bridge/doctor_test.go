package main

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"delaybridge"
	"delaybridge/luascripts"
	"delaybridge/test/servers"
)

// doctorLimit is how long a check of the tests may take.
const doctorLimit = 5 * time.Second

// expected is a finding that a row waits for.
type expected struct {
	part, check string
	level       level
	text, do    string // parts of them
}

func (e expected) matches(f finding) bool {
	return f.Part == e.part && f.Check == e.check && f.Level == e.level && strings.Contains(f.Text, e.text) && strings.Contains(f.Do, e.do)
}

// mustFind fails unless all of want are among the findings, and no problem or
// warning of those parts is among them that nobody waits for.
func mustFind(t *testing.T, v doctorView, want ...expected) {
	t.Helper()
	for _, w := range want {
		if !slices.ContainsFunc(v.Items, w.matches) {
			t.Errorf("no %+v", w)
		}
	}
	for _, f := range v.Items {
		if f.Level == levelOK || f.Level == levelNote {
			continue
		}
		if f.Do == "" {
			t.Errorf("nothing is said to be done about %+v", f)
		}
		if !slices.ContainsFunc(want, func(w expected) bool { return w.part == f.Part && w.check == f.Check && w.level == f.Level }) {
			t.Errorf("unexpected: %+v", f)
		}
	}
	if t.Failed() {
		var b bytes.Buffer
		_ = v.print(&b, false)
		t.Log("\n" + b.String())
	}
}

// redisSettings are the settings of a process that has that Redis only.
func redisSettings(r *servers.Redis) *Settings {
	s := defaultSettings()
	s.Redis.URL = address(r.URL)
	return s
}

// ofParts are the findings of some parts.
func ofParts(v doctorView, parts ...string) doctorView {
	var some doctorView
	for _, f := range v.Items {
		if slices.Contains(parts, f.Part) {
			some.Items = append(some.Items, f)
		}
	}
	return some
}

// openedQueue is the queue of those settings, as a running bridge leaves it.
func openedQueue(t *testing.T, s *Settings) *luascripts.Queue {
	t.Helper()
	client, err := luascripts.Connect(string(s.Redis.URL), string(s.Redis.Mode))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	q, err := luascripts.Open(t.Context(), client, s.queueConfig())
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// stored puts a message into the queue.
func stored(t *testing.T, q *luascripts.Queue, op delaybridge.Op, id, target string, due time.Time) {
	t.Helper()
	to, err := delaybridge.ParseTarget(target)
	if err != nil {
		t.Fatal(err)
	}
	r := delaybridge.Request{Op: op, Message: delaybridge.Message{
		ID: id, Position: delaybridge.Position{Source: "nats:S:" + id, Offset: 1}, Target: to, Scheduled: due, Due: due, Payload: []byte("p"),
	}}
	if op == delaybridge.OpReject {
		r.Error = "refused"
	}
	if err := q.Store(t.Context(), []delaybridge.Request{r})[0].Err; err != nil {
		t.Fatal(err)
	}
}

func TestDoctorLooksAtRedis(t *testing.T) {
	t.Parallel()
	do := func(t *testing.T, c *redis.Client, args ...any) {
		t.Helper()
		if err := c.Do(context.Background(), args...).Err(); err != nil {
			t.Fatalf("%v: %v", args, err)
		}
	}
	config := func(pairs ...string) func(*testing.T, *servers.Redis, *Settings) {
		return func(t *testing.T, r *servers.Redis, _ *Settings) {
			for i := 0; i < len(pairs); i += 2 {
				do(t, r.Client(t), "CONFIG", "SET", pairs[i], pairs[i+1])
			}
		}
	}
	user := func(rules ...any) func(*testing.T, *servers.Redis, *Settings) {
		return func(t *testing.T, r *servers.Redis, s *Settings) {
			do(t, r.Client(t), append([]any{"ACL", "SETUSER", "bridge", "on", ">hush-hush"}, rules...)...)
			s.Redis.URL = address(strings.Replace(r.URL, "://", "://bridge:hush-hush@", 1))
		}
	}
	good := []string{"--appendonly", "yes", "--maxmemory", "1gb"}
	for _, row := range []struct {
		sentence string
		args     []string
		breakIt  func(*testing.T, *servers.Redis, *Settings)
		want     []expected
	}{
		{"a Redis as it should be has nothing wrong", good, nil,
			[]expected{
				{partRedis, "eviction", levelOK, "noeviction", ""}, {partRedis, "persistence", levelOK, "appendonly is on", ""},
				{partRedis, "memory", levelOK, "of 1 GiB maxmemory", ""}, {partRedis, "permissions", levelOK, "", ""},
				{partRedis, "scripts", levelOK, "", ""}, {partRedis, "shards", levelNote, "no bridge has used", ""},
				{partRedis, "clock", levelOK, "", ""}, {partQueue, "dead", levelOK, "", ""},
			}},
		{"one that may evict loses messages", append(good, "--maxmemory-policy", "allkeys-lru"), nil,
			[]expected{{partRedis, "eviction", levelProblem, "allkeys-lru", "redis-cli CONFIG SET maxmemory-policy noeviction"}}},
		{"one that would evict, had it a limit, is warned of", []string{"--appendonly", "yes", "--maxmemory-policy", "allkeys-lru"}, nil,
			[]expected{{partRedis, "eviction", levelWarning, "there is none now", "noeviction"}, {partRedis, "memory", levelNote, "no maxmemory", "CONFIG SET maxmemory"}}},
		{"one that evicts only what expires is warned of", append(good, "--maxmemory-policy", "volatile-ttl"), nil,
			[]expected{{partRedis, "eviction", levelWarning, "volatile-ttl", "noeviction"}}},
		{"one that keeps nothing on disk loses all at a restart", []string{"--maxmemory", "1gb"}, nil,
			[]expected{{partRedis, "persistence", levelProblem, "keeps nothing on disk", "CONFIG SET appendonly yes"}}},
		{"snapshots alone lose what came since", []string{"--maxmemory", "1gb", "--save", "3600 1"}, nil,
			[]expected{{partRedis, "persistence", levelWarning, "save 3600 1", "appendonly yes"}}},
		{"an append-only file that is not synced is warned of", append(good, "--appendfsync", "no"), nil,
			[]expected{{partRedis, "persistence", levelWarning, "appendfsync no", "appendfsync everysec"}}},
		{"a snapshot that failed stops all writes", append(good, "--save", "3600 1", "--enable-protected-configs", "yes"),
			func(t *testing.T, r *servers.Redis, _ *Settings) {
				c := r.Client(t)
				do(t, c, "CONFIG", "SET", "dir", "/proc")
				_ = c.BgSave(t.Context()).Err()
				if !servers.Eventually(func() bool {
					return strings.Contains(c.Info(t.Context(), "persistence").Val(), "rdb_last_bgsave_status:err")
				}) {
					t.Fatal("the snapshot did not fail")
				}
			},
			[]expected{{partRedis, "disk", levelProblem, "refuses all writes", "BGSAVE"}, {partRedis, "scripts", levelProblem, "MISCONF", "disk"}}},
		{"a Redis that is nearly full holds ingest back", append(good, "--maxclients", "100"),
			func(t *testing.T, r *servers.Redis, _ *Settings) {
				c := r.Client(t)
				used := infoFields(c.Info(t.Context(), "memory").Val())["used_memory"]
				do(t, c, "CONFIG", "SET", "maxmemory", used)
			},
			[]expected{{partRedis, "memory", levelProblem, "over 90%", "maxmemory"}}},
		{"a replica takes no writes", good,
			func(t *testing.T, r *servers.Redis, _ *Settings) { do(t, r.Client(t), "REPLICAOF", "127.0.0.1", "1") },
			[]expected{{partRedis, "role", levelProblem, "127.0.0.1:1", "BRIDGE_REDIS_MODE=sentinel"}, {partRedis, "scripts", levelProblem, "READONLY", "master"}}},
		{"writes that wait for a replica which is not there never end", good,
			func(_ *testing.T, _ *servers.Redis, s *Settings) { s.Redis.WaitReplicas = 1 },
			[]expected{{partRedis, "replicas", levelProblem, "BRIDGE_REDIS_WAIT_REPLICAS is 1", "lower BRIDGE_REDIS_WAIT_REPLICAS"}}},
		{"writes that Redis itself refuses without replicas are told", good, config("min-replicas-to-write", "1"),
			[]expected{{partRedis, "replicas", levelProblem, "min-replicas-to-write is 1", "min-replicas-to-write 0"}, {partRedis, "scripts", levelProblem, "NOREPLICAS", "replicas"}}},
		{"payloads that Redis cannot take are told", good,
			func(t *testing.T, r *servers.Redis, s *Settings) {
				s.MaxPayload = 4 << 20
				do(t, r.Client(t), "CONFIG", "SET", "proto-max-bulk-len", "1mb")
			},
			[]expected{{partRedis, "buffers", levelProblem, "proto-max-bulk-len is 1 MiB", "BRIDGE_MAX_PAYLOAD"}}},
		{"replies that Redis would cut off are told", good, config("client-output-buffer-limit", "normal 2mb 0 0"),
			[]expected{{partRedis, "buffers", levelWarning, "2 MiB", "normal 0 0 0"}}},
		{"another number of shards starts nothing, and is not counted", good,
			func(t *testing.T, r *servers.Redis, s *Settings) {
				other := redisSettings(r)
				other.Shards = 3
				openedQueue(t, other)
			},
			[]expected{{partRedis, "shards", levelProblem, "Redis knows 3, and BRIDGE_SHARDS is 8", "BRIDGE_SHARDS=3"}, {partQueue, "queue", levelNote, "not looked at", ""}}},
		{"a user that lacks a command is told of it", good, user("~*", "&*", "+@all", "-zadd", "-publish"),
			[]expected{{partRedis, "permissions", levelProblem, "may not do", "+zadd"}}},
		{"a user that lacks keys is told of them", good, user("~other:*", "&*", "+@all"),
			[]expected{
				{partRedis, "permissions", levelProblem, "{bridge:0}", "~{bridge:*}:*"}, {partRedis, "shards", levelProblem, "", ""},
				{partQueue, "stats", levelProblem, "", ""},
			}},
		{"a user that may run no script is told of all that it needs", good, user("~*", "&*", "+@all", "-@scripting"),
			[]expected{{partRedis, "permissions", levelProblem, "may not run scripts", "+evalsha"}}},
		{"a user that may not ask for the settings of Redis is no trouble", good, user("~*", "&*", "+@all", "-config"),
			[]expected{{partRedis, "persistence", levelOK, "", ""}}},
		{"a wrong password is told, and not shown", good,
			func(_ *testing.T, r *servers.Redis, s *Settings) {
				s.Redis.URL = address(strings.Replace(r.URL, "://", "://bridge:hush-hush@", 1))
			},
			[]expected{{partRedis, "reachable", levelProblem, "refuses the user or the password", "BRIDGE_REDIS_URL"}, {partQueue, "queue", levelNote, "", ""}}},
		{"a Redis that is gone is told", good, func(_ *testing.T, r *servers.Redis, _ *Settings) { r.Kill() },
			[]expected{{partRedis, "reachable", levelProblem, "does not answer", "start Redis"}, {partQueue, "queue", levelNote, "", ""}}},
		{"a cluster that misses slots is told", append(good, "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(servers.FreePort(t)), servers.RedisTCP),
			func(t *testing.T, r *servers.Redis, s *Settings) {
				do(t, r.Client(t), "CLUSTER", "ADDSLOTSRANGE", 0, 8000)
				s.Redis.Mode = luascripts.ModeCluster
			},
			[]expected{
				{partRedis, "cluster", levelProblem, "8001 of 16384", "redis-cli --cluster check"}, {partRedis, "scripts", levelProblem, "", "cluster"},
				{partRedis, "permissions", levelWarning, "", ""}, {partRedis, "shards", levelProblem, "", ""},
				{partRedis, "replicas", levelWarning, "no replica follows", ""}, {partQueue, "stats", levelProblem, "", ""},
			}},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			t.Parallel()
			r := servers.NewRedis(t, row.args...)
			s := redisSettings(r)
			if row.breakIt != nil {
				row.breakIt(t, r, s)
			}
			v := examine(t.Context(), s, nil, doctorLimit)
			mustFind(t, ofParts(v, partRedis, partQueue), row.want...)
			if text, _ := json.Marshal(v); strings.Contains(string(text), "hush-hush") {
				t.Errorf("it shows the password: %s", text)
			}
		})
	}
}

func TestDoctorLooksAtTheQueue(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		sentence string
		fill     func(*testing.T, *luascripts.Queue, *Settings)
		want     []expected
	}{
		{"messages that nobody delivers are a problem", func(t *testing.T, q *luascripts.Queue, s *Settings) {
			stored(t, q, delaybridge.OpSchedule, "late", "nats://a", time.Now().Add(-time.Hour))
		}, []expected{{partQueue, "overdue", levelProblem, "1 messages for nats", "role scheduler"}}},
		{"messages for a broker that the settings lack are warned of", func(t *testing.T, q *luascripts.Queue, s *Settings) {
			stored(t, q, delaybridge.OpSchedule, "k", "kafka://a", time.Now().Add(2*time.Hour))
		}, []expected{{partQueue, "pending", levelWarning, "for kafka", "BRIDGE_KAFKA_BROKERS"}, {partQueue, "pending", levelOK, "1 are due in over an hour", ""}}},
		{"dead letters are told by reason", func(t *testing.T, q *luascripts.Queue, s *Settings) {
			stored(t, q, delaybridge.OpReject, "r", "nats://a", time.Now())
		}, []expected{{partQueue, "dead", levelWarning, "1 dead letter, reason rejected", "bridge dead list --reason rejected"}}},
		{"messages that fail are told, with what one of them says", func(t *testing.T, q *luascripts.Queue, s *Settings) {
			stored(t, q, delaybridge.OpSchedule, "f", "nats://nowhere", time.Now().Add(-time.Millisecond))
			for shard := range q.Shards() {
				for _, c := range q.Claim(t.Context(), "nats", []delaybridge.Ask{{Shard: shard, Limit: 1}})[0].Claims {
					if err := q.Retry(t.Context(), []delaybridge.Retry{{Claim: c, After: time.Hour, Error: "no stream holds\x1b the subject"}})[0]; err != nil {
						t.Fatal(err)
					}
				}
			}
		}, []expected{{partQueue, "retries", levelWarning, `1 message to try again after failed attempts or lost leases, such as "f" for nats://nowhere: no stream holds? the subject`, "bridge list"}}},
		{"more than ingest may let in is told", func(t *testing.T, q *luascripts.Queue, s *Settings) {
			s.MaxPending = 1
			for _, id := range []string{"1", "2"} {
				stored(t, q, delaybridge.OpSchedule, id, "nats://a", time.Now().Add(time.Hour))
			}
		}, []expected{{partQueue, "pending", levelWarning, "above BRIDGE_MAX_PENDING", "BRIDGE_MAX_PENDING"}, {partQueue, "pending", levelOK, "2 wait", ""}}},
		{"leases that nobody takes over are a problem", func(t *testing.T, _ *luascripts.Queue, s *Settings) {
			short := *s
			short.Lease = duration(time.Millisecond)
			q := openedQueue(t, &short)
			s.PollMax = -duration(time.Second) // so that none of it is waited for
			stored(t, q, delaybridge.OpSchedule, "l", "nats://a", time.Now().Add(-time.Millisecond))
			for shard := range q.Shards() {
				q.Claim(t.Context(), "nats", []delaybridge.Ask{{Shard: shard, Limit: 1}})
			}
			if !servers.Eventually(func() bool {
				l, err := q.Leases(t.Context())
				return err == nil && l["nats"].Oldest > 10*time.Millisecond
			}) {
				t.Fatal("no lease has run out")
			}
		}, []expected{{partQueue, "leases", levelProblem, "1 messages for nats", "role scheduler"}}},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			t.Parallel()
			s := redisSettings(servers.NewRedis(t, "--appendonly", "yes", "--maxmemory", "1gb"))
			s.NATS.URL = "nats://127.0.0.1:1"
			row.fill(t, openedQueue(t, s), s)
			mustFind(t, ofParts(examine(t.Context(), s, nil, doctorLimit), partRedis, partQueue), row.want...)
		})
	}
}

func TestDoctorLooksAtSentinels(t *testing.T) {
	t.Parallel()
	group := servers.NewRedisSentinel(t)
	s := defaultSettings()
	s.Redis.URL, s.Redis.Mode = address(group.URL), luascripts.ModeSentinel
	v := ofParts(examine(t.Context(), s, nil, doctorLimit), partRedis)
	for _, w := range []expected{
		{partRedis, "sentinel", levelOK, "OK 3 usable Sentinels", ""},
		{partRedis, "replicas", levelNote, "1 replicas follow, and writes wait for none", "BRIDGE_REDIS_WAIT_REPLICAS=1"},
	} {
		if !slices.ContainsFunc(v.Items, w.matches) {
			t.Errorf("no %+v in %+v", w, v.Items)
		}
	}
	s.Redis.URL = address(strings.Replace(group.URL, "master_name=bridge", "master_name=other", 1))
	v = ofParts(examine(t.Context(), s, nil, doctorLimit), partRedis)
	want := expected{partRedis, "sentinel", levelProblem, "does not know a master called other", "master_name"}
	if !slices.ContainsFunc(v.Items, want.matches) {
		t.Errorf("no %+v in %+v", want, v.Items)
	}
}

// TestDoctorLooksAtAnImitation has the Redis of bridge dev, which knows less.
func TestDoctorLooksAtAnImitation(t *testing.T) {
	t.Parallel()
	s := defaultSettings()
	s.Redis.URL = address("redis://" + miniredis.RunT(t).Addr())
	openedQueue(t, s)
	mustFind(t, ofParts(examine(t.Context(), s, nil, doctorLimit), partRedis, partQueue),
		expected{partRedis, "version", levelNote, "an imitation", ""},
		expected{partRedis, "permissions", levelNote, "does not tell", ""},
		expected{partRedis, "eviction", levelWarning, "", ""},
		expected{partRedis, "persistence", levelWarning, "", ""},
		expected{partRedis, "scripts", levelOK, "", ""},
	)
}

func TestDoctorJudgesClocks(t *testing.T) {
	for _, row := range []struct {
		sentence   string
		skew, half time.Duration
		want       level
	}{
		{"a clock that agrees is ok", 3 * time.Millisecond, time.Millisecond, levelOK},
		{"one within half of what is tolerated is ok", -2 * time.Second, 0, levelOK},
		{"one near the limit is warned of", 4 * time.Second, 0, levelWarning},
		{"one beyond it is a problem, behind as well as ahead", -6 * time.Second, 0, levelProblem},
		{"what the way of the answer may explain is not held against it", 6 * time.Second, 5 * time.Second, levelOK},
	} {
		r := &report{part: partRedis}
		r.checkClock("Redis", row.skew, row.half, 5*time.Second)
		if got := r.all()[0].Level; got != row.want {
			t.Errorf("%s: %s", row.sentence, got)
		}
	}
}

// TestDoctorIsBounded has servers that take connections and say nothing.
func TestDoctorIsBounded(t *testing.T) {
	t.Parallel()
	silent := silentServer(t)
	s := defaultSettings()
	s.Redis.URL, s.NATS.URL, s.Kafka.Brokers = address("redis://"+silent), address("nats://"+silent), list{silent}
	began := time.Now()
	v := examine(t.Context(), s, nil, 300*time.Millisecond)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
	for _, part := range []string{partRedis, partNATS, partKafka} {
		if !slices.ContainsFunc(v.Items, func(f finding) bool { return f.Part == part && f.Level == levelProblem }) {
			t.Errorf("%s: no problem", part)
		}
	}
}

func TestDoctorCommand(t *testing.T) {
	clearSettings(t)
	r := servers.NewRedis(t, "--appendonly", "yes", "--maxmemory", "1gb")
	n := servers.NewNATS(t)
	t.Setenv("BRIDGE_REDIS_URL", r.URL)
	t.Setenv("BRIDGE_NATS_URL", n.URL)
	t.Setenv("BRIDGE_MAX_PAYLOAD", "512KiB")
	doctor := func(args ...string) (int, string) {
		t.Helper()
		var out, errOut bytes.Buffer
		code := execute(t.Context(), append([]string{"doctor"}, args...), strings.NewReader(""), &out, &errOut)
		if strings.Contains(out.String(), "\x1b") {
			t.Error("colour without a terminal")
		}
		return code, out.String() + errOut.String()
	}
	if code, out := doctor(); code != exitOK || !strings.Contains(out, "0 problems, 0 warnings.") {
		t.Errorf("code %d: %s", code, out)
	}
	t.Setenv("BRIDGE_NATS_INGEST_STREEM", "x")
	if code, out := doctor(); code != exitOK || !strings.Contains(out, "BRIDGE_NATS_INGEST_STREAM") {
		t.Errorf("a warning: code %d: %s", code, out)
	}
	if code, _ := doctor("--strict"); code != exitFailed {
		t.Errorf("a warning, strictly: code %d", code)
	}
	r.Kill()
	code, out := doctor("-o", "json")
	var v doctorView
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != exitFailed || v.Problems != 1 || v.Warnings != 1 {
		t.Errorf("no Redis: code %d, error %v: %s", code, err, out)
	}
	if !slices.ContainsFunc(v.Items, expected{partNATS, "jetstream", levelOK, "", ""}.matches) {
		t.Errorf("a Redis that is away hides NATS: %s", out)
	}
	t.Setenv("BRIDGE_SHARDS", "none")
	if code, _ := doctor(); code != exitUsage {
		t.Errorf("a wrong setting: code %d", code)
	}
}

func TestDoctorPrintsColumns(t *testing.T) {
	v := doctorView{Items: []finding{
		{Part: "redis", Check: "eviction", Level: levelProblem, Text: "it evicts", Do: "set noeviction"},
		{Part: "nats", Check: "ok", Level: levelOK, Text: "fine"},
	}, Problems: 1}
	for _, row := range []struct {
		colour bool
		want   string
	}{
		{false, "problem  redis  eviction  it evicts; do: set noeviction\nok       nats   ok        fine\n\n1 problem, 0 warnings.\n"},
		{true, "\x1b[31;1mproblem  \x1b[0mredis  eviction  it evicts; do: set noeviction\n\x1b[32mok       \x1b[0mnats   ok        fine\n\n1 problem, 0 warnings.\n"},
	} {
		var b bytes.Buffer
		if err := v.print(&b, row.colour); err != nil || b.String() != row.want {
			t.Errorf("colour %v: %q", row.colour, b.String())
		}
	}
}

func TestDoctorShowsNoSecrets(t *testing.T) {
	s := defaultSettings()
	s.Redis.URL, s.NATS.URL = "redis://u:redis-secret@h/0", "nats://nats-token@h,nats://u:nats-secret@g"
	s.Kafka.SASL.Password, s.NATS.Nkey = "kafka-secret", "SUANKEYSEED"
	r := &report{part: partKafka, secrets: s.secrets()}
	for _, secret := range []string{"redis-secret", "nats-token", "nats-secret", "kafka-secret", "SUANKEYSEED"} {
		r.problem("x", "said "+secret+" aloud", "set "+secret)
	}
	for _, f := range r.all() {
		if f.Text != "said "+masked+" aloud" || f.Do != "set "+masked {
			t.Errorf("%+v", f)
		}
	}
}
