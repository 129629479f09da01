package main

import (
	"context"
	"sync"
	"time"
)

// snapshot is an answer that takes a while to get, and may be a little old. Who
// asks for it waits for a bounded time, however long the answer takes; who asks
// while it is on its way waits for the same one. It is safe for concurrent use.
type snapshot[T any] struct {
	// ask gets the answer, with an error for its own limit in it.
	ask func(ctx context.Context) T
	// fresh is how old an answer may be, wait how long get waits for one, and
	// limit how long ask has.
	fresh, wait, limit time.Duration
	// brief, if set, says of an answer that it may change any moment, so that it
	// may be no older than briefly.
	brief func(T) bool

	mu     sync.Mutex
	answer T
	at     time.Time     // when it was asked for; zero: never
	asking chan struct{} // is closed when the answer on its way is there
}

const briefly = 50 * time.Millisecond

// get returns the answer, and false if there is none in time. ctx is not who
// waits but the program's: it ends what is on its way.
func (s *snapshot[T]) get(ctx context.Context) (answer T, ok bool) {
	s.mu.Lock()
	fresh := s.fresh
	if s.brief != nil && s.brief(s.answer) {
		fresh = min(fresh, briefly)
	}
	if !s.at.IsZero() && time.Since(s.at) < fresh && s.asking == nil {
		defer s.mu.Unlock()
		return s.answer, true
	}
	if s.asking == nil {
		s.asking = make(chan struct{})
		go s.refresh(ctx, s.asking)
	}
	asking := s.asking
	s.mu.Unlock()

	t := time.NewTimer(s.wait)
	defer t.Stop()
	select {
	case <-asking:
	case <-t.C:
		return answer, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.answer, true
}

func (s *snapshot[T]) refresh(ctx context.Context, asking chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	at := time.Now()
	answer := s.ask(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer, s.at, s.asking = answer, at, nil
	close(asking)
}

// settle waits for the answer that is on its way.
func (s *snapshot[T]) settle() {
	s.mu.Lock()
	asking := s.asking
	s.mu.Unlock()
	if asking != nil {
		<-asking
	}
}
