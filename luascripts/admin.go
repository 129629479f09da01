package luascripts

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"delaybridge"
)

// Errors of questions about one message or dead letter.
var (
	// ErrUnknown says that nothing is known of an id, or not any more.
	ErrUnknown = errors.New("unknown id")
	// ErrPending says that a replay was refused, since its id is pending again.
	ErrPending = errors.New("id is pending")
	// ErrCursor says that a list cannot go on from a cursor it did not give.
	ErrCursor = errors.New("bad cursor")
)

// Status is what is known of one id.
type Status struct {
	State delaybridge.State
	// Message is set while it is pending or in flight, and for a dead letter
	// that can be read.
	Message *delaybridge.Message
	// Due is when it will be tried next, while it is pending; LeaseEnd is when
	// its lease ends, while it is in flight.
	Due, LeaseEnd time.Time
	// Failed counts the failed attempts, LostLeases the leases that ran out.
	Failed, LostLeases int
	// LastError is why the last attempt failed, of at most
	// delaybridge.MaxLastErrorBytes; of a dead letter, its error. Empty if none did.
	LastError string
}

// Get says what is known of an id; the error matches ErrUnknown if nothing is.
func (q *Queue) Get(ctx context.Context, id string) (Status, error) {
	k := &q.keys[shardOf(id, q.cfg.Shards)]
	var due, inflight [len(delaybridge.Lanes)]*redis.FloatCmd
	var record, tries, doneA, doneB, sinceA, sinceB, letter *redis.StringCmd
	var died *redis.FloatCmd
	// Not in a transaction, which a full Redis refuses: so short a pipeline is
	// read in one go as it is.
	err := reading(q.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		record, tries = p.HGet(ctx, k.msg, id), p.HGet(ctx, k.tries, id)
		doneA, doneB = p.HGet(ctx, k.doneA, id), p.HGet(ctx, k.doneB, id)
		sinceA, sinceB = p.HGet(ctx, k.doneA, ""), p.HGet(ctx, k.doneB, "")
		letter, died = p.HGet(ctx, k.deadmsg, id), p.ZScore(ctx, k.dead, id)
		for l := range due {
			due[l], inflight[l] = p.ZScore(ctx, k.due[l], id), p.ZScore(ctx, k.inflight[l], id)
		}
		return nil
	}))
	if err != nil {
		return Status{}, fmt.Errorf("get %q: %w", id, err)
	}
	if id == "" {
		return Status{}, fmt.Errorf("get: %w", ErrUnknown)
	}
	var s Status
	if record.Err() == nil {
		if m, _, err := decodeRecord(id, record.Val()); err == nil {
			s.Message = &m
		}
		s.Failed, s.LostLeases, s.LastError = parseTries(tries.Val())
		s.State = delaybridge.StatePending
		for l := range due {
			if due[l].Err() == nil {
				s.Due = time.UnixMilli(int64(due[l].Val()))
			}
			if inflight[l].Err() == nil {
				s.State, s.LeaseEnd = delaybridge.StateInFlight, time.UnixMilli(int64(inflight[l].Val()))
			}
		}
		return s, nil
	}
	tomb := doneA.Val()
	if tomb == "" || (doneB.Val() != "" && atoi(sinceB.Val()) > atoi(sinceA.Val())) {
		tomb = cmp.Or(doneB.Val(), tomb)
	}
	isDead := died.Err() == nil
	switch {
	case strings.HasPrefix(tomb, "d "):
		s.State = delaybridge.StateDelivered
	case strings.HasPrefix(tomb, "c "):
		s.State = delaybridge.StateCancelled
	case isDead:
		s.State = delaybridge.StateDead
		d, _ := decodeLetter(id, letter.Val(), time.UnixMilli(int64(died.Val())))
		s.Failed, s.LostLeases, s.LastError = d.Attempts, d.LostLeases, d.Error
		if !d.Corrupt {
			s.Message = &d.Message
		}
	default:
		return Status{}, fmt.Errorf("get %q: %w", id, ErrUnknown)
	}
	return s, nil
}

// reading returns the first error of a pipeline of reads. That something is not
// there is none: each command says so by itself.
func reading(cmds []redis.Cmder, err error) error {
	for _, c := range cmds {
		if err := c.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
	}
	if len(cmds) == 0 || !errors.Is(err, redis.Nil) {
		return err
	}
	return nil
}

func atoi(s string) int64 {
	n, _ := strconv.ParseInt(s, 10, 64)
	return n
}

// parseTries reads "<failed> <lost>" or "<failed> <lost> <error>", "" as none.
func parseTries(s string) (failed, lost int, lastError string) {
	f, rest, _ := strings.Cut(s, " ")
	l, lastError, _ := strings.Cut(rest, " ")
	return int(atoi(f)), int(atoi(l)), lastError
}

// Failing counts the messages that have failed attempts or lost leases behind them,
// and returns one whose last attempt failed, if a quick look finds one; its ID is
// empty otherwise.
func (q *Queue) Failing(ctx context.Context) (count int64, one Pending, err error) {
	counts := make([]*redis.IntCmd, len(q.keys))
	some := make([]*redis.ScanCmd, len(q.keys))
	err = reading(q.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range q.keys {
			counts[i], some[i] = p.HLen(ctx, q.keys[i].tries), p.HScan(ctx, q.keys[i].tries, 0, "", 10)
		}
		return nil
	}))
	if err != nil {
		return 0, Pending{}, fmt.Errorf("failing: %w", err)
	}
	for i := range q.keys {
		count += counts[i].Val()
		fields, _ := some[i].Val()
		for n := 0; n+1 < len(fields) && one.ID == ""; n += 2 {
			if failed, lost, lastError := parseTries(fields[n+1]); lastError != "" {
				one = Pending{ID: fields[n], Failed: failed, LostLeases: lost, LastError: lastError}
			}
		}
	}
	if one.ID == "" {
		return count, one, nil
	}
	s, err := q.Get(ctx, one.ID)
	if err != nil && !errors.Is(err, ErrUnknown) {
		return 0, Pending{}, err
	}
	one.Message, one.Due = s.Message, s.Due
	return count, one, nil
}

// Pending is one pending message of a list.
type Pending struct {
	// Message is nil if its record cannot be read.
	Message    *delaybridge.Message
	ID, Lane   string
	Due        time.Time
	Failed     int
	LostLeases int
	LastError  string
}

// List returns up to limit pending messages by due time, of one lane or of all
// (an empty lane), beginning behind the cursor that the list before it returned,
// and the cursor to go on with, empty at the end. What is scheduled or delivered
// meanwhile may be missed; what stays pending is not.
func (q *Queue) List(ctx context.Context, lane string, limit int, after string) ([]Pending, string, error) {
	var items []Pending
	next, err := q.WalkPending(ctx, lane, limit, after, func(p Pending) { items = append(items, p) })
	if err != nil {
		return nil, "", err
	}
	return items, next, nil
}

// WalkPending is List, but hands over one message after the other: only some
// megabytes of them are in memory at a time, however large they are.
func (q *Queue) WalkPending(ctx context.Context, lane string, limit int, after string, each func(Pending)) (next string, err error) {
	lanes := delaybridge.Lanes[:]
	if lane != "" {
		if laneIndex(lane) < 0 {
			return "", fmt.Errorf("list: no lane %q", lane)
		}
		lanes = []string{lane}
	}
	sets := make([]string, 0, len(lanes)*len(q.keys))
	at := map[string]struct{ shard, lane int }{}
	for shard := range q.keys {
		for _, name := range lanes {
			set := q.keys[shard].due[laneIndex(name)]
			sets = append(sets, set)
			at[set] = struct{ shard, lane int }{shard, laneIndex(name)}
		}
	}
	entries, next, err := q.page(ctx, sets, limit, after)
	if err != nil {
		return "", fmt.Errorf("list: %w", err)
	}
	err = inParts(len(entries), func(from, to int) (bytes int, err error) {
		part := entries[from:to]
		records := make([]*redis.StringCmd, len(part))
		tries := make([]*redis.StringCmd, len(part))
		err = reading(q.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, e := range part {
				k := &q.keys[at[e.set].shard]
				records[i], tries[i] = p.HGet(ctx, k.msg, e.id), p.HGet(ctx, k.tries, e.id)
			}
			return nil
		}))
		if err != nil {
			return 0, err
		}
		for i, e := range part {
			item := Pending{ID: e.id, Lane: delaybridge.Lanes[at[e.set].lane], Due: time.UnixMilli(e.score)}
			if m, _, err := decodeRecord(e.id, records[i].Val()); err == nil {
				item.Message = &m
			}
			item.Failed, item.LostLeases, item.LastError = parseTries(tries[i].Val())
			bytes += len(records[i].Val())
			each(item)
		}
		return bytes, nil
	})
	if err != nil {
		return "", fmt.Errorf("list: %w", err)
	}
	return next, nil
}

// What is read at a time of a list whose records may be of any size.
const (
	partFirst = 4   // records, of which no size is known yet
	partMost  = 250 // records
	partBytes = 4 << 20
)

// inParts has n records read in parts of some partBytes, judged by the part before:
// read says how many bytes there were.
func inParts(n int, read func(from, to int) (bytes int, err error)) error {
	for from, size := 0, partFirst; from < n; {
		to := min(n, from+size)
		bytes, err := read(from, to)
		if err != nil {
			return err
		}
		size = min(partMost, max(1, partBytes*(to-from)/max(1, bytes)))
		from = to
	}
	return nil
}

// entry is one member of a sorted set.
type entry struct {
	set, id string
	score   int64
}

func (e entry) compare(o entry) int {
	return cmp.Or(cmp.Compare(e.score, o.score), strings.Compare(e.id, o.id))
}

// cursor is what a list that ended here goes on with.
func (e entry) cursor() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(e.score, 10) + " " + e.id))
}

// page merges sorted sets by score and then id, limit at a time, beginning
// behind a cursor "<score> <id>".
func (q *Queue) page(ctx context.Context, sets []string, limit int, after string) ([]entry, string, error) {
	limit = min(max(limit, 1), 1000)
	var from entry
	if after != "" {
		text, err := base64.RawURLEncoding.DecodeString(after)
		score, id, ok := strings.Cut(string(text), " ")
		if from.score, _ = strconv.ParseInt(score, 10, 64); err != nil || !ok || strconv.FormatInt(from.score, 10) != score {
			return nil, "", fmt.Errorf("%w %q", ErrCursor, after)
		}
		from.id = id
	}
	runs := make([]*run, len(sets))
	for i, set := range sets {
		runs[i] = &run{script: q.scripts.page, keys: []string{set}, args: []any{from.score, from.id, limit + 1}}
	}
	do(ctx, q.client, runs)
	var all []entry
	for i, r := range runs {
		list, ok := r.reply.([]any)
		if r.err == nil && !ok {
			r.err = fmt.Errorf("%s: unexpected reply %.80v", r.script.name, r.reply)
		}
		if r.err != nil {
			return nil, "", r.err
		}
		for n := 0; n+1 < len(list); n += 2 {
			id, _ := list[n].(string)
			text, _ := list[n+1].(string)
			// Some servers write round numbers as 1.79e+12.
			score, _ := strconv.ParseFloat(text, 64)
			all = append(all, entry{set: sets[i], id: id, score: int64(score)})
		}
	}
	slices.SortFunc(all, entry.compare)
	if len(all) <= limit {
		return all, "", nil
	}
	return all[:limit], all[limit-1].cursor(), nil
}

// LaneStats counts one lane.
type LaneStats struct {
	Pending, InFlight int64
	// Overdue is how many are due and not claimed yet; OverdueFor is the age of
	// the oldest of them.
	Overdue    int64
	OverdueFor time.Duration
	// Far is how many are due in over an hour.
	Far int64
	// NextDue is when the earliest is due, zero if there is none.
	NextDue time.Time
}

// Stats counts the whole queue. Its cost does not grow with what is pending.
type Stats struct {
	Lanes map[string]LaneStats
	Dead  map[delaybridge.Reason]int64
	// Now is Redis's clock.
	Now time.Time
}

// Stats counts the queue.
func (q *Queue) Stats(ctx context.Context) (Stats, error) {
	now, err := q.redisNow(ctx)
	if err != nil {
		return Stats{}, fmt.Errorf("stats: %w", err)
	}
	type counts struct {
		pending, inflight, overdue, far *redis.IntCmd
		head                            *redis.ZSliceCmd
	}
	lanes := make([][len(delaybridge.Lanes)]counts, len(q.keys))
	dead := make([]*redis.MapStringStringCmd, len(q.keys))
	ms := func(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }
	_, err = q.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range q.keys {
			k := &q.keys[i]
			for l := range lanes[i] {
				lanes[i][l] = counts{
					pending: p.ZCard(ctx, k.due[l]), inflight: p.ZCard(ctx, k.inflight[l]),
					overdue: p.ZCount(ctx, k.due[l], "-inf", ms(now)),
					far:     p.ZCount(ctx, k.due[l], "("+ms(now.Add(time.Hour)), "+inf"),
					head:    p.ZRangeWithScores(ctx, k.due[l], 0, 0),
				}
			}
			dead[i] = p.HGetAll(ctx, k.deadcount)
		}
		return nil
	})
	if err != nil {
		return Stats{}, fmt.Errorf("stats: %w", err)
	}
	s := Stats{Lanes: map[string]LaneStats{}, Dead: map[delaybridge.Reason]int64{}, Now: now}
	for l, name := range delaybridge.Lanes {
		var sum LaneStats
		for i := range lanes {
			c := &lanes[i][l]
			sum.Pending += c.pending.Val()
			sum.InFlight += c.inflight.Val()
			sum.Overdue += c.overdue.Val()
			sum.Far += c.far.Val()
			if head := c.head.Val(); len(head) > 0 {
				if at := time.UnixMilli(int64(head[0].Score)); sum.NextDue.IsZero() || at.Before(sum.NextDue) {
					sum.NextDue = at
				}
			}
		}
		if !sum.NextDue.IsZero() {
			sum.OverdueFor = max(0, now.Sub(sum.NextDue))
		}
		s.Lanes[name] = sum
	}
	for _, reason := range delaybridge.Reasons {
		s.Dead[reason] = 0
	}
	for _, d := range dead {
		for reason, n := range d.Val() {
			s.Dead[delaybridge.Reason(reason)] += atoi(n)
		}
	}
	return s, nil
}

func (q *Queue) redisNow(ctx context.Context) (time.Time, error) {
	if q.cfg.clock != nil {
		return q.cfg.clock(), nil
	}
	return q.client.Time(ctx).Result()
}

// Pressure measures how full the queue and Redis are.
func (q *Queue) Pressure(ctx context.Context) (delaybridge.Pressure, error) {
	var cards []*redis.IntCmd
	_, err := q.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range q.keys {
			cards = append(cards, p.HLen(ctx, q.keys[i].msg))
		}
		return nil
	})
	if err != nil {
		return delaybridge.Pressure{}, fmt.Errorf("pressure: %w", err)
	}
	var out delaybridge.Pressure
	for _, c := range cards {
		out.Pending += c.Val()
	}
	for _, info := range q.infos(ctx, "memory") {
		if _, refused := errors.AsType[redis.Error](info.err); refused {
			continue // hosted and embedded servers may not tell, and have no limit that we know
		}
		if info.err != nil {
			return delaybridge.Pressure{}, fmt.Errorf("pressure: %w", info.err)
		}
		if limit := atoi(info.fields["maxmemory"]); limit > 0 {
			out.MemoryRatio = max(out.MemoryRatio, float64(atoi(info.fields["used_memory"]))/float64(limit))
		}
	}
	return out, nil
}

// Sweep lets go of what has outlived its time in one shard: tombstones of idle
// shards, and dead letters older than the retention, whose number it returns.
func (q *Queue) Sweep(ctx context.Context, shard int) (dropped int, err error) {
	if shard < 0 || shard >= len(q.keys) {
		return 0, fmt.Errorf("queue: no shard %d", shard)
	}
	k := &q.keys[shard]
	for {
		r := &run{
			script: q.scripts.sweep,
			keys:   []string{k.dead, k.deadmsg, k.deadcount, k.doneA, k.doneB},
			args:   []any{q.now(), q.ceiling(), q.window(), q.cfg.DeadRetention.Milliseconds(), MaxBatch},
		}
		do(ctx, q.client, []*run{r})
		if r.err != nil {
			return dropped, r.err
		}
		n, _ := r.reply.(int64)
		dropped += int(n)
		if n < MaxBatch {
			return dropped, nil
		}
	}
}
