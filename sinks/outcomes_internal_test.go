package sinks

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Who takes a part may be slow: the timeout holds all the same, and nothing is
// sent after it.
func TestPartThatIsTakenSlowlyDelaysNoTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = time.Second
		unsent := errors.New("not sent in time")
		o := newOutcomes(2)
		sentLate := make(chan bool, 1)
		run := func(context.Context) {
			o.send(0)
			o.settle(0, nil)
			time.Sleep(2 * timeout) // a connection that takes no bytes
			sentLate <- o.send(1)
		}
		late := func() (sentErr, unsentErr error) { return errors.New("no answer"), unsent }
		var told []int
		errs := o.awaitParts(t.Context(), timeout, run, late, func(indexes []int, _ []error) {
			told = append(told, indexes...)
			time.Sleep(5 * timeout)
		})
		if <-sentLate {
			t.Error("a message may be sent after the timeout")
		}
		if errs[0] != nil || !errors.Is(errs[1], unsent) {
			t.Errorf("outcomes %v", errs)
		}
		// The second may have a part of its own, or be left for the end.
		rest, _ := o.hand()
		if all := append(told, rest...); !slices.Equal(all, []int{0, 1}) {
			t.Errorf("told of %v, and of %v at the end", told, rest)
		}
	})
}
