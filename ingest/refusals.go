package ingest

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"delaybridge"
)

// refusals tells the log of refused records: the first at once, and then one in
// refusalInterval with the number of those in between, since a producer that goes
// wrong goes wrong often. What was refused is all kept.
type refusals struct {
	log *zap.Logger

	mu     sync.Mutex
	last   time.Time
	unsaid int
}

const refusalInterval = 10 * time.Second

func (r *refusals) note(record *Record, request *delaybridge.Request, now time.Time) {
	r.mu.Lock()
	if !r.last.IsZero() && now.Sub(r.last) < refusalInterval {
		r.unsaid++
		r.mu.Unlock()
		return
	}
	unsaid := r.unsaid
	r.last, r.unsaid = now, 0
	r.mu.Unlock()
	fields := []zap.Field{
		zap.String("id", request.Message.ID), zap.Stringer("source", record.Origin), zap.String("error", request.Error),
	}
	if request.Op == delaybridge.OpSchedule {
		fields = append(fields, zap.Stringer("target", request.Message.Target))
	}
	if unsaid > 0 {
		fields = append(fields, zap.Int("others_since", unsaid))
	}
	r.log.Warn("request refused and kept", fields...)
}
