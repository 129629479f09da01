package sinks

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"delaybridge"
)

// What is made in a faster way than the library's is the same.
func TestTimesAreAsTheLibraryWritesThem(t *testing.T) {
	for _, at := range []time.Time{
		{}, time.UnixMilli(0), time.UnixMilli(-1), time.UnixMilli(999), time.UnixMilli(1 << 41), time.UnixMilli(1_790_000_000_007),
		time.Date(12_345, 6, 7, 8, 9, 10, 11_999_999, time.UTC), time.Date(2026, 2, 28, 23, 59, 59, 999_999_999, time.FixedZone("", 5400)),
	} {
		if got, want := string(appendTime(nil, at)), at.UTC().Format("2006-01-02T15:04:05.000Z07:00"); got != want {
			t.Errorf("%v is written %q, want %q", at, got, want)
		}
	}
}

func TestAnswersOfJetStreamAreRead(t *testing.T) {
	for _, row := range []struct {
		about, answer string
		stored        bool
		class         delaybridge.Class
	}{
		{"stored", `{"stream":"ORDERS", "seq":12}`, true, 0},
		{"stored before", `{"stream":"ORDERS","seq":12,"duplicate": true}`, true, 0},
		{"stored, said in another order", `{"seq":12,"stream":"ORDERS"}`, true, 0},
		{"stored in a stream of an odd name", `{"stream":"error","seq":1}`, true, 0},
		{"refused, with the stream named", `{"stream":"ORDERS","seq":0,"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}`, false, delaybridge.ClassTransient},
		{"refused for good", `{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"},"stream":"ORDERS","seq":0}`, false, delaybridge.ClassPermanent},
		{"no stream", `{"stream":"","seq":1}`, false, delaybridge.ClassPermanent},
		{"half an answer", `{"stream":"ORDERS"`, false, delaybridge.ClassPermanent},
		{"no answer of a stream", `ok`, false, delaybridge.ClassPermanent},
		{"stored, in a domain", `{"stream":"ORDERS","domain":"hub","seq":12,"duplicate": true}`, true, 0},
		{"stored, with more than we know of", `{"stream":"ORDERS","seq":12,"val":"7"}`, true, 0},
		{"stored, and no error", `{"stream":"ORDERS","seq":12,"error":null}`, true, 0},
		{"stored in a stream of another alphabet", `{"stream":"заказы","seq":1}`, true, 0},
		{"refused, in other letters", `{"stream":"ORDERS","seq":1,"ERROR":{"code":503,"err_code":10077}}`, false, delaybridge.ClassTransient},
		{"refused, escaped", `{"stream":"ORDERS","seq":1,"\u0065rror":{"code":503}}`, false, delaybridge.ClassTransient},
		{"refused, spread out", "{ \"error\" : { \"code\" : 400, \"err_code\" : 10054 } }", false, delaybridge.ClassPermanent},
		{"an error of another form", `{"stream":"ORDERS","seq":1,"error":"no"}`, false, delaybridge.ClassPermanent},
		{"cut off within the name", `{"stream":"}`, false, delaybridge.ClassPermanent},
		{"cut off before the number", `{"stream":"ORDERS","seq":}`, false, delaybridge.ClassPermanent},
		{"cut off, and mended", `{"stream":"ORDERS","seq":1,"error":{}`, false, delaybridge.ClassPermanent},
		{"two answers", `{"stream":"ORDERS","seq":1}{"stream":"ORDERS","seq":2}`, false, delaybridge.ClassPermanent},
		{"no number", `{"stream":"ORDERS"}`, false, delaybridge.ClassPermanent},
		{"a number of no message", `{"stream":"ORDERS","seq":0}`, false, delaybridge.ClassPermanent},
		{"a number below zero", `{"stream":"ORDERS","seq":-1}`, false, delaybridge.ClassPermanent},
		{"a number with a leading zero", `{"stream":"ORDERS","seq":012}`, false, delaybridge.ClassPermanent},
		{"a number beyond all", `{"stream":"ORDERS","seq":99999999999999999999}`, false, delaybridge.ClassPermanent},
		{"another's answer that begins alike", `{"stream":"live","seq":"a"}`, false, delaybridge.ClassPermanent},
		{"a stream that is taken back", `{"stream":"ORDERS","seq":1,"stream":""}`, false, delaybridge.ClassPermanent},
		{"a line break in the name", "{\"stream\":\"A\n\",\"seq\":1}", false, delaybridge.ClassPermanent},
		{"nothing at all", ``, false, delaybridge.ClassPermanent},
	} {
		err := ackError(&nats.Msg{Data: []byte(row.answer)})
		if (err == nil) != row.stored || err != nil && delaybridge.ClassOf(err) != row.class {
			t.Errorf("%s: %v", row.about, err)
		}
	}
}

// What is taken for the answer of a stream without reading it as JSON is one by
// JSON, too: an outcome of nil lets go of the message.
func FuzzAnswersOfJetStream(f *testing.F) {
	for _, s := range []string{
		`{"stream":"ORDERS","seq":12}`, `{"stream":"ORDERS","seq":12,"duplicate": true}`, `{"stream":"O","domain":"hub","seq":1}`, `{"stream":"O", "domain":"hub", "seq":1}`,
		`{"error":{"code":503,"err_code":10077,"description":"full"},"stream":"ORDERS","seq":0}`, `{"stream":"}`, `{"stream":"S","\u0065rror":{},"seq":1}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		var ack struct {
			Stream string
			Seq    uint64
			Error  json.RawMessage
		}
		err := json.Unmarshal(answer, &ack)
		byJSON := err == nil && ack.Stream != "" && ack.Seq > 0 && (ack.Error == nil || string(ack.Error) == "null")
		if stored(answer) && !byJSON {
			t.Errorf("%q is taken for stored; by JSON: %+v, %v", answer, ack, err)
		}
		if ackError(&nats.Msg{Data: answer}) == nil && !byJSON {
			t.Errorf("%q confirms; by JSON: %+v, %v", answer, ack, err)
		}
	})
}
