package scheduler

import "time"

// circuit keeps a lane from claiming while its broker cannot be reached: after a
// publish that found no connection it is open, and lets one message through at a
// time, ever more rarely, until one of them finds the broker again.
type circuit struct {
	failures int // in a row; 0: closed
	probeAt  time.Time
	probing  bool // the one message is on its way
}

// open notes a publish that found no connection, and reports whether the circuit
// was closed before. Failures of one moment count as one.
func (c *circuit) open(now time.Time) (opened bool) {
	if c.failures > 0 && now.Before(c.probeAt) {
		return false
	}
	c.failures++
	c.probeAt, c.probing = now.Add(probeAfter(c.failures)), false
	return c.failures == 1
}

// claimed notes that messages were claimed: behind an open circuit it is the one
// that is let through.
func (c *circuit) claimed() { c.probing = c.failures > 0 }

// close notes that the broker was reached, and reports whether the circuit was
// open before.
func (c *circuit) close() (closed bool) {
	closed = c.failures > 0
	*c = circuit{}
	return closed
}

// room is how many messages may be claimed now, of the free places there are;
// held are in hand.
func (c *circuit) room(now time.Time, free, held int) int {
	if c.failures == 0 {
		return free
	}
	if held > 0 || now.Before(c.probeAt) {
		return 0
	}
	return min(1, free)
}

// notBefore is the earliest time at which room can say more than 0, unless a
// signal comes first: zero for now.
func (c *circuit) notBefore(held int) time.Time {
	if c.failures == 0 {
		return time.Time{}
	}
	if held > 0 {
		return time.Now().Add(time.Hour)
	}
	return c.probeAt
}
