package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"delaybridge"
)

// lane is the loop of one sink. Its run goroutine alone claims; one goroutine
// for each batch publishes; one settler settles for all of them.
type lane struct {
	name  string
	cfg   *Config
	queue Queue
	sink  delaybridge.Sink
	parts partSink // sink, if it publishes this lane in parts
	log   *zap.Logger

	outcomes chan []outcome // from publishers to the settler
	signal   chan struct{}  // to run: something below has changed

	running, settling delaybridge.Pulse // of run and the settler

	mu      sync.Mutex
	woken   []bool // shards with something earlier
	held    int    // claims in hand, settled ones excluded
	bytes   int    // of those
	circuit circuit
	// claiming says that the queue is being asked for claims, taken counts them.
	claiming bool
	taken    int64
	targets  targets
	failing  failing

	// Of the run goroutine alone.
	deep     []bool      // shards that gave all that they were asked for, and have more
	next     []time.Time // when to claim from each shard; zero: not until a peek or wake-up says
	nextPeek time.Time
	peeks    int
	failures map[int]int // of the queue, in a row, by shard; what answers has none
}

func newLane(name string, cfg *Config, queue Queue, sink delaybridge.Sink) *lane {
	n := queue.Shards()
	var parts partSink
	if p, ok := sink.(partSink); ok && p.InParts(name) {
		parts = p
	}
	return &lane{
		parts: parts,
		name:  name, cfg: cfg, queue: queue, sink: sink, log: cfg.Log.With(zap.String("sink", name)),
		outcomes: make(chan []outcome, 64), signal: make(chan struct{}, 1),
		woken: make([]bool, n), deep: make([]bool, n), next: make([]time.Time, n), targets: targets{}, failing: failing{}, failures: map[int]int{},
	}
}

// wake makes run claim from a shard now.
func (l *lane) wake(shard int) {
	l.mu.Lock()
	if shard < len(l.woken) {
		l.woken[shard] = true
	}
	l.mu.Unlock()
	l.poke()
}

// wakeAll makes run look at every shard.
func (l *lane) wakeAll() {
	l.mu.Lock()
	for i := range l.woken {
		l.woken[i] = true
	}
	l.mu.Unlock()
	l.poke()
}

func (l *lane) poke() {
	select {
	case l.signal <- struct{}{}:
	default: // one is on its way already
	}
}

// run claims and publishes until ctx ends, then waits for what is in hand.
func (l *lane) run(ctx context.Context) error {
	// What is in hand outlives ctx, up to the shutdown timeout.
	work, abandon := context.WithCancel(context.WithoutCancel(ctx))
	defer abandon()
	var publishers sync.WaitGroup
	settled := make(chan struct{})
	go func() {
		defer close(settled)
		l.settleAll(work)
	}()

	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		l.running.Beat()
		l.peekIfTime(work)
		l.running.Beat()
		until := l.leaseUntil()
		claims := l.claim(work)
		l.publish(ctx, work, claims, until, &publishers)
		if len(claims) > 0 {
			continue
		}
		timer.Reset(l.idleFor())
		l.running.Beat()
		select {
		case <-ctx.Done():
		case <-l.signal:
		case <-timer.C:
		}
	}

	l.running.Rest() // the shutdown timeout bounds the rest
	finished := make(chan struct{})
	go func() {
		publishers.Wait()
		close(l.outcomes)
		<-settled
		close(finished)
	}()
	deadline := time.NewTimer(l.cfg.ShutdownTimeout)
	defer deadline.Stop()
	select {
	case <-finished:
		return nil
	case <-deadline.C:
	}
	l.mu.Lock()
	left := l.held
	l.mu.Unlock()
	abandon()
	<-finished
	return fmt.Errorf("scheduler: lane %s: %d messages were not settled within %v; they come back when their leases run out",
		l.name, left, l.cfg.ShutdownTimeout)
}

// peekIfTime looks at all shards once every PollMax: what a lost wake-up or
// another process's crash has left is found by it. Leases of others that run out
// are looked for every few times: they have waited for longer than that.
func (l *lane) peekIfTime(ctx context.Context) {
	now := time.Now()
	if now.Before(l.nextPeek) {
		return
	}
	l.mu.Lock()
	l.targets.forget(now) // here, and not at each publish: it looks through all of them
	l.mu.Unlock()
	const leasesEach = 4
	waits, err := l.queue.Peek(ctx, l.name, l.peeks%leasesEach == 0)
	l.peeks++
	if n := l.failed(allShards, err); n > 0 {
		l.nextPeek = now.Add(min(probeAfter(n), l.cfg.PollMax))
		return
	}
	// Not all processes at the same moment.
	l.nextPeek = now.Add(l.cfg.PollMax - time.Duration(rand.Int64N(int64(l.cfg.PollMax)/5+1)))
	for shard, wait := range waits {
		if wait >= 0 {
			l.claimAt(shard, time.Now().Add(wait))
		}
	}
}

// claimMost is the most messages in one round trip of claims. Redis serves no other
// client before it has run all of a pipeline, so it bounds how long others wait.
const claimMost = 200

func (l *lane) claimAt(shard int, at time.Time) {
	if l.next[shard].IsZero() || at.Before(l.next[shard]) {
		l.next[shard] = at
	}
}

// claim asks the shards whose time has come for as much as there is room for.
func (l *lane) claim(ctx context.Context) []delaybridge.Claim {
	now := time.Now()
	l.mu.Lock()
	for shard, woken := range l.woken {
		if woken {
			l.woken[shard] = false
			l.claimAt(shard, now)
		}
	}
	room := l.circuit.room(now, l.free(now), l.held)
	l.mu.Unlock()

	var ready []int
	for shard, at := range l.next {
		if !at.IsZero() && !at.After(now) {
			ready = append(ready, shard)
		}
	}
	// Another shard first each time, and in each process.
	rand.Shuffle(len(ready), func(i, j int) { ready[i], ready[j] = ready[j], ready[i] })
	asks := share(min(room, claimMost), l.cfg.Batch, ready, func(shard int) bool { return l.deep[shard] })
	if len(asks) == 0 {
		return nil
	}

	l.mu.Lock()
	l.claiming = true
	l.mu.Unlock()
	var claims []delaybridge.Claim
	var expired []outcome
	bytes := 0
	for i, g := range l.queue.Claim(ctx, l.name, asks) {
		if n := l.failed(g.Shard, g.Err); n > 0 {
			l.next[g.Shard] = now.Add(probeAfter(n))
			continue
		}
		l.deep[g.Shard] = g.Wait == 0 && len(g.Claims)+g.Buried >= asks[i].Limit
		l.next[g.Shard] = time.Time{}
		if g.Wait >= 0 {
			l.next[g.Shard] = time.Now().Add(g.Wait)
		}
		if g.LeasesExpired > 0 {
			if l.cfg.Observe != nil {
				l.cfg.Observe.LeasesExpired(l.name, g.LeasesExpired)
			}
			l.log.Warn("leases ran out: a process crashed or stalled, their messages are delivered again",
				zap.Int("shard", g.Shard), zap.Int("count", g.LeasesExpired))
		}
		if corrupt := g.Buried - len(g.Abandoned); corrupt > 0 {
			l.log.Error("dead letters: messages that cannot be read", zap.Int("shard", g.Shard), zap.Int("count", corrupt))
		}
		l.abandoned(ctx, g.Abandoned)
		l.settledWere(Settled{Dead: g.Buried})
		for i := range g.Claims {
			bytes += sizeOf(&g.Claims[i])
			if c := g.Claims[i]; c.Expired(g.Now) {
				expired = append(expired, outcome{claim: c, until: now.Add(l.cfg.Lease), verdict: expire})
			} else {
				claims = append(claims, c)
			}
		}
	}
	if len(claims) > 0 {
		delaybridge.Failpoint("claimed")
	}
	l.mu.Lock()
	l.claiming = false
	l.taken += int64(len(claims) + len(expired))
	l.held += len(claims) + len(expired)
	l.bytes += bytes
	if len(claims) > 0 {
		l.circuit.claimed()
	}
	l.mu.Unlock()
	if len(expired) > 0 {
		l.outcomes <- expired
	}
	return claims
}

// free is how many more messages the lane may hold. What targets that do not
// answer hold is let off once, so that the others have room.
func (l *lane) free(now time.Time) int {
	if l.bytes >= l.cfg.MaxInflightBytes {
		return 0
	}
	room := l.cfg.MaxInflight - l.held
	if room >= l.cfg.Batch {
		return room // enough for now; to look through all targets takes time
	}
	return room + min(l.targets.stuck(now), l.cfg.MaxInflight)
}

// sizeOf is about what a message takes up in memory, by what can be large in it.
func sizeOf(c *delaybridge.Claim) int {
	n := len(c.Payload) + len(c.Key)
	for _, h := range c.Headers {
		n += len(h.Name) + len(h.Value)
	}
	return n
}

// allShards stands for a look at all shards where a shard is asked for.
const allShards = -1

// failed returns how often in a row the queue has failed for a shard, 0 if it has
// not now. It logs where the first trouble begins and where the last one ends:
// one shard may be away, or refuse to write, while others answer.
func (l *lane) failed(shard int, err error) int {
	if err != nil {
		if l.failures[shard]++; len(l.failures) == 1 && l.failures[shard] == 1 {
			l.log.Warn("queue does not answer, trying on", zap.Error(err))
		}
		return l.failures[shard]
	}
	if l.failures[shard] > 0 {
		if delete(l.failures, shard); len(l.failures) == 0 {
			l.log.Info("queue answers again")
		}
	}
	return 0
}

// idleFor is how long there is nothing to do unless a signal comes.
func (l *lane) idleFor() time.Duration {
	now := time.Now()
	l.mu.Lock()
	full := l.free(now) <= 0
	notBefore := l.circuit.notBefore(l.held)
	l.mu.Unlock()
	wait := l.nextPeek.Sub(now)
	if full {
		return max(wait, 0) // room comes with a signal, or with time where a target is stuck
	}
	for _, at := range l.next {
		if at.IsZero() {
			continue
		}
		if at.Before(notBefore) {
			at = notBefore
		}
		wait = min(wait, at.Sub(now))
	}
	return max(wait, 0)
}

// publish hands claims to publishers, a batch for each target, so that a target
// that does not answer holds up no other; where the sink publishes in parts, only
// a target that did not answer before is kept apart.
func (l *lane) publish(ctx, work context.Context, claims []delaybridge.Claim, until time.Time, publishers *sync.WaitGroup) {
	if len(claims) == 0 {
		return
	}
	var put []outcome
	if ctx.Err() != nil {
		for i := range claims {
			put = append(put, outcome{claim: claims[i], until: until, verdict: giveBack})
		}
		l.outcomes <- put
		return
	}
	var mixed []delaybridge.Claim
	batches := map[string][]delaybridge.Claim{}
	now := time.Now()
	l.mu.Lock()
	for i := range claims {
		name := claims[i].Target.Name
		admitted, suspect := l.targets.admit(name, now)
		switch {
		case !admitted:
			put = append(put, outcome{claim: claims[i], until: until, verdict: postpone})
		case l.parts != nil && !suspect:
			mixed = append(mixed, claims[i])
		default:
			batches[name] = append(batches[name], claims[i])
		}
	}
	l.mu.Unlock()
	if len(put) > 0 {
		l.outcomes <- put
	}
	start := func(all []delaybridge.Claim, deliver func(context.Context, []delaybridge.Claim, time.Time)) {
		for len(all) > 0 {
			batch := all[:min(len(all), l.cfg.Batch)]
			all = all[len(batch):]
			publishers.Go(func() { deliver(work, batch, until) })
		}
	}
	start(mixed, l.deliverParts)
	for _, all := range batches {
		start(all, l.deliver)
	}
}
