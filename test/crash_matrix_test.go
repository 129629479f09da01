package test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"delaybridge/test/servers"
)

// crash is one row of the matrix: where the process dies, and what may be seen
// of it afterwards.
type crash struct {
	about string
	point string
	// most is how many copies of a message may arrive. Of one that arrives more
	// than once, each copy says that it is a later attempt than the one before.
	most int
	// twice says that something certainly arrives more than once.
	twice bool
	// again says that something certainly arrives as a second attempt: its lease
	// was lost.
	again bool
	// dying has messages in each wave that become dead letters, with copies.
	dying bool
	// attempts is after how many they do: 1 unless it is set.
	attempts int
	// apart has another process deliver, which lives on.
	apart bool
}

// Where a source has not been told, it delivers again, and the queue knows the
// messages by their positions: one copy, of a first attempt. Another process may
// have delivered them by then.
var ingestCrashes = []crash{
	{about: "fetched, and nothing stored: the source has all of it", point: "fetched", most: 1, apart: true},
	{about: "stored, and the source not told: it delivers again, and nothing is stored twice", point: "stored", most: 1, apart: true},
	{about: "about to tell the source", point: "acking", most: 1, apart: true},
	{about: "the source was told, as far as this process knows", point: "acked", most: 1, apart: true},
}

var schedulerCrashes = []crash{
	{about: "claimed, and nothing published: the next process publishes when the lease is over", point: "claimed", most: 1, again: true},
	{about: "handed to the connection: published or not", point: "sent", most: 2, again: true},
	{about: "published, and the confirmation not seen: a second copy", point: "published", most: 2, again: true},
	{about: "confirmed, and nothing settled: a second copy", point: "confirmed", most: 2, again: true, twice: true},
	{about: "about to settle: a second copy", point: "settling", most: 2, again: true, twice: true},
	{about: "settled: what was settled is over and done with", point: "settled", most: 2},
}

// What was delivered beside the dead letters may be on its way at the crash.
var burialCrashes = []crash{
	{about: "to be buried, and the dead target not told", point: "burying", most: 2, dying: true},
	{about: "the dead target's copy is stored, and nothing is buried: it is not stored twice", point: "copied", most: 2, dying: true},
	{about: "buried: the letter is there once", point: "buried", most: 2, dying: true},
}

// A message that is put off dies later: a crash is no attempt, and uses none up.
var retryCrashes = []crash{
	{about: "about to put off what has failed, or to bury it", point: "settling", most: 2, dying: true, attempts: 3},
	{about: "put off, or buried", point: "settled", most: 2, dying: true, attempts: 3},
}

// crossing is a way through the bridge.
type crossing struct{ from, to string }

func (c crossing) String() string { return c.from + "->" + c.to }

// TestCrashMatrix kills the process at every step of a message's way, starts it
// again, and looks whether what has happened then is what the contract says:
// nothing lost, nothing early, nothing back from the dead, no more copies than
// allowed, and nothing left in Redis.
//
// B20 (RichardKnop/machinery#586): between claim and publish, between publish and ack.
// B25 (asynq#55, #1051): what was in flight was never found again.
func TestCrashMatrix(t *testing.T) {
	t.Parallel()
	type row struct {
		crash
		crossing
		n int
	}
	var rows []row
	add := func(crashes []crash, ways ...crossing) {
		for _, c := range crashes {
			for _, way := range ways {
				for _, n := range []int{1, 3} {
					rows = append(rows, row{c, way, n})
				}
			}
		}
	}
	add(ingestCrashes, crossing{"nats", "nats"}, crossing{"kafka", "kafka"})
	add(schedulerCrashes[:3], crossing{"nats", "nats-core"})
	add(schedulerCrashes, crossing{"nats", "nats"}, crossing{"nats", "kafka"})
	add(schedulerCrashes[2:4], crossing{"kafka", "nats"})
	add(burialCrashes, crossing{"nats", "nats"}, crossing{"nats", "kafka"})
	add(retryCrashes, crossing{"nats", "nats"}, crossing{"nats", "kafka"})
	rows = slices.DeleteFunc(rows, func(r row) bool {
		// A produce request is written at one go: there is no step between.
		return r.point == "sent" && r.to == "kafka"
	})
	armed.get(t, "-tags", "failpoints")

	// Rows wait most of the time, for leases to run out, so that more of them
	// than the machine has processors can share it.
	const side = 8
	queue := make(chan row)
	var workers sync.WaitGroup
	for range side {
		workers.Go(func() {
			for r := range queue {
				t.Run(fmt.Sprintf("%s:%d %s %s", r.point, r.n, r.crossing, r.about), func(t *testing.T) {
					// Where a slow machine fails to publish in time, the crash is another
					// one than the row is about, and is tried again.
					missed := ""
					for range 3 {
						if missed = newCrashWorld(t, r.crossing).run(t, r.crash, r.n); missed == "" {
							return
						}
					}
					t.Errorf("%s: was the process killed where it should be?", missed)
				})
			}
		})
	}
	for _, r := range rows {
		queue <- r
	}
	close(queue)
	workers.Wait()
}

// crashWorld is what one row plays in.
type crashWorld struct {
	way    crossing
	redis  *redis.Client
	env    Env
	source sourceEnd
	target targetEnd
	waves  []wave
}

func newCrashWorld(t *testing.T, way crossing) *crashWorld {
	t.Helper()
	r := servers.NewRedis(t)
	w := &crashWorld{way: way, redis: r.Client(t), env: Env{
		"REDIS_URL": r.URL, "SHARDS": "2",
		// What a dead process held comes back soon, and yet a slow machine keeps
		// its leases: rows tell by attempts who has crashed.
		"LEASE": "4s", "PUBLISH_TIMEOUT": "2s", "RETRY_BASE": "100ms",
	}}
	if way.from == "nats" || way.to != "kafka" {
		server := servers.NewNATS(t)
		w.env["NATS_URL"] = server.URL
		sink := "nats"
		if way.to == "nats-core" {
			sink = way.to
		}
		end := newNATSEnd(t, server, sink)
		if way.from == "nats" {
			w.source = end
		}
		if way.to != "kafka" {
			w.target = end
		}
	}
	if way.from == "kafka" || way.to == "kafka" {
		end := newKafkaEnd(t, servers.SharedKafka(t))
		w.env["KAFKA_BROKERS"] = strings.Join(end.kafka.Brokers, ",")
		w.env["KAFKA_INGEST_TOPICS"], w.env["KAFKA_INGEST_GROUP"] = end.in, end.group
		if way.from == "kafka" {
			w.source = end
		}
		if way.to == "kafka" {
			w.target = end
		}
	}
	return w
}

// wave is a handful of requests of every kind.
type wave struct {
	due   map[string]time.Time // what must arrive, and its earliest time
	text  map[string]string    // and with which payload
	gone  string               // cancelled long before its time
	far   string               // due much later
	dying []string
}

// send sends one wave. Its requests of one id follow each other, so that a
// source that delivers both again does so in order.
func (w *crashWorld) send(t *testing.T, dying bool) {
	t.Helper()
	k := strconv.Itoa(len(w.waves))
	v := wave{due: map[string]time.Time{}, text: map[string]string{}, gone: "gone-" + k, far: "far-" + k}
	to := "Bridge-Target: " + w.target.target("x")
	w.source.send(t, "never", to, "Bridge-Delay: 1h", "Bridge-Id: "+v.gone)
	w.source.send(t, "", "Bridge-Op: cancel", "Bridge-Id: "+v.gone)
	w.source.send(t, "much later", to, "Bridge-Delay: 1h", "Bridge-Id: "+v.far)
	w.source.send(t, "old", to, "Bridge-Delay: 1h", "Bridge-Id: twice-"+k)
	due := func(id, payload string, delay time.Duration) {
		v.due[id] = w.source.send(t, payload, to, "Bridge-Delay: "+delay.String(), "Bridge-Id: "+id).Add(delay)
		v.text[id] = payload
	}
	due("twice-"+k, "new", 200*time.Millisecond)
	for i := range 4 {
		due(fmt.Sprintf("plain-%s-%d", k, i), "payload "+k, time.Duration(i)*80*time.Millisecond)
	}
	if dying {
		for i := range 2 {
			id := fmt.Sprintf("dying-%s-%d", k, i)
			w.source.send(t, "last words", "Bridge-Target: "+w.target.missing(), "Bridge-Delay: 0s", "Bridge-Id: "+id)
			v.dying = append(v.dying, id)
		}
	}
	w.waves = append(w.waves, v)
}

// run plays one row. It returns what is missing of what the crash was to bring
// about, if anything.
func (w *crashWorld) run(t *testing.T, c crash, n int) (missed string) {
	t.Helper()
	if n > 1 && !c.apart {
		c.most = 2 // of what was published before and is not settled yet
	}
	env := w.env
	if c.dying {
		env = env.With(Env{"MAX_ATTEMPTS": strconv.Itoa(max(1, c.attempts)), "DEAD_TARGET": w.target.target("dead")})
	}
	victim := env
	if c.apart {
		victim = env.With(Env{"ROLES": "ingest"})
		Serve(t, env.With(Env{"ROLES": "scheduler"}))
	}
	first := ServeUntil(t, victim, c.point, n)
	defer first.Kill()
	w.awaitSource(t)
	for dead := false; !dead; {
		if len(w.waves) > 10 {
			t.Fatalf("%d waves have not passed the failpoint %d times", len(w.waves), n)
		}
		w.send(t, c.dying)
		w.await(t, "a wave to be over, or the process dead", func() bool {
			dead, _ = first.Ended()
			return dead || w.over(t)
		})
	}
	if _, killed := first.Ended(); !killed {
		t.Fatalf("the process was not killed, but ended with %d", first.Exit(t))
	}
	w.source.forgetReader(t)

	next := Serve(t, victim)
	w.send(t, c.dying)
	defer next.Kill()
	w.await(t, "everything to be delivered", func() bool { return w.over(t) })
	return w.check(t, c)
}

// tooSlow returns the dead letters that were to be delivered, copies for the dead
// target among them. They are no fault where their broker took too long: of so few
// attempts none may fail.
func (w *crashWorld) tooSlow(t *testing.T) (died []string) {
	t.Helper()
	for _, id := range w.left(t)["dead"] {
		if strings.HasPrefix(id, "dying-") {
			continue
		}
		died = append(died, id)
		r := Run(t, w.env, "", "dead", "show", id, "-o", "json")
		if r.Code != 0 {
			t.Errorf("%s: %+v", id, r)
			continue
		}
		said := fmt.Sprint(decode(t, r.Stdout)["error"])
		if !strings.Contains(said, "did not confirm") && !strings.Contains(said, "not sent to Kafka within") {
			t.Errorf("%s died, and not since its broker took too long: %q", id, said)
		}
	}
	return died
}

// awaitSource waits until requests can be sent.
func (w *crashWorld) awaitSource(t *testing.T) {
	t.Helper()
	if e, ok := w.source.(*natsEnd); ok {
		w.await(t, "the bridge's stream", func() bool {
			_, err := e.js.Stream(context.Background(), "BRIDGE_SCHEDULE")
			return err == nil
		})
	}
}

func (w *crashWorld) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	// Where a group of consumers has to start over, that alone takes seconds.
	for deadline := time.Now().Add(2 * patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s; arrived: %v; in Redis: %v", what, ids(w.target.arrivals()), w.left(t))
		}
	}
}

func ids(arrivals []Arrival) []string {
	var out []string
	for _, a := range arrivals {
		out = append(out, a.ID+"/"+a.Header.Get("Bridge-Attempt"))
	}
	return out
}

// over says whether everything that was sent has come to its end, in the target,
// in Redis, and in the source.
func (w *crashWorld) over(t *testing.T) bool {
	t.Helper()
	left := w.left(t)
	arrived := map[string]bool{}
	for _, a := range w.target.arrivals() {
		arrived[a.ID] = true
	}
	// A copy for the dead target may die, too; of that there is no further copy.
	copied := func(id string) bool { return arrived["dead:"+id] || slices.Contains(left["dead"], "dead:"+id) }
	for _, v := range w.waves {
		for id := range v.due {
			if !arrived[id] && !copied(id) {
				return false
			}
		}
		for _, id := range v.dying {
			if !copied(id) {
				return false
			}
		}
	}
	return len(left["inflight"]) == 0 && len(left["due"]) == len(w.waves) && len(left["msg"]) == len(w.waves) && w.source.drained(t)
}

// left returns the ids in Redis, by the kind of the key that holds them.
func (w *crashWorld) left(t *testing.T) map[string][]string {
	t.Helper()
	ctx := context.Background()
	keys, err := w.redis.Keys(ctx, "{bridge:*").Result()
	if err != nil {
		t.Fatal(err)
	}
	left := map[string][]string{}
	for _, key := range keys {
		_, name, _ := strings.Cut(key, "}:")
		kind, _, _ := strings.Cut(name, ":")
		var held []string
		var err error
		switch kind {
		case "due", "inflight", "dead":
			held, err = w.redis.ZRange(ctx, key, 0, -1).Result()
		default:
			held, err = w.redis.HKeys(ctx, key).Result()
		}
		if err != nil && !errors.Is(err, redis.Nil) {
			t.Fatal(err)
		}
		left[kind] = append(left[kind], held...)
	}
	for _, held := range left {
		slices.Sort(held)
	}
	return left
}

// check compares what has happened with what may happen, and returns what is
// missing of what was to happen.
func (w *crashWorld) check(t *testing.T, c crash) (missed string) {
	t.Helper()
	due, text := map[string]time.Time{}, map[string]string{}
	var far, gone, dying []string
	for _, v := range w.waves {
		for id, at := range v.due {
			due[id], text[id] = at, v.text[id]
		}
		far, gone, dying = append(far, v.far), append(gone, v.gone), append(dying, v.dying...)
		for _, id := range v.dying {
			// Its copy is a message like any other, due at some time after now.
			due["dead:"+id], text["dead:"+id] = v.due["plain-"+strings.Split(id, "-")[1]+"-0"], "last words"
		}
	}
	// What has died for its broker's sake is kept like what was to die.
	slow := w.tooSlow(t)
	if len(slow) > 0 && !c.dying {
		t.Errorf("%v died, of which nothing was to", slow)
	}
	for _, id := range slow {
		if !strings.HasPrefix(id, "dead:") {
			due["dead:"+id], text["dead:"+id] = due[id], text[id]
		}
	}
	dying = append(dying, slow...)
	slices.Sort(far)
	slices.Sort(dying)

	copies, attempt := map[string]int{}, map[string]int{}
	twice, again := false, false
	for _, a := range w.target.arrivals() {
		copies[a.ID]++
		if early := a.Due(t).Sub(a.At); early > 0 {
			t.Errorf("%s arrived %v early", a.ID, early)
		}
		earliest, ok := due[a.ID]
		switch {
		case !ok:
			t.Errorf("%q arrived (%q), which must not", a.ID, a.Payload)
			continue
		case a.Payload != text[a.ID]:
			t.Errorf("%s arrived with payload %q, not %q", a.ID, a.Payload, text[a.ID])
		case strings.HasPrefix(a.ID, "dead:") && !strings.Contains(a.Header.Get("Bridge-Error"), "attempts"):
			t.Errorf("%s arrived with the error %q", a.ID, a.Header.Get("Bridge-Error"))
		case a.Due(t).Before(earliest.Truncate(time.Millisecond)):
			t.Errorf("%s says that it was due at %v, which is before %v", a.ID, a.Due(t), earliest)
		}
		n, err := strconv.Atoi(a.Header.Get("Bridge-Attempt"))
		switch {
		case err != nil || n < 1 || n > 2:
			t.Errorf("%s arrived as attempt %q", a.ID, a.Header.Get("Bridge-Attempt"))
		case n <= attempt[a.ID]:
			t.Errorf("%s arrived as attempt %d after attempt %d", a.ID, n, attempt[a.ID])
		case copies[a.ID] > c.most:
			t.Errorf("%s arrived %d times, at most %d are allowed", a.ID, copies[a.ID], c.most)
		case c.apart && n > 1:
			t.Errorf("%s arrived as attempt %d, though nobody who delivers has crashed", a.ID, n)
		}
		attempt[a.ID] = n
		twice, again = twice || copies[a.ID] > 1, again || n > 1
	}
	if c.twice && !twice {
		missed = "nothing arrived twice"
	}
	if c.again && !again {
		missed = "nothing arrived as a second attempt"
	}
	if len(slow) > 0 {
		missed = fmt.Sprintf("the broker took too long for %v", slow)
	}
	if w.way.to == "nats" {
		for id := range due {
			if n := w.target.keeps(t, id); n != 1 && (n != 0 || !slices.Contains(slow, id)) {
				t.Errorf("the target stream keeps %d copies of %s", n, id)
			}
		}
	}

	left := w.left(t)
	for kind, want := range map[string][]string{"due": far, "msg": far, "inflight": nil, "dead": dying, "deadmsg": dying} {
		if got := left[kind]; !slices.Equal(got, want) {
			t.Errorf("Redis has %v in %s, want %v", got, kind, want)
		}
	}
	for _, id := range left["tries"] {
		// A replaced message may keep the end of its last lease for a while.
		if !slices.Contains(far, id) {
			t.Errorf("Redis still counts the tries of %s", id)
		}
	}
	for _, id := range gone {
		if r := Run(t, w.env, "", "get", id, "-o", "json"); r.Code != 0 || decode(t, r.Stdout)["state"] != "cancelled" {
			t.Errorf("%s: %+v", id, r)
		}
	}
	for _, id := range dying {
		r := Run(t, w.env, "", "dead", "show", id, "-o", "json")
		if r.Code != 0 || decode(t, r.Stdout)["reason"] != "attempts" || decode(t, r.Stdout)["attempts"] != float64(max(1, c.attempts)) {
			t.Errorf("%s: %+v", id, r)
		}
	}
	return missed
}

// TestCrashWhileReleasing stops a process while its claim is under way. What the
// claim brings is to be given back, and in the middle of that the process dies:
// the messages come back when the lease is over, once.
func TestCrashWhileReleasing(t *testing.T) {
	t.Parallel()
	for _, way := range []crossing{{"nats", "nats"}, {"nats", "kafka"}} {
		t.Run(way.String(), func(t *testing.T) {
			t.Parallel()
			w := newCrashWorld(t, way)
			slow := newSlowRelay(t, strings.TrimSuffix(strings.TrimPrefix(w.env["REDIS_URL"], "unix://"), "?db=0"))
			// Whether the claim is under way when the signal comes is a matter of
			// time; a process that ended in order is no crash, and the next is tried.
			for killed := false; !killed; {
				if len(w.waves) > 20 {
					t.Fatal("no process was releasing when it was stopped")
				}
				slow.answerAfter(0)
				p := ServeUntil(t, w.env.With(Env{"REDIS_URL": slow.url()}), "releasing", 1)
				w.awaitSource(t)
				w.send(t, false)
				// A broker that is slow to answer at first has it release, too, and die.
				gone := func() bool { ended, _ := p.Ended(); return ended }
				w.await(t, "a wave to be stored", func() bool { return gone() || w.source.drained(t) })
				w.await(t, "it to be delivered", func() bool { return gone() || w.over(t) })
				slow.answerAfter(time.Second)
				w.send(t, false)
				w.await(t, "a claim", func() bool { return gone() || len(w.left(t)["inflight"]) > 0 })
				p.Signal(syscall.SIGTERM)
				w.await(t, "the end of the process", func() bool {
					ended := false
					ended, killed = p.Ended()
					return ended
				})
				if way.from == "kafka" || killed {
					w.source.forgetReader(t)
				}
			}
			Serve(t, w.env)
			w.await(t, "everything to be delivered", func() bool { return w.over(t) })
			if missed := w.check(t, crash{most: 1, again: true}); missed != "" {
				t.Error(missed)
			}
		})
	}
}

// slowRelay passes connections on to a Unix socket, and answers on as late as it
// is told to.
type slowRelay struct {
	addr string
	wait atomic.Int64
}

func newSlowRelay(t *testing.T, socket string) *slowRelay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &slowRelay{addr: l.Addr().String()}
	var open sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); open.Wait() })
	pass := func(to, from net.Conn, answers bool) {
		defer func() { _, _ = to.Close(), from.Close() }()
		b := make([]byte, 64<<10)
		for {
			n, err := from.Read(b)
			if answers {
				time.Sleep(time.Duration(r.wait.Load()))
			}
			if _, werr := to.Write(b[:n]); err != nil || werr != nil {
				return
			}
		}
	}
	open.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("unix", socket)
			if err != nil {
				_ = client.Close()
				continue
			}
			open.Go(func() { pass(server, client, false) })
			open.Go(func() { pass(client, server, true) })
		}
	})
	return r
}

func (r *slowRelay) url() string { return "redis://" + r.addr + "/0" }

// answerAfter has every answer take so much longer from now on.
func (r *slowRelay) answerAfter(d time.Duration) { r.wait.Store(int64(d)) }
