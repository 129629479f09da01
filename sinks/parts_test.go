package sinks_test

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"delaybridge"
	"delaybridge/sinks"
	"delaybridge/test/servers"
)

// What is confirmed is told while another subject keeps silent, and each outcome
// is told once.
func TestMuxPublishesInParts(t *testing.T) {
	t.Parallel()
	s := servers.NewNATS(t)
	newStream(t, s.JetStream(t), jetstream.StreamConfig{Name: "OK", Subjects: []string{"ok.>"}})
	hears(t, s, "silent")
	nc := connect(t, newLink(t, s))
	core, err := sinks.NewNATSCore(nc, natsConfig(tooLong))
	if err != nil {
		t.Fatal(err)
	}
	mux := sinks.Mux{
		delaybridge.SinkNATS: newNATSSink(t, nc, tooLong), delaybridge.SinkNATSCore: core,
		delaybridge.SinkKafka: delaybridge.SinkFunc(nil),
	}
	if !mux.InParts(delaybridge.SinkNATS) || !mux.InParts(delaybridge.SinkNATSCore) || mux.InParts(delaybridge.SinkKafka) || mux.InParts("mqtt") {
		t.Error("InParts is wrong")
	}

	batch := []delaybridge.Claim{natsClaim("ok.1", "a"), natsClaim("silent", "b"), natsClaim("ok.2", "c"), natsClaim("none", "d")}
	outcomes := map[int]error{}
	told := 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	mux.PublishParts(ctx, batch, func(indexes []int, errs []error) {
		if len(indexes) > 0 {
			told++
		}
		for n, i := range indexes {
			if _, again := outcomes[i]; again {
				t.Errorf("the outcome of %d is told twice", i)
			}
			outcomes[i] = errs[n]
		}
		if len(outcomes) == len(batch)-1 {
			cancel() // all but the silent one are told of, which is not waited for
		}
	})
	if len(outcomes) != len(batch) || told < 2 {
		t.Fatalf("%d outcomes in %d parts", len(outcomes), told)
	}
	want(t, "the one before", outcomes[0], "", "")
	want(t, "the silent one", outcomes[1], "unknown", "gave up waiting")
	want(t, "the one behind", outcomes[2], "", "")
	want(t, "the one that no stream holds", outcomes[3], "transient", "no stream")

	// A sink that cannot do it tells of all at once.
	all := sinks.Mux{delaybridge.SinkNATS: delaybridge.SinkFunc(mux.Publish)}
	parts := 0
	all.PublishParts(t.Context(), []delaybridge.Claim{natsClaim("ok.1", "e"), natsClaim("ok.2", "f")}, func(indexes []int, errs []error) {
		parts++
		if len(indexes) != 2 || len(errs) != 2 || errs[0] != nil || errs[1] != nil {
			t.Errorf("%v %v", indexes, errs)
		}
	})
	if parts != 1 {
		t.Errorf("%d parts, want 1", parts)
	}
}
