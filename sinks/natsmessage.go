package sinks

import (
	"encoding/base64"
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"delaybridge"
)

// jetStreamMessage returns the message as JetStream is to store it, with the id
// that the broker drops repeats by.
func jetStreamMessage(c *delaybridge.Claim) *nats.Msg {
	m := natsMessage(c)
	m.Header[jetstream.MsgIDHeader] = []string{messageID(c)}
	return m
}

// natsMessage returns the message as it goes out on a subject. What NATS cannot
// express stands in headers of ours.
func natsMessage(c *delaybridge.Claim) *nats.Msg {
	pass := cloudEventForNATS(c.Headers)
	h := make(nats.Header, len(pass)+7)
	setRawHeaders(h, addHeaders(h, pass))
	var buf [ownBytes]byte
	b, ends := appendOwn(buf[:0], c)
	rest := string(b)
	values := [...]string{c.ID, rest[:ends[0]], rest[ends[0]:ends[1]], rest[ends[1]:ends[2]], rest[ends[2]:]}
	for i, name := range [...]string{headerID, headerScheduledAt, headerDueAt, headerAttempt, delaybridge.HeaderHops} {
		h[name] = values[i : i+1 : i+1]
	}
	switch {
	case c.Key == nil:
	case isPrintable(c.Key):
		h[headerKey] = []string{string(c.Key)}
	default:
		h[headerKeyBase64] = []string{base64.StdEncoding.EncodeToString(c.Key)}
	}
	if c.Payload == nil {
		h[headerTombstone] = []string{"true"}
	}
	return &nats.Msg{Subject: c.Target.Name, Header: h, Data: c.Payload}
}

// addHeaders puts into h what NATS can carry as it is and returns the rest. A
// name goes to the rest with all its values if one of them has to: the order
// within a name can have a meaning, and a consumer must not see half of it.
func addHeaders(h nats.Header, headers []delaybridge.Header) (rest []delaybridge.Header) {
	var lossy map[string]bool
	for i := range headers {
		if passes(headers[i].Name) && !natsCarries(&headers[i]) {
			if lossy == nil {
				lossy = map[string]bool{}
			}
			lossy[headers[i].Name] = true
		}
	}
	for _, header := range headers {
		switch {
		case !passes(header.Name):
		case lossy[header.Name]:
			rest = append(rest, header)
		default:
			h[header.Name] = append(h[header.Name], string(header.Value))
		}
	}
	return rest
}

// setRawHeaders puts headers into one that holds them as a JSON list of
// [name, value], both base64, where a value may be null.
func setRawHeaders(h nats.Header, headers []delaybridge.Header) {
	if len(headers) == 0 {
		return
	}
	list := make([][2][]byte, len(headers))
	for i, header := range headers {
		list[i] = [2][]byte{[]byte(header.Name), header.Value}
	}
	// Byte slices always marshal: as base64, or as null.
	text, _ := json.Marshal(list)
	h[headerRawHeaders] = []string{string(text)}
}

// natsCarries reports whether a header arrives over NATS exactly as it is.
func natsCarries(h *delaybridge.Header) bool {
	if h.Value == nil || !isToken(h.Name) {
		return false
	}
	for _, c := range h.Value {
		// Line breaks end a header; some clients cut at NUL.
		if c == '\r' || c == '\n' || c == 0 {
			return false
		}
	}
	return utf8.Valid(h.Value) && !hasBlankEdge(string(h.Value))
}

// hasBlankEdge reports whether a client may trim s. What counts as blank differs
// between clients; the widest sense is taken.
func hasBlankEdge(s string) bool {
	trimmed := strings.TrimFunc(s, func(r rune) bool {
		return r <= ' ' || r == 0x7f || r == '\ufeff' || unicode.IsSpace(r)
	})
	return len(trimmed) != len(s)
}

// isToken reports whether NATS clients accept a header's name.
func isToken(name string) bool {
	for i := range len(name) {
		c := name[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return name != ""
}

// isPrintable reports whether a key can stand in a header as text.
func isPrintable(key []byte) bool {
	if !utf8.Valid(key) {
		return false
	}
	for _, r := range string(key) {
		if !unicode.IsPrint(r) {
			return false
		}
	}
	return !hasBlankEdge(string(key))
}
