package main

import (
	"slices"
	"strings"
	"testing"
)

// TestBenchLeavesOutWhatIsTheUsersOwn: of each setting it is known whether the
// processes of a measurement may have it, of a new one, too.
func TestBenchLeavesOutWhatIsTheUsersOwn(t *testing.T) {
	// How servers are reached, and how the work is done.
	handedOn := func(name string) bool {
		for _, part := range []string{"REDIS_", "NATS_TLS_", "KAFKA_TLS_", "KAFKA_SASL_"} {
			if strings.HasPrefix(name, part) {
				return true
			}
		}
		return slices.Contains([]string{
			"SHARDS", "NATS_URL", "NATS_CREDS", "NATS_NKEY", "KAFKA_BROKERS",
			"MAX_DELAY", "MAX_PAYLOAD", "MAX_HEADERS", "MAX_HEADER_BYTES", "DEDUP_WINDOW", "DEAD_RETENTION",
			"LEASE", "BATCH", "MAX_INFLIGHT", "PUBLISH_TIMEOUT", "RETRY_BASE", "RETRY_MAX", "MAX_ATTEMPTS", "MAX_LOST_LEASES",
			"POLL_MAX", "CLOCK_TOLERANCE", "SHUTDOWN_TIMEOUT", "READY_MAX_OVERDUE",
		}, name)
	}
	over := map[string]string{}
	for _, name := range []string{
		"NAMESPACE", "ROLES", "METRICS_ADDR", "LOG_LEVEL", "LOG_FORMAT",
		"NATS_INGEST_STREAM", "NATS_INGEST_SUBJECTS", "NATS_INGEST_DURABLE", "NATS_INGEST_CREATE",
		"KAFKA_INGEST_TOPICS", "KAFKA_INGEST_GROUP",
	} {
		over[name] = "the measurement's"
	}
	environ := []string{"PATH=/bin"}
	for _, r := range defaultSettings().table() {
		environ = append(environ, r.Name+"=the user's")
		if r.FileName != "" {
			environ = append(environ, r.FileName+"=the user's")
		}
	}
	got := benchEnvironment(environ, over, nil)
	if !slices.Contains(got, "PATH=/bin") {
		t.Error("what is no setting is left out")
	}
	for _, r := range defaultSettings().table() {
		name := strings.TrimPrefix(r.Name, prefix+"_")
		want := handedOn(name)
		if has := slices.Contains(got, r.Name+"=the user's"); has != want {
			t.Errorf("%s is handed on: %v, want %v", r.Name, has, want)
		}
		if has := slices.Contains(got, r.FileName+"=the user's"); r.FileName != "" && has != want {
			t.Errorf("%s is handed on: %v, want %v", r.FileName, has, want)
		}
		if _, replaced := over[name]; replaced && !slices.Contains(got, r.Name+"=the measurement's") {
			t.Errorf("%s is not the measurement's", r.Name)
		}
	}
	for _, e := range benchEnvironment(environ, over, []string{"NATS_"}) {
		if strings.HasPrefix(e, "BRIDGE_NATS_") && strings.HasSuffix(e, "the user's") {
			t.Errorf("without NATS it has %s", e)
		}
	}
}
