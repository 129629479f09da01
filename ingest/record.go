package ingest

import (
	"time"

	"delaybridge"
)

// Record is one message as a source handed it over, before anything in it was
// understood. Decoding keeps its slices, so they must not be changed afterwards.
type Record struct {
	// Position is where the record stands in its source.
	Position delaybridge.Position
	// Origin is the topic or the subject it was published to, with the sink
	// name of its broker (SinkKafka or SinkNATS); routes go by it. It is zero
	// for a request by HTTP or CLI.
	Origin delaybridge.Target
	// Time is the record's own timestamp, from which a delay counts; zero if it
	// has none.
	Time time.Time
	// Key is the Kafka key, nil for a null one.
	Key []byte
	// Headers are in the order of the source.
	Headers []delaybridge.Header
	// Payload is nil for a null value, which only Kafka has.
	Payload []byte
	// Unreadable says why the record cannot be understood, where the source knows
	// that already: it is refused, whatever else it says. Nil: nothing is known.
	Unreadable *delaybridge.FieldError

	// Envelope says that the payload is a JSON envelope, whatever its content
	// type says.
	Envelope bool
	// FromAPI marks a request by HTTP or CLI.
	FromAPI bool
	// FromCLI marks a request by CLI.
	FromCLI bool
	// Replayed marks a message that was let in before, and whose source is not
	// known any more: which targets that may name was asked then.
	Replayed bool
}
