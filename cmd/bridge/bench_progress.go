package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// counter counts from several goroutines.
type counter struct{ n atomic.Int64 }

func (c *counter) add(n int64)   { c.n.Add(n) }
func (c *counter) store(n int64) { c.n.Store(n) }
func (c *counter) load() int64   { return c.n.Load() }

// progressBar draws how far a stage is, again and again until it is stopped.
type progressBar struct {
	end     chan struct{}
	drawing sync.WaitGroup
	once    sync.Once
}

// progress shows a bar on stderr if that is a terminal.
func (b *benchRun) progress(stage string, total int, done *counter) *progressBar {
	bar := &progressBar{end: make(chan struct{})}
	if stage == "" || !isTerminal(b.stderr) {
		return bar
	}
	began := time.Now()
	bar.drawing.Go(func() {
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			drawBar(b.stderr, stage, done.load(), int64(total), time.Since(began))
			select {
			case <-tick.C:
			case <-bar.end:
				fmt.Fprint(b.stderr, "\r\x1b[K")
				return
			}
		}
	})
	return bar
}

// stop takes the bar away. More than one stop is one.
func (p *progressBar) stop() {
	p.once.Do(func() { close(p.end) })
	p.drawing.Wait()
}

func drawBar(w io.Writer, stage string, done, total int64, took time.Duration) {
	const width = 30
	part := min(1, float64(done)/float64(max(total, 1)))
	full := int(part * width)
	fmt.Fprintf(w, "\r\x1b[K%-9s[%s%s] %3.0f%%  %s of %s  %s/s", stage, strings.Repeat("#", full), strings.Repeat(".", width-full),
		100*part, grouped(done), grouped(total), grouped(int64(float64(done)/max(took.Seconds(), 0.001))))
}

// grouped writes 1234567 as 1,234,567.
func grouped(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
