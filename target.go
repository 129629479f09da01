package delaybridge

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of a target's name.
const (
	// MaxTopicBytes is the longest name that Kafka gives a topic.
	MaxTopicBytes = 249
	// MaxSubjectBytes is the longest subject that is taken: a NATS server's
	// default limit for a whole protocol line is 4 KiB, reply subject included.
	MaxSubjectBytes = 1024
)

// Target is a place that a sink can publish to.
type Target struct {
	Sink string // one of Lanes
	Name string // a Kafka topic or a NATS subject
}

// String returns "<sink>://<name>".
func (t Target) String() string { return t.Sink + "://" + t.Name }

// ParseTarget reads "<sink>://<name>" and checks the name by the rules of its
// broker. Blanks around it are trimmed. Errors are *FieldError with Field
// empty, for the caller to fill in; their codes are "invalid_target",
// "unknown_sink" and, for names that are refused always, "forbidden_target".
func ParseTarget(s string) (Target, error) {
	sink, name, err := SplitTarget(s)
	if err != nil {
		return Target{}, err
	}
	if isPlainName(name) {
		return Target{Sink: sink, Name: name}, nil
	}
	code, reason := "invalid_target", ""
	if sink == SinkKafka {
		reason = checkTopic(name)
		if reason == "" && strings.HasPrefix(name, "__") {
			code, reason = "forbidden_target", "topics that begin with __ are Kafka's own"
		}
	} else {
		reason = checkSubject(name)
		if prefix := SystemSubjectPrefix(name); reason == "" && prefix != "" {
			code, reason = "forbidden_target", "subjects that begin with "+prefix+" are the NATS server's own"
		}
	}
	if reason != "" {
		return Target{}, &FieldError{Code: code, Value: s, Reason: reason}
	}
	return Target{Sink: sink, Name: name}, nil
}

// isPlainName reports whether a name is one that every sink takes, as nearly all
// are. It is asked for each message, twice.
func isPlainName(name string) bool {
	if len(name) > MaxTopicBytes {
		return false
	}
	last := byte('.') // so that it does not begin with one, nor has an empty token
	for i := range len(name) {
		c := name[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case c == '.' && last != '.':
		case (c == '_' || c == '-') && i > 0:
		default:
			return false
		}
		last = c
	}
	return last != '.'
}

// SplitTarget reads the sink of "<sink>://<name>", which must be a known one,
// and leaves the name unchecked, for patterns. Errors are as of ParseTarget.
func SplitTarget(s string) (sink, name string, err error) {
	const form = "want kafka://<topic>, nats://<subject> or nats-core://<subject>"
	trimmed := TrimBlanks(s)
	if trimmed == "" {
		return "", "", &FieldError{Code: "invalid_target", Value: s, Reason: "is empty: " + form}
	}
	sink, name, ok := strings.Cut(trimmed, "://")
	if !ok {
		return "", "", &FieldError{Code: "invalid_target", Value: s, Reason: "has no sink: " + form}
	}
	for _, known := range Lanes {
		if sink == known {
			return sink, name, nil
		}
	}
	for _, known := range Lanes {
		if strings.EqualFold(strings.TrimSpace(sink), known) {
			return "", "", &FieldError{Code: "unknown_sink", Value: s, Reason: "there is no such sink; " + known + " is written in lower case, without blanks"}
		}
	}
	return "", "", &FieldError{Code: "unknown_sink", Value: s, Reason: "there is no such sink; there are " + strings.Join(Lanes[:], ", ")}
}

// checkTopic says what is wrong with a Kafka topic's name, "" if nothing is.
func checkTopic(name string) string {
	switch {
	case name == "":
		return "the topic is empty"
	case name == "." || name == "..":
		return "a topic cannot be named . or .."
	case len(name) > MaxTopicBytes:
		return fmt.Sprintf("the topic has %d characters, at most %d are allowed", len(name), MaxTopicBytes)
	}
	for _, r := range name {
		if (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '_' && r != '-' {
			return fmt.Sprintf("%q cannot be in a topic, only A-Z a-z 0-9 . _ -", r)
		}
	}
	return ""
}

// checkSubject says what is wrong with a NATS subject, "" if nothing is.
func checkSubject(name string) string {
	for r := range strings.SplitSeq(name, ".") {
		if strings.ContainsAny(r, "*>") {
			return "a target is one subject: it cannot hold the wildcards * and >"
		}
	}
	return CheckSubjectTokens(name)
}

// CheckSubjectTokens says what is wrong with a NATS subject or subject pattern
// apart from its wildcards, "" if nothing is: tokens must not be empty and must
// not hold blanks, control characters or broken UTF-8.
func CheckSubjectTokens(name string) string {
	switch {
	case name == "":
		return "the subject is empty"
	case len(name) > MaxSubjectBytes:
		return fmt.Sprintf("the subject has %d bytes, at most %d are allowed", len(name), MaxSubjectBytes)
	case !utf8.ValidString(name):
		return "the subject is not valid UTF-8"
	case strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") || strings.Contains(name, ".."):
		return "a subject's tokens, which the dots divide, cannot be empty"
	}
	for _, r := range name {
		if unicode.IsSpace(r) || unicode.IsControl(r) || IsInvisible(r) {
			return fmt.Sprintf("%+q cannot be in a subject: no blanks, no control characters, nothing invisible", r)
		}
	}
	return ""
}

// SystemSubjectPrefix returns the prefix that makes a NATS subject, or a pattern of
// subjects, the server's own, "" if none does. Such subjects are neither sources
// nor targets: a message to $JS.API.STREAM.DELETE.X would delete a stream.
//
// What only looks like one, by its letters' case or an encoding, is treated alike:
// a mapping, a bridge or a proxy on the way may make it one.
func SystemSubjectPrefix(subject string) string {
	folded := FoldName(subject)
	for _, prefix := range [...]string{"$", "_INBOX", "_R_", "_GR_"} {
		if strings.HasPrefix(subject, prefix) || strings.HasPrefix(folded, strings.ToLower(prefix)) {
			return prefix
		}
	}
	return ""
}

// TrimBlanks cuts blanks and tabs off both ends. Other white space, such as a
// line break, is no blank: it never belongs to a value.
func TrimBlanks(s string) string { return strings.Trim(s, " \t") }
