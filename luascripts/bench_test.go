package luascripts

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"strconv"
	"testing"
	"time"

	"delaybridge"
	"delaybridge/test/servers"
)

var big = flag.Bool("big", false, "benchmark with a million messages waiting too")

// bench is a queue of one shard with many messages waiting behind those that
// are measured.
type bench struct {
	*harness
	waiting int
	next    uint64 // offset of the next request
}

func newBench(b *testing.B, waiting int) *bench {
	b.Helper()
	cfg := testConfig()
	cfg.DeadRetention = time.Millisecond
	h := newHarness(b, servers.NewRedis(b).Client(b), cfg)
	x := &bench{harness: h, waiting: waiting}
	for n := 0; n < waiting; n += 1000 {
		x.check(b, h.q.Store(context.Background(), x.requests(min(1000, waiting-n), time.Hour)))
	}
	return x
}

// requests are n messages of 256 bytes with default ids, due after a while.
func (x *bench) requests(n int, after time.Duration) []delaybridge.Request {
	all := make([]delaybridge.Request, n)
	payload := bytes.Repeat([]byte("x"), 256)
	for i := range all {
		x.next++
		p := delaybridge.Position{Source: "nats:BRIDGE_SCHEDULE", Offset: x.next}
		all[i].Message = delaybridge.Message{
			ID: p.String(), Position: p, Target: delaybridge.Target{Sink: "nats", Name: "orders.timeout"},
			Scheduled: time.UnixMilli(epoch - 3_600_000), Due: time.UnixMilli(epoch).Add(after), Payload: payload,
		}
	}
	return all
}

func (x *bench) check(b *testing.B, results []delaybridge.Result) {
	b.Helper()
	for _, r := range results {
		if r.Err != nil {
			b.Fatal(r.Err)
		}
	}
}

func (x *bench) claimed(b *testing.B, n int) []delaybridge.Claim {
	b.Helper()
	g := x.q.Claim(context.Background(), "nats", []delaybridge.Ask{{Limit: n}})[0]
	if g.Err != nil || len(g.Claims) != n {
		b.Fatalf("%d claims, want %d: %v", len(g.Claims), n, g.Err)
	}
	return g.Claims
}

func (x *bench) settled(b *testing.B, errs []error) {
	b.Helper()
	for _, err := range errs {
		if err != nil {
			b.Fatal(err)
		}
	}
}

// busy is the processor time that Redis has used, in us: other than the time
// that passes, it does not depend on what else the machine does.
func (x *bench) busy() (us int64) {
	f := x.q.infos(context.Background(), "cpu")[0].fields
	for _, name := range []string{"used_cpu_sys_main_thread", "used_cpu_user_main_thread"} {
		seconds, _ := strconv.ParseFloat(f[name], 64)
		us += int64(1e6 * seconds)
	}
	return us
}

// BenchmarkScripts measures one call of each script with a batch, while others
// wait; the time of a call is the whole round trip over a Unix socket.
func BenchmarkScripts(b *testing.B) {
	ctx := context.Background()
	sizes := []int{1_000, 100_000}
	if *big {
		sizes = append(sizes, 1_000_000)
	}
	for _, size := range sizes {
		x := newBench(b, size)
		drop := func(b *testing.B, n int) { x.settled(b, x.q.Ack(ctx, x.claimed(b, n))) }
		burials := func(b *testing.B, n int) (all []delaybridge.Burial) {
			for _, c := range x.claimed(b, n) {
				all = append(all, delaybridge.Burial{Claim: c, Reason: delaybridge.ReasonAttempts, Error: "no", Failed: 12})
			}
			return all
		}
		letters := func(b *testing.B, n int) []Letter {
			x.check(b, x.q.Store(ctx, x.requests(n, 0)))
			x.settled(b, x.q.Bury(ctx, burials(b, n)))
			all, _, err := x.q.Dead(ctx, n, "")
			if err != nil || len(all) != n {
				b.Fatal(len(all), err)
			}
			return all
		}
		sweep := func(b *testing.B) {
			x.at(5)
			if _, err := x.q.Sweep(ctx, 0); err != nil {
				b.Fatal(err)
			}
			x.at(0)
		}
		for _, script := range []struct {
			name string
			// run prepares a batch, measures one call between start and stop, and
			// cleans up.
			run func(b *testing.B, n int, start, stop func())
		}{
			{"schedule", func(b *testing.B, n int, start, stop func()) {
				r := x.requests(n, 0)
				start()
				x.check(b, x.q.Store(ctx, r))
				stop()
				drop(b, n)
			}},
			{"schedule-replace", func(b *testing.B, n int, start, stop func()) {
				r := x.requests(n, 0)
				x.check(b, x.q.Store(ctx, r))
				for i := range r {
					x.next++
					r[i].Message.Position.Offset = x.next
				}
				start()
				x.check(b, x.q.Store(ctx, r))
				stop()
				drop(b, n)
			}},
			{"schedule-duplicate", func(b *testing.B, n int, start, stop func()) {
				r := x.requests(n, 0)
				x.check(b, x.q.Store(ctx, r))
				start()
				x.check(b, x.q.Store(ctx, r))
				stop()
				drop(b, n)
			}},
			{"cancel", func(b *testing.B, n int, start, stop func()) {
				r := x.requests(n, 0)
				x.check(b, x.q.Store(ctx, r))
				for i := range r {
					x.next++
					r[i].Op, r[i].Message.Position.Offset = delaybridge.OpCancel, x.next
				}
				start()
				x.check(b, x.q.Store(ctx, r))
				stop()
			}},
			{"claim", func(b *testing.B, n int, start, stop func()) {
				x.check(b, x.q.Store(ctx, x.requests(n, 0)))
				start()
				claims := x.claimed(b, n)
				stop()
				x.settled(b, x.q.Ack(ctx, claims))
			}},
			{"ack", func(b *testing.B, n int, start, stop func()) {
				x.check(b, x.q.Store(ctx, x.requests(n, 0)))
				claims := x.claimed(b, n)
				start()
				x.settled(b, x.q.Ack(ctx, claims))
				stop()
			}},
			{"retry", func(b *testing.B, n int, start, stop func()) {
				x.check(b, x.q.Store(ctx, x.requests(n, 0)))
				var all []delaybridge.Retry
				for _, c := range x.claimed(b, n) {
					all = append(all, delaybridge.Retry{Claim: c})
				}
				start()
				x.settled(b, x.q.Retry(ctx, all))
				stop()
				drop(b, n)
			}},
			{"release", func(b *testing.B, n int, start, stop func()) {
				x.check(b, x.q.Store(ctx, x.requests(n, 0)))
				claims := x.claimed(b, n)
				start()
				x.settled(b, x.q.Release(ctx, claims))
				stop()
				drop(b, n)
			}},
			{"bury", func(b *testing.B, n int, start, stop func()) {
				x.check(b, x.q.Store(ctx, x.requests(n, 0)))
				all := burials(b, n)
				start()
				x.settled(b, x.q.Bury(ctx, all))
				stop()
				sweep(b)
			}},
			{"reject", func(b *testing.B, n int, start, stop func()) {
				r := x.requests(n, 0)
				for i := range r {
					r[i].Op, r[i].Error = delaybridge.OpReject, "no target"
				}
				start()
				x.check(b, x.q.Store(ctx, r))
				stop()
				sweep(b)
			}},
			{"purge", func(b *testing.B, n int, start, stop func()) {
				all := letters(b, n)
				start()
				x.settled(b, x.q.Purge(ctx, all))
				stop()
			}},
			{"sweep", func(b *testing.B, n int, start, stop func()) {
				letters(b, n)
				start()
				sweep(b)
				stop()
			}},
			{"page", func(b *testing.B, n int, start, stop func()) {
				start()
				if _, _, err := x.q.List(ctx, "", n, ""); err != nil {
					b.Fatal(err)
				}
				stop()
			}},
		} {
			for _, batch := range []int{100, 500} {
				b.Run(fmt.Sprintf("%s/waiting=%d/batch=%d", script.name, size, batch), func(b *testing.B) {
					// Not the benchmark's own timer: stopping it costs more than a call.
					var took time.Duration
					var busy, before int64
					for range b.N {
						var from time.Time
						script.run(b, batch, func() {
							before = x.busy()
							from = time.Now()
						}, func() {
							took += time.Since(from)
							busy += x.busy() - before
						})
					}
					b.ReportMetric(float64(b.N*batch)/took.Seconds(), "items/s")
					b.ReportMetric(1000*float64(busy)/float64(b.N*batch), "redis-cpu-ns/item")
				})
			}
		}
		// Replays are one letter a call.
		b.Run(fmt.Sprintf("replay/waiting=%d/batch=1", size), func(b *testing.B) {
			var took time.Duration
			for range b.N {
				l := letters(b, 1)[0]
				from := time.Now()
				if err := x.q.Replay(ctx, l, l.Message, false); err != nil {
					b.Fatal(err)
				}
				took += time.Since(from)
				drop(b, 1)
			}
			b.ReportMetric(float64(b.N)/took.Seconds(), "items/s")
		})
	}
}

// BenchmarkMemory measures what Redis holds for each pending message of 256
// bytes with its default id, and what of it is not id and payload.
func BenchmarkMemory(b *testing.B) {
	const n = 100_000
	ctx := context.Background()
	used := func(x *bench) int64 {
		return atoi(x.q.infos(ctx, "memory")[0].fields["used_memory"])
	}
	for range b.N {
		x := newBench(b, 0)
		before := used(x)
		idBytes := 0
		for i := 0; i < n; i += 1000 {
			r := x.requests(1000, time.Hour)
			x.check(b, x.q.Store(ctx, r))
			for i := range r {
				idBytes += len(r[i].Message.ID)
			}
		}
		each := float64(used(x)-before) / n
		b.ReportMetric(each, "B/message")
		b.ReportMetric(each-256-float64(idBytes)/n, "B/message-beyond-id-and-payload")

		// And what is left of each when it has been delivered.
		x.at(3_600_000)
		for i := 0; i < n; i += 500 {
			x.settled(b, x.q.Ack(ctx, x.claimed(b, 500)))
		}
		b.ReportMetric(float64(used(x)-before)/n, "B/tombstone")
	}
}
