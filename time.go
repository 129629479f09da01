package delaybridge

import (
	"fmt"
	"math"
	"math/big"
	"strings"
	"time"
)

// Unix milliseconds are taken between these two, 1973 to 5138: what is below
// looks like seconds, what is above like microseconds.
const (
	minUnixMilli = 100_000_000_000
	maxUnixMilli = 100_000_000_000_000
)

// maxTimeText is longer than any time or duration has to be written; it bounds
// the arithmetic that a hostile value can cause.
const maxTimeText = 64

var durationUnits = map[string]int64{
	"ms": 1,
	"s":  1000,
	"m":  60 * 1000,
	"h":  60 * 60 * 1000,
	"d":  24 * 60 * 60 * 1000,
}

const durationForm = "want a number with a unit (ms, s, m, h, d), such as 90s, 1h30m, 1.5s or 250ms"

// ParseDuration reads a delay such as "90s", "1h30m", "7d", "1.5s" or "250ms":
// decimal numbers with units, joined without blanks. Blanks around it are
// trimmed, parts of a millisecond round up. Errors are *FieldError with code
// "invalid_duration" and Field empty, for the caller to fill in.
func ParseDuration(s string) (time.Duration, error) {
	refuse := func(reason string) (time.Duration, error) {
		return 0, &FieldError{Code: "invalid_duration", Value: s, Reason: reason}
	}
	text := TrimBlanks(s)
	switch {
	case text == "":
		return refuse("is empty: " + durationForm)
	case len(text) > maxTimeText:
		return refuse(fmt.Sprintf("has %d characters, at most %d are allowed", len(text), maxTimeText))
	case text[0] == '-':
		return refuse("cannot be negative")
	case text[0] == '+':
		return refuse("takes no sign: " + durationForm)
	}

	const most = math.MaxInt64 / int64(time.Millisecond)
	var whole int64    // milliseconds
	var parts *big.Rat // fractions of milliseconds; exact, since only their sum is rounded
	for rest := text; rest != ""; {
		digits, after := cutDigits(rest)
		if digits == "" {
			return refuse(numberReason(after))
		}
		fraction := ""
		if strings.HasPrefix(after, ".") {
			if fraction, after = cutDigits(after[1:]); fraction == "" {
				return refuse("a point needs digits on both sides: " + durationForm)
			}
		}
		name, next := cutUnit(after)
		unit, ok := durationUnits[name]
		if !ok {
			return refuse(unitReason(name, after))
		}
		n, ok := parseDecimal(digits, most/unit)
		if !ok || whole > most-n*unit {
			return refuse("is too long: at most 292 years can be expressed")
		}
		whole += n * unit
		if strings.Trim(fraction, "0") != "" {
			part, _ := new(big.Rat).SetString("0." + fraction)
			part.Mul(part, new(big.Rat).SetInt64(unit))
			if parts == nil {
				parts = new(big.Rat)
			}
			parts.Add(parts, part)
		}
		rest = next
	}
	if parts != nil {
		up := new(big.Int).Add(parts.Num(), parts.Denom())
		up.Sub(up, big.NewInt(1)).Quo(up, parts.Denom())
		if !up.IsInt64() || whole > most-up.Int64() {
			return refuse("is too long: at most 292 years can be expressed")
		}
		whole += up.Int64()
	}
	return time.Duration(whole) * time.Millisecond, nil
}

// numberReason explains why what stands where a number should is none.
func numberReason(after string) string {
	switch after[0] {
	case ' ', '\t':
		return "blanks inside are not allowed: " + durationForm
	case '-', '+':
		return "takes no sign inside: " + durationForm
	}
	return durationForm
}

// unitReason explains why what stands behind a number is no unit.
func unitReason(name, after string) string {
	switch {
	case after == "":
		return "a unit is required: " + durationForm
	case after[0] == ' ' || after[0] == '\t':
		return "blanks inside are not allowed: " + durationForm
	case after[0] == '_' || after[0] == ',':
		return "digits are not grouped, and the decimal sign is a point: " + durationForm
	case name == "e" || name == "E":
		return "takes no exponent: " + durationForm
	case name == "":
		return durationForm
	}
	return fmt.Sprintf("%q is no unit: %s", name, durationForm)
}

// ParseTime reads an RFC 3339 time with a zone, or Unix milliseconds in decimal
// digits. Blanks around it are trimmed, parts of a millisecond round up. The
// result is in UTC. Errors are *FieldError with code "invalid_time" and Field
// empty, for the caller to fill in.
func ParseTime(s string) (time.Time, error) {
	refuse := func(reason string) (time.Time, error) {
		return time.Time{}, &FieldError{Code: "invalid_time", Value: s, Reason: reason}
	}
	text := TrimBlanks(s)
	switch {
	case text == "":
		return refuse("is empty: " + timeForm)
	case len(text) > maxTimeText:
		return refuse(fmt.Sprintf("has %d characters, at most %d are allowed", len(text), maxTimeText))
	}
	if digits, after := cutDigits(text); after == "" {
		ms, ok := parseDecimal(digits, math.MaxInt64)
		switch {
		case ok && ms < minUnixMilli:
			return refuse("looks like Unix seconds: " + timeForm)
		case ok && ms <= maxUnixMilli:
			return time.UnixMilli(ms).UTC(), nil
		case ok && ms <= maxUnixMilli*1000:
			return refuse("looks like Unix microseconds: " + timeForm)
		}
		return refuse("looks like Unix nanoseconds, or no time at all: " + timeForm)
	}
	if reason := checkRFC3339(text); reason != "" {
		return refuse(reason)
	}
	t, err := time.Parse(time.RFC3339, strings.ToUpper(text))
	if err != nil {
		return refuse("is no date and time of the calendar: " + timeForm)
	}
	if _, fraction, _ := strings.Cut(text, "."); len(fraction) > 9 {
		// The library drops what is beyond a nanosecond; rounding up must not.
		if digits, _ := cutDigits(fraction); strings.Trim(digits[min(9, len(digits)):], "0") != "" {
			t = t.Add(time.Nanosecond)
		}
	}
	return CeilMilli(t).UTC(), nil
}

const timeForm = "want RFC 3339 with a zone, such as 2030-01-31T08:00:00Z, or Unix milliseconds (13 digits today)"

// checkRFC3339 says what is wrong with the form of text, "" if nothing is. The
// library's own parser is more lenient: it takes one-digit hours, a comma for
// the point, and zones of 24 hours.
func checkRFC3339(text string) string {
	const form = "dddd-dd-ddTdd:dd:dd"
	for i := range len(form) {
		switch {
		case i == len(text):
			return timeForm
		case form[i] == 'T' && text[i] == ' ':
			return "a T stands between date and time: " + timeForm
		case form[i] == 'T' && text[i] == 't', form[i] == 'd' && isDigit(text[i]), form[i] != 'd' && form[i] == text[i]:
		default:
			return timeForm
		}
	}
	zone := text[len(form):]
	if strings.HasPrefix(zone, ".") {
		var fraction string
		if fraction, zone = cutDigits(zone[1:]); fraction == "" {
			return timeForm
		}
	}
	switch {
	case zone == "":
		return "has no zone: Z, or an offset such as +02:00, is required"
	case zone == "Z" || zone == "z":
		return ""
	case len(zone) == 6 && (zone[0] == '+' || zone[0] == '-') && zone[3] == ':' &&
		isDigit(zone[1]) && isDigit(zone[2]) && isDigit(zone[4]) && isDigit(zone[5]):
		if zone[1:3] > "23" || zone[4:6] > "59" {
			return "has an offset that is no zone"
		}
		return ""
	}
	return "has a zone that is neither Z nor an offset such as +02:00"
}

// CeilMilli rounds up to the millisecond, so that nothing that is measured from
// the result is early.
func CeilMilli(t time.Time) time.Time {
	t = t.Round(0) // without the monotonic clock
	if down := t.Truncate(time.Millisecond); down.Before(t) {
		return down.Add(time.Millisecond)
	}
	return t
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// cutDigits cuts s behind its leading ASCII digits.
func cutDigits(s string) (digits, after string) {
	i := 0
	for i < len(s) && isDigit(s[i]) {
		i++
	}
	return s[:i], s[i:]
}

// cutUnit cuts s before its next digit, point, sign or blank.
func cutUnit(s string) (unit, after string) {
	i := strings.IndexAny(s, "0123456789.+-_, \t")
	if i < 0 {
		i = len(s)
	}
	return s[:i], s[i:]
}

// parseDecimal reads ASCII digits, and says whether the number is at most most.
func parseDecimal(digits string, most int64) (int64, bool) {
	var n int64
	for i := range len(digits) {
		d := int64(digits[i] - '0')
		if n > (most-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}
