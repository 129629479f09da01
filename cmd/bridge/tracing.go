package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
)

// tracing makes spans and sends them to a collector. A nil *tracing makes none:
// then nothing is wrapped, hooked in or started, and traces pass through as the
// headers that they are.
type tracing struct {
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// traceServiceName is the name of the service unless OTEL_SERVICE_NAME is set.
const traceServiceName = "delaybridge"

// traceFlush is how long the spans that are left may take to be sent at the stop.
const traceFlush = 3 * time.Second

// startTracing starts what the OTEL_ variables ask for, which is nothing unless
// an OTLP endpoint is set. Errors are settingErrors. Call close at the end.
func startTracing(log *zap.Logger) (*tracing, error) {
	endpoint, on, err := traceEndpoint()
	if err != nil || !on {
		return nil, err
	}
	if err := checkTraceEnvironment(); err != nil {
		return nil, err
	}
	sampler, err := traceSampler()
	if err != nil {
		return nil, err
	}
	exporter, err := newTraceExporter()
	if err != nil {
		return nil, err
	}
	t, err := newTracing(&toldExporter{SpanExporter: exporter, log: log, endpoint: endpoint}, sampler)
	if err != nil {
		return nil, err
	}
	// What the library reports of itself goes here; it has no other way.
	otel.SetErrorHandler(&libraryErrors{log: log})
	log.Info("tracing", zap.String("url", endpoint))
	return t, nil
}

// newTracing returns tracing with an exporter. It never holds up who makes spans:
// those that find the exporter's queue full are dropped.
func newTracing(exporter sdktrace.SpanExporter, sampler sdktrace.Sampler) (*tracing, error) {
	v := currentVersion()
	about, err := resource.New(context.Background(),
		resource.WithAttributes(semconv.ServiceName(traceServiceName), semconv.ServiceVersion(v.Version)),
		resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithFromEnv(), // last, so that it wins
	)
	if err != nil {
		return nil, settingError{"OTEL_RESOURCE_ATTRIBUTES", os.Getenv("OTEL_RESOURCE_ATTRIBUTES"), "takes name=value pairs with commas between: " + err.Error()}
	}
	p := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about), sdktrace.WithSampler(byOrigin{sampler}))
	return &tracing{provider: p, tracer: p.Tracer("delaybridge", trace.WithInstrumentationVersion(v.Version))}, nil
}

// close sends what is left, for a bounded time.
func (t *tracing) close() {
	if t == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), traceFlush)
	defer cancel()
	_ = t.provider.Shutdown(ctx) // the exporter has told what went wrong
}

// traceEndpoint says where spans go, and whether any are made at all.
func traceEndpoint() (endpoint string, on bool, err error) {
	name := "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	if endpoint = strings.TrimSpace(os.Getenv(name)); endpoint == "" {
		name = "OTEL_EXPORTER_OTLP_ENDPOINT"
		endpoint = strings.TrimSpace(os.Getenv(name))
	}
	if endpoint == "" || strings.EqualFold(strings.TrimSpace(os.Getenv("OTEL_SDK_DISABLED")), "true") {
		return "", false, nil
	}
	switch exporter := strings.TrimSpace(os.Getenv("OTEL_TRACES_EXPORTER")); exporter {
	case "", "otlp":
	case "none":
		return "", false, nil
	default:
		return "", false, settingError{"OTEL_TRACES_EXPORTER", exporter, "takes otlp or none"}
	}
	if !isTraceEndpoint(endpoint) {
		return "", false, settingError{name, maskURLs(endpoint), traceEndpointForm}
	}
	return maskURLs(endpoint), true, nil
}

// newTraceExporter returns the exporter of the protocol that is asked for, which
// reads its endpoint, headers, certificates and time-outs from the environment by
// itself. It connects when there is something to send.
func newTraceExporter() (sdktrace.SpanExporter, error) {
	name := "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
	protocol := strings.TrimSpace(os.Getenv(name))
	if protocol == "" {
		name = "OTEL_EXPORTER_OTLP_PROTOCOL"
		protocol = strings.TrimSpace(os.Getenv(name))
	}
	var exporter sdktrace.SpanExporter
	var err error
	switch protocol {
	case "", "http/protobuf":
		exporter, err = otlptracehttp.New(context.Background())
	case "grpc":
		exporter, err = otlptracegrpc.New(context.Background())
	default:
		return nil, settingError{name, protocol, "takes http/protobuf or grpc"}
	}
	if err != nil {
		return nil, fmt.Errorf("tracing, by the OTEL_EXPORTER_OTLP_ variables: %s", maskURLs(err.Error()))
	}
	return exporter, nil
}

// traceSampler returns what OTEL_TRACES_SAMPLER and its _ARG ask for. The library
// reads them too, but lets nobody stand before what it makes of them.
func traceSampler() (sdktrace.Sampler, error) {
	const name = "OTEL_TRACES_SAMPLER"
	ratio := func() (sdktrace.Sampler, error) {
		arg := strings.TrimSpace(os.Getenv(name + "_ARG"))
		if arg == "" {
			return sdktrace.TraceIDRatioBased(1), nil
		}
		part, err := strconv.ParseFloat(arg, 64)
		if err != nil || !(part >= 0 && part <= 1) {
			return nil, settingError{name + "_ARG", arg, "takes a number from 0 to 1"}
		}
		return sdktrace.TraceIDRatioBased(part), nil
	}
	switch which := strings.ToLower(strings.TrimSpace(os.Getenv(name))); which {
	case "", "parentbased_always_on":
		return sdktrace.ParentBased(sdktrace.AlwaysSample()), nil
	case "parentbased_always_off":
		return sdktrace.ParentBased(sdktrace.NeverSample()), nil
	case "parentbased_traceidratio":
		s, err := ratio()
		if err != nil {
			return nil, err
		}
		return sdktrace.ParentBased(s), nil
	case "always_on":
		return sdktrace.AlwaysSample(), nil
	case "always_off":
		return sdktrace.NeverSample(), nil
	case "traceidratio":
		return ratio()
	default:
		return nil, settingError{name, which, "takes always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off or parentbased_traceidratio"}
	}
}

// byOrigin samples a delivery as what it is linked to was sampled: it has a trace
// of its own, and no parent whose flag could be honoured. Of several origins one
// that is sampled is enough.
type byOrigin struct{ sdktrace.Sampler }

// ShouldSample implements sdktrace.Sampler.
func (b byOrigin) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	if trace.SpanContextFromContext(p.ParentContext).IsValid() || len(p.Links) == 0 {
		return b.Sampler.ShouldSample(p)
	}
	origin := p.Links[0].SpanContext
	for _, l := range p.Links {
		if l.SpanContext.IsSampled() {
			origin = l.SpanContext
			break
		}
	}
	p.ParentContext = trace.ContextWithRemoteSpanContext(p.ParentContext, origin)
	r := b.Sampler.ShouldSample(p)
	r.Tracestate = trace.TraceState{} // the origin's, which is another trace's
	return r
}

// toldExporter logs when spans cannot be sent any more, and when they can again;
// each once. Who makes spans never hears of it.
type toldExporter struct {
	sdktrace.SpanExporter
	log      *zap.Logger
	endpoint string

	mu     sync.Mutex
	failed bool
	lost   int
}

// ExportSpans implements sdktrace.SpanExporter.
func (e *toldExporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err != nil:
		if e.lost += len(spans); !e.failed {
			e.log.Warn("spans cannot be sent, and are dropped until they can", zap.String("url", e.endpoint), zap.String("error", maskURLs(err.Error())))
		}
		e.failed = true
	case e.failed:
		e.log.Info("spans are sent again", zap.Int("count", e.lost))
		e.failed, e.lost = false, 0
	}
	return nil
}

// libraryErrors logs what the library reports, each text once.
type libraryErrors struct {
	log *zap.Logger

	mu   sync.Mutex
	said string
}

// Handle implements otel.ErrorHandler.
func (l *libraryErrors) Handle(err error) {
	text := maskURLs(err.Error())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.said != text {
		l.said = text
		l.log.Warn("tracing", zap.String("error", text))
	}
}
