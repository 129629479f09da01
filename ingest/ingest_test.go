package ingest_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"delaybridge"
	"delaybridge/ingest"
)

// fakeQueue takes what the test says.
type fakeQueue struct {
	mu       sync.Mutex
	store    func(r delaybridge.Request) delaybridge.Result
	pressure func() (delaybridge.Pressure, error)
	requests []delaybridge.Request
	stores   int
	asked    int
}

func (q *fakeQueue) Store(_ context.Context, rs []delaybridge.Request) []delaybridge.Result {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stores++
	results := make([]delaybridge.Result, len(rs))
	for i, r := range rs {
		if q.store != nil {
			results[i] = q.store(r)
		}
		if results[i].Err == nil {
			q.requests = append(q.requests, r)
		}
	}
	return results
}

func (q *fakeQueue) Pressure(context.Context) (delaybridge.Pressure, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked++
	if q.pressure == nil {
		return delaybridge.Pressure{}, nil
	}
	return q.pressure()
}

func (q *fakeQueue) Incarnation(_ context.Context, source, _ string) (string, error) {
	return source, nil
}

func newHandler(t *testing.T, q *fakeQueue, change func(*ingest.Config)) *ingest.Handler {
	t.Helper()
	cfg := ingest.DefaultConfig()
	cfg.Queue, cfg.Decoder = q, newDecoder(t, nil)
	if change != nil {
		change(&cfg)
	}
	h, err := ingest.NewHandler(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func records(n int) []ingest.Record {
	rs := make([]ingest.Record, n)
	for i := range rs {
		rs[i] = ingest.Record{
			Position: delaybridge.Position{Source: "nats:S", Offset: uint64(i + 1)},
			Headers:  []delaybridge.Header{{Name: "Bridge-Target", Value: []byte("nats://x")}, {Name: "Bridge-Delay", Value: []byte("1s")}},
			Payload:  []byte(strconv.Itoa(i)),
		}
	}
	return rs
}

func count(stored []bool) (n int) {
	for _, s := range stored {
		if s {
			n++
		}
	}
	return n
}

func TestHandleStoresOnce(t *testing.T) {
	q := &fakeQueue{}
	var seen []string
	h := newHandler(t, q, func(c *ingest.Config) {
		c.Observe = func(source string, o delaybridge.Outcome) { seen = append(seen, source+" "+o.String()) }
	})
	rs := records(2)
	rs[1].Headers = nil // refused
	rs[0].Origin = delaybridge.Target{Sink: "nats", Name: "bridge.schedule"}
	q.store = func(r delaybridge.Request) delaybridge.Result {
		if r.Op == delaybridge.OpReject {
			return delaybridge.Result{Outcome: delaybridge.Rejected}
		}
		return delaybridge.Result{Outcome: delaybridge.Replaced}
	}
	if got := count(h.Handle(t.Context(), "nats", rs)); got != 2 || q.stores != 1 {
		t.Errorf("%d stored in %d calls", got, q.stores)
	}
	if len(seen) != 2 || seen[0] != "nats://bridge.schedule replaced" || seen[1] != "nats rejected" {
		t.Errorf("observed %v", seen)
	}
}

func TestHandleCountsWhatGoesToTheRejectTargetAsRejected(t *testing.T) {
	q := &fakeQueue{}
	var seen []delaybridge.Outcome
	h := newHandler(t, q, func(c *ingest.Config) {
		c.Decoder = newDecoder(t, func(c *ingest.DecoderConfig) { c.RejectTarget = delaybridge.Target{Sink: "kafka", Name: "rejects"} })
		c.Observe = func(_ string, o delaybridge.Outcome) { seen = append(seen, o) }
	})
	h.Handle(t.Context(), "nats", []ingest.Record{{}})
	q.store = func(delaybridge.Request) delaybridge.Result {
		return delaybridge.Result{Outcome: delaybridge.Duplicate}
	}
	h.Handle(t.Context(), "nats", []ingest.Record{{}})
	if len(seen) != 2 || seen[0] != delaybridge.Rejected || seen[1] != delaybridge.Duplicate {
		t.Errorf("observed %v", seen)
	}
}

// Ten minutes of an unwell queue: nothing is lost, nothing is stored twice, the
// loop neither spins nor gives up, and the log has two lines.
// A producer that goes wrong must be heard of, and must not fill the log.
func TestHandleTellsOfRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zap.InfoLevel)
		q := &fakeQueue{store: func(delaybridge.Request) delaybridge.Result {
			return delaybridge.Result{Outcome: delaybridge.Rejected}
		}}
		h := newHandler(t, q, func(c *ingest.Config) { c.Log = zap.New(core) })
		bad := records(50)
		for i := range bad {
			bad[i].Headers[1].Value = []byte("5")
		}
		h.Handle(t.Context(), "nats:S", bad)
		time.Sleep(time.Minute)
		h.Handle(t.Context(), "nats:S", bad[:1])
		lines := logged.All()
		if len(lines) != 2 {
			t.Fatalf("%d lines, want one for the first and one a minute later: %v", len(lines), lines)
		}
		first, second := lines[0].ContextMap(), lines[1].ContextMap()
		if first["id"] != "rejected:nats:S:1" || !strings.Contains(first["error"].(string), "Bridge-Delay") || second["others_since"] != int64(49) {
			t.Errorf("said %v and %v", first, second)
		}
	})
}

func TestHandleCopiesRejectedDeadLettersToTheDeadTarget(t *testing.T) {
	copies := 0
	q := &fakeQueue{store: func(r delaybridge.Request) delaybridge.Result {
		if r.Op == delaybridge.OpSchedule {
			if copies++; copies == 1 {
				return delaybridge.Result{Err: errors.New("away")} // the letter alone is not enough
			}
		}
		return delaybridge.Result{Outcome: delaybridge.Rejected}
	}}
	h := newHandler(t, q, func(c *ingest.Config) {
		c.RetryMin = time.Millisecond
		c.Decoder = newDecoder(t, func(c *ingest.DecoderConfig) {
			c.DeadTarget = delaybridge.Target{Sink: "nats", Name: "dead"}
		})
	})
	bad := records(1)
	bad[0].Headers[1].Value = []byte("5")
	if stored := h.Handle(t.Context(), "nats:S", bad); !stored[0] {
		t.Fatal("not stored")
	}
	if len(q.requests) != 3 || copies != 2 {
		t.Fatalf("%d requests stored, %d copies tried", len(q.requests), copies)
	}
	m := q.requests[2].Message
	if m.ID != "dead:rejected:nats:S:1" || m.Target.Name != "dead" || string(m.Payload) != "0" || !delaybridge.IsDeadCopy(&m, m.Target) {
		t.Errorf("the copy is %+v", m)
	}
	if m.Headers[0].Name != "Bridge-Error" || !strings.HasPrefix(string(m.Headers[0].Value), "rejected: invalid_") {
		t.Errorf("headers %q", m.Headers)
	}
}

func TestHandleOutlastsTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		start := time.Now()
		q := &fakeQueue{}
		q.store = func(r delaybridge.Request) delaybridge.Result {
			if r.Message.Position.Offset%2 == 0 && time.Since(start) < 10*time.Minute {
				return delaybridge.Result{Err: errors.New("OOM command not allowed")}
			}
			return delaybridge.Result{}
		}
		h := newHandler(t, q, func(c *ingest.Config) { c.Log = zap.New(core) })
		if got := count(h.Handle(t.Context(), "nats", records(10))); got != 10 || len(q.requests) != 10 {
			t.Errorf("%d of 10 stored, %d requests", got, len(q.requests))
		}
		if took := time.Since(start); took < 10*time.Minute || took > 10*time.Minute+3*time.Second {
			t.Errorf("took %v", took)
		}
		if q.stores < 300 || q.stores > 700 {
			t.Errorf("%d calls in ten minutes", q.stores)
		}
		if logs.Len() != 2 {
			t.Errorf("log: %v", logs.All())
		}
	})
}

func TestHandleGivesUpAfterTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &fakeQueue{store: func(r delaybridge.Request) delaybridge.Result {
			if r.Message.Position.Offset == 2 {
				return delaybridge.Result{Err: errors.New("connection refused")}
			}
			return delaybridge.Result{}
		}}
		h := newHandler(t, q, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		stored := h.Handle(ctx, "nats", records(3))
		if !stored[0] || stored[1] || !stored[2] {
			t.Errorf("stored %v", stored)
		}
		if took := time.Since(start); took != 70*time.Second {
			t.Errorf("took %v, want a minute and the grace of ten seconds", took)
		}
	})
}

func TestHandleStillStoresWhatIsInHandWhenStopped(t *testing.T) {
	q := &fakeQueue{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if got := count(newHandler(t, q, nil).Handle(ctx, "nats", records(3))); got != 3 {
		t.Errorf("%d of 3 stored", got)
	}
}

// What the queue itself refuses must not hold up the others for ever.
func TestHandleRejectsWhatTheQueueRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &fakeQueue{store: func(r delaybridge.Request) delaybridge.Result {
			if r.Op == delaybridge.OpSchedule && r.Message.Position.Offset == 2 {
				return delaybridge.Result{Err: &delaybridge.FieldError{Code: "invalid_id", Field: "id", Reason: "is odd"}}
			}
			return delaybridge.Result{}
		}}
		if got := count(newHandler(t, q, nil).Handle(t.Context(), "nats", records(3))); got != 3 {
			t.Fatalf("%d of 3 stored", got)
		}
		last := q.requests[len(q.requests)-1]
		if last.Op != delaybridge.OpReject || last.Message.ID != "rejected:nats:S:2" || string(last.Message.Payload) != "1" {
			t.Errorf("got %+v", last)
		}
	})
}

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.InfoLevel)
		var p delaybridge.Pressure
		var err error
		q := &fakeQueue{pressure: func() (delaybridge.Pressure, error) { return p, err }}
		h := newHandler(t, q, func(c *ingest.Config) { c.MaxPending, c.Log = 100, zap.New(core) })
		for _, c := range []struct {
			sentence string
			p        delaybridge.Pressure
			err      error
			want     bool
		}{
			{"an empty queue", delaybridge.Pressure{}, nil, true},
			{"as many as are allowed", delaybridge.Pressure{Pending: 100}, nil, true},
			{"one more", delaybridge.Pressure{Pending: 101}, nil, false},
			{"still", delaybridge.Pressure{Pending: 500}, nil, false},
			{"room again", delaybridge.Pressure{Pending: 99}, nil, true},
			{"memory at the limit", delaybridge.Pressure{MemoryRatio: 0.9}, nil, true},
			{"memory above it", delaybridge.Pressure{MemoryRatio: 0.91}, nil, false},
			{"a queue that does not answer", delaybridge.Pressure{}, errors.New("LOADING"), false},
			{"all well", delaybridge.Pressure{}, nil, true},
		} {
			time.Sleep(time.Second)
			p, err = c.p, c.err
			if got := h.Open(t.Context()); got != c.want {
				t.Errorf("%s: open is %v", c.sentence, got)
			}
			asked := q.asked
			if got := h.Open(t.Context()); got != c.want || q.asked != asked {
				t.Errorf("%s: asked again within the second", c.sentence)
			}
		}
		if logs.Len() != 4 {
			t.Errorf("the log has %d lines, want one for each change: %v", logs.Len(), logs.All())
		}

		time.Sleep(time.Second)
		p.Pending = 101
		start := time.Now()
		time.AfterFunc(90*time.Second, func() { q.mu.Lock(); p.Pending = 0; q.mu.Unlock() })
		if err := h.WaitOpen(t.Context()); err != nil || time.Since(start) > 92*time.Second || time.Since(start) < 90*time.Second {
			t.Errorf("waited %v: %v", time.Since(start), err)
		}
		time.Sleep(time.Second)
		p.Pending = 101
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := h.WaitOpen(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stopped while waiting: %v", err)
		}
	})
}
