package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"delaybridge"
)

// hostile is what an id, a header or a server's word may hold.
var hostile = []string{
	"\x1b[2J\x1b]0;owned\x07", "\x9b31m", "\u009b31m", "a\rb", "a\nb", "a\x00b", "\x7f", "\xff\xfe",
	"\u202eabc\u202c", "\u2066x\u2069", "\u200b\u200d\ufeff", "\u2028", "\u3164", "\U000e0041", "\u00a0", "\u0085", "\x1bP0;0|\x1b\\",
}

// checkVisible fails if text holds anything that a terminal may obey.
func checkVisible(t *testing.T, text string) {
	t.Helper()
	if !utf8.ValidString(text) {
		t.Errorf("%q is not valid UTF-8", text)
	}
	for _, r := range text {
		if r != ' ' && (!unicode.IsGraphic(r) || delaybridge.IsInvisible(r)) {
			t.Errorf("%q is in %q", r, text)
		}
	}
}

func TestWhatIsPrintedSteersNoTerminal(t *testing.T) {
	for _, s := range hostile {
		checkVisible(t, printable(s))
		checkVisible(t, oneLine(s))
		var b bytes.Buffer
		if err := printJSON(&b, map[string]string{"id": s}); err != nil {
			t.Fatal(err)
		}
		line := strings.TrimSuffix(b.String(), "\n")
		checkVisible(t, line)
		var back map[string]string
		if err := json.Unmarshal(b.Bytes(), &back); err != nil || back["id"] != strings.ToValidUTF8(s, "\ufffd") && utf8.ValidString(s) {
			t.Errorf("%q came back as %q, %v", s, back["id"], err)
		}
	}
	if got := printable("größe/数 🙂 a b"); got != "größe/数 🙂 a b" {
		t.Errorf("plain text became %q", got)
	}
}

func TestWhatIsLoggedSteersNoTerminal(t *testing.T) {
	for _, encoding := range []string{"json", "console"} {
		file, err := os.Create(filepath.Join(t.TempDir(), "log"))
		if err != nil {
			t.Fatal(err)
		}
		encoder := zapcore.NewJSONEncoder
		if encoding == "console" {
			encoder = zapcore.NewConsoleEncoder
		}
		log := zap.New(zapcore.NewCore(encoder(zap.NewProductionEncoderConfig()), plainOutput{file}, zap.InfoLevel))
		for _, s := range hostile {
			log.Info(s, zap.String("id", s), zap.Strings("names", []string{s}))
		}
		_ = file.Close()
		out, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(out)) {
			line = strings.TrimSuffix(line, "\n")
			checkVisible(t, line)
			if encoding == "json" && !json.Valid([]byte(line)) {
				t.Errorf("no JSON: %s", line)
			}
		}
	}
}

// Whatever an id is, what is printed of it is seen, and nothing else happens.
func FuzzPrintable(f *testing.F) {
	for _, s := range hostile {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		checkVisible(t, printable(s))
		checkVisible(t, escapeLine(strings.ReplaceAll(s, "\n", "")))
		var b bytes.Buffer
		if err := printJSON(&b, s); err != nil {
			t.Fatal(err)
		}
		checkVisible(t, strings.TrimSuffix(b.String(), "\n"))
		var back string
		if err := json.Unmarshal(b.Bytes(), &back); err != nil || utf8.ValidString(s) && back != s {
			t.Errorf("%q came back as %q, %v", s, back, err)
		}
	})
}
