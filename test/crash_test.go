package test

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"delaybridge/test/servers"
)

// TestCrashLosesNothing sends 10,000 messages with random delays through two
// processes. One is killed and started again in the middle of it.
//
// B20 (RichardKnop/machinery#586, thoas/bokchoy#7): what was taken out before it was done was lost in a crash.
func TestCrashLosesNothing(t *testing.T) {
	const messages, spread = 10_000, 10 * time.Second
	w := newWorld(t)
	// A short lease brings back soon what the killed process held.
	env := Env{"LEASE": "2s", "PUBLISH_TIMEOUT": "1s"}
	w.serve(t, env)
	victim := w.serve(t, env)

	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	sent := make([]time.Time, messages)
	delays := make([]time.Duration, messages)
	began := time.Now()
	for i := range messages {
		delays[i] = time.Duration(random.Int64N(int64(spread / time.Millisecond)))
		delays[i] *= time.Millisecond
		m := nats.NewMsg("bridge.schedule")
		m.Header.Set("Bridge-Target", "nats://orders."+strconv.Itoa(i%7))
		m.Header.Set("Bridge-Delay", delays[i].String())
		m.Header.Set("Bridge-Id", "m-"+strconv.Itoa(i))
		m.Data = []byte(strconv.Itoa(i))
		sent[i] = time.Now()
		if _, err := w.js.PublishMsgAsync(m, jetstream.WithStallWait(patience)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-w.js.PublishAsyncComplete():
	case <-time.After(patience):
		t.Fatal("the broker did not take all messages")
	}
	t.Logf("%d messages sent in %v", messages, time.Since(began).Round(time.Millisecond))

	// Half way through the deliveries.
	if !servers.Eventually(func() bool { return len(w.table.Arrivals()) >= messages/2 }) {
		t.Fatalf("only %d messages arrived", len(w.table.Arrivals()))
	}
	victim.Kill()
	w.serve(t, env)

	distinct := func() int {
		ids := map[string]bool{}
		for _, a := range w.table.Arrivals() {
			ids[a.ID] = true
		}
		return len(ids)
	}
	if !servers.Eventually(func() bool { return distinct() == messages }) {
		t.Errorf("%d of %d messages arrived", distinct(), messages)
	}
	w.awaitEmpty(t)

	copies := map[string]int{}
	var late []time.Duration
	for _, a := range w.table.Arrivals() {
		n, err := strconv.Atoi(strings.TrimPrefix(a.ID, "m-"))
		if err != nil || n < 0 || n >= messages || a.Payload != strconv.Itoa(n) {
			t.Fatalf("%q arrived with payload %q", a.ID, a.Payload)
		}
		if early := min(a.Due(t).Sub(a.At), sent[n].Add(delays[n]).Sub(a.At)); early > 0 {
			t.Errorf("%s arrived %v early", a.ID, early)
		}
		if copies[a.ID]++; copies[a.ID] > 1 {
			if a.Header.Get("Bridge-Attempt") == "1" {
				t.Errorf("copy %d of %s says that it is the first attempt", copies[a.ID], a.ID)
			}
			continue
		}
		late = append(late, a.At.Sub(a.Due(t)))
	}
	// JetStream drops what carries an id that it has seen.
	orders, err := w.js.Stream(context.Background(), "ORDERS")
	if err != nil {
		t.Fatal(err)
	}
	if stored := orders.CachedInfo().State.Msgs; stored != messages {
		t.Errorf("the target stream holds %d messages", stored)
	}
	slices.Sort(late)
	t.Logf("%d messages, %d duplicate publishes, none of them stored; lateness p50 %v, p99 %v, max %v", messages,
		len(w.table.Arrivals())-messages, percentile(late, 50), percentile(late, 99), percentile(late, 100))
}

func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, len(sorted)*p/100)].Round(10 * time.Microsecond)
}

// TestTermLosesNothing stops a bridge in the middle of its work. The next one
// goes on, and nothing has to wait for a lease to end.
func TestTermLosesNothing(t *testing.T) {
	t.Parallel()
	const messages = 3000
	w := newWorld(t)
	first := w.serve(t, nil)
	for i := range messages {
		m := nats.NewMsg("bridge.schedule")
		m.Header.Set("Bridge-Target", "nats://orders.x")
		m.Header.Set("Bridge-Delay", fmt.Sprintf("%dms", i/2))
		m.Header.Set("Bridge-Id", fmt.Sprint("t-", i))
		if _, err := w.js.PublishMsgAsync(m, jetstream.WithStallWait(patience)); err != nil {
			t.Fatal(err)
		}
	}
	<-w.js.PublishAsyncComplete()
	if !servers.Eventually(func() bool { return len(w.table.Arrivals()) > messages/4 }) {
		t.Fatal("no deliveries")
	}
	first.Signal(syscall.SIGTERM)
	if code := first.Exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	// What it held is delivered or given back, not leased.
	stats := decode(t, Run(t, w.env, "", "stats", "-o", "json").Stdout)
	if held := stats["lanes"].(map[string]any)["nats"].(map[string]any)["in_flight"]; held != 0.0 {
		t.Errorf("%v messages are still in flight after an orderly end", held)
	}
	w.serve(t, nil)
	ids := func() int {
		all := map[string]bool{}
		for _, a := range w.table.Arrivals() {
			all[a.ID] = true
		}
		return len(all)
	}
	if !servers.Eventually(func() bool { return ids() == messages }) {
		t.Errorf("%d of %d arrived", ids(), messages)
	}
	w.awaitEmpty(t)
	if n := len(w.table.Arrivals()); n != messages {
		t.Errorf("%d arrivals of %d messages: an orderly end made duplicates", n, messages)
	}
}

// TestStopsWhileItWaits stops a bridge that waits for a Redis that is not there.
func TestStopsWhileItWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := Start(t, w.env.With(Env{"REDIS_URL": "redis://127.0.0.1:1/0"}), "serve")
	p.Await(t, "redis does not answer yet")
	p.Signal(syscall.SIGTERM)
	if code := p.Exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestSecondSignalEndsAtOnce stops a bridge whose broker does not confirm what
// was published. It waits for that; a second signal ends it.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	relay := newRelay(t, strings.TrimPrefix(w.nats.URL, "nats://"))
	p := w.serve(t, Env{"NATS_URL": "nats://" + relay.addr, "PUBLISH_TIMEOUT": "30s", "LEASE": "60s"})
	p.Await(t, `"use":"sink","server"`)
	relay.hold()
	if r := Run(t, w.env, "", "schedule", "--target", "nats://orders.x", "--delay", "0s", "--id", "held", "x"); r.Code != 0 {
		t.Fatalf("%+v", r)
	}
	// It is published and arrives, but the confirmation does not.
	w.table.Await(t, "held")
	w.awaitState(t, "held", "in_flight")
	p.Signal(syscall.SIGTERM)
	p.Await(t, "stopping")
	if !servers.Eventually(func() bool { p.Signal(syscall.SIGTERM); return strings.Contains(p.Output(), "second signal") }) {
		t.Error("a second signal did not count")
	}
	if code := p.Exit(t); code != 1 {
		t.Errorf("exit code %d", code)
	}
}

// relay passes TCP connections on to a server, until it is told to hold back
// what the server answers.
type relay struct {
	addr string
	held chan struct{}
}

func newRelay(t *testing.T, server string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{addr: l.Addr().String(), held: make(chan struct{})}
	ended := make(chan struct{})
	var open sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		close(ended)
		open.Wait()
	})
	open.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server)
			if err != nil {
				_ = client.Close()
				continue
			}
			open.Go(func() { _, _ = io.Copy(upstream, client) })
			open.Go(func() {
				b := make([]byte, 32<<10)
				for {
					n, err := upstream.Read(b)
					select {
					case <-r.held:
						<-ended
						return
					default:
					}
					if _, werr := client.Write(b[:n]); err != nil || werr != nil {
						return
					}
				}
			})
			open.Go(func() {
				<-ended
				_, _ = client.Close(), upstream.Close()
			})
		}
	})
	return r
}

// hold keeps back everything that the server says from now on.
func (r *relay) hold() { close(r.held) }
