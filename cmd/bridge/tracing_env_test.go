package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// TestTracingStopsAtAVariableThatIsWrong: the library would go on without it.
func TestTracingStopsAtAVariableThatIsWrong(t *testing.T) {
	junk := filepath.Join(t.TempDir(), "junk.pem")
	if err := os.WriteFile(junk, []byte("s3cret junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		about, name, value string
		fails              bool
	}{
		{"no more than an endpoint", "", "", false},
		{"headers", "OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20s3cret, x-team = a", false},
		{"a header without a name", "OTEL_EXPORTER_OTLP_HEADERS", "Bearer s3cret", true},
		{"a header with a blank in its name", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "my token=s3cret", true},
		{"a header that is half encoded", "OTEL_EXPORTER_OTLP_HEADERS", "a=%zzs3cret", true},
		{"a comma too many", "OTEL_EXPORTER_OTLP_HEADERS", "a=s3cret,", true},
		{"the endpoint that is not used", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://user:s3cret@[::1", true},
		{"a time-out with a unit", "OTEL_EXPORTER_OTLP_TIMEOUT", "10s", true},
		{"a compression that there is not", "OTEL_EXPORTER_OTLP_COMPRESSION", "zstd", true},
		{"no such certificate", "OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere.pem", true},
		{"a file that is no certificate", "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", junk, true},
		{"a client's certificate without its key", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", junk, true},
		{"a key without its certificate", "OTEL_EXPORTER_OTLP_CLIENT_KEY", junk, true},
		{"words for a number", "OTEL_BSP_MAX_QUEUE_SIZE", "many", true},
	} {
		t.Run(row.about, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
			if row.name != "" {
				t.Setenv(row.name, row.value)
			}
			tr, err := startTracing(zap.NewNop())
			tr.close()
			switch {
			case !row.fails && err != nil:
				t.Error(err)
			case row.fails && (err == nil || !strings.HasPrefix(err.Error(), strings.TrimSuffix(row.name, "KEY")) && !strings.Contains(err.Error(), row.name) || strings.Contains(err.Error(), "s3cret")):
				t.Errorf("%v", err)
			}
		})
	}
}
