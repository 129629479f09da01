package scheduler

import "time"

// PostponedFor is the longest that a message is put off, without an attempt, whose
// target is slow to answer.
const PostponedFor = postponeFor + time.Second

// Work is what a lane has done and has in hand, for one who waits for its end.
type Work struct {
	// Taken counts the messages that it has claimed so far.
	Taken int64
	// Busy says that it holds messages, or is about to claim some.
	Busy bool
}

// Work returns the work of one of the lanes. Two equal answers that say that it
// is not busy mean that it claimed nothing in between. It may be called at any
// time, by any goroutine.
func (s *Scheduler) Work(lane string) Work {
	l := s.lanes[lane]
	if l == nil {
		return Work{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return Work{Taken: l.taken, Busy: l.claiming || l.held > 0}
}

// Settled counts what became of claims, once the queue has it.
type Settled struct {
	// Delivered are acknowledged, Retried are due again later as failed attempts,
	// Released are due again without one, and Dead are dead letters.
	Delivered, Retried, Released, Dead int
}

// count adds an outcome that the queue has taken.
func (s *Settled) count(v verdict) {
	switch v {
	case confirmed:
		s.Delivered++
	case tryAgain:
		s.Retried++
	case giveBack, postpone:
		s.Released++
	case bury, expire:
		s.Dead++
	}
}

// settledWere tells who asked for it.
func (l *lane) settledWere(s Settled) {
	if l.cfg.Settled != nil && s != (Settled{}) {
		l.cfg.Settled(l.name, s)
	}
}
