package ingest

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nats-io/nats.go"

	"delaybridge"
)

// An envelope is refused with a FieldError, or its parts are what the body says.
func FuzzParseEnvelope(f *testing.F) {
	for _, s := range []string{
		`{"target":"nats://x","delay":"5s","payload":{"a":[1,2,{"b":null}]}}`, `{"payload":"\ud83d\ude42"}`, `{"payload":"\ud83d"}`,
		`{"headers":{"a":["1",null],"b":"2"},"key":null}`, `{"payload_base64":"AA=="}`, `{"deliver_at":1893456000000}`,
		`{"a":1}`, `{"id":"1","id":"1"}`, `{`, `[]`, `{"payload":` + strings.Repeat("[", 600), `{"headers":{"Bridge-Id":"x"}}`, "\xff", `{} {}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var s steering
		e, err := parseEnvelope(body, &s)
		if err != nil {
			if _, ok := err.(*delaybridge.FieldError); !ok {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		var whole map[string]json.RawMessage
		if err := json.Unmarshal(body, &whole); err != nil {
			t.Fatalf("taken, and no JSON: %v", err)
		}
		if p := whole["payload"]; p != nil && p[0] != '"' && !bytes.Equal(p, e.payload) {
			t.Errorf("payload %q is delivered as %q", p, e.payload)
		}
		for _, h := range e.headers {
			if delaybridge.Steers(h.Name) {
				t.Errorf("header %q passes", h.Name)
			}
		}
	})
}

// Patterns match what a plain reading of them matches, however they are written.
func FuzzPatterns(f *testing.F) {
	f.Add("kafka://orders.*", "orders.eu")
	f.Add("kafka://*a*b*", "xaxbx")
	f.Add("nats://orders.*.x", "orders.y.x")
	f.Add("nats://orders.>", "orders")
	f.Add("nats-core://>", "a.b")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		p, err := parseTargetPattern(pattern)
		if err != nil {
			if _, ok := err.(*delaybridge.FieldError); !ok {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		target, err := delaybridge.ParseTarget(p.sink + "://" + name)
		if err != nil {
			return
		}
		var plain strings.Builder
		if p.sink == delaybridge.SinkKafka {
			plain.WriteString(strings.ReplaceAll(regexp.QuoteMeta(p.name), `\*`, `.*`))
		} else {
			tokens := strings.Split(p.name, ".")
			for i, token := range tokens {
				if i > 0 {
					plain.WriteString(`\.`)
				}
				switch token {
				case "*":
					plain.WriteString(`[^.]+`)
				case ">":
					plain.WriteString(`.+`)
				default:
					plain.WriteString(regexp.QuoteMeta(token))
				}
			}
		}
		want := regexp.MustCompile(`(?s)\A(?:` + plain.String() + `)\z`).MatchString(target.Name)
		if got := p.match(target); got != want {
			t.Errorf("%q matches %q: %v, want %v", pattern, target.Name, got, want)
		}
	})
}

// BRIDGE_SOURCE_TARGETS is read or refused; what is read lets nothing of others pass.
func FuzzParseSourceTargets(f *testing.F) {
	f.Add("nats://bridge.schedule -> nats://orders.>, kafka://orders.*; kafka://a -> *; api -> none; * -> nats://x")
	f.Add("cli->kafka://*;;")
	f.Add("-> nats://a")
	f.Add("nats://> -> nats://>")
	f.Fuzz(func(t *testing.T, setting string) {
		entries, err := ParseSourceTargets(setting)
		if err != nil {
			if fe, ok := err.(*delaybridge.FieldError); !ok || fe.Field != sourceTargetsField {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		d := &Decoder{cfg: DecoderConfig{SourceTargets: entries}}
		for _, sink := range delaybridge.Lanes {
			target := delaybridge.Target{Sink: sink, Name: "orders.eu"}
			for _, rec := range []Record{{FromCLI: true}, {FromAPI: true}, {Origin: delaybridge.Target{Sink: "kafka", Name: "a"}}, {Origin: delaybridge.Target{Sink: "nats", Name: "bridge.schedule"}}} {
				reason := d.mayName(&rec, target)
				_, entry := d.sourceTargets(&rec)
				if allowed := len(entries) == 0 || entry != nil && matchesAny(entry.patterns, target); allowed != (reason == "") {
					t.Errorf("%+v may name %v: %v, %q", rec, target, allowed, reason)
				}
			}
		}
	})
}

// Whatever stands in the header of a message, or in its reply subject: a word of
// the server is told from a message, and a message's headers are read or refused.
func FuzzNATSMessage(f *testing.F) {
	for _, s := range []string{
		"NATS/1.0\r\nBridge-Delay: 5s\r\nBridge-Target: nats://x\r\n\r\n", "NATS/1.0 409 Consumer Deleted\r\n\r\n", "NATS/1.0 100 Idle Heartbeat\r\n\r\n",
		"NATS/1.0 408 Request Timeout\r\nNats-Pending-Messages: 7\r\nNats-Pending-Bytes: 0\r\n\r\n", "NATS/1.0\r\n Bridge-Delay: 5s\r\n folded\r\n\r\n",
		"NATS/1.0\r\nBridge-Delay : 5s\r\nBRIDGE-DELAY: 6s\r\n\r\n", "NATS/1.0\r\nNats-Rollup: all\r\nStatus: 409\r\n\r\n", "NATS/1.0\r\n\r\n", "", "\x00",
	} {
		f.Add([]byte(s), "$JS.ACK.S.d.1.2.3.4.5", []byte("x"))
		f.Add([]byte(s), "_INBOX.x", []byte(nil))
	}
	f.Add([]byte("NATS/1.0\r\n\r\n"), "$JS.ACK.x", []byte("x"))
	decoder, err := NewDecoder(DefaultDecoderConfig())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, header []byte, reply string, data []byte) {
		h, _ := nats.DecodeHeadersMsg(header)
		m := &nats.Msg{Subject: "bridge.schedule", Reply: reply, Header: h, Data: data}
		s := &pullSession{credit: 10}
		if !isStored(m) {
			_ = s.heed(m, func() {})
			if s.credit < 0 {
				t.Errorf("credit %d", s.credit)
			}
			return
		}
		_, _ = m.Metadata()
		list := natsHeaders(m.Header)
		rec := Record{Position: delaybridge.Position{Source: "nats:S", Offset: 1}, Origin: delaybridge.Target{Sink: "nats", Name: m.Subject}, Headers: list, Payload: data}
		req := decoder.Decode(rec)
		if req.Error != "" && !utf8.ValidString(req.Error) {
			t.Errorf("error %q", req.Error)
		}
		if req.Op != delaybridge.OpSchedule {
			return
		}
		for _, h := range req.Message.Headers {
			if delaybridge.Steers(h.Name) && h.Name != delaybridge.HeaderHops {
				t.Errorf("header %q passes", h.Name)
			}
		}
	})
}
