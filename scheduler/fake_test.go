package scheduler

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"delaybridge"
)

// fakeQueue is a queue in memory for loops that run in no time; what the real
// one does is tested with it, and against this scheduler in real_test.go.
type fakeQueue struct {
	mu       sync.Mutex
	shards   int
	lease    time.Duration
	due      map[string]map[string]*fakeItem // lane -> id
	inflight map[string]map[string]*fakeItem
	dead     map[string]delaybridge.Burial
	acked    map[string]time.Time
	wakeUps  []func(string, int)

	claims, peeks int
	broken        error         // what every call fails with
	brokenShard   map[int]error // what a claim from a shard fails with
	brokenSettle  error
	brokenWatch   error
	deaf          bool // schedules wake nobody
	settled       []string
}

type fakeItem struct {
	c   delaybridge.Claim
	at  time.Time
	end time.Time
	why string // the last attempt failed
}

func newFakeQueue() *fakeQueue {
	return &fakeQueue{
		shards: 4, lease: time.Minute,
		due: map[string]map[string]*fakeItem{}, inflight: map[string]map[string]*fakeItem{},
		dead: map[string]delaybridge.Burial{}, acked: map[string]time.Time{},
	}
}

func (q *fakeQueue) add(lane, target, id string, in time.Duration) {
	q.put(delaybridge.Message{ID: id, Target: delaybridge.Target{Sink: lane, Name: target}, Due: time.Now().Add(in)})
}

func (q *fakeQueue) put(m delaybridge.Message) {
	q.mu.Lock()
	lane, id := m.Target.Sink, m.ID
	item := &fakeItem{at: m.Due}
	item.c.Message = m
	item.c.Lease = delaybridge.Lease{Lane: lane, Shard: int(id[len(id)-1]) % q.shards}
	if q.due[lane] == nil {
		q.due[lane], q.inflight[lane] = map[string]*fakeItem{}, map[string]*fakeItem{}
	}
	q.due[lane][id] = item
	wakes, shard := slices.Clone(q.wakeUps), item.c.Lease.Shard
	if q.deaf {
		wakes = nil
	}
	q.mu.Unlock()
	for _, w := range wakes {
		w(lane, shard)
	}
}

func (q *fakeQueue) Shards() int { return q.shards }

func (q *fakeQueue) next(lane string, shard int) time.Duration {
	wait := time.Duration(-1)
	for _, it := range q.due[lane] {
		if it.c.Lease.Shard == shard {
			if w := max(0, time.Until(it.at)); wait < 0 || w < wait {
				wait = w
			}
		}
	}
	for _, it := range q.inflight[lane] {
		if it.c.Lease.Shard == shard {
			if w := max(0, time.Until(it.end)); wait < 0 || w < wait {
				wait = w
			}
		}
	}
	return wait
}

func (q *fakeQueue) Peek(_ context.Context, lane string, _ bool) ([]time.Duration, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.peeks++
	if q.broken != nil {
		return nil, q.broken
	}
	waits := make([]time.Duration, q.shards)
	for i := range waits {
		waits[i] = q.next(lane, i)
	}
	return waits, nil
}

func (q *fakeQueue) Claim(_ context.Context, lane string, asks []delaybridge.Ask) []delaybridge.Grant {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.claims++
	now := time.Now()
	out := make([]delaybridge.Grant, len(asks))
	for i, a := range asks {
		g := delaybridge.Grant{Shard: a.Shard, Now: now, Err: cmp.Or(q.broken, q.brokenShard[a.Shard])}
		if g.Err == nil {
			for id, it := range q.inflight[lane] {
				if it.c.Lease.Shard == a.Shard && !it.end.After(now) {
					delete(q.inflight[lane], id)
					it.c.LostLeases++
					g.LeasesExpired++
					if it.c.LostLeases == 20 {
						g.Buried++
						g.Abandoned = append(g.Abandoned, it.c)
						continue
					}
					it.at = now
					q.due[lane][id] = it
				}
			}
			for id, it := range q.due[lane] {
				if it.c.Lease.Shard == a.Shard && !it.at.After(now) && len(g.Claims) < a.Limit {
					delete(q.due[lane], id)
					it.end = now.Add(q.lease)
					it.c.Lease.End = it.end.UnixMilli()
					q.inflight[lane][id] = it
					g.Claims = append(g.Claims, it.c)
				}
			}
			g.Wait = q.next(lane, a.Shard)
		}
		out[i] = g
	}
	return out
}

func (q *fakeQueue) Watch(ctx context.Context, wake func(string, int)) error {
	q.mu.Lock()
	if err := q.brokenWatch; err != nil {
		q.mu.Unlock()
		return err
	}
	q.wakeUps = append(q.wakeUps, wake)
	q.mu.Unlock()
	wake("", -1)
	<-ctx.Done()
	return ctx.Err()
}

func (q *fakeQueue) Sweep(context.Context, int) (int, error)  { return 0, nil }
func (q *fakeQueue) Repair(context.Context, int) (int, error) { return 0, nil }
func (q *fakeQueue) Wiped(context.Context) (bool, error)      { return false, nil }

func (q *fakeQueue) settle(verb string, c delaybridge.Claim, do func(*fakeItem)) error {
	if q.brokenSettle != nil {
		return q.brokenSettle
	}
	it := q.inflight[c.Lease.Lane][c.ID]
	if it == nil || it.c.Lease.End != c.Lease.End {
		return delaybridge.ErrLeaseLost
	}
	delete(q.inflight[c.Lease.Lane], c.ID)
	q.settled = append(q.settled, verb+" "+c.ID)
	do(it)
	return nil
}

func each[T any](q *fakeQueue, items []T, do func(T) error) []error {
	q.mu.Lock()
	defer q.mu.Unlock()
	errs := make([]error, len(items))
	for i, it := range items {
		errs[i] = do(it)
	}
	return errs
}

func (q *fakeQueue) Store(_ context.Context, requests []delaybridge.Request) []delaybridge.Result {
	q.mu.Lock()
	err := q.brokenSettle
	q.mu.Unlock()
	out := make([]delaybridge.Result, len(requests))
	for i, r := range requests {
		if out[i].Err = err; err == nil {
			q.put(r.Message)
		}
	}
	return out
}

func (q *fakeQueue) Ack(_ context.Context, claims []delaybridge.Claim) []error {
	return each(q, claims, func(c delaybridge.Claim) error {
		return q.settle("ack", c, func(*fakeItem) { q.acked[c.ID] = time.Now() })
	})
}

func (q *fakeQueue) Release(_ context.Context, claims []delaybridge.Claim) []error {
	return each(q, claims, func(c delaybridge.Claim) error {
		return q.settle("release", c, func(it *fakeItem) { it.at = c.Due; q.due[c.Lease.Lane][c.ID] = it })
	})
}

func (q *fakeQueue) Retry(_ context.Context, retries []delaybridge.Retry) []error {
	return each(q, retries, func(r delaybridge.Retry) error {
		return q.settle("retry", r.Claim, func(it *fakeItem) {
			it.at = time.Now().Add(r.After)
			if end := time.UnixMilli(r.Claim.Lease.End); r.OutliveLease && it.at.Before(end) {
				it.at = end
			}
			it.c.Failed++
			it.why = r.Error
			q.due[r.Claim.Lease.Lane][r.Claim.ID] = it
		})
	})
}

func (q *fakeQueue) Bury(_ context.Context, burials []delaybridge.Burial) []error {
	return each(q, burials, func(b delaybridge.Burial) error {
		return q.settle("bury", b.Claim, func(*fakeItem) { q.dead[b.Claim.ID] = b })
	})
}

// set changes the queue's troubles while it runs.
func (q *fakeQueue) set(change func(*fakeQueue)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	change(q)
}

// calls is how often Peek and Claim were called.
func (q *fakeQueue) calls() (peeks, claims int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.peeks, q.claims
}

func (q *fakeQueue) ackedAt(id string) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.acked[id]
}

var errAway = errors.New("connection refused")
