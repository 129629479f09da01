package scheduler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"delaybridge"
)

// verdict is what is to become of a claim.
type verdict uint8

const (
	confirmed verdict = iota // ack
	tryAgain                 // retry
	giveBack                 // release
	postpone                 // release, for a little later
	bury                     // a dead letter
	expire                   // a dead letter, past its Bridge-Expires-After
)

// outcome is a claim on its way to being settled.
type outcome struct {
	claim   delaybridge.Claim
	until   time.Time // see leaseUntil; settling is not worth while any more then
	verdict verdict
	err     error
	after   time.Duration // of tryAgain
	reason  delaybridge.Reason

	settleErr error // why it could not be settled yet
}

// partSink is a sink that may be able to publish a batch for many targets so that
// none of them holds up the outcomes of others.
type partSink interface {
	delaybridge.Sink
	// InParts reports whether it can do so for a lane.
	InParts(lane string) bool
	// PublishParts publishes a batch, and calls part, never twice at a time and once
	// for each message in all, with the indexes of messages and their outcomes. Of
	// those that are confirmed it then reads nothing but the target any more.
	PublishParts(ctx context.Context, batch []delaybridge.Claim, part func(indexes []int, errs []error))
}

// deliver publishes one batch and passes on what became of each message.
func (l *lane) deliver(ctx context.Context, batch []delaybridge.Claim, until time.Time) {
	if l.tooLate(batch, until) {
		return
	}
	errs := l.sink.Publish(ctx, batch)
	returned := time.Now()
	delaybridge.Failpoint("confirmed")
	out := make([]outcome, len(batch))
	for i := range batch {
		err := errNoOutcome
		if i < len(errs) {
			err = errs[i]
		}
		out[i] = l.judge(batch[i], err, rand.Float64())
		out[i].until = until
	}
	l.passOn(out, returned)
}

// deliverParts is deliver, which passes on in parts.
func (l *lane) deliverParts(ctx context.Context, batch []delaybridge.Claim, until time.Time) {
	if l.tooLate(batch, until) {
		return
	}
	l.parts.PublishParts(ctx, batch, func(indexes []int, errs []error) {
		if len(indexes) == 0 {
			return
		}
		returned := time.Now()
		delaybridge.Failpoint("confirmed")
		out := make([]outcome, len(indexes))
		for n, i := range indexes {
			out[n] = l.judge(batch[i], errs[n], rand.Float64())
			out[n].until = until
			if errs[n] == nil {
				// The batch stays in memory until its last outcome: not what it carries.
				batch[i].Payload, batch[i].Key, batch[i].Headers = nil, nil, nil
			}
		}
		l.passOn(out, returned)
	})
}

// passOn tells of outcomes and hands them to the settler.
func (l *lane) passOn(out []outcome, returned time.Time) {
	l.note(out)
	l.observe(out, returned)
	l.outcomes <- out
}

var errNoOutcome = errors.New("the sink returned no outcome")

// judge decides what is to become of a claim after a publish.
func (l *lane) judge(c delaybridge.Claim, err error, random float64) outcome {
	o := outcome{claim: c, err: err}
	if err == nil {
		return o
	}
	class := delaybridge.ClassOf(err)
	switch {
	case class == delaybridge.ClassUnavailable:
		o.verdict = giveBack
	case class == delaybridge.ClassPermanent:
		o.verdict, o.reason = bury, delaybridge.ReasonPermanent
	case c.Failed+1 >= l.cfg.MaxAttempts:
		o.verdict, o.reason = bury, delaybridge.ReasonAttempts
	default:
		o.verdict = tryAgain
		o.after = retryAfter(l.cfg.RetryBase, l.cfg.RetryMax, c.Failed+1, random)
	}
	return o
}

// note tells the circuit and the targets how the broker behaved.
func (l *lane) note(out []outcome) {
	now := time.Now()
	reached, unreached := false, error(nil)
	type line struct {
		say string
		of  *outcome
	}
	var lines []line
	l.mu.Lock()
	for i := range out {
		if say := l.failing.note(out[i].claim.Target, out[i].err); say != "" {
			lines = append(lines, line{say, &out[i]})
		}
		class := delaybridge.ClassOf(out[i].err)
		answered := out[i].err == nil || class != delaybridge.ClassUnknown
		l.targets.done(out[i].claim.Target.Name, answered, now)
		switch {
		case class == delaybridge.ClassUnavailable:
			unreached = out[i].err
		case answered, l.circuit.probing:
			// What was let through and sent has found the broker, also where its
			// subject does not answer: that must not hold up all others.
			reached = true
		}
	}
	var opened, closed bool
	switch {
	case unreached != nil:
		opened = l.circuit.open(now)
	case reached:
		closed = l.circuit.close()
	}
	if (opened || closed) && l.cfg.Observe != nil {
		l.cfg.Observe.Circuit(l.name, opened) // under the lock, so that the last word is true
	}
	l.mu.Unlock()
	for _, line := range lines {
		l.tell(line.say, line.of)
	}
	if opened {
		l.log.Warn("broker is unavailable, holding its messages back", zap.Error(unreached))
	}
	if closed {
		l.log.Info("broker is available again")
	}
}

// settleAll settles outcomes until the channel is closed and nothing is left, or
// ctx ends. What Redis does not take is tried again while its lease lasts.
func (l *lane) settleAll(ctx context.Context) {
	var pending []outcome
	in := l.outcomes
	defer l.settling.Rest()
	for failures := 0; ; {
		l.settling.Beat()
		if failures > 0 {
			sleep(ctx, probeAfter(failures))
		} else if len(pending) == 0 {
			l.settling.Rest()
			select {
			case more, ok := <-in:
				if !ok {
					return
				}
				pending = more
			case <-ctx.Done():
			}
			l.settling.Beat()
		}
		pending, in = gather(pending, in)
		if ctx.Err() != nil {
			break
		}
		pending = l.settle(ctx, pending)
		switch {
		case len(pending) == 0 && in == nil:
			return
		case len(pending) == 0:
			if failures > 0 {
				l.log.Info("settling again")
			}
			failures = 0
		default:
			failures++
			if failures == 1 {
				l.log.Warn("cannot settle, trying on while the leases last",
					zap.Int("count", len(pending)), zap.Error(pending[0].settleErr))
			}
		}
	}
	// Publishers must be able to hand in what they have.
	l.settling.Rest()
	if in != nil {
		for range in {
		}
	}
}

// settleMost is the most that is gathered to be settled at a time, for the reason of
// claimMost: nearly all of it goes in one round trip.
const settleMost = 200

// gather adds what is ready to be settled, up to settleMost beside what is tried
// again, which may be of a shard that does not answer while others do. The channel
// it returns is nil once the other side has closed it.
func gather(pending []outcome, in chan []outcome) ([]outcome, chan []outcome) {
	most := len(pending) + settleMost
	for in != nil && len(pending) < most {
		select {
		case more, ok := <-in:
			if !ok {
				return pending, nil
			}
			pending = append(pending, more...)
		default:
			return pending, in
		}
	}
	return pending, in
}

// settle settles what it can, and returns what is to be tried again.
func (l *lane) settle(ctx context.Context, all []outcome) (again []outcome) {
	delaybridge.Failpoint("settling")
	var acks, releases []delaybridge.Claim
	var retries []delaybridge.Retry
	var burials []delaybridge.Burial
	var byAck, byRelease, byRetry, byBury []int
	for i := range all {
		o := &all[i]
		switch o.verdict {
		case confirmed:
			if acks == nil { // nearly all are
				acks, byAck = make([]delaybridge.Claim, 0, len(all)-i), make([]int, 0, len(all)-i)
			}
			acks, byAck = append(acks, o.claim), append(byAck, i)
		case giveBack:
			releases, byRelease = append(releases, o.claim), append(byRelease, i)
		case postpone:
			releases, byRelease = append(releases, l.postponed(o.claim)), append(byRelease, i)
		case tryAgain:
			retries = append(retries, delaybridge.Retry{
				Claim: o.claim, After: o.after,
				OutliveLease: delaybridge.ClassOf(o.err) == delaybridge.ClassUnknown,
				Error:        o.err.Error(),
			})
			byRetry = append(byRetry, i)
		case bury, expire:
			burials, byBury = append(burials, burialOf(o)), append(byBury, i)
		}
	}
	if len(releases) > 0 {
		delaybridge.Failpoint("releasing")
	}
	lost := 0
	var done Settled
	sift := func(indexes []int, errs []error) {
		l.settling.Beat()
		for n, i := range indexes {
			switch err := errs[n]; {
			case err == nil:
				done.count(all[i].verdict)
				l.report(&all[i])
			case errors.Is(err, delaybridge.ErrLeaseLost), time.Now().After(all[i].until):
				lost++
			default:
				all[i].settleErr = err
				again = append(again, all[i])
			}
		}
	}
	if len(acks) > 0 {
		sift(byAck, l.queue.Ack(ctx, acks))
	}
	if len(retries) > 0 {
		sift(byRetry, l.queue.Retry(ctx, retries))
	}
	if len(releases) > 0 {
		sift(byRelease, l.queue.Release(ctx, releases))
	}
	if len(burials) > 0 {
		sift(byBury, l.bury(ctx, burials))
	}
	if lost > 0 {
		l.log.Warn("leases were lost before they could be settled: the messages are or were delivered by another",
			zap.Int("count", lost))
	}
	l.settledWere(done)
	delaybridge.Failpoint("settled")
	l.giveUp(len(all)-len(again), sizeOfAll(all)-sizeOfAll(again))
	return again
}

// postponed returns the claim due a little later. It goes by the queue's clock at
// the claim, which the lease tells: this host's may be far from it.
func (l *lane) postponed(c delaybridge.Claim) delaybridge.Claim {
	claimed := time.UnixMilli(c.Lease.End).Add(-l.cfg.Lease)
	// Whole seconds, so that they are claimed together again.
	if at := claimed.Add(time.Second + rand.N(postponeFor)).Truncate(time.Second); at.After(c.Due) {
		c.Due = at
	}
	return c
}

// bury carries out burials whose copies are stored, and returns one error each.
func (l *lane) bury(ctx context.Context, burials []delaybridge.Burial) []error {
	delaybridge.Failpoint("burying")
	errs := l.storeCopies(ctx, burials)
	delaybridge.Failpoint("copied")
	var ready []delaybridge.Burial
	var of []int
	for i, err := range errs {
		if err == nil {
			ready, of = append(ready, burials[i]), append(of, i)
		}
	}
	if len(ready) > 0 {
		for n, err := range l.queue.Bury(ctx, ready) {
			errs[of[n]] = err
		}
	}
	delaybridge.Failpoint("buried")
	return errs
}

func sizeOfAll(out []outcome) (n int) {
	for i := range out {
		n += sizeOf(&out[i].claim)
	}
	return n
}

// giveUp makes room for n more, which hold that many bytes.
func (l *lane) giveUp(n, bytes int) {
	if n == 0 {
		return
	}
	l.mu.Lock()
	l.held -= n
	l.bytes -= bytes
	l.mu.Unlock()
	l.poke()
}

// report logs a dead letter.
func (l *lane) report(o *outcome) {
	if o.verdict == bury || o.verdict == expire {
		l.reportBurial(burialOf(o))
	}
}

func (l *lane) reportBurial(b delaybridge.Burial) {
	l.log.Warn("dead letter", zap.String("id", b.Claim.ID), zap.Stringer("target", b.Claim.Target),
		zap.String("reason", string(b.Reason)), zap.Int("attempts", b.Failed), zap.String("error", b.Error))
}

func burialOf(o *outcome) delaybridge.Burial {
	if o.verdict == expire {
		return delaybridge.Burial{
			Claim: o.claim, Reason: delaybridge.ReasonExpired, Failed: o.claim.Failed,
			Error: fmt.Sprintf("not delivered within %v of %s", o.claim.ExpiresAfter, o.claim.Due.UTC().Format("2006-01-02T15:04:05.000Z07:00")),
		}
	}
	return delaybridge.Burial{Claim: o.claim, Reason: o.reason, Failed: o.claim.Failed + 1, Error: o.err.Error()}
}
