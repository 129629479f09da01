package test

import (
	"context"
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"delaybridge/test/servers"
)

// spans is a collector of OTLP that keeps what it is sent.
type spans struct {
	collector.UnimplementedTraceServiceServer
	URL string

	mu      sync.Mutex
	all     []*otlp.Span
	service string
	path    string
}

// collect starts a collector that takes OTLP over HTTP.
func collect(t *testing.T) *spans {
	t.Helper()
	s := &spans{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var request collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &request)
		}
		if err != nil || r.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("no OTLP: %v, %s", err, r.Header.Get("Content-Type"))
		}
		s.mu.Lock()
		s.path = r.URL.Path
		s.mu.Unlock()
		s.keep(&request)
		w.Header().Set("Content-Type", "application/x-protobuf")
		answer, _ := proto.Marshal(&collector.ExportTraceServiceResponse{})
		_, _ = w.Write(answer)
	}))
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

// collectGRPC starts a collector that takes OTLP over gRPC.
func collectGRPC(t *testing.T) *spans {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &spans{URL: "http://" + l.Addr().String()}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, s)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return s
}

// Export implements the collector's service.
func (s *spans) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.keep(r)
	return &collector.ExportTraceServiceResponse{}, nil
}

func (s *spans) keep(request *collector.ExportTraceServiceRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range request.ResourceSpans {
		s.service = attributes(r.Resource.Attributes)["service.name"]
		for _, scope := range r.ScopeSpans {
			s.all = append(s.all, scope.Spans...)
		}
	}
}

// named returns the spans of a name that concern one message, or all of them.
func (s *spans) named(name, id string) (found []*otlp.Span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, span := range s.all {
		if span.Name == name && (id == "" || attributes(span.Attributes)["messaging.message.id"] == id) {
			found = append(found, span)
		}
	}
	return found
}

// one waits for the one span of that name and message.
func (s *spans) one(t *testing.T, name, id string) *otlp.Span {
	t.Helper()
	if !servers.Eventually(func() bool { return len(s.named(name, id)) > 0 }) {
		t.Fatalf("no span %q for %q", name, id)
	}
	found := s.named(name, id)
	if len(found) != 1 {
		t.Errorf("%d spans %q for %q", len(found), name, id)
	}
	return found[0]
}

// attributes are a span's as text.
func attributes(list []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range list {
		switch v := kv.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			m[kv.Key] = v.StringValue
		default:
			m[kv.Key] = strings.TrimSpace(kv.Value.String()[strings.IndexByte(kv.Value.String(), ':')+1:])
		}
	}
	return m
}

// check compares some of a span's attributes.
func check(t *testing.T, span *otlp.Span, want map[string]string) {
	t.Helper()
	have := attributes(span.Attributes)
	for name, value := range want {
		if have[name] != value {
			t.Errorf("span %q: %s is %q, want %q", span.Name, name, have[name], value)
		}
	}
}

const (
	producerTrace = "4bf92f3577b34da6a3ce929d0e0e4736"
	producerSpan  = "00f067aa0ba902b7"
	traceParent   = "00-" + producerTrace + "-" + producerSpan + "-01"
)

// linkedTo reports whether a span is linked to a span of a trace.
func linkedTo(span *otlp.Span, trace, of string) bool {
	for _, l := range span.Links {
		if hex.EncodeToString(l.TraceId) == trace && hex.EncodeToString(l.SpanId) == of {
			return true
		}
	}
	return false
}

// TestTraceGoesThroughTheDelay follows one message: it is taken in within its
// producer's trace, and delivered in a new one that is linked to it and that the
// delivered message carries on.
func TestTraceGoesThroughTheDelay(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		sentence string
		start    func(*testing.T) *spans
		more     Env
	}{
		{"over HTTP", collect, nil},
		{"over gRPC", collectGRPC, Env{"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			t.Parallel()
			w, to := newWorld(t), row.start(t)
			p := w.serve(t, row.more.With(Env{"OTEL_EXPORTER_OTLP_ENDPOINT": to.URL, "OTEL_BSP_SCHEDULE_DELAY": "100", "OTEL_SERVICE_NAME": "bridge-of-the-test"}))
			publish(t, w.js, "bridge.schedule", "with a parent", "Bridge-Target: nats://orders.a", "Bridge-Delay: 200ms", "Bridge-Id: child",
				"Traceparent: "+traceParent, "tracestate: vendor=1")
			publish(t, w.js, "bridge.schedule", "with none", "Bridge-Target: nats://orders.b", "Bridge-Delay: 0s", "Bridge-Id: root")

			arrived := w.table.Await(t, "child")
			in := to.one(t, "ingest nats", "child")
			if hex.EncodeToString(in.TraceId) != producerTrace || hex.EncodeToString(in.ParentSpanId) != producerSpan || in.Kind != otlp.Span_SPAN_KIND_CONSUMER {
				t.Errorf("ingest is in trace %x under %x, kind %v", in.TraceId, in.ParentSpanId, in.Kind)
			}
			check(t, in, map[string]string{"messaging.system": "nats", "messaging.destination.name": "bridge.schedule", "messaging.operation.type": "process", "delaybridge.outcome": "scheduled"})

			out := to.one(t, "publish nats", "child")
			if hex.EncodeToString(out.TraceId) == producerTrace || len(out.ParentSpanId) != 0 || out.Kind != otlp.Span_SPAN_KIND_PRODUCER {
				t.Errorf("publish is in trace %x under %x, kind %v", out.TraceId, out.ParentSpanId, out.Kind)
			}
			if len(out.Links) != 1 || !linkedTo(out, producerTrace, producerSpan) {
				t.Errorf("publish is linked to %v", out.Links)
			}
			check(t, out, map[string]string{"messaging.system": "nats", "messaging.destination.name": "orders.a", "messaging.operation.type": "send",
				"messaging.message.body.size": "13", "delaybridge.attempt": "1"})
			if _, ok := attributes(out.Attributes)["delaybridge.late_ms"]; !ok || out.Status.GetCode() == otlp.Status_STATUS_CODE_ERROR {
				t.Errorf("publish: %v, %v", out.Attributes, out.Status)
			}
			want := "00-" + hex.EncodeToString(out.TraceId) + "-" + hex.EncodeToString(out.SpanId) + "-01"
			if got := arrived.Header["Traceparent"]; len(got) != 1 || got[0] != want || arrived.Header["traceparent"] != nil || arrived.Header["tracestate"] != nil {
				t.Errorf("the message carries %v, want Traceparent %s alone", arrived.Header, want)
			}

			claims := to.named("claim nats", "")
			found := false
			for _, c := range claims {
				found = found || linkedTo(c, producerTrace, producerSpan)
			}
			if !found {
				t.Errorf("no claim is linked to the producer, of %d", len(claims))
			}

			// What carries no trace is linked to where it came in.
			in, out = to.one(t, "ingest nats", "root"), to.one(t, "publish nats", "root")
			if len(in.ParentSpanId) != 0 || !linkedTo(out, hex.EncodeToString(in.TraceId), hex.EncodeToString(in.SpanId)) {
				t.Errorf("ingest %x is under %x, publish is linked to %v", in.SpanId, in.ParentSpanId, out.Links)
			}
			to.mu.Lock()
			if to.service != "bridge-of-the-test" || row.more == nil && to.path != "/v1/traces" {
				t.Errorf("service %q, path %q", to.service, to.path)
			}
			to.mu.Unlock()
			for _, span := range to.named("publish nats", "") {
				if strings.Contains(span.String(), "with a parent") {
					t.Error("a span shows the payload")
				}
			}
			p.Signal(syscall.SIGTERM)
			if code := p.Exit(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// TestWhatIsLeftIsSentAtTheStop has an exporter that would wait for an hour.
func TestWhatIsLeftIsSentAtTheStop(t *testing.T) {
	t.Parallel()
	w, to := newWorld(t), collect(t)
	p := w.serve(t, Env{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": to.URL + "/v1/traces", "OTEL_BSP_SCHEDULE_DELAY": "3600000"})
	publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: 0s", "Bridge-Id: one")
	w.table.Await(t, "one")
	p.Signal(syscall.SIGTERM)
	if code := p.Exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if len(to.named("ingest nats", "one")) != 1 || len(to.named("publish nats", "one")) != 1 {
		t.Errorf("sent: %v", to.all)
	}
}

// TestUnsampledTracesStayUnsampled has a producer that samples nothing: neither
// does the bridge, on either side of the delay.
func TestUnsampledTracesStayUnsampled(t *testing.T) {
	t.Parallel()
	w, to := newWorld(t), collect(t)
	p := w.serve(t, Env{"OTEL_EXPORTER_OTLP_ENDPOINT": to.URL, "OTEL_BSP_SCHEDULE_DELAY": "100"})
	publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: 0s", "Bridge-Id: unsampled",
		"traceparent: 00-"+producerTrace+"-"+producerSpan+"-00")
	a := w.table.Await(t, "unsampled")
	if got := a.Header["traceparent"]; len(got) != 1 || !strings.HasSuffix(got[0], "-00") || strings.Contains(got[0], producerTrace) {
		t.Errorf("it carries %v", got)
	}
	publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: 0s", "Bridge-Id: sampled", "traceparent: "+traceParent)
	to.one(t, "publish nats", "sampled")
	if len(to.named("publish nats", "unsampled"))+len(to.named("ingest nats", "unsampled")) != 0 {
		t.Error("an unsampled trace has spans")
	}
	p.Signal(syscall.SIGTERM)
	p.Exit(t)
}

// TestWithoutTracingTheTraceIsJustAHeader has no endpoint, or a switch that is off.
func TestWithoutTracingTheTraceIsJustAHeader(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		sentence string
		env      Env
	}{
		{"no endpoint", nil},
		{"the SDK is disabled", Env{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}},
		{"no exporter", Env{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_TRACES_EXPORTER": "none"}},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := w.serve(t, row.env)
			publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: 0s", "Bridge-Id: one",
				"TraceParent: "+traceParent, "tracestate: vendor=1,other=2")
			a := w.table.Await(t, "one")
			if got := a.Header["TraceParent"]; len(got) != 1 || got[0] != traceParent {
				t.Errorf("TraceParent is %q", got)
			}
			if got := a.Header["tracestate"]; len(got) != 1 || got[0] != "vendor=1,other=2" {
				t.Errorf("tracestate is %q", got)
			}
			if strings.Contains(p.Output(), `"msg":"tracing"`) {
				t.Error("it traces")
			}
		})
	}
}

// TestCollectorThatIsAway holds nothing up, is told once, and does not hang the stop.
func TestCollectorThatIsAway(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0") // takes connections, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	for _, row := range []struct{ sentence, endpoint string }{
		{"nobody listens", "http://127.0.0.1:1"},
		{"nobody answers", "http://" + l.Addr().String()},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			p := w.serve(t, Env{"OTEL_EXPORTER_OTLP_ENDPOINT": row.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_TIMEOUT": "100",
				"OTEL_BSP_EXPORT_TIMEOUT": "300", "OTEL_BSP_MAX_QUEUE_SIZE": "16"})
			for round := range 3 {
				for range 40 {
					publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: 0s")
				}
				if !servers.Eventually(func() bool { return len(w.table.Arrivals()) >= 40*(round+1) }) {
					t.Fatalf("%d of %d arrived", len(w.table.Arrivals()), 40*(round+1))
				}
			}
			w.awaitEmpty(t)
			p.Await(t, "spans cannot be sent")
			p.Signal(syscall.SIGTERM)
			if code := p.Exit(t); code != 0 {
				t.Errorf("exit code %d", code)
			}
			if n := strings.Count(p.Output(), "spans cannot be sent"); n != 1 {
				t.Errorf("it was said %d times", n)
			}
			if got := len(w.table.Arrivals()); got != 120 {
				t.Errorf("%d of 120 arrived", got)
			}
		})
	}
}

// TestWrongTracingSettingsStopTheStart name the variable and what it takes.
func TestWrongTracingSettingsStopTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, row := range []struct{ name, value, says string }{
		{"OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318", "takes a URL such as http://collector:4318"},
		{"OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "takes http/protobuf or grpc"},
		{"OTEL_TRACES_SAMPLER", "sometimes", "takes always_on"},
		{"OTEL_TRACES_EXPORTER", "zipkin", "takes otlp or none"},
		{"OTEL_RESOURCE_ATTRIBUTES", "nothing", "takes name=value"},
	} {
		env := w.env.With(Env{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}).With(Env{row.name: row.value})
		ran := Run(t, env, "", "serve")
		if ran.Code != 2 || !strings.Contains(ran.Stderr, row.name) || !strings.Contains(ran.Stderr, row.says) {
			t.Errorf("%s=%s: code %d, %s", row.name, row.value, ran.Code, ran.Stderr)
		}
	}
}
