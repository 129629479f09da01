package sinks_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/test/servers"
)

// TestNATSLosesNothingForKafka sends random messages over NATS and has the
// bridge's own ingest read them for Kafka: key, headers and payload are as they
// were. The seed is printed.
func TestNATSLosesNothingForKafka(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	s := servers.NewNATS(t)
	stream := newStream(t, s.JetStream(t), jetstream.StreamConfig{Name: "T", Subjects: []string{"t"}})
	sink := newNATSSink(t, connect(t, newLink(t, s)), tooLong)

	pieces := []string{
		"", "a", "Z", "0", "-", "_", ".", " ", "\t", "\r", "\n", "\r\n", "\x00", "\x01", "\x7f", ":", ",", "\"", "\\", "/", "=", "%20",
		"ü", "\u00a0", "\u2028", "\ufeff", "👍", "\xff", "\xc3", "true", "null", "kafka://x",
	}
	text := func(most int) string {
		var b strings.Builder
		for range rnd.IntN(most + 1) {
			b.WriteString(pieces[rnd.IntN(len(pieces))])
		}
		return b.String()
	}
	value := func() []byte {
		if rnd.IntN(5) == 0 {
			return nil
		}
		return []byte(text(6))
	}
	batch := make([]delaybridge.Claim, 1000)
	for i := range batch {
		batch[i] = natsClaim("t", fmt.Sprint("id-", i))
		batch[i].Key, batch[i].Payload = value(), value()
		names := []string{text(3), text(3), "same", "Same"}
		for range rnd.IntN(6) {
			h := delaybridge.Header{Name: names[rnd.IntN(len(names))], Value: value()}
			if !delaybridge.Steers(h.Name) {
				batch[i].Headers = append(batch[i].Headers, h)
			}
		}
	}
	for i, err := range sink.Publish(t.Context(), batch) {
		want(t, batch[i].ID, err, "", "")
	}

	decoder, err := ingest.NewDecoder(ingest.DefaultDecoderConfig())
	if err != nil {
		t.Fatal(err)
	}
	got := readStream(t, stream, "t")
	if len(got) != len(batch) {
		t.Fatalf("%d messages arrived of %d", len(got), len(batch))
	}
	for i, m := range got {
		headers := []delaybridge.Header{
			{Name: "Bridge-Target", Value: []byte("kafka://back")}, {Name: "Bridge-Delay", Value: []byte("5s")},
		}
		for name, values := range m.Headers() {
			for _, v := range values {
				headers = append(headers, delaybridge.Header{Name: name, Value: []byte(v)})
			}
		}
		payload := m.Data()
		if payload == nil {
			payload = []byte{}
		}
		request, err := decoder.Parse(ingest.Record{
			Position: delaybridge.Position{Source: "nats:T", Offset: uint64(i + 1)},
			Origin:   delaybridge.Target{Sink: delaybridge.SinkNATS, Name: "t"},
			Time:     time.Now(), Headers: headers, Payload: payload,
		})
		if err != nil {
			t.Errorf("%+v: %v", batch[i].Message, err)
			continue
		}
		sent, back := batch[i].Message, request.Message
		if back.ID != sent.ID {
			t.Errorf("id %q came back as %q", sent.ID, back.ID)
		}
		if fmt.Sprintf("%#v", back.Key) != fmt.Sprintf("%#v", sent.Key) {
			t.Errorf("key %#v came back as %#v", sent.Key, back.Key)
		}
		if fmt.Sprintf("%#v", back.Payload) != fmt.Sprintf("%#v", sent.Payload) {
			t.Errorf("payload %#v came back as %#v", sent.Payload, back.Payload)
		}
		byName := func(a, b delaybridge.Header) int { return strings.Compare(a.Name, b.Name) }
		want := slices.SortedStableFunc(slices.Values(sent.Headers), byName)
		have := slices.SortedStableFunc(slices.Values(back.Headers), byName)
		have = slices.DeleteFunc(have, func(h delaybridge.Header) bool { return h.Name == delaybridge.HeaderHops })
		if hops := delaybridge.Hops(back.Headers); hops != 1 {
			t.Errorf("%d hops, want 1", hops)
		}
		if fmt.Sprintf("%#v", want) != fmt.Sprintf("%#v", have) && len(want)+len(have) > 0 {
			t.Errorf("headers %q came back as %q", want, have)
		}
	}
}
