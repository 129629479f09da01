package ingest_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"delaybridge"
	"delaybridge/ingest"
)

func TestParseRoutes(t *testing.T) {
	target := func(sink, name string) delaybridge.Target { return delaybridge.Target{Sink: sink, Name: name} }
	for _, c := range []struct {
		sentence, in string
		want         []ingest.Route
	}{
		{"none", "", nil},
		{"only dividers", " ; ;\n", nil},
		{"one", "kafka://orders-in-5m -> kafka://orders delay=5m", []ingest.Route{
			{Source: target("kafka", "orders-in-5m"), Target: target("kafka", "orders"), Delay: 5 * time.Minute, HasDelay: true},
		}},
		{"several, with a divider at the end", "kafka://a -> kafka://b delay=5m; nats://later.30s.orders -> nats-core://orders delay=0s;", []ingest.Route{
			{Source: target("kafka", "a"), Target: target("kafka", "b"), Delay: 5 * time.Minute, HasDelay: true},
			{Source: target("nats", "later.30s.orders"), Target: target("nats-core", "orders"), HasDelay: true},
		}},
		{"wildcards, line breaks and every option", "nats://later.*.>\n  -> nats://orders\tdelay=30s expires_after=1h format=json", []ingest.Route{
			{Source: target("nats", "later.*.>"), Target: target("nats", "orders"), Delay: 30 * time.Second, HasDelay: true, ExpiresAfter: time.Hour, HasExpiresAfter: true, Envelope: true},
		}},
		{"no target", "nats://json.in format=json", []ingest.Route{{Source: target("nats", "json.in"), Envelope: true}}},
		{"wildcards that only touch", "nats://a.* -> nats://x; nats://a.b.* -> nats://x; nats://a -> nats://x", []ingest.Route{
			{Source: target("nats", "a.*"), Target: target("nats", "x")},
			{Source: target("nats", "a.b.*"), Target: target("nats", "x")},
			{Source: target("nats", "a"), Target: target("nats", "x")},
		}},
		{"the same name on both brokers", "nats://a -> nats://x; kafka://a -> nats://x", []ingest.Route{
			{Source: target("nats", "a"), Target: target("nats", "x")},
			{Source: target("kafka", "a"), Target: target("nats", "x")},
		}},
		{"across the brokers the name may be the same", "nats://a -> kafka://a", []ingest.Route{{Source: target("nats", "a"), Target: target("kafka", "a")}}},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			got, err := ingest.ParseRoutes(c.in)
			if err != nil || !reflect.DeepEqual(got, c.want) {
				t.Errorf("got %+v, %v; want %+v", got, err, c.want)
			}
		})
	}
}

func TestParseRoutesRefuses(t *testing.T) {
	for _, c := range []struct{ sentence, in, reason string }{
		{"no sink", "orders -> kafka://x", "has no sink"},
		{"no source", "-> kafka://x", "has no sink"},
		{"no target behind the arrow", "kafka://a ->", "no target"},
		{"an option for the target", "kafka://a -> delay=5m", "has no sink"},
		{"a comma between routes", "kafka://a -> kafka://b, kafka://c -> kafka://d", "cannot be in a topic"},
		{"an unknown option", "kafka://a -> kafka://b retries=5", `no option "retries"`},
		{"an option in capitals", "kafka://a -> kafka://b Delay=5m", `no option "Delay"`},
		{"a word that is no option", "kafka://a -> kafka://b 5m", "no option"},
		{"commas between routes", "kafka://a -> kafka://b delay=5m, kafka://c -> kafka://d", "divided by ;"},
		{"an option given twice", "kafka://a -> kafka://b delay=5m delay=5m", "twice"},
		{"a bad delay", "kafka://a -> kafka://b delay=5", "unit is required"},
		{"a bad expiry", "kafka://a -> kafka://b expires_after=-5s", "negative"},
		{"a bad format", "kafka://a -> kafka://b format=xml", "json or plain"},
		{"a bad target", "kafka://a -> kafka://b*", "cannot be in a topic"},
		{"a target with a wildcard", "nats://a -> nats://b.*", "wildcards"},
		{"a system subject as the target", "nats://a -> nats://$JS.API.x", "server's own"},
		{"a system subject as the source", "nats://$JS.> -> nats://b", "server's own"},
		{"a topic with a wildcard", "kafka://a* -> kafka://b", "no wildcards"},
		{"Kafka's own topic", "kafka://__consumer_offsets -> kafka://b", "Kafka's own"},
		{"core NATS as the source", "nats-core://a -> nats://b", "write nats://"},
		{"a star within a token", "nats://a* -> nats://b", "whole tokens"},
		{"> in the middle", "nats://a.>.b -> nats://b", "last token"},
		{"an empty token", "nats://a..b -> nats://b", "tokens"},

		{"the same topic twice", "kafka://a -> kafka://b; kafka://a -> kafka://c", "overlaps"},
		{"the same subject twice", "nats://a -> nats://b; nats://a -> nats://c", "overlaps"},
		{"a subject within a wildcard", "nats://a.* -> nats://x; nats://a.b -> nats://x", "overlaps"},
		{"wildcards that cross", "nats://a.* -> nats://x; nats://*.b -> nats://x", "overlaps"},
		{"a wildcard for the rest", "nats://a.b.c -> nats://x; nats://a.> -> nats://x", "overlaps"},

		{"a topic to itself", "kafka://a -> kafka://a delay=5m", "come back"},
		{"a ring of two", "kafka://a -> nats://b; nats://b -> kafka://a", "come back"},
		{"into another route's wildcard", "kafka://a -> nats://later.x; nats://later.> -> nats://y", "come back"},
		{"by core NATS, which a stream stores too", "nats://a -> nats-core://a", "come back"},
		{"a wildcard that holds its own target", "nats://> -> nats://x", "come back"},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			got, err := ingest.ParseRoutes(c.in)
			fe, ok := errors.AsType[*delaybridge.FieldError](err)
			if !ok || got != nil || fe.Field != "BRIDGE_ROUTES" || fe.Code != "invalid_route" || !strings.Contains(fe.Reason, c.reason) {
				t.Errorf("got %+v, %v; want a reason with %q", got, err, c.reason)
			}
		})
	}
}

// TestSourcesThatCross has subjects to schedule on and a route's overlap.
func TestSourcesThatCross(t *testing.T) {
	for _, c := range []struct {
		sentence, subjects, routes string
		field                      string // empty: it is taken
	}{
		{"a route for the subject to schedule on", "bridge.schedule", "nats://bridge.schedule delay=5m", ""},
		{"a route that covers it", "bridge.schedule", "nats://bridge.> delay=5m", ""},
		{"a route that is covered by it", "bridge.*", "nats://bridge.later delay=5m", ""},
		{"two that have nothing in common", "bridge.*.a", "nats://bridge.*.b delay=5m", ""},
		{"a route that crosses it", "bridge.*.a", "nats://bridge.b.* delay=5m", "BRIDGE_ROUTES"},
		{"two subjects that cross", "bridge.*.a,bridge.b.*", "", "BRIDGE_NATS_INGEST_SUBJECTS"},
		{"a topic of such a name", "bridge.*.a", "kafka://bridge.b.a delay=5m", ""},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			cfg := ingest.DefaultDecoderConfig()
			for s := range strings.SplitSeq(c.subjects, ",") {
				cfg.Sources = append(cfg.Sources, delaybridge.Target{Sink: delaybridge.SinkNATS, Name: s})
			}
			var err error
			if cfg.Routes, err = ingest.ParseRoutes(c.routes); err != nil {
				t.Fatal(err)
			}
			_, err = ingest.NewDecoder(cfg)
			fe, refused := errors.AsType[*delaybridge.FieldError](err)
			if refused != (c.field != "") || refused && fe.Field != c.field {
				t.Errorf("got %v, want an error of %q", err, c.field)
			}
		})
	}
}

func FuzzParseRoutes(f *testing.F) {
	f.Add("kafka://a -> kafka://b delay=5m; nats://later.*.> -> nats://x format=json")
	f.Add("nats://> -> kafka://x")
	f.Fuzz(func(t *testing.T, s string) {
		routes, err := ingest.ParseRoutes(s)
		if err != nil {
			if !errors.Is(err, delaybridge.ErrInvalid) {
				t.Errorf("%T %v is no FieldError", err, err)
			}
			return
		}
		cfg := ingest.DefaultDecoderConfig()
		cfg.Routes, cfg.MaxDelay = routes, 1<<63-1
		if _, err := ingest.NewDecoder(cfg); err != nil {
			t.Errorf("%q: the decoder refuses what was parsed: %v", s, err)
		}
	})
}
