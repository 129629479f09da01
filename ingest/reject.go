package ingest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strconv"
	"strings"
	"unicode/utf8"

	"delaybridge"
)

// headerRejectedFrom is the first header of a rejected dead letter: where its
// record was published to, which its routes go by.
const headerRejectedFrom = delaybridge.HeaderRejectedPrefix + "From"

// headerUnreadFrom stands in its place where the record was not read as a whole: what
// it asked for is not known, and must not be guessed from its route.
const headerUnreadFrom = delaybridge.HeaderRejectedPrefix + "Unread-From"

// Reject returns the request that keeps a refused record, under the id
// "rejected:<position>", whole payload and key included.
//
// With a reject target, and unless it has passed too many bridges, it is a message
// due now, which says what was wrong in Bridge-Error, and in which the headers that
// steered the bridge are kept as Bridge-Rejected-<name>; the others pass through.
//
// Without one it is an OpReject, which becomes a dead letter. Its Message holds
// the record as it was: Headers begin with Bridge-Rejected-From, the subject or
// topic that it was published to, and go on with all of the record's own,
// unchanged (Bridge-Delay, Nats-Msg-Id, Content-Type, …), so that RejectedRecord
// can give the record back. Scheduled and Due are the record's timestamp.
func (d *Decoder) Reject(rec Record, err error) delaybridge.Request {
	text := delaybridge.ErrorText(err.Error())
	now := d.cfg.Now()
	m := delaybridge.Message{
		ID:        positionID("rejected:", rec.Position),
		Position:  rec.Position,
		Scheduled: d.scheduled(rec.Time),
		Key:       rec.Key,
		Payload:   rec.Payload,
	}
	if m.Payload == nil && rec.Origin.Sink != delaybridge.SinkKafka {
		m.Payload = []byte{}
	}
	hops, passesOn := hopsOf(rec.Headers)
	if d.cfg.RejectTarget == (delaybridge.Target{}) || !passesOn {
		m.Due = m.Scheduled
		from := headerRejectedFrom
		if rec.Unreadable != nil {
			from = headerUnreadFrom
		}
		m.Headers = append([]delaybridge.Header{{Name: from, Value: []byte(rec.Origin.String())}}, rec.Headers...)
		return delaybridge.Request{Op: delaybridge.OpReject, Message: m, Error: text, FromAPI: rec.FromAPI}
	}
	m.Target = d.cfg.RejectTarget
	m.Due = notBefore1970(now.Truncate(1e6).UTC())
	m.Headers = rejectedHeaders(rec.Headers, text, hops)
	return delaybridge.Request{Op: delaybridge.OpSchedule, Message: m, Error: text, FromAPI: rec.FromAPI}
}

// deadCopy returns the message that tells the dead target of a refused record
// which becomes a dead letter, as a reject target would have been told.
func (d *Decoder) deadCopy(rec Record, r *delaybridge.Request) (delaybridge.Request, bool) {
	if r.Op != delaybridge.OpReject || d.cfg.DeadTarget == (delaybridge.Target{}) {
		return delaybridge.Request{}, false
	}
	hops, passesOn := hopsOf(rec.Headers)
	if !passesOn {
		return delaybridge.Request{}, false
	}
	m := r.Message
	m.ID, m.Position = delaybridge.DeadCopyID(m.ID), delaybridge.DeadCopyPosition(m.Position)
	m.Target = d.cfg.DeadTarget
	m.Due = notBefore1970(d.cfg.Now().Truncate(1e6).UTC())
	m.Headers = rejectedHeaders(rec.Headers, delaybridge.ErrorText(string(delaybridge.ReasonRejected)+": "+r.Error), hops)
	return delaybridge.Request{Op: delaybridge.OpSchedule, Message: m}, true
}

// hopsOf returns how many bridges a record has passed. What has passed too many,
// or does not say how many, goes nowhere any more: another bridge may read what
// the reject and the dead target get, and send it back.
func hopsOf(headers []delaybridge.Header) (hops int, passesOn bool) {
	steer, _ := splitHeaders(headers)
	hops, err := parseHops(&steer.hops)
	return hops, err == nil
}

// rejectedHeaders returns the headers of a message to the reject target.
func rejectedHeaders(headers []delaybridge.Header, errText string, hops int) []delaybridge.Header {
	out := []delaybridge.Header{{Name: delaybridge.HeaderError, Value: []byte(errText)}}
	for _, h := range headers {
		const ours = "Bridge-"
		switch {
		case delaybridge.TellsOfFailure(h.Name):
			// Of an earlier rejection: replaced, or they would pile up.
		case delaybridge.HasPrefixFold(h.Name, ours):
			out = append(out, delaybridge.Header{Name: delaybridge.HeaderRejectedPrefix + h.Name[len(ours):], Value: h.Value})
		case !delaybridge.Steers(h.Name):
			out = append(out, h)
		}
	}
	if hops > 0 {
		out = append(out, delaybridge.Header{Name: headerHops, Value: strconv.AppendInt(nil, int64(hops), 10)})
	}
	return out
}

// ErrNotRejected says that a dead letter holds no record as it was taken in.
var ErrNotRejected = errors.New("not a rejected record")

// RejectedRecord gives back the record of a dead letter that Reject made, to be
// decoded anew: it goes out under its own id then, and its delay still counts
// from its own timestamp. One that was not read as a whole is refused again. It fails
// with ErrNotRejected for any other message.
func RejectedRecord(m delaybridge.Message) (Record, error) {
	var unread *delaybridge.FieldError
	switch {
	case len(m.Headers) > 0 && m.Headers[0].Name == headerRejectedFrom:
	case len(m.Headers) > 0 && m.Headers[0].Name == headerUnreadFrom:
		unread = &delaybridge.FieldError{
			Code: "unread_record", Field: "record",
			Reason: "was not read as a whole, so that nobody knows what it asks for: mend it by hand and send it anew",
		}
	default:
		return Record{}, ErrNotRejected
	}
	// Not ParseTarget: what was published to is no target, and may be any bytes.
	sink, name, _ := strings.Cut(string(m.Headers[0].Value), "://")
	return Record{
		Position: m.Position,
		Origin:   delaybridge.Target{Sink: sink, Name: name},
		Time:     m.Scheduled,
		Key:      m.Key,
		Headers:  m.Headers[1:len(m.Headers):len(m.Headers)],
		Payload:  m.Payload,

		Unreadable: unread,
	}, nil
}

// positionID returns prefix and position as an id. One that is too long, by a
// stream or topic of a long name, keeps its begin and its end, and a hash of
// the whole in between.
func positionID(prefix string, p delaybridge.Position) string {
	id := prefix + p.String()
	if len(id) <= delaybridge.MaxIDBytes && utf8.ValidString(id) {
		return id
	}
	const end = 21 // a colon and the longest offset
	sum := sha256.Sum256([]byte(id))
	hash := "~" + hex.EncodeToString(sum[:8])
	tail := id[strings.LastIndexByte(id, ':'):]
	head := strings.ToValidUTF8(id, "_")
	head = strings.ToValidUTF8(head[:min(len(head), delaybridge.MaxIDBytes-end-len(hash))], "")
	return head + hash + tail
}
