package console

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/chromedp"

	"delaybridge/test/servers"
)

// What a message could hold to get into the page, or to look like what it is not.
const (
	markup   = `<img src=x onerror="document.title='pwned'"><script>document.title='pwned'</script>`
	script   = `javascript:document.title='pwned'`
	terminal = "\x1b[31mred\x1b]0;title\x07\x00\u009b2J"
	bidi     = "\u202egnp.exe\u202c\u2066x\u2069\u200b\u00a0\u2028"
)

// TestHostileMessages shows messages that were made to do harm: all of it is text,
// and what cannot be seen is made visible.
func TestHostileMessages(t *testing.T) {
	t.Parallel()
	chromium(t)
	w := newWorld(t)
	// Of what the id may hold, and 256 bytes of it.
	id := markup + "\u202egnp.exe\u200b" + script
	id += strings.Repeat("x", 256-len(id))
	payload := markup + terminal + bidi + script + "\n"
	payload += strings.Repeat("z", 1<<20-len(payload))
	w.schedule(t, map[string]any{
		"id": id, "delay": "1h", "key": markup + terminal, "payload": payload,
		"target":  `nats-core://orders.<img/src=x/onerror="document.title='pwned'"`,
		"headers": map[string]string{markup: "markup", "link": script, "terminal": terminal, "bidi": bidi},
	})
	// A refused one has in its error what it was refused for.
	w.publish(t, payload[:1<<10], map[string]string{"Bridge-Target": "nats://" + markup, "Bridge-Delay": markup, "X-Header": markup})

	p := w.open(t, "#/upcoming")
	harmless := func() {
		t.Helper()
		if got := p.eval(`document.querySelectorAll("main img, main script, main iframe, a[href^='javascript:']").length + " " + document.title`); strings.Contains(got, "pwned") || !strings.HasPrefix(got, "0 ") {
			t.Errorf("the page holds what came in a message: %s", got)
		}
		if got := p.eval(`/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069]/.exec(document.documentElement.textContent)?.[0]?.codePointAt(0)`); got != "undefined" {
			t.Errorf("the page shows the bare character %s", got)
		}
		if got := p.eval(`[...document.querySelectorAll("[title], [aria-label]")].some((e) => /[\u001b\u202e]/.test(e.title + e.ariaLabel))`); got != "false" {
			t.Error("a title or a label holds a bare control character")
		}
	}
	p.awaitText("tbody", `\u202egnp.exe\u200b`+script)
	p.awaitText("tbody", markup)
	harmless()
	p.click("td.id a")
	p.awaitText("h1", `\u202egnp.exe\u200b`)
	p.awaitText("main", `nats-core://orders.<img/src=x/onerror=`)
	p.awaitText(".fields", markup+`\u001b[31mred`)
	p.awaitText(".headers", script)
	p.awaitText(".headers", `\u001b[31mred\u001b]0;title\u0007\u0000\u009b2J`)
	p.awaitText(".headers", `\u202egnp.exe\u202c\u2066x\u2069\u200b\u00a0\u2028`)
	p.awaitText(".payload", `\u001b[31mred`)
	p.awaitText("main", "1.0 MiB (1,048,576 bytes), cut: the first 32 KiB are shown")
	if n := p.eval(`document.querySelector(".payload").textContent.length < 40000`); n != "true" {
		t.Error("the payload is not cut")
	}
	harmless()
	p.click(`[data-mode="hex"]`)
	p.awaitText(".payload", "3c 69 6d 67")
	harmless()

	// All of it can be had.
	dir := t.TempDir()
	if _, err := chromedp.CallBrowser(p.ctx, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{
		Behavior: browser.SetDownloadBehaviorBehaviorAllow, DownloadPath: dir,
	}); err != nil {
		t.Fatal(err)
	}
	p.click("#payload-download")
	var files []string
	if !servers.Eventually(func() bool {
		files, _ = filepath.Glob(filepath.Join(dir, "*.bin"))
		if len(files) != 1 {
			return false
		}
		content, err := os.ReadFile(files[0])
		return err == nil && string(content) == payload
	}) {
		entries, _ := os.ReadDir(dir)
		t.Errorf("the download is not the payload: %v", entries)
	}
	p.click("#payload-copy")
	p.awaitText("#payload-copy", "Copied")

	// The confirmation names it, and says no more.
	p.click("#cancel")
	p.awaitText("dialog[open]", `\u202egnp.exe\u200b`)
	harmless()
	p.click("#dialog-yes")
	p.awaitText("#notice", `\u202egnp.exe\u200b`)
	harmless()

	p.eval(`location.hash = "#/dead"`)
	p.awaitText("tbody", "rejected:nats:BRIDGE_SCHEDULE:1")
	harmless()
	p.click("td.id a")
	p.awaitText(".payload", `\u001b[31mred`)
	p.awaitText("main", "onerror")
	harmless()
}
