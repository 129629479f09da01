package main

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/luascripts"
	"delaybridge/scheduler"
)

// The headers of W3C Trace Context.
const (
	headerTraceParent = "traceparent"
	headerTraceState  = "tracestate"
)

// Attributes of ours, beside those of the semantic conventions.
const (
	attrOutcome = attribute.Key("delaybridge.outcome") // of a request
	attrAttempt = attribute.Key("delaybridge.attempt")
	attrDue     = attribute.Key("delaybridge.due")     // RFC 3339
	attrLate    = attribute.Key("delaybridge.late_ms") // from due until confirmed
)

// traceCarrier reads a trace's context from headers, whose names it takes in any
// letter case. A traceparent that is there twice is none.
type traceCarrier []delaybridge.Header

// Get implements propagation.TextMapCarrier.
func (c traceCarrier) Get(key string) string {
	var values []string
	for _, h := range c {
		if strings.EqualFold(h.Name, key) && h.Value != nil {
			values = append(values, string(h.Value))
		}
	}
	if key == headerTraceParent && len(values) > 1 {
		return ""
	}
	return strings.Join(values, ",")
}

// Keys implements propagation.TextMapCarrier.
func (c traceCarrier) Keys() []string { return []string{headerTraceParent, headerTraceState} }

// Set implements propagation.TextMapCarrier; it is not used.
func (c traceCarrier) Set(string, string) {}

// originOf returns the context that headers carry, not valid if there is none.
func originOf(headers []delaybridge.Header) trace.SpanContext {
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), traceCarrier(headers)))
}

// withTrace returns headers that carry sc and no other context, in a slice of their
// own. The header keeps its place and the letter case of its name.
func withTrace(headers []delaybridge.Header, sc trace.SpanContext) []delaybridge.Header {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(trace.ContextWithSpanContext(context.Background(), sc), carrier)
	out := make([]delaybridge.Header, 0, len(headers)+2)
	placed := map[string]bool{}
	for _, h := range headers {
		key := strings.ToLower(h.Name)
		if key != headerTraceParent && key != headerTraceState {
			out = append(out, h)
			continue
		}
		if value := carrier[key]; value != "" && !placed[key] {
			out = append(out, delaybridge.Header{Name: h.Name, Value: []byte(value)})
			placed[key] = true
		}
	}
	for _, key := range []string{headerTraceParent, headerTraceState} {
		if value := carrier[key]; value != "" && !placed[key] {
			out = append(out, delaybridge.Header{Name: key, Value: []byte(value)})
		}
	}
	return out
}

// bounded cuts what comes from a message.
func bounded(s string) string {
	const most = 256
	if len(s) > most {
		s = s[:most]
	}
	return strings.ToValidUTF8(s, "?")
}

// system is the messaging system of a sink or source.
func system(sink string) attribute.KeyValue {
	if sink == delaybridge.SinkKafka {
		return semconv.MessagingSystemKafka
	}
	return semconv.MessagingSystemKey.String("nats")
}

// source is ingest.Config.Trace, nil without tracing.
func (t *tracing) source() ingest.Tracer {
	if t == nil {
		return nil
	}
	return sourceTracer{t}
}

// sourceTracer makes a span for each record that is taken in: a part of the
// producer's trace if the record carries one. A record that carries none gets the
// span's own context, so that its delivery has something to be linked to.
type sourceTracer struct{ *tracing }

// Received implements ingest.Tracer.
func (t sourceTracer) Received(records []ingest.Record, requests []delaybridge.Request) ingest.Trace {
	spans := make([]trace.Span, len(records))
	for i := range records {
		rec, req := &records[i], &requests[i]
		// An envelope has headers of its own, which are the message's.
		origin := originOf(req.Message.Headers)
		if !origin.IsValid() {
			origin = originOf(rec.Headers)
		}
		ctx := context.Background()
		if origin.IsValid() {
			ctx = trace.ContextWithRemoteSpanContext(ctx, origin)
		}
		ctx, spans[i] = t.tracer.Start(ctx, "ingest "+rec.Origin.Sink, trace.WithSpanKind(trace.SpanKindConsumer))
		if spans[i].IsRecording() {
			spans[i].SetAttributes(ingestAttributes(rec, req)...)
		}
		if sc := trace.SpanContextFromContext(ctx); !origin.IsValid() && req.Op == delaybridge.OpSchedule && sc.IsValid() {
			req.Message.Headers = withTrace(req.Message.Headers, sc)
		}
	}
	return ingestSpans(spans)
}

func ingestAttributes(rec *ingest.Record, req *delaybridge.Request) []attribute.KeyValue {
	attributes := []attribute.KeyValue{
		system(rec.Origin.Sink),
		semconv.MessagingOperationName("ingest"), semconv.MessagingOperationTypeProcess,
		semconv.MessagingDestinationName(bounded(rec.Origin.Name)),
		semconv.MessagingMessageID(bounded(req.Message.ID)),
		semconv.MessagingMessageBodySize(len(rec.Payload)),
		attribute.String("delaybridge.op", req.Op.String()),
	}
	if rec.Origin.Sink == delaybridge.SinkKafka {
		source := rec.Position.Source // kafka:<topic>:<partition>
		attributes = append(attributes, semconv.MessagingKafkaOffset(int(rec.Position.Offset)),
			semconv.MessagingDestinationPartitionID(bounded(source[strings.LastIndexByte(source, ':')+1:])))
	}
	if req.Op != delaybridge.OpCancel && !req.Message.Due.IsZero() {
		attributes = append(attributes, attrDue.String(formatTime(req.Message.Due)))
	}
	return attributes
}

// ingestSpans are the spans of one batch of records, nil for those that have ended.
type ingestSpans []trace.Span

// Stored implements ingest.Trace.
func (s ingestSpans) Stored(i int, outcome delaybridge.Outcome) {
	if s[i] == nil {
		return
	}
	s[i].SetAttributes(attrOutcome.String(outcome.String()))
	s[i].End()
	s[i] = nil
}

// End implements ingest.Trace.
func (s ingestSpans) End() {
	for i := range s {
		if s[i] != nil {
			s[i].SetStatus(codes.Error, "stopped before the queue had it")
			s[i].End()
		}
	}
}

// queue returns the queue of a scheduler, with a span for each claim that found
// something; the queue itself without tracing.
func (t *tracing) queue(q *luascripts.Queue) scheduler.Queue {
	if t == nil {
		return q
	}
	return tracedQueue{q, t}
}

type tracedQueue struct {
	*luascripts.Queue
	t *tracing
}

// mostLinks is how many messages a claim's span is linked to.
const mostLinks = 100

// Claim implements scheduler.Queue.
func (q tracedQueue) Claim(ctx context.Context, lane string, asks []delaybridge.Ask) []delaybridge.Grant {
	began := time.Now()
	grants := q.Queue.Claim(ctx, lane, asks)
	count := 0
	var links []trace.Link
	for _, g := range grants {
		count += len(g.Claims)
		for i := range g.Claims {
			if len(links) == mostLinks {
				break
			}
			if origin := originOf(g.Claims[i].Headers); origin.IsValid() {
				links = append(links, trace.Link{SpanContext: origin})
			}
		}
	}
	if count > 0 {
		_, span := q.t.tracer.Start(context.Background(), "claim "+lane, trace.WithSpanKind(trace.SpanKindClient), trace.WithTimestamp(began), trace.WithLinks(links...),
			trace.WithAttributes(semconv.MessagingSystemKey.String("redis"), semconv.MessagingOperationName("claim"), semconv.MessagingOperationTypeReceive,
				semconv.MessagingDestinationName(lane), semconv.MessagingBatchMessageCount(count)))
		span.End()
	}
	return grants
}

// sink returns a sink that makes a span for each publish; the sink itself without
// tracing.
func (t *tracing) sink(s delaybridge.Sink) delaybridge.Sink {
	if t == nil {
		return s
	}
	return tracedSink{s, t}
}

// tracedSink makes a trace for each delivery, linked to where the message came
// from: between them lie minutes or days, in which no trace is kept open. The
// message carries the delivery's context, for its consumer to go on with.
type tracedSink struct {
	delaybridge.Sink
	t *tracing
}

// Publish implements delaybridge.Sink.
func (s tracedSink) Publish(ctx context.Context, batch []delaybridge.Claim) []error {
	// The claims are the scheduler's: it needs their origin, should they be tried
	// again or be given up.
	sent := make([]delaybridge.Claim, len(batch))
	spans := make([]trace.Span, len(batch))
	for i := range batch {
		c := batch[i]
		options := []trace.SpanStartOption{trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindProducer)}
		if origin := originOf(c.Headers); origin.IsValid() {
			options = append(options, trace.WithLinks(trace.Link{SpanContext: origin}))
		}
		_, spans[i] = s.t.tracer.Start(context.Background(), "publish "+c.Target.Sink, options...)
		if spans[i].IsRecording() {
			spans[i].SetAttributes(publishAttributes(&c)...)
		}
		if sc := spans[i].SpanContext(); sc.IsValid() {
			c.Headers = withTrace(c.Headers, sc)
		}
		sent[i] = c
	}
	errs := s.Sink.Publish(ctx, sent)
	for i, span := range spans {
		if span.IsRecording() {
			if i < len(errs) && errs[i] != nil {
				span.SetAttributes(semconv.ErrorTypeKey.String(delaybridge.ClassOf(errs[i]).String()))
				span.SetStatus(codes.Error, delaybridge.ErrorText(errs[i].Error()))
			} else {
				span.SetAttributes(attrLate.Int64(time.Since(batch[i].Due).Milliseconds()))
			}
		}
		span.End()
	}
	return errs
}

func publishAttributes(c *delaybridge.Claim) []attribute.KeyValue {
	attributes := []attribute.KeyValue{
		system(c.Target.Sink),
		semconv.MessagingOperationName("publish"), semconv.MessagingOperationTypeSend,
		semconv.MessagingDestinationName(bounded(c.Target.Name)),
		semconv.MessagingMessageID(bounded(c.ID)),
		semconv.MessagingMessageBodySize(len(c.Payload)),
		attrAttempt.Int(c.Attempt()), attrDue.String(formatTime(c.Due)),
	}
	if c.Target.Sink == delaybridge.SinkKafka && c.Payload == nil {
		attributes = append(attributes, semconv.MessagingKafkaMessageTombstone(true))
	}
	return attributes
}
