package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"delaybridge/luascripts"
)

// health answers the probes. It is filled in while the program starts.
type health struct {
	metrics    *metrics
	maxOverdue time.Duration
	stallAfter time.Duration

	mu      sync.Mutex
	phase   string // why it is not ready, whatever the rest says; empty once it runs
	look    *snapshot[queueLook]
	links   []*link
	sources []source
	loops   []looper
}

// looper names those of its loops that hang.
type looper interface {
	Stalled(d time.Duration) []string
}

// link is one use of one broker.
type link struct {
	broker, use string // a broker is "nats" or "kafka"
	// lanes are the sinks that publish by it.
	lanes []string
	asked *snapshot[error]
	// reached is set once it could be reached, since the start.
	reached atomic.Bool
}

const (
	brokerNATS  = "nats"
	brokerKafka = "kafka"
)

// stallAfter is for how long a loop may make no turn. However slow Redis is, each
// call to it ends by the client's time-outs, and a turn is a few of them.
func stallAfter(client redis.UniversalClient) time.Duration {
	var call time.Duration
	add := func(timeouts ...time.Duration) {
		for _, t := range timeouts {
			call += max(0, t) // those that were switched off are negative
		}
	}
	switch c := client.(type) {
	case *redis.Client:
		o := c.Options()
		add(o.PoolTimeout, o.DialTimeout, o.WriteTimeout, o.ReadTimeout)
	case *redis.ClusterClient:
		o := c.Options()
		add(o.PoolTimeout, o.DialTimeout, o.WriteTimeout, o.ReadTimeout)
	}
	return max(3*time.Minute, 15*call)
}

// enter says what the program is about; phases but the last are no trouble.
func (h *health) enter(phase string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.phase = phase
}

// watchQueue has the queue looked at from now on.
func (h *health) watchQueue(queue *luascripts.Queue, client redis.UniversalClient) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.look, h.stallAfter = newQueueLook(queue, client), stallAfter(client)
}

// watch has a link looked at, and a source that it is for, from now on.
func (h *health) watch(l *link, s source) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.links = append(h.links, l)
	if s != nil {
		h.sources, h.loops = append(h.sources, s), append(h.loops, s)
	}
}

// watchLoops has loops looked at from now on.
func (h *health) watchLoops(l looper) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.loops = append(h.loops, l)
}

func (h *health) queueLook() *snapshot[queueLook] {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.look
}

func (h *health) allSources() []source {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.sources)
}

// alive returns which loops hang. Redis and brokers need not be there for it.
func (h *health) alive() (reasons []string) {
	h.mu.Lock()
	loops, after := slices.Clone(h.loops), h.stallAfter
	h.mu.Unlock()
	for _, l := range loops {
		for _, name := range l.Stalled(after) {
			reasons = append(reasons, fmt.Sprintf("loop: %s has made no turn for %v", name, after))
		}
	}
	return reasons
}

// ready returns why the process does not do its work, nothing if it does, and
// whether it is past its start and not at its end. ctx is the program's.
func (h *health) ready(ctx context.Context) (reasons []string, running bool) {
	h.mu.Lock()
	phase, look, links := h.phase, h.look, slices.Clone(h.links)
	h.mu.Unlock()
	if phase != "" {
		reasons = append(reasons, phase)
	}
	reasons = append(reasons, h.alive()...)

	// Both take a while, up to their limits.
	var wg sync.WaitGroup
	var found queueLook
	answered := false
	if look != nil {
		wg.Go(func() { found, answered = look.get(ctx) })
	}
	broken := make([]error, len(links))
	for i, l := range links {
		wg.Go(func() { broken[i] = l.check(ctx) })
	}
	wg.Wait()

	if look != nil {
		reasons = append(reasons, found.reasons(answered)...)
	}
	up := map[*link]bool{}
	for i, l := range links {
		up[l] = broken[i] == nil
	}
	reasons = append(reasons, h.brokerReasons(links, broken)...)
	if answered && found.statsErr == nil {
		reasons = append(reasons, h.overdueReasons(found, up)...)
	}
	return reasons, phase == ""
}

// settle waits for what probes have on its way.
func (h *health) settle() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.look != nil {
		h.look.settle()
	}
	for _, l := range h.links {
		l.asked.settle()
	}
}

// reasons are those of a look at Redis.
func (l queueLook) reasons(answered bool) []string {
	switch {
	case !answered:
		return []string{"redis: " + errNoAnswer.Error()}
	case l.probeErr != nil:
		if _, answered := errors.AsType[redis.Error](l.probeErr); !answered {
			return []string{"redis: it does not answer: " + l.probeErr.Error()}
		}
		return []string{"redis: it runs no script: " + l.probeErr.Error()}
	case l.statsErr != nil:
		return []string{"redis: " + l.statsErr.Error()}
	}
	return nil
}

// brokerReasons are that no broker can be reached, and which has not been yet.
func (h *health) brokerReasons(links []*link, broken []error) (reasons []string) {
	connected, why := false, map[string][]string{}
	var brokers, never []string
	for i, l := range links {
		if !slices.Contains(brokers, l.broker) {
			brokers = append(brokers, l.broker)
		}
		if broken[i] != nil {
			why[l.broker] = append(why[l.broker], l.use+": "+broken[i].Error())
		}
		if !h.wasReached(l) && !slices.Contains(never, l.broker) {
			never = append(never, l.broker)
		}
	}
	for _, b := range brokers {
		connected = connected || len(why[b]) == 0
		if slices.Contains(never, b) {
			reasons = append(reasons, fmt.Sprintf("broker %s: not reached since the start (%s)", b, strings.Join(why[b], "; ")))
		}
	}
	if !connected && len(links) > 0 {
		var all []string
		for _, b := range brokers {
			all = append(all, b+" ("+strings.Join(why[b], "; ")+")")
		}
		reasons = append(reasons, "brokers: none is connected: "+strings.Join(all, ", "))
	}
	return reasons
}

// wasReached goes by the probes and by what was published.
func (h *health) wasReached(l *link) bool {
	for _, lane := range l.lanes {
		if m := h.metrics.lanes[lane]; m != nil && m.answered.Load() {
			return true
		}
	}
	return l.reached.Load()
}

// overdueReasons are the lanes that are late though their sink is up.
func (h *health) overdueReasons(found queueLook, up map[*link]bool) (reasons []string) {
	for l, isUp := range up {
		for _, lane := range l.lanes {
			late := found.stats.Lanes[lane].OverdueFor
			m := h.metrics.lanes[lane]
			if isUp && late > h.maxOverdue && (m == nil || !m.down.Load()) {
				reasons = append(reasons, fmt.Sprintf("overdue: the oldest message for %s has been due for %v, more than %s (%s_READY_MAX_OVERDUE), and its broker is there",
					lane, late.Round(time.Second), duration(h.maxOverdue), prefix))
			}
		}
	}
	slices.Sort(reasons)
	return reasons
}

// stateLog logs when the process becomes ready or stops being it, by what probes
// found: nobody looks at their bodies afterwards.
type stateLog struct {
	mu   sync.Mutex
	said string
	log  *zap.Logger
}

func (s *stateLog) note(reasons []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.log == nil {
		return
	}
	kinds := make([]string, len(reasons)) // their numbers change all the time
	for i, r := range reasons {
		kinds[i], _, _ = strings.Cut(r, ":")
	}
	state := strings.Join(kinds, ",")
	if state == s.said {
		return
	}
	s.said = state
	if state == "" {
		s.log.Info("ready again")
	} else {
		s.log.Warn("not ready", zap.Strings("reasons", reasons))
	}
}

// asks gives the link its check, which may take a while: a client that cannot
// write holds its lock meanwhile, and Kafka is asked over the network.
func (l *link) asks(check func(context.Context) error) {
	l.asked = &snapshot[error]{
		ask: check, fresh: lookFresh, wait: lookWait, limit: lookLimit,
		// Or a probe that came too early would keep the process from being ready.
		brief: func(err error) bool { return err != nil && !l.reached.Load() },
	}
}

// check returns nil while the broker can be reached.
func (l *link) check(ctx context.Context) error {
	err, ok := l.asked.get(ctx)
	if !ok {
		return errNoAnswer
	}
	if err == nil {
		l.reached.Store(true)
	}
	return err
}

var errNotConnected = errors.New("not connected")

// isConnected makes a check of a question that a client answers by itself.
func isConnected(connected func() bool) func(context.Context) error {
	return func(context.Context) error {
		if !connected() {
			return errNotConnected
		}
		return nil
	}
}
