package luascripts

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"delaybridge"
)

// same as a row's state says that nothing changed.
const same = "same"

// transition is one row: the keyspace before, one call, its answer, and the
// whole keyspace after it.
type transition struct {
	name  string
	seed  string
	now   int64 // ms past the epoch, both clocks
	do    func(h *harness) string
	want  string
	state string
}

func runTransitions(t *testing.T, rows []transition) {
	t.Helper()
	onBoth(t, func(t *testing.T, client redis.UniversalClient, shebang string) {
		for _, row := range rows {
			t.Run(row.name, func(t *testing.T) {
				cfg := testConfig()
				cfg.shebang = shebang
				h := newHarness(t, client, cfg).at(row.now)
				h.seed(row.seed)
				if got := row.do(h); got != row.want {
					t.Errorf("answer: %s\nwant:   %s", got, row.want)
				}
				if row.state == same {
					h.wantState(row.seed)
				} else {
					h.wantState(row.state)
				}
			})
		}
	})
}

// storing returns a call that stores requests.
func storing(requests ...delaybridge.Request) func(*harness) string {
	return func(h *harness) string { return h.store(requests...) }
}

func TestSchedule(t *testing.T) {
	runTransitions(t, []transition{
		{
			name:  "an unknown id waits for its time",
			do:    storing(schedule("a", "hi", "nats:S 7")),
			want:  "scheduled",
			state: "due:nats a +1000\nmsg a [nats:S 7] hi",
		}, {
			name: "several ids of several lanes in one batch",
			do:   storing(schedule("a", "hi", "nats:S 7"), schedule("b", "kaf", "nats:S 8"), schedule("c", "hi", "nats:S 9")),
			want: "scheduled, scheduled, scheduled",
			state: `
				due:nats a +1000
				due:kafka b +2000
				due:nats c +1000
				msg a [nats:S 7] hi
				msg b [nats:S 8] kaf
				msg c [nats:S 9] hi`,
		}, {
			name:  "a later position replaces what is pending",
			seed:  "due:nats a +1000\nmsg a [nats:S 7] hi",
			do:    storing(schedule("a", "again", "nats:S 8")),
			want:  "replaced",
			state: "due:nats a +3000\nmsg a [nats:S 8] again",
		}, {
			name:  "the same position again is a redelivery",
			seed:  "due:nats a +1000\nmsg a [nats:S 7] hi",
			do:    storing(schedule("a", "again", "nats:S 7")),
			want:  "duplicate",
			state: same,
		}, {
			name:  "an earlier position of the same source is stale",
			seed:  "due:nats a +1000\nmsg a [nats:S 7] hi",
			do:    storing(schedule("a", "again", "nats:S 6")),
			want:  "duplicate",
			state: same,
		}, {
			name:  "positions are numbers: 9 is before 10",
			seed:  "due:nats a +1000\nmsg a [nats:S 10] hi",
			do:    storing(schedule("a", "again", "nats:S 9")),
			want:  "duplicate",
			state: same,
		}, {
			name:  "positions are exact where doubles are not: 2^64-2, then 2^64-1",
			seed:  "due:nats a +1000\nmsg a [nats:S 18446744073709551614] hi",
			do:    storing(schedule("a", "again", "nats:S 18446744073709551615"), schedule("a", "hi", "nats:S 18446744073709551614")),
			want:  "replaced, duplicate",
			state: "due:nats a +3000\nmsg a [nats:S 18446744073709551615] again",
		}, {
			name:  "another source's request wins by coming last, and both positions are kept",
			seed:  "due:nats a +1000\nmsg a [nats:S 7] hi",
			do:    storing(schedule("a", "again", "kafka:t:0 2")),
			want:  "replaced",
			state: "due:nats a +3000\nmsg a [kafka:t:0 2 nats:S 7] again",
		}, {
			name:  "a source whose name begins another's, or reads as a pattern, is another",
			seed:  "due:nats a +1000\nmsg a [nats:S 7] hi",
			do:    storing(schedule("a", "again", "nats:S2 1"), schedule("a", "hi", "nats:. 1"), schedule("a", "again", "nats:S@2 1")),
			want:  "replaced, replaced, replaced",
			state: "due:nats a +3000\nmsg a [nats:S@2 1 nats:. 1 nats:S2 1 nats:S 7] again",
		}, {
			name:  "a redelivery does not undo what the API has replaced",
			seed:  "due:nats a +3000\nmsg a [api:x 1 nats:S 7] again",
			do:    storing(schedule("a", "hi", "nats:S 7")),
			want:  "duplicate",
			state: same,
		}, {
			name:  "the fifth source lets go of the first",
			seed:  "due:nats a +1000\nmsg a [kafka:t:2 2 kafka:t:1 1 kafka:t:0 0 nats:S 7] hi",
			do:    storing(schedule("a", "again", "kafka:t:3 3")),
			want:  "replaced",
			state: "due:nats a +3000\nmsg a [kafka:t:3 3 kafka:t:2 2 kafka:t:1 1 kafka:t:0 0] again",
		}, {
			name:  "positions of single requests make room first",
			seed:  "due:nats a +1000\nmsg a [api:y 1 kafka:t:1 1 kafka:t:0 0 nats:S 7] hi",
			do:    storing(schedule("a", "again", "api:x 1")),
			want:  "replaced",
			state: "due:nats a +3000\nmsg a [api:x 1 kafka:t:1 1 kafka:t:0 0 nats:S 7] again",
		}, {
			name:  "a replacement may go to another lane",
			seed:  "due:nats a +1000\nmsg a [nats:S 7] hi",
			do:    storing(schedule("a", "kaf", "nats:S 8")),
			want:  "replaced",
			state: "due:kafka a +2000\nmsg a [nats:S 8] kaf",
		}, {
			name:  "a replacement starts without attempts and errors, and past the leases of the old message",
			seed:  "due:nats a +1000\nmsg a [nats:S 7] hi\ntries a 2 1 no stream",
			do:    storing(schedule("a", "again", "nats:S 8")),
			want:  "replaced",
			state: "due:nats a +3000\nmsg a [nats:S 8] again",
		}, {
			name:  "what is in flight is replaced, and waits for its own time",
			seed:  "inflight:nats a +60000\nmsg a [nats:S 7] hi",
			now:   1000,
			do:    storing(schedule("a", "again", "nats:S 8")),
			want:  "replaced",
			state: "due:nats a +3000\nmsg a [nats:S 8] again",
		}, {
			name:  "what is in flight in one lane is replaced by another lane's",
			seed:  "inflight:nats a +60000\nmsg a [nats:S 7] hi\ntries a 1 0",
			now:   1000,
			do:    storing(schedule("a", "kaf", "nats:S 8")),
			want:  "replaced",
			state: "due:kafka a +2000\nmsg a [nats:S 8] kaf",
		}, {
			name:  "a redelivery of what is in flight changes nothing",
			seed:  "inflight:nats a +60000\nmsg a [nats:S 7] hi",
			do:    storing(schedule("a", "hi", "nats:S 7")),
			want:  "duplicate",
			state: same,
		}, {
			// B18 (asynq#369): the late first copy came behind the producer's retry of it.
			name:  "a redelivery of what was delivered does not bring it back",
			seed:  "done:a since +0\ndone:a a d nats:S 7",
			do:    storing(schedule("a", "hi", "nats:S 7"), schedule("a", "hi", "nats:S 6")),
			want:  "duplicate, duplicate",
			state: same,
		}, {
			name: "a redelivery of what was cancelled, and lies in the older tombstones, does not bring it back",
			now:  600_000,
			seed: "done:a since +0\ndone:a a c nats:S 8\ndone:b since +600000",
			do:   storing(schedule("a", "hi", "nats:S 7")),
			want: "duplicate",
			// And the next one will not, either.
			state: "done:a since +0\ndone:a a c nats:S 8\ndone:b since +600000\ndone:b a c nats:S 8",
		}, {
			name: "the newer of two tombstones counts",
			seed: "done:a since +600000\ndone:a a d kafka:t:0 1 nats:S 7\ndone:b since +0\ndone:b a d nats:S 7",
			do:   storing(schedule("a", "hi", "kafka:t:0 1")),
			want: "duplicate", state: same,
		}, {
			name:  "a later position of a delivered id is a new message, which knows all positions",
			seed:  "done:a since +0\ndone:a a d nats:S 7 kafka:t:0 1",
			do:    storing(schedule("a", "hi", "nats:S 8")),
			want:  "scheduled",
			state: "done:a since +0\ndone:a a d nats:S 7 kafka:t:0 1\ndue:nats a +1000\nmsg a [nats:S 8 kafka:t:0 1] hi",
		}, {
			name: "a dead id that is scheduled anew leaves its letter where it is",
			seed: `
				dead a +0
				deadmsg a attempts 12 0 "no" [nats:S 7] hi
				deadcount attempts 1
				done:a since +0
				done:a a x nats:S 7`,
			do:   storing(schedule("a", "hi", "nats:S 7"), schedule("a", "again", "nats:S 8")),
			want: "duplicate, scheduled",
			state: `
				dead a +0
				deadmsg a attempts 12 0 "no" [nats:S 7] hi
				deadcount attempts 1
				done:a since +0
				done:a a x nats:S 7
				due:nats a +3000
				msg a [nats:S 8] again`,
		}, {
			name:  "a record that cannot be read is replaced",
			seed:  "due:nats a +1000\nmsg a raw \"2 from the future\"",
			do:    storing(schedule("a", "hi", "nats:S 1")),
			want:  "replaced",
			state: "due:nats a +1000\nmsg a [nats:S 1] hi",
		}, {
			// B4 (OptimalBits/bull#1705): a negative score was never over.
			name:  "a time before 1970 is as due as can be, and the message keeps it",
			do:    storing(schedule("a", "old", "nats:S 7")),
			want:  "scheduled",
			state: "due:nats a 0\nmsg a [nats:S 7] old",
		}, {
			name:  "a time far off is as late as a score can be exact",
			do:    storing(schedule("a", "far", "nats:S 7")),
			want:  "scheduled",
			state: "due:nats a 9007199254740991\nmsg a [nats:S 7] far",
		}, {
			name:  "one id several times in one batch ends as its last position says, in whatever order",
			do:    storing(schedule("a", "hi", "nats:S 7"), schedule("a", "now", "nats:S 9"), schedule("a", "again", "nats:S 8")),
			want:  "scheduled, replaced, duplicate",
			state: "due:nats a +0\nmsg a [nats:S 9] now",
		}, {
			// B17 (asynq#275): a deleted entry still blocked its id.
			name:  "schedule and cancel of one id in one batch are carried out in order",
			do:    storing(cancel("b", "nats:S 6"), schedule("a", "hi", "nats:S 7"), cancel("a", "kafka:t:0 3"), schedule("a", "now", "kafka:t:1 3")),
			want:  "unknown, scheduled, cancelled, scheduled",
			state: "done:b since +0\ndone:b b c nats:S 6\ndone:b a c kafka:t:0 3 nats:S 7\ndue:nats a +0\nmsg a [kafka:t:1 3 kafka:t:0 3 nats:S 7] now",
		}, {
			name:  "an id that names its position is not made to say it twice",
			do:    storing(schedule("nats:S:7", "hi", "nats:S 7"), schedule("nats:S:7", "hi", "nats:S 7"), schedule("nats:S:7", "hi", "nats:S 6")),
			want:  "scheduled, duplicate, duplicate",
			state: "due:nats nats:S:7 +1000\nmsg nats:S:7 [=] hi",
		}, {
			name:  "but says it beside another",
			seed:  "due:nats nats:S:7 +1000\nmsg nats:S:7 [=] hi",
			do:    storing(schedule("nats:S:7", "again", "api:x 1"), schedule("nats:S:7", "hi", "nats:S 7"), schedule("nats:S:7", "now", "nats:S 8")),
			want:  "replaced, duplicate, replaced",
			state: "due:nats nats:S:7 +0\nmsg nats:S:7 [nats:S 8] now",
		}, {
			name:  "an id that names another position, or its own in another way, is an id like any",
			do:    storing(schedule("nats:S:7", "hi", "nats:S 8"), schedule("nats:S:07", "hi", "nats:S 7"), schedule("=", "hi", "nats:S 7")),
			want:  "scheduled, scheduled, scheduled",
			state: "due:nats nats:S:7 +1000\nmsg nats:S:7 [nats:S 8] hi\ndue:nats nats:S:07 +1000\nmsg nats:S:07 [nats:S 7] hi\ndue:nats = +1000\nmsg = [nats:S 7] hi",
		}, {
			name:  "its tombstone keeps a redelivery out too",
			seed:  "done:a since +0\ndone:a nats:S:7 d =\ndone:a kafka:t:0:18446744073709551615 c =",
			do:    storing(schedule("nats:S:7", "hi", "nats:S 7"), schedule("kafka:t:0:18446744073709551615", "hi", "kafka:t:0 18446744073709551615"), schedule("nats:S:7", "hi", "nats:S 8")),
			want:  "duplicate, duplicate, scheduled",
			state: "done:a since +0\ndone:a nats:S:7 d =\ndone:a kafka:t:0:18446744073709551615 c =\ndue:nats nats:S:7 +1000\nmsg nats:S:7 [nats:S 8] hi",
		}, {
			name:  "an empty payload is a payload",
			do:    storing(schedule("a", "empty", "nats:S 7")),
			want:  "scheduled",
			state: "due:nats a +0\nmsg a [nats:S 7] empty",
		}, {
			name: "a request without id, source or known sink is refused, and the others are carried out",
			do: func(h *harness) string {
				bad := schedule("c", "hi", "nats:S 3")
				bad.Message.Target.Sink = "smtp"
				odd := schedule("d", "hi", "nats:S 3")
				odd.Op = 9
				return h.store(schedule("", "hi", "nats:S 1"), schedule("b", "hi", "nats:S\n9 2"), bad, odd, schedule("a", "hi", "nats:S 4"))
			},
			want: `queue: invalid: id "", position "nats:S:1", ` +
				`queue: invalid: id "b", position "nats:S\n9:2"` + ", " +
				`queue: invalid: id "c" has target "smtp://x", whose sink is not known, ` +
				`queue: invalid: id "d", Op(9), scheduled`,
			state: "due:nats a +1000\nmsg a [nats:S 4] hi",
		},
	})
}

func TestCancel(t *testing.T) {
	api := func(id string) delaybridge.Request {
		r := cancel(id, "api:x 1")
		r.FromAPI = true
		return r
	}
	runTransitions(t, []transition{
		{
			name:  "what is pending goes, and leaves a tombstone",
			seed:  "due:nats a +1000\nmsg a [nats:S 7] hi\ntries a 1 0 no stream",
			do:    storing(cancel("a", "nats:S 8")),
			want:  "cancelled",
			state: "done:b since +0\ndone:b a c nats:S 8",
		}, {
			name:  "in any lane",
			seed:  "due:kafka a +2000\nmsg a [nats:S 7] kaf",
			do:    storing(cancel("a", "kafka:t:0 1")),
			want:  "cancelled",
			state: "done:b since +0\ndone:b a c kafka:t:0 1 nats:S 7",
		}, {
			name:  "the API's cancel keeps the source's position, so that its redelivery changes nothing",
			seed:  "due:nats a +1000\nmsg a [nats:S 7] hi",
			do:    storing(api("a"), schedule("a", "hi", "nats:S 7")),
			want:  "cancelled, duplicate",
			state: "done:b since +0\ndone:b a c api:x 1 nats:S 7",
		}, {
			name:  "a cancel that is older than the schedule is stale",
			seed:  "due:nats a +1000\nmsg a [nats:S 7] hi",
			do:    storing(cancel("a", "nats:S 6")),
			want:  "duplicate",
			state: same,
		}, {
			name:  "what is in flight is too late to cancel",
			seed:  "inflight:kafka a +60000\nmsg a [nats:S 7] kaf",
			do:    storing(cancel("a", "nats:S 8")),
			want:  "too_late in_flight",
			state: same,
		}, {
			name:  "what was delivered is too late to cancel, and the position is remembered",
			seed:  "done:a since +0\ndone:a a d nats:S 7",
			do:    storing(cancel("a", "nats:S 8")),
			want:  "too_late delivered",
			state: "done:a since +0\ndone:a a d nats:S 8",
		}, {
			name:  "what was delivered is too late to cancel for the API, which changes nothing",
			seed:  "done:a since +0\ndone:a a d nats:S 7",
			do:    storing(api("a")),
			want:  "too_late delivered",
			state: same,
		}, {
			name:  "what was cancelled before, by another source",
			seed:  "done:a since +0\ndone:a a c nats:S 8",
			do:    storing(cancel("a", "kafka:t:0 1")),
			want:  "too_late cancelled",
			state: "done:a since +0\ndone:a a c kafka:t:0 1 nats:S 8",
		}, {
			name:  "a redelivered cancel",
			seed:  "done:a since +0\ndone:a a c nats:S 8",
			do:    storing(cancel("a", "nats:S 8")),
			want:  "duplicate",
			state: same,
		}, {
			name:  "a repeated request by the API",
			seed:  "done:a since +0\ndone:a a c api:x 1 nats:S 8",
			do:    storing(api("a")),
			want:  "duplicate",
			state: same,
		}, {
			name:  "a dead letter stays",
			seed:  "dead a +0\ndeadmsg a permanent 1 0 \"no\" [nats:S 7] hi\ndeadcount permanent 1\ndone:a since +0\ndone:a a x nats:S 7",
			do:    storing(cancel("a", "nats:S 8")),
			want:  "too_late dead",
			state: "dead a +0\ndeadmsg a permanent 1 0 \"no\" [nats:S 7] hi\ndeadcount permanent 1\ndone:a since +0\ndone:a a x nats:S 8",
		}, {
			name:  "a dead letter whose tombstone has gone is dead all the same",
			seed:  "dead a +0\ndeadmsg a permanent 1 0 \"no\" [nats:S 7] hi\ndeadcount permanent 1",
			do:    storing(api("a")),
			want:  "too_late dead",
			state: same,
		}, {
			name:  "a letter that was purged is unknown",
			seed:  "done:a since +0\ndone:a a x nats:S 7",
			do:    storing(cancel("a", "kafka:t:0 8"), api("a")),
			want:  "unknown, too_late cancelled",
			state: "done:a since +0\ndone:a a c kafka:t:0 8 nats:S 7",
		}, {
			name:  "a cancel ahead of its schedule keeps the schedule out",
			do:    storing(cancel("a", "nats:S 8"), schedule("a", "hi", "nats:S 7")),
			want:  "unknown, duplicate",
			state: "done:b since +0\ndone:b a c nats:S 8",
		}, {
			name:  "the API's cancel of an unknown id leaves nothing",
			do:    storing(api("a"), schedule("a", "hi", "nats:S 7")),
			want:  "unknown, scheduled",
			state: "due:nats a +1000\nmsg a [nats:S 7] hi",
		}, {
			name:  "a record that cannot be read can be cancelled",
			seed:  "due:nats a +1000\nmsg a raw \"?\"",
			do:    storing(cancel("a", "nats:S 8")),
			want:  "cancelled",
			state: "done:b since +0\ndone:b a c nats:S 8",
		}, {
			name:  "one id several times in one batch",
			seed:  "due:nats a +1000\nmsg a [nats:S 7] hi",
			do:    storing(cancel("a", "nats:S 8"), cancel("a", "nats:S 8"), cancel("a", "nats:S 9")),
			want:  "cancelled, duplicate, too_late cancelled",
			state: "done:b since +0\ndone:b a c nats:S 9",
		},
	})
}

// TestTombstones is about how long they live: a window at least, two at most.
func TestTombstones(t *testing.T) {
	const window = 600_000
	cancelling := storing(cancel("b", "nats:S 9"))
	runTransitions(t, []transition{
		{
			name: "within the window they go where the others are", now: window - 1,
			seed:  "done:a since +0\ndone:a a d nats:S 7",
			do:    cancelling,
			want:  "unknown",
			state: "done:a since +0\ndone:a a d nats:S 7\ndone:a b c nats:S 9",
		}, {
			name: "after it the other hash takes over, emptied first, and the old ones stay", now: window,
			seed:  "done:a since +0\ndone:a a d nats:S 7\ndone:b since -600000\ndone:b z d nats:S 1",
			do:    cancelling,
			want:  "unknown",
			state: "done:a since +0\ndone:a a d nats:S 7\ndone:b since +600000\ndone:b b c nats:S 9",
		}, {
			name: "and back again, so that none outlives two windows", now: 2 * window,
			seed:  "done:a since +0\ndone:a a d nats:S 7\ndone:b since +600000\ndone:b b c nats:S 8",
			do:    storing(cancel("c", "nats:S 9")),
			want:  "unknown",
			state: "done:a since +1200000\ndone:a c c nats:S 9\ndone:b since +600000\ndone:b b c nats:S 8",
		}, {
			name: "a clock that steps back keeps them longer", now: -window,
			seed:  "done:a since +0\ndone:a a d nats:S 7",
			do:    cancelling,
			want:  "unknown",
			state: "done:a since +0\ndone:a a d nats:S 7\ndone:a b c nats:S 9",
		}, {
			name: "a clock that jumps far ahead takes a turn, and loses none of the last window", now: 100 * window,
			seed:  "done:a since +0\ndone:a a d nats:S 7",
			do:    storing(cancel("b", "nats:S 9"), schedule("a", "hi", "nats:S 7")),
			want:  "unknown, duplicate",
			state: "done:a since +0\ndone:a a d nats:S 7\ndone:b since +60000000\ndone:b b c nats:S 9\ndone:b a d nats:S 7",
		}, {
			name: "Redis's clock far ahead of the host's takes none: some of the last window would be lost",
			seed: "done:a since +0\ndone:a a d nats:S 7\ndone:b since -600000\ndone:b z d nats:S 1",
			do: func(h *harness) string {
				h.now, h.host = 100*window, window-5001
				return h.store(cancel("b", "nats:S 9"), schedule("z", "hi", "nats:S 1"))
			},
			want:  "unknown, duplicate",
			state: "done:a since +0\ndone:a a d nats:S 7\ndone:a b c nats:S 9\ndone:a z d nats:S 1\ndone:b since -600000\ndone:b z d nats:S 1",
		}, {
			name: "a redelivery keeps its tombstone, as it is", now: window,
			seed:  "done:a since +0\ndone:a a d nats:S 7 kafka:t:0 1\ndone:a b d nats:S 3\ndone:b since -600000\ndone:b z d nats:S 1",
			do:    storing(schedule("a", "hi", "nats:S 6")),
			want:  "duplicate",
			state: "done:a since +0\ndone:a a d nats:S 7 kafka:t:0 1\ndone:a b d nats:S 3\ndone:b since +600000\ndone:b a d nats:S 7 kafka:t:0 1",
		}, {
			name: "so that redeliveries in every window are known for ever", now: window,
			seed: "done:a since +0\ndone:a a d nats:S 7",
			do: func(h *harness) (all string) {
				for range 5 {
					all += h.store(schedule("a", "hi", "nats:S 7")) + ", "
					h.at(h.now + 2*window - 1)
				}
				return all
			},
			want:  "duplicate, duplicate, duplicate, duplicate, duplicate, ",
			state: "done:a since +4199997\ndone:a a d nats:S 7\ndone:b since +5399996\ndone:b a d nats:S 7",
		}, {
			name: "of one batch, redeliveries keep theirs where the batch drops the older ones", now: 2 * window,
			seed:  "done:a since +0\ndone:a a c nats:S 7\ndone:a b d nats:S 8\ndone:b since +600000\ndone:b c d nats:S 9",
			do:    storing(cancel("d", "nats:S 10"), cancel("a", "nats:S 7"), cancel("b", "nats:S 8"), cancel("c", "nats:S 9"), cancel("b", "nats:S 11")),
			want:  "unknown, duplicate, duplicate, duplicate, too_late delivered",
			state: "done:a since +1200000\ndone:a d c nats:S 10\ndone:a a c nats:S 7\ndone:a b d nats:S 11\ndone:a c d nats:S 9\ndone:b since +600000\ndone:b c d nats:S 9",
		}, {
			name: "and beside what is new, which does not lose what is known of its id", now: 2 * window,
			seed:  "done:a since +0\ndone:a a c nats:S 7\ndone:a b d nats:S 8\ndone:b since +600000",
			do:    storing(schedule("a", "hi", "nats:S 7"), schedule("b", "hi", "nats:S 9"), schedule("a", "again", "nats:S 10"), schedule("a", "hi", "nats:S 7")),
			want:  "duplicate, scheduled, scheduled, duplicate",
			state: "done:a since +1200000\ndone:a a c nats:S 7\ndone:b since +600000\ndue:nats a +3000\nmsg a [nats:S 10] again\ndue:nats b +1000\nmsg b [nats:S 9] hi",
		}, {
			name: "a redelivery by which a host's clock far ahead goes does not make others old", now: window - 1,
			seed: "done:a since +0\ndone:a a d nats:S 7\ndone:b since -600000\ndone:b z d nats:S 1",
			do: func(h *harness) string {
				h.host = 100 * window
				return h.store(schedule("z", "hi", "nats:S 1"))
			},
			want:  "duplicate",
			state: "done:a since +0\ndone:a a d nats:S 7\ndone:a z d nats:S 1\ndone:b since -600000\ndone:b z d nats:S 1",
		}, {
			name: "a cancel that is redelivered keeps its tombstone too", now: window,
			seed:  "done:a since +0\ndone:a a c nats:S 8",
			do:    storing(cancel("a", "nats:S 8")),
			want:  "duplicate",
			state: "done:a since +0\ndone:a a c nats:S 8\ndone:b since +600000\ndone:b a c nats:S 8",
		}, {
			name: "so does a rejected request", now: window,
			seed:  "done:a since +0\ndone:a r x nats:S 7",
			do:    storing(delaybridge.Request{Op: delaybridge.OpReject, Message: message("r", "hi", "nats:S 7")}),
			want:  "duplicate",
			state: "done:a since +0\ndone:a r x nats:S 7\ndone:b since +600000\ndone:b r x nats:S 7",
		}, {
			name: "a new tombstone stands beside an older one of its id, and is the one that counts", now: window,
			seed: "done:a since +0\ndone:a a d nats:S 7\ninflight:nats a +660000\nmsg a [nats:S 8] hi",
			do: func(h *harness) string {
				return settled(h.q.Ack(context.Background(), []delaybridge.Claim{claimOf("a", "hi", "nats:S 8", 660_000)})) +
					", " + h.store(schedule("a", "hi", "nats:S 8"))
			},
			want:  "ok, duplicate",
			state: "done:a since +0\ndone:a a d nats:S 7\ndone:b since +600000\ndone:b a d nats:S 8",
		},
	})
}

func TestClaim(t *testing.T) {
	claiming := func(lane string, limit int) func(*harness) string {
		return func(h *harness) string { return h.claim(lane, limit) }
	}
	runTransitions(t, []transition{
		{
			name: "an empty lane", do: claiming("nats", 10), want: "nothing; wait none", state: "",
		}, {
			name:  "what is not due yet stays, and the wait is told",
			seed:  "due:nats a +1000\nmsg a [nats:S 7] hi",
			now:   1,
			do:    claiming("nats", 10),
			want:  "nothing; wait 999ms",
			state: same,
		}, {
			name:  "what is due, oldest first, and then by id",
			seed:  "due:nats c +1\ndue:nats b +0\ndue:nats a +1\ndue:nats d +5\nmsg a [nats:S 1] now\nmsg b [nats:S 2] hi\nmsg c [nats:S 3] now\nmsg d [nats:S 4] now",
			now:   2,
			do:    claiming("nats", 10),
			want:  "b hi +60002 0/0, a now +60002 0/0, c now +60002 0/0; wait 3ms",
			state: "inflight:nats a +60002\ninflight:nats b +60002\ninflight:nats c +60002\ndue:nats d +5\nmsg a [nats:S 1] now\nmsg b [nats:S 2] hi\nmsg c [nats:S 3] now\nmsg d [nats:S 4] now",
		}, {
			name:  "no more than the limit, and more at once",
			seed:  "due:nats a +0\ndue:nats b +0\nmsg a [nats:S 1] now\nmsg b [nats:S 2] now",
			do:    claiming("nats", 1),
			want:  "a now +60000 0/0; wait 0s",
			state: "inflight:nats a +60000\ndue:nats b +0\nmsg a [nats:S 1] now\nmsg b [nats:S 2] now",
		}, {
			name:  "a limit of nothing, or less, only looks",
			seed:  "due:nats a +0\nmsg a [nats:S 1] now\ninflight:nats b -1\nmsg b [nats:S 2] now",
			do:    func(h *harness) string { return h.claim("nats", 0) + "; " + h.claim("nats", -5) },
			want:  "nothing; wait 0s; nothing; wait 0s",
			state: same,
		}, {
			name:  "other lanes are left alone",
			seed:  "due:kafka a +0\nmsg a [nats:S 1] kaf",
			do:    claiming("nats", 1),
			want:  "nothing; wait none",
			state: same,
		}, {
			name:  "what is in flight is waited for",
			seed:  "inflight:nats a +60000\nmsg a [nats:S 1] now\ndue:nats b +90000\nmsg b [nats:S 2] now",
			do:    claiming("nats", 1),
			want:  "nothing; wait 1m0s",
			state: same,
		}, {
			name:  "a lease that ends now has run out: it is lost, counted, and taken over",
			seed:  "inflight:nats a +1000\nmsg a [nats:S 7] hi\ntries a 2 1",
			now:   1000,
			do:    claiming("nats", 10),
			want:  "a hi +61000 2/2; wait 1m0s, 1 expired",
			state: "inflight:nats a +61000\nmsg a [nats:S 7] hi\ntries a 2 2",
		}, {
			name:  "lost leases come before what is due, the oldest first, and share the limit",
			seed:  "inflight:nats b +9\ninflight:nats a +10\nmsg a [nats:S 7] hi\nmsg b [nats:S 8] hi\ndue:nats c +0\ndue:nats d +0\nmsg c [nats:S 9] hi\nmsg d [nats:S 9] hi",
			now:   10,
			do:    claiming("nats", 3),
			want:  "b hi +60010 0/1, a hi +60010 0/1, c hi +60010 0/0; wait 0s, 2 expired",
			state: "inflight:nats b +60010\ninflight:nats a +60010\ninflight:nats c +60010\nmsg a [nats:S 7] hi\nmsg b [nats:S 8] hi\ndue:nats d +0\nmsg c [nats:S 9] hi\nmsg d [nats:S 9] hi\ntries a 0 1\ntries b 0 1",
		}, {
			name:  "failed attempts are told, and lost leases apart from them",
			seed:  "due:nats a +0\nmsg a [nats:S 7] hi\ntries a 4 2",
			do:    claiming("nats", 1),
			want:  "a hi +60000 4/2; wait 1m0s",
			state: "inflight:nats a +60000\nmsg a [nats:S 7] hi\ntries a 4 2",
		}, {
			name:  "the last error is none of the counts, and stays as it is",
			seed:  "due:nats a +0\nmsg a [nats:S 7] hi\ntries a 4 2 7 8 no stream",
			do:    claiming("nats", 1),
			want:  "a hi +60000 4/2; wait 1m0s",
			state: "inflight:nats a +60000\nmsg a [nats:S 7] hi\ntries a 4 2 7 8 no stream",
		}, {
			name:  "a lost lease is counted before the last error, which stays as it is",
			seed:  "inflight:nats a +1000\nmsg a [nats:S 7] hi\ntries a 2 1 no  stream\ninflight:nats b +1000\nmsg b [nats:S 8] hi\ntries b 1 0 €",
			now:   1000,
			do:    claiming("nats", 10),
			want:  "a hi +61000 2/2, b hi +61000 1/1; wait 1m0s, 2 expired",
			state: "inflight:nats a +61000\nmsg a [nats:S 7] hi\ntries a 2 2 no  stream\ninflight:nats b +61000\nmsg b [nats:S 8] hi\ntries b 1 1 €",
		}, {
			name:  "after too many lost leases the last error goes, and its counts are told",
			seed:  "inflight:nats a +0\nmsg a [nats:S 7] hi\ntries a 1 2 no stream",
			now:   5,
			do:    claiming("nats", 1),
			want:  "nothing; wait none, 1 expired, 1 buried",
			state: "dead a +5\ndeadmsg a abandoned 1 3 \"its lease ran out 3 times\" [nats:S 7] hi\ndeadcount abandoned 1\ndone:b since +5\ndone:b a x nats:S 7",
		}, {
			name:  "after too many lost leases it is abandoned",
			seed:  "inflight:nats a +0\nmsg a [nats:S 7] hi\ntries a 1 2",
			now:   5,
			do:    claiming("nats", 1),
			want:  "nothing; wait none, 1 expired, 1 buried",
			state: "dead a +5\ndeadmsg a abandoned 1 3 \"its lease ran out 3 times\" [nats:S 7] hi\ndeadcount abandoned 1\ndone:b since +5\ndone:b a x nats:S 7",
		}, {
			// B33 (actionhero/node-resque#24): half of an entry waited for ever.
			name:  "an id without a record is a corrupt letter and blocks nothing",
			seed:  "due:nats a +0\ndue:nats b +0\nmsg b [nats:S 8] now",
			do:    claiming("nats", 10),
			want:  "b now +60000 0/0; wait 1m0s, 1 buried",
			state: "inflight:nats b +60000\nmsg b [nats:S 8] now\ndead a +0\ndeadmsg a corrupt 0 0 \"the message has no record\" raw \"\"\ndeadcount corrupt 1",
		}, {
			name:  "a lost lease without a record is one too",
			seed:  "inflight:nats a +0\ntries a 1 0",
			do:    claiming("nats", 10),
			want:  "nothing; wait none, 1 expired, 1 buried",
			state: "dead a +0\ndeadmsg a corrupt 1 1 \"the message has no record\" raw \"\"\ndeadcount corrupt 1",
		}, {
			name:  "a record of a format that is not known is a corrupt letter, bytes and all",
			seed:  "due:nats a +0\nmsg a raw \"2 nats:S 7\\nx\\x00y\"",
			do:    claiming("nats", 10),
			want:  "nothing; wait none, 1 buried",
			state: "dead a +0\ndeadmsg a corrupt 0 0 \"the record is of no known format\" raw \"2 nats:S 7\\nx\\x00y\"\ndeadcount corrupt 1",
		}, {
			name:  "a record whose message cannot be read is a corrupt letter, with its tombstone",
			seed:  "due:nats a +0\nmsg a raw \"1 nats:S 7\\n\\x96\"\ntries a 1 1",
			do:    claiming("nats", 10),
			want:  "nothing; wait 1m0s, 1 buried",
			state: "dead a +0\ndeadmsg a corrupt 1 1 \"corrupt record: 6 fields, want 7\" raw \"1 nats:S 7\\n\\x96\"\ndeadcount corrupt 1\ndone:b since +0\ndone:b a x nats:S 7",
		}, {
			name:  "a message in a lane that is not its own is a corrupt letter",
			seed:  "due:nats a +0\nmsg a [nats:S 7] kaf",
			do:    claiming("nats", 10),
			want:  "nothing; wait 1m0s, 1 buried",
			state: "dead a +0\ndeadmsg a corrupt 0 0 \"corrupt record: target \\\"kafka://t\\\" in lane nats\" [nats:S 7] kaf\ndeadcount corrupt 1\ndone:b since +0\ndone:b a x nats:S 7",
		}, {
			name:  "dying again takes the place of an older letter",
			seed:  "due:nats a +0\nmsg a raw \"?\"\ndead a -9\ndeadmsg a attempts 12 0 \"no\" [nats:S 6] hi\ndeadcount attempts 2\ndead b +0\ndeadmsg b attempts 1 0 \"no\" [nats:S 5] hi",
			do:    claiming("nats", 10),
			want:  "nothing; wait none, 1 buried",
			state: "dead a +0\ndeadmsg a corrupt 0 0 \"the record is of no known format\" raw \"?\"\ndeadcount corrupt 1\ndeadcount attempts 1\ndead b +0\ndeadmsg b attempts 1 0 \"no\" [nats:S 5] hi",
		}, {
			// B12 (sidekiq-scheduler#283): a clock that jumped ran everything, or stopped everything.
			name: "Redis's clock far ahead delivers nothing early",
			seed: "due:nats a +6000\nmsg a [nats:S 7] hi\ndue:nats b +5000\nmsg b [nats:S 8] hi",
			do: func(h *harness) string {
				h.now, h.host = 3_600_000, 0
				return h.claim("nats", 10)
			},
			want:  "b hi +3660000 0/0; wait 1s",
			state: "due:nats a +6000\nmsg a [nats:S 7] hi\ninflight:nats b +3660000\nmsg b [nats:S 8] hi",
		}, {
			name: "this host's clock far ahead delivers nothing early",
			seed: "due:nats a +1000\nmsg a [nats:S 7] hi",
			do: func(h *harness) string {
				h.now, h.host = 0, 3_600_000
				return h.claim("nats", 10)
			},
			want:  "nothing; wait 1s",
			state: same,
		}, {
			// B12, the other way round: an hour behind, the host holds back what its clock does not allow.
			name: "this host's clock behind by more than the tolerance holds back",
			seed: "due:nats a +1000\nmsg a [nats:S 7] hi",
			do: func(h *harness) string {
				h.now, h.host = 2000, -4001
				return h.claim("nats", 10)
			},
			want:  "nothing; wait 1ms",
			state: same,
		}, {
			// B24 (celery/kombu#337): a lease that began when the message was sent was over before it was due.
			name: "the lease begins with the claim, however long the message has waited",
			seed: "due:nats a +1000\nmsg a [nats:S 7] hi",
			do: func(h *harness) (all string) {
				h.q.cfg.Lease = 100 * time.Millisecond
				for _, now := range []int64{0, 500, 999, 1000, 1099} {
					all += h.at(now).claim("nats", 10) + "\n"
				}
				return all
			},
			want:  "nothing; wait 1s\nnothing; wait 500ms\nnothing; wait 1ms\na hi +1100 0/0; wait 100ms\nnothing; wait 1ms\n",
			state: "inflight:nats a +1100\nmsg a [nats:S 7] hi",
		}, {
			name: "the reply stops growing behind the record that passes the limit of bytes",
			seed: "due:nats a +0\ndue:nats b +0\ndue:nats c +0\nmsg a [nats:S 1] now\nmsg b [nats:S 2] now\nmsg c [nats:S 3] now",
			do: func(h *harness) string {
				h.q.cfg.MaxClaimBytes = len("1 nats:S 1\n" + encoded(h.t, "now"))
				return h.claim("nats", 10)
			},
			want:  "a now +60000 0/0, b now +60000 0/0; wait 0s",
			state: "inflight:nats a +60000\ninflight:nats b +60000\ndue:nats c +0\nmsg a [nats:S 1] now\nmsg b [nats:S 2] now\nmsg c [nats:S 3] now",
		}, {
			name: "lost leases count to the limit of bytes too",
			seed: "inflight:nats a +0\ninflight:nats b +0\ndue:nats c +0\nmsg a [nats:S 1] now\nmsg b [nats:S 2] now\nmsg c [nats:S 3] now",
			do: func(h *harness) string {
				h.q.cfg.MaxClaimBytes = 1
				return h.claim("nats", 10)
			},
			want:  "a now +60000 0/1; wait 0s, 1 expired",
			state: "inflight:nats a +60000\ninflight:nats b +0\ndue:nats c +0\nmsg a [nats:S 1] now\nmsg b [nats:S 2] now\nmsg c [nats:S 3] now\ntries a 0 1",
		}, {
			name: "a shard and a lane that there are not",
			do: func(h *harness) string {
				ctx := context.Background()
				g := h.q.Claim(ctx, "nats", []delaybridge.Ask{{Shard: 1, Limit: 1}, {Shard: -1, Limit: 1}, {Shard: 0, Limit: 1}})
				text := g[0].Err.Error() + ", " + g[1].Err.Error()
				if g[2].Err != nil {
					text += ", " + g[2].Err.Error()
				}
				return text + ", " + h.claim("smtp", 1)
			},
			want: `queue: no shard 1, queue: no shard -1, queue: no lane "smtp"`, state: "",
		}, {
			name: "one shard asked twice at once gives each id once",
			seed: "due:nats a +0\ndue:nats b +0\nmsg a [nats:S 1] now\nmsg b raw \"1 nats:S 2\\n\"",
			do: func(h *harness) string {
				g := h.q.Claim(context.Background(), "nats", []delaybridge.Ask{{Limit: 1}, {Limit: 5}})
				text := ""
				for _, g := range g {
					for _, c := range g.Claims {
						text += c.ID + " "
					}
					text += settled([]error{g.Err}) + "; "
					if g.Buried > 0 {
						text += "1 buried"
					}
				}
				return text
			},
			want:  "a ok; ok; 1 buried",
			state: "inflight:nats a +60000\nmsg a [nats:S 1] now\ndead b +0\ndeadmsg b corrupt 0 0 \"corrupt record: it ends too early\" raw \"1 nats:S 2\\n\"\ndeadcount corrupt 1\ndone:b since +0\ndone:b b x nats:S 2",
		},
	})
}

// TestReplacedInFlight: who holds the lease of a message that was replaced can
// do nothing to the new one, though that is claimed in the same millisecond.
func TestReplacedInFlight(t *testing.T) {
	ctx := context.Background()
	onBoth(t, func(t *testing.T, client redis.UniversalClient, shebang string) {
		for name, settle := range map[string]func(*Queue, delaybridge.Claim) []error{
			"ack":     func(q *Queue, c delaybridge.Claim) []error { return q.Ack(ctx, []delaybridge.Claim{c}) },
			"release": func(q *Queue, c delaybridge.Claim) []error { return q.Release(ctx, []delaybridge.Claim{c}) },
			"retry":   func(q *Queue, c delaybridge.Claim) []error { return q.Retry(ctx, []delaybridge.Retry{{Claim: c}}) },
			"bury": func(q *Queue, c delaybridge.Claim) []error {
				return q.Bury(ctx, []delaybridge.Burial{{Claim: c, Reason: delaybridge.ReasonAttempts}})
			},
		} {
			for _, row := range []struct {
				id, marks string
				apart     int64 // ms between the ends of the two leases
			}{
				{"a", "nats:S 7", 0},
				{"nats:S:7", "=", 1}, // the end alone tells
			} {
				t.Run(name+" "+row.id, func(t *testing.T) {
					cfg := testConfig()
					cfg.shebang = shebang
					h := newHarness(t, client, cfg)
					h.seed("due:nats " + row.id + " +0\nmsg " + row.id + " [" + row.marks + "] now")
					_, old := h.claims("nats", 1)
					if got := h.store(schedule(row.id, "now", "api:x 1")); got != "replaced" {
						t.Fatal(got)
					}
					_, young := h.claims("nats", 1)
					if len(old) != 1 || len(young) != 1 || old[0].Lease.End-young[0].Lease.End != row.apart {
						t.Fatalf("claims %+v, %+v", old, young)
					}
					before := h.state()
					if got := settled(settle(h.q, old[0])); got != "lease lost" {
						t.Errorf("the old lease: %s", got)
					}
					h.wantState(before)
					if got := settled(settle(h.q, young[0])); got != "ok" {
						t.Errorf("the new lease: %s", got)
					}
				})
			}
		}
	})
}

// Settling shows the lease of the claim; a row's claim is of id a, leased until +60000.
const leased = "inflight:nats a +60000\nmsg a [nats:S 7] hi\ntries a 1 2\n"

var lostLeases = []struct{ name, seed string }{
	{"a claim of a lease that has passed to another", "inflight:nats a +60001\nmsg a [nats:S 7] hi"},
	{"a claim of a message that was replaced, the new one leased until the same moment", "inflight:nats a +60000\nmsg a [nats:S 8] hi"},
	{"the same, where the marks of one begin the other's", "inflight:nats a +60000\nmsg a [nats:S 70] hi"},
	{"a claim of what is pending again", "due:nats a +0\nmsg a [nats:S 7] hi"},
	{"a claim of what is settled", "done:a since +0\ndone:a a d nats:S 7"},
	{"a claim in a lane that is not its own", "inflight:kafka a +60000\nmsg a [nats:S 7] kaf"},
}

// settling returns a row for each way to have lost a lease, in which nothing
// changes, and one with claims that no queue has given.
func settling(do func(*harness, ...delaybridge.Claim) []error) []transition {
	call := func(claims ...delaybridge.Claim) func(*harness) string {
		return func(h *harness) string { return settled(do(h, claims...)) }
	}
	var rows []transition
	for _, lost := range lostLeases {
		rows = append(rows, transition{
			name: lost.name, seed: lost.seed, now: 1000, state: same,
			do: call(claimOf("a", "hi", "nats:S 7", 60_000)), want: "lease lost",
		})
	}
	foreign := claimOf("a", "hi", "nats:S 7", 60_000)
	foreign.Lease.Shard = 7
	return append(rows, transition{
		name: "claims that carry no lease of this queue", seed: leased, now: 1000, state: same,
		do:   call(delaybridge.Claim{Message: message("a", "hi", "nats:S 7")}, foreign),
		want: `queue: id "a" carries no lease of this queue: lease lost, queue: id "a" carries no lease of this queue: lease lost`,
	}, transition{
		name: "no claims at all", seed: leased, do: call(), want: "", state: same,
	})
}

func TestAck(t *testing.T) {
	ack := func(h *harness, claims ...delaybridge.Claim) []error { return h.q.Ack(context.Background(), claims) }
	runTransitions(t, append(settling(ack), []transition{
		{
			name: "a delivered message is gone, but for its tombstone", seed: leased, now: 1000,
			do:    func(h *harness) string { return settled(ack(h, claimOf("a", "hi", "nats:S 7", 60_000))) },
			want:  "ok",
			state: "done:b since +1000\ndone:b a d nats:S 7",
		}, {
			name: "and so is its last error", seed: "inflight:nats a +60000\nmsg a [nats:S 7] hi\ntries a 1 2 no stream", now: 1000,
			do:    func(h *harness) string { return settled(ack(h, claimOf("a", "hi", "nats:S 7", 60_000))) },
			want:  "ok",
			state: "done:b since +1000\ndone:b a d nats:S 7",
		}, {
			name: "the tombstone knows all positions", seed: "inflight:nats a +60000\nmsg a [nats:S 7 kafka:t:0 3] hi",
			do:    func(h *harness) string { return settled(ack(h, claimOf("a", "hi", "nats:S 7 kafka:t:0 3", 60_000))) },
			want:  "ok",
			state: "done:b since +0\ndone:b a d nats:S 7 kafka:t:0 3",
		}, {
			name: "a message whose record has gone is delivered all the same", seed: "inflight:nats a +60000",
			do:    func(h *harness) string { return settled(ack(h, claimOf("a", "hi", "nats:S 7", 60_000))) },
			want:  "ok",
			state: "done:b since +0\ndone:b a d nats:S 7",
		}, {
			name: "a lease that has run out settles as long as nobody else has claimed", seed: leased, now: 90_000,
			do:    func(h *harness) string { return settled(ack(h, claimOf("a", "hi", "nats:S 7", 60_000))) },
			want:  "ok",
			state: "done:b since +90000\ndone:b a d nats:S 7",
		}, {
			name: "in a batch each claim has its own answer",
			seed: leased + "inflight:nats b +60000\nmsg b [nats:S 8] now\ninflight:kafka c +60000\nmsg c [nats:S 9] kaf",
			do: func(h *harness) string {
				return settled(ack(h, claimOf("b", "now", "nats:S 8", 59_999), claimOf("a", "hi", "nats:S 7", 60_000),
					claimOf("c", "kaf", "nats:S 9", 60_000), claimOf("a", "hi", "nats:S 7", 60_000)))
			},
			want:  "lease lost, ok, ok, ok",
			state: "inflight:nats b +60000\nmsg b [nats:S 8] now\ndone:b since +0\ndone:b a d nats:S 7\ndone:b c d nats:S 9",
		},
	}...))
}

func TestRetry(t *testing.T) {
	retry := func(after time.Duration, outlive bool) func(h *harness, claims ...delaybridge.Claim) []error {
		return func(h *harness, claims ...delaybridge.Claim) []error {
			var all []delaybridge.Retry
			for _, c := range claims {
				all = append(all, delaybridge.Retry{Claim: c, After: after, OutliveLease: outlive})
			}
			return h.q.Retry(context.Background(), all)
		}
	}
	one := func(after time.Duration, outlive bool) func(*harness) string {
		return func(h *harness) string {
			return settled(retry(after, outlive)(h, claimOf("a", "hi", "nats:S 7", 60_000)))
		}
	}
	failing := func(why ...string) func(*harness) string {
		return func(h *harness) string {
			var all []delaybridge.Retry
			for i, w := range why {
				c := claimOf(string(rune('a'+i)), "hi", fmt.Sprint("nats:S ", 7+i), 60_000)
				all = append(all, delaybridge.Retry{Claim: c, Error: w})
			}
			return settled(h.q.Retry(context.Background(), all))
		}
	}
	runTransitions(t, append(settling(retry(time.Second, false)), []transition{
		{
			name: "why it failed is kept", seed: leased, now: 2000,
			do: failing("nats: no stream matches subject"), want: "ok",
			state: "due:nats a +2000\nmsg a [nats:S 7] hi\ntries a 2 2 nats: no stream matches subject",
		}, {
			name: "in place of why it failed before", seed: "inflight:nats a +60000\nmsg a [nats:S 7] hi\ntries a 1 2 4 times no", now: 2000,
			do: failing("5"), want: "ok",
			state: "due:nats a +2000\nmsg a [nats:S 7] hi\ntries a 2 2 5",
		}, {
			name: "which is not known any more where nothing is said", seed: "inflight:nats a +60000\nmsg a [nats:S 7] hi\ntries a 1 2 no", now: 2000,
			do: failing(" \n"), want: "ok",
			state: "due:nats a +2000\nmsg a [nats:S 7] hi\ntries a 2 2",
		}, {
			name: "each of a batch has its own", now: 2000,
			seed: leased + "inflight:nats b +60000\nmsg b [nats:S 8] hi\ninflight:nats c +60000\nmsg c [nats:S 9] hi",
			do:   failing("no", "", "why not"), want: "ok, ok, ok",
			state: "due:nats a +2000\nmsg a [nats:S 7] hi\ntries a 2 2 no\ndue:nats b +2000\nmsg b [nats:S 8] hi\ntries b 1 0\n" +
				"due:nats c +2000\nmsg c [nats:S 9] hi\ntries c 1 0 why not",
		}, {
			name: "as one line, in which nothing steers a terminal", seed: leased, now: 2000,
			do: failing("\tno\r\n\x1b[2J\x00\u202eé\xff 1 1"), want: "ok",
			state: "due:nats a +2000\nmsg a [nats:S 7] hi\ntries a 2 2 no ?[2J??é? 1 1",
		}, {
			name: "as long as it may be", seed: leased, now: 2000,
			do: failing(strings.Repeat("x", 256)), want: "ok",
			state: "due:nats a +2000\nmsg a [nats:S 7] hi\ntries a 2 2 " + strings.Repeat("x", 256),
		}, {
			name: "cut where it is longer, through no character", seed: leased, now: 2000,
			do: failing(strings.Repeat("x", 251) + "€€"), want: "ok",
			state: "due:nats a +2000\nmsg a [nats:S 7] hi\ntries a 2 2 " + strings.Repeat("x", 251) + "…",
		},
		{
			name: "it comes back later, with one more attempt", seed: leased, now: 2000,
			do: one(4*time.Second, false), want: "ok",
			state: "due:nats a +6000\nmsg a [nats:S 7] hi\ntries a 2 2",
		}, {
			name: "the first attempt is counted too", seed: "inflight:nats a +60000\nmsg a [nats:S 7] hi", now: 2000,
			do: one(0, false), want: "ok",
			state: "due:nats a +2000\nmsg a [nats:S 7] hi\ntries a 1 0",
		}, {
			name: "an unknown outcome is not tried again before the lease would have ended", seed: leased, now: 2000,
			do: one(4*time.Second, true), want: "ok",
			state: "due:nats a +60001\nmsg a [nats:S 7] hi\ntries a 2 2",
		}, {
			name: "nor earlier than asked", seed: leased, now: 2000,
			do: one(2*time.Minute, true), want: "ok",
			state: "due:nats a +122000\nmsg a [nats:S 7] hi\ntries a 2 2",
		}, {
			name: "nor before it was due, where the clock has stepped back", seed: leased, now: -5000,
			do: one(time.Second, false), want: "ok",
			state: "due:nats a +1000\nmsg a [nats:S 7] hi\ntries a 2 2",
		}, {
			name: "a negative wait is none", seed: leased, now: 2000,
			do: one(-time.Hour, false), want: "ok",
			state: "due:nats a +2000\nmsg a [nats:S 7] hi\ntries a 2 2",
		}, {
			name: "one claim twice in a batch counts once", seed: leased, now: 2000,
			do: func(h *harness) string {
				c := claimOf("a", "hi", "nats:S 7", 60_000)
				return settled(retry(time.Second, false)(h, c, c))
			},
			want:  "ok, lease lost",
			state: "due:nats a +3000\nmsg a [nats:S 7] hi\ntries a 2 2",
		},
	}...))
}

func TestRelease(t *testing.T) {
	release := func(h *harness, claims ...delaybridge.Claim) []error {
		return h.q.Release(context.Background(), claims)
	}
	runTransitions(t, append(settling(release), transition{
		name: "it is due again at once, with its attempts as they were", seed: leased, now: 5000,
		do:    func(h *harness) string { return settled(release(h, claimOf("a", "hi", "nats:S 7", 60_000))) },
		want:  "ok",
		state: "due:nats a +1000\nmsg a [nats:S 7] hi\ntries a 1 2",
	}, transition{
		name: "and with its last error", seed: "inflight:nats a +60000\nmsg a [nats:S 7] hi\ntries a 1 2 no stream", now: 5000,
		do:    func(h *harness) string { return settled(release(h, claimOf("a", "hi", "nats:S 7", 60_000))) },
		want:  "ok",
		state: "due:nats a +1000\nmsg a [nats:S 7] hi\ntries a 1 2 no stream",
	}, transition{
		name: "one claim twice in a batch", seed: leased, now: 5000,
		do: func(h *harness) string {
			c := claimOf("a", "hi", "nats:S 7", 60_000)
			return settled(release(h, c, c))
		},
		want:  "ok, lease lost",
		state: "due:nats a +1000\nmsg a [nats:S 7] hi\ntries a 1 2",
	}, transition{
		name: "a time before 1970 stays as due as can be", seed: "inflight:nats a +60000\nmsg a [nats:S 7] old",
		do:    func(h *harness) string { return settled(release(h, claimOf("a", "old", "nats:S 7", 60_000))) },
		want:  "ok",
		state: "due:nats a 0\nmsg a [nats:S 7] old",
	}))
}

func TestBury(t *testing.T) {
	bury := func(reason delaybridge.Reason, why string) func(h *harness, claims ...delaybridge.Claim) []error {
		return func(h *harness, claims ...delaybridge.Claim) []error {
			var all []delaybridge.Burial
			for _, c := range claims {
				c.LostLeases = 2
				all = append(all, delaybridge.Burial{Claim: c, Reason: reason, Error: why, Failed: 3})
			}
			return h.q.Bury(context.Background(), all)
		}
	}
	one := claimOf("a", "hi", "nats:S 7", 60_000)
	rows := append(settling(bury(delaybridge.ReasonPermanent, "no")), transition{
		name: "it is a dead letter with all that is known of it", seed: leased, now: 5000,
		do:    func(h *harness) string { return settled(bury(delaybridge.ReasonPermanent, "no: 7\n\x00é")(h, one)) },
		want:  "ok",
		state: "dead a +5000\ndeadmsg a permanent 3 2 \"no: 7\\n\\x00é\" [nats:S 7] hi\ndeadcount permanent 1\ndone:b since +5000\ndone:b a x nats:S 7",
	}, transition{
		name: "one without a record dies without one", seed: "inflight:nats a +60000", now: 5000,
		do:    func(h *harness) string { return settled(bury(delaybridge.ReasonExpired, "")(h, one)) },
		want:  "ok",
		state: "dead a +5000\ndeadmsg a expired 3 2 \"\" raw \"\"\ndeadcount expired 1\ndone:b since +5000\ndone:b a x nats:S 7",
	}, transition{
		name: "one claim twice in a batch dies once", seed: leased, now: 5000,
		do:    func(h *harness) string { return settled(bury(delaybridge.ReasonAttempts, "no")(h, one, one)) },
		want:  "ok, lease lost",
		state: "dead a +5000\ndeadmsg a attempts 3 2 \"no\" [nats:S 7] hi\ndeadcount attempts 1\ndone:b since +5000\ndone:b a x nats:S 7",
	}, transition{
		name: "it takes the place of an older letter of its id, whose reason counts one less", now: 5000,
		seed:  leased + "dead a +0\ndeadmsg a rejected 0 0 \"old\" [nats:S 6] now\ndeadcount rejected 1",
		do:    func(h *harness) string { return settled(bury(delaybridge.ReasonAttempts, "no")(h, one)) },
		want:  "ok",
		state: "dead a +5000\ndeadmsg a attempts 3 2 \"no\" [nats:S 7] hi\ndeadcount attempts 1\ndone:b since +5000\ndone:b a x nats:S 7",
	})
	runTransitions(t, rows)
}

func TestReject(t *testing.T) {
	reject := func(id, position, why string) delaybridge.Request {
		m := message(id, "hi", position)
		return delaybridge.Request{Op: delaybridge.OpReject, Message: m, Error: why}
	}
	runTransitions(t, []transition{
		{
			name:  "it is a dead letter at once",
			do:    storing(reject("rejected:nats:S:7", "nats:S 7", "no target")),
			want:  "rejected",
			state: "dead rejected:nats:S:7 +0\ndeadmsg rejected:nats:S:7 rejected 0 0 \"no target\" [nats:S 7] hi\ndeadcount rejected 1\ndone:b since +0\ndone:b rejected:nats:S:7 x nats:S 7",
		}, {
			name:  "a redelivery while the letter is there",
			seed:  "dead r +0\ndeadmsg r rejected 0 0 \"no\" [nats:S 7] hi\ndeadcount rejected 1",
			do:    storing(reject("r", "nats:S 7", "no")),
			want:  "duplicate",
			state: same,
		}, {
			name:  "a dead message that was given this id does not keep it out",
			seed:  "dead r -5\ndeadmsg r permanent 2 1 \"no\\n\" [nats:S 3] kaf\ndeadcount permanent 1\ndone:a since +0\ndone:a r x nats:S 3",
			do:    storing(reject("r", "nats:S 7", "no target"), reject("r", "nats:S 7", "no target")),
			want:  "rejected, duplicate",
			state: "dead r +0\ndeadmsg r rejected 0 0 \"no target\" [nats:S 7] hi\ndeadcount rejected 1\ndone:a since +0\ndone:a r x nats:S 7",
		}, {
			name:  "nor does one whose tombstone is gone, or that cannot be read",
			seed:  "dead r -5\ndead s -5\ndeadmsg r attempts 2 1 \"no\" [kafka:t:0 9] kaf\ndeadmsg s corrupt 0 0 \"no\" raw \"x\"\ndeadcount attempts 1\ndeadcount corrupt 1",
			do:    storing(reject("r", "nats:S 7", "no"), reject("s", "nats:S 8", "no")),
			want:  "rejected, rejected",
			state: "dead r +0\ndead s +0\ndeadmsg r rejected 0 0 \"no\" [nats:S 7] hi\ndeadmsg s rejected 0 0 \"no\" [nats:S 8] hi\ndeadcount rejected 2\ndone:b since +0\ndone:b r x nats:S 7\ndone:b s x nats:S 8",
		}, {
			name:  "a redelivery when it has been purged or replayed",
			seed:  "done:a since +0\ndone:a r x nats:S 7",
			do:    storing(reject("r", "nats:S 7", "no")),
			want:  "duplicate",
			state: same,
		}, {
			name:  "several in one batch, one of them twice",
			do:    storing(reject("r", "nats:S 7", "no"), reject("s", "nats:S 8", ""), reject("r", "nats:S 7", "no")),
			want:  "rejected, rejected, duplicate",
			state: "dead r +0\ndead s +0\ndeadmsg r rejected 0 0 \"no\" [nats:S 7] hi\ndeadmsg s rejected 0 0 \"\" [nats:S 8] hi\ndeadcount rejected 2\ndone:b since +0\ndone:b r x nats:S 7\ndone:b s x nats:S 8",
		}, {
			name:  "the positions of other sources go on being known",
			seed:  "done:a since +0\ndone:a r x kafka:t:0 2",
			do:    storing(reject("r", "nats:S 7", "no")),
			want:  "rejected",
			state: "dead r +0\ndeadmsg r rejected 0 0 \"no\" [nats:S 7 kafka:t:0 2] hi\ndeadcount rejected 1\ndone:a since +0\ndone:a r x nats:S 7 kafka:t:0 2",
		},
	})
}

func TestReplay(t *testing.T) {
	const dead = "dead a +5\ndeadmsg a attempts 12 2 \"no\" [nats:S 7] hi\ndeadcount attempts 1\n"
	replay := func(force bool) func(*harness) string {
		return func(h *harness) string {
			ctx := context.Background()
			letter, err := h.q.DeadLetter(ctx, "a")
			if err != nil {
				return err.Error()
			}
			return settled([]error{h.replay(letter, "again", force)})
		}
	}
	runTransitions(t, []transition{
		{
			name: "it is pending again, without attempts",
			seed: dead + "done:a since +0\ndone:a a x nats:S 7 kafka:t:0 3", do: replay(false), want: "ok",
			state: "due:nats a +3000\nmsg a [api:replay 1 nats:S 7 kafka:t:0 3] again\ndone:a since +0\ndone:a a x nats:S 7 kafka:t:0 3",
		}, {
			name: "it knows its positions without a tombstone, so that a redelivery stays out",
			seed: dead,
			do: func(h *harness) string {
				return replay(false)(h) + ", " + h.store(schedule("a", "hi", "nats:S 7"))
			},
			want:  "ok, duplicate",
			state: "due:nats a +3000\nmsg a [api:replay 1 nats:S 7] again",
		}, {
			name: "an id that is pending is refused",
			seed: dead + "due:nats a +1000\nmsg a [nats:S 8] hi", do: replay(false),
			want: `replay "a": id is pending`, state: same,
		}, {
			name: "an id that is in flight is refused",
			seed: dead + "inflight:kafka a +1000\nmsg a [nats:S 8] kaf", do: replay(false),
			want: `replay "a": id is pending`, state: same,
		}, {
			name: "unless it is forced: what is pending is replaced, in any lane",
			seed: dead + "due:kafka a +1000\nmsg a [nats:S 8] kaf", do: replay(true), want: "ok",
			state: "due:nats a +3000\nmsg a [api:replay 1 nats:S 8] again",
		}, {
			name: "forced upon what is in flight, whose lease cannot settle it",
			seed: dead + "inflight:nats a +60000\nmsg a [nats:S 8] hi", do: replay(true), want: "ok",
			state: "due:nats a +3000\nmsg a [api:replay 1 nats:S 8] again",
		}, {
			name: "forced upon a record that cannot be read",
			seed: dead + "due:nats a +1000\nmsg a raw \"?\"", do: replay(true), want: "ok",
			state: "due:nats a +3000\nmsg a [api:replay 1 nats:S 7] again",
		}, {
			name: "a letter that is not there", do: replay(false), want: `dead letter "a": unknown id`, state: "",
		}, {
			name: "a letter that has died again since it was read",
			seed: dead,
			do: func(h *harness) string {
				letter, err := h.q.DeadLetter(context.Background(), "a")
				if err != nil {
					return err.Error()
				}
				letter.Died = letter.Died.Add(-time.Millisecond)
				return settled([]error{h.replay(letter, "again", true)})
			},
			want: `replay "a": unknown id`, state: same,
		}, {
			name: "two replays of one letter: one of them is told that it is gone",
			seed: dead,
			do: func(h *harness) string {
				letter, err := h.q.DeadLetter(context.Background(), "a")
				if err != nil {
					return err.Error()
				}
				return settled([]error{h.replay(letter, "again", true), h.replay(letter, "again", true)})
			},
			want: `ok, replay "a": unknown id`, state: "due:nats a +3000\nmsg a [api:replay 1 nats:S 7] again",
		}, {
			name: "a message of another id, or of no known sink, is refused",
			seed: dead,
			do: func(h *harness) string {
				ctx := context.Background()
				letter, err := h.q.DeadLetter(ctx, "a")
				if err != nil {
					return err.Error()
				}
				odd := letter.Message
				odd.Target.Sink = "smtp"
				return settled([]error{
					h.q.Replay(ctx, letter, message("b", "hi", "nats:S 7"), true), h.q.Replay(ctx, letter, odd, true),
				})
			},
			want:  `replay "a": invalid: target "nats://x", id "b", replay "a": invalid: target "smtp://x", id "a"`,
			state: same,
		},
	})
}

func TestPurge(t *testing.T) {
	const dead = "dead a +5\ndeadmsg a attempts 12 2 \"no\" [nats:S 7] hi\ndead b +6\ndeadmsg b attempts 1 0 \"no\" [nats:S 8] hi\ndeadcount attempts 2\n"
	purge := func(change func([]Letter) []Letter) func(*harness) string {
		return func(h *harness) string {
			ctx := context.Background()
			letters, _, err := h.q.Dead(ctx, 10, "")
			if err != nil {
				return err.Error()
			}
			return settled(h.q.Purge(ctx, change(letters)))
		}
	}
	runTransitions(t, []transition{
		{
			name: "some of them", seed: dead + "done:a since +0\ndone:a a x nats:S 7",
			do:    purge(func(l []Letter) []Letter { return l[:1] }),
			want:  "ok",
			state: "dead b +6\ndeadmsg b attempts 1 0 \"no\" [nats:S 8] hi\ndeadcount attempts 1\ndone:a since +0\ndone:a a x nats:S 7",
		}, {
			name: "all of them, one of them twice", seed: dead,
			do:    purge(func(l []Letter) []Letter { return append(l, l[0]) }),
			want:  `ok, ok, purge "a": unknown id`,
			state: "",
		}, {
			name: "none", seed: dead,
			do: purge(func(l []Letter) []Letter { return nil }), want: "", state: same,
		}, {
			name: "one that has died again since it was read stays", seed: dead,
			do: purge(func(l []Letter) []Letter {
				l[0].Died = l[0].Died.Add(-time.Second)
				return l[:1]
			}),
			want: `purge "a": unknown id`, state: same,
		}, {
			name: "one whose bytes nobody can read", seed: "dead a +5",
			do: purge(func(l []Letter) []Letter { return l }), want: "ok", state: "",
		},
	})
}

func TestSweep(t *testing.T) {
	const window, hour = 600_000, 3_600_000
	sweep := func(h *harness) string {
		n, err := h.q.Sweep(context.Background(), 0)
		if err != nil {
			return err.Error()
		}
		return time.Duration(n).String()
	}
	const dead = "dead a +5\ndeadmsg a attempts 12 2 \"no\" [nats:S 7] hi\ndead b +6\ndeadmsg b corrupt 1 0 \"no\" raw \"\"\ndeadcount attempts 1\ndeadcount corrupt 1\n"
	tombs := "done:a since +0\ndone:a a d nats:S 7\ndone:b since -600000\ndone:b b d nats:S 6\n"
	runTransitions(t, []transition{
		{name: "nothing there", do: sweep, want: "0s", state: ""},
		{name: "within the window all stay", seed: tombs, now: window - 1, do: sweep, want: "0s", state: same},
		{
			name: "after one window of rest the older tombstones go", seed: tombs, now: window, do: sweep, want: "0s",
			state: "done:a since +0\ndone:a a d nats:S 7",
		},
		{name: "after two all go", seed: tombs, now: 2 * window, do: sweep, want: "0s", state: ""},
		{name: "a clock that steps back lets none go", seed: tombs, now: -9 * window, do: sweep, want: "0s", state: same},
		{name: "dead letters within their retention stay", seed: dead, now: hour + 4, do: sweep, want: "0s", state: same},
		{
			name: "older ones go", seed: dead, now: hour + 5, do: sweep, want: "1ns",
			state: "dead b +6\ndeadmsg b corrupt 1 0 \"no\" raw \"\"\ndeadcount corrupt 1",
		},
		{name: "even those that nobody can read", seed: dead, now: hour + 6, do: sweep, want: "2ns", state: ""},
		{
			name: "Redis's clock far ahead makes nothing old", seed: dead + tombs, state: same, want: "0s",
			do: func(h *harness) string {
				h.now, h.host = 1000*hour, window-5001
				return sweep(h)
			},
		},
		{
			name: "a retention of 0 keeps them for ever", seed: dead, now: 1000 * hour, want: "0s", state: same,
			do: func(h *harness) string {
				h.q.cfg.DeadRetention = 0
				return sweep(h)
			},
		},
		{
			name: "a shard that there is not", want: "queue: no shard 1", state: "",
			do: func(h *harness) string {
				_, err := h.q.Sweep(context.Background(), 1)
				return err.Error()
			},
		},
	})
}
