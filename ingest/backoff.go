package ingest

import (
	"context"
	"math/rand/v2"
	"time"
)

// backoff spaces tries out: min, twice that, and so on up to max, each shortened
// by chance to no less than half, so that processes do not come in step.
type backoff struct {
	min, max time.Duration
	tries    int // failed so far
}

// wait pauses after a failed try. It returns false once ctx has ended.
func (b *backoff) wait(ctx context.Context) bool { return sleep(ctx, b.pause()) }

// pause returns how long to wait after that many failed tries.
func (b *backoff) pause() time.Duration {
	d := b.max
	if shift := max(b.tries-1, 0); shift < 32 && b.min<<shift>>shift == b.min {
		d = min(b.max, b.min<<shift)
	}
	return d/2 + rand.N(d/2+1)
}

// sleep pauses for d. It returns false once ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return ctx.Err() == nil
	}
}
