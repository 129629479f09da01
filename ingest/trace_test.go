package ingest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"delaybridge"
	"delaybridge/ingest"
)

// tracer keeps what it was told.
type tracer struct {
	received int
	stored   map[int]delaybridge.Outcome
	ended    bool
}

func (t *tracer) Received(records []ingest.Record, requests []delaybridge.Request) ingest.Trace {
	t.received += len(records)
	for i := range requests {
		requests[i].Message.Headers = append(requests[i].Message.Headers[:len(requests[i].Message.Headers):len(requests[i].Message.Headers)],
			delaybridge.Header{Name: "traceparent", Value: fmt.Append(nil, i)})
	}
	return t
}

func (t *tracer) Stored(i int, outcome delaybridge.Outcome) { t.stored[i] = outcome }
func (t *tracer) End()                                      { t.ended = true }

// answers is a queue that fails for some time, and keeps what it took.
type answers struct {
	failures int
	took     []delaybridge.Request
}

func (q *answers) Store(_ context.Context, requests []delaybridge.Request) []delaybridge.Result {
	results := make([]delaybridge.Result, len(requests))
	if q.failures > 0 {
		q.failures--
		for i := range results {
			results[i].Err = context.DeadlineExceeded
		}
		return results
	}
	q.took = append(q.took[:0], requests...)
	return results
}

func (q *answers) Pressure(context.Context) (delaybridge.Pressure, error) {
	return delaybridge.Pressure{}, nil
}

func (q *answers) Incarnation(_ context.Context, source, _ string) (string, error) {
	return source, nil
}

func tracedHandler(t testing.TB, q ingest.Queue, tr ingest.Tracer) *ingest.Handler {
	t.Helper()
	d, err := ingest.NewDecoder(ingest.DefaultDecoderConfig())
	if err != nil {
		t.Fatal(err)
	}
	c := ingest.DefaultConfig()
	c.Queue, c.Decoder, c.Trace, c.RetryMin, c.RetryMax = q, d, tr, time.Millisecond, time.Millisecond
	h, err := ingest.NewHandler(c)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func plainRecords(n int) []ingest.Record {
	records := make([]ingest.Record, n)
	for i := range records {
		records[i] = ingest.Record{
			Position: delaybridge.Position{Source: "nats:S", Offset: uint64(i + 1)}, Origin: delaybridge.Target{Sink: "nats", Name: "bridge.schedule"}, Time: time.Now(),
			Headers: []delaybridge.Header{{Name: "Bridge-Target", Value: []byte("nats://orders")}, {Name: "Bridge-Delay", Value: []byte("5s")}},
		}
	}
	return records
}

func TestTracerIsToldOfEachRecordOnce(t *testing.T) {
	t.Parallel()
	tr, q := &tracer{stored: map[int]delaybridge.Outcome{}}, &answers{failures: 3}
	records := plainRecords(3)
	records[1].Headers = nil // refused
	tracedHandler(t, q, tr).Handle(t.Context(), "nats:S", records)
	if tr.received != 3 || !tr.ended {
		t.Errorf("received %d, ended %v", tr.received, tr.ended)
	}
	want := map[int]delaybridge.Outcome{0: delaybridge.Scheduled, 1: delaybridge.Rejected, 2: delaybridge.Scheduled}
	if fmt.Sprint(tr.stored) != fmt.Sprint(want) {
		t.Errorf("stored %v", tr.stored)
	}
	for i, r := range q.took {
		if h := r.Message.Headers; len(h) == 0 || string(h[len(h)-1].Value) != fmt.Sprint(i) {
			t.Errorf("request %d was stored without the header of its trace: %v", i, h)
		}
	}
}

func BenchmarkHandle(b *testing.B) {
	h, records := tracedHandler(b, &answers{}, nil), plainRecords(200)
	b.ReportAllocs()
	for b.Loop() {
		h.Handle(b.Context(), "nats:S", records)
	}
}
