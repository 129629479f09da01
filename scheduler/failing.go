package scheduler

import (
	"go.uber.org/zap"

	"delaybridge"
)

// failingMost is how many targets are watched for the log at a time: names come
// from messages, and neither the log nor the memory may grow with them.
const failingMost = 100

// failing knows the targets whose messages fail and are tried again, so that the
// log tells of each once when that begins and once when it ends.
type failing map[string]bool

// note takes in an outcome and returns what the log is to say of it, if anything.
func (f failing) note(target delaybridge.Target, err error) (say string) {
	class := delaybridge.ClassOf(err)
	switch {
	case err == nil && f[target.Name]:
		delete(f, target.Name)
		return "target takes messages again"
	case err == nil, class == delaybridge.ClassUnavailable, class == delaybridge.ClassPermanent:
		// The circuit and the dead letters tell of these.
	case !f[target.Name] && len(f) < failingMost:
		f[target.Name] = true
		return "target does not take messages, they are tried again"
	}
	return ""
}

// tell logs what note has returned.
func (l *lane) tell(say string, o *outcome) {
	if o.err == nil {
		l.log.Info(say, zap.Stringer("target", o.claim.Target))
		return
	}
	l.log.Warn(say, zap.Stringer("target", o.claim.Target), zap.Stringer("class", delaybridge.ClassOf(o.err)),
		zap.Int("attempts", o.claim.Failed+1), zap.Int("max_attempts", l.cfg.MaxAttempts), zap.Error(o.err))
}
