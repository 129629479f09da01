package test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// ledger is the record of a chaos run: what the brokers accepted, what was
// delivered, and what is left in Redis at the end.
type ledger struct {
	requests   []asked
	deliveries []delivered
	cancels    map[string]cancelled // by id
	end        ending
	// grace is how long after a cancel an attempt may still arrive that had no
	// answer before it.
	grace time.Duration
}

// asked is a schedule message that a broker has accepted.
type asked struct {
	id      string
	version int // of several with one id, the last is to be delivered
	kind    kind
	via     string
	target  string
	sent    time.Time // before the first try
	delay   time.Duration
	// tries is how often it was published until it was accepted: above 1, the
	// bridge may have been asked more than once.
	tries    int
	position string
}

// kind is what is to become of a request.
type kind string

const (
	kindPlain           kind = "plain"
	kindReplaced        kind = "replaced"
	kindCancelled       kind = "cancelled by message"
	kindCancelledByHand kind = "cancelled by command"
	kindBad             kind = "rejected"
	kindNowhere         kind = "to a missing target"
	kindFar             kind = "due much later"
)

// cancelled is a cancel that was accepted.
type cancelled struct {
	// confirmed is when the bridge was known to have carried it out; zero: never.
	confirmed time.Time
}

// delivered is one copy, at a consumer.
type delivered struct {
	id      string
	version int
	attempt int
	due     time.Time
	stored  time.Time // by the broker's clock, to the millisecond
	seen    time.Time // by the consumer's clock; zero: it was read later
	// dropped says that it was published, and JetStream knew that it has it.
	dropped bool
	wrong   string // what is wrong with it, if anything
}

// ending is what Redis holds after the run.
type ending struct {
	pending  map[string]bool
	inflight []string
	dead     map[string]string // reason by id
	state    map[string]string // of the ids that were cancelled
	broken   []string          // what contradicts itself
}

// verdict is what the ledger comes to.
type verdict struct {
	accepted, delivered, dead, pending        int
	lost, early, afterCancel, unsaid, wrong   int
	cancelledInTime, cancelledTooLate         int
	againByAttempt, againByProducer, droppedN int
	deadYetDelivered                          int
	late                                      map[string][]time.Duration // by the way in
	problems                                  []string
}

func (v *verdict) problem(format string, args ...any) {
	v.problems = append(v.problems, fmt.Sprintf(format, args...))
}

// judge holds the record against the contract.
func (l *ledger) judge() *verdict {
	v := &verdict{accepted: len(l.requests), late: map[string][]time.Duration{}}
	type key struct {
		id      string
		version int
	}
	requests := map[key]*asked{}
	last := map[string]*asked{}
	for i := range l.requests {
		r := &l.requests[i]
		requests[key{r.id, r.version}] = r
		if last[r.id] == nil || last[r.id].version < r.version {
			last[r.id] = r
		}
	}

	copies := map[key][]*delivered{}  // that consumers got
	attempts := map[key]map[int]int{} // publishes by attempt
	for i := range l.deliveries {
		d := &l.deliveries[i]
		k := key{d.id, d.version}
		r := requests[k]
		if r == nil || d.wrong != "" {
			v.wrong++
			v.problem("%s version %d arrived, and nobody asked for it so: %s", d.id, d.version, d.wrong)
			continue
		}
		if d.stored.Before(d.due) || !d.seen.IsZero() && d.seen.Before(d.due) {
			v.early++
			v.problem("%s version %d arrived at %v, early: it was due at %v", d.id, d.version, d.stored, d.due)
		}
		if earliest := r.sent.Truncate(time.Millisecond).Add(r.delay); d.due.Before(earliest) {
			v.early++
			v.problem("%s version %d says that it was due at %v, before %v", d.id, d.version, d.due, earliest)
		}
		if d.dropped {
			v.droppedN++
		} else {
			copies[k] = append(copies[k], d)
		}
		if attempts[k] == nil {
			attempts[k] = map[int]int{}
		}
		attempts[k][d.attempt]++
	}
	for k, r := range requests {
		got := copies[k]
		if len(got) > 0 {
			v.delivered++
			if r.kind == kindPlain {
				first := slices.MinFunc(got, func(a, b *delivered) int { return a.stored.Compare(b.stored) })
				v.late[r.via] = append(v.late[r.via], first.stored.Sub(first.due))
			}
		}
		if r.tries > 1 {
			v.againByProducer += max(0, len(got)-1)
			continue
		}
		v.againByAttempt += max(0, len(got)-1)
		for attempt, n := range attempts[k] {
			if n > 1 {
				v.unsaid++
				v.problem("%s version %d arrived %d times as attempt %d", r.id, r.version, n, attempt)
			}
		}
	}

	for id, r := range last {
		got := copies[key{id, r.version}]
		_, isDead := l.end.dead[id]
		isPending := l.end.pending[id]
		if isDead {
			v.dead++
		}
		if isPending {
			v.pending++
		}
		if isDead && len(got) > 0 {
			v.deadYetDelivered++
		}
		c, isCancelled := l.cancels[id]
		switch {
		case r.kind == kindBad:
			if reason := l.end.dead["rejected:"+r.position]; reason != "rejected" {
				v.lost++
				v.problem("%s was to be rejected; its dead letter rejected:%s has reason %q", id, r.position, reason)
			} else {
				v.dead++
			}
			if len(got) > 0 {
				v.wrong++
				v.problem("%s was to be rejected and arrived", id)
			}
			continue
		case isCancelled && len(got) == 0:
			if isPending && r.tries == 1 {
				v.afterCancel++
				v.problem("%s was cancelled and is pending", id)
			} else if state := l.end.state[id]; state != "cancelled" && !isDead && !isPending {
				v.lost++
				v.problem("%s was cancelled, did not arrive, and is %q", id, state)
			}
			v.cancelledInTime++
			continue
		case isCancelled:
			v.cancelledTooLate++
			for _, d := range got {
				if c.confirmed.IsZero() || r.tries > 1 {
					continue // too late, as the answer or the state says
				}
				// Before its time nothing can have been under way.
				if c.confirmed.Before(d.due) || d.stored.After(c.confirmed.Add(l.grace)) {
					v.afterCancel++
					v.problem("%s arrived at %v (due %v, attempt %d), and its cancel was confirmed at %v", id, d.stored, d.due, d.attempt, c.confirmed)
				}
			}
		case r.kind == kindFar && !isPending:
			v.lost++
			v.problem("%s is due much later, and not pending", id)
			continue
		case r.kind == kindNowhere && isDead && l.end.dead[id] != "attempts":
			v.problem("%s has no target, and is dead by reason %q", id, l.end.dead[id])
		}
		if len(got) == 0 && !isDead && !isPending {
			v.lost++
			v.problem("%s version %d (%s, by %s to %s, delay %v, %d tries, at %s) is lost", id, r.version, r.kind, r.via, r.target, r.delay, r.tries, r.position)
		}
	}
	for _, id := range l.end.inflight {
		v.problem("%s is still in flight", id)
	}
	for _, b := range l.end.broken {
		v.problem("Redis: %s", b)
	}
	for _, late := range v.late {
		slices.Sort(late)
	}
	slices.Sort(v.problems)
	return v
}

// TestLedger has the judge of the chaos run judge small records, good and bad: a
// judge that sees nothing proves nothing.
func TestLedger(t *testing.T) {
	t.Parallel()
	t0 := time.UnixMilli(1_900_000_000_000)
	at := func(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }
	request := asked{id: "a", version: 1, kind: kindPlain, sent: t0, delay: time.Second, tries: 1, position: "nats:S:1"}
	arrival := delivered{id: "a", version: 1, attempt: 1, due: at(1000), stored: at(1005), seen: at(1006)}
	with := func(change func(*asked)) asked { r := request; change(&r); return r }
	but := func(change func(*delivered)) delivered { d := arrival; change(&d); return d }
	for _, row := range []struct {
		about string
		l     ledger
		want  string // the figures that are not zero
	}{
		{"delivered once", ledger{requests: []asked{request}, deliveries: []delivered{arrival}}, "delivered=1"},
		{"neither delivered nor anywhere", ledger{requests: []asked{request}}, "lost=1"},
		{"dead is not lost", ledger{requests: []asked{request}, end: ending{dead: map[string]string{"a": "attempts"}}}, "dead=1"},
		{"pending is not lost", ledger{requests: []asked{request}, end: ending{pending: map[string]bool{"a": true}}}, "pending=1"},
		{"stored by the broker before it was due", ledger{
			requests: []asked{request}, deliveries: []delivered{but(func(d *delivered) { d.stored = at(999) })},
		}, "delivered=1 early=1"},
		{"due before its delay is over", ledger{
			requests: []asked{request}, deliveries: []delivered{but(func(d *delivered) { d.due, d.stored = at(990), at(1001) })},
		}, "delivered=1 early=1"},
		{"a second copy that says so", ledger{
			requests: []asked{request}, deliveries: []delivered{arrival, but(func(d *delivered) { d.attempt = 2 })},
		}, "delivered=1 again=1"},
		{"a second copy that does not say so", ledger{
			requests: []asked{request}, deliveries: []delivered{arrival, arrival},
		}, "delivered=1 again=1 unsaid=1"},
		{"a second copy that JetStream dropped, and that does not say so", ledger{
			requests: []asked{request}, deliveries: []delivered{arrival, but(func(d *delivered) { d.dropped = true })},
		}, "delivered=1 dropped=1 unsaid=1"},
		{"a second copy of what a producer sent twice", ledger{
			requests: []asked{with(func(r *asked) { r.tries = 2 })}, deliveries: []delivered{arrival, arrival},
		}, "delivered=1 producer=1"},
		{"what nobody asked for", ledger{deliveries: []delivered{arrival}}, "wrong=1"},
		{"the older version alone arrives", ledger{
			requests: []asked{request, with(func(r *asked) { r.version = 2 })}, deliveries: []delivered{arrival},
		}, "delivered=1 lost=1"},
		{"the newer version alone arrives", ledger{
			requests: []asked{request, with(func(r *asked) { r.version = 2 })}, deliveries: []delivered{but(func(d *delivered) { d.version = 2 })},
		}, "delivered=1"},
		{"cancelled, and gone", ledger{
			requests: []asked{request}, cancels: map[string]cancelled{"a": {at(500)}}, end: ending{state: map[string]string{"a": "cancelled"}},
		}, "in_time=1"},
		{"cancelled, and pending all the same", ledger{
			requests: []asked{request}, cancels: map[string]cancelled{"a": {at(500)}}, end: ending{pending: map[string]bool{"a": true}},
		}, "pending=1 in_time=1 after_cancel=1"},
		{"cancelled, and nothing is known of it", ledger{
			requests: []asked{request}, cancels: map[string]cancelled{"a": {at(500)}},
		}, "lost=1 in_time=1"},
		{"delivered after a cancel before its time", ledger{
			requests: []asked{request}, deliveries: []delivered{arrival}, cancels: map[string]cancelled{"a": {at(500)}}, grace: time.Second,
		}, "delivered=1 too_late=1 after_cancel=1"},
		{"delivered long after a cancel past its time", ledger{
			requests: []asked{request}, deliveries: []delivered{but(func(d *delivered) { d.stored = at(4000) })},
			cancels: map[string]cancelled{"a": {at(1500)}}, grace: time.Second,
		}, "delivered=1 too_late=1 after_cancel=1"},
		{"cancelled too late", ledger{
			requests: []asked{request}, deliveries: []delivered{arrival}, cancels: map[string]cancelled{"a": {}},
		}, "delivered=1 too_late=1"},
		{"rejected, with its letter", ledger{
			requests: []asked{with(func(r *asked) { r.kind = kindBad })}, end: ending{dead: map[string]string{"rejected:nats:S:1": "rejected"}},
		}, "dead=1"},
		{"rejected, without a letter", ledger{requests: []asked{with(func(r *asked) { r.kind = kindBad })}}, "lost=1"},
		{"much later, and gone", ledger{
			requests: []asked{with(func(r *asked) { r.kind = kindFar })}, end: ending{dead: map[string]string{"a": "attempts"}},
		}, "dead=1 lost=1"},
	} {
		t.Run(row.about, func(t *testing.T) {
			v := row.l.judge()
			var got []string
			for _, f := range []struct {
				name string
				n    int
			}{
				{"delivered", v.delivered}, {"dead", v.dead}, {"pending", v.pending}, {"lost", v.lost}, {"early", v.early},
				{"again", v.againByAttempt}, {"producer", v.againByProducer}, {"dropped", v.droppedN}, {"unsaid", v.unsaid}, {"wrong", v.wrong},
				{"in_time", v.cancelledInTime}, {"too_late", v.cancelledTooLate}, {"after_cancel", v.afterCancel},
			} {
				if f.n != 0 {
					got = append(got, fmt.Sprintf("%s=%d", f.name, f.n))
				}
			}
			if strings.Join(got, " ") != row.want {
				t.Errorf("%s, want %s; %v", strings.Join(got, " "), row.want, v.problems)
			}
			if bad := v.lost + v.early + v.unsaid + v.wrong + v.afterCancel; (bad > 0) != (len(v.problems) > 0) {
				t.Errorf("problems: %v", v.problems)
			}
		})
	}
}
