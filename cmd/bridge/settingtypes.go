package main

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"delaybridge"
)

// The types that settings are read into. Each trims blanks, leaves its default
// when the variable is set but empty, and says in its error what it takes.
// envconfig's own reading is not used: it takes 010 for 8, keeps blanks in
// lists and knows no days.

// text is a plain word or name.
type text string

func (t *text) Decode(s string) error {
	if s = strings.TrimSpace(s); s != "" {
		*t = text(s)
	}
	return nil
}

func (t text) String() string { return string(t) }

// listenAddress is host:port to listen on. Set but empty is a value of its own:
// it means nowhere.
type listenAddress string

func (a *listenAddress) Decode(s string) error {
	*a = listenAddress(strings.TrimSpace(s))
	return nil
}

func (a listenAddress) String() string { return string(a) }
func (a listenAddress) emptyIsAValue() {}

// secret is never shown, whatever prints it.
type secret string

func (s *secret) Decode(v string) error {
	if v = strings.TrimSpace(v); v != "" {
		*s = secret(v)
	}
	return nil
}

func (s secret) String() string {
	if s == "" {
		return ""
	}
	return masked
}

func (s secret) GoString() string { return s.String() }

func (s secret) fromFile() {}

// address is one URL, or several with commas between; passwords in it are
// not shown.
type address string

func (a *address) Decode(s string) error {
	if s = strings.TrimSpace(s); s != "" {
		*a = address(s)
	}
	return nil
}

func (a address) String() string   { return maskURLs(string(a)) }
func (a address) GoString() string { return a.String() }
func (a address) fromFile()        {}

const masked = "********"

var passwordParameter = regexp.MustCompile(`(?i)(password=)[^&,\s]*`)

// urlStart matches where one of several URLs begins, also within an error text.
var urlStart = regexp.MustCompile(`(^|[\s,"])[A-Za-z][A-Za-z0-9+.-]*://`)

// maskURLs hides every user part that may be a password or a token. It works
// on the text, since what cannot be parsed must be hidden too, and hides too
// much rather than too little.
func maskURLs(s string) string {
	var b strings.Builder
	from := 0
	for _, start := range urlStart.FindAllStringIndex(s, -1) {
		b.WriteString(maskUser(s[from:start[0]]) + s[start[0]:start[1]])
		from = start[1]
	}
	b.WriteString(maskUser(s[from:]))
	return passwordParameter.ReplaceAllString(b.String(), "${1}"+masked)
}

// maskUser hides what stands before the last @, up to a user's name.
func maskUser(s string) string {
	at := strings.LastIndexByte(s, '@')
	if at < 0 {
		return s
	}
	user, _, isPassword := strings.Cut(s[:at], ":")
	if !isPassword {
		return masked + s[at:]
	}
	return user + ":" + masked + s[at:]
}

// count is a whole number, in decimal digits only.
type count int

func (c *count) Decode(s string) error {
	if s = strings.TrimSpace(s); s == "" {
		return nil
	}
	n, err := parseDigits(s)
	if err != nil {
		return errors.New("takes a whole number in decimal digits")
	}
	*c = count(n)
	return nil
}

func (c count) String() string { return strconv.Itoa(int(c)) }

func parseDigits(s string) (int64, error) {
	for _, r := range s {
		if r < '0' || r > '9' {
			return 0, strconv.ErrSyntax
		}
	}
	return strconv.ParseInt(s, 10, 64)
}

// size is a number of bytes: 65536, 64KiB, 1MiB, 1GiB.
type size int64

var sizeUnits = []struct {
	name  string
	bytes int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

func (z *size) Decode(s string) error {
	if s = strings.TrimSpace(s); s == "" {
		return nil
	}
	digits, unit := s, int64(1)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			digits, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := parseDigits(digits)
	if err != nil || n > math.MaxInt64/unit {
		return errors.New("takes a size such as 65536, 64KiB or 1MiB")
	}
	*z = size(n * unit)
	return nil
}

func (z size) String() string {
	for _, u := range sizeUnits {
		if z != 0 && int64(z)%u.bytes == 0 {
			return strconv.FormatInt(int64(z)/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(z), 10)
}

// duration is written as in Bridge-Delay, and may be a plain 0.
type duration time.Duration

func (d *duration) Decode(s string) error {
	switch s = strings.TrimSpace(s); s {
	case "":
		return nil
	case "0":
		*d = 0
		return nil
	}
	v, err := delaybridge.ParseDuration(s)
	if err != nil {
		return errors.New("takes a duration with its unit, such as 250ms, 90s, 1h30m or 7d")
	}
	*d = duration(v)
	return nil
}

func (d duration) String() string {
	s := time.Duration(d).String()
	if s == "0s" {
		return "0"
	}
	// 1h0m0s is 1h.
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// boolean is true or false.
type boolean bool

func (f *boolean) Decode(s string) error {
	switch strings.ToLower(strings.TrimSpace(s)) {
	case "":
	case "true", "1", "yes", "on":
		*f = true
	case "false", "0", "no", "off":
		*f = false
	default:
		return errors.New("takes true or false")
	}
	return nil
}

func (f boolean) String() string { return strconv.FormatBool(bool(f)) }

// list is words with commas between; blanks around them and empty words do
// not count.
type list []string

func (l *list) Decode(s string) error {
	var words []string
	for w := range strings.SplitSeq(s, ",") {
		if w = strings.TrimSpace(w); w != "" {
			words = append(words, w)
		}
	}
	if len(words) > 0 {
		*l = words
	}
	return nil
}

func (l list) String() string { return strings.Join(l, ",") }
