package console

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"delaybridge"
)

var orders = delaybridge.Target{Sink: delaybridge.SinkNATS, Name: "orders.timeout"}

func TestCancel(t *testing.T) {
	t.Parallel()
	chromium(t)
	w := newWorld(t)
	for _, id := range []string{"order-1", "order-2"} {
		w.schedule(t, map[string]any{"id": id, "target": "nats://orders.timeout", "delay": "1h", "payload": "x"})
	}
	p := w.open(t, "#/upcoming")

	// Esc keeps it, and gives the focus back.
	p.click(`[aria-label="Cancel order-1"]`)
	p.awaitText("dialog", "nats://orders.timeout")
	if at := p.eval("document.activeElement.textContent"); at != "Keep it" {
		t.Errorf("the dialog opens with the focus on %q", at)
	}
	p.press(kb.Escape)
	p.await("the focus back", `!document.querySelector("dialog").open && document.activeElement.ariaLabel === "Cancel order-1"`)
	if s := w.state(t, "order-1"); s != "pending" {
		t.Errorf("after Esc order-1 is %q", s)
	}

	p.click(`[aria-label="Cancel order-1"]`)
	p.click("#dialog-yes")
	p.awaitText("#notice", "Cancelled order-1.")
	if s := w.state(t, "order-1"); s != "cancelled" {
		t.Errorf("order-1 is %q", s)
	}
	// The row that the person is in stays as it is, struck through, until the focus leaves.
	p.await("the row marked", `document.activeElement.closest("tr.gone") && document.activeElement.ariaDisabled === "true"`)
	p.press(kb.Tab)
	p.await("the row gone", `document.querySelectorAll("tbody tr").length === 1`)
	p.awaitText("tbody", "order-2")

	// Another has cancelled it meanwhile: that is said.
	p.click(`[aria-label="Cancel order-2"]`)
	p.await("the dialog", `document.querySelector("dialog").open`)
	if out, code := w.run(t, "cancel", "order-2"); code != 0 {
		t.Fatal(out)
	}
	p.click("#dialog-yes")
	p.awaitText("#notice", "Too late to cancel order-2: it is cancelled.")
}

// TestKeyboard cancels a message without a mouse.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	chromium(t)
	w := newWorld(t)
	w.schedule(t, map[string]any{"id": "by-keys", "target": "nats://orders.timeout", "delay": "1h", "payload": "x"})
	p := w.open(t, "#/upcoming")
	p.awaitText("tbody", "by-keys")

	p.press(kb.Tab)
	if at := p.eval("document.activeElement.id"); at != "skip" {
		t.Errorf("the first Tab leads to %q", at)
	}
	p.press(kb.Enter)
	p.await("the content", `document.activeElement.id === "main" && location.hash === "#/upcoming"`)
	p.tabTo("the row", `$.tagName === "A" && $.textContent === "by-keys"`)
	p.press(kb.Enter)
	p.await("the message", `location.hash === "#/message/by-keys" && document.querySelector("#cancel")?.checkVisibility()`)
	p.tabTo("the button", `$.id === "cancel"`)
	if outline := p.eval("getComputedStyle(document.activeElement).outlineStyle"); outline != "solid" {
		t.Errorf("the focus is not seen: outline %s", outline)
	}
	p.press(kb.Enter)
	p.await("the dialog", `document.querySelector("dialog").open`)
	for range 5 {
		p.press(kb.Tab)
		if p.eval(`document.activeElement === document.body || document.querySelector("dialog").contains(document.activeElement)`) != "true" {
			t.Errorf("Tab leaves the dialog for %s", p.eval("document.activeElement.outerHTML"))
		}
	}
	p.tabTo("the answer", `$.id === "dialog-yes"`)
	p.press(kb.Enter)
	p.awaitText("#notice[role=status]", "Cancelled by-keys.")
	p.awaitText(".pill", "cancelled")
	if s := w.state(t, "by-keys"); s != "cancelled" {
		t.Errorf("by-keys is %q", s)
	}
	if p.eval("document.activeElement === document.body") == "true" {
		t.Error("the focus is lost")
	}
}

// TestManyPending goes through pages of 10,000 messages, and looks at what a refresh
// leaves alone.
func TestManyPending(t *testing.T) {
	t.Parallel()
	chromium(t)
	w := newWorld(t)
	ids := make([]string, 10000)
	for i := range ids {
		ids[i] = fmt.Sprintf("m-%05d", i)
	}
	w.fill(t, orders, ids, time.Now().Add(time.Hour))
	p := w.open(t, "#/upcoming?sink=nats")
	first := `document.querySelector("tbody td.id")?.textContent`
	p.awaitText("main", "10,000 pending")
	p.await("the first page", first+` === "m-00000" && document.querySelectorAll("tbody tr").length === 50`)

	next := `document.querySelector(".pager a:nth-child(3)")`
	for page := 1; page <= 3; page++ {
		p.await("a next page", next+".checkVisibility()")
		p.eval(next + ".click()")
		p.await("page", fmt.Sprintf(`%s === "m-%05d"`, first, page*50))
	}
	p.awaitText(".pager", "Page 4")
	link := p.eval("location.hash")
	p.click(".pager a:nth-child(2)")
	p.await("the page before", first+` === "m-00100"`)
	p.do(chromedp.NavigateBack())
	p.await("Back", first+` === "m-00150" && location.hash === `+quote(link))

	// Who is given the link sees the same page.
	other := w.open(t, link)
	other.await("the shared page", first+` === "m-00150"`)
	other.click(".pager a:nth-child(1)")
	other.await("the first page", first+` === "m-00000"`)

	// Focus, selection and scroll outlive refreshes, and so does a message that goes.
	p.eval(`(() => {
		const rows = document.querySelectorAll("tbody tr");
		rows[20].querySelector("a").focus();
		const range = document.createRange();
		range.selectNodeContents(rows[22].querySelector("td.target .data"));
		getSelection().removeAllRanges();
		getSelection().addRange(range);
		scrollTo(0, 500);
	})()`)
	if out, code := w.run(t, "cancel", "m-00160"); code != 0 {
		t.Fatal(out)
	}
	p.awaitFresh()
	if got := p.eval(`[document.activeElement.textContent, getSelection().toString(), scrollY].join(" ")`); got != "m-00170 nats://orders.timeout 500" {
		// The row above that is gone may have moved the page along with its content.
		if got = p.eval(`[document.activeElement.textContent, getSelection().toString(), scrollY > 300].join(" ")`); got != "m-00170 nats://orders.timeout true" {
			t.Errorf("after a refresh: %s", got)
		}
	}
	p.await("the cancelled one gone", `!document.querySelector("tbody").textContent.includes("m-00160")`)

	// An open dialog stays, and so does what it is about.
	p.eval(`document.querySelector('[aria-label="Cancel m-00170"]').click()`)
	p.await("the dialog", `document.querySelector("dialog").open`)
	p.awaitFresh()
	p.awaitText("dialog[open]", "m-00170")
	p.press(kb.Escape)

	// Paused, nothing is asked for.
	p.click("#pause")
	p.awaitText("#fresh", "Paused")
	p.await("quiet", `(performance.clearResourceTimings(), true)`)
	at := p.eval(`document.querySelector("#fresh").textContent`)
	w.schedule(t, map[string]any{"id": "meanwhile", "target": "nats://orders.timeout", "delay": "1m", "payload": "x"})
	p.click("#refresh")
	p.awaitText("main", "10,000 pending")
	p.click("#pause")
	p.await("it goes on", `!document.querySelector("#fresh").textContent.includes("Paused") && document.querySelector("#fresh").textContent !== `+quote(at))
}

func TestFindAndEmptyStates(t *testing.T) {
	t.Parallel()
	chromium(t)
	w := newWorld(t)
	p := w.open(t, "")
	p.awaitText(".empty", "bridge schedule --target")
	for hash, text := range map[string]string{
		"#/upcoming":             "bridge schedule --target nats://",
		"#/upcoming?sink=kafka":  "bridge schedule --target kafka://",
		"#/upcoming?sink=bogus":  "cannot be shown",
		"#/upcoming?after=bogus": "cannot be shown",
		"#/dead":                 "bridge dead list",
		"#/dead?reason=attempts": "There are no dead letters",
		"#/message/nobody":       "Nothing is known of this id",
		"#/dead/nobody":          "There is no dead letter of this id",
		"#/message/%":            "Lanes",
		"#nonsense":              "Lanes",
	} {
		p.eval("location.hash = " + quote(hash))
		p.awaitText("main", text)
	}

	w.schedule(t, map[string]any{"id": "order/7 ?#%é", "target": "nats://orders.timeout", "delay": "1h", "key": "k-7",
		"headers": map[string]string{"Content-Type": "application/json"}, "payload": map[string]any{"order": 7, "amount": 1}})
	w.publish(t, "no target", map[string]string{"Bridge-Delay": "1h"})
	p.do(chromedp.SendKeys(chromedp.CSS("#find-id"), "order/7 ?#%é"+kb.Enter))
	p.awaitText("h1", "order/7 ?#%é")
	p.awaitText(".pill", "pending")
	p.awaitText("main", "k-7")
	p.awaitText(".headers", "application/json")
	p.awaitText(".payload", "\n  \"amount\": 1")
	p.click(`[data-mode="hex"]`)
	p.awaitText(".payload", "00000000  7b 22")
	p.await("a countdown", `/^in 59 m|^in 1 h/.test(document.querySelector("dd time[data-at]").textContent)`)
	// The link says it all.
	again := w.open(t, p.eval("location.hash"))
	again.awaitText("h1", "order/7 ?#%é")
	again.awaitText(".pill", "pending")

	// Who knows only the place of a rejected message in its source finds it too.
	p.await("the rejected one", `!document.querySelector("#dead-count").hidden`)
	p.eval(`location.hash = "#/message/nats%3ABRIDGE_SCHEDULE%3A1"`)
	p.awaitText(".empty a", "rejected:nats:BRIDGE_SCHEDULE:1")
	p.click(`.empty a[href^="#/dead/"]`)
	p.awaitText(".pill", "rejected")
}
