package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"delaybridge"
)

// start runs a scheduler in the test's bubble and returns the function that stops
// it and says how it ended.
func start(t *testing.T, q *fakeQueue, sink delaybridge.SinkFunc, change ...func(*Config)) (stop func() error) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Lanes = []string{"nats", "kafka"}
	for _, c := range change {
		c(&cfg)
	}
	s, err := New(cfg, q, sink)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return func() error { cancel(); return <-ended }
}

func answer(err error) delaybridge.SinkFunc {
	return func(_ context.Context, batch []delaybridge.Claim) []error {
		errs := make([]error, len(batch))
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
}

func ok(t *testing.T, stop func() error) {
	t.Helper()
	if err := stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func TestDeliversAtTheDueTimeWithoutSpinning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		stop := start(t, q, answer(nil))
		begin := time.Now()
		q.add("nats", "x", "far1", 90*time.Minute)
		time.Sleep(2 * time.Hour)
		if late := q.ackedAt("far1").Sub(begin) - 90*time.Minute; late != 0 {
			t.Errorf("delivered %v late", late)
		}
		// Two lanes, a look a second each, and jitter.
		peeks, claims := q.calls()
		if most := 2*2*3600*5/4 + 10; peeks > most {
			t.Errorf("%d peeks in two hours, want at most %d", peeks, most)
		}
		if claims > 20 {
			t.Errorf("%d claims for one message", claims)
		}
		ok(t, stop)
	})
}

// B9 (OptimalBits/bull#244): a sleep of more than 2^31 ms was none.
func TestSixtyDaysAheadIsNotNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const far = 60 * 24 * time.Hour
		q := newFakeQueue()
		stop := start(t, q, answer(nil), func(c *Config) { c.Lanes, c.PollMax = []string{"nats"}, time.Hour })
		begin := time.Now()
		q.add("nats", "x", "far1", far)
		time.Sleep(far - time.Millisecond)
		if !q.ackedAt("far1").IsZero() {
			t.Errorf("delivered after %v", q.ackedAt("far1").Sub(begin))
		}
		// A look an hour, and jitter: the sleep is no longer than that.
		if peeks, claims := q.calls(); claims > 2 || peeks < 60*24 || peeks > 60*24*5/4+10 {
			t.Errorf("%d peeks and %d claims in sixty days", peeks, claims)
		}
		time.Sleep(2 * time.Millisecond)
		if got := q.ackedAt("far1").Sub(begin); got != far {
			t.Errorf("delivered after %v", got)
		}
		ok(t, stop)
	})
}

func TestSomethingEarlierInterruptsTheSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		stop := start(t, q, answer(nil), func(c *Config) { c.PollMax = time.Hour })
		q.add("nats", "x", "late1", 6*time.Hour)
		time.Sleep(time.Minute)
		begin := time.Now()
		q.add("nats", "x", "soon1", time.Second)
		q.add("nats", "x", "soon2", 0)
		time.Sleep(10 * time.Second)
		if got := q.ackedAt("soon1").Sub(begin); got != time.Second {
			t.Errorf("delivered after %v, want 1s", got)
		}
		if got := q.ackedAt("soon2").Sub(begin); got != 0 {
			t.Errorf("due now, delivered after %v", got)
		}
		ok(t, stop)
	})
}

func TestALostWakeUpCostsAPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		q.deaf, q.brokenWatch = true, errAway
		stop := start(t, q, answer(nil))
		time.Sleep(time.Minute)
		begin := time.Now()
		q.add("nats", "x", "a1", 0)
		time.Sleep(time.Minute)
		if got := q.ackedAt("a1").Sub(begin); got > time.Second {
			t.Errorf("delivered after %v, want at most a poll", got)
		}
		ok(t, stop)
	})
}

func TestWhatBecomesOfAFailedPublish(t *testing.T) {
	boom := errors.New("boom")
	tests := []struct {
		sentence string
		err      error
		failed   int
		settled  string
		reason   delaybridge.Reason
		notUntil time.Duration // of the next try
	}{
		{"a refusal for now is tried again after the back-off", delaybridge.Transient(boom), 0, "retry a1", "", 500 * time.Millisecond},
		{"no answer is tried again, but not before the lease ends", boom, 0, "retry a1", "", time.Minute},
		{"a refusal for ever is a dead letter at once", delaybridge.Permanent(boom), 0, "bury a1", delaybridge.ReasonPermanent, 0},
		{"the last attempt that is refused makes a dead letter", delaybridge.Transient(boom), 11, "bury a1", delaybridge.ReasonAttempts, 0},
		{"the last attempt without an answer makes a dead letter too", boom, 11, "bury a1", delaybridge.ReasonAttempts, 0},
		{"no connection gives it back and counts nothing", delaybridge.Unavailable(boom), 11, "release a1", "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFakeQueue()
				q.add("nats", "x", "a1", 0)
				q.due["nats"]["a1"].c.Failed = tt.failed
				stop := start(t, q, answer(tt.err))
				synctest.Wait()
				ok(t, stop)
				if len(q.settled) != 1 || q.settled[0] != tt.settled {
					t.Fatalf("settled %q, want %q", q.settled, tt.settled)
				}
				if b, dead := q.dead["a1"]; dead && (b.Reason != tt.reason || b.Error != "boom" || b.Failed != tt.failed+1) {
					t.Errorf("buried as %q, %q, %d failed", b.Reason, b.Error, b.Failed)
				}
				if it := q.due["nats"]["a1"]; tt.notUntil > 0 && (time.Until(it.at) < tt.notUntil || it.why != "boom") {
					t.Errorf("next try in %v, want at least %v; the error is %q", time.Until(it.at), tt.notUntil, it.why)
				}
			})
		})
	}
}

func TestATargetThatFailsIsLoggedOnceAndSoIsItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		core, logged := observer.New(zap.InfoLevel)
		var mended atomic.Bool
		stop := start(t, q, func(ctx context.Context, batch []delaybridge.Claim) []error {
			if mended.Load() {
				return answer(nil)(ctx, batch)
			}
			return answer(delaybridge.Transient(errors.New("no stream holds the subject")))(ctx, batch)
		}, func(c *Config) { c.Log = zap.New(core) })
		for i := range 300 {
			q.add("nats", fmt.Sprint("t", i%150), fmt.Sprintf("a%d", i), 0)
		}
		time.Sleep(30 * time.Second)
		mended.Store(true)
		time.Sleep(10 * time.Minute)
		ok(t, stop)
		begun, over := logged.FilterMessageSnippet("does not take").Len(), logged.FilterMessageSnippet("takes messages again").Len()
		if begun != failingMost || over != failingMost || len(q.acked) != 300 {
			t.Errorf("%d lines that a target fails, %d that it does not any more, want %d each for 150 targets; %d delivered",
				begun, over, failingMost, len(q.acked))
		}
	})
}

func TestExpiredIsADeadLetterAndNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		q.add("nats", "x", "a1", -time.Hour)
		q.due["nats"]["a1"].c.ExpiresAfter = time.Minute
		stop := start(t, q, func(context.Context, []delaybridge.Claim) []error {
			t.Error("published")
			return nil
		})
		synctest.Wait()
		ok(t, stop)
		if q.dead["a1"].Reason != delaybridge.ReasonExpired {
			t.Errorf("dead letters: %v", q.dead)
		}
	})
}

func TestADeadLetterIsCopiedToTheDeadTargetOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		q.add("kafka", "orders", "a1", 0)
		q.add("nats", "unused", "b1", 0)
		var mu sync.Mutex // both dead letters are copied through one lane, at once
		var copies []delaybridge.Claim
		stop := start(t, q, func(ctx context.Context, batch []delaybridge.Claim) []error {
			if batch[0].Target.Name == "dead" {
				mu.Lock()
				copies = append(copies, batch...)
				mu.Unlock()
			}
			return answer(delaybridge.Permanent(errors.New("bad\nnews")))(ctx, batch)
		}, func(c *Config) { c.DeadTarget = delaybridge.Target{Sink: "nats", Name: "dead"} })
		time.Sleep(time.Hour)
		ok(t, stop)
		if len(copies) != 2 || len(q.dead) != 4 {
			t.Fatalf("%d copies, %d dead letters, want 2 and 4 (a copy that cannot be delivered is a dead letter)", len(copies), len(q.dead))
		}
		for _, c := range copies {
			if c.ID == "dead:a1" && string(c.Headers[0].Value) != "permanent: kafka://orders: bad?news" {
				t.Errorf("Bridge-Error %q", c.Headers[0].Value)
			}
		}
	})
}

func TestAnAbandonedMessageIsCopiedToTheDeadTarget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		q.add("kafka", "orders", "a1", 0)
		it := q.due["kafka"]["a1"]
		delete(q.due["kafka"], "a1")
		it.c.LostLeases, it.end = 19, time.Now()
		q.inflight["kafka"]["a1"] = it
		var mu sync.Mutex
		var published []string
		stop := start(t, q, func(ctx context.Context, batch []delaybridge.Claim) []error {
			mu.Lock()
			defer mu.Unlock()
			for _, c := range batch {
				published = append(published, c.ID+" to "+c.Target.String()+" "+string(c.Headers[0].Value))
			}
			return answer(nil)(ctx, batch)
		}, func(c *Config) { c.DeadTarget = delaybridge.Target{Sink: "nats", Name: "dead"} })
		time.Sleep(time.Minute)
		ok(t, stop)
		if want := "dead:a1 to nats://dead abandoned: kafka://orders: its lease ran out 20 times"; len(published) != 1 || published[0] != want {
			t.Errorf("published %q, want %q", published, want)
		}
	})
}

func TestABrokerThatIsDownHoldsUpItsOwnLaneOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		var down atomic.Bool
		down.Store(true)
		var tries atomic.Int32
		stop := start(t, q, func(ctx context.Context, batch []delaybridge.Claim) []error {
			if batch[0].Target.Sink == "kafka" {
				tries.Add(int32(len(batch)))
				if down.Load() {
					return answer(delaybridge.Unavailable(errAway))(ctx, batch)
				}
			}
			return answer(nil)(ctx, batch)
		})
		for i := range 500 {
			q.add("kafka", "k", fmt.Sprintf("k%d", i), 0)
		}
		time.Sleep(10 * time.Minute)
		begin := time.Now()
		q.add("nats", "x", "n1", 0)
		synctest.Wait()
		if q.ackedAt("n1") != begin {
			t.Error("the other lane was held up")
		}
		// A batch finds out, then one message every two seconds.
		if n := tries.Load(); n > 500+350 {
			t.Errorf("%d publishes at a broker that is down", n)
		}
		down.Store(false)
		time.Sleep(probeLongest + time.Second)
		q.mu.Lock()
		defer func() { q.mu.Unlock(); ok(t, stop) }()
		if len(q.acked) != 501 {
			t.Errorf("%d delivered after the broker came back, want 501", len(q.acked))
		}
		for id, it := range q.due["kafka"] {
			t.Errorf("%s left with %d failed attempts", id, it.c.Failed)
		}
	})
}

func TestATargetThatDoesNotAnswerDoesNotStarveOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		var dead atomic.Int32
		stop := start(t, q, func(ctx context.Context, batch []delaybridge.Claim) []error {
			if batch[0].Target.Name == "dead" {
				dead.Add(int32(len(batch)))
				time.Sleep(10 * time.Second)
				return answer(context.DeadlineExceeded)(ctx, batch)
			}
			return answer(nil)(ctx, batch)
		}, func(c *Config) { c.MaxInflight, c.Batch = 400, 50 })
		for i := range 5000 {
			q.add("nats", "dead", fmt.Sprintf("d%d", i), 0)
		}
		// What is in hand before anybody can know takes up the lane for a second.
		time.Sleep(2500 * time.Millisecond)
		for round := range 60 {
			begin := time.Now()
			id := fmt.Sprintf("good%d", round)
			q.add("nats", "good", id, 0)
			time.Sleep(2 * time.Second)
			if at := q.ackedAt(id); at.IsZero() || at.Sub(begin) > time.Second {
				t.Fatalf("round %d: %q took until %v", round, id, at.Sub(begin))
			}
		}
		if dead.Load() == 0 {
			t.Error("nothing went to the target that does not answer")
		}
		ok(t, stop)
	})
}

func TestALaneHoldsNoMoreBytesThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		var held, most atomic.Int32
		stop := start(t, q, func(ctx context.Context, batch []delaybridge.Claim) []error {
			n := int32(0)
			for _, c := range batch {
				n += int32(len(c.Payload))
			}
			for now := held.Add(n); now > most.Load(); {
				most.Store(now)
			}
			time.Sleep(time.Second)
			held.Add(-n)
			return answer(nil)(ctx, batch)
		}, func(c *Config) { c.Batch, c.MaxInflightBytes = 5, 1000 })
		const each, all, round = 100, 200, 4 * 5 // four shards
		for i := range all {
			q.put(delaybridge.Message{
				ID: fmt.Sprint("m", i), Target: delaybridge.Target{Sink: "nats", Name: fmt.Sprint("t", i)},
				Due: time.Now().Add(2 * time.Second), Payload: make([]byte, each),
			})
		}
		time.Sleep(time.Minute)
		for i := range all {
			if q.ackedAt(fmt.Sprint("m", i)).IsZero() {
				t.Fatalf("m%d was not delivered", i)
			}
		}
		if most.Load() > 1000+round*each {
			t.Errorf("%d bytes were in hand", most.Load())
		}
		ok(t, stop)
	})
}

// The broker comes back, and what it is tried with first is for a subject that
// nobody confirms.
func TestAProbeThatIsNotConfirmedHoldsUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		var up atomic.Bool
		stop := start(t, q, func(ctx context.Context, batch []delaybridge.Claim) []error {
			switch {
			case !up.Load():
				return answer(delaybridge.Unavailable(errAway))(ctx, batch)
			case batch[0].Target.Name == "hole":
				time.Sleep(10 * time.Second)
				return answer(errors.New("no answer"))(ctx, batch)
			}
			return answer(nil)(ctx, batch)
		})
		for i := range 1000 {
			q.add("nats", "hole", fmt.Sprintf("h%d", i), 0)
		}
		time.Sleep(time.Minute)
		up.Store(true)
		time.Sleep(5 * time.Second)
		q.add("nats", "x", "a1", 0)
		time.Sleep(15 * time.Second)
		if q.ackedAt("a1").IsZero() {
			t.Error("held up by a subject that nobody confirms")
		}
		ok(t, stop)
	})
}

func TestWhatIsPutOffGoesByTheQueuesClock(t *testing.T) {
	cfg := DefaultConfig()
	l := &lane{cfg: &cfg}
	now := time.UnixMilli(1_000_000_000_500) // by the queue's clock, long ago by this host's
	for _, row := range []struct {
		sentence string
		due      time.Time
		min, max time.Time
	}{
		{"what is due already waits some seconds", now.Add(-time.Hour), now, now.Add(time.Second + postponeFor)},
		{"what is not due any more, since the clock stepped back, is not made earlier", now.Add(time.Hour), now.Add(time.Hour), now.Add(time.Hour)},
	} {
		c := delaybridge.Claim{Message: delaybridge.Message{Due: row.due}, Lease: delaybridge.Lease{End: now.Add(cfg.Lease).UnixMilli()}}
		for range 100 {
			if at := l.postponed(c).Due; at.Before(row.min) || at.After(row.max) {
				t.Fatalf("%s: put off to %v, want %v to %v", row.sentence, at, row.min, row.max)
			}
		}
	}
}

// A shard of a cluster may be away, or refuse to write, while the others work.
func TestTroubleWithOneShardIsLoggedOnceAndHoldsUpNoOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		q.brokenShard = map[int]error{1: errAway}
		core, logged := observer.New(zap.InfoLevel)
		stop := start(t, q, answer(nil), func(c *Config) { c.Lanes, c.Log = []string{"nats"}, zap.New(core) })
		for i := range 1000 {
			q.add("nats", "x", fmt.Sprintf("a%d", i), time.Duration(i)*100*time.Millisecond)
		}
		time.Sleep(2 * time.Minute)
		for i := range 1000 {
			id := fmt.Sprintf("a%d", i)
			if healthy := int(id[len(id)-1])%q.shards != 1; q.ackedAt(id).IsZero() == healthy {
				t.Fatalf("%s delivered: %v, want %v", id, !healthy, healthy)
			}
		}
		q.set(func(q *fakeQueue) { q.brokenShard = nil })
		time.Sleep(5 * time.Second)
		ok(t, stop)
		if n := len(q.acked); n != 1000 {
			t.Errorf("%d of 1000 delivered after the shard came back", n)
		}
		if n := logged.FilterMessageSnippet("queue").Len(); n != 2 {
			t.Errorf("logged %d lines of the queue, want that it fails and that it answers:\n%v", n, logged.All())
		}
	})
}

func TestSettlingIsTriedWhileTheLeaseLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		stop := start(t, q, answer(nil))
		q.set(func(q *fakeQueue) { q.brokenSettle = errAway })
		q.add("nats", "x", "a1", 0)
		time.Sleep(30 * time.Second)
		q.set(func(q *fakeQueue) { q.brokenSettle = nil })
		time.Sleep(5 * time.Second)
		if q.ackedAt("a1").IsZero() {
			t.Error("not settled though its lease had not ended")
		}
		ok(t, stop)
	})
}

func TestTheLoopOutlivesAQueueThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		stop := start(t, q, answer(nil))
		q.set(func(q *fakeQueue) { q.broken, q.brokenSettle = errAway, errAway })
		q.add("nats", "x", "a1", 0)
		time.Sleep(10 * time.Minute)
		if peeks, claims := q.calls(); peeks+claims > 2*2*600*3 {
			t.Errorf("%d peeks and %d claims in ten minutes to a queue that is away", peeks, claims)
		}
		q.set(func(q *fakeQueue) { q.broken, q.brokenSettle = nil, nil })
		time.Sleep(5 * time.Second)
		if q.ackedAt("a1").IsZero() {
			t.Error("not delivered after the queue came back")
		}
		ok(t, stop)
	})
}

func TestStopFinishesWhatIsInHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		var published sync.Map
		stop := start(t, q, func(_ context.Context, batch []delaybridge.Claim) []error {
			time.Sleep(5 * time.Second)
			for _, c := range batch {
				published.Store(c.ID, true)
			}
			return make([]error, len(batch))
		})
		for i := range 1000 {
			q.add("nats", "x", fmt.Sprintf("a%d", i), 0)
		}
		synctest.Wait()
		ok(t, stop)
		if len(q.inflight["nats"]) != 0 {
			t.Errorf("%d left in flight", len(q.inflight["nats"]))
		}
		for id := range q.acked {
			if _, was := published.Load(id); !was {
				t.Errorf("%s acked without a publish", id)
			}
		}
	})
}

func TestStopGivesUpAtTheShutdownTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		stop := start(t, q, func(ctx context.Context, batch []delaybridge.Claim) []error {
			<-ctx.Done()
			return answer(ctx.Err())(ctx, batch)
		})
		q.add("nats", "x", "a1", 0)
		synctest.Wait()
		begin := time.Now()
		if err := stop(); err == nil {
			t.Error("Run returned nil though a message was left")
		}
		if took := time.Since(begin); took != 30*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestNeverHoldsMoreThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue()
		var now, most atomic.Int32
		stop := start(t, q, func(_ context.Context, batch []delaybridge.Claim) []error {
			n := now.Add(int32(len(batch)))
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(100 * time.Millisecond)
			now.Add(-int32(len(batch)))
			return make([]error, len(batch))
		}, func(c *Config) { c.MaxInflight, c.Batch = 100, 30 })
		for i := range 5000 {
			q.add("nats", fmt.Sprint("x", i%7), fmt.Sprintf("a%d", i), 0)
		}
		time.Sleep(time.Minute)
		ok(t, stop)
		if most.Load() > 100 {
			t.Errorf("%d in hand, want at most 100", most.Load())
		}
		if len(q.acked) != 5000 {
			t.Errorf("%d of 5000 delivered", len(q.acked))
		}
	})
}
