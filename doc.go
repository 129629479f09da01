// Package delaybridge is what the program is about, without any client library:
// a delayed message, a claim to deliver one, what a sink must do, and which
// errors mean what.
//
// A message comes in by NATS, Kafka or a command (package ingest), is kept in
// Redis until it is due (package luascripts), is claimed by a scheduler
// (package scheduler) and published to its target (package sinks):
//
//	producer -> ingest -> Redis -> scheduler -> sink -> consumer
//
// # States
//
// A message is in one state at a time, and every change of state is one Lua
// script, atomic and safe to repeat:
//
//	              +---- retry: later, attempts + 1 -----+
//	              | +-- release: at once, uncounted --+ |
//	              v v                                 | |
//	 schedule   +-----+  claim: takes a lease   +----------+    ack    +------+
//	----------> | due | ----------------------> | inflight | --------> | done |
//	            +-----+ <- - - - - - - - - - -  +----------+           +------+
//	             ^ | |     the lease ran out         |                    ^
//	             | | +------------ cancel -----------|--------------------+
//	             | |                                 | bury
//	             | | claim: cannot be read, or       v
//	             | | has lost too many leases    +------+      reject
//	             | +---------------------------> | dead | <------------
//	             +----------- replay ----------- +------+
//
// due and inflight are sorted sets, one pair for each sink and shard: the first
// is scored by the time at which a message may next be delivered, the second by
// the end of its lease. done is a tombstone: it remembers where a delivered or
// cancelled message came from, so that a redelivery by its source does not
// bring it back, and each redelivery makes it last for longer.
//
// # What holds
//
//   - A source is acknowledged only after Redis has accepted the write, and a
//     message leaves Redis only after the target broker has confirmed it: a
//     process may be killed at any moment, and nothing is lost.
//   - Nothing is delivered before its due time, by the clock of Redis and by
//     that of the delivering host.
//   - A message may arrive more than once, after a crash or an answer that was
//     lost. Bridge-Attempt above 1 says that an earlier copy may have arrived,
//     and Bridge-Id is the same in each.
//
// # What is easy to miss
//
//   - The end of a lease is the fencing token: ack, retry, release and bury do
//     nothing unless the score in inflight is still the one that the claim
//     returned. A slow worker cannot settle what another has claimed since.
//   - A lease is at least twice as long as a publish may take, so there is no
//     way to extend one, and no need.
//   - A publish without an answer is not retried before its lease would have
//     ended: it may still arrive.
//   - A lost lease is not a failed attempt. It is counted apart, so that a
//     deploy does not use up anybody's retries.
//   - Redis's own clock decides, inside the scripts. This host's clock is only a
//     ceiling.
//   - A delay counts from the time at which the source's broker took the
//     message, not from when it was read: a backlog does not make it later.
//   - A null, an empty and a present key or payload are three things, from the
//     source to the target: nil and empty slices are not the same here.
package delaybridge
