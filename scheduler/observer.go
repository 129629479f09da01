package scheduler

import (
	"time"

	"delaybridge"
)

// Observer counts what a scheduler does, for metrics. It is called from several
// goroutines, from some with a lock held, and so must be quick.
type Observer interface {
	// Published is told the results of one publish.
	Published(lane string, results Results)
	// Delivered is told, for each message of one publish that was confirmed, how
	// long after it was first due that was. It must not keep the slice.
	Delivered(lane string, late []time.Duration)
	// LeasesExpired is told how many leases a claim found to have run out.
	LeasesExpired(lane string, n int)
	// Circuit is told that a lane's broker became unavailable, or available again.
	Circuit(lane string, open bool)
	// Wiped is told that Redis has lost the queue's data.
	Wiped()
	// DeadTrimmed is told how many dead letters were dropped by age, Repaired how
	// many messages had fallen out of the queue's index.
	DeadTrimmed(n int)
	Repaired(n int)
}

// Results counts what became of the messages of one publish.
type Results struct {
	// Confirmed were taken by the broker.
	Confirmed int
	// Failed were not, by class; Retried are those of them that are tried again as
	// failed attempts: the others are handed back, or dead letters.
	Failed, Retried [delaybridge.Classes]int
}

// observe counts the outcomes of one publish, all at the moment when it returned.
func (l *lane) observe(out []outcome, now time.Time) {
	if l.cfg.Observe == nil {
		return
	}
	var r Results
	late := make([]time.Duration, 0, len(out))
	for i := range out {
		o := &out[i]
		if o.err == nil {
			r.Confirmed++
			late = append(late, now.Sub(o.claim.Due))
			continue
		}
		class := delaybridge.ClassOf(o.err)
		r.Failed[class]++
		if o.verdict == tryAgain {
			r.Retried[class]++
		}
	}
	l.cfg.Observe.Published(l.name, r)
	if len(late) > 0 {
		l.cfg.Observe.Delivered(l.name, late)
	}
}
