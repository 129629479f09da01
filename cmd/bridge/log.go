package main

import (
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
	log, err := c.Build()
	if err != nil {
		return zap.NewNop() // stderr cannot be opened: there is nowhere to say so
	}
	return log
}
