package ingest

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"

	"delaybridge"
)

// Headers that steer the bridge, as they are written in errors and docs. They
// are matched without regard to case.
const (
	headerTarget       = "Bridge-Target"
	headerDelay        = "Bridge-Delay"
	headerDeliverAt    = "Bridge-Deliver-At"
	headerID           = "Bridge-Id"
	headerKey          = "Bridge-Key"
	headerKeyBase64    = "Bridge-Key-Base64"
	headerExpiresAfter = "Bridge-Expires-After"
	headerTombstone    = "Bridge-Tombstone"
	headerOp           = "Bridge-Op"
	headerRawHeaders   = "Bridge-Raw-Headers"
	headerHops         = delaybridge.HeaderHops

	headerMsgID       = "Nats-Msg-Id"
	headerContentType = "Content-Type"
)

// steering is what a record asks of the bridge, not yet understood. Each field
// comes from a header or from the envelope.
type steering struct {
	target, delay, deliverAt, id, key, keyBase64   field
	expiresAfter, tombstone, op, rawHeaders, msgID field
	hops                                           field

	unknown string // the name of a header that looks like one of ours and is none
}

// field is one value that a record gave, or did not give.
type field struct {
	name  string // as its user knows it; "" if it was not given
	value []byte // nil for a null one
	other bool   // it was given again with another value
}

func (f *field) given() bool { return f.name != "" }

// set notes a value. Of two that are equal, one is enough; of two that differ
// nobody can tell which was meant, so the field is refused when it is used.
func (f *field) set(name string, value []byte) {
	if !f.given() {
		f.name, f.value = name, value
		return
	}
	if (f.value == nil) != (value == nil) || !bytes.Equal(f.value, value) {
		f.other = true
	}
}

// text returns the value without the blanks around it.
func (f *field) text() (string, error) {
	if f.other {
		return "", f.refuse("ambiguous_value", "is given more than once, with different values")
	}
	return delaybridge.TrimBlanks(string(f.value)), nil
}

func (f *field) refuse(code, reason string) error {
	return &delaybridge.FieldError{Code: code, Field: f.name, Value: string(f.value), Reason: reason}
}

// fill puts the field's name into an error of the root's parsers, and code in
// place of theirs if it is not empty.
func (f *field) fill(err error, code string) error {
	fe, ok := err.(*delaybridge.FieldError)
	if !ok {
		return err
	}
	filled := *fe
	filled.Field = f.name
	if f.value != nil {
		filled.Value = string(f.value) // with the blanks that were trimmed
	}
	if code != "" {
		filled.Code = code
	}
	return &filled
}

// byHeader returns the field that a header sets, nil if it sets none.
func (s *steering) byHeader(name string) (f *field, known string) {
	for _, h := range [...]struct {
		name  string
		field *field
	}{
		{headerTarget, &s.target}, {headerDelay, &s.delay}, {headerDeliverAt, &s.deliverAt},
		{headerID, &s.id}, {headerKey, &s.key}, {headerKeyBase64, &s.keyBase64},
		{headerExpiresAfter, &s.expiresAfter}, {headerTombstone, &s.tombstone},
		{headerOp, &s.op}, {headerRawHeaders, &s.rawHeaders}, {headerMsgID, &s.msgID},
		{headerHops, &s.hops},
	} {
		if strings.EqualFold(name, h.name) {
			return h.field, h.name
		}
	}
	return nil, ""
}

// splitHeaders takes the headers that steer out of a record's headers. What is
// left passes through, in order, repetition kept.
func splitHeaders(headers []delaybridge.Header) (s steering, rest []delaybridge.Header) {
	for _, h := range headers {
		f, name := s.byHeader(h.Name)
		switch {
		case f != nil:
			f.set(name, h.Value)
		case looksOurs(h.Name) && !isDelivered(h.Name):
			s.unknown = h.Name
		case !delaybridge.Steers(h.Name):
			rest = append(rest, h)
		}
	}
	return s, rest
}

// looksOurs reports whether a header was meant for the bridge, blanks around its
// name or not.
func looksOurs(name string) bool {
	return delaybridge.HasPrefixFold(strings.TrimSpace(name), "Bridge-")
}

// isDelivered reports whether a header is one that delivered messages carry: one
// that comes back to the bridge steers nothing any more.
func isDelivered(name string) bool {
	for _, known := range []string{"Bridge-Scheduled-At", "Bridge-Due-At", "Bridge-Attempt"} {
		if strings.EqualFold(name, known) {
			return true
		}
	}
	return delaybridge.TellsOfFailure(name)
}

// parseRawHeaders reads Bridge-Raw-Headers: a JSON list of [name, value], both
// base64, the value or null.
func parseRawHeaders(f *field) ([]delaybridge.Header, error) {
	const form = `want a JSON list of [name, value], both in base64, the value or null`
	text, err := f.text()
	if err != nil {
		return nil, err
	}
	// Pointers, since a null and a missing one must be told from "".
	var pairs []*[]*string
	if err := json.Unmarshal([]byte(text), &pairs); err != nil || pairs == nil {
		return nil, f.refuse("invalid_headers", form)
	}
	headers := make([]delaybridge.Header, 0, len(pairs))
	for _, pair := range pairs {
		if pair == nil || len(*pair) != 2 || (*pair)[0] == nil {
			return nil, f.refuse("invalid_headers", form)
		}
		name, err := decodeBase64(*(*pair)[0])
		if err != nil {
			return nil, f.refuse("invalid_headers", "a name is not base64: "+form)
		}
		h := delaybridge.Header{Name: string(name)}
		if value := (*pair)[1]; value != nil {
			if h.Value, err = decodeBase64(*value); err != nil {
				return nil, f.refuse("invalid_headers", "a value is not base64: "+form)
			}
		}
		if !delaybridge.Steers(h.Name) {
			headers = append(headers, h)
		}
	}
	return headers, nil
}

// decodeBase64 reads padded standard base64 and nothing else; the library's
// decoder skips line breaks. The result is never nil.
func decodeBase64(s string) ([]byte, error) {
	if i := strings.IndexAny(s, "\r\n"); i >= 0 {
		return nil, base64.CorruptInputError(i)
	}
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err == nil && b == nil {
		b = []byte{}
	}
	return b, err
}
