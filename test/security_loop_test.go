package test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"delaybridge/test/servers"
)

// TestBridgesInACircle has two bridges on two queues that lead to each other:
// what goes round ends as a dead letter, with all that it carried.
func TestBridgesInACircle(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stream(t, w.js, "ROUND", "round.>")
	one := w.env.With(Env{"NAMESPACE": "one", "NATS_INGEST_DURABLE": "one",
		"ROUTES": "nats://round.one -> nats://round.two delay=0s", "DEAD_TARGET": "nats://round.two", "REJECT_TARGET": "nats://round.two"})
	two := w.env.With(Env{"NAMESPACE": "two", "NATS_INGEST_DURABLE": "two", "NATS_INGEST_SUBJECTS": "bridge.two",
		"ROUTES": "nats://round.two -> nats://round.one delay=0s", "DEAD_TARGET": "nats://round.one", "REJECT_TARGET": "nats://round.one"})
	Serve(t, one)
	w.awaitStream(t)
	Serve(t, two)
	publish(t, w.js, "round.one", "round and round", "Bridge-Id: circling", "trace: abc")

	// One, two, one, two, one, two, one, two: the ninth is refused by the first.
	letters := func(env Env) []any {
		r := Run(t, env, "", "dead", "list", "-o", "json")
		if r.Code != 0 {
			return nil
		}
		items, _ := decode(t, r.Stdout)["items"].([]any)
		return items
	}
	var found []any
	if !servers.Eventually(func() bool { found = letters(one); return len(found) == 1 }) {
		t.Fatalf("the first bridge has the letters %v, the second %v", found, letters(two))
	}
	letter := found[0].(map[string]any)
	if text := fmt.Sprint(letter["error"]); letter["reason"] != "rejected" || !strings.Contains(text, `too_many_hops: Bridge-Hops: "8"`) {
		t.Errorf("letter %v", letter)
	}
	info, err := w.js.Stream(context.Background(), "ROUND")
	if err != nil {
		t.Fatal(err)
	}
	// Nine of the circle: neither a reject target nor a copy for the dead target adds one.
	if n := info.CachedInfo().State.LastSeq; n != 9 {
		t.Errorf("%d messages went round, want 9", n)
	}
	show := Run(t, one, "", "dead", "show", fmt.Sprint(letter["id"]), "-o", "json")
	if !strings.Contains(show.Stdout, "round and round") || !strings.Contains(show.Stdout, `"trace"`) {
		t.Errorf("the letter holds %s", show.Stdout)
	}
	// A replay is no way round.
	if r := Run(t, one, "", "dead", "replay", "--all"); r.Code != 1 || !strings.Contains(r.Stderr, "still invalid: too_many_hops") {
		t.Errorf("replay: %+v", r)
	}
	for _, env := range []Env{one, two} {
		if r := Run(t, env, "", "list", "-o", "json"); !strings.Contains(r.Stdout, `"items":[]`) {
			t.Errorf("still pending: %s", r.Stdout)
		}
	}
}

// TestHopsStayThroughRetriesAndReplays delivers a message that has passed two
// bridges after failed attempts and a replay: it has passed three then.
func TestHopsStayThroughRetriesAndReplays(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve(t, Env{"RETRY_BASE": "10ms", "MAX_ATTEMPTS": "3"})
	publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://later.one", "Bridge-Delay: 0s", "Bridge-Id: retried", "Bridge-Hops: 2")
	w.awaitState(t, "retried", "dead")
	later := NewTimetable(t, w.nats.Connect(t), "later.>")
	stream(t, w.js, "LATER", "later.>")
	if r := Run(t, w.env, "", "dead", "replay", "retried"); r.Code != 0 {
		t.Fatalf("replay: %+v", r)
	}
	if got := later.Await(t, "retried").Header.Values("Bridge-Hops"); len(got) != 1 || got[0] != "3" {
		t.Errorf("Bridge-Hops is %q, want 3", got)
	}
}
