// Package luascripts is the queue: every state of a message that Redis keeps,
// and every transition between states, each one Lua script beside the Go method
// of the same name.
//
//	          schedule                 claim                 ack
//	(none) ------------> due ----------------------> inflight ----> done
//	   |                ^ | ^                           | | |
//	   | reject         | | +---- release, retry -------+ | | lease ran out:
//	   v       replay   | | cancel                        | +-> claimed anew
//	  dead -------------+ +----> done           bury      |
//	   ^ ------------------------------------------------+
//
// A message is in one state at a time. Each script moves a batch of messages of
// one shard, is atomic, and is safe to repeat after a lost reply: requests carry
// a position that the second run recognises, and claims a lease that the second
// run finds gone.
package luascripts

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"delaybridge"
)

// MaxBatch is the most items that one script run works on, so that Redis is
// never blocked for long; larger batches are cut into several runs.
const MaxBatch = 500

// Config tells a Queue its names and times.
type Config struct {
	// Namespace begins the names of all keys, so that several bridges can share
	// one Redis. Defaults to "bridge".
	Namespace string
	// Shards is the number of parts that ids are spread over; it can not be
	// changed while anything is stored. Defaults to 8.
	Shards int
	// Lease is how long a claim belongs to its claimer. Defaults to 60 s.
	Lease time.Duration
	// DedupWindow is how long delivered, cancelled and dead ids are remembered
	// at least, counted from their last redelivery. Defaults to 10 min.
	DedupWindow time.Duration
	// MaxLostLeases is after how many leases that ran out a message is given up
	// as abandoned. Defaults to 20.
	MaxLostLeases int
	// DeadRetention is how long dead letters are kept; 0 keeps them for ever.
	// Defaults to 720 h.
	DeadRetention time.Duration
	// ClockTolerance is how far Redis's clock may be ahead of this host's before
	// messages are held back. Defaults to 5 s.
	ClockTolerance time.Duration
	// WaitReplicas is how many replicas must have what Store has written before it
	// answers. Defaults to 0.
	WaitReplicas int
	// MaxClaimBytes bounds the records in the reply to a claim, all its shards
	// together; one record of each shard may pass it. Defaults to 8 MiB.
	MaxClaimBytes int

	// clock stands for Redis's TIME in tests, hostClock for this host's.
	clock, hostClock func() time.Time
	// watchIdle stands for the constant of this name in tests.
	watchIdle time.Duration
	// shebang is put before the scripts in tests, to have Redis check their keys.
	shebang string
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Namespace: "bridge", Shards: 8, Lease: time.Minute, DedupWindow: 10 * time.Minute,
		MaxLostLeases: 20, DeadRetention: 720 * time.Hour, ClockTolerance: 5 * time.Second, MaxClaimBytes: 8 << 20,
	}
}

// Validate returns an error that names the first field that makes no sense.
func (c Config) Validate() error {
	switch {
	case c.Namespace == "":
		return errors.New("namespace is empty")
	case strings.ContainsAny(c.Namespace, "{}"):
		return fmt.Errorf("namespace %q has a brace, which Redis Cluster would take for a hash tag", c.Namespace)
	case c.Shards < 1 || c.Shards > 1024:
		return fmt.Errorf("%d shards, want 1 to 1024", c.Shards)
	case c.Lease < time.Millisecond:
		return fmt.Errorf("lease %v, want at least 1ms", c.Lease)
	case c.DedupWindow < time.Millisecond:
		return fmt.Errorf("dedup window %v, want at least 1ms", c.DedupWindow)
	case c.MaxLostLeases < 1:
		return fmt.Errorf("max lost leases %d, want at least 1", c.MaxLostLeases)
	case c.DeadRetention < 0:
		return fmt.Errorf("dead retention %v is negative", c.DeadRetention)
	case c.ClockTolerance < 0:
		return fmt.Errorf("clock tolerance %v is negative", c.ClockTolerance)
	case c.WaitReplicas < 0:
		return fmt.Errorf("wait replicas %d is negative", c.WaitReplicas)
	case c.MaxClaimBytes < 1:
		return fmt.Errorf("max claim bytes %d, want at least 1", c.MaxClaimBytes)
	}
	return nil
}

// Queue is the queue of one namespace. It is safe for concurrent use, and any
// number of processes may have one at the same time.
type Queue struct {
	client  redis.UniversalClient
	cfg     Config
	keys    []keys
	scripts scripts

	epoch   atomic.Pointer[string] // of the data in Redis, as last seen
	scanned []atomic.Int64         // where Repair goes on, by shard
}

// ErrShards is matched when Redis holds a queue with another number of shards.
var ErrShards = errors.New("number of shards differs")

// Open returns the queue of cfg.Namespace, and writes its number of shards down
// if it is new. An error matches ErrShards if Redis knows another number;
// others are Redis's own and may pass.
func Open(ctx context.Context, client redis.UniversalClient, cfg Config) (*Queue, error) {
	q, err := Inspect(client, cfg)
	if err != nil {
		return nil, err
	}
	if _, err := q.Wiped(ctx); err != nil {
		return nil, err
	}
	return q, nil
}

// Inspect returns the queue of cfg.Namespace for looking at it only: nothing is
// asked or written, and nobody has made sure of the number of shards. An error is
// about cfg.
func Inspect(client redis.UniversalClient, cfg Config) (*Queue, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	q := &Queue{client: client, cfg: cfg, scripts: newScripts(cfg.shebang)}
	for i := range cfg.Shards {
		q.keys = append(q.keys, shardKeys(cfg.Namespace, i))
	}
	q.scanned = make([]atomic.Int64, cfg.Shards)
	return q, nil
}

// checkShards makes sure that Redis knows the number of shards that we have.
func (q *Queue) checkShards(ctx context.Context) error {
	have, err := q.firstEver(ctx, "shards", strconv.Itoa(q.cfg.Shards))
	if err != nil {
		return err
	}
	if have != strconv.Itoa(q.cfg.Shards) {
		return fmt.Errorf("queue: %w: %s in Redis says %s, the settings say %d",
			ErrShards, metaKey(q.cfg.Namespace), have, q.cfg.Shards)
	}
	return nil
}

// firstEver returns the value that a field of the queue's meta key was first
// given, by any process, and gives it value if there is none.
func (q *Queue) firstEver(ctx context.Context, field, value string) (string, error) {
	meta := metaKey(q.cfg.Namespace)
	// A full or read-only Redis refuses to write, but may well know the answer.
	writeErr := q.client.HSetNX(ctx, meta, field, value).Err()
	have, err := q.client.HGet(ctx, meta, field).Result()
	switch {
	case err == nil:
		return have, nil
	case errors.Is(err, redis.Nil) && writeErr != nil:
		return "", fmt.Errorf("queue: write %s: %w", meta, writeErr)
	}
	return "", fmt.Errorf("queue: read %s: %w", meta, err)
}

// Shards returns the number of shards.
func (q *Queue) Shards() int { return q.cfg.Shards }

// Incarnation returns the name under which positions of a source are kept. A
// stream or topic that was deleted and made again numbers its messages anew:
// mark tells one life from the next, and every life but the first that this
// Redis has seen gets a name of its own, so that neither ids nor positions of
// two lives are mistaken for each other.
func (q *Queue) Incarnation(ctx context.Context, source, mark string) (string, error) {
	if !validSource(source) || !validSource(mark) {
		return "", fmt.Errorf("queue: %w: source %q, mark %q", delaybridge.ErrInvalid, source, mark)
	}
	first, err := q.firstEver(ctx, "source:"+source, mark)
	if err != nil {
		return "", err
	}
	if first == mark {
		return source, nil
	}
	return source + "@" + mark, nil
}

// Store carries out requests, in order where they are of one id, all shards in
// one round trip, and answers each. A request whose Result has an Err may or may
// not have been carried out; to repeat it is safe. Requests of one id with
// positions of one source end the same way in whatever order they arrive.
func (q *Queue) Store(ctx context.Context, requests []delaybridge.Request) []delaybridge.Result {
	results := make([]delaybridge.Result, len(requests))
	type group struct {
		op    delaybridge.Op
		items []int
		run   *run
	}
	var groups []*group
	// The last group of each shard: another operation begins a new one, so that
	// requests of one id are carried out in order.
	last := map[int]*group{}
	for i := range requests {
		r := &requests[i]
		args, err := q.requestArgs(r)
		if err != nil {
			results[i].Err = err
			continue
		}
		shard := shardOf(r.Message.ID, q.cfg.Shards)
		g := last[shard]
		if g == nil || g.op != r.Op || len(g.items) == MaxBatch {
			before := g
			g = &group{op: r.Op, run: q.requestRun(r.Op, shard)}
			if before != nil {
				before.run.whole, g.run.whole = true, true
			}
			last[shard] = g
			groups = append(groups, g)
		}
		g.items = append(g.items, i)
		g.run.args = append(g.run.args, args...)
	}
	runs := make([]*run, len(groups))
	for i, g := range groups {
		runs[i] = g.run
	}
	q.doDurably(ctx, runs)
	for _, g := range groups {
		codes, err := g.run.ints(len(g.items))
		for n, i := range g.items {
			if err != nil {
				results[i].Err = err
				continue
			}
			results[i] = resultOf(g.op, codes[n])
		}
	}
	return results
}

func (q *Queue) requestRun(op delaybridge.Op, shard int) *run {
	k := &q.keys[shard]
	switch op {
	case delaybridge.OpCancel:
		return &run{
			script: q.scripts.cancel,
			keys:   k.lanes(k.msg, k.tries, k.doneA, k.doneB, k.dead),
			args:   []any{q.now(), q.ceiling(), q.window()},
		}
	case delaybridge.OpReject:
		return &run{
			script: q.scripts.reject,
			keys:   []string{k.dead, k.deadmsg, k.deadcount, k.doneA, k.doneB},
			args:   []any{q.now(), q.ceiling(), q.window()},
		}
	default:
		return &run{
			script: q.scripts.schedule,
			keys:   k.lanes(k.msg, k.tries, k.doneA, k.doneB),
			args:   []any{wakeChannel(q.cfg.Namespace), shard, q.now(), q.ceiling(), q.window()},
		}
	}
}

func (q *Queue) requestArgs(r *delaybridge.Request) ([]any, error) {
	m := &r.Message
	if r.Op > delaybridge.OpReject {
		return nil, fmt.Errorf("queue: %w: id %q, %s", delaybridge.ErrInvalid, m.ID, r.Op)
	}
	if m.ID == "" || !validSource(m.Position.Source) {
		return nil, fmt.Errorf("queue: %w: id %q, position %q", delaybridge.ErrInvalid, m.ID, m.Position)
	}
	if r.Op == delaybridge.OpSchedule {
		lane := laneIndex(m.Target.Sink)
		if lane < 0 {
			return nil, fmt.Errorf("queue: %w: id %q has target %q, whose sink is not known", delaybridge.ErrInvalid, m.ID, m.Target)
		}
		record, err := encodeRecord(m)
		if err != nil {
			return nil, err
		}
		return []any{m.ID, lane + 1, dueScore(m), record}, nil
	}
	offset := strconv.FormatUint(m.Position.Offset, 10)
	if r.Op == delaybridge.OpCancel {
		byAPI := 0
		if r.FromAPI {
			byAPI = 1
		}
		return []any{m.ID, m.Position.Source, offset, byAPI}, nil
	}
	body, err := encodeMessage(m)
	if err != nil {
		return nil, err
	}
	return []any{m.ID, m.Position.Source, offset, cutError(r.Error), body}, nil
}

// dueScore is a message's due time as the due sets hold it. A time before 1970
// is as due as can be; scores stay positive, and exact.
func dueScore(m *delaybridge.Message) int64 {
	return min(max(0, m.Due.UnixMilli()), maxDue)
}

// maxDue is the latest due time in Unix ms, some 280,000 years ahead: what a
// sorted set can hold exactly.
const maxDue = 1<<53 - 1

// validSource reports whether a source can stand in a record's marks.
func validSource(s string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] == 0x7f {
			return false
		}
	}
	return s != ""
}

func resultOf(op delaybridge.Op, code int64) delaybridge.Result {
	type r = delaybridge.Result
	var known []r
	switch op {
	case delaybridge.OpSchedule:
		known = []r{{Outcome: delaybridge.Scheduled}, {Outcome: delaybridge.Replaced}, {Outcome: delaybridge.Duplicate}}
	case delaybridge.OpReject:
		known = []r{{Outcome: delaybridge.Rejected}, {Outcome: delaybridge.Duplicate}}
	case delaybridge.OpCancel:
		known = []r{
			{Outcome: delaybridge.Cancelled},
			{Outcome: delaybridge.Duplicate},
			{Outcome: delaybridge.TooLate, State: delaybridge.StateInFlight},
			{Outcome: delaybridge.TooLate, State: delaybridge.StateDelivered},
			{Outcome: delaybridge.TooLate, State: delaybridge.StateCancelled},
			{Outcome: delaybridge.TooLate, State: delaybridge.StateDead},
			{Outcome: delaybridge.Unknown},
		}
	}
	if code < 0 || code >= int64(len(known)) {
		return r{Err: fmt.Errorf("queue: %s: unexpected code %d", op, code)}
	}
	return known[code]
}

// Claim leases due messages of one lane, from all the shards asked in one round
// trip: first those whose lease ran out, then those longest due. It answers each
// ask. A claim whose reply is lost comes back when its lease has run out.
func (q *Queue) Claim(ctx context.Context, lane string, asks []delaybridge.Ask) []delaybridge.Grant {
	grants := make([]delaybridge.Grant, len(asks))
	l := laneIndex(lane)
	if l < 0 {
		for i := range grants {
			grants[i] = delaybridge.Grant{Shard: asks[i].Shard, Wait: -1, Err: fmt.Errorf("queue: no lane %q", lane)}
		}
		return grants
	}
	ceiling, most := q.ceiling(), max(1, q.cfg.MaxClaimBytes/max(1, len(asks)))
	var runs []*run
	var granted []int // which grant each run is for
	for i, ask := range asks {
		if ask.Shard < 0 || ask.Shard >= len(q.keys) {
			grants[i] = delaybridge.Grant{Shard: ask.Shard, Wait: -1, Err: fmt.Errorf("queue: no shard %d", ask.Shard)}
			continue
		}
		k := &q.keys[ask.Shard]
		granted = append(granted, i)
		runs = append(runs, &run{
			script: q.scripts.claim,
			keys:   []string{k.due[l], k.inflight[l], k.msg, k.tries, k.dead, k.deadmsg, k.deadcount, k.doneA, k.doneB},
			args: []any{
				q.now(), ceiling, min(max(ask.Limit, 0), MaxBatch), q.cfg.Lease.Milliseconds(),
				q.cfg.MaxLostLeases, most, q.window(),
			},
		})
	}
	do(ctx, q.client, runs)
	var corrupt []delaybridge.Burial
	var corruptOf []int // which grant each was in
	for n, r := range runs {
		i := granted[n]
		var broken []delaybridge.Burial
		grants[i], broken = readGrant(lane, asks[i].Shard, r)
		for range broken {
			corruptOf = append(corruptOf, i)
		}
		corrupt = append(corrupt, broken...)
	}
	// A record that Lua could not see through: if burying it fails, the lease
	// runs out and it comes by again.
	for n, err := range q.Bury(ctx, corrupt) {
		if err == nil {
			grants[corruptOf[n]].Buried++
		}
	}
	return grants
}

// readGrant reads a reply of claim, and sets apart the claims whose records
// cannot be read.
func readGrant(lane string, shard int, r *run) (g delaybridge.Grant, corrupt []delaybridge.Burial) {
	const head, each, tries = 6, 2, 3
	g = delaybridge.Grant{Shard: shard, Wait: -1, Err: r.err}
	if g.Err != nil {
		return g, nil
	}
	list, _ := r.reply.([]any)
	number := func(i int) int64 {
		n, _ := list[i].(int64)
		return n
	}
	n := 0
	if len(list) >= head {
		n = int(number(5))
	}
	end := head + each*n // of the items; behind it are the tries
	if n < 0 || end > len(list) || (len(list)-end)%tries != 0 || len(list) < head {
		g.Err = fmt.Errorf("%s: unexpected reply of %d items", r.script.name, len(list))
		return g, nil
	}
	g.Now = time.UnixMilli(number(0))
	if wait := number(1); wait >= math.MaxInt64/int64(time.Microsecond) {
		g.Wait = math.MaxInt64
	} else if wait >= 0 {
		g.Wait = time.Duration(wait) * time.Microsecond
	}
	leaseText, _ := list[2].(string)
	leaseEnd, err := strconv.ParseInt(leaseText, 10, 64)
	if err != nil {
		g.Err = fmt.Errorf("%s: unexpected lease end %.80q", r.script.name, leaseText)
		return g, nil
	}
	g.LeasesExpired, g.Buried = int(number(3)), int(number(4))
	g.Claims = make([]delaybridge.Claim, 0, n)
	next := end
	for place := 1; place <= n; place++ {
		i := head + each*(place-1)
		id, _ := list[i].(string)
		record, _ := list[i+1].(string)
		m, marks, err := decodeRecord(id, record)
		c := delaybridge.Claim{
			Message: m, Lease: delaybridge.Lease{Lane: lane, Shard: shard, End: leaseEnd, Marks: marks},
		}
		if marks == "=" {
			c.Lease.End++ // see prelude.lua
		}
		if next < len(list) && number(next) == int64(place) {
			c.Failed, c.LostLeases = int(number(next+1)), int(number(next+2))
			next += tries
		}
		if c.LostLeases < 0 { // buried already; one that cannot be read is of no use here
			if c.LostLeases = -c.LostLeases; err == nil {
				g.Abandoned = append(g.Abandoned, c)
			}
			continue
		}
		if err == nil && m.Target.Sink != lane {
			err = fmt.Errorf("%w: target %q in lane %s", errCorrupt, m.Target, lane)
		}
		if err != nil {
			corrupt = append(corrupt, delaybridge.Burial{
				Claim: c, Reason: delaybridge.ReasonCorrupt, Error: err.Error(), Failed: c.Failed,
			})
			continue
		}
		g.Claims = append(g.Claims, c)
	}
	return g, corrupt
}

// Ack settles claims as delivered, and leaves tombstones. It returns one error
// for each claim: nil, delaybridge.ErrLeaseLost, or why Redis could not be asked;
// after the last it may have been settled all the same, and to repeat is safe.
func (q *Queue) Ack(ctx context.Context, claims []delaybridge.Claim) []error {
	return settle(ctx, q, claims, leaseOf, func(k *keys, shard, lane int) *run {
		return &run{
			script: q.scripts.ack,
			keys:   []string{k.inflight[lane], k.msg, k.tries, k.doneA, k.doneB},
			args:   []any{q.now(), q.ceiling(), q.window()},
		}
	}, func(c *delaybridge.Claim) []any {
		return []any{c.ID, strconv.FormatInt(c.Lease.End, 10) + " " + c.Lease.Marks}
	})
}

// Release gives claims back at once, with their attempts as they were. Errors
// are those of Ack.
func (q *Queue) Release(ctx context.Context, claims []delaybridge.Claim) []error {
	return settle(ctx, q, claims, leaseOf, func(k *keys, shard, lane int) *run {
		return &run{
			script: q.scripts.release,
			keys:   []string{k.due[lane], k.inflight[lane], k.msg},
			args:   []any{wakeChannel(q.cfg.Namespace), fmt.Sprintf("%d %d", lane+1, shard)},
		}
	}, func(c *delaybridge.Claim) []any { return []any{c.ID, c.Lease.End, c.Lease.Marks, dueScore(&c.Message)} })
}

// Retry puts claims back for later, with one more failed attempt and why it
// failed. Errors are those of Ack.
func (q *Queue) Retry(ctx context.Context, retries []delaybridge.Retry) []error {
	return settle(ctx, q, retries, func(r *delaybridge.Retry) (string, delaybridge.Lease) { return leaseOf(&r.Claim) },
		func(k *keys, shard, lane int) *run {
			return &run{
				script: q.scripts.retry,
				keys:   []string{k.due[lane], k.inflight[lane], k.msg, k.tries},
				args:   []any{q.now()},
			}
		}, func(r *delaybridge.Retry) []any {
			outlive := 0
			if r.OutliveLease {
				outlive = 1
			}
			c := &r.Claim
			return []any{
				c.ID, c.Lease.End, c.Lease.Marks, dueScore(&c.Message), max(0, r.After.Milliseconds()), outlive,
				delaybridge.LastErrorText(r.Error),
			}
		})
}

// Bury makes claims dead letters, with all that is known of them, each in place of
// an older letter of its id. Errors are those of Ack.
func (q *Queue) Bury(ctx context.Context, burials []delaybridge.Burial) []error {
	return settle(ctx, q, burials, func(b *delaybridge.Burial) (string, delaybridge.Lease) { return leaseOf(&b.Claim) },
		func(k *keys, shard, lane int) *run {
			return &run{
				script: q.scripts.bury,
				keys:   []string{k.inflight[lane], k.msg, k.tries, k.dead, k.deadmsg, k.deadcount, k.doneA, k.doneB},
				args:   []any{q.now(), q.ceiling(), q.window()},
			}
		}, func(b *delaybridge.Burial) []any {
			c := &b.Claim
			return []any{c.ID, c.Lease.End, c.Lease.Marks, string(b.Reason), cutError(b.Error), b.Failed, c.LostLeases}
		})
}

func leaseOf(c *delaybridge.Claim) (string, delaybridge.Lease) { return c.ID, c.Lease }

// settle runs one settling script over items, grouped by shard and lane, in one
// round trip.
func settle[T any](
	ctx context.Context, q *Queue, items []T,
	lease func(*T) (id string, l delaybridge.Lease),
	newRun func(k *keys, shard, lane int) *run, args func(*T) []any,
) []error {
	errs := make([]error, len(items))
	type slot struct{ shard, lane int }
	type group struct {
		items []int
		run   *run
	}
	open := map[slot]*group{}
	var groups []*group
	var runs []*run
	for i := range items {
		id, l := lease(&items[i])
		at := slot{l.Shard, laneIndex(l.Lane)}
		if at.lane < 0 || at.shard < 0 || at.shard >= len(q.keys) {
			errs[i] = fmt.Errorf("queue: id %q carries no lease of this queue: %w", id, delaybridge.ErrLeaseLost)
			continue
		}
		g := open[at]
		if g == nil || len(g.items) == MaxBatch {
			g = &group{run: newRun(&q.keys[at.shard], at.shard, at.lane)}
			open[at] = g
			groups, runs = append(groups, g), append(runs, g.run)
		}
		g.items = append(g.items, i)
		g.run.args = append(g.run.args, args(&items[i])...)
	}
	if len(runs) == 0 {
		return errs
	}
	do(ctx, q.client, runs)
	for _, g := range groups {
		codes, err := g.run.ints(len(g.items))
		for n, i := range g.items {
			switch {
			case err != nil:
				errs[i] = err
			case codes[n] == 0:
				errs[i] = delaybridge.ErrLeaseLost
			}
		}
	}
	return errs
}

// cutError bounds a stored error text, and does not cut through a character.
func cutError(s string) string {
	if len(s) <= delaybridge.MaxErrorBytes {
		return s
	}
	n := delaybridge.MaxErrorBytes
	for n > delaybridge.MaxErrorBytes-utf8.UTFMax && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// now is the scripts' clock argument: empty, for Redis's own, except in tests.
func (q *Queue) now() string {
	if q.cfg.clock == nil {
		return ""
	}
	return strconv.FormatInt(q.cfg.clock().UnixMilli(), 10)
}

func (q *Queue) window() int64 { return q.cfg.DedupWindow.Milliseconds() }

// ceiling is the latest due time that this host's clock allows, in Unix ms.
func (q *Queue) ceiling() int64 {
	host := time.Now
	if q.cfg.hostClock != nil {
		host = q.cfg.hostClock
	}
	return host().Add(q.cfg.ClockTolerance).UnixMilli()
}
