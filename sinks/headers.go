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

const timeFormat = "2006-01-02T15:04:05.000Z07:00"

// ownHeaders returns the headers that every delivered message carries. An id is
// a legal value on every broker (delaybridge.ValidateID).
func ownHeaders(c *delaybridge.Claim) [5]delaybridge.Header {
	return [...]delaybridge.Header{
		{Name: headerID, Value: []byte(c.ID)},
		{Name: headerScheduledAt, Value: c.Scheduled.UTC().AppendFormat(nil, timeFormat)},
		{Name: headerDueAt, Value: c.Due.UTC().AppendFormat(nil, timeFormat)},
		{Name: headerAttempt, Value: strconv.AppendInt(nil, int64(c.Attempt()), 10)},
		{Name: delaybridge.HeaderHops, Value: strconv.AppendInt(nil, int64(delaybridge.Hops(c.Headers)+1), 10)},
	}
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
	sum := sha256.Sum256([]byte(c.Position.String() + "\n" + c.Target.String()))
	return c.ID + "." + hex.EncodeToString(sum[:8])
}

// DefaultPublishTimeout is the budget of one publish, the client's own retries
// included.
const DefaultPublishTimeout = 10 * time.Second
