package ingest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// gateInterval is how old an answer of the gate may be.
const gateInterval = time.Second

// gate holds sources back while the queue is full, or cannot be asked. Its
// answer is at most gateInterval old, so each process may take in one batch
// more than there is room for.
type gate struct {
	cfg Config

	mu     sync.Mutex
	asked  time.Time
	isOpen bool
	closed bool // an answer to the contrary was logged

	// reason is why it is not open; nil while it is. It is apart from the rest,
	// so that who asks for it waits for nobody.
	reason atomic.Pointer[string]
}

func (g *gate) open(ctx context.Context) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.asked.IsZero() && time.Since(g.asked) < gateInterval {
		return g.isOpen
	}
	reason := g.ask(ctx)
	if ctx.Err() != nil {
		return false // the answer says nothing about the queue
	}
	g.asked, g.isOpen = time.Now(), reason == ""
	if g.reason.Store(nil); !g.isOpen {
		g.reason.Store(&reason)
	}
	switch {
	case !g.isOpen && !g.closed:
		g.closed = true
		g.cfg.Log.Warn("not taking in any more until there is room", zap.String("reason", reason))
	case g.isOpen && g.closed:
		g.closed = false
		g.cfg.Log.Info("taking in again")
	}
	return g.isOpen
}

// ask returns why nothing more may be pulled, "" if it may.
func (g *gate) ask(ctx context.Context) string {
	p, err := g.cfg.Queue.Pressure(ctx)
	switch {
	case err != nil:
		return "the queue does not answer: " + err.Error()
	case g.cfg.MaxPending > 0 && p.Pending > g.cfg.MaxPending:
		return fmt.Sprintf("%d messages are pending, above the limit of %d (BRIDGE_MAX_PENDING)", p.Pending, g.cfg.MaxPending)
	case p.MemoryRatio > g.cfg.MaxMemoryRatio:
		return fmt.Sprintf("Redis uses %.0f%% of its maxmemory, above the limit of %.0f%%", 100*p.MemoryRatio, 100*g.cfg.MaxMemoryRatio)
	}
	return ""
}
