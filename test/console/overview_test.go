package console

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// cell is the text of a lane's cell, by its column.
func cell(lane, column string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("tbody tr")].find((r) => r.cells[0].textContent === %s)?.querySelector('[data-label=%s]').textContent`, quote(lane), quote(column))
}

func TestOverview(t *testing.T) {
	t.Parallel()
	chromium(t)
	w := newWorld(t)
	p := w.open(t, "")
	p.await("the lane", cell("nats", "State")+` === "Flowing"`)
	p.await("the other", cell("kafka", "State")+` === "Not served here"`)
	for i := range 20 {
		w.schedule(t, map[string]any{"id": fmt.Sprintf("soon-%d", i), "target": "nats://orders.timeout", "delay": "100ms", "payload": "x"})
	}
	w.schedule(t, map[string]any{"id": "far", "target": "nats://orders.timeout", "delay": "2h", "payload": "x"})
	p.await("a rate", `parseFloat(`+cell("nats", "Delivered/s here")+`) > 0`)
	p.await("its lateness", cell("nats", "Lateness p99 here")+`.startsWith("≤ ")`)
	p.await("the far one", cell("nats", "Due in > 1 h")+` === "1" && `+cell("nats", "Pending")+` === "1"`)
	p.await("the countdown", cell("nats", "Next due")+`.startsWith("in 1 h 59 m")`)
	p.await("the source", `[...document.querySelectorAll("td")].some((c) => c.textContent === "api")`)
	p.awaitText("main", "This process is the one that answered")

	// NATS goes away: the lane says so in words, and comes back by itself.
	w.nats.Stop()
	w.schedule(t, map[string]any{"id": "waits", "target": "nats://orders.timeout", "delay": "0s", "payload": "x"})
	p.await("the open circuit", cell("nats", "State")+` === "Circuit open"`)
	p.await("what waits", cell("nats", "Overdue")+`.startsWith("1 (")`)
	w.nats.Start(t)
	p.await("it flows again", cell("nats", "State")+` === "Flowing" && `+cell("nats", "Overdue")+` === "0"`)
}

// TestIngestHeld: that the sources are not read is said where somebody looks.
func TestIngestHeld(t *testing.T) {
	t.Parallel()
	chromium(t)
	w := newWorld(t, "MAX_PENDING=1")
	for _, id := range []string{"one", "two"} {
		w.schedule(t, map[string]any{"id": id, "target": "nats://orders.timeout", "delay": "1h", "payload": "x"})
	}
	// A pull that is open would still be served: the next process opens none.
	w.kill()
	w.serve(t)
	p := w.open(t, "")
	p.awaitText(".troubles", "2 messages are pending, above the limit of 1 (BRIDGE_MAX_PENDING)")
	w.redis.Client(t).FlushAll(context.Background())
	p.await("there is room", `document.querySelectorAll(".troubles li").length === 0`)
}

func TestConnectionLost(t *testing.T) {
	t.Parallel()
	chromium(t)
	w := newWorld(t)
	w.schedule(t, map[string]any{"id": "stays", "target": "nats://orders.timeout", "delay": "1h", "payload": "x"})
	p := w.open(t, "#/upcoming")
	p.awaitText("tbody", "stays")

	w.redis.Kill()
	p.awaitText("#banner[role=alert]", "The bridge answers with an error")
	p.awaitText("#banner", "What is shown is of ")
	p.awaitText("tbody", "stays")
	// What is asked for now is not said to be done.
	p.click(`[aria-label="Cancel stays"]`)
	p.click("#dialog-yes")
	p.awaitText("#notice", "It is safe to try again.")
	w.redis.Start(t)
	p.await("the banner gone", `document.querySelector("#banner").textContent === ""`)
	p.awaitText("tbody", "stays")

	w.kill()
	p.awaitText("#banner", "Connection lost")
}

func TestToken(t *testing.T) {
	t.Parallel()
	chromium(t)
	const token = "a-token-of-32-characters-or-more"
	w := newWorld(t, "API_TOKEN="+token)
	p := w.open(t, "#/dead?reason=expired")
	p.awaitText(".signin", "BRIDGE_API_TOKEN")
	p.await("the focus in the field", `document.activeElement.id === "token" && !document.querySelector("#main").checkVisibility()`)
	p.press("wrong", kb.Enter)
	p.awaitText("#token-error", "does not take this token")
	p.press(token, kb.Enter)
	p.await("the view that was asked for", `document.querySelector("#reason")?.checkVisibility() && document.querySelector("#reason").value === "expired"`)
	p.awaitText("main", "There are no dead letters.")
	if kept := p.eval(`JSON.stringify([{...sessionStorage}, {...localStorage}, document.cookie])`); kept != `[{"bridge.token":"`+token+`"},{},""]` {
		t.Errorf("kept: %s", kept)
	}
	p.do(chromedp.Reload())
	p.awaitText("main", "There are no dead letters.")
	p.click("#sign-out")
	p.awaitText(".signin", "BRIDGE_API_TOKEN")
	if kept := p.eval(`JSON.stringify({...sessionStorage})`); kept != "{}" {
		t.Errorf("kept after signing out: %s", kept)
	}
}

func TestTheme(t *testing.T) {
	t.Parallel()
	chromium(t)
	w := newWorld(t)
	p := w.open(t, "")
	ground := `getComputedStyle(document.body).backgroundColor`
	for _, theme := range []string{"dark", "light"} {
		p.do(chromedp.SendKeys(chromedp.CSS("#theme"), theme))
		p.await(theme, `document.documentElement.dataset.theme === `+quote(theme))
		colour := p.eval(ground)
		p.do(chromedp.Reload())
		if after := p.eval(ground); after != colour {
			t.Errorf("%s: %s, and %s after a reload", theme, colour, after)
		}
	}
	// Narrow, nothing has to be scrolled sideways.
	w.schedule(t, map[string]any{"id": strings.Repeat("w", 256), "target": "nats://orders." + strings.Repeat("t", 200), "delay": "1h", "payload": strings.Repeat("p", 2000)})
	p.do(chromedp.EmulateViewport(390, 844, chromedp.EmulateMobile))
	for _, hash := range []string{"#/", "#/upcoming", "#/dead", "#/message/" + strings.Repeat("w", 256)} {
		p.eval("location.hash = " + quote(hash))
		p.await("all in sight", `!document.querySelector("main [aria-busy]") && document.documentElement.scrollWidth <= 390`)
	}
}

// TestFiles asks for the page's files as a browser and as an attacker would.
func TestFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "API_TOKEN=a-token-of-32-characters-or-more")
	ask := func(method, path, etag string) *http.Response {
		t.Helper()
		r, err := http.NewRequest(method, w.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if etag != "" {
			r.Header.Set("If-None-Match", etag)
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp
	}
	for path, mediaType := range map[string]string{
		"/": "text/html; charset=utf-8", "/console/app.js": "text/javascript; charset=utf-8",
		"/console/console.css": "text/css; charset=utf-8", "/console/icon.svg": "image/svg+xml",
	} {
		resp := ask(http.MethodGet, path, "")
		for name, want := range map[string]string{
			"Content-Type": mediaType, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
		} {
			if got := resp.Header.Get(name); got != want || resp.StatusCode != http.StatusOK {
				t.Errorf("%s: %d, %s is %q, want %q", path, resp.StatusCode, name, got, want)
			}
		}
		policy := resp.Header.Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self'",
			"frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"} {
			if !strings.Contains(policy, part) {
				t.Errorf("%s: the policy lacks %s: %s", path, part, policy)
			}
		}
		if strings.Contains(policy, "unsafe") {
			t.Errorf("%s: %s", path, policy)
		}
		if again := ask(http.MethodGet, path, resp.Header.Get("ETag")); again.StatusCode != http.StatusNotModified {
			t.Errorf("%s: what the browser has is sent again: %d", path, again.StatusCode)
		}
	}
	for _, row := range []struct {
		method, path string
		status       int
	}{
		{http.MethodPost, "/", http.StatusMethodNotAllowed},
		{http.MethodHead, "/", http.StatusOK},
		{http.MethodGet, "/console/", http.StatusNotFound},
		{http.MethodGet, "/console/index.html", http.StatusNotFound},
		{http.MethodGet, "/console/..%2fconsole.go", http.StatusNotFound},
		{http.MethodGet, "/index.php", http.StatusNotFound},
		{http.MethodGet, "/v1/stats", http.StatusUnauthorized},
	} {
		if resp := ask(row.method, row.path, ""); resp.StatusCode != row.status {
			t.Errorf("%s %s: %d, want %d", row.method, row.path, resp.StatusCode, row.status)
		}
	}
}
