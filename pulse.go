package delaybridge

import (
	"sync/atomic"
	"time"
)

// Pulse tells a loop that makes its turns from one that hangs. A loop beats once
// a turn, and before each call that may take long; it rests while it waits for
// something that need never happen. The zero Pulse rests. It is safe for
// concurrent use.
type Pulse struct {
	at atomic.Int64 // of the last beat, Unix nanoseconds; 0: it rests
}

// Beat says that the loop is at work, and gets on. A nil Pulse has nobody to tell.
func (p *Pulse) Beat() {
	if p != nil {
		p.at.Store(time.Now().UnixNano())
	}
}

// Rest says that the loop has nothing to do until it beats again.
func (p *Pulse) Rest() {
	if p != nil {
		p.at.Store(0)
	}
}

// Missed reports whether the loop is at work, and has not beaten for that long.
func (p *Pulse) Missed(d time.Duration) bool {
	at := p.at.Load()
	return at != 0 && time.Since(time.Unix(0, at)) > d
}
