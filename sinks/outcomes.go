package sinks

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// outcomes collects what became of the messages of one batch. Acks, errors, a
// broken connection and the deadline all settle messages, in any order and from
// any goroutine; the first word about a message counts.
type outcomes struct {
	done chan struct{} // closed when every message is settled

	mu   sync.Mutex
	errs []error
	step []step
	left int
}

// step is how far a message has come.
type step uint8

const (
	unsent  step = iota // the broker has not been given a byte of it
	sent                // it may have been given to the broker
	settled             // its outcome is known
	handed              // and was handed out
)

func newOutcomes(n int) *outcomes {
	o := &outcomes{done: make(chan struct{}), errs: make([]error, n), step: make([]step, n), left: n}
	if n == 0 {
		close(o.done)
	}
	return o
}

// send marks message i as sent. It reports false if the message is settled
// already and must not be sent any more.
func (o *outcomes) send(i int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.step[i] != unsent {
		return false
	}
	o.step[i] = sent
	return true
}

// settle sets the outcome of message i, unless it has one.
func (o *outcomes) settle(i int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.settleLocked(i, err)
}

// settleSent settles the messages that are sent and not settled.
func (o *outcomes) settleSent(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, s := range o.step {
		if s == sent {
			o.settleLocked(i, err)
		}
	}
}

// recall takes back send for a message of which the broker cannot make use.
func (o *outcomes) recall(i int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.step[i] == sent {
		o.step[i] = unsent
	}
}

// await starts run, which is to settle the messages and is told by its context
// to end, and returns the outcomes once all are settled, timeout has passed or
// ctx has ended, whether run has returned or not. Messages that the timeout
// finds sent fail with the first error of late, others with the second.
func (o *outcomes) await(ctx context.Context, timeout time.Duration, run func(context.Context), late func() (sentErr, unsentErr error)) []error {
	return o.awaitParts(ctx, timeout, run, late, nil)
}

// partsEvery is how long outcomes may be kept back by messages that have none.
const partsEvery = 20 * time.Millisecond

// awaitParts is await, which hands the outcomes of some messages to part, if that
// is not nil, while those of others take longer. What it returns is of all.
func (o *outcomes) awaitParts(
	ctx context.Context, timeout time.Duration, run func(context.Context), late func() (sentErr, unsentErr error), part func(indexes []int, errs []error),
) []error {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	go run(limited)
	finish := func() []error {
		switch {
		case o.isDone():
			return o.finish(nil, nil) // nothing is left
		case ctx.Err() != nil:
			err := fmt.Errorf("gave up waiting for the broker: %w", context.Cause(ctx))
			return o.finish(err, err)
		}
		return o.finish(late())
	}
	var tick <-chan time.Time
	if part != nil {
		t := time.NewTicker(partsEvery)
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-o.done:
			return finish()
		case <-limited.Done():
			return finish()
		case <-tick:
			if indexes, errs := o.hand(); len(indexes) > 0 {
				// Who takes the part may be slow. Nothing is to be sent after the timeout
				// all the same: its lease may be over by then.
				stop := context.AfterFunc(limited, func() { finish() })
				part(indexes, errs)
				stop()
			}
		}
	}
}

// hand returns the messages that are settled and were not handed out yet, with
// their outcomes.
func (o *outcomes) hand() (indexes []int, errs []error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, s := range o.step {
		if s == settled {
			o.step[i] = handed
			indexes, errs = append(indexes, i), append(errs, o.errs[i])
		}
	}
	return indexes, errs
}

// finish settles all that is left, what was sent and what was not apart, and
// returns the outcomes. Nothing changes them, and nothing is sent, after it.
func (o *outcomes) finish(sentErr, unsentErr error) []error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, s := range o.step {
		switch s {
		case sent:
			o.settleLocked(i, sentErr)
		case unsent:
			o.settleLocked(i, unsentErr)
		}
	}
	return o.errs
}

func (o *outcomes) settleLocked(i int, err error) {
	if o.step[i] >= settled {
		return
	}
	o.step[i], o.errs[i] = settled, err
	if o.left--; o.left == 0 {
		close(o.done)
	}
}

func (o *outcomes) isDone() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}
