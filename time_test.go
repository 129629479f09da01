package delaybridge_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"delaybridge"
)

// B2 (rabbitmq-delayed-message-exchange#71): past 32 bits of milliseconds the delay was none.
func TestParseDuration(t *testing.T) {
	for _, c := range []struct {
		sentence, in string
		want         time.Duration
	}{
		{"milliseconds", "250ms", 250 * time.Millisecond},
		{"seconds", "90s", 90 * time.Second},
		{"minutes", "5m", 5 * time.Minute},
		{"hours", "2h", 2 * time.Hour},
		{"a day has 24 hours", "7d", 168 * time.Hour},
		{"units are joined", "1h30m", 90 * time.Minute},
		{"all units at once", "1d2h3m4s5ms", 26*time.Hour + 3*time.Minute + 4*time.Second + 5*time.Millisecond},
		{"units may come in any order and again", "30s1h30s", time.Hour + time.Minute},
		{"a decimal fraction", "1.5s", 1500 * time.Millisecond},
		{"a fraction in the middle", "1.5h30m", 2 * time.Hour},
		{"no delay at all needs a unit too", "0s", 0},
		{"zero in every way", "0.000d0ms", 0},
		{"a part of a millisecond rounds up", "0.1ms", time.Millisecond},
		{"the smallest part rounds up", "1000.000000000000000000000000000000001ms", 1001 * time.Millisecond},
		{"only the sum is rounded", "0.5ms0.5ms", time.Millisecond},
		{"a fraction is exact where floating point is not", "0.3s", 300 * time.Millisecond},
		{"blanks and tabs around are trimmed", " \t5s\t ", 5 * time.Second},
		{"leading zeros are decimal, not octal", "010s", 10 * time.Second},
		{"the longest whole milliseconds", "9223372036854ms", 9223372036854 * time.Millisecond},
		{"the most that 32 bits of milliseconds hold", "4294967295ms", 4294967295 * time.Millisecond},
		{"one more than 32 bits of milliseconds", "4294967296ms", 4294967296 * time.Millisecond},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			got, err := delaybridge.ParseDuration(c.in)
			if err != nil || got != c.want {
				t.Errorf("ParseDuration(%q) = %v, %v; want %v", c.in, got, err, c.want)
			}
		})
	}
}

// What some schedulers let pass as a delay, or silently as none:
// B4 (OptimalBits/bull#1705): a negative delay was never over.
// B5 (OptimalBits/bull#1118, rabbitmq-delayed-message-exchange#44): one of another type was none.
func TestParseDurationRefuses(t *testing.T) {
	for _, c := range []struct{ sentence, in, reason string }{
		{"nothing", "", "empty"},
		{"blanks only", " \t ", "empty"},
		{"a bare number", "5", "unit is required"},
		{"milliseconds without their unit", "1200", "unit is required"},
		{"the same behind a blank", " 1200", "unit is required"},
		{"a bare zero", "0", "unit is required"},
		{"a bare number behind a good one", "1h5", "unit is required"},
		{"a bare fraction", "1.5", "unit is required"},
		{"a negative", "-5s", "negative"},
		{"a very negative", "-9223372036854775808", "negative"},
		{"a negative as far back as 1970", "-1700000000001", "negative"},
		{"a negative without a unit", "-1", "negative"},
		{"a negative part", "1h-5m", "no sign"},
		{"a plus sign", "+5s", "sign"},
		{"a unit alone", "s", "want a number"},
		{"a blank inside", "1h 30m", "blanks inside"},
		{"a blank before the unit", "5 s", "blanks inside"},
		{"an exponent", "1e3s", "exponent"},
		{"a capital exponent", "1E3s", "exponent"},
		{"a hexadecimal number", "0x10s", "no unit"},
		{"a hexadecimal number alone", "0x4b0", "no unit"},
		{"grouped digits", "1_000s", "grouped"},
		{"grouped digits alone", "1_200", "grouped"},
		{"a plus sign alone", "+5", "sign"},
		{"a decimal comma", "1,5s", "decimal sign is a point"},
		{"no digits before the point", ".5s", "want a number"},
		{"no digits behind the point", "5.s", "both sides"},
		{"two points", "1.2.3s", "want a number"},
		{"a capital unit", "5S", "no unit"},
		{"a unit of calendars", "1M", "no unit"},
		{"weeks", "1w", "no unit"},
		{"nanoseconds", "5ns", "no unit"},
		{"microseconds", "5µs", "no unit"},
		{"a word", "5sec", "no unit"},
		{"not a number", "NaN", "want a number"},
		{"infinity", "inf", "want a number"},
		{"Arabic digits", "\u0661\u0662s", "want a number"},
		{"full-width digits", "\uff15s", "want a number"},
		{"a NUL byte", "5s\x00", "no unit"},
		{"a DEL byte", "5\x7fs", "no unit"},
		{"a line break", "5s\n", "no unit"},
		{"broken UTF-8", "\xff\xfe", "want a number"},
		{"one millisecond more than can be expressed", "9223372036855ms", "too long"},
		{"days that overflow when multiplied", "106752d", "too long"},
		{"parts that overflow when added", "9223372036854ms1ms", "too long"},
		{"a fraction that overflows when rounded up", "9223372036854.1ms", "too long"},
		{"more digits than a machine word", "99999999999999999999s", "too long"},
		{"a very long number", strings.Repeat("9", 100_000) + "s", "at most 64"},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			got, err := delaybridge.ParseDuration(c.in)
			checkRefused(t, got, err, "invalid_duration", c.in, c.reason)
		})
	}
}

// B11 (OptimalBits/bull#2207, kelektiv/node-cron#563): the hour that comes twice is two instants.
func TestParseTime(t *testing.T) {
	utc := func(s string) time.Time {
		got, err := time.Parse("2006-01-02 15:04:05.000", s)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, c := range []struct {
		sentence, in string
		want         time.Time
	}{
		{"Zulu time", "2030-01-31T08:00:00Z", utc("2030-01-31 08:00:00.000")},
		{"an offset", "2030-01-31T08:00:00+02:00", utc("2030-01-31 06:00:00.000")},
		{"a negative offset with minutes", "2030-01-31T08:00:00-03:30", utc("2030-01-31 11:30:00.000")},
		{"the first 02:30 of the night when the clock goes back", "2026-10-25T02:30:00+02:00", utc("2026-10-25 00:30:00.000")},
		{"the second 02:30 of that night", "2026-10-25T02:30:00+01:00", utc("2026-10-25 01:30:00.000")},
		{"lower case is RFC 3339 too", "2030-01-31t08:00:00z", utc("2030-01-31 08:00:00.000")},
		{"milliseconds", "2030-01-31T08:00:00.123Z", utc("2030-01-31 08:00:00.123")},
		{"a part of a millisecond rounds up", "2030-01-31T08:00:00.1230001Z", utc("2030-01-31 08:00:00.124")},
		{"a part of a nanosecond rounds up", "2030-01-31T08:00:00.12300000000001Z", utc("2030-01-31 08:00:00.124")},
		{"many zeros are nothing to round", "2030-01-31T08:00:00.12300000000000Z", utc("2030-01-31 08:00:00.123")},
		{"rounding carries", "2029-12-31T23:59:59.9999Z", utc("2030-01-01 00:00:00.000")},
		{"a leap day", "2028-02-29T00:00:00Z", utc("2028-02-29 00:00:00.000")},
		{"long ago is a time", "1900-01-01T00:00:00Z", utc("1900-01-01 00:00:00.000")},
		{"the year nought is a time", "0000-01-01T00:00:00Z", utc("0000-01-01 00:00:00.000")},
		{"the last year is a time", "9999-12-31T23:59:59Z", utc("9999-12-31 23:59:59.000")},
		{"Unix milliseconds", "1790000000123", time.UnixMilli(1790000000123)},
		{"the first Unix milliseconds", "100000000000", time.UnixMilli(100000000000)},
		{"the last Unix milliseconds", "100000000000000", time.UnixMilli(100000000000000)},
		{"leading zeros are decimal", "0001790000000123", time.UnixMilli(1790000000123)},
		{"blanks and tabs around are trimmed", "\t 1790000000123 ", time.UnixMilli(1790000000123)},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			got, err := delaybridge.ParseTime(c.in)
			if err != nil || !got.Equal(c.want) || got.Location() != time.UTC {
				t.Errorf("ParseTime(%q) = %v, %v; want %v", c.in, got, err, c.want.UTC())
			}
		})
	}
}

// What some schedulers let pass as a time, or silently as none:
// B7 (taskforcesh/bullmq#2234): NaN and Inf reached the script.
func TestParseTimeRefuses(t *testing.T) {
	for _, c := range []struct{ sentence, in, reason string }{
		{"nothing", "", "empty"},
		{"blanks only", "  ", "empty"},
		{"seconds", "1790000000", "seconds"},
		{"one below the first milliseconds", "99999999999", "seconds"},
		{"zero", "0", "seconds"},
		{"one above the last milliseconds", "100000000000001", "microseconds"},
		{"microseconds", "1790000000123456", "microseconds"},
		{"nanoseconds", "1790000000123456789", "nanoseconds"},
		{"more digits than a machine word", "179000000012345678900000", "nanoseconds"},
		{"a very long number", strings.Repeat("1", 100_000), "at most 64"},
		{"a negative", "-1790000000123", "RFC 3339"},
		{"a plus sign", "+1790000000123", "RFC 3339"},
		{"a fraction", "1790000000123.5", "RFC 3339"},
		{"an exponent", "1.79e12", "RFC 3339"},
		{"a great exponent", "1e999", "RFC 3339"},
		{"hexadecimal digits", "0x1a0b1c2d3e4f", "RFC 3339"},
		{"grouped digits", "1_790_000_000_123", "RFC 3339"},
		{"not a number", "NaN", "RFC 3339"},
		{"infinity", "-Infinity", "RFC 3339"},
		{"infinity in short", "inf", "RFC 3339"},
		{"Arabic digits", "\u0661\u0667\u0669\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0661\u0662\u0663", "RFC 3339"},
		{"a duration", "5s", "RFC 3339"},
		{"no zone", "2026-03-29T02:30:00", "no zone"},
		{"no zone behind a fraction", "2026-03-29T02:30:00.5", "no zone"},
		{"a date alone", "2030-01-31", "RFC 3339"},
		{"no seconds", "2030-01-31T08:00Z", "RFC 3339"},
		{"a blank for the T", "2030-01-31 08:00:00Z", "T stands between"},
		{"a zone's name", "2030-01-31T08:00:00CET", "neither Z nor an offset"},
		{"a zone's name in brackets", "2030-01-31T08:00:00+01:00[Europe/Berlin]", "neither Z nor an offset"},
		{"an offset without a colon", "2030-01-31T08:00:00+0200", "neither Z nor an offset"},
		{"an offset of a day", "2030-01-31T08:00:00+24:00", "no zone"},
		{"an offset of sixty minutes", "2030-01-31T08:00:00+01:60", "no zone"},
		{"a comma for the point", "2030-01-31T08:00:00,5Z", "neither Z nor an offset"},
		{"a point without digits", "2030-01-31T08:00:00.Z", "RFC 3339"},
		{"an hour of one digit", "2030-01-31T8:00:00Z", "RFC 3339"},
		{"the year 10000", "10000-01-01T00:00:00Z", "RFC 3339"},
		{"a negative year", "-0001-01-01T00:00:00Z", "RFC 3339"},
		{"the 29th of February of no leap year", "2027-02-29T00:00:00Z", "calendar"},
		{"the month nought", "2027-00-01T00:00:00Z", "calendar"},
		{"24 o'clock", "2027-01-01T24:00:00Z", "calendar"},
		{"a leap second", "2016-12-31T23:59:60Z", "calendar"},
		{"a line break behind it", "2030-01-31T08:00:00Z\n", "neither Z nor an offset"},
		{"a NUL byte", "1790000000123\x00", "RFC 3339"},
		{"broken UTF-8", "\xff\xfe", "RFC 3339"},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			got, err := delaybridge.ParseTime(c.in)
			checkRefused(t, got, err, "invalid_time", c.in, c.reason)
		})
	}
}

func TestCeilMilli(t *testing.T) {
	base := time.UnixMilli(1790000000123)
	for _, c := range []struct {
		sentence string
		in, want time.Time
	}{
		{"a whole millisecond stays", base, base},
		{"a nanosecond more rounds up", base.Add(1), base.Add(time.Millisecond)},
		{"a nanosecond less rounds up to it", base.Add(-1), base},
		{"before 1970 it rounds towards the later one", time.UnixMilli(-5).Add(1), time.UnixMilli(-4)},
	} {
		if got := delaybridge.CeilMilli(c.in); !got.Equal(c.want) {
			t.Errorf("%s: CeilMilli(%v) = %v, want %v", c.sentence, c.in, got, c.want)
		}
	}
}

func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"90s", "1h30m", "7d", "1.5s", "0.0001ms", "-5s", "1e3s", "", "9223372036854.9ms", "\u0661s"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := delaybridge.ParseDuration(s)
		if err != nil {
			checkFieldError(t, err)
			return
		}
		if d < 0 || d%time.Millisecond != 0 {
			t.Errorf("ParseDuration(%q) = %d ns: negative, or no whole milliseconds", s, d)
		}
		if strings.Trim(s, "0123456789.msdh \t") != "" {
			t.Errorf("ParseDuration(%q) took a character that no duration has", s)
		}
		if again, err := delaybridge.ParseDuration(" " + s); err != nil || again != d {
			t.Errorf("a blank before %q changes it: %v, %v", s, again, err)
		}
	})
}

func FuzzParseTime(f *testing.F) {
	for _, s := range []string{"2030-01-31T08:00:00Z", "2030-01-31T08:00:00.1234567891+02:00", "1790000000123", "1790000000", "", "9999-12-31T23:59:59.9999Z"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := delaybridge.ParseTime(s)
		if err != nil {
			checkFieldError(t, err)
			return
		}
		if got.Nanosecond()%int(time.Millisecond) != 0 {
			t.Errorf("ParseTime(%q) = %v: no whole milliseconds", s, got)
		}
		if std, err := time.Parse(time.RFC3339, strings.ToUpper(delaybridge.TrimBlanks(s))); err == nil && got.Before(std) {
			t.Errorf("ParseTime(%q) = %v is earlier than %v", s, got, std)
		}
	})
}

// checkRefused checks that a value was refused as a whole, and for which reason.
func checkRefused[T comparable](t *testing.T, got T, err error, code, value, reason string) {
	t.Helper()
	var zero T
	fe, ok := errors.AsType[*delaybridge.FieldError](err)
	if !ok || got != zero {
		t.Fatalf("%.100q gave %v, %v; want a FieldError and nothing else", value, got, err)
	}
	if fe.Code != code || fe.Value != value || fe.Field != "" || !strings.Contains(fe.Reason, reason) {
		t.Errorf("%.100q gave %v (code %q, field %q); want code %q, the whole value, and a reason with %q", value, err, fe.Code, fe.Field, code, reason)
	}
	checkFieldError(t, err)
}

func checkFieldError(t *testing.T, err error) {
	t.Helper()
	fe, ok := errors.AsType[*delaybridge.FieldError](err)
	if !ok || !errors.Is(err, delaybridge.ErrInvalid) || fe.Code == "" || fe.Reason == "" {
		t.Fatalf("%v (%T) is no complete FieldError", err, err)
	}
}
