package scheduler

import "time"

// A target that does not answer must not fill its lane.
const (
	// slowAfter is how long a target may leave everything sent to it unanswered
	// before what it holds no longer takes up the lane's room.
	slowAfter = time.Second
	// suspectLimit is how many messages for such a target are in hand at a time
	// from then on: enough to notice that it answers again.
	suspectLimit = 16
	// postponeFor is the longest that what goes beyond the limit is put off;
	// each message is put off for a random part of it.
	postponeFor = 10 * time.Second
	// forgetAfter is when a target that was not tried any more is trusted again.
	forgetAfter = time.Minute
)

// targets knows, for each target with anything in hand or not answering, how it
// is doing.
type targets map[string]*target

type target struct {
	held    int
	since   time.Time // the last answer, or when the first message in hand was sent
	suspect bool      // the last publish had no answer
}

func (t *target) slow(now time.Time) bool {
	return t.held > 0 && (t.suspect || now.Sub(t.since) > slowAfter)
}

// admit counts one more message in hand, unless the target is to be spared, and
// says whether the last one had no answer.
func (ts targets) admit(name string, now time.Time) (admitted, suspect bool) {
	t := ts[name]
	if t == nil {
		t = &target{}
		ts[name] = t
	}
	if t.held >= suspectLimit && t.slow(now) {
		return false, t.suspect
	}
	if t.held == 0 {
		t.since = now
	}
	t.held++
	return true, t.suspect
}

// done counts one message less in hand.
func (ts targets) done(name string, answered bool, now time.Time) {
	t := ts[name]
	if t == nil {
		return
	}
	t.held--
	t.suspect = !answered
	if answered {
		t.since = now
	}
	if t.held <= 0 && answered {
		delete(ts, name)
	}
}

// drop counts one message less in hand, of which nothing was sent.
func (ts targets) drop(name string) {
	t := ts[name]
	if t == nil {
		return
	}
	if t.held--; t.held <= 0 && !t.suspect {
		delete(ts, name)
	}
}

// stuck is how much is in hand for targets that do not answer.
func (ts targets) stuck(now time.Time) (n int) {
	for _, t := range ts {
		if t.slow(now) {
			n += t.held
		}
	}
	return n
}

// forget drops targets that were not tried for long, so that the map cannot grow
// for ever.
func (ts targets) forget(now time.Time) {
	for name, t := range ts {
		if t.held <= 0 && now.Sub(t.since) > forgetAfter {
			delete(ts, name)
		}
	}
}
