package scheduler

import (
	"time"

	"delaybridge"
)

// leaseUntil is the earliest end of a lease that is asked for from now on, by this
// host. It goes by the wall clock: while a machine is suspended the monotonic one
// may stand still, and a lease does not.
func (l *lane) leaseUntil() time.Time { return time.Now().Round(0).Add(l.cfg.Lease) }

// tooLate gives a batch up whose lease has run out before anything of it was
// published, as it has where the process was stopped for a while: the messages
// are another's by now, or free to be claimed. It reports whether it did. The
// queue has the last word, since it may be this host's clock that has jumped.
func (l *lane) tooLate(batch []delaybridge.Claim, until time.Time) bool {
	if time.Now().Round(0).Before(until) {
		return false
	}
	out := make([]outcome, len(batch))
	l.mu.Lock()
	for i := range batch {
		out[i] = outcome{claim: batch[i], until: until, verdict: giveBack}
		l.targets.drop(batch[i].Target.Name)
	}
	l.mu.Unlock()
	l.outcomes <- out
	return true
}
