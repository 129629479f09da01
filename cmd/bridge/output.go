package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"delaybridge"
)

// format is the value of -o.
type format string

const (
	formatText format = "text"
	formatJSON format = "json"
)

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "format" }

// Set is called by the flag parser.
func (f *format) Set(s string) error {
	switch format(s) {
	case formatText, formatJSON:
		*f = format(s)
		return nil
	}
	return fmt.Errorf("takes text or json")
}

// outputFlag adds -o to a command.
func outputFlag(cmd *cobra.Command) *format {
	f := formatText
	cmd.Flags().VarP(&f, "output", "o", "how to print: text or json")
	return &f
}

// printJSON writes v as one line of JSON. Control characters that JSON allows
// but a terminal may obey are escaped too.
func printJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(w, escapeJSON(b.String()))
	return err
}

// escapeJSON escapes in JSON what it allows and a terminal may obey, or a reader
// not see. The text means the same after it.
func escapeJSON(s string) string {
	var out strings.Builder
	for _, r := range s {
		if r < ' ' || isPlain(r) || unicode.Is(unicode.Zs, r) {
			out.WriteRune(r) // below a blank there are only line ends, since strings have none
		} else {
			out.WriteString(escapeRune(r))
		}
	}
	return out.String()
}

// isPlain reports whether a rune is plainly seen, and does nothing to its neighbours.
func isPlain(r rune) bool {
	return r == ' ' || unicode.IsGraphic(r) && !unicode.Is(unicode.Zs, r) && !delaybridge.IsInvisible(r)
}

// escapeRune writes a rune as JSON and Go do, in two halves where it takes two.
func escapeRune(r rune) string {
	if a, b := utf16.EncodeRune(r); a != utf8.RuneError {
		return fmt.Sprintf(`\u%04x\u%04x`, a, b)
	}
	return fmt.Sprintf(`\u%04x`, r)
}

// printable returns s with everything escaped that is not plainly visible: ids,
// targets and error texts come from messages, and must not steer a terminal.
func printable(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case isPlain(r):
			b.WriteRune(r)
		case r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteString(escapeRune(r))
		}
		i += n
	}
	return b.String()
}

// timeForm is RFC 3339 with milliseconds.
const timeForm = "2006-01-02T15:04:05.000Z07:00"

func formatTime(t time.Time) string { return t.UTC().Format(timeForm) }

// stamp is a time as the API shows it: RFC 3339, ms, UTC; null where there is none.
type stamp time.Time

// MarshalJSON implements json.Marshaler.
func (t stamp) MarshalJSON() ([]byte, error) {
	if time.Time(t).IsZero() {
		return []byte("null"), nil
	}
	return []byte(`"` + formatTime(time.Time(t)) + `"`), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *stamp) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*t = stamp{}
		return nil
	}
	at, err := time.Parse(`"`+time.RFC3339+`"`, string(b))
	*t = stamp(at)
	return err
}

// plural counts what has a plain plural.
func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// newTable writes columns; flush it at the end.
func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }
