package console

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// tab is a tab of the browser that shows the console. The test fails for any error
// that the page makes: exceptions, console errors, what the policy refused.
type tab struct {
	t   *testing.T
	ctx context.Context
	url string

	mu       sync.Mutex
	problems []string
}

func (w *world) open(t *testing.T, hash string) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(chromium(t))
	p := &tab{t: t, ctx: ctx, url: w.url}
	t.Cleanup(func() {
		if t.Failed() {
			if text, err := chromedp.Run(ctx, chromedp.Evaluate[string]("document.body.innerText")); err == nil {
				t.Logf("%s showed:\n%.3000s", p.eval("location.href"), text)
			}
		}
		cancel()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, problem := range p.problems {
			t.Errorf("the page: %s", problem)
		}
	})
	if err := chromedp.Listen(ctx, p.heard); err != nil {
		t.Fatal(err)
	}
	// Tabs are used side by side, and each is to think that it is looked at.
	if _, err := chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}); err != nil {
		t.Fatal(err)
	}
	p.do(chromedp.EmulateViewport(1440, 900), chromedp.Navigate(w.url+"/"+hash))
	return p
}

// heard is told what happens in the page.
func (p *tab) heard(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		p.problems = append(p.problems, fmt.Sprintf("exception: %s %+v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception))
	case *runtime.EventConsoleAPICalled:
		args, _ := json.Marshal(e.Args)
		p.problems = append(p.problems, fmt.Sprintf("console.%s: %s", e.Type, args))
	case *log.EventEntryAdded:
		// An answer that is no success is noted by the browser, and no fault of the page's.
		if e.Entry.Source != "network" {
			p.problems = append(p.problems, fmt.Sprintf("%s: %s (%s)", e.Entry.Level, e.Entry.Text, e.Entry.URL))
		}
	}
}

func (p *tab) do(steps ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		p.t.Fatal(err)
	}
}

// eval returns the value of an expression as text.
func (p *tab) eval(expression string) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[string]("String("+expression+")"))
	if err != nil {
		p.t.Fatalf("%s: %v", expression, err)
	}
	return v
}

// await waits until an expression is true.
func (p *tab) await(what, expression string) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); p.eval("Boolean("+expression+")") != "true"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("not in time: %s (%s)", what, expression)
		}
	}
}

// awaitText waits until an element shows a text.
func (p *tab) awaitText(selector, text string) {
	p.t.Helper()
	p.await(fmt.Sprintf("%s with %q", selector, text), fmt.Sprintf("document.querySelector(%s)?.textContent.includes(%s)", quote(selector), quote(text)))
}

// click clicks an element with the mouse, once it is there to be clicked.
func (p *tab) click(selector string) {
	p.t.Helper()
	p.await(selector+" to click", fmt.Sprintf("document.querySelector(%s)?.checkVisibility()", quote(selector)))
	p.do(chromedp.Click(chromedp.CSS(selector)))
}

// press presses keys, one after the other.
func (p *tab) press(keys ...string) {
	p.t.Helper()
	for _, key := range keys {
		p.do(chromedp.KeyEvent(key))
	}
}

// tabTo presses Tab until what is wanted has the focus.
func (p *tab) tabTo(what, expression string) {
	p.t.Helper()
	for range 60 {
		p.press(kb.Tab)
		if p.eval("Boolean("+strings.ReplaceAll(expression, "$", "document.activeElement")+")") == "true" {
			return
		}
	}
	p.t.Fatalf("Tab does not reach %s; it is at %s", what, p.eval("document.activeElement.outerHTML"))
}

// awaitFresh has everything asked for again, and waits until the page has shown it:
// the next question comes only after that.
func (p *tab) awaitFresh() {
	p.t.Helper()
	asked := `performance.getEntriesByType("resource").filter((e) => e.name.endsWith("/v1/stats")).length`
	p.eval(`(performance.setResourceTimingBufferSize(100000), window.asked = ` + asked + `)`)
	p.await("two refreshes", `(document.dispatchEvent(new Event("changed")), `+asked+` >= window.asked + 3)`)
}

// quote writes a string for JavaScript.
func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}
