package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"go.uber.org/zap"

	"delaybridge"
)

// generation is this process's share of the topics from one rebalance to the
// next. One goroutine, run, owns all of it but for what mu guards. Fetches run
// beside it, at most one to each leader, so that the next one is under way
// while records are being stored; storing itself is one after another, so that
// what is stored of a partition never has a hole.
type generation struct {
	k   *Kafka
	gen *kafka.Generation
	log *zap.Logger

	// known is what was last heard of the topics; a difference in their set or
	// in their partitions ends the generation.
	known map[string]*kafkaTopic
	// dealt are the numbers of partitions by topic that this member, as the
	// group's leader, dealt out; nil in other members.
	dealt map[string]int
	began time.Time
	// leave is closed when the topics to join the group for have changed.
	leave chan struct{}

	parts   map[topicPartition]*partition
	order   []*partition // in which the next fetches name them
	busy    map[int32]bool
	highest map[int32]int16 // fetch versions by broker

	answers chan answer
	topics  chan map[string]*kafkaTopic
	refresh chan struct{}
	calls   sync.WaitGroup

	mu     sync.Mutex
	stored map[topicPartition]committedOffset // to be committed
	dirty  chan struct{}
}

// partition is what is known of one partition that is ours.
type partition struct {
	topicPartition
	id     [16]byte
	leader kafkaLeader
	// mark is the incarnation of the topic, source its name in the queue.
	mark, source string

	next  int64 // the offset to fetch; -1: the first there is
	epoch int32 // of the leader that wrote the last batch before next, -1 if not known
	floor int32 // see batchReader
	lost  bool  // next was out of range
	done  int64 // all before it is stored or was left out
	busy  bool  // in a call

	failures int
	retryAt  time.Time
}

// answer is the end of a call to a leader.
type answer struct {
	leader int32
	asked  []*partition
	err    error // of the whole call

	ranges  map[topicPartition]logRange // of a call for ranges
	fetched []fetched                   // of a fetch
	highest int16
}

// fetched is what a fetch brought of one partition.
type fetched struct {
	p       *partition
	err     error
	high    int64
	records []Record
	next    int64
	epoch   int32
}

func newGeneration(k *Kafka, gen *kafka.Generation, topics map[string]*kafkaTopic, dealt map[string]int) *generation {
	return &generation{
		k: k, gen: gen, known: topics, dealt: dealt, began: time.Now(),
		log:   k.log.With(zap.String("group", gen.GroupID), zap.Int32("generation", gen.ID)),
		leave: make(chan struct{}),
		parts: make(map[topicPartition]*partition), busy: make(map[int32]bool), highest: make(map[int32]int16),
		answers: make(chan answer), topics: make(chan map[string]*kafkaTopic), refresh: make(chan struct{}, 1),
		stored: make(map[topicPartition]committedOffset), dirty: make(chan struct{}, 1),
	}
}

// run reads until ctx, the life of the generation, ends. What is in hand then is
// still stored, and committed in the name of this generation: the group refuses
// it if the partitions have an owner by then. Returning has kafka-go join again.
func (g *generation) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	var beside sync.WaitGroup
	beside.Go(func() { g.watch(ctx) })
	beside.Go(func() { g.commits(ctx) })
	g.k.clearLag()
	if g.begin(ctx) {
		g.read(ctx)
	}
	cancel()
	g.k.turn.Rest()
	g.calls.Wait()
	beside.Wait()
	last, done := context.WithTimeout(context.WithoutCancel(ctx), g.k.cfg.StopTimeout)
	defer done()
	_ = g.commit(last)
}

// begin finds out where to go on in each partition. It returns false if the
// generation ended first.
func (g *generation) begin(ctx context.Context) bool {
	var parts []topicPartition
	for topic, assigned := range g.gen.Assignments {
		for _, a := range assigned {
			parts = append(parts, topicPartition{topic, int32(a.ID)})
		}
	}
	g.log.Info("partitions assigned", zap.Int("partitions", len(parts)))
	if len(parts) == 0 {
		return true
	}
	committed, ok := tryUntil(ctx, g, "the committed offsets", func() (map[topicPartition]committedOffset, error) {
		return g.k.fetchCommitted(ctx, parts)
	})
	if !ok {
		return false
	}
	for _, tp := range parts {
		t := g.known[tp.topic]
		if t == nil {
			return false // the group's leader knows a topic that we do not: look again
		}
		c := committed[tp]
		p := &partition{
			topicPartition: tp, id: t.id, leader: leaderOf(t, tp.partition), mark: cmp.Or(t.mark(), firstMark),
			next: -1, epoch: -1, floor: -1, done: -1,
		}
		switch {
		case c.offset < 0:
		case c.mark == "" || t.mark() == "" || topicOf(c.mark) == t.mark():
			// An offset without a mark was set by an operator's tool.
			p.next, p.done, p.epoch = c.offset, c.offset, c.epoch
			p.mark = cmp.Or(c.mark, p.mark)
			p.floor = floorOf(p.mark)
		default:
			g.log.Warn("the topic was deleted and created again; it is read from its start",
				zap.String("topic", tp.topic), zap.Int32("partition", tp.partition), zap.Int64("committed", c.offset))
		}
		if !g.name(ctx, p) {
			return false
		}
		g.parts[tp] = p
		g.order = append(g.order, p)
	}
	return true
}

// firstMark stands for the first incarnation of a topic that has no id.
const firstMark = "first"

// A mark is a topic id, and behind a point, for a log that was cut short, the
// leader epoch that its records must be above of, or what else makes it unique.

// topicOf returns the topic id in a mark.
func topicOf(mark string) string {
	id, _, _ := strings.Cut(mark, ".")
	return id
}

// floorOf returns the leader epoch in a mark, -1 for none.
func floorOf(mark string) int32 {
	id, floor, ok := strings.Cut(mark, ".")
	if n, err := strconv.ParseInt(floor, 10, 32); ok && err == nil && id != firstMark {
		return int32(n)
	}
	return -1
}

// name asks the queue what it calls the partition's incarnation.
func (g *generation) name(ctx context.Context, p *partition) bool {
	source, err := g.k.handler.Incarnation(ctx, fmt.Sprintf("kafka:%s:%d", p.topic, p.partition), p.mark)
	p.source = source
	return err == nil
}

func leaderOf(t *kafkaTopic, partition int32) kafkaLeader {
	if l, ok := t.leaders[partition]; ok {
		return l
	}
	return kafkaLeader{broker: -1, epoch: -1}
}

// tryUntil calls do until it succeeds. It returns false if ctx ended first.
func tryUntil[T any](ctx context.Context, g *generation, what string, do func() (T, error)) (T, bool) {
	retry := kafkaBackoff()
	for {
		g.k.turn.Beat()
		v, err := do()
		if err == nil {
			return v, true
		}
		if retry.tries++; retry.tries == loggedTry {
			g.log.Warn("cannot ask the brokers for "+what+"; trying again until it works", zap.Error(err))
		}
		if !retry.wait(ctx) {
			return v, false
		}
	}
}

func kafkaBackoff() backoff { return backoff{min: 100 * time.Millisecond, max: 3 * time.Second} }

// read fetches and stores until ctx ends, or the generation has to.
func (g *generation) read(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(g.plan(ctx))
		g.k.turn.Beat()
		if !slices.ContainsFunc(g.order, func(p *partition) bool { return p.busy }) {
			g.k.turn.Rest() // until a partition's time comes, if it has any
		}
		select {
		case <-ctx.Done():
			return
		case t := <-g.topics:
			if !g.learn(ctx, t) {
				return
			}
		case a := <-g.answers:
			if !g.take(ctx, a) {
				return
			}
		case <-timer.C:
		}
	}
}

// plan starts a call to every leader that has none under way: for the ranges of
// partitions whose offset is not known, else a fetch. It returns after how long
// to look again if nothing happens.
func (g *generation) plan(ctx context.Context) time.Duration {
	now, wait := time.Now(), time.Hour
	ask := make(map[int32][]*partition)
	for _, p := range g.order {
		if p.busy || g.busy[p.leader.broker] {
			continue
		}
		if d := p.retryAt.Sub(now); d > 0 {
			wait = min(wait, d)
			continue
		}
		if p.leader.broker < 0 {
			g.fail(p, kafka.LeaderNotAvailable)
			wait = min(wait, time.Until(p.retryAt))
			continue
		}
		ask[p.leader.broker] = append(ask[p.leader.broker], p)
	}
	for leader, parts := range ask {
		var unknown []*partition
		for _, p := range parts {
			if p.next < 0 || p.lost {
				unknown = append(unknown, p)
			}
		}
		if len(unknown) > 0 {
			g.start(ctx, leader, unknown, g.ranges)
		} else {
			g.start(ctx, leader, parts, g.fetch(leader, parts))
		}
	}
	return wait
}

// start makes a call to a leader beside the loop.
func (g *generation) start(ctx context.Context, leader int32, parts []*partition, call func(context.Context, *answer)) {
	g.busy[leader] = true
	for _, p := range parts {
		p.busy = true
	}
	g.calls.Go(func() {
		a := answer{leader: leader, asked: parts}
		call(ctx, &a)
		select {
		case g.answers <- a:
		case <-ctx.Done():
		}
	})
}

// ranges asks for what partitions hold. It reads only what never changes of them.
func (g *generation) ranges(ctx context.Context, a *answer) {
	parts := make([]topicPartition, len(a.asked))
	for i, p := range a.asked {
		parts[i] = p.topicPartition
	}
	a.ranges, a.err = g.k.listRanges(ctx, a.leader, parts)
}

// fetch returns the call that fetches partitions from where they are now.
func (g *generation) fetch(leader int32, parts []*partition) func(context.Context, *answer) {
	cfg := &g.k.cfg
	req := &fetchRequest{
		brokerCall: g.k.call(leader), highest: g.highest[leader],
		maxWaitMillis: int32(cfg.MaxWait.Milliseconds()), maxBytes: int32(cfg.MaxBytes), partitionBytes: int32(cfg.PartitionBytes),
	}
	floors := make(map[topicPartition]int32)
	for _, p := range parts {
		req.partitions = append(req.partitions, fetchPartition{topic: p.topic, id: p.id, partition: p.partition, epoch: p.leader.epoch, offset: p.next})
		floors[p.topicPartition] = p.floor
	}
	byName := make(map[topicPartition]*partition)
	for _, p := range parts {
		byName[p.topicPartition] = p
	}
	return func(ctx context.Context, a *answer) {
		ctx, cancel := context.WithTimeout(ctx, cfg.MaxWait+kafkaTimeout)
		defer cancel()
		req.ctx = ctx
		m, err := g.k.transport.RoundTrip(ctx, g.k.addr, req)
		if err != nil {
			a.err = fmt.Errorf("kafka fetch: %w", err)
			return
		}
		res, ok := m.(*fetchResponse)
		if !ok {
			a.err = fmt.Errorf("kafka fetch: answered by %T", m)
			return
		}
		a.err, a.highest = res.err, res.highest
		room := maxInflated
		for i := range res.parts {
			part := &res.parts[i]
			tp := topicPartition{part.topic, part.partition}
			f := fetched{p: byName[tp], err: part.err, high: part.highWatermark, epoch: -1}
			if f.err == nil {
				r := batchReader{from: part.offset, aborted: part.aborted, floor: floors[tp], room: &room, maxRecord: g.k.handler.maxRecord()}
				f.records, f.err = r.read(part.batches)
				f.next, f.epoch = r.next, r.epoch
			}
			a.fetched = append(a.fetched, f)
		}
	}
}

// take deals with the end of a call. It returns false if the generation has to end.
func (g *generation) take(ctx context.Context, a answer) bool {
	g.busy[a.leader] = false
	for _, p := range a.asked {
		p.busy = false
	}
	g.k.connected.Store(a.err == nil)
	if a.err != nil {
		// The broker may come back as another version.
		delete(g.highest, a.leader)
		for _, p := range a.asked {
			g.fail(p, a.err)
		}
		return true
	}
	if a.ranges != nil {
		for _, p := range a.asked {
			if r, ok := a.ranges[p.topicPartition]; !ok {
				g.fail(p, errors.New("the leader does not say what it holds"))
			} else if !g.place(ctx, p, r) {
				return false
			}
		}
		return true
	}

	g.highest[a.leader] = a.highest
	for i := range a.fetched {
		f := &a.fetched[i]
		switch {
		case errors.Is(f.err, kafka.OffsetOutOfRange):
			f.p.lost = true
			continue
		case f.err != nil:
			g.fail(f.p, f.err)
		default:
			g.succeed(f.p)
			g.pace(f)
		}
		f.p.next = max(f.p.next, f.next)
		if f.epoch >= 0 {
			f.p.epoch = f.epoch
		}
		g.k.setLag(f.p.topicPartition, f.high-f.p.done)
	}
	if len(a.fetched) < len(a.asked) {
		answered := make(map[*partition]bool)
		for i := range a.fetched {
			answered[a.fetched[i].p] = true
		}
		for _, p := range a.asked {
			if !answered[p] {
				g.fail(p, errors.New("the leader's answer leaves it out"))
			}
		}
	}
	g.rotate(a.fetched)
	g.plan(ctx) // the next fetch runs while we store
	return g.store(ctx, a.fetched)
}

// pace keeps of a fetch what the topic's rate lets in now. The rest is fetched
// again a while later: waiting for it here would hold up other topics, too.
func (g *generation) pace(f *fetched) {
	allowed, wait := g.k.handler.rates.take(f.p.topic, len(f.records))
	if allowed == len(f.records) {
		return
	}
	f.next, f.epoch = int64(f.records[allowed].Position.Offset), f.p.epoch
	f.records = f.records[:allowed]
	f.p.retryAt = time.Now().Add(wait)
}

// rotate puts the partitions that brought something behind those that brought
// nothing: only the first with something in a fetch gets a message that is
// larger than the limits.
func (g *generation) rotate(got []fetched) {
	brought := make(map[*partition]bool)
	for i := range got {
		brought[got[i].p] = len(got[i].records) > 0
	}
	slices.SortStableFunc(g.order, func(a, b *partition) int {
		switch {
		case brought[a] == brought[b]:
			return 0
		case brought[b]:
			return -1
		}
		return 1
	})
}

// place decides where to go on in a partition, once its range is known.
func (g *generation) place(ctx context.Context, p *partition, r logRange) bool {
	at := []zap.Field{zap.String("topic", p.topic), zap.Int32("partition", p.partition), zap.Int64("offset", p.next)}
	switch {
	case p.next < 0:
		p.next = r.first
	case p.next < r.first:
		gap := r.first - p.next
		g.k.skipped.Add(gap)
		g.log.Error("Kafka deleted records before they were read; going on at the first one there is",
			append(at, zap.Int64("skipped", gap), zap.Int64("first", r.first))...)
		p.next, p.epoch = r.first, -1
	case p.next > r.end:
		// A log never shrinks. Either it is another topic's, on a broker that
		// has no topic ids; or a leader lost what others had not copied yet, and
		// offsets will be given again: the records that come under them are new
		// ones, of a later leader epoch.
		g.log.Warn("the log ends before what was read of it; it is read again from its start, under a new name",
			append(at, zap.Int64("end", r.end))...)
		if p.id != [16]byte{} {
			p.floor = p.epoch
			p.mark = topicOf(p.mark) + "." + strconv.Itoa(int(p.floor))
		} else {
			p.mark = firstMark + "." + strconv.FormatInt(time.Now().UnixMilli(), 10)
		}
		if !g.name(ctx, p) {
			return false
		}
		p.next, p.epoch = r.first, -1
	case p.lost:
		g.fail(p, kafka.OffsetOutOfRange) // in range by now
		p.lost = false
		return true
	}
	p.lost = false
	p.done = p.next
	g.k.setLag(p.topicPartition, r.end-p.next)
	return true
}

// fail puts a partition off for a while, and has its leader looked up.
func (g *generation) fail(p *partition, err error) {
	p.failures++
	b := kafkaBackoff()
	p.retryAt = time.Now().Add(min(b.max, b.min<<min(p.failures-1, 8)))
	if p.failures == loggedPartitionFailure {
		g.log.Warn("cannot read a partition; trying again until it works",
			zap.String("topic", p.topic), zap.Int32("partition", p.partition), zap.Int64("offset", p.next), zap.Error(err))
	}
	select {
	case g.refresh <- struct{}{}:
	default:
	}
}

// loggedPartitionFailure is the failure in a row that is logged: a leader that
// moves fails once or twice.
const loggedPartitionFailure = 4

func (g *generation) succeed(p *partition) {
	if p.failures >= loggedPartitionFailure {
		g.log.Info("the partition can be read again", zap.String("topic", p.topic), zap.Int32("partition", p.partition))
	}
	p.failures, p.retryAt = 0, time.Time{}
}

// store hands records to the queue and notes how far each partition has come.
// It returns false if the generation ended before all were stored.
func (g *generation) store(ctx context.Context, got []fetched) bool {
	var (
		batch []Record
		after []progress
	)
	flush := func() bool {
		if len(batch) == 0 {
			return true
		}
		if g.k.handler.WaitOpen(ctx) != nil {
			return false
		}
		ok := g.k.handler.Handle(ctx, "kafka", batch)
		all := true
		for i, stored := range ok {
			if stored {
				g.advance(after[i])
			} else {
				// What is behind it in its partition must not be committed, and
				// the generation is over anyway.
				all = false
				break
			}
		}
		batch, after = nil, nil
		return all && ctx.Err() == nil
	}
	for i := range got {
		f := &got[i]
		if f.p.lost {
			continue
		}
		for n, rec := range f.records {
			rec.Position.Source, rec.Origin = f.p.source, originOf(f.p.topic)
			if len(batch) == g.k.cfg.Batch && !flush() {
				return false
			}
			offset := int64(rec.Position.Offset) + 1
			if n == len(f.records)-1 {
				offset = f.next // past what was left out behind it
			}
			batch, after = append(batch, rec), append(after, progress{f.p, offset, f.epoch, f.high})
		}
		if len(f.records) == 0 && f.next > f.p.done {
			g.advance(progress{f.p, f.next, f.epoch, f.high})
		}
	}
	return flush()
}

// progress is how far a partition has come once a record is stored.
type progress struct {
	p     *partition
	done  int64
	epoch int32
	high  int64
}

// advance notes that everything of a partition before an offset is stored.
func (g *generation) advance(at progress) {
	at.p.done = at.done
	g.k.setLag(at.p.topicPartition, at.high-at.done)
	g.mu.Lock()
	g.stored[at.p.topicPartition] = committedOffset{offset: at.done, epoch: at.epoch, mark: at.p.mark}
	g.mu.Unlock()
	select {
	case g.dirty <- struct{}{}:
	default:
	}
}

// commits commits what is stored, a while after it was.
func (g *generation) commits(ctx context.Context) {
	retry := kafkaBackoff()
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.dirty:
		}
		if !sleep(ctx, g.k.cfg.CommitInterval) {
			return // the last commit is run's
		}
		if err := g.commit(ctx); err != nil {
			if retry.tries++; retry.tries == loggedPartitionFailure {
				g.log.Warn("cannot commit; trying again", zap.Error(err))
			}
			if !retry.wait(ctx) {
				return
			}
			select {
			case g.dirty <- struct{}{}:
			default:
			}
		} else {
			retry.tries = 0
		}
	}
}

// commit commits what is stored and not yet committed. An error says that it is
// worth trying again.
func (g *generation) commit(ctx context.Context) error {
	g.mu.Lock()
	offsets := g.stored
	g.stored = make(map[topicPartition]committedOffset)
	g.mu.Unlock()
	if len(offsets) == 0 {
		return nil
	}
	delaybridge.Failpoint("acking")
	errs, err := g.k.commit(ctx, g.gen, offsets)
	delaybridge.Failpoint("acked")
	for p := range offsets {
		perr := cmp.Or(err, errs[p])
		switch {
		case perr == nil, errors.Is(perr, kafka.UnknownTopicOrPartition):
			// Done, or the topic is gone.
			delete(offsets, p)
		case isFenced(perr):
			// The partitions are given out anew; their next owner goes on from
			// the last commit, and the queue knows what it has.
			g.log.Info("commit refused: the group has moved on", zap.Int("partitions", len(offsets)), zap.Error(perr))
			return nil
		default:
			err = cmp.Or(err, fmt.Errorf("commit %s/%d: %w", p.topic, p.partition, perr))
		}
	}
	if len(offsets) == 0 {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for p, c := range offsets {
		if _, newer := g.stored[p]; !newer {
			g.stored[p] = c
		}
	}
	return err
}

// isFenced reports whether a commit failed because this member's generation is over.
func isFenced(err error) bool {
	return errors.Is(err, kafka.IllegalGeneration) || errors.Is(err, kafka.UnknownMemberId) ||
		errors.Is(err, kafka.RebalanceInProgress) || errors.Is(err, kafka.FencedInstanceID)
}

// partitionsOf returns how many partitions of a topic were dealt out, as far as
// this member knows: the one that dealt knows best.
func (g *generation) partitionsOf(topic string) int {
	if g.dealt != nil {
		return g.dealt[topic]
	}
	return len(g.known[topic].leaders)
}

// watch looks at the topics every now and then, and when it is asked to.
func (g *generation) watch(ctx context.Context) {
	retry := kafkaBackoff()
	for {
		topics, err := g.k.describeTopics(ctx, g.k.cfg.Topics)
		if ctx.Err() != nil {
			return
		}
		g.k.connected.Store(err == nil)
		if err == nil {
			select {
			case g.topics <- topics:
			case <-ctx.Done():
				return
			}
		}
		t := time.NewTimer(g.k.cfg.WatchInterval)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
			retry.tries = 0
		case <-g.refresh:
			// Asked to, because something fails: not more often than it may help.
			t.Stop()
			retry.tries++
			if !retry.wait(ctx) {
				return
			}
		}
	}
}

// learn takes what was heard of the topics. It returns false if the group has to
// be joined anew.
func (g *generation) learn(ctx context.Context, topics map[string]*kafkaTopic) bool {
	for name, t := range topics {
		_, joined := g.known[name]
		there := t.err == nil && len(t.leaders) > 0
		switch {
		case there != joined && (there || errors.Is(t.err, kafka.UnknownTopicOrPartition)):
			g.log.Info("the topics to read have changed", zap.String("topic", name), zap.Bool("there", there))
			close(g.leave)
			<-ctx.Done() // leaving ends the generation; returning before it would join again
			return false
		case !there:
			continue // not to be told just now
		case t.id != g.known[name].id || len(t.leaders) != g.partitionsOf(name):
			g.log.Info("a topic has changed", zap.String("topic", name), zap.Int("partitions", len(t.leaders)),
				zap.Bool("created_anew", t.id != g.known[name].id))
			g.known = maps.Clone(g.known)
			g.known[name] = t
			// Joining again helps only when the group's leader has heard of it, too.
			sleep(ctx, time.Until(g.began.Add(min(time.Second, g.k.cfg.WatchInterval))))
			return false
		}
	}
	for _, p := range g.order {
		t := topics[p.topic]
		if t == nil || t.err != nil {
			continue
		}
		// A broker that lags behind may still name the leader of before.
		if l := leaderOf(t, p.partition); l.epoch >= p.leader.epoch {
			p.leader = l
		}
	}
	return true
}
