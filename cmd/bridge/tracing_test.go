package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/luascripts"
)

// keptSpans is an exporter that keeps what it is given, or fails.
type keptSpans struct {
	mu   sync.Mutex
	all  []sdktrace.ReadOnlySpan
	fail error
}

func (k *keptSpans) ExportSpans(_ context.Context, spans []sdktrace.ReadOnlySpan) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, spans...)
	return k.fail
}

func (k *keptSpans) Shutdown(context.Context) error { return nil }

// traced returns tracing, and what to call for the spans that it has made.
func traced(t testing.TB, sampler sdktrace.Sampler) (*tracing, func() []sdktrace.ReadOnlySpan) {
	t.Helper()
	kept := &keptSpans{}
	tr, err := newTracing(kept, sampler)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.close)
	return tr, func() []sdktrace.ReadOnlySpan {
		if err := tr.provider.ForceFlush(context.Background()); err != nil {
			t.Fatal(err)
		}
		kept.mu.Lock()
		defer kept.mu.Unlock()
		return slices.Clone(kept.all)
	}
}

const (
	sampledParent   = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	unsampledParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
)

func headers(pairs ...string) (h []delaybridge.Header) {
	for i := 0; i < len(pairs); i += 2 {
		h = append(h, delaybridge.Header{Name: pairs[i], Value: []byte(pairs[i+1])})
	}
	return h
}

func textOf(h []delaybridge.Header) string {
	var b strings.Builder
	for _, x := range h {
		b.WriteString(x.Name + "=" + string(x.Value) + ";")
	}
	return b.String()
}

func TestOriginOf(t *testing.T) {
	for _, row := range []struct {
		sentence string
		headers  []delaybridge.Header
		want     bool
	}{
		{"a traceparent is an origin", headers("traceparent", sampledParent), true},
		{"in any letter case", headers("TraceParent", sampledParent), true},
		{"two are none", headers("traceparent", sampledParent, "Traceparent", sampledParent), false},
		{"a broken one is none", headers("traceparent", "00-abc"), false},
		{"one of zeros is none", headers("traceparent", "00-00000000000000000000000000000000-0000000000000000-01"), false},
		{"a null one is none", []delaybridge.Header{{Name: "traceparent"}}, false},
		{"no header is none", nil, false},
	} {
		if got := originOf(row.headers); got.IsValid() != row.want {
			t.Errorf("%s: %v", row.sentence, got)
		}
	}
	if state := originOf(headers("traceparent", sampledParent, "tracestate", "a=1", "TraceState", "b=2")).TraceState().String(); state != "a=1,b=2" {
		t.Errorf("tracestate in two headers is %q", state)
	}
}

func TestWithTrace(t *testing.T) {
	id, _ := trace.TraceIDFromHex("0123456789abcdef0123456789abcdef")
	span, _ := trace.SpanIDFromHex("0123456789abcdef")
	sc := trace.NewSpanContext(trace.SpanContextConfig{TraceID: id, SpanID: span, TraceFlags: trace.FlagsSampled})
	const value = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"
	for _, row := range []struct {
		sentence, want string
		headers        []delaybridge.Header
	}{
		{"a message without one gets one at the end", "a=1;traceparent=" + value + ";", headers("a", "1")},
		{"one that is there keeps its place and its name", "a=1;TraceParent=" + value + ";b=2;", headers("a", "1", "TraceParent", sampledParent, "b", "2")},
		{"a second one goes, and so does the old trace's state", "traceparent=" + value + ";a=1;",
			headers("traceparent", "x", "tracestate", "v=1", "a", "1", "Traceparent", "y")},
	} {
		before := textOf(row.headers)
		if got := textOf(withTrace(row.headers, sc)); got != row.want {
			t.Errorf("%s: %s", row.sentence, got)
		}
		if textOf(row.headers) != before {
			t.Errorf("%s: the headers that were given have changed", row.sentence)
		}
	}
}

func TestSamplingGoesByTheOrigin(t *testing.T) {
	always, never := sdktrace.ParentBased(sdktrace.AlwaysSample()), sdktrace.ParentBased(sdktrace.NeverSample())
	for _, row := range []struct {
		sentence string
		sampler  sdktrace.Sampler
		headers  []delaybridge.Header
		want     bool
	}{
		{"no origin: the root's sampler decides", always, nil, true},
		{"no origin: the root's sampler decides against", never, nil, false},
		{"a sampled origin is sampled", never, headers("traceparent", sampledParent), true},
		{"an unsampled one is not", always, headers("traceparent", unsampledParent), false},
		{"always_on does not ask", sdktrace.AlwaysSample(), headers("traceparent", unsampledParent), true},
		{"always_off does not ask", sdktrace.NeverSample(), headers("traceparent", sampledParent), false},
	} {
		tr, made := traced(t, row.sampler)
		sink := tr.sink(delaybridge.SinkFunc(func(_ context.Context, batch []delaybridge.Claim) []error {
			sc := originOf(batch[0].Headers)
			if !sc.IsValid() || sc.IsSampled() != row.want || sc.TraceState().Len() > 0 {
				t.Errorf("%s: the message carries %v", row.sentence, sc)
			}
			return make([]error, len(batch))
		}))
		sink.Publish(t.Context(), []delaybridge.Claim{{Message: delaybridge.Message{ID: "a", Target: delaybridge.Target{Sink: "nats", Name: "x"}, Headers: row.headers}}})
		if got := len(made()) == 1; got != row.want {
			t.Errorf("%s: %v", row.sentence, got)
		}
	}
}

func TestPublishSpansTellFailures(t *testing.T) {
	tr, made := traced(t, sdktrace.AlwaysSample())
	batch := []delaybridge.Claim{
		{Message: delaybridge.Message{ID: "good", Target: delaybridge.Target{Sink: "kafka", Name: "t"}, Headers: headers("traceparent", sampledParent)}},
		{Message: delaybridge.Message{ID: "bad", Target: delaybridge.Target{Sink: "kafka", Name: "t"}, Payload: []byte("p")}, Failed: 2},
	}
	errs := tr.sink(delaybridge.SinkFunc(func(context.Context, []delaybridge.Claim) []error {
		return []error{nil, delaybridge.Transient(errors.New("full"))}
	})).Publish(t.Context(), batch)
	if errs[0] != nil || errs[1] == nil {
		t.Errorf("outcomes %v", errs)
	}
	if textOf(batch[0].Headers) != "traceparent="+sampledParent+";" {
		t.Errorf("the scheduler's claim was changed: %s", textOf(batch[0].Headers))
	}
	spans := made()
	if len(spans) != 2 {
		t.Fatalf("%d spans", len(spans))
	}
	attributes := func(s sdktrace.ReadOnlySpan) map[string]string {
		m := map[string]string{}
		for _, a := range s.Attributes() {
			m[string(a.Key)] = a.Value.String()
		}
		return m
	}
	good, bad := attributes(spans[0]), attributes(spans[1])
	if good["messaging.kafka.message.tombstone"] != "true" || good["messaging.system"] != "kafka" || len(spans[0].Links()) != 1 || spans[0].Status().Code == codes.Error {
		t.Errorf("good: %v, %v", good, spans[0].Status())
	}
	if bad["error.type"] != "transient" || bad["delaybridge.attempt"] != "3" || spans[1].Status().Code != codes.Error || len(spans[1].Links()) != 0 {
		t.Errorf("bad: %v, %v", bad, spans[1].Status())
	}
}

func TestIngestSpans(t *testing.T) {
	tr, made := traced(t, sdktrace.ParentBased(sdktrace.AlwaysSample()))
	records := []ingest.Record{
		{Origin: delaybridge.Target{Sink: "kafka", Name: "in"}, Position: delaybridge.Position{Source: "kafka:in:3", Offset: 9}, Headers: headers("traceparent", sampledParent)},
		{Origin: delaybridge.Target{Sink: "nats", Name: "in"}},
		{Origin: delaybridge.Target{Sink: "nats", Name: "in"}},
		{Origin: delaybridge.Target{Sink: "nats", Name: "in"}},
	}
	requests := []delaybridge.Request{
		{Message: delaybridge.Message{ID: "child", Headers: headers("traceparent", sampledParent)}},
		{Message: delaybridge.Message{ID: "root", Headers: headers("a", "1")}},
		{Op: delaybridge.OpCancel, Message: delaybridge.Message{ID: "cancel"}},
		{Message: delaybridge.Message{ID: "left"}},
	}
	spans := tr.source().Received(records, requests)
	for i := range 3 {
		spans.Stored(i, delaybridge.Scheduled)
		spans.Stored(i, delaybridge.Scheduled) // harmless
	}
	spans.End()
	if got := textOf(requests[0].Message.Headers); got != "traceparent="+sampledParent+";" {
		t.Errorf("the producer's context was changed: %s", got)
	}
	if sc := originOf(requests[1].Message.Headers); !sc.IsValid() || requests[1].Message.Headers[0].Name != "a" {
		t.Errorf("no context was given: %s", textOf(requests[1].Message.Headers))
	}
	if requests[2].Message.Headers != nil {
		t.Error("a cancel was given headers")
	}
	all := made()
	if len(all) != 4 {
		t.Fatalf("%d spans", len(all))
	}
	for _, s := range all {
		attributes := map[string]string{}
		for _, a := range s.Attributes() {
			attributes[string(a.Key)] = a.Value.String()
		}
		switch attributes["messaging.message.id"] {
		case "child":
			if s.Parent().TraceID().String() != "4bf92f3577b34da6a3ce929d0e0e4736" || attributes["messaging.kafka.offset"] != "9" || attributes["messaging.destination.partition.id"] != "3" {
				t.Errorf("child: %v, %v", s.Parent(), attributes)
			}
		case "root":
			if s.Parent().IsValid() || s.SpanContext().SpanID() != originOf(requests[1].Message.Headers).SpanID() {
				t.Errorf("root: %v", s.Parent())
			}
		case "left":
			if s.Status().Code != codes.Error {
				t.Errorf("left: %v", s.Status())
			}
		}
	}
}

// TestTracingOffIsFree has nothing wrapped and nothing hooked in.
func TestTracingOffIsFree(t *testing.T) {
	for _, name := range []string{"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"} {
		t.Setenv(name, "")
	}
	off, err := startTracing(zap.NewNop())
	if off != nil || err != nil {
		t.Fatalf("tracing %v, error %v", off, err)
	}
	if off.source() != nil {
		t.Error("ingest has a hook")
	}
	q := &luascripts.Queue{}
	if got, ok := off.queue(q).(*luascripts.Queue); !ok || got != q {
		t.Error("the queue is wrapped")
	}
	s := &countedSink{}
	if got, ok := off.sink(s).(*countedSink); !ok || got != s {
		t.Error("the sink is wrapped")
	}
	off.close()
	batch := make([]delaybridge.Claim, 10)
	sink := off.sink(s)
	if n := testing.AllocsPerRun(100, func() { sink.Publish(context.Background(), batch) }); n != 0 {
		t.Errorf("a publish allocates %v times more", n)
	}
}

// countedSink confirms everything, and allocates nothing.
type countedSink struct{ errs [200]error }

func (s *countedSink) Publish(_ context.Context, batch []delaybridge.Claim) []error {
	return s.errs[:len(batch)]
}

func TestExporterIsToldOfOnce(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	kept := &keptSpans{fail: errors.New("no collector at http://token@collector:4318")}
	e := &toldExporter{SpanExporter: kept, log: zap.New(core), endpoint: "http://collector:4318"}
	for range 3 {
		if err := e.ExportSpans(t.Context(), make([]sdktrace.ReadOnlySpan, 2)); err != nil {
			t.Error("the library hears of it, too")
		}
	}
	kept.fail = nil
	for range 2 {
		_ = e.ExportSpans(t.Context(), make([]sdktrace.ReadOnlySpan, 2))
	}
	all := logs.All()
	if len(all) != 2 || all[1].ContextMap()["count"] != int64(6) || strings.Contains(all[0].ContextMap()["error"].(string), "token") {
		t.Errorf("said: %v", all)
	}
}

func BenchmarkPublish(b *testing.B) {
	batch := make([]delaybridge.Claim, 200)
	for i := range batch {
		batch[i].Message = delaybridge.Message{ID: "id", Due: time.Now(), Target: delaybridge.Target{Sink: "nats", Name: "x"}, Headers: headers("traceparent", sampledParent)}
	}
	on, _ := traced(b, sdktrace.ParentBased(sdktrace.AlwaysSample()))
	unsampled, _ := traced(b, sdktrace.NeverSample())
	for _, row := range []struct {
		name string
		t    *tracing
	}{{"off", nil}, {"unsampled", unsampled}, {"on", on}} {
		b.Run(row.name, func(b *testing.B) {
			sink := row.t.sink(&countedSink{})
			b.ReportAllocs()
			for b.Loop() {
				sink.Publish(context.Background(), batch)
			}
		})
	}
}
