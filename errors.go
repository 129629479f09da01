package delaybridge

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Errors of a request.
var (
	// ErrInvalid is matched by every FieldError.
	ErrInvalid = errors.New("invalid")
)

// Errors of a claim.
var (
	// ErrLeaseLost says that the claim was settled by nobody in time, or is
	// another's by now. Nothing was changed, and nothing needs to be done.
	ErrLeaseLost = errors.New("lease lost")
)

// FieldError says which field of a request was refused, and why. It is
// matched by errors.Is(err, ErrInvalid).
type FieldError struct {
	// Code is a short name for programs, such as "invalid_delay".
	Code string
	// Field is the header, JSON field or setting as its user knows it.
	Field string
	// Value is what was given, as it was given.
	Value string
	// Reason says what is wrong and what would be right.
	Reason string
}

// Error names the field, its value (quoted and cut) and the reason.
func (e *FieldError) Error() string {
	const most = 200
	value := e.Value
	if len(value) > most {
		value = value[:most] + "…"
	}
	if value == "" {
		return fmt.Sprintf("%s: %s: %s", e.Code, e.Field, e.Reason)
	}
	return fmt.Sprintf("%s: %s: %s: %s", e.Code, e.Field, strconv.QuoteToGraphic(value), e.Reason)
}

// Is makes every FieldError match ErrInvalid.
func (e *FieldError) Is(target error) bool { return target == ErrInvalid }

// Class tells the scheduler what to do about a publish that was not confirmed.
// Who speaks to the broker decides it; the scheduler obeys.
type Class uint8

// The classes of failure.
const (
	// ClassUnknown: sent, or perhaps sent, and no answer in time. It may still
	// arrive. Errors that carry no class are of this one.
	ClassUnknown Class = iota
	// ClassUnavailable: no connection, so nothing was sent and nothing will be.
	ClassUnavailable
	// ClassTransient: this message was refused now and may be taken later.
	ClassTransient
	// ClassPermanent: this message will never be taken.
	ClassPermanent

	// Classes is how many there are.
	Classes = iota
)

var classNames = [...]string{"unknown", "unavailable", "transient", "permanent"}

func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return fmt.Sprintf("Class(%d)", uint8(c))
}

type classError struct {
	class Class
	err   error
}

func (e *classError) Error() string { return e.err.Error() }
func (e *classError) Unwrap() error { return e.err }

// Unavailable marks err as ClassUnavailable.
func Unavailable(err error) error { return &classError{ClassUnavailable, err} }

// Transient marks err as ClassTransient.
func Transient(err error) error { return &classError{ClassTransient, err} }

// Permanent marks err as ClassPermanent.
func Permanent(err error) error { return &classError{ClassPermanent, err} }

// ClassOf returns the class that err was marked with, ClassUnknown if with none.
func ClassOf(err error) Class {
	if ce, ok := errors.AsType[*classError](err); ok {
		return ce.class
	}
	return ClassUnknown
}

// MaxErrorBytes is the length at which stored error texts are cut.
const MaxErrorBytes = 1024

// MaxLastErrorBytes is the length at which the last error of a message that is
// tried again is cut: many may wait at a time.
const MaxLastErrorBytes = 256

// ErrorText returns an error's text as one line of printable text of at most
// MaxErrorBytes, fit for a header of either broker and for a terminal.
func ErrorText(text string) string { return errorText(text, MaxErrorBytes) }

// LastErrorText is ErrorText of at most MaxLastErrorBytes. Where errors were
// joined, a blank stands between them.
func LastErrorText(text string) string {
	return errorText(strings.Join(strings.Fields(text), " "), MaxLastErrorBytes)
}

func errorText(text string, most int) string {
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsGraphic(r) || r == '\u2028' || r == '\u2029' {
			return '?'
		}
		return r
	}, text))
	if len(text) > most {
		const more = "…"
		text = strings.ToValidUTF8(text[:most-len(more)], "") + more
	}
	return text
}
