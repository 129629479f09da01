package main

import (
	"os"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newLog returns a logger on stderr. It does not sample: what is logged is rare
// and each line matters; what is frequent is counted instead.
func newLog(level, format text) *zap.Logger {
	c := zap.NewProductionConfig()
	c.Sampling = nil
	c.DisableStacktrace = true
	c.DisableCaller = true
	c.EncoderConfig.TimeKey = "time"
	c.EncoderConfig.EncodeTime = zapcore.ISO8601TimeEncoder
	if format == "console" {
		c.Encoding = "console"
		c.EncoderConfig.EncodeTime = zapcore.TimeEncoderOfLayout("15:04:05.000")
		c.EncoderConfig.ConsoleSeparator = "  "
	}
	if l, err := zapcore.ParseLevel(string(level)); err == nil {
		c.Level.SetLevel(l)
	}
	encoder := zapcore.NewJSONEncoder
	if c.Encoding == "console" {
		encoder = zapcore.NewConsoleEncoder
	}
	return zap.New(zapcore.NewCore(encoder(c.EncoderConfig), zapcore.Lock(plainOutput{os.Stderr}), c.Level))
}

// plainOutput writes lines of a log with everything escaped that a terminal may
// obey: ids, names and the words of servers are among them. JSON escapes some of
// it itself.
type plainOutput struct{ *os.File }

// Write implements io.Writer.
func (o plainOutput) Write(line []byte) (int, error) {
	if isASCII(line) {
		return o.File.Write(line)
	}
	if _, err := o.WriteString(escapeLine(string(line))); err != nil {
		return 0, err
	}
	return len(line), nil
}

// isASCII reports whether there is nothing but visible ASCII and line ends.
func isASCII(line []byte) bool {
	for _, c := range line {
		if c != '\n' && (c < ' ' || c > '~') {
			return false
		}
	}
	return true
}

func escapeLine(line string) string {
	var b strings.Builder
	for _, r := range line {
		if r == '\n' || isPlain(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(escapeRune(r))
		}
	}
	return b.String()
}
