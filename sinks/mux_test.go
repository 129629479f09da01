package sinks_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"delaybridge"
	"delaybridge/sinks"
	"delaybridge/sinks/sinktest"
)

func TestMux(t *testing.T) {
	// Each sink answers with its name and the message's id.
	echo := func(name string) delaybridge.Sink {
		return delaybridge.SinkFunc(func(_ context.Context, batch []delaybridge.Claim) []error {
			errs := make([]error, len(batch))
			for i := range batch {
				errs[i] = errors.New(name + " " + batch[i].ID)
			}
			return errs
		})
	}
	mux := sinks.Mux{delaybridge.SinkNATS: echo("nats"), delaybridge.SinkKafka: echo("kafka")}
	for _, c := range []struct{ sentence, batch string }{
		{"an empty batch", ""},
		{"all of one sink", "nats nats nats"},
		{"two sinks, mixed", "nats kafka kafka nats kafka"},
		{"a sink that is not configured, alone", "nats-core"},
		{"a sink that is not configured, among others", "nats nats-core kafka nats-core nats"},
	} {
		var batch []delaybridge.Claim
		for i, name := range strings.Fields(c.batch) {
			batch = append(batch, sinktest.Claim(delaybridge.Target{Sink: name, Name: "x"}, fmt.Sprint(i)))
		}
		errs := mux.Publish(t.Context(), batch)
		if len(errs) != len(batch) {
			t.Fatalf("%s: %d outcomes for %d messages", c.sentence, len(errs), len(batch))
		}
		for i, err := range errs {
			if batch[i].Target.Sink == delaybridge.SinkNATSCore {
				want(t, c.sentence, err, "transient", `"nats-core" is not configured`)
			} else if got := fmt.Sprint(err); got != batch[i].Target.Sink+" "+batch[i].ID {
				t.Errorf("%s: message %d for %s got %q", c.sentence, i, batch[i].Target.Sink, got)
			}
		}
	}
}

func TestNATSConfigValidate(t *testing.T) {
	if err := sinks.DefaultNATSConfig().Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	for field, change := range map[string]func(*sinks.NATSConfig){
		"PublishTimeout": func(c *sinks.NATSConfig) { c.PublishTimeout = 0 },
	} {
		cfg := sinks.DefaultNATSConfig()
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
