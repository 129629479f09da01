package test

import (
	"strings"
	"testing"
	"time"
)

// TestDelayedMessageArrives is the README's first example.
func TestDelayedMessageArrives(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, nil)

	const delay = 1500 * time.Millisecond
	sent := publish(t, w.js, "bridge.schedule", `{"order":7}`,
		"Bridge-Target: nats://orders.timeout", "Bridge-Delay: 1.5s", "Bridge-Id: order-7",
		"Trace: one", "Trace: two", "ce-type: order.placed", "Nats-Other: steers", "Bridge-Attempt: 9")
	w.table.Expect("order-7", sent.Add(delay))
	w.table.Check(t)

	a := w.table.Await(t, "order-7")
	if a.Subject != "orders.timeout" || a.Payload != `{"order":7}` {
		t.Errorf("arrived on %s: %q", a.Subject, a.Payload)
	}
	if got := a.Header["Trace"]; strings.Join(got, ",") != "one,two" {
		t.Errorf("header Trace is %q", got)
	}
	if got := a.Header["ce-type"]; strings.Join(got, ",") != "order.placed" {
		t.Errorf("header ce-type is %q", got)
	}
	for name := range a.Header {
		switch name {
		case "Trace", "ce-type", "Bridge-Id", "Bridge-Scheduled-At", "Bridge-Due-At", "Bridge-Attempt", "Bridge-Hops", "Nats-Msg-Id":
		default:
			t.Errorf("header %s: %q came along", name, a.Header[name])
		}
	}
	if got := a.Header.Get("Bridge-Attempt"); got != "1" {
		t.Errorf("Bridge-Attempt is %q", got)
	}
	scheduled, err := time.Parse(time.RFC3339, a.Header.Get("Bridge-Scheduled-At"))
	if err != nil || a.Due(t).Sub(scheduled) != delay {
		t.Errorf("due %s, scheduled %s (%v)", a.Header.Get("Bridge-Due-At"), a.Header.Get("Bridge-Scheduled-At"), err)
	}
	t.Logf("%v after it was due", a.At.Sub(a.Due(t)))
	w.awaitEmpty(t)
}

// TestSameIDReplaces schedules an id again while it is pending.
func TestSameIDReplaces(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, nil)

	publish(t, w.js, "bridge.schedule", "first", "Bridge-Target: nats://orders.a", "Bridge-Delay: 1h", "Bridge-Id: x")
	sent := publish(t, w.js, "bridge.schedule", "second", "Bridge-Target: nats://orders.b", "Bridge-Delay: 500ms", "Bridge-Id: x")
	w.table.Expect("x", sent.Add(500*time.Millisecond))
	w.table.Check(t)
	if a := w.table.Await(t, "x"); a.Payload != "second" || a.Subject != "orders.b" {
		t.Errorf("arrived on %s: %q", a.Subject, a.Payload)
	}
	w.awaitEmpty(t)
}

// TestCancelTakesBack cancels through the broker. The message after it shows
// that the cancelled one's time has passed.
func TestCancelTakesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, nil)

	publish(t, w.js, "bridge.schedule", "never", "Bridge-Target: nats://orders.a", "Bridge-Delay: 4s", "Bridge-Id: gone")
	publish(t, w.js, "bridge.schedule", "", "Bridge-Op: cancel", "Bridge-Id: gone")
	sent := publish(t, w.js, "bridge.schedule", "still", "Bridge-Target: nats://orders.a", "Bridge-Delay: 4500ms", "Bridge-Id: stays")
	w.table.Expect("stays", sent.Add(4500*time.Millisecond))
	w.table.Check(t)
	w.awaitState(t, "gone", "cancelled")
	w.awaitState(t, "stays", "delivered")
	w.awaitEmpty(t)
}

// TestBadRequestIsRejected sends requests that nobody can carry out, and one
// behind them that must not be held up.
func TestBadRequestIsRejected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, nil)

	publish(t, w.js, "bridge.schedule", "payload of the bad one", "Bridge-Target: nats://orders.a", "Bridge-Delay: 5", "Bridge-Id: bad")
	publish(t, w.js, "bridge.schedule", "no target", "Bridge-Delay: 5s")
	publish(t, w.js, "bridge.schedule", "loop", "Bridge-Target: nats://bridge.schedule", "Bridge-Delay: 5s")
	sent := publish(t, w.js, "bridge.schedule", "good", "Bridge-Target: nats://orders.a", "Bridge-Delay: 0s", "Bridge-Id: good")
	w.table.Expect("good", sent)
	w.table.Check(t)

	dead := Run(t, w.env, "", "dead", "list", "--reason", "rejected", "-o", "json")
	if items := decode(t, dead.Stdout)["items"].([]any); len(items) != 3 {
		t.Fatalf("%d dead letters: %s", len(items), dead.Stdout)
	}
	shown := decode(t, Run(t, w.env, "", "dead", "show", "rejected:nats:BRIDGE_SCHEDULE:1", "-o", "json").Stdout)
	if payload := shown["payload"].(map[string]any)["text"]; payload != "payload of the bad one" {
		t.Errorf("its payload is %v", payload)
	}
	if text := shown["error"].(string); !strings.Contains(text, "Bridge-Delay") || !strings.Contains(text, `"5"`) {
		t.Errorf("its error is %q", text)
	}
}

// TestRejectTarget sends what is rejected to a subject instead.
func TestRejectTarget(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, Env{"REJECT_TARGET": "nats://orders.rejected"})

	publish(t, w.js, "bridge.schedule", "as it was", "Bridge-Target: nats://orders.a", "Bridge-Delay: 5", "Other: kept")
	a := w.table.Await(t, "rejected:nats:BRIDGE_SCHEDULE:1")
	if a.Subject != "orders.rejected" || a.Payload != "as it was" || a.Header.Get("Other") != "kept" {
		t.Errorf("arrived on %s: %q, %v", a.Subject, a.Payload, a.Header)
	}
	if got := a.Header.Get("Bridge-Rejected-Delay"); got != "5" {
		t.Errorf("Bridge-Rejected-Delay is %q", got)
	}
	if got := a.Header.Get("Bridge-Error"); !strings.Contains(got, "Bridge-Delay") {
		t.Errorf("Bridge-Error is %q", got)
	}
	w.awaitEmpty(t)
}

// TestRouteDelaysPlainMessages delays what names no target and no delay.
func TestRouteDelaysPlainMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, Env{"ROUTES": "nats://later.*.orders -> nats://orders.due delay=700ms"})

	sent := publish(t, w.js, "later.eu.orders", "plain", "Nats-Msg-Id: plain-1")
	w.table.Expect("plain-1", sent.Add(700*time.Millisecond))
	w.table.Check(t)
	if a := w.table.Await(t, "plain-1"); a.Subject != "orders.due" || a.Payload != "plain" {
		t.Errorf("arrived on %s: %q", a.Subject, a.Payload)
	}
}

// TestServersMayComeLater starts the bridge before Redis and NATS.
func TestServersMayComeLater(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.redis.Kill()
	w.nats.Stop()
	p := Start(t, w.env, "serve")
	p.Await(t, "redis does not answer yet")
	w.redis.Start(t)
	p.Await(t, `"msg":"running"`)
	w.nats.Start(t)
	w.awaitStream(t)
	sent := publish(t, w.js, "bridge.schedule", "late", "Bridge-Target: nats://orders.a", "Bridge-Delay: 100ms", "Bridge-Id: late")
	w.table.Expect("late", sent.Add(100*time.Millisecond))
	w.table.Check(t)
	if n := strings.Count(p.Output(), "redis does not answer yet"); n > 2 {
		t.Errorf("it said %d times that Redis does not answer", n)
	}
}
