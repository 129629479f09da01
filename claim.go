package delaybridge

import "time"

// Claim is a message that this process alone may deliver until its lease ends.
// Only a claim can be acknowledged, retried, released or buried.
type Claim struct {
	Message
	Lease Lease
	// Failed counts the failed attempts so far, LostLeases the leases that ran
	// out unsettled: after either, a copy may have arrived already.
	Failed, LostLeases int
}

// Attempt is the number of this delivery: 1 is the first.
func (c *Claim) Attempt() int { return 1 + c.Failed + c.LostLeases }

// Lease is the queue's fencing token: a claim whose lease has run out, or has
// passed to another worker, can no longer settle the message. It is made by the
// queue and only carried by others.
type Lease struct {
	Lane  string
	Shard int
	End   int64  // Unix ms by the queue's clock
	Marks string // the positions behind the message, for its tombstone
}

// Ask is a scheduler's wish to claim from one shard.
type Ask struct {
	Shard int
	Limit int // at most this many claims
}

// Grant answers an Ask.
type Grant struct {
	Shard  int
	Claims []Claim
	// Now is the queue's clock at the claim.
	Now time.Time
	// Wait is how long until the shard may have something to claim again:
	// 0 when more is due already, negative when nothing is there at all.
	Wait time.Duration
	// LeasesExpired counts the leases that were found to have run out.
	LeasesExpired int
	// Buried counts what the claim itself made dead letters: corrupt records
	// and messages that lost too many leases.
	Buried int
	// Abandoned are those of Buried that lost too many leases: they are settled,
	// and only to be told of.
	Abandoned []Claim
	Err       error
}

// Retry puts a claim back to be tried again.
type Retry struct {
	Claim Claim
	// After is how long from now.
	After time.Duration
	// OutliveLease keeps the retry from happening before the lease would have
	// ended, for a publish that may still arrive.
	OutliveLease bool
	// Error is why the attempt failed. The queue keeps it, as LastErrorText has it,
	// until another attempt fails, or the message is delivered, replaced or dead.
	Error string
}

// Burial makes a claim a dead letter.
type Burial struct {
	Claim  Claim
	Reason Reason
	Error  string
	// Failed counts the failed attempts including the last one.
	Failed int
}
