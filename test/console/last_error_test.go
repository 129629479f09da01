package console

import (
	"strings"
	"testing"
)

// TestLastError shows why a message is tried again, beside it and in the list, for
// as long as it is: an error that was made to do harm is text like any other.
func TestLastError(t *testing.T) {
	t.Parallel()
	chromium(t)
	w := newWorld(t, "RETRY_BASE=1h", "RETRY_MAX=1h")
	w.schedule(t, map[string]any{"id": "order-7", "target": "nats://nowhere.x", "delay": "0s", "payload": "x"})
	w.schedule(t, map[string]any{"id": "order-8", "target": "nats://orders.timeout", "delay": "1h", "payload": "x"})
	p := w.open(t, "#/upcoming")
	p.awaitText("tbody", "Last error: no stream holds the subject")
	if n := p.eval(`[...document.querySelectorAll("td.target .why")].filter((e) => e.checkVisibility()).length`); n != "1" {
		t.Errorf("%s messages of 2 have a last error", n)
	}
	p.eval(`location.hash = "#/message/order-7"`)
	p.awaitText(".fields", "Last errorno stream holds the subject")
	p.awaitText(".fields", "1 failed")

	client := w.redis.Client(t)
	keys, err := client.Keys(t.Context(), "*:tries").Result()
	if err != nil || len(keys) != 1 {
		t.Fatal(keys, err)
	}
	if err := client.HSet(t.Context(), keys[0], "order-7", "1 0 "+markup+terminal+bidi).Err(); err != nil {
		t.Fatal(err)
	}
	harmless := func() {
		t.Helper()
		if got := p.eval(`document.querySelectorAll("main img, main script").length + " " + document.title`); strings.Contains(got, "pwned") || !strings.HasPrefix(got, "0 ") {
			t.Errorf("the page holds what came in an error: %s", got)
		}
		if got := p.eval(`/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069]/.test(document.documentElement.textContent + [...document.querySelectorAll("[title]")].map((e) => e.title))`); got != "false" {
			t.Error("the page shows a bare control character")
		}
	}
	p.awaitText(".fields", markup+`\u001b[31mred`)
	harmless()
	p.eval(`location.hash = "#/upcoming"`)
	p.awaitText("tbody", markup+`\u001b[31mred`)
	harmless()

	// The newer one has not failed.
	w.schedule(t, map[string]any{"id": "order-7", "target": "nats://nowhere.x", "delay": "1h", "payload": "x"})
	p.await("the error gone", `![...document.querySelectorAll("td.target .why")].some((e) => e.checkVisibility())`)
	p.eval(`location.hash = "#/message/order-7"`)
	p.awaitText(".fields", "0 failed")
	p.await("the error gone", `![...document.querySelectorAll(".fields > div")].some((e) => e.textContent.includes("Last error") && e.checkVisibility())`)
}
