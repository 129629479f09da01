package sinks

import (
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
	} {
		err := ackError(&nats.Msg{Data: []byte(row.answer)})
		if (err == nil) != row.stored || err != nil && delaybridge.ClassOf(err) != row.class {
			t.Errorf("%s: %v", row.about, err)
		}
	}
}
