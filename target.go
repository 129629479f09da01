package delaybridge

import "time"

// Target is a place that a sink can publish to.
type Target struct {
	Sink string // one of Lanes
	Name string // a Kafka topic or a NATS subject
}

// String returns "<sink>://<name>".
func (t Target) String() string { return t.Sink + "://" + t.Name }

// ParseTarget reads "<sink>://<name>" and checks the name by the rules of its
// broker. Errors are *FieldError with Field empty, for the caller to fill in.
func ParseTarget(s string) (Target, error) {
	panic("being written")
}

// ParseDuration reads a delay such as "90s", "1h30m", "7d", "1.5s" or "250ms".
// Errors are *FieldError with Field empty, for the caller to fill in.
func ParseDuration(s string) (time.Duration, error) {
	panic("being written")
}

// ParseTime reads an RFC 3339 time with a zone, or Unix milliseconds in decimal digits.
// Errors are *FieldError with Field empty, for the caller to fill in.
func ParseTime(s string) (time.Time, error) {
	panic("being written")
}
