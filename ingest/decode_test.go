package ingest_test

import (
	"errors"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"delaybridge"
	"delaybridge/ingest"
)

func TestNewDecoderRefuses(t *testing.T) {
	routes := func(s string) []ingest.Route {
		r, err := ingest.ParseRoutes(s)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for _, c := range []struct {
		sentence, field, reason string
		change                  func(*ingest.DecoderConfig)
	}{
		{"no maximum delay", "BRIDGE_MAX_DELAY", "above 0", func(c *ingest.DecoderConfig) { c.MaxDelay = 0 }},
		{"no payload at all", "BRIDGE_MAX_PAYLOAD", "above 0", func(c *ingest.DecoderConfig) { c.MaxPayload = 0 }},
		{"a negative tolerance", "BRIDGE_CLOCK_TOLERANCE", "negative", func(c *ingest.DecoderConfig) { c.ClockTolerance = -1 }},
		{"a negative expiry", "BRIDGE_EXPIRES_AFTER", "negative", func(c *ingest.DecoderConfig) { c.ExpiresAfter = -1 }},
		{"an allowed target without a sink", "BRIDGE_ALLOWED_TARGETS", "has no sink", func(c *ingest.DecoderConfig) { c.AllowedTargets = []string{"orders.*"} }},
		{"an allowed target of no known sink", "BRIDGE_ALLOWED_TARGETS", "no such sink", func(c *ingest.DecoderConfig) { c.AllowedTargets = []string{"*://orders"} }},
		{"a star within a NATS token", "BRIDGE_ALLOWED_TARGETS", "whole tokens", func(c *ingest.DecoderConfig) { c.AllowedTargets = []string{"nats://orders*"} }},
		{"a > for a Kafka topic", "BRIDGE_ALLOWED_TARGETS", "A-Z", func(c *ingest.DecoderConfig) { c.AllowedTargets = []string{"kafka://orders.>"} }},
		{"an empty pattern", "BRIDGE_ALLOWED_TARGETS", "empty", func(c *ingest.DecoderConfig) { c.AllowedTargets = []string{"kafka://"} }},
		{"a route to the bridge's own subject", "BRIDGE_ROUTES", "own sources", func(c *ingest.DecoderConfig) { c.Routes = routes("kafka://a -> nats://bridge.schedule delay=1s") }},
		{"a route whose delay is above the maximum", "BRIDGE_ROUTES", "BRIDGE_MAX_DELAY", func(c *ingest.DecoderConfig) { c.Routes = routes("kafka://a -> kafka://b delay=8d") }},
		{"refused messages sent to the bridge itself", "BRIDGE_REJECT_TARGET", "own sources", func(c *ingest.DecoderConfig) {
			c.RejectTarget = delaybridge.Target{Sink: "nats-core", Name: "bridge.schedule"}
		}},
		{"refused messages sent to a route", "BRIDGE_REJECT_TARGET", "own sources", func(c *ingest.DecoderConfig) {
			c.Routes = routes("nats://later.* -> nats://x delay=1s")
			c.RejectTarget = delaybridge.Target{Sink: "nats", Name: "later.rejects"}
		}},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			cfg := ingest.DefaultDecoderConfig()
			cfg.Sources = []delaybridge.Target{{Sink: "nats", Name: "bridge.schedule"}}
			c.change(&cfg)
			_, err := ingest.NewDecoder(cfg)
			fe, ok := errors.AsType[*delaybridge.FieldError](err)
			if !ok || fe.Field != c.field || !strings.Contains(fe.Reason, c.reason) {
				t.Errorf("got %v, want one of %s with %q", err, c.field, c.reason)
			}
		})
	}
}

func TestParseSaysWhy(t *testing.T) {
	d := newDecoder(t, nil)
	_, err := d.Parse(ingest.Record{
		Position: delaybridge.Position{Source: "api:1"}, FromAPI: true, Envelope: true,
		Payload: []byte(`{"target":"nats://x","delay":"5"}`),
	})
	fe, ok := errors.AsType[*delaybridge.FieldError](err)
	if !ok || fe.Code != "invalid_delay" || fe.Field != "delay" || fe.Value != "5" {
		t.Errorf("got %#v", err)
	}
	req, err := d.Parse(ingest.Record{
		Position: delaybridge.Position{Source: "api:1"}, FromAPI: true, Envelope: true,
		Payload: []byte(`{"target":"nats://x","delay":"5s"}`),
	})
	if err != nil || !req.FromAPI || req.Message.ID != "api:1:0" || !req.Message.Due.Equal(goldenTime.Add(15*time.Second)) {
		t.Errorf("got %+v, %v", req, err)
	}
}

// What was not read as a whole does not go out by a replay: its route would make up
// what it asked for. A header of that name does not make a record one of those.
func TestRejectedRecordThatWasNotRead(t *testing.T) {
	d := newDecoder(t, func(c *ingest.DecoderConfig) {
		c.Routes, _ = ingest.ParseRoutes("kafka://orders-in-5m -> kafka://orders delay=5m")
	})
	rec := ingest.Record{
		Position: delaybridge.Position{Source: "kafka:orders-in-5m:2", Offset: 9},
		Origin:   delaybridge.Target{Sink: "kafka", Name: "orders-in-5m"}, Time: goldenTime, Payload: []byte("half"),
		Headers: []delaybridge.Header{{Name: "Bridge-Rejected-Unread-From", Value: []byte("x://y")}},
	}
	if req := d.Decode(rec); req.Op != delaybridge.OpSchedule {
		t.Errorf("a header of that name: %+v", req)
	}
	rec.Unreadable = &delaybridge.FieldError{Code: "invalid_batch", Field: "record batch"}
	req := d.Decode(rec)
	back, err := ingest.RejectedRecord(req.Message)
	if req.Op != delaybridge.OpReject || err != nil || string(back.Payload) != "half" || len(back.Headers) != 1 {
		t.Fatalf("rejected %+v, it came back %+v, %v", req, back, err)
	}
	if _, err := d.Parse(back); err == nil || !strings.Contains(err.Error(), "not read as a whole") {
		t.Errorf("replayed: %v", err)
	}
}

// A rejected record comes back from its dead letter as it was taken in.
func TestRejectedRecord(t *testing.T) {
	d := newDecoder(t, nil)
	rec := ingest.Record{
		Position: delaybridge.Position{Source: "kafka:orders-in-5m:2", Offset: 9},
		Origin:   delaybridge.Target{Sink: "kafka", Name: "orders-in-5m"},
		Time:     goldenTime, Key: []byte{},
		Headers: []delaybridge.Header{{Name: "Bridge-Rejected-From", Value: []byte("x://y")}, {Name: "Bridge-Delay", Value: []byte("5")}, {Name: "Nats-Msg-Id", Value: nil}},
	}
	req := d.Decode(rec)
	if req.Op != delaybridge.OpReject || req.Error == "" {
		t.Fatalf("got %+v", req)
	}
	back, err := ingest.RejectedRecord(req.Message)
	if err != nil || !reflect.DeepEqual(back, rec) {
		t.Fatalf("got %+v, %v; want %+v", back, err, rec)
	}
	if again := d.Decode(back); !reflect.DeepEqual(again, req) {
		t.Errorf("decoded anew: %+v, want %+v", again, req)
	}

	back.Headers[1].Value = []byte("5s") // what mends it
	req, err = newDecoder(t, func(c *ingest.DecoderConfig) {
		c.Routes, _ = ingest.ParseRoutes("kafka://orders-in-5m -> kafka://orders")
	}).Parse(back)
	if err != nil || req.Message.ID != "kafka:orders-in-5m:2:9" || req.Message.Target.Name != "orders" || !req.Message.Due.Equal(goldenTime.Add(5*time.Second)) {
		t.Errorf("mended: %+v, %v", req, err)
	}

	if _, err := ingest.RejectedRecord(req.Message); !errors.Is(err, ingest.ErrNotRejected) {
		t.Errorf("a message that was never rejected: %v", err)
	}
}

// A position makes an id of any length of name, and different ones different ids.
func TestPositionIDIsBounded(t *testing.T) {
	d := newDecoder(t, nil)
	seen := make(map[string]string)
	for _, source := range []string{
		"nats:S", "nats:" + strings.Repeat("s", 255), "nats:" + strings.Repeat("s", 254) + "t",
		"nats:" + strings.Repeat("ö", 127), "kafka:" + strings.Repeat("t", 249) + ":2147483647",
	} {
		for _, offset := range []uint64{0, 1, 1<<64 - 1} {
			for _, good := range []bool{true, false} {
				rec := ingest.Record{Position: delaybridge.Position{Source: source, Offset: offset}}
				if good {
					rec.Headers = []delaybridge.Header{{Name: "Bridge-Target", Value: []byte("nats://x")}, {Name: "Bridge-Delay", Value: []byte("1s")}}
				}
				id := d.Decode(rec).Message.ID
				if err := delaybridge.ValidateID(id); err != nil {
					t.Errorf("%s: %v", source, err)
				}
				if other, ok := seen[id]; ok {
					t.Errorf("%s and %s have the id %s", source, other, id)
				}
				seen[id] = source
			}
		}
	}
}

func TestErrorTextIsBoundedAndPrintable(t *testing.T) {
	d := newDecoder(t, func(c *ingest.DecoderConfig) { c.RejectTarget = delaybridge.Target{Sink: "kafka", Name: "rejects"} })
	long := strings.Repeat("ä\n\x00\u2028", 2000)
	for _, rec := range []ingest.Record{
		{Headers: []delaybridge.Header{{Name: "Bridge-Delay", Value: []byte(long)}, {Name: "Bridge-Target", Value: []byte("nats://x")}}},
		{Headers: []delaybridge.Header{{Name: "Bridge-Target", Value: []byte(long)}}},
		{Envelope: true, Payload: []byte(`{"` + strings.Repeat(`ä\n\u0000`, 2000) + `":1}`)},
		{Envelope: true, Payload: []byte(`{"headers":{"` + strings.Repeat(`ä\n\u2028`, 2000) + `":1}}`)},
	} {
		req := d.Decode(rec)
		if req.Error == "" || string(req.Message.Headers[0].Value) != req.Error {
			t.Fatalf("error %q, first header %+v", req.Error, req.Message.Headers[0])
		}
		checkErrorText(t, req.Error)
	}
}

func checkErrorText(t *testing.T, s string) {
	t.Helper()
	if s == "" || len(s) > delaybridge.MaxErrorBytes || !utf8.ValidString(s) || strings.TrimSpace(s) != s {
		t.Errorf("%d bytes of error text: %q", len(s), s)
	}
	for _, r := range s {
		if !unicode.IsGraphic(r) {
			t.Errorf("%q in the error text %q", r, s)
		}
	}
}

func newDecoder(t testing.TB, change func(*ingest.DecoderConfig)) *ingest.Decoder {
	t.Helper()
	cfg := ingest.DefaultDecoderConfig()
	cfg.Sources = []delaybridge.Target{{Sink: "nats", Name: "bridge.schedule"}, {Sink: "kafka", Name: "bridge.schedule"}}
	cfg.Now = func() time.Time { return goldenTime.Add(10 * time.Second) }
	if change != nil {
		change(&cfg)
	}
	d, err := ingest.NewDecoder(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Whatever comes in, the answer is a request that holds by every rule, or a
// rejection that keeps the whole record.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{"5s", "5", "7d", "", "9999d", "1e3s"} {
		f.Add("Bridge-Delay", s, "Bridge-Target", "nats://x", []byte("hello"), []byte("k"), int64(0), true, false)
	}
	f.Add("Bridge-Deliver-At", "2030-01-01T00:00:00Z", "Bridge-Target", "kafka://x", []byte(nil), []byte(nil), int64(-1<<62), false, false)
	f.Add("bridge-hops", "7", "Bridge-Hops", "07", []byte("x"), []byte(nil), int64(1), true, false)
	f.Add("bridge-op", "cancel", "bridge-id", "a", []byte("x"), []byte(nil), int64(1), true, false)
	f.Add("x", "y", "Bridge-Raw-Headers", `[["eA==",null]]`, []byte("x"), []byte(nil), int64(1<<60), true, false)
	f.Add("Nats-Msg-Id", "\xff", "Bridge-Key-Base64", "/w==", []byte(`{"target":"nats://x","delay":"1s","payload":{"a":1}}`), []byte(nil), int64(5e9), true, true)
	f.Add("a", "b", "c", "d", []byte(`{"headers":{"a":["1",null]},"payload_base64":"AA==","deliver_at":1893456000000,"target":"kafka://t","key":null}`), []byte("k"), int64(0), false, true)

	routes, err := ingest.ParseRoutes("nats://in.* -> nats://routed delay=1m; kafka://in -> kafka://routed delay=1m expires_after=1h")
	if err != nil {
		f.Fatal(err)
	}
	change := func(c *ingest.DecoderConfig) { c.Routes, c.MaxPayload = routes, 64 }
	dead := newDecoder(f, change)
	sent := newDecoder(f, func(c *ingest.DecoderConfig) {
		change(c)
		c.RejectTarget = delaybridge.Target{Sink: "nats", Name: "rejects"}
	})
	now := goldenTime.Add(10 * time.Second)
	f.Fuzz(func(t *testing.T, name1, value1, name2, value2 string, payload, key []byte, ns int64, fromNATS, envelope bool) {
		rec := ingest.Record{
			Position: delaybridge.Position{Source: "nats:S", Offset: 7},
			Origin:   delaybridge.Target{Sink: "nats", Name: "in.a"},
			Time:     now.Add(time.Duration(ns)),
			Key:      key, Payload: payload, Envelope: envelope,
			Headers: []delaybridge.Header{{Name: name1, Value: []byte(value1)}, {Name: "x-kept", Value: []byte{0}}, {Name: name2, Value: []byte(value2)}},
		}
		if !fromNATS {
			rec.Position.Source, rec.Origin = "kafka:in:0", delaybridge.Target{Sink: "kafka", Name: "in"}
		}
		req, parseErr := dead.Parse(rec)
		checkRequest(t, dead, rec, req, parseErr, now)
		if again := sent.Decode(rec); parseErr != nil && again.Op == delaybridge.OpReject {
			// What has passed too many bridges goes there no more, whatever else is wrong.
			if !strings.Contains(strings.ToLower(name1+" "+name2), strings.ToLower(delaybridge.HeaderHops)) {
				t.Errorf("not to the reject target: %+v", again)
			}
		} else if parseErr != nil {
			checkErrorText(t, again.Error)
			if again.Op != delaybridge.OpSchedule || again.Message.Target.Name != "rejects" || again.Message.Due.After(now) || string(again.Message.Payload) != string(rec.Payload) {
				t.Errorf("to the reject target: %+v", again)
			}
		}
	})
}

func checkRequest(t *testing.T, d *ingest.Decoder, rec ingest.Record, req delaybridge.Request, parseErr error, now time.Time) {
	t.Helper()
	decoded := d.Decode(rec)
	if parseErr != nil {
		if !errors.Is(parseErr, delaybridge.ErrInvalid) {
			t.Fatalf("%T %v is no FieldError", parseErr, parseErr)
		}
		checkErrorText(t, decoded.Error)
		m := decoded.Message
		if decoded.Op != delaybridge.OpReject || m.ID != "rejected:"+rec.Position.String() || string(m.Payload) != string(rec.Payload) {
			t.Errorf("rejected: %+v", decoded)
		}
		back, err := ingest.RejectedRecord(m)
		if err != nil || !reflect.DeepEqual(back.Headers, rec.Headers) || back.Origin != rec.Origin || back.Position != rec.Position {
			t.Errorf("the record does not come back: %+v, %v", back, err)
		}
		return
	}
	if !reflect.DeepEqual(req, decoded) {
		t.Errorf("Parse and Decode differ: %+v, %+v", req, decoded)
	}
	m := req.Message
	if err := delaybridge.ValidateID(m.ID); err != nil || m.Position != rec.Position || req.Error != "" {
		t.Errorf("%v: %+v", err, req)
	}
	if req.Op == delaybridge.OpCancel {
		return
	}
	if again, err := delaybridge.ParseTarget(m.Target.String()); err != nil || again != m.Target || d.IsSource(m.Target) {
		t.Errorf("target %v: %v", m.Target, err)
	}
	if m.Scheduled.UnixMilli() < 0 || m.Due.UnixMilli() < 0 || m.Scheduled.After(now.Add(5*time.Second)) ||
		m.Due.After(m.Scheduled.Add(168*time.Hour)) || m.ExpiresAfter < 0 ||
		m.Due.Nanosecond()%1e6 != 0 || m.Scheduled.Nanosecond()%1e6 != 0 {
		t.Errorf("scheduled %v, due %v, expires %v", m.Scheduled, m.Due, m.ExpiresAfter)
	}
	if len(m.Payload) > 64 || rec.Origin.Sink == "nats" && m.Payload == nil && !strings.Contains(string(headerValues(rec)), "true") {
		t.Errorf("payload %q", m.Payload)
	}
	kept := false
	for _, h := range m.Headers {
		kept = kept || h.Name == "x-kept"
		hops, err := strconv.Atoi(string(h.Value))
		if delaybridge.Steers(h.Name) && !(h.Name == delaybridge.HeaderHops && err == nil && hops > 0 && hops < delaybridge.MaxHops) {
			t.Errorf("header %s was let through", h.Name)
		}
	}
	if !kept {
		t.Errorf("a header is lost: %+v", m.Headers)
	}
}

func headerValues(rec ingest.Record) (all []byte) {
	for _, h := range rec.Headers {
		all = append(all, h.Value...)
	}
	return all
}

// A misspelt header would be passed over, and a route's delay hold in its place.
func TestNamesThatOnlyLookLikeOursAreRefused(t *testing.T) {
	d := newDecoder(t, nil)
	for _, name := range []string{"Bridge-Dealy", "Bridge-Delay ", " bridge-delay", "\tBridge-Id", "Bridge-", "BRIDGE-TARGETS"} {
		rec := records(1)[0]
		rec.Headers = append(rec.Headers, delaybridge.Header{Name: name, Value: []byte("5s")})
		_, err := d.Parse(rec)
		if fe, ok := errors.AsType[*delaybridge.FieldError](err); !ok || fe.Field != name || fe.Code != "unknown_header" {
			t.Errorf("%q: %v", name, err)
		}
	}
}
