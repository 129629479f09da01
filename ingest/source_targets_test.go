package ingest_test

import (
	"errors"
	"strings"
	"testing"

	"delaybridge"
	"delaybridge/ingest"
)

func TestParseSourceTargetsRefuses(t *testing.T) {
	for _, c := range []struct{ sentence, in, reason string }{
		{"no arrow", "nats://bridge.schedule nats://orders.>", "has no ->"},
		{"nothing behind the arrow", "nats://bridge.schedule ->", "pattern is empty"},
		{"an empty pattern between others", "api -> nats://a,,nats://b", "pattern is empty"},
		{"a comma at the end", "api -> nats://a,", "pattern is empty"},
		{"a source without a broker", "bridge.schedule -> nats://orders.>", "has no sink"},
		{"a source of no known name", "http -> nats://orders.>", "api, cli"},
		{"core NATS is no source", "nats-core://a -> nats://b", "write nats://"},
		{"a topic with a wildcard", "kafka://a* -> nats://b", "no wildcards"},
		{"a pattern without a sink", "api -> orders.>", "has no sink"},
		{"a pattern of NATS that is none", "api -> nats://orders*", "whole tokens"},
		{"a pattern of what is the server's own", "api -> nats://$JS.>", "server's own"},
		{"none beside others", "api -> none, nats://a", "has no sink"},
		{"the same source twice", "api -> nats://a; api -> nats://b", "overlaps"},
		{"a subject in two entries", "nats://later.> -> nats://a; nats://later.*.x -> nats://b", "overlaps"},
		{"all others twice", "* -> nats://a; * -> nats://b", "overlaps"},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			_, err := ingest.ParseSourceTargets(c.in)
			fe, ok := errors.AsType[*delaybridge.FieldError](err)
			if !ok || fe.Field != "BRIDGE_SOURCE_TARGETS" || !strings.Contains(fe.Reason, c.reason) {
				t.Errorf("got %v, want %q", err, c.reason)
			}
		})
	}
}

// A misspelt source would be left to the entry of all others.
func TestSourceTargetsNameSourcesThatThereAre(t *testing.T) {
	for in, ok := range map[string]bool{
		"nats://bridge.schedule -> *":          true,
		"nats://bridge.* -> *":                 true,
		"nats://later.30s.> -> *":              true,
		"kafka://slow -> *; api -> *; * -> *;": true,
		"nats://bridge.schedul -> *":           false,
		"kafka://later -> *":                   false,
	} {
		entries, err := ingest.ParseSourceTargets(in)
		if err != nil {
			t.Fatalf("%s: %v", in, err)
		}
		cfg := ingest.DefaultDecoderConfig()
		cfg.Sources = []delaybridge.Target{{Sink: "nats", Name: "bridge.schedule"}}
		cfg.Routes, _ = ingest.ParseRoutes("nats://later.> -> nats://x delay=1s; kafka://slow -> kafka://y delay=1s")
		cfg.SourceTargets = entries
		if _, err := ingest.NewDecoder(cfg); (err == nil) != ok {
			t.Errorf("%s: %v", in, err)
		}
	}
}

// Who replays is an operator, and the source of a message that was let in is not
// known any more; what was refused is asked again in its source's name.
func TestReplaysAndSourceTargets(t *testing.T) {
	d := newDecoder(t, func(c *ingest.DecoderConfig) {
		c.AllowedTargets = []string{"nats://orders.>"}
		c.DeadTarget = delaybridge.Target{Sink: "nats", Name: "dead"}
		c.SourceTargets, _ = ingest.ParseSourceTargets("nats://bridge.schedule -> nats://orders.a")
	})
	request := func(target string, change func(*ingest.Record)) error {
		rec := ingest.Record{Position: delaybridge.Position{Source: "api:x"}, FromAPI: true, Headers: []delaybridge.Header{
			{Name: "Bridge-Target", Value: []byte(target)}, {Name: "Bridge-Delay", Value: []byte("0s")},
		}}
		change(&rec)
		_, err := d.Parse(rec)
		return err
	}
	replayed := func(r *ingest.Record) { r.Replayed = true }
	if err := request("nats://orders.b", replayed); err != nil {
		t.Errorf("a replay: %v", err)
	}
	if err := request("nats://other", replayed); err == nil {
		t.Error("a replay to a target that nobody may name was let in")
	}
	if err := request("nats://dead", replayed); err != nil {
		t.Errorf("a replay of a copy: %v", err)
	}
	if err := request("nats://dead", func(*ingest.Record) {}); err == nil {
		t.Error("a request to the dead target was let in, which is not allowed")
	}
	rejected := d.Decode(ingest.Record{
		Position: delaybridge.Position{Source: "nats:S", Offset: 1}, Origin: delaybridge.Target{Sink: "nats", Name: "bridge.schedule"},
		Headers: []delaybridge.Header{{Name: "Bridge-Target", Value: []byte("nats://orders.b")}, {Name: "Bridge-Delay", Value: []byte("0s")}},
	})
	record, err := ingest.RejectedRecord(rejected.Message)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Parse(record); err == nil {
		t.Error("a refused message was let in by its replay")
	}
}
