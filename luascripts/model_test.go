package luascripts

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"delaybridge"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "seed of the random tests; 0 takes a new one")
	stepsFlag = flag.Int("steps", 8000, "steps of the random test on real Redis")
)

// TestModel does at random what sources, schedulers and operators do, with
// clocks that step and replies that get lost, and compares after each step:
//   - the whole keyspace with that of a model, which is the scripts once more,
//     in Go and one item at a time;
//   - what was promised with what came out (see auditor), without a model.
func TestModel(t *testing.T) {
	seed := *seedFlag
	if seed == 0 {
		seed = rand.Uint64()
	}
	onBoth(t, func(t *testing.T, client redis.UniversalClient, shebang string) {
		t.Logf("run again with -seed %d", seed)
		steps := *stepsFlag
		if shebang == "" {
			steps /= 8
		}
		cfg := testConfig()
		cfg.shebang = shebang
		cfg.Lease, cfg.DedupWindow, cfg.DeadRetention = 50*time.Millisecond, 400*time.Millisecond, 2*time.Second
		cfg.ClockTolerance = 5 * time.Millisecond
		h := newHarness(t, client, cfg)
		w := &world{
			harness: h, random: rand.New(rand.NewPCG(seed, 0)), model: newModel(cfg),
			audit: newAuditor(t, h), next: map[string]uint64{},
		}
		for step := range steps {
			w.step()
			if got, want := h.state(), w.model.state(); got != want {
				t.Errorf("state:\n%s\nthe model's:\n%s", got, want)
			}
			if t.Failed() {
				t.Fatalf("failed at step %d with -seed %d, after\n%s", step, seed, strings.Join(w.log[max(0, len(w.log)-25):], "\n"))
			}
		}
		h.checkCounts()
		w.drain()
		t.Logf("%v", w.audit)
	})
}

// world is everybody around the queue.
type world struct {
	*harness
	random *rand.Rand
	model  *model
	audit  *auditor
	log    []string

	next     map[string]uint64   // source -> its next offset
	history  []modelRequest      // what sources may deliver again, or only now
	held     []delaybridge.Claim // claims of live workers, and of slow ones
	letters  []Letter            // as an operator has seen them
	defaults []string            // ids that a position has given
	bodies   int
}

type modelRequest struct {
	delaybridge.Request
	body string
}

func (w *world) pick(n int) int          { return w.random.IntN(n) }
func (w *world) chance(percent int) bool { return w.pick(100) < percent }
func (w *world) note(f string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%+d: ", w.now)+fmt.Sprintf(f, args...))
}

var modelIDs = []string{"a", "b", "c", "d", "e", "f", "nats:S:3", "kafka:t:0:2"}

// body makes a message of its own, with a name that says where and when.
func (w *world) body() (string, delaybridge.Message) {
	w.bodies++
	due := w.now + int64(w.pick(40)) - 15
	m := body(delaybridge.Lanes[w.pick(2)]+"://x", due, fmt.Sprintf("m%d", w.bodies))
	name := fmt.Sprintf("m%d(%s%+d)", w.bodies, m.Target.Sink, due)
	w.name(name, m)
	return name, m
}

func (w *world) step() {
	switch n := w.pick(100); {
	case n < 18:
		w.request(w.newRequest(false))
	case n < 22:
		w.history = append(w.history, w.newRequest(true)) // delivered out of order, later
	case n < 36:
		if len(w.history) > 0 {
			w.request(w.history[len(w.history)-1-w.pick(min(len(w.history), 60))])
		}
	case n < 60:
		w.claim(w.chance(20))
	case n < 78:
		w.settle()
	case n < 80:
		w.reject()
	case n < 83:
		w.look()
	case n < 87:
		w.replay()
	case n < 89:
		w.purge()
	case n < 91:
		w.sweep()
	default:
		w.tick()
	}
}

func (w *world) newRequest(source bool) modelRequest {
	sources := []string{"nats:S", "kafka:t:0", "kafka:t:1", "api:"}
	s := sources[w.pick(4)]
	if source {
		s = sources[w.pick(3)]
	}
	w.next[s]++
	p := delaybridge.Position{Source: s, Offset: w.next[s]}
	var r modelRequest
	r.FromAPI = s == "api:"
	if r.FromAPI {
		p = delaybridge.Position{Source: fmt.Sprintf("api:%d", p.Offset), Offset: 1}
	}
	r.body, r.Message = w.body()
	r.Message.ID, r.Message.Position = w.id(p), p
	if w.chance(25) {
		r.Op = delaybridge.OpCancel
	}
	return r
}

// id picks an id: the default one of a position, now and then, which others may
// then name a few times.
func (w *world) id(p delaybridge.Position) string {
	switch n := w.pick(10); {
	case n < 2:
		w.defaults = append(w.defaults, p.String())
		return p.String()
	case n < 4 && len(w.defaults) > 0:
		return w.defaults[len(w.defaults)-1-w.pick(min(len(w.defaults), 4))]
	}
	return modelIDs[w.pick(len(modelIDs))]
}

func (w *world) request(r modelRequest) {
	batch := []modelRequest{r}
	for !r.FromAPI && w.chance(30) { // several in one, as sources send them
		if more := len(w.history); more > 0 && w.chance(60) {
			batch = append(batch, w.history[more-1-w.pick(min(more, 60))])
		} else {
			batch = append(batch, w.newRequest(true))
		}
	}
	var requests []delaybridge.Request
	for _, r := range batch {
		if !r.FromAPI {
			w.history = append(w.history, r)
		}
		requests = append(requests, r.Request)
	}
	for range 1 + w.pick(6)/5 { // at times once more at once, as after a lost reply
		got := w.q.Store(context.Background(), requests)
		want := w.model.store(w.now, batch)
		for i, r := range batch {
			w.note("%s %s at %s as %s: %s %s, %d of %d", r.Op, r.Message.ID, r.Message.Position, r.body, got[i].Outcome, got[i].State, i+1, len(batch))
			if got[i] != want[i] {
				w.t.Errorf("%d: got %v %v %v, the model %v %v", i, got[i].Outcome, got[i].State, got[i].Err, want[i].Outcome, want[i].State)
			}
			w.audit.stored(r, got[i])
		}
	}
}

func (w *world) reject() {
	_, r := w.body()
	r.ID = fmt.Sprintf("rejected:%d", w.pick(5))
	w.next["nats:R"]++
	r.Position = delaybridge.Position{Source: "nats:R", Offset: w.next["nats:R"] - uint64(min(w.pick(3), int(w.next["nats:R"]-1)))}
	w.names[encodedMessage(w.t, r)] = "rejected"
	req := modelRequest{delaybridge.Request{Op: delaybridge.OpReject, Message: r, Error: "no"}, "rejected"}
	got := w.q.Store(context.Background(), []delaybridge.Request{req.Request})[0]
	want := w.model.store(w.now, []modelRequest{req})[0]
	w.note("reject %s at %s: %s", r.ID, r.Position, got.Outcome)
	if got != want {
		w.t.Errorf("got %v %v, the model %v", got.Outcome, got.Err, want.Outcome)
	}
}

// claim claims; lost, the reply does not arrive: nobody holds the leases.
func (w *world) claim(lost bool) {
	lane, limit := delaybridge.Lanes[w.pick(2)], (w.pick(8)+1)/2
	g := w.q.Claim(context.Background(), lane, []delaybridge.Ask{{Limit: limit}})[0]
	if g.Err != nil {
		w.t.Fatal(g.Err)
	}
	claims, expired, buried, wait := w.model.claim(w.now, w.host, lane, limit)
	var got []string
	for _, c := range g.Claims {
		got = append(got, fmt.Sprintf("%s %s %d %d/%d", c.ID, c.Payload, c.Lease.End-epoch, c.Failed, c.LostLeases))
	}
	w.note("claim %s %d, lost %v: %v, %d expired, %d buried", lane, limit, lost, got, g.LeasesExpired, g.Buried)
	if !slices.Equal(got, claims) || g.LeasesExpired != expired || g.Buried != buried || g.Wait != wait {
		w.t.Errorf("claimed %v, wait %v, the model %v, %d expired, %d buried, wait %v", got, g.Wait, claims, expired, buried, wait)
	}
	w.audit.claimed(g)
	if !lost {
		w.held = append(w.held, g.Claims...)
	}
}

// settle lets a worker, a slow one at times, settle one claim; at times twice.
func (w *world) settle() {
	if len(w.held) == 0 {
		return
	}
	ctx := context.Background()
	n := w.pick(len(w.held))
	c := w.held[n]
	if w.chance(80) {
		w.held = slices.Delete(w.held, n, n+1)
	}
	how, after, outlive := w.pick(8), int64(w.pick(40)), w.chance(30)
	for range 1 + w.pick(6)/5 {
		var err error
		owned := w.model.owns(&c)
		switch {
		case how < 4:
			err = w.q.Ack(ctx, []delaybridge.Claim{c})[0]
			w.model.ack(w.now, &c)
		case how < 5:
			err = w.q.Release(ctx, []delaybridge.Claim{c})[0]
			w.model.release(&c)
		case how < 7:
			why := modelErrors[after%int64(len(modelErrors))]
			err = w.q.Retry(ctx, []delaybridge.Retry{{Claim: c, After: time.Duration(after) * time.Millisecond, OutliveLease: outlive, Error: why.said}})[0]
			w.model.retry(w.now, &c, after, outlive, why.kept)
		default:
			err = w.q.Bury(ctx, []delaybridge.Burial{{Claim: c, Reason: delaybridge.ReasonAttempts, Error: "no", Failed: 9}})[0]
			w.model.bury(w.now, &c)
		}
		w.note("settle %d %s %s until %+d: %v", how, c.ID, c.Payload, c.Lease.End-epoch, err)
		if owned != (err == nil) || err != nil && !errors.Is(err, delaybridge.ErrLeaseLost) {
			w.t.Errorf("settled: %v, the model says owned %v", err, owned)
		}
		w.audit.settled(&c, how, err)
	}
}

// look has the operator look at the dead letters, to act on some later.
func (w *world) look() {
	var err error
	if w.letters, _, err = w.q.Dead(context.Background(), 100, ""); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) replay() {
	if len(w.letters) == 0 {
		return
	}
	l, force := w.letters[w.pick(len(w.letters))], w.chance(50)
	name, m := w.body()
	m.ID = l.ID
	err := w.q.Replay(context.Background(), l, m, force)
	want := w.model.replay(&l, name, m, force)
	w.note("replay %s as %s, force %v: %v", l.ID, name, force, err)
	if !errors.Is(err, want) || want == nil && err != nil {
		w.t.Errorf("got %v, the model %v", err, want)
	}
	if err == nil {
		w.audit.replayed(&l, string(m.Payload), m.Due)
	}
}

func (w *world) purge() {
	if len(w.letters) == 0 {
		return
	}
	l := w.letters[w.pick(len(w.letters))]
	err := w.q.Purge(context.Background(), []Letter{l})[0]
	gone := w.model.purge(&l)
	w.note("purge %s: %v", l.ID, err)
	if gone != (err == nil) {
		w.t.Errorf("got %v, the model %v", err, gone)
	}
}

func (w *world) sweep() {
	n, err := w.q.Sweep(context.Background(), 0)
	want := w.model.sweep(w.now, w.host)
	w.note("sweep: %d %v", n, err)
	if err != nil || n != want {
		w.t.Errorf("swept %d %v, the model %d", n, err, want)
	}
}

func (w *world) tick() {
	switch n := w.pick(20); {
	case n < 12:
		w.now += int64(w.pick(25))
	case n < 15:
		w.now += 50
	case n < 18:
		w.now -= int64(w.pick(40)) // a step back
	case n < 19:
		w.now += int64(w.pick(900)) // a jump ahead
	}
	switch w.pick(8) {
	case 0:
		w.host = w.now - int64(w.pick(60))
	case 1:
		w.host = w.now + int64(w.pick(60))
	default:
		w.host = w.now
	}
	w.model.host = w.host
	w.audit.clock()
	w.note("the clock, host %+d", w.host)
}

// drain lets all time pass and delivers what is left: just what is owed.
func (w *world) drain() {
	w.at(w.now + 10_000)
	w.model.host = w.host
	w.audit.clock()
	w.q.cfg.MaxLostLeases = 1000
	for _, lane := range delaybridge.Lanes {
		for {
			g := w.q.Claim(context.Background(), lane, []delaybridge.Ask{{Limit: 100}})[0]
			w.audit.claimed(g)
			for _, err := range w.q.Ack(context.Background(), g.Claims) {
				if err != nil {
					w.t.Error(err)
				}
			}
			for i := range g.Claims {
				w.audit.settled(&g.Claims[i], 0, nil)
			}
			if len(g.Claims) == 0 {
				break
			}
		}
	}
	w.audit.done()
}

func encodedMessage(t testing.TB, m delaybridge.Message) string {
	b, err := encodeMessage(&m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// auditor holds answers against promises: it knows which message an id owes by
// what was answered, and nothing of how the queue keeps it.
type auditor struct {
	t *testing.T
	h *harness

	owed    map[string]string // id -> payload of the message that is to be delivered
	due     map[string]time.Time
	dead    map[string]string // id -> payload of its letter
	leases  map[string]lease  // id -> the one lease there may be
	known   map[string]map[string]uint64
	settles map[string]int64 // id -> when it was last settled
	latest  map[string]int64 // id -> the latest clock since

	accepted, delivered, replacedN, cancelled, died, redelivered int
}

type lease struct {
	end     int64
	payload string
}

func newAuditor(t *testing.T, h *harness) *auditor {
	return &auditor{
		t: t, h: h, owed: map[string]string{}, due: map[string]time.Time{}, dead: map[string]string{}, leases: map[string]lease{},
		known: map[string]map[string]uint64{}, settles: map[string]int64{}, latest: map[string]int64{},
	}
}

func (a *auditor) String() string {
	return fmt.Sprintf("%d accepted, %d replaced, %d cancelled, %d delivered, %d dead; %d redelivered in vain",
		a.accepted, a.replacedN, a.cancelled, a.delivered, a.died, a.redelivered)
}

func (a *auditor) clock() {
	for id := range a.latest {
		a.latest[id] = max(a.latest[id], a.h.now)
	}
}

// settle notes that a tombstone now holds what is known of an id.
func (a *auditor) settle(id string) { a.settles[id], a.latest[id] = a.h.now, a.h.now }

// forget lets go of what is known of an id whose tombstone may have gone.
func (a *auditor) forget(id string) {
	if _, pending := a.owed[id]; !pending && a.latest[id]-a.settles[id] >= a.h.q.cfg.DedupWindow.Milliseconds() {
		delete(a.known, id)
	}
}

func (a *auditor) stored(r modelRequest, got delaybridge.Result) {
	m := &r.Message
	a.forget(m.ID)
	_, pending := a.owed[m.ID]
	known, wasKnown := a.known[m.ID][m.Position.Source]
	old := wasKnown && m.Position.Offset <= known
	if old && got.Outcome == delaybridge.Duplicate {
		a.redelivered++
		if !pending {
			a.settle(m.ID) // what kept it out goes on doing so
		}
	}
	if old && (got.Outcome == delaybridge.Scheduled || got.Outcome == delaybridge.Replaced || got.Outcome == delaybridge.Cancelled) {
		a.t.Errorf("%s of %s at %s was %s, though %d is known", r.Op, m.ID, m.Position, got.Outcome, known)
	}
	// An in-flight message's cancel is answered, and not kept.
	if got.Outcome != delaybridge.Duplicate && got.State != delaybridge.StateInFlight && !(r.FromAPI && r.Op == delaybridge.OpCancel && got.Outcome != delaybridge.Cancelled) {
		if a.known[m.ID] == nil {
			a.known[m.ID] = map[string]uint64{}
		}
		a.known[m.ID][m.Position.Source] = m.Position.Offset
	}
	switch got.Outcome {
	case delaybridge.Scheduled, delaybridge.Replaced:
		if pending != (got.Outcome == delaybridge.Replaced) {
			a.t.Errorf("%s, and an earlier one is owed: %v", got.Outcome, pending)
		}
		if pending {
			a.replacedN++
		}
		a.accepted++
		a.owed[m.ID], a.due[m.ID] = string(m.Payload), m.Due
		delete(a.leases, m.ID)
	case delaybridge.Cancelled:
		if _, leased := a.leases[m.ID]; !pending || leased {
			a.t.Errorf("cancelled %s, pending %v, leased %v", m.ID, pending, leased)
		}
		a.cancelled++
		delete(a.owed, m.ID)
		a.settle(m.ID)
	case delaybridge.TooLate, delaybridge.Unknown:
		if pending && got.State != delaybridge.StateInFlight {
			a.t.Errorf("too late to cancel %s (%s), and it is owed", m.ID, got.State)
		}
		if !r.FromAPI && got.State != delaybridge.StateInFlight {
			a.settle(m.ID)
		}
	}
}

func (a *auditor) claimed(g delaybridge.Grant) {
	now := time.UnixMilli(epoch + a.h.now)
	for i := range g.Claims {
		c := &g.Claims[i]
		if a.owed[c.ID] != string(c.Payload) {
			a.t.Errorf("%s of %s was claimed; what is owed is %q", c.Payload, c.ID, a.owed[c.ID])
		}
		if c.Due.After(now) || !c.Due.Equal(a.due[c.ID]) {
			a.t.Errorf("%s due %v was claimed at %v", c.ID, c.Due, now)
		}
		if old, ok := a.leases[c.ID]; ok && old.end > epoch+a.h.now {
			a.t.Errorf("%s was leased until %+d, and claimed again", c.ID, old.end-epoch)
		} else if !ok && c.Due.After(time.UnixMilli(epoch+a.h.host).Add(a.h.q.cfg.ClockTolerance)) {
			a.t.Errorf("%s due %v was claimed, by a host that has %+d", c.ID, c.Due, a.h.host)
		}
		a.leases[c.ID] = lease{c.Lease.End, string(c.Payload)}
	}
	if g.Buried == 0 {
		return
	}
	letters, _, err := a.h.q.Dead(context.Background(), 1000, "")
	if err != nil {
		a.t.Fatal(err)
	}
	for _, l := range letters {
		// An older letter may be of this message too, which its source has sent again since.
		if a.owed[l.ID] == string(l.Payload) && l.Reason == delaybridge.ReasonAbandoned && l.Died.Equal(now) {
			if l.LostLeases < a.h.q.cfg.MaxLostLeases {
				a.t.Errorf("%s was abandoned after %d lost leases", l.ID, l.LostLeases)
			}
			a.kill(l.ID)
		}
	}
}

func (a *auditor) kill(id string) {
	a.died++
	a.dead[id] = a.owed[id]
	delete(a.owed, id)
	delete(a.leases, id)
	a.settle(id)
}

func (a *auditor) settled(c *delaybridge.Claim, how int, err error) {
	if err != nil {
		return
	}
	if l, ok := a.leases[c.ID]; !ok || l.end != c.Lease.End || l.payload != string(c.Payload) || a.owed[c.ID] != string(c.Payload) {
		a.t.Errorf("%s of %s was settled by a lease until %+d; there is %+v", c.Payload, c.ID, c.Lease.End-epoch, l)
	}
	switch {
	case how < 4:
		a.delivered++
		delete(a.owed, c.ID)
		a.settle(c.ID)
	case how == 7:
		a.kill(c.ID)
	}
	delete(a.leases, c.ID)
}

func (a *auditor) replayed(l *Letter, payload string, due time.Time) {
	a.forget(l.ID)
	if a.owed[l.ID] != "" {
		a.replacedN++
	}
	a.accepted++
	a.owed[l.ID], a.due[l.ID] = payload, due
	delete(a.leases, l.ID)
	delete(a.dead, l.ID)
}

func (a *auditor) done() {
	for id, payload := range a.owed {
		a.t.Errorf("%s of %s was lost", payload, id)
	}
	if a.delivered == 0 || a.redelivered == 0 {
		a.t.Errorf("nothing happened: %v", a)
	}
}

// model is the queue's state in Go.
type model struct {
	cfg      Config
	due      map[string]map[string]int64 // lane -> id -> ms past the epoch
	inflight map[string]map[string]int64
	msg      map[string]modelRecord
	tries    map[string]modelTries
	letters  map[string]modelLetter
	done     [2]modelTombs // the first is the one in use
	doneB    bool          // whether that is done:b
	host     int64         // the host's clock
}

type modelTries struct {
	failed, lost int
	lastError    string
}

// modelErrors are why attempts fail, and what is kept of it.
var modelErrors = []struct{ said, kept string }{
	{"no stream", "no stream"},
	{"", ""},
	{" 7 8\n9\x1b[2J\x00", "7 8 9?[2J?"},
	{strings.Repeat("€", 100), strings.Repeat("€", 84) + "…"},
	{"3", "3"},
}

type modelRecord struct {
	marks []delaybridge.Position
	body  string
	m     delaybridge.Message
}

type modelLetter struct {
	modelRecord
	died         int64
	reason       string
	failed, lost int
	text         string
}

type modelTombs struct {
	since int64
	used  bool
	tombs map[string]modelTomb
}

type modelTomb struct {
	state string
	marks []delaybridge.Position
}

func newModel(cfg Config) *model {
	m := &model{
		cfg: cfg, due: map[string]map[string]int64{}, inflight: map[string]map[string]int64{},
		msg: map[string]modelRecord{}, tries: map[string]modelTries{}, letters: map[string]modelLetter{},
	}
	for _, lane := range delaybridge.Lanes {
		m.due[lane], m.inflight[lane] = map[string]int64{}, map[string]int64{}
	}
	m.done[0].tombs, m.done[1].tombs = map[string]modelTomb{}, map[string]modelTomb{}
	return m
}

func (m *model) tomb(id string) (modelTomb, bool) {
	for _, d := range m.done {
		if t, ok := d.tombs[id]; ok {
			return t, true
		}
	}
	return modelTomb{}, false
}

func (m *model) bless(now int64, id, state string, marks []delaybridge.Position) {
	now = min(now, m.host+m.cfg.ClockTolerance.Milliseconds())
	if !m.done[0].used || m.done[0].since+m.cfg.DedupWindow.Milliseconds() <= now {
		m.done[1] = m.done[0]
		m.done[0] = modelTombs{since: now, used: true, tombs: map[string]modelTomb{}}
		m.doneB = !m.doneB
	}
	m.done[0].tombs[id] = modelTomb{state, marks}
}

func modelSeen(marks []delaybridge.Position, p delaybridge.Position) bool {
	return slices.ContainsFunc(marks, func(k delaybridge.Position) bool { return k.Source == p.Source && k.Offset >= p.Offset })
}

func modelMark(marks []delaybridge.Position, p delaybridge.Position) []delaybridge.Position {
	out := []delaybridge.Position{p}
	for _, k := range marks {
		if k.Source != p.Source && !strings.HasPrefix(k.Source, "api:") && len(out) < 4 {
			out = append(out, k)
		}
	}
	return out
}

// remove takes an id out of all lanes.
func (m *model) remove(id string) {
	for _, lane := range delaybridge.Lanes {
		delete(m.due[lane], id)
		delete(m.inflight[lane], id)
	}
	delete(m.tries, id)
	delete(m.msg, id)
}

func (m *model) isInFlight(id string) bool {
	for _, lane := range delaybridge.Lanes {
		if _, ok := m.inflight[lane][id]; ok {
			return true
		}
	}
	return false
}

func (m *model) put(id string, r modelRecord) {
	m.remove(id)
	m.msg[id] = r
	m.due[r.m.Target.Sink][id] = r.m.Due.UnixMilli() - epoch
}

// store carries out a batch, a run of one operation after the other. A run knows
// the tombstones that there were before it, with those of its own, and puts again
// at its end those by which it knew a redelivery.
func (m *model) store(now int64, batch []modelRequest) (out []delaybridge.Result) {
	for len(batch) > 0 {
		tombs, op := map[string]modelTomb{}, batch[0].Op
		for _, d := range []modelTombs{m.done[1], m.done[0]} {
			maps.Copy(tombs, d.tombs)
		}
		var known []string
		for len(batch) > 0 && batch[0].Op == op {
			id := batch[0].Message.ID
			_, pending := m.msg[id]
			result := m.storeOne(now, batch[0], tombs)
			if result.Outcome == delaybridge.Duplicate && modelSeen(tombs[id].marks, batch[0].Message.Position) && (!pending || op == delaybridge.OpReject) {
				known = append(known, id)
			}
			out, batch = append(out, result), batch[1:]
		}
		for _, id := range known {
			m.bless(now, id, tombs[id].state, tombs[id].marks)
		}
	}
	return out
}

func (m *model) storeOne(now int64, r modelRequest, tombs map[string]modelTomb) delaybridge.Result {
	id, p := r.Message.ID, r.Message.Position
	record, pending := m.msg[id]
	tomb, buried := tombs[id]
	letter, dead := m.letters[id]
	marks := record.marks
	if !pending || r.Op == delaybridge.OpReject {
		marks = tomb.marks
	}
	if modelSeen(marks, p) {
		return delaybridge.Result{Outcome: delaybridge.Duplicate}
	}
	bless := func(state string) {
		m.bless(now, id, state, marks)
		tombs[id] = modelTomb{state, marks}
	}
	marks = modelMark(marks, p)
	switch r.Op {
	case delaybridge.OpReject:
		if dead && modelSeen(letter.marks, p) {
			return delaybridge.Result{Outcome: delaybridge.Duplicate}
		}
		m.letters[id] = modelLetter{modelRecord{marks, r.body, r.Message}, now, "rejected", 0, 0, r.Error}
		bless("x")
		return delaybridge.Result{Outcome: delaybridge.Rejected}
	case delaybridge.OpSchedule:
		m.put(id, modelRecord{marks, r.body, r.Message})
		if pending {
			return delaybridge.Result{Outcome: delaybridge.Replaced}
		}
		return delaybridge.Result{Outcome: delaybridge.Scheduled}
	}
	if pending {
		if m.isInFlight(id) {
			return delaybridge.Result{Outcome: delaybridge.TooLate, State: delaybridge.StateInFlight}
		}
		m.remove(id)
		bless("c")
		return delaybridge.Result{Outcome: delaybridge.Cancelled}
	}
	result, state := delaybridge.Result{Outcome: delaybridge.Unknown}, "c"
	switch {
	case buried && tomb.state == "d":
		result, state = delaybridge.Result{Outcome: delaybridge.TooLate, State: delaybridge.StateDelivered}, "d"
	case buried && tomb.state == "c":
		result = delaybridge.Result{Outcome: delaybridge.TooLate, State: delaybridge.StateCancelled}
	case dead:
		result, state = delaybridge.Result{Outcome: delaybridge.TooLate, State: delaybridge.StateDead}, "x"
	}
	if !r.FromAPI {
		delete(m.tries, id)
		bless(state)
	}
	return result
}

func byTime(set map[string]int64, until int64) []string {
	var ids []string
	for id, at := range set {
		if at <= until {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(cmp.Compare(set[a], set[b]), strings.Compare(a, b)) })
	return ids
}

func (m *model) claim(now, host int64, lane string, limit int) (claims []string, expired, buried int, wait time.Duration) {
	clock := min(now, host+m.cfg.ClockTolerance.Milliseconds())
	lost := byTime(m.inflight[lane], now)
	lost = lost[:min(limit, len(lost))]
	due := byTime(m.due[lane], clock)
	due = due[:min(limit-len(lost), len(due))]
	for i, id := range append(lost, due...) {
		r, tries := m.msg[id], m.tries[id]
		if i < len(lost) {
			tries.lost++
			m.tries[id] = tries
		}
		if tries.lost >= m.cfg.MaxLostLeases {
			m.remove(id)
			m.letters[id] = modelLetter{r, now, "abandoned", tries.failed, tries.lost, fmt.Sprintf("its lease ran out %d times", tries.lost)}
			m.bless(now, id, "x", r.marks)
			buried++
			continue
		}
		end := now + m.cfg.Lease.Milliseconds()
		end += end & 1
		if modelMarks(id, r.marks) == "=" {
			end++ // no other message of the id can have a lease that ends then
		}
		delete(m.due[lane], id)
		m.inflight[lane][id] = end
		claims = append(claims, fmt.Sprintf("%s %s %d %d/%d", id, r.m.Payload, end, tries.failed, tries.lost))
	}
	wait = -1
	for _, at := range m.due[lane] {
		wait = sooner(wait, at-clock)
	}
	for _, end := range m.inflight[lane] {
		wait = sooner(wait, end-now)
	}
	return claims, len(lost), buried, wait
}

func sooner(wait time.Duration, ms int64) time.Duration {
	if d := time.Duration(max(0, ms)) * time.Millisecond; wait < 0 || d < wait {
		return d
	}
	return wait
}

func (m *model) owns(c *delaybridge.Claim) bool {
	end, ok := m.inflight[c.Lease.Lane][c.ID]
	return ok && end == c.Lease.End-epoch && string(m.msg[c.ID].m.Payload) == string(c.Payload)
}

func (m *model) ack(now int64, c *delaybridge.Claim) {
	if m.owns(c) {
		m.bless(now, c.ID, "d", m.msg[c.ID].marks)
		m.remove(c.ID)
	}
}

func (m *model) release(c *delaybridge.Claim) {
	if m.owns(c) {
		delete(m.inflight[c.Lease.Lane], c.ID)
		m.due[c.Lease.Lane][c.ID] = c.Due.UnixMilli() - epoch
	}
}

func (m *model) retry(now int64, c *delaybridge.Claim, after int64, outlive bool, lastError string) {
	if !m.owns(c) {
		return
	}
	at := max(now+after, c.Due.UnixMilli()-epoch)
	if outlive {
		at = max(at, c.Lease.End-epoch+1)
	}
	delete(m.inflight[c.Lease.Lane], c.ID)
	m.due[c.Lease.Lane][c.ID] = at
	m.tries[c.ID] = modelTries{m.tries[c.ID].failed + 1, m.tries[c.ID].lost, lastError}
}

func (m *model) bury(now int64, c *delaybridge.Claim) {
	if m.owns(c) {
		r := m.msg[c.ID]
		m.letters[c.ID] = modelLetter{r, now, "attempts", 9, c.LostLeases, "no"}
		m.bless(now, c.ID, "x", r.marks)
		m.remove(c.ID)
	}
}

func (m *model) replay(l *Letter, name string, msg delaybridge.Message, force bool) error {
	letter, ok := m.letters[l.ID]
	record, pending := m.msg[l.ID]
	switch {
	case !ok || letter.died != l.Died.UnixMilli()-epoch:
		return ErrUnknown
	case pending && !force:
		return ErrPending
	}
	marks := letter.marks
	if t, ok := m.tomb(l.ID); ok {
		marks = t.marks
	}
	if pending {
		marks = record.marks
	}
	delete(m.letters, l.ID)
	m.put(l.ID, modelRecord{modelMark(marks, delaybridge.Position{Source: "api:replay", Offset: 1}), name, msg})
	return nil
}

func (m *model) purge(l *Letter) bool {
	letter, ok := m.letters[l.ID]
	if !ok || letter.died != l.Died.UnixMilli()-epoch {
		return false
	}
	delete(m.letters, l.ID)
	return true
}

func (m *model) sweep(now, host int64) (dropped int) {
	now = min(now, host+m.cfg.ClockTolerance.Milliseconds())
	window := m.cfg.DedupWindow.Milliseconds()
	none := func() modelTombs { return modelTombs{tombs: map[string]modelTomb{}} }
	if m.done[0].used && m.done[0].since+2*window <= now {
		m.done, m.doneB = [2]modelTombs{none(), none()}, false
	} else if m.done[0].used && m.done[0].since+window <= now {
		m.done[1] = none()
	}
	for id, l := range m.letters {
		if l.died <= now-m.cfg.DeadRetention.Milliseconds() {
			delete(m.letters, id)
			dropped++
		}
	}
	return dropped
}

// modelMarks writes the marks of an id down as a record has them.
func modelMarks(id string, all []delaybridge.Position) string {
	if len(all) == 1 && all[0].String() == id {
		return "="
	}
	var out []string
	for _, p := range all {
		out = append(out, fmt.Sprintf("%s %d", p.Source, p.Offset))
	}
	return strings.Join(out, " ")
}

// state writes the model down as the harness does the keyspace.
func (m *model) state() string {
	var lines []string
	add := func(f string, args ...any) { lines = append(lines, fmt.Sprintf(f, args...)) }
	for _, lane := range delaybridge.Lanes {
		for id, at := range m.due[lane] {
			add("due:%s %s %+d", lane, id, at)
		}
		for id, at := range m.inflight[lane] {
			add("inflight:%s %s %+d", lane, id, at)
		}
	}
	for id, r := range m.msg {
		add("msg %s [%s] %s", id, modelMarks(id, r.marks), r.body)
	}
	for id, n := range m.tries {
		add("%s", strings.TrimSpace(fmt.Sprintf("tries %s %d %d %s", id, n.failed, n.lost, n.lastError)))
	}
	count := map[string]int{}
	for id, l := range m.letters {
		add("dead %s %+d", id, l.died)
		add("deadmsg %s %s %d %d %q [%s] %s", id, l.reason, l.failed, l.lost, l.text, modelMarks(id, l.marks), l.body)
		count[l.reason]++
	}
	for reason, n := range maps.All(count) {
		add("deadcount %s %d", reason, n)
	}
	for i, d := range m.done {
		name := "done:a"
		if m.doneB == (i == 0) {
			name = "done:b"
		}
		if d.used {
			add("%s since %+d", name, d.since)
		}
		for id, t := range d.tombs {
			add("%s %s %s %s", name, id, t.state, modelMarks(id, t.marks))
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
