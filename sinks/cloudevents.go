package sinks

import (
	"bytes"
	"strings"

	"delaybridge"
)

// In the binary mode of CloudEvents an event's attributes are headers, whose
// names begin with ce_ on Kafka and with ce- on NATS, and whose media type is
// in content-type on Kafka and in ce-datacontenttype on NATS.
const (
	cloudEventsKafka = "ce_"
	cloudEventsNATS  = "ce-"
	specVersion      = "specversion"
	dataContentType  = "datacontenttype"
	contentType      = "content-type"
)

// cloudEventForNATS renames the attributes of a binary-mode event from Kafka as
// the NATS binding has them. Anything else is returned as it is. The values stay
// untouched. The media type stays in content-type too, for consumers that know
// nothing of CloudEvents.
func cloudEventForNATS(headers []delaybridge.Header) []delaybridge.Header {
	if !isBinaryEvent(headers, cloudEventsKafka) {
		return headers
	}
	out := renameAttributes(headers, cloudEventsKafka, cloudEventsNATS)
	media, ok := headerValue(out, contentType)
	if _, has := headerValue(out, cloudEventsNATS+dataContentType); ok && !has && !isEventFormat(media) {
		out = append(out, delaybridge.Header{Name: cloudEventsNATS + dataContentType, Value: media})
	}
	return out
}

// cloudEventForKafka renames the attributes of a binary-mode event from NATS as
// the Kafka binding has them, where content-type is the datacontenttype.
// Anything else is returned as it is.
func cloudEventForKafka(headers []delaybridge.Header) []delaybridge.Header {
	if !isBinaryEvent(headers, cloudEventsNATS) {
		return headers
	}
	out := renameAttributes(headers, cloudEventsNATS, cloudEventsKafka)
	media, ok := headerValue(out, cloudEventsKafka+dataContentType)
	if !ok {
		return out
	}
	kept := out[:0]
	for _, h := range out {
		if !strings.EqualFold(h.Name, contentType) && h.Name != cloudEventsKafka+dataContentType {
			kept = append(kept, h)
		}
	}
	return append(kept, delaybridge.Header{Name: contentType, Value: media})
}

// isBinaryEvent reports whether the headers hold an event by the binding that
// has this prefix: every event has a specversion.
func isBinaryEvent(headers []delaybridge.Header, prefix string) bool {
	_, ok := headerValue(headers, prefix+specVersion)
	return ok
}

// isEventFormat reports whether a content type says that the whole event is in
// the body (structured mode).
func isEventFormat(media []byte) bool {
	return delaybridge.HasPrefixFold(string(bytes.TrimSpace(media)), "application/cloudevents")
}

// renameAttributes returns a copy in which the attributes have the other prefix.
// Names of attributes are lower-case letters and digits; a client may have sent
// them in another case over NATS, where the binding ignores it, while consumers
// on Kafka do not.
func renameAttributes(headers []delaybridge.Header, from, to string) []delaybridge.Header {
	out := make([]delaybridge.Header, 0, len(headers)+1)
	for _, h := range headers {
		if delaybridge.HasPrefixFold(h.Name, from) && isAttribute(h.Name[len(from):]) {
			h.Name = to + strings.ToLower(h.Name[len(from):])
		}
		out = append(out, h)
	}
	return out
}

func isAttribute(name string) bool {
	for _, c := range []byte(name) {
		if !(c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z') {
			return false
		}
	}
	return name != ""
}

// headerValue returns the value of the first header of that name, in any case.
func headerValue(headers []delaybridge.Header, name string) ([]byte, bool) {
	for _, h := range headers {
		if strings.EqualFold(h.Name, name) {
			return h.Value, true
		}
	}
	return nil, false
}
