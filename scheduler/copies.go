package scheduler

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"delaybridge"
)

// copyOf returns the message that tells the dead target of a burial: due now,
// under an id of its own, everything else as it was. The burial of a copy has
// none, or an unreachable dead target would fill itself for ever.
func (l *lane) copyOf(b delaybridge.Burial) (delaybridge.Request, bool) {
	if l.cfg.DeadTarget == (delaybridge.Target{}) || delaybridge.IsDeadCopy(&b.Claim.Message, l.cfg.DeadTarget) {
		return delaybridge.Request{}, false
	}
	m := b.Claim.Message
	text := string(b.Reason) + ": " + m.Target.String() + ": " + b.Error
	headers := []delaybridge.Header{{Name: delaybridge.HeaderError, Value: []byte(delaybridge.ErrorText(text))}}
	for _, h := range m.Headers {
		if !strings.EqualFold(h.Name, delaybridge.HeaderError) {
			headers = append(headers, h)
		}
	}
	m.ID, m.Target, m.Headers = delaybridge.DeadCopyID(m.ID), l.cfg.DeadTarget, headers
	// The same however often this death is gone through, so that a crash in the
	// middle of it makes no second copy. A schedule has its own, and so has a replay.
	m.Position = delaybridge.DeadCopyPosition(m.Position)
	m.Due, m.ExpiresAfter = time.Now().Truncate(time.Millisecond), 0
	return delaybridge.Request{Op: delaybridge.OpSchedule, Message: m}, true
}

// storeCopies stores the copies of burials before these are carried out, so that
// a crash in between repeats both and loses neither. It returns one error for
// each burial.
func (l *lane) storeCopies(ctx context.Context, burials []delaybridge.Burial) []error {
	errs := make([]error, len(burials))
	var requests []delaybridge.Request
	var of []int
	for i, b := range burials {
		if r, ok := l.copyOf(b); ok {
			requests, of = append(requests, r), append(of, i)
		}
	}
	if len(requests) == 0 {
		return errs
	}
	for n, result := range l.queue.Store(ctx, requests) {
		errs[of[n]] = result.Err
	}
	return errs
}

// abandoned tells of messages that the queue has given up, since their leases
// ran out too often. They are dead letters already, so their copies are stored
// once, if they can be.
func (l *lane) abandoned(ctx context.Context, claims []delaybridge.Claim) {
	if len(claims) == 0 {
		return
	}
	burials := make([]delaybridge.Burial, len(claims))
	for i, c := range claims {
		burials[i] = delaybridge.Burial{
			Claim: c, Reason: delaybridge.ReasonAbandoned, Failed: c.Failed,
			Error: fmt.Sprintf("its lease ran out %d times", c.LostLeases),
		}
		l.reportBurial(burials[i])
	}
	for i, err := range l.storeCopies(ctx, burials) {
		if err != nil {
			l.log.Error("a dead letter has no copy at the dead target", zap.String("id", claims[i].ID), zap.Error(err))
		}
	}
}
