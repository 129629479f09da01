package main

import (
	"strings"
	"testing"

	"delaybridge"
	"delaybridge/luascripts"
)

// TestLastErrorIsToldUntilItIsOver: by the API and the commands, and not where
// no attempt has failed.
func TestLastErrorIsToldUntilItIsOver(t *testing.T) {
	w := newAPIWorld(t, nil)
	w.schedule(t, "other", "1h")
	if _, out, _ := w.command(t, "", "list"); strings.Contains(out, "LAST ERROR") {
		t.Errorf("nothing has failed, and the list says\n%s", out)
	}
	const why = `no stream holds "orders.a"`
	w.fail(t, "order-7", why)
	for _, path := range []string{pathOf("messages", "order-7"), pathOf("messages", "order-7") + "?payload=true"} {
		if v := w.ask(t, "GET", path, "").json(t); v["attempts"] != 1.0 || v["last_error"] != why || v["state"] != "pending" {
			t.Errorf("%s: %v", path, v)
		}
	}
	for _, m := range w.ask(t, "GET", "/v1/messages", "").json(t)["items"].([]any) {
		m := m.(map[string]any)
		if last, has := m["last_error"]; has != (m["id"] == "order-7") || has && last != why {
			t.Errorf("the list says %v", m)
		}
	}
	_, list, _ := w.command(t, "", "list")
	_, get, _ := w.command(t, "", "get", "order-7")
	_, full, _ := w.command(t, "", "get", "order-7", "--payload")
	for _, row := range []struct{ about, out, says string }{
		{"the list's head", list, "NEXT TRY"}, {"the list", list, "  " + why + "\n"},
		{"get", get, "\nlast error    " + why + "\n"}, {"get with the payload", full, "\nlast error    " + why + "\n"},
	} {
		if !strings.Contains(row.out, row.says) {
			t.Errorf("%s does not say %q:\n%s", row.about, row.says, row.out)
		}
	}
	lines := strings.Split(list, "\n")
	if len(lines) != 4 || !strings.Contains(lines[1], "  other  ") || !strings.HasSuffix(lines[0], "  LAST ERROR") ||
		strings.Count(list, why) != 1 || strings.Index(lines[2], why) != strings.Index(lines[0], "LAST ERROR") {
		t.Errorf("the list is\n%s", list)
	}

	w.schedule(t, "order-7", "1h")
	if v := w.ask(t, "GET", pathOf("messages", "order-7"), "").json(t); v["attempts"] != 0.0 || v["last_error"] != nil {
		t.Errorf("after it was replaced: %v", v)
	}
	w.bury(t, "dead", delaybridge.ReasonAttempts)
	if v := w.ask(t, "GET", pathOf("messages", "dead"), "").json(t); v["state"] != "dead" || v["last_error"] != "nobody takes it" {
		t.Errorf("dead: %v", v)
	}
}

// TestLastErrorSteersNoTerminal has in the queue what no bridge puts there.
func TestLastErrorSteersNoTerminal(t *testing.T) {
	w := newAPIWorld(t, nil)
	w.fail(t, "order-7", "no")
	client, err := luascripts.Connect(w.redis.URL, luascripts.ModeSingle)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	keys, err := client.Keys(t.Context(), "*:tries").Result()
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	for _, s := range hostile {
		if err := client.HSet(t.Context(), keys[0], "order-7", "1 0 no"+s).Err(); err != nil {
			t.Fatal(err)
		}
		for _, args := range []string{"get order-7", "get order-7 -o json", "get order-7 --payload", "list", "list -o json"} {
			code, out, errOut := w.command(t, "", strings.Fields(args)...)
			if code != 0 || !strings.Contains(out, "no") {
				t.Errorf("bridge %s: %d %s %s", args, code, out, errOut)
			}
			for line := range strings.Lines(out) {
				checkVisible(t, strings.TrimSuffix(line, "\n"))
			}
		}
		a := w.ask(t, "GET", pathOf("messages", "order-7"), "")
		if a.status != 200 || a.json(t)["last_error"] == nil {
			t.Errorf("%q: %+v", s, a)
		}
	}
}
