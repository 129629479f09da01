package main

import (
	"context"
	"fmt"
	"time"

	"delaybridge"
	"delaybridge/luascripts"
)

// lanes reports what the queue holds, and what hangs in it.
func (d *redisDoctor) lanes(ctx context.Context, q *luascripts.Queue) {
	r := d.queue
	stats, err := q.Stats(ctx)
	if err != nil {
		r.problem("stats", "it cannot be counted: "+shortCause(err), "see what is said of redis")
		return
	}
	var pending, inflight, far int64
	for _, lane := range delaybridge.Lanes {
		l := stats.Lanes[lane]
		pending, inflight, far = pending+l.Pending, inflight+l.InFlight, far+l.Far
		late := l.OverdueFor.Round(time.Second)
		switch {
		case l.Pending+l.InFlight > 0 && !d.s.hasBroker(lane):
			r.warning("pending", fmt.Sprintf("%d messages for %s wait, and the settings here have no broker for them", l.Pending, lane), "run a process that has it, or set it here: BRIDGE_NATS_URL or BRIDGE_KAFKA_BROKERS")
		case l.OverdueFor > time.Duration(d.s.ReadyMaxOverdue):
			r.problem("overdue", fmt.Sprintf("%d messages for %s are due and not taken, the oldest for %v", l.Overdue, lane, late),
				"run bridge serve with the role scheduler; if one runs, see what is said of its broker, and its /readyz")
		}
	}
	r.ok("pending", "%d wait, %d are in flight, %d are due in over an hour", pending, inflight, far)
	if most := int64(d.s.MaxPending); most > 0 && pending+inflight > most {
		r.warning("pending", fmt.Sprintf("%d messages are above BRIDGE_MAX_PENDING (%d): ingest takes nothing in until there are fewer", pending+inflight, most), "raise BRIDGE_MAX_PENDING, or wait")
	}
	d.failing(ctx, q)
	dead := int64(0)
	for _, reason := range delaybridge.Reasons {
		n := stats.Dead[reason]
		if dead += n; n == 0 {
			continue
		}
		do := fmt.Sprintf("bridge dead list --reason %s, mend the cause, then bridge dead replay --reason %[1]s or bridge dead purge --reason %[1]s", reason)
		if reason == delaybridge.ReasonExpired || reason == delaybridge.ReasonCorrupt {
			do = fmt.Sprintf("bridge dead list --reason %s, then bridge dead purge --reason %[1]s", reason)
		}
		r.warning("dead", fmt.Sprintf("%s, reason %s: %s", plural(int(n), "dead letter"), reason, meaningOf(reason)), do)
	}
	if dead == 0 {
		r.ok("dead", "no dead letters")
	}
	d.leases(ctx, q)
}

// failing reports messages that are tried again.
func (d *redisDoctor) failing(ctx context.Context, q *luascripts.Queue) {
	n, one, err := q.Failing(ctx)
	switch {
	case err != nil:
		d.queue.problem("retries", "they cannot be looked at: "+shortCause(err), "see what is said of redis")
	case n == 0:
		d.queue.ok("retries", "no message has failed")
	case one.ID == "":
		d.queue.ok("retries", "%d are tried again since their leases ran out; no attempt has failed", n)
	default:
		text := fmt.Sprintf("%s to try again after failed attempts or lost leases, such as %q", plural(int(n), "message"), one.ID)
		if one.Message != nil {
			text += " for " + one.Message.Target.String()
		}
		d.queue.warning("retries", oneLine(text+": "+one.LastError),
			"mend what the last error says, such as a topic or a stream that is missing; bridge list shows each with its last error and its next try")
	}
}

func meaningOf(reason delaybridge.Reason) string {
	switch reason {
	case delaybridge.ReasonRejected:
		return "the request was refused when it came in"
	case delaybridge.ReasonPermanent:
		return "the broker will never take the message as it is"
	case delaybridge.ReasonAttempts:
		return "it failed as often as BRIDGE_MAX_ATTEMPTS allows"
	case delaybridge.ReasonExpired:
		return "it was not delivered within its Bridge-Expires-After"
	case delaybridge.ReasonAbandoned:
		return "every process that took it lost its lease"
	case delaybridge.ReasonCorrupt:
		return "its record in Redis cannot be read"
	}
	return "not known to this version"
}

// leases reports messages that a process took and did not settle, and that no
// other has taken over since.
func (d *redisDoctor) leases(ctx context.Context, q *luascripts.Queue) {
	lanes, err := q.Leases(ctx)
	if err != nil {
		d.queue.problem("leases", "they cannot be looked at: "+shortCause(err), "see what is said of redis")
		return
	}
	hanging := false
	for _, lane := range delaybridge.Lanes {
		e := lanes[lane]
		// Running schedulers look for them within a few polls.
		if e.Count > 0 && e.Oldest > 10*time.Duration(d.s.PollMax)+10*time.Second {
			hanging = true
			d.queue.problem("leases", fmt.Sprintf("the leases of %d messages for %s ran out up to %v ago, and nobody takes them over", e.Count, lane, e.Oldest.Round(time.Second)),
				"run bridge serve with the role scheduler and a broker for "+lane)
		}
	}
	if !hanging {
		d.queue.ok("leases", "none has run out unnoticed")
	}
}
