// Package sinks publishes claimed messages to brokers and waits for their
// confirmation: NATS (JetStream), NATSCore (core NATS) and Kafka, and Mux, which
// picks one of them for each message.
//
// Every sink tells four kinds of failure apart, by delaybridge.ClassOf, and is
// strict about the difference between two of them: unavailable means that the
// broker has not been given the message and will not be, unknown that it may
// have it. Whenever that cannot be told, it is unknown.
package sinks

import (
	"context"
	"fmt"
	"sync"

	"delaybridge"
)

// Mux sends each message to the sink that its target names. Its keys are the
// names of the sinks (delaybridge.SinkKafka and so on). It must not be changed
// once it is in use.
type Mux map[string]delaybridge.Sink

var _ delaybridge.Sink = Mux(nil)

// Publish hands each sink its part of the batch, all sinks at the same time, and
// returns the outcomes in the batch's order. A message for a sink that is not
// configured fails with a transient error that names it, since the setting may
// be mended before the message runs out of attempts.
func (m Mux) Publish(ctx context.Context, batch []delaybridge.Claim) []error {
	if s := m.only(batch); s != nil {
		return s.Publish(ctx, batch)
	}
	errs := make([]error, len(batch))
	parts := map[string][]int{}
	for i := range batch {
		name := batch[i].Target.Sink
		if m[name] == nil {
			errs[i] = delaybridge.Transient(fmt.Errorf("sink %q is not configured", name))
			continue
		}
		parts[name] = append(parts[name], i)
	}
	var wg sync.WaitGroup
	for name, part := range parts {
		wg.Go(func() {
			claims := make([]delaybridge.Claim, len(part))
			for j, i := range part {
				claims[j] = batch[i]
			}
			for j, err := range m[name].Publish(ctx, claims) {
				errs[part[j]] = err
			}
		})
	}
	wg.Wait()
	return errs
}

// inParts is a sink that can publish in parts.
type inParts interface {
	PublishParts(ctx context.Context, batch []delaybridge.Claim, part func(indexes []int, errs []error))
}

var _, _ inParts = (*NATS)(nil), (*NATSCore)(nil)

// InParts reports whether a sink can publish in parts: then a batch may be for any
// number of targets, since none of them holds up the others.
func (m Mux) InParts(sink string) bool {
	_, ok := m[sink].(inParts)
	return ok
}

// PublishParts is Publish for a batch of one sink. It calls part, once for each
// message in all, with the indexes of messages and their outcomes: as soon as
// they are known where the sink can tell, else when all are. It returns after the
// last call. Of what is confirmed the sink then reads nothing but the target.
func (m Mux) PublishParts(ctx context.Context, batch []delaybridge.Claim, part func(indexes []int, errs []error)) {
	if s, ok := m.only(batch).(inParts); ok {
		s.PublishParts(ctx, batch, part)
		return
	}
	all := make([]int, len(batch))
	for i := range all {
		all[i] = i
	}
	part(all, m.Publish(ctx, batch))
}

// only returns the sink that the whole batch is for, nil if there is not just
// one: a lane holds the messages of one sink, so this is the usual case.
func (m Mux) only(batch []delaybridge.Claim) delaybridge.Sink {
	for i := range batch {
		if batch[i].Target.Sink != batch[0].Target.Sink {
			return nil
		}
	}
	if len(batch) == 0 {
		return nil
	}
	return m[batch[0].Target.Sink]
}
