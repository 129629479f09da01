package delaybridge

import (
	"fmt"
	"strconv"
	"time"
)

// MaxIDBytes is the longest id that a message may have.
const MaxIDBytes = 256

// Message is one event that is to be delivered later. Key and Payload are
// nil for a null and empty for an empty one: the difference is kept from the
// source to the target, since Kafka gives it a meaning.
type Message struct {
	// ID is the message's identity: scheduling it again replaces it.
	ID string
	// Position is where the message came from; it tells a redelivery from news.
	Position Position
	// Target is where the message goes.
	Target Target

	// Scheduled is the timestamp that the delay counted from, to the millisecond.
	Scheduled time.Time
	// Due is the earliest moment of delivery, to the millisecond.
	Due time.Time
	// ExpiresAfter is how long after Due the message may still be delivered; 0 means for ever.
	ExpiresAfter time.Duration

	// Key is the Kafka key for the target.
	Key []byte
	// Headers pass through in order, repetition kept.
	Headers []Header
	// Payload passes through byte for byte.
	Payload []byte
}

// Expired reports whether the message must not be delivered any more at now.
func (m *Message) Expired(now time.Time) bool {
	return m.ExpiresAfter > 0 && now.After(m.Due.Add(m.ExpiresAfter))
}

// Header is one header of a message. A nil Value is null, which only Kafka has.
type Header struct {
	Name  string
	Value []byte
}

// Position says where a message came from: a source that numbers its messages,
// and the number. Positions of one source are ordered, positions of different
// sources are not compared. Source has no blanks and no control bytes.
type Position struct {
	Source string // "nats:<stream>", "kafka:<topic>:<partition>", "api:<one request>"
	Offset uint64
}

// String returns "<source>:<offset>", the default id of a message that names none.
func (p Position) String() string {
	return p.Source + ":" + strconv.FormatUint(p.Offset, 10)
}

// Op is what a request asks for.
type Op uint8

// The operations of a request.
const (
	// OpSchedule stores Message, or replaces the pending one of the same id.
	OpSchedule Op = iota
	// OpCancel takes back the pending message Message.ID; only ID and Position are used.
	OpCancel
	// OpReject stores Message as a dead letter at once, reason ReasonRejected.
	OpReject
)

func (o Op) String() string {
	switch o {
	case OpSchedule:
		return "schedule"
	case OpCancel:
		return "cancel"
	case OpReject:
		return "reject"
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// Request is one thing that a source, or a person, asks of the queue.
type Request struct {
	Op      Op
	Message Message
	// Error says what was wrong with a request that was refused. It is set with
	// OpReject, and with an OpSchedule that carries a refused message to the
	// reject target; the queue stores it with an OpReject only.
	Error string
	// FromAPI marks a request by HTTP or CLI: nothing older of its source can
	// come in behind it, so cancelling an unknown id leaves no tombstone.
	FromAPI bool
}

// Outcome is what became of a request.
type Outcome uint8

// The outcomes of a request.
const (
	// Scheduled: stored, and nothing was replaced.
	Scheduled Outcome = iota
	// Replaced: stored in place of a pending or in-flight message of the same id.
	Replaced
	// Duplicate: a redelivery, or older than what is known; nothing changed.
	Duplicate
	// Cancelled: the message was pending and is gone.
	Cancelled
	// TooLate: nothing was pending to cancel; Result.State says what was found.
	TooLate
	// Unknown: nothing is known of the id to cancel.
	Unknown
	// Rejected: stored as a dead letter, or on its way to the reject target.
	Rejected
)

var outcomeNames = [...]string{"scheduled", "replaced", "duplicate", "cancelled", "too_late", "unknown", "rejected"}

func (o Outcome) String() string {
	if int(o) < len(outcomeNames) {
		return outcomeNames[o]
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// Result answers one Request.
type Result struct {
	Outcome Outcome
	// State is what a cancel found where it came too late.
	State State
	// Err is set when the queue could not be asked, or did not answer: the
	// request may or may not have been carried out, and is safe to repeat.
	Err error
}

// State is where a message is in its life.
type State string

// The states of a message.
const (
	StatePending   State = "pending"
	StateInFlight  State = "in_flight"
	StateDelivered State = "delivered"
	StateCancelled State = "cancelled"
	StateDead      State = "dead"
)

// Reason says why a message is a dead letter.
type Reason string

// The reasons of a dead letter.
const (
	ReasonRejected  Reason = "rejected"  // refused at ingest
	ReasonPermanent Reason = "permanent" // the broker will never take it
	ReasonAttempts  Reason = "attempts"  // failed as often as is allowed
	ReasonExpired   Reason = "expired"   // not delivered within Bridge-Expires-After
	ReasonAbandoned Reason = "abandoned" // its lease ran out too often
	ReasonCorrupt   Reason = "corrupt"   // its record cannot be read
)

// Reasons lists every reason, in the order in which they are shown.
var Reasons = []Reason{ReasonRejected, ReasonPermanent, ReasonAttempts, ReasonExpired, ReasonAbandoned, ReasonCorrupt}

// DeadLetter is a message that was given up. An id has one letter, the newest: it
// takes the place of an older one.
type DeadLetter struct {
	Message
	Reason Reason
	// Error is the last error, at most MaxErrorBytes.
	Error string
	// Attempts counts the failed attempts, LostLeases the leases that ran out.
	Attempts, LostLeases int
	// Died is when it was given up.
	Died time.Time
	// Corrupt is set when the record could not be decoded; only ID, Reason,
	// Error, the counts and Died are known then, and Raw holds its bytes.
	Corrupt bool
	Raw     []byte
}
