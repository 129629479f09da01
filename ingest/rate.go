package ingest

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// rates holds each source to Config.Rate messages a second in this process, with
// bursts of one second's worth. Nothing is dropped: what is too much now stays in
// its source. The zero value has no limit. It is safe for concurrent use.
type rates struct {
	perSecond int

	mu      sync.Mutex
	sources map[string]*rate.Limiter // streams and topics, which the settings bound
}

func (r *rates) of(source string) *rate.Limiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.sources[source]
	if l == nil {
		l = rate.NewLimiter(rate.Limit(r.perSecond), r.perSecond)
		if r.sources == nil {
			r.sources = make(map[string]*rate.Limiter)
		}
		r.sources[source] = l
	}
	return l
}

// take returns how many of n messages a source may bring now, and how long to wait
// for some others where that is not all.
func (r *rates) take(source string, n int) (allowed int, wait time.Duration) {
	if r.perSecond == 0 || n == 0 {
		return n, 0
	}
	l, now := r.of(source), time.Now()
	allowed = max(0, min(n, int(l.TokensAt(now))))
	if !l.AllowN(now, allowed) {
		allowed = 0 // another goroutine was faster
	}
	if allowed < n {
		wait = max(time.Second/2, time.Second/time.Duration(r.perSecond))
	}
	return allowed, wait
}

// await waits until a source may bring n messages; false says that ctx ended
// first.
func (r *rates) await(ctx context.Context, source string, n int) bool {
	if r.perSecond == 0 {
		return true
	}
	l := r.of(source)
	for n > 0 {
		step := min(n, r.perSecond)
		if l.WaitN(ctx, step) != nil {
			return false
		}
		n -= step
	}
	return true
}
