package test

import (
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
)

// A message that nobody confirms keeps no process from ending in time: it is left
// to its lease, which is said and is no failure.
func TestStopLeavesWhatIsNotAnswered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.serve(t, Env{"SHUTDOWN_TIMEOUT": "300ms"})
	silent := w.nats.Connect(t)
	got := make(chan struct{}, 1)
	// A subscriber of core NATS gets the message and answers nothing.
	if _, err := silent.Subscribe("silent.x", func(*nats.Msg) { got <- struct{}{} }); err != nil {
		t.Fatal(err)
	}
	if err := silent.Flush(); err != nil {
		t.Fatal(err)
	}
	publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://silent.x", "Bridge-Delay: 0s", "Bridge-Id: left")
	<-got
	p.Signal(syscall.SIGTERM)
	if code := p.Exit(t); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if out := p.Output(); !strings.Contains(out, "something was left") {
		t.Errorf("it does not say that something was left:\n%s", tail(out))
	}
	w.awaitState(t, "left", "in_flight")
}
