package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"

	"delaybridge/test/servers"
)

// link is a way to a server that can be cut, slowed down and half closed.
type link struct {
	name  string
	proxy *toxiproxy.Proxy
}

// newLink listens on port, 0 for any, and passes on to server.
func newLink(t *testing.T, name string, port int, server string) *link {
	t.Helper()
	if port == 0 {
		port = servers.FreePort(t)
	}
	api := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	l := &link{name, toxiproxy.NewProxy(api, name, fmt.Sprintf("127.0.0.1:%d", port), server)}
	if err := l.proxy.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.proxy.Stop)
	return l
}

func (l *link) addr() string { return l.proxy.Listen }

// toxic applies a fault of the proxy's kind to one direction, for a while.
func (l *link) toxic(ctx context.Context, kind, direction string, attributes map[string]any, last time.Duration) error {
	text, err := json.Marshal(map[string]any{"name": kind, "type": kind, "stream": direction, "attributes": attributes})
	if err != nil {
		return err
	}
	if _, err := l.proxy.Toxics.AddToxicJson(bytes.NewReader(text)); err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	pause(ctx, last)
	limit, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return l.proxy.Toxics.RemoveToxic(limit, kind)
}

// cut breaks every connection, and lets none be made for a while.
func (l *link) cut(ctx context.Context, last time.Duration) error {
	l.proxy.Stop()
	pause(ctx, last)
	var err error
	servers.Eventually(func() bool { err = l.proxy.Start(); return err == nil })
	return err
}

// pause returns false once ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// faults injects and counts.
type faults struct {
	t    *testing.T
	ctx  context.Context // ends when no more are to be injected
	seed uint64
	work sync.WaitGroup

	mu     sync.Mutex
	counts map[string]int
	lanes  uint64
	away   map[string]bool // servers
}

func (f *faults) count(kind string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.counts[kind]++
}

func (f *faults) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(f.counts)) {
		parts = append(parts, fmt.Sprintf("%s=%d", kind, f.counts[kind]))
	}
	return strings.Join(parts, " ")
}

// every injects again and again, with pauses between low and high.
func (f *faults) every(low, high time.Duration, inject func(random *rand.Rand)) {
	f.mu.Lock()
	f.lanes++
	random := rand.New(rand.NewPCG(f.seed, f.lanes))
	f.mu.Unlock()
	f.work.Go(func() {
		for pause(f.ctx, between(random, low, high)) {
			inject(random)
		}
	})
}

func between(random *rand.Rand, low, high time.Duration) time.Duration {
	return low + time.Duration(random.Int64N(int64(high-low)+1))
}

// link has a link cut, reset, slowed down, half closed and cut off in the middle
// of what it carries.
func (f *faults) link(l *link, low, high time.Duration) {
	f.every(low, high, func(random *rand.Rand) {
		direction := []string{"upstream", "downstream"}[random.IntN(2)]
		last := between(random, 200*time.Millisecond, 2*time.Second)
		var err error
		var kind string
		switch random.IntN(5) {
		case 0:
			kind, err = "cut", l.cut(f.ctx, last/4)
		case 1:
			kind, err = "reset", l.toxic(f.ctx, "reset_peer", direction, map[string]any{"timeout": 0}, last/4)
		case 2:
			latency := between(random, 20*time.Millisecond, 800*time.Millisecond).Milliseconds()
			kind, err = "delay", l.toxic(f.ctx, "latency", direction, map[string]any{"latency": latency, "jitter": latency / 2}, last)
		case 3:
			// Nothing comes through in one direction, and nobody is told.
			kind, err = "half-close", l.toxic(f.ctx, "timeout", direction, map[string]any{"timeout": 0}, last)
		default:
			kind, err = "truncate", l.toxic(f.ctx, "limit_data", direction, map[string]any{"bytes": random.IntN(20_000)}, last/2)
		}
		if err != nil {
			f.t.Errorf("%s %s: %v", kind, l.name, err)
		}
		f.count(l.name + "-" + kind)
	})
}

// restart has a server stop and start. end ends it by one of several ways, and
// names that.
func (f *faults) restart(name string, low, high, down time.Duration, end func(random *rand.Rand) string, start func()) {
	f.every(low, high, func(random *rand.Rand) {
		f.count(name + "-" + end(random))
		f.isAway(name, true)
		pause(f.ctx, between(random, 0, down))
		start() // or it ends this goroutine
		f.isAway(name, false)
	})
}

func (f *faults) isAway(name string, away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if away {
		f.away[name] = true
	} else {
		delete(f.away, name)
	}
}

// wait waits until no more is injected. The run is over where a server has not
// come back: all that is left would wait for it.
func (f *faults) wait() {
	f.t.Helper()
	f.work.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.away) > 0 {
		f.t.Fatalf("these did not come back, which says nothing of the bridge: %v", slices.Sorted(maps.Keys(f.away)))
	}
}

// fleet is the bridges of a run.
type fleet struct{ ships []*ship }

// ship is the place of one bridge, which is crashed and replaced.
type ship struct {
	t   *testing.T
	env Env
	p   *Process
	// codes counts how those ended that were asked to, by exit code.
	codes map[int]int
}

// newFleet starts n bridges, and returns when they run.
func newFleet(t *testing.T, n int, env Env) *fleet {
	f := &fleet{}
	for range n {
		f.ships = append(f.ships, &ship{t: t, env: env, p: Start(t, env, "serve"), codes: map[int]int{}})
	}
	f.await()
	return f
}

// await waits until every bridge runs: one that still starts does not listen to
// signals yet.
func (f *fleet) await() {
	for _, s := range f.ships {
		s.p.Await(s.t, `"msg":"running"`)
	}
}

// crash kills the bridge, or asks it to stop, and starts another in its place.
func (s *ship) crash(ctx context.Context, random *rand.Rand) (kind string) {
	s.sound()
	if kind = "bridge-kill"; random.IntN(2) == 0 {
		s.p.Kill()
	} else {
		kind = "bridge-term"
		s.p.Signal(syscall.SIGTERM)
		if code := s.p.Exit(s.t); code >= 0 {
			s.codes[code]++
		} else {
			kind = "bridge-term-at-its-start" // before it listens to signals
		}
	}
	s.sane()
	pause(ctx, between(random, 0, time.Second))
	s.p = Start(s.t, s.env, "serve")
	return kind
}

// sound complains of a bridge that has ended by itself.
func (s *ship) sound() {
	if ended, _ := s.p.Ended(); ended {
		s.t.Errorf("a bridge ended by itself, with code %d:\n%s", s.p.Exit(s.t), tail(s.p.Output()))
	}
}

// sane complains of what no bridge should ever say.
func (s *ship) sane() {
	said := s.p.Output()
	for _, word := range []string{"panic:", "DATA RACE", "fatal error:", "goroutine 1 ["} {
		if i := strings.Index(said, word); i >= 0 {
			s.t.Errorf("a bridge said %q:\n%s", word, said[strings.LastIndexByte(said[:i], '\n')+1:])
		}
	}
	for line := range strings.Lines(said) {
		// An end that is not in order says why in one plain line.
		if !strings.HasPrefix(line, "{") && !strings.HasPrefix(line, "bridge: ") {
			s.t.Errorf("a bridge said what is no log line: %s", line)
			break
		}
	}
}

// stop asks all bridges to stop. They have nothing in hand, and no reason to fail.
func (f *fleet) stop() {
	f.await()
	for _, s := range f.ships {
		s.sound()
		s.p.Signal(syscall.SIGTERM)
	}
	for _, s := range f.ships {
		if code := s.p.Exit(s.t); code != 0 {
			s.t.Errorf("a bridge with nothing in hand ended with code %d:\n%s", code, tail(s.p.Output()))
		}
		s.sane()
	}
}

// codes are the exit codes of the bridges that were asked to stop amid faults.
func (f *fleet) codes() map[int]int {
	all := map[int]int{}
	for _, s := range f.ships {
		for code, n := range s.codes {
			all[code] += n
		}
	}
	return all
}
