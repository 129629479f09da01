package ingest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rates{perSecond: 10}
		if n, wait := r.take("a", 25); n != 10 || wait != time.Second/2 {
			t.Errorf("a full bucket gave %d and %v", n, wait)
		}
		if n, _ := r.take("a", 1); n != 0 {
			t.Errorf("an empty one gave %d", n)
		}
		if n, _ := r.take("b", 4); n != 4 {
			t.Errorf("another source got %d of 4", n)
		}
		time.Sleep(500 * time.Millisecond)
		if n, _ := r.take("a", 25); n != 5 {
			t.Errorf("half a second gave %d", n)
		}
		began := time.Now()
		if !r.await(t.Context(), "a", 25) || time.Since(began) != 2500*time.Millisecond {
			t.Errorf("25 took %v", time.Since(began))
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if r.await(ctx, "a", 1) {
			t.Error("an ended wait says that it was worth it")
		}
	})
	none := &rates{}
	if n, wait := none.take("a", 1000); n != 1000 || wait != 0 || !none.await(t.Context(), "a", 1000) {
		t.Errorf("without a limit it gave %d and %v", n, wait)
	}
	slow := &rates{perSecond: 1}
	if _, wait := slow.take("a", 2); wait != time.Second {
		t.Errorf("one a second waits for %v", wait)
	}
}
