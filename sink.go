package delaybridge

import "context"

// The sinks that the program knows. Each has a lane of its own in the queue,
// configured or not.
const (
	SinkKafka    = "kafka"     // confirmed by all in-sync replicas
	SinkNATS     = "nats"      // JetStream, confirmed by its PubAck
	SinkNATSCore = "nats-core" // core NATS, confirmed by the server's flush only
)

// Lanes lists all sinks, in the order of their keys in the queue's scripts.
var Lanes = [...]string{SinkKafka, SinkNATS, SinkNATSCore}

// Sink publishes claimed messages to a broker and waits for its confirmation.
// It is safe for concurrent use.
type Sink interface {
	// Publish sends the batch, all of one sink, and returns one outcome for
	// each claim, in order: nil only once the broker has confirmed it, else an
	// error whose class is told by ClassOf. It returns within the publish
	// timeout that the sink was built with, whatever the broker does; ending
	// ctx may make it return earlier, with what is unfinished as ClassUnknown.
	Publish(ctx context.Context, batch []Claim) []error
}

// SinkFunc lets a function be a Sink.
type SinkFunc func(ctx context.Context, batch []Claim) []error

// Publish calls f.
func (f SinkFunc) Publish(ctx context.Context, batch []Claim) []error { return f(ctx, batch) }
