package ingest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"strconv"
	"strings"
	"unicode/utf8"

	"delaybridge"
)

// EnvelopeType is the content type that marks a payload as a JSON envelope.
const EnvelopeType = "application/vnd.delaybridge+json"

// IsEnvelopeType reports whether a Content-Type header says EnvelopeType,
// parameters and case aside.
func IsEnvelopeType(contentType string) bool {
	mediaType, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		// Broken parameters do not make it another type.
		mediaType, _, _ = strings.Cut(contentType, ";")
	}
	return strings.EqualFold(strings.TrimSpace(mediaType), EnvelopeType)
}

// takeContentType returns the headers without Content-Type, and whether one of
// those said EnvelopeType.
func takeContentType(headers []delaybridge.Header) (rest []delaybridge.Header, envelope bool) {
	for _, h := range headers {
		if !strings.EqualFold(h.Name, headerContentType) {
			rest = append(rest, h)
			continue
		}
		envelope = envelope || IsEnvelopeType(string(h.Value))
	}
	return rest, envelope
}

// envelope is what a JSON envelope holds beside the steering fields.
type envelope struct {
	headers []delaybridge.Header
	payload []byte
}

// parseEnvelope reads the JSON envelope that a producer sends who cannot set
// headers, and puts what steers into s. A value of null counts as not given,
// but for "key", where it is the null key, and for "payload", where it is JSON
// like any other.
func parseEnvelope(body []byte, s *steering) (envelope, error) {
	var e envelope
	if !utf8.Valid(body) {
		return e, notJSON("is not valid UTF-8")
	}
	if deeper(body, maxDepth) {
		return e, notJSON(fmt.Sprintf("is nested deeper than %d times", maxDepth))
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return e, notJSON("is no JSON object")
	}
	var payload, payloadBase64 json.RawMessage
	seen := make(map[string]bool)
	for dec.More() {
		name, value, err := nextMember(dec)
		if err != nil {
			return e, err
		}
		if seen[name] {
			return e, &delaybridge.FieldError{Code: CodeDuplicateField, Field: name, Reason: "is given twice"}
		}
		seen[name] = true
		switch name {
		case "id":
			err = setText(&s.id, name, value)
		case "op":
			err = setText(&s.op, name, value)
		case "target":
			err = setText(&s.target, name, value)
		case "delay":
			err = setText(&s.delay, name, value)
		case "deliver_at":
			// Unix milliseconds may be written as a JSON number, too. The digits
			// are judged like those in a string.
			if c := value[0]; '0' <= c && c <= '9' || c == '-' {
				s.deliverAt.set(name, value)
			} else {
				err = setText(&s.deliverAt, name, value)
			}
		case "expires_after":
			err = setText(&s.expiresAfter, name, value)
		case "key":
			if isNull(value) {
				s.key.set(name, nil)
			} else {
				err = setText(&s.key, name, value)
			}
		case "headers":
			e.headers, err = parseEnvelopeHeaders(value)
		case "payload":
			payload = value
		case "payload_base64":
			if !isNull(value) {
				payloadBase64 = value
			}
		default:
			return e, &delaybridge.FieldError{Code: CodeUnknownField, Field: name, Reason: "there is no such field: there are id, op, target, delay, deliver_at, key, expires_after, headers, payload, payload_base64"}
		}
		if err != nil {
			return e, err
		}
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return e, notJSON("is no JSON: " + err.Error())
	}
	if _, err := dec.Token(); err != io.EOF {
		return e, notJSON("has something behind the JSON object")
	}
	var err error
	e.payload, err = envelopePayload(payload, payloadBase64)
	return e, err
}

// maxDepth is how often the objects and arrays of an envelope may be nested, its
// payload included: what reads it later may be of a language that fails on more.
const maxDepth = 512

// deeper reports whether JSON is nested more than so many times. What is no JSON
// is left to be found by others.
func deeper(body []byte, most int) bool {
	depth, inString := 0, false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > most {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// nextMember reads a member's name and its value as it was written.
func nextMember(dec *json.Decoder) (name string, value json.RawMessage, err error) {
	t, err := dec.Token()
	if err != nil {
		return "", nil, notJSON("is no JSON: " + err.Error())
	}
	name = t.(string) // inside an object the decoder takes nothing else here
	if err := dec.Decode(&value); err != nil {
		return "", nil, notJSON("is no JSON: " + err.Error())
	}
	return name, value, nil
}

// setText sets a field to the characters of a JSON string; null is not given.
func setText(f *field, name string, value json.RawMessage) error {
	if isNull(value) {
		return nil
	}
	text, err := unquote(value)
	if err != nil {
		return &delaybridge.FieldError{Code: CodeInvalidType, Field: name, Value: string(value), Reason: err.Error()}
	}
	f.set(name, []byte(text))
	return nil
}

// parseEnvelopeHeaders reads {"name": "value" | null | ["value", …], …}, in the
// order in which it was written.
func parseEnvelopeHeaders(raw json.RawMessage) ([]delaybridge.Header, error) {
	const form = `want an object of name: value, the value a string, null, or a list of those`
	if isNull(raw) {
		return nil, nil
	}
	refuse := func(name, reason string) ([]delaybridge.Header, error) {
		return nil, &delaybridge.FieldError{Code: "invalid_headers", Field: "headers", Value: name, Reason: reason}
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return refuse("", form)
	}
	var headers []delaybridge.Header
	seen := make(map[string]bool)
	for dec.More() {
		name, value, err := nextMember(dec)
		if err != nil {
			return nil, err
		}
		var steers steering
		switch f, known := steers.byHeader(name); {
		case seen[name]:
			return refuse(name, "is given twice: write a list for several values")
		case name == "":
			return refuse(name, "a header has no name")
		case f != nil && known != headerMsgID:
			return refuse(name, "steers the bridge, which the envelope's own fields do")
		}
		seen[name] = true
		values := []json.RawMessage{value}
		if value[0] == '[' {
			if err := json.Unmarshal(value, &values); err != nil {
				return refuse(name, form)
			}
		}
		for _, v := range values {
			h := delaybridge.Header{Name: name}
			if !isNull(v) {
				text, err := unquote(v)
				if err != nil {
					return refuse(name, form)
				}
				h.Value = []byte(text)
			}
			if !delaybridge.Steers(name) {
				headers = append(headers, h)
			}
		}
	}
	return headers, nil
}

// envelopePayload returns the payload: a string's characters, any other JSON as
// it was written, or the bytes behind base64; empty if there is none.
func envelopePayload(payload, payloadBase64 json.RawMessage) ([]byte, error) {
	refuse := func(field, reason string) ([]byte, error) {
		return nil, &delaybridge.FieldError{Code: "invalid_payload", Field: field, Reason: reason}
	}
	switch {
	case payload != nil && payloadBase64 != nil:
		return refuse("payload_base64", "payload is given too: only one of them can be delivered")
	case payloadBase64 != nil:
		text, err := unquote(payloadBase64)
		if err != nil {
			return refuse("payload_base64", err.Error())
		}
		b, err := decodeBase64(text)
		if err != nil {
			return refuse("payload_base64", "is not base64 of the standard alphabet with padding: "+err.Error())
		}
		return b, nil
	case payload == nil:
		return []byte{}, nil
	case payload[0] == '"':
		text, err := unquote(payload)
		if err != nil {
			return refuse("payload", err.Error())
		}
		return []byte(text), nil
	}
	return payload, nil
}

// unquote returns the characters of a JSON string. A surrogate without its
// other half is no character: it would be delivered as something else.
func unquote(value json.RawMessage) (string, error) {
	var text string
	if value[0] != '"' {
		return "", fmt.Errorf("must be a JSON string")
	}
	if err := json.Unmarshal(value, &text); err != nil {
		return "", fmt.Errorf("must be a JSON string: %w", err)
	}
	if strings.ContainsRune(text, utf8.RuneError) && HasLoneSurrogate(value) {
		return "", fmt.Errorf("holds half of a surrogate pair, which is no character")
	}
	return text, nil
}

// HasLoneSurrogate reports whether valid JSON escapes a surrogate in a string
// whose other half does not follow or precede it.
func HasLoneSurrogate(quoted []byte) bool {
	half := func(i int) rune { // the escaped rune at i, or -1
		if i+6 > len(quoted) || quoted[i] != '\\' || quoted[i+1] != 'u' {
			return -1
		}
		n, err := strconv.ParseUint(string(quoted[i+2:i+6]), 16, 16)
		if err != nil {
			return -1
		}
		return rune(n)
	}
	for i := 0; i < len(quoted); i++ {
		if quoted[i] != '\\' {
			continue
		}
		r := half(i)
		switch {
		case r < 0:
			i++ // a short escape
		case 0xd800 <= r && r < 0xdc00:
			if next := half(i + 6); next < 0xdc00 || next > 0xdfff {
				return true
			}
			i += 11
		case 0xdc00 <= r && r <= 0xdfff:
			return true
		default:
			i += 5
		}
	}
	return false
}

func isNull(value json.RawMessage) bool { return string(value) == "null" }

func notJSON(reason string) error {
	return &delaybridge.FieldError{Code: CodeInvalidJSON, Field: "body", Reason: reason}
}
