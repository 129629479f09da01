package console

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"delaybridge/test/servers"
)

func TestReplayAndPurge(t *testing.T) {
	t.Parallel()
	chromium(t)
	w := newWorld(t, "MAX_ATTEMPTS=1")
	w.kept(t, "nats://later.x", "dead-1", "dead-2", "dead-3")
	w.publish(t, "no target", map[string]string{"Bridge-Delay": "1h", "Bridge-Id": "bad"})
	w.stream(t, "LATER", "later.>")
	w.watch(t, "later.>")
	p := w.open(t, "#/dead")

	p.click(`[aria-label="Replay dead-1"]`)
	p.awaitText("#notice", "Replayed dead-1")
	w.awaitArrival(t, "dead-1")

	// One that is pending again takes force, after a question.
	w.schedule(t, map[string]any{"id": "dead-2", "target": "nats://later.x", "delay": "1h", "payload": "newer"})
	p.click(`[aria-label="Replay dead-2"]`)
	p.awaitText("dialog[open]", "Replace the pending message?")
	p.click("dialog .actions button:first-child")
	p.awaitText("#notice", "Not replayed: dead-2 is pending.")
	if s := w.state(t, "dead-2"); s != "pending" {
		t.Errorf("dead-2 is %q", s)
	}
	p.click(`[aria-label="Replay dead-2"]`)
	p.awaitText("dialog[open]", "Replace the pending message?")
	p.click("#dialog-yes")
	p.awaitText("#notice", "Replayed dead-2")
	w.awaitArrival(t, "dead-2")
	w.mu.Lock()
	if got := w.arrived["dead-2"]; got != "payload of dead-2" {
		t.Errorf("dead-2 arrived with %q", got)
	}
	w.mu.Unlock()

	// What is still invalid stays, and it is said why.
	p.await("the rejected one", `document.querySelector('[aria-label^="Replay rejected:"]')`)
	p.click(`[aria-label^="Replay rejected:"]`)
	p.awaitText("#notice", "still invalid")
	p.awaitText("#notice", "Bridge-Target")

	// Purge says what it removes, from the letter's own page too.
	p.click(`td.id a[href="#/dead/dead-3"]`)
	p.awaitText("h1", "dead-3")
	p.awaitText(".payload", "payload of dead-3")
	p.click("#purge")
	p.awaitText("dialog[open]", "removed for good")
	p.awaitText("dialog[open]", "nats://later.x")
	p.click("dialog .actions button:first-child")
	if _, code := w.run(t, "dead", "show", "dead-3"); code != 0 {
		t.Error("dead-3 is gone, though it was to be kept")
	}
	p.click("#purge")
	p.click("#dialog-yes")
	p.awaitText("#notice", "Purged dead-3.")
	p.awaitText("main", "There is no dead letter of this id")
	if out, code := w.run(t, "dead", "show", "dead-3"); code != 1 {
		t.Errorf("dead-3 is still there: %s", out)
	}
	if p.eval("document.activeElement === document.body") == "true" {
		t.Error("the focus is lost")
	}
}

func TestFilteredInBulk(t *testing.T) {
	t.Parallel()
	chromium(t)
	w := newWorld(t, "MAX_ATTEMPTS=1")
	var ids []string
	for i := range 12 {
		ids = append(ids, fmt.Sprintf("bulk-%02d", i))
	}
	w.kept(t, "nats://later.x", ids...)
	w.kept(t, "nats://other.x", "other-1")
	for range 3 {
		w.publish(t, "no target", map[string]string{"Bridge-Delay": "1h"})
	}
	w.stream(t, "LATER", "later.>")
	w.watch(t, "later.>")
	p := w.open(t, "")
	p.awaitText("#dead-count", "16")
	p.click(`nav a[data-view="dead"]`)
	p.await("all", `document.querySelectorAll("tbody tr").length === 16`)

	p.do(chromedp.SendKeys(chromedp.CSS("#reason"), "attempts"))
	p.await("the filter in the link", `location.hash === "#/dead?reason=attempts"`)
	p.await("those", `document.querySelectorAll("tbody tr").length === 13`)
	p.do(chromedp.SendKeys(chromedp.CSS("#target"), "nats://later.x\r"))
	p.await("both in the link", `location.hash === "#/dead?reason=attempts&target=nats%3A%2F%2Flater.x"`)
	p.await("those", `document.querySelectorAll("tbody tr").length === 12`)
	p.do(chromedp.NavigateBack())
	p.await("Back", `document.querySelectorAll("tbody tr").length === 13 && document.querySelector("#target").value === ""`)
	p.do(chromedp.NavigateForward())
	p.await("Forward", `document.querySelectorAll("tbody tr").length === 12 && document.querySelector("#target").value === "nats://later.x"`)

	// Four of them are pending again; the others go at once, these on a second word.
	for _, id := range ids[:4] {
		w.schedule(t, map[string]any{"id": id, "target": "nats://later.x", "delay": "1h", "payload": "newer"})
	}
	p.click("#replay-all")
	p.awaitText("dialog[open]", "12 dead letters will be replayed")
	p.awaitText("dialog[open]", "nats://later.x")
	p.click("#dialog-yes")
	p.awaitText("#notice", "Replayed 8 dead letters. 4 dead letters stayed: the id is pending again.")
	w.awaitArrival(t, ids[4:]...)
	p.click("#notice button")
	p.awaitText("dialog[open]", "What is pending is lost.")
	p.click("#dialog-yes")
	p.awaitText("#notice", "Replayed 4 dead letters.")
	w.awaitArrival(t, ids...)
	p.awaitText(".empty", "No dead letter matches the filter.")

	p.eval(`location.hash = "#/dead?reason=rejected"`)
	p.await("the rejected", `document.querySelectorAll("tbody tr").length === 3`)
	p.click("#purge-all")
	p.awaitText("dialog[open]", "3 dead letters will be purged")
	p.awaitText("dialog[open]", "removed for good")
	p.click("#dialog-yes")
	p.awaitText("#notice", "Purged 3 dead letters.")
	var out string
	if !servers.Eventually(func() bool {
		out, _ = w.run(t, "dead", "list")
		return strings.Count(out, "\n") == 2 && strings.Contains(out, "other-1")
	}) {
		t.Errorf("left are:\n%s", out)
	}
}
