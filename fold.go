package delaybridge

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"
)

// FoldName returns what a name may be taken for by a reader, a proxy or a broker
// that is less strict than this program: in lower case, with full-width and
// small forms as ASCII, every kind of dot as a dot, percent encoding undone, and
// without what is invisible. It is for comparing names that must not be used, and
// makes no name of use.
func FoldName(name string) string {
	name = foldRunes(name)
	for range 4 { // encoded in layers
		if !strings.ContainsRune(name, '%') {
			break
		}
		decoded := foldRunes(decodePercent(name))
		if decoded == name {
			break
		}
		name = decoded
	}
	return strings.Trim(name, ".")
}

// decodePercent undoes what can be undone of percent encoding.
func decodePercent(s string) string {
	if all, err := url.PathUnescape(s); err == nil {
		return all
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if i+3 <= len(s) && s[i] == '%' {
			if one, err := url.PathUnescape(s[i : i+3]); err == nil {
				b.WriteString(one)
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func foldRunes(s string) string {
	if isPlain(s) {
		return s
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == utf8.RuneError || IsInvisible(r) || unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.M, r):
			return -1
		case r >= '\uff01' && r <= '\uff5e': // full-width forms
			r -= '\uff01' - '!'
		case strings.ContainsRune("\u2024\u3002\ufe52\uff61\u00b7\u2027\u22c5\u30fb\uff65", r):
			r = '.'
		case strings.ContainsRune("\ufe4d\ufe4e\ufe4f\u203f\u2040", r):
			r = '_'
		case r == '\ufe69':
			r = '$'
		}
		return foldCase(r)
	}, s)
}

// isPlain reports whether folding leaves s as it is, as it does most names.
func isPlain(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || c >= 'A' && c <= 'Z' {
			return false
		}
	}
	return true
}

// foldCase returns one letter for all that are the same but for case: K, k and
// the Kelvin sign are all k.
func foldCase(r rune) rune {
	least := r
	for next := unicode.SimpleFold(r); next != r; next = unicode.SimpleFold(next) {
		least = min(least, next)
	}
	return unicode.ToLower(least)
}

// IsInvisible reports whether a rune takes no place of its own, or turns the
// direction of those around it: one name can look like another by it.
func IsInvisible(r rune) bool {
	return unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Variation_Selector, r) ||
		r == '\u034f' || r == '\u115f' || r == '\u1160' || r == '\u3164' || r == '\uffa0' || r == '\u2800'
}
