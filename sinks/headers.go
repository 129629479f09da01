package sinks

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"time"

	"delaybridge"
)

// Headers of a delivered message.
const (
	headerID          = "Bridge-Id"
	headerScheduledAt = "Bridge-Scheduled-At"
	headerDueAt       = "Bridge-Due-At"
	headerAttempt     = "Bridge-Attempt"
)

// Headers that carry what NATS cannot express.
const (
	headerKey        = "Bridge-Key"
	headerKeyBase64  = "Bridge-Key-Base64"
	headerTombstone  = "Bridge-Tombstone"
	headerRawHeaders = "Bridge-Raw-Headers"
)

// ownHeaders returns the headers that every delivered message carries. An id is
// a legal value on every broker (delaybridge.ValidateID).
func ownHeaders(c *delaybridge.Claim) [5]delaybridge.Header {
	rest, ends := appendOwn(make([]byte, 0, ownBytes), c)
	return [...]delaybridge.Header{
		{Name: headerID, Value: []byte(c.ID)},
		{Name: headerScheduledAt, Value: rest[:ends[0]:ends[0]]},
		{Name: headerDueAt, Value: rest[ends[0]:ends[1]:ends[1]]},
		{Name: headerAttempt, Value: rest[ends[1]:ends[2]:ends[2]]},
		{Name: delaybridge.HeaderHops, Value: rest[ends[2]:]},
	}
}

// ownBytes is more than what appendOwn usually appends.
const ownBytes = 64

// appendOwn appends the values of those headers but the id's, without anything
// between them, to what is empty, and returns where the first three end: every
// message needs all of them, and so they are made in one go.
func appendOwn(b []byte, c *delaybridge.Claim) (_ []byte, ends [3]int) {
	b = appendTime(b, c.Scheduled)
	ends[0] = len(b)
	b = appendTime(b, c.Due)
	ends[1] = len(b)
	b = strconv.AppendInt(b, int64(c.Attempt()), 10)
	ends[2] = len(b)
	return strconv.AppendInt(b, int64(delaybridge.Hops(c.Headers)+1), 10), ends
}

// appendTime appends a time in UTC with its milliseconds, by RFC 3339. Go has a
// fast way for the form without a fraction only.
func appendTime(b []byte, t time.Time) []byte {
	b = t.UTC().AppendFormat(b, time.RFC3339)
	ms := t.Nanosecond() / int(time.Millisecond)
	return append(b[:len(b)-1], '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10), 'Z')
}

// passes reports whether a message's own header goes out with it. Ingest has
// left out what steers the bridge or a broker already; this is the last gate
// before the broker, where a header such as Nats-Rollup would purge a stream.
// What tells of a failure the bridge has made itself.
func passes(name string) bool {
	return !delaybridge.Steers(name) || delaybridge.TellsOfFailure(name)
}

// messageID is what a broker drops repeats by: the same for every attempt of one
// schedule, and another for the next schedule of the same id.
func messageID(c *delaybridge.Claim) string {
	// Neither a position nor a target has line breaks.
	b := make([]byte, 0, 160)
	b = append(append(b, c.Position.Source...), ':')
	b = append(strconv.AppendUint(b, c.Position.Offset, 10), '\n')
	b = append(append(append(b, c.Target.Sink...), "://"...), c.Target.Name...)
	sum := sha256.Sum256(b)
	var digits [16]byte
	hex.Encode(digits[:], sum[:8])
	return c.ID + "." + string(digits[:])
}

// DefaultPublishTimeout is the budget of one publish, the client's own retries
// included.
const DefaultPublishTimeout = 10 * time.Second
