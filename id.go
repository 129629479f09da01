package delaybridge

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// ValidateID checks an id: 1 to MaxIDBytes bytes of valid UTF-8, without
// control characters and with no blank at either end, so that it survives every
// header and every log line as it is. Errors are *FieldError with code
// "invalid_id" and Field empty, for the caller to fill in.
func ValidateID(id string) error {
	reason := ""
	switch {
	case id == "":
		reason = "is empty"
	case len(id) > MaxIDBytes:
		reason = fmt.Sprintf("has %d bytes, at most %d are allowed", len(id), MaxIDBytes)
	case !utf8.ValidString(id):
		reason = "is not valid UTF-8"
	case TrimBlanks(id) != id:
		reason = "has blanks at an end"
	default:
		for _, r := range id {
			if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
				reason = fmt.Sprintf("%q cannot be in an id: no control characters, no line breaks", r)
				break
			}
		}
	}
	if reason != "" {
		return &FieldError{Code: "invalid_id", Value: id, Reason: reason}
	}
	return nil
}
