// Package sinktest holds the one suite that every sink passes.
package sinktest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"delaybridge"
)

// Features says what a sink's broker can do beyond what all can.
type Features struct {
	// HeaderOrder: the order of headers is kept across names, not only within one.
	HeaderOrder bool
}

// Fixture is one sink with its broker.
type Fixture struct {
	Features
	// Sink is under test. Its connection runs through Link.
	Sink delaybridge.Sink
	Link *Link
	// NewTarget makes a place that the broker takes messages for.
	NewTarget func() delaybridge.Target
	// Missing is a target that the broker does not have, empty if that cannot be told.
	Missing delaybridge.Target
	// TooLarge is the size of a payload that the broker will not take.
	TooLarge int
	// Delivered returns all that has arrived at a target, in order as far as the
	// broker has one. It does not go through Link. All that was confirmed is there.
	Delivered func(delaybridge.Target) []Delivered
}

// Delivered is a message as a consumer sees it, with what the sink had to put
// into headers back in its place.
type Delivered struct {
	Key, Payload []byte
	// Headers are those of the message itself.
	Headers []delaybridge.Header
	// Bridge holds the headers that the bridge has added, Bridge-Id and so on.
	Bridge map[string]string
}

// Run runs the suite. newFixture starts a broker and a sink with that publish
// timeout; both end with the test.
func Run(t *testing.T, newFixture func(t *testing.T, timeout time.Duration) Fixture) {
	const long = time.Minute // no test of the suite waits for it
	shared := newFixture(t, long)
	for _, test := range []struct {
		name string
		run  func(*testing.T, Fixture)
	}{
		{"keys and payloads arrive byte for byte, null, empty or present", testBodies},
		{"headers arrive as they are, in order and repeated", testHeaders},
		{"the bridge's own headers are added, and replace what has their name", testOwnHeaders},
		{"batches of no, one and a thousand messages", testBatchSizes},
		{"a bad message does not fail its neighbours, and outcomes line up", testNeighbours},
		{"the batch is left as it was", testUntouched},
		{"many at a time", testConcurrent},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, shared) })
	}
	t.Run("a broker that is away is unavailable, nothing arrives later, and it comes back", func(t *testing.T) {
		testAway(t, newFixture(t, long))
	})
	t.Run("a broker that hangs does not hold Publish longer than its timeout", func(t *testing.T) {
		const timeout = 500 * time.Millisecond
		testHang(t, newFixture(t, timeout), timeout)
	})
	t.Run("Publish ends with its context", func(t *testing.T) {
		testContext(t, newFixture(t, long))
	})
	t.Run("outcomes are true while connections break", func(t *testing.T) {
		testCuts(t, newFixture(t, 2*time.Second))
	})
}

// Claim returns a claim of a message that has all it needs.
func Claim(target delaybridge.Target, id string) delaybridge.Claim {
	due := time.Date(2031, 2, 3, 4, 5, 6, 7_000_000, time.UTC)
	return delaybridge.Claim{Message: delaybridge.Message{
		ID: id, Position: delaybridge.Position{Source: "nats:TEST", Offset: 1}, Target: target,
		Scheduled: due.Add(-time.Minute), Due: due, Payload: []byte(id),
	}}
}

// claims returns n claims whose ids begin with prefix.
func claims(target delaybridge.Target, prefix string, n int) []delaybridge.Claim {
	out := make([]delaybridge.Claim, n)
	for i := range out {
		out[i] = Claim(target, fmt.Sprintf("%s-%d", prefix, i))
	}
	return out
}

func publish(t *testing.T, f Fixture, batch []delaybridge.Claim) {
	t.Helper()
	for i, err := range f.Sink.Publish(t.Context(), batch) {
		if err != nil {
			t.Fatalf("message %d of %d (%q): %v", i, len(batch), batch[i].ID, err)
		}
	}
}

// byID publishes a batch that has to succeed and returns what arrived, by Bridge-Id.
func byID(t *testing.T, f Fixture, batch []delaybridge.Claim) map[string]Delivered {
	t.Helper()
	publish(t, f, batch)
	got := map[string]Delivered{}
	for _, d := range f.Delivered(batch[0].Target) {
		got[d.Bridge["Bridge-Id"]] = d
	}
	for _, c := range batch {
		if _, ok := got[c.ID]; !ok {
			t.Fatalf("%q was confirmed and did not arrive", c.ID)
		}
	}
	return got
}

// same tells null from empty.
func same(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

func show(b []byte) string {
	if b == nil {
		return "null"
	}
	if len(b) > 100 {
		return fmt.Sprintf("%q… (%d bytes)", b[:100], len(b))
	}
	return fmt.Sprintf("%q", b)
}

func testBodies(t *testing.T, f Fixture) {
	every := make([]byte, 256)
	for i := range every {
		every[i] = byte(i)
	}
	keys := [][]byte{
		nil, {}, []byte("k"), []byte("Schlüssel 1"), []byte(" k"), []byte("k\t"), []byte("a\nb"), []byte("\x00"),
		{0xff, 0xfe}, every, []byte("true"), []byte("\ufeff"), []byte("\u00a0k"), []byte(`"k"`),
	}
	payloads := [][]byte{nil, {}, []byte("p"), every, bytes.Repeat([]byte("x"), 100_000)}
	target := f.NewTarget()
	var batch []delaybridge.Claim
	for i, key := range keys {
		for j, payload := range payloads {
			c := Claim(target, fmt.Sprintf("%d-%d", i, j))
			c.Key, c.Payload = key, payload
			batch = append(batch, c)
		}
	}
	got := byID(t, f, batch)
	for _, c := range batch {
		d := got[c.ID]
		if !same(d.Key, c.Key) {
			t.Errorf("key %s arrived as %s", show(c.Key), show(d.Key))
		}
		if !same(d.Payload, c.Payload) {
			t.Errorf("payload %s arrived as %s", show(c.Payload), show(d.Payload))
		}
	}
}

func header(name, value string) delaybridge.Header {
	return delaybridge.Header{Name: name, Value: []byte(value)}
}

func testHeaders(t *testing.T, f Fixture) {
	null := func(name string) delaybridge.Header { return delaybridge.Header{Name: name} }
	cases := []struct {
		sentence string
		headers  []delaybridge.Header
	}{
		{"none", nil},
		{"one", []delaybridge.Header{header("a", "1")}},
		{"an empty value", []delaybridge.Header{header("a", "")}},
		{"a null value", []delaybridge.Header{null("a")}},
		{"null and empty under one name", []delaybridge.Header{null("a"), header("a", ""), null("a")}},
		{"one name three times, in order", []delaybridge.Header{header("a", "3"), header("a", "1"), header("a", "2")}},
		{"one name with a value that needs care among others", []delaybridge.Header{header("a", "3"), header("a", "x\ny"), header("a", "2")}},
		{"names that differ in case only", []delaybridge.Header{header("trace", "1"), header("Trace", "2"), header("TRACE", "3")}},
		{"names interleaved", []delaybridge.Header{header("b", "1"), header("a", "2"), header("b", "3"), header("a", "4")}},
		{"an empty name", []delaybridge.Header{header("", "x")}},
		{"a name with a blank", []delaybridge.Header{header("a b", "x")}},
		{"a name with a colon", []delaybridge.Header{header("a:b", "x")}},
		{"a name with a slash", []delaybridge.Header{header("a/b", "x")}},
		{"a name that is not ASCII", []delaybridge.Header{header("größe", "x")}},
		{"a name that is not UTF-8", []delaybridge.Header{header("\xff\xfe", "x")}},
		{"a name with a line break", []delaybridge.Header{header("a\r\nb", "x")}},
		{"every printable sign in a name", []delaybridge.Header{header("!#$%&'*+-.^_`|~09azAZ", "x")}},
		{"a value with CR", []delaybridge.Header{header("a", "x\ry")}},
		{"a value with LF", []delaybridge.Header{header("a", "x\ny")}},
		{"a value that tries to add a header", []delaybridge.Header{header("a", "x\r\nNats-Rollup: all")}},
		{"a value with NUL", []delaybridge.Header{header("a", "x\x00y")}},
		{"a value of NUL only", []delaybridge.Header{header("a", "\x00")}},
		{"a value with other control bytes", []delaybridge.Header{header("a", "x\x01\x1b\x7fy")}},
		{"a value with a tab inside", []delaybridge.Header{header("a", "x\ty")}},
		{"a value with a blank before", []delaybridge.Header{header("a", " x")}},
		{"a value with a blank behind", []delaybridge.Header{header("a", "x ")}},
		{"a value with a tab behind", []delaybridge.Header{header("a", "x\t")}},
		{"a value of blanks only", []delaybridge.Header{header("a", "  ")}},
		{"a value with a no-break space before", []delaybridge.Header{header("a", "\u00a0x")}},
		{"a value with a vertical tab behind", []delaybridge.Header{header("a", "x\v")}},
		{"a value with a byte order mark", []delaybridge.Header{header("a", "\ufeffx")}},
		{"a value with a line separator inside", []delaybridge.Header{header("a", "x\u2028y\u0085z")}},
		{"a value that is not UTF-8", []delaybridge.Header{header("a", "\xff\xfe")}},
		{"a value that is not ASCII", []delaybridge.Header{header("a", "größer 👍")}},
		{"a value with colons and quotes", []delaybridge.Header{header("a", `"x": 'y', z`)}},
		{"a long value", []delaybridge.Header{header("a", strings.Repeat("v", 5000))}},
		{"many headers", func() (h []delaybridge.Header) {
			for i := range 100 {
				h = append(h, header(fmt.Sprintf("h%d", i), fmt.Sprint(i)))
			}
			return h
		}()},
	}
	target := f.NewTarget()
	batch := make([]delaybridge.Claim, len(cases))
	for i, c := range cases {
		batch[i] = Claim(target, c.sentence)
		batch[i].Headers = c.headers
	}
	got := byID(t, f, batch)
	for _, c := range cases {
		want, have := c.headers, got[c.sentence].Headers
		if !f.HeaderOrder {
			want, have = sortByName(want), sortByName(have)
		}
		if !slices.EqualFunc(want, have, func(a, b delaybridge.Header) bool {
			return a.Name == b.Name && same(a.Value, b.Value)
		}) {
			t.Errorf("%s: sent %q, arrived %q", c.sentence, want, have)
		}
	}
}

// sortByName keeps the order within a name.
func sortByName(headers []delaybridge.Header) []delaybridge.Header {
	return slices.SortedStableFunc(slices.Values(headers), func(a, b delaybridge.Header) int {
		return strings.Compare(a.Name, b.Name)
	})
}

func testOwnHeaders(t *testing.T, f Fixture) {
	target := f.NewTarget()
	first, third := Claim(target, "first"), Claim(target, "third ü")
	third.Failed, third.LostLeases = 1, 1
	third.Headers = []delaybridge.Header{
		header("bridge-id", "forged"), header("Bridge-Attempt", "99"), header("BRIDGE-TARGET", "kafka://x"),
		header("Bridge-Key", "forged"), header("Bridge-Tombstone", "true"),
		header("Nats-Msg-Id", "forged"), header("nats-rollup", "all"), header("Status", "409"), header("description", "x"),
		header("Bridge-Error", "invalid_delay"), header("Bridge-Rejected-Delay", "5"), header("kept", "yes"),
		header("Bridge-Hops", "2"), // as ingest stores it; in other letters it is forged
		header("bridge-hops", "7"),
	}
	got := byID(t, f, []delaybridge.Claim{first, third})
	for id, attempt := range map[string]string{"first": "1", "third ü": "3"} {
		hops := map[string]string{"1": "1", "3": "3"}[attempt]
		want := map[string]string{
			"Bridge-Id": id, "Bridge-Scheduled-At": "2031-02-03T04:04:06.007Z",
			"Bridge-Due-At": "2031-02-03T04:05:06.007Z", "Bridge-Attempt": attempt, "Bridge-Hops": hops,
		}
		if have := got[id].Bridge; !maps.Equal(want, have) {
			t.Errorf("%s: bridge headers %v, want %v", id, have, want)
		}
	}
	want := []delaybridge.Header{header("Bridge-Error", "invalid_delay"), header("Bridge-Rejected-Delay", "5"), header("kept", "yes")}
	have := sortByName(got["third ü"].Headers)
	if !slices.EqualFunc(want, have, func(a, b delaybridge.Header) bool { return a.Name == b.Name && same(a.Value, b.Value) }) {
		t.Errorf("headers of the message: %q, want %q", have, want)
	}
	if d := got["third ü"]; d.Key != nil {
		t.Errorf("a forged key arrived: %q", d.Key)
	}
}

func testBatchSizes(t *testing.T, f Fixture) {
	target := f.NewTarget()
	for _, n := range []int{0, 1, 1000} {
		errs := f.Sink.Publish(t.Context(), claims(target, fmt.Sprint(n), n))
		if len(errs) != n {
			t.Fatalf("%d outcomes for %d messages", len(errs), n)
		}
		for i, err := range errs {
			if err != nil {
				t.Fatalf("message %d of %d: %v", i, n, err)
			}
		}
	}
	if got := len(f.Delivered(target)); got != 1001 {
		t.Errorf("%d messages arrived of 1001", got)
	}
}

func testNeighbours(t *testing.T, f Fixture) {
	a, b := f.NewTarget(), f.NewTarget()
	var batch []delaybridge.Claim
	var want []delaybridge.Class
	const good delaybridge.Class = 99
	add := func(target delaybridge.Target, class delaybridge.Class) *delaybridge.Claim {
		batch = append(batch, Claim(target, fmt.Sprint("n", len(batch))))
		want = append(want, class)
		return &batch[len(batch)-1]
	}
	tooLarge := bytes.Repeat([]byte("x"), f.TooLarge)
	for range 3 {
		add(a, good)
		add(a, delaybridge.ClassPermanent).Payload = tooLarge
		add(b, good)
		if f.Missing.Name != "" {
			add(f.Missing, delaybridge.ClassTransient)
		}
		add(a, good)
	}
	errs := f.Sink.Publish(t.Context(), batch)
	arrived := map[string]bool{}
	for _, target := range []delaybridge.Target{a, b} {
		for _, d := range f.Delivered(target) {
			arrived[d.Bridge["Bridge-Id"]] = true
		}
	}
	for i, err := range errs {
		switch {
		case want[i] == good && err != nil:
			t.Errorf("message %d, which is good: %v", i, err)
		case want[i] != good && err == nil:
			t.Errorf("message %d was confirmed, want %v", i, want[i])
		case want[i] != good && delaybridge.ClassOf(err) != want[i]:
			t.Errorf("message %d is %v, want %v: %v", i, delaybridge.ClassOf(err), want[i], err)
		}
		if arrived[batch[i].ID] != (want[i] == good) {
			t.Errorf("message %d: arrived is %v", i, arrived[batch[i].ID])
		}
	}
}

func testUntouched(t *testing.T, f Fixture) {
	c := Claim(f.NewTarget(), "untouched")
	c.Key = []byte("key")
	c.Headers = []delaybridge.Header{
		header("ce_specversion", "1.0"), header("ce-specversion", "1.0"), header("ce_id", "1"), header("ce-id", "1"),
		header("content-type", "text/plain"), header("a", "\x00"), header("b", "2"),
	}
	before := fmt.Sprintf("%#v", c)
	publish(t, f, []delaybridge.Claim{c, c})
	if after := fmt.Sprintf("%#v", c); after != before {
		t.Errorf("Publish has changed the claim from\n%s\nto\n%s", before, after)
	}
}

func testConcurrent(t *testing.T, f Fixture) {
	targets := []delaybridge.Target{f.NewTarget(), f.NewTarget(), f.NewTarget()}
	const workers, rounds, size = 8, 10, 30
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for r := range rounds {
				batch := claims(targets[0], fmt.Sprintf("%d-%d", w, r), size)
				for i := range batch {
					batch[i].Target = targets[(w+i)%len(targets)]
				}
				for _, err := range f.Sink.Publish(t.Context(), batch) {
					if err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	seen := map[string]int{}
	for _, target := range targets {
		for _, d := range f.Delivered(target) {
			seen[d.Bridge["Bridge-Id"]]++
		}
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("%s arrived %d times", id, n)
		}
	}
	if len(seen) != workers*rounds*size {
		t.Errorf("%d messages arrived of %d", len(seen), workers*rounds*size)
	}
}

// patience is how long the suite waits for what must happen: a limit for
// failures, which a machine that is busy with much else keeps.
const patience = time.Minute

// until calls Publish with batches of new messages until done says so of one
// batch's outcomes, for as long as patience lasts, and returns the whole record:
// the outcome of each id.
func until(t *testing.T, f Fixture, target delaybridge.Target, prefix string, done func([]error) bool) map[string]error {
	t.Helper()
	record := map[string]error{}
	for deadline, n := time.Now().Add(patience), 0; time.Now().Before(deadline); n++ {
		batch := claims(target, fmt.Sprintf("%s-%d", prefix, n), 5)
		errs := f.Sink.Publish(t.Context(), batch)
		for i, err := range errs {
			record[batch[i].ID] = err
		}
		if done(errs) {
			return record
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not within %v", patience)
	return nil
}

// warmUp publishes until a new target takes a batch. What it refused before, such
// as a topic whose leader does not know it yet, is no matter of the connection.
func warmUp(t *testing.T, f Fixture, target delaybridge.Target) map[string]error {
	t.Helper()
	record := until(t, f, target, "before", allConfirmed)
	maps.DeleteFunc(record, func(_ string, err error) bool {
		return err != nil && delaybridge.ClassOf(err) == delaybridge.ClassTransient
	})
	return record
}

func allConfirmed(errs []error) bool {
	return !slices.ContainsFunc(errs, func(err error) bool { return err != nil })
}

func allUnavailable(errs []error) bool {
	return !slices.ContainsFunc(errs, func(err error) bool {
		return err == nil || delaybridge.ClassOf(err) != delaybridge.ClassUnavailable
	})
}

// check holds a record of outcomes against what has arrived.
func check(t *testing.T, f Fixture, target delaybridge.Target, record map[string]error) {
	t.Helper()
	arrived := map[string]bool{}
	for _, d := range f.Delivered(target) {
		arrived[d.Bridge["Bridge-Id"]] = true
	}
	for id, err := range record {
		if err == nil && !arrived[id] {
			t.Errorf("%s was confirmed and has not arrived", id)
		}
		if err != nil && delaybridge.ClassOf(err) == delaybridge.ClassUnavailable && arrived[id] {
			t.Errorf("%s was called unavailable and has arrived: %v", id, err)
		}
		if c := delaybridge.ClassOf(err); err != nil && c != delaybridge.ClassUnavailable && c != delaybridge.ClassUnknown {
			t.Errorf("%s failed as %v though only the connection was in the way: %v", id, c, err)
		}
	}
}

func testAway(t *testing.T, f Fixture) {
	target := f.NewTarget()
	record := warmUp(t, f, target)
	f.Link.Down()
	// The breaking itself may be met halfway.
	maps.Copy(record, until(t, f, target, "away", allUnavailable))
	start := time.Now()
	for i := range 3 {
		batch := claims(target, fmt.Sprintf("still-%d", i), 100)
		errs := f.Sink.Publish(t.Context(), batch)
		if !allUnavailable(errs) {
			t.Errorf("a batch while the broker is away: %v", errs[0])
		}
		for i, err := range errs {
			record[batch[i].ID] = err
		}
	}
	if d := time.Since(start); d > patience/2 {
		t.Errorf("it took %v to learn that the broker is away", d)
	}
	f.Link.Up(t)
	maps.Copy(record, until(t, f, target, "back", allConfirmed))
	check(t, f, target, record)
}

func testHang(t *testing.T, f Fixture, timeout time.Duration) {
	target := f.NewTarget()
	record := warmUp(t, f, target)
	f.Link.Hang()
	// The second batch meets a connection that is full already.
	for _, n := range []int{10, 200, 10} {
		batch := claims(target, fmt.Sprintf("hang-%d", len(record)), n)
		for i := range batch {
			batch[i].Payload = bytes.Repeat([]byte("x"), 100_000)
		}
		start := time.Now()
		errs := f.Sink.Publish(t.Context(), batch)
		// Not a matter of speed: the margin allows for a busy machine.
		if d := time.Since(start); d > timeout+patience/2 {
			t.Errorf("Publish of %d messages took %v with a timeout of %v", n, d, timeout)
		}
		for i, err := range errs {
			if err == nil {
				t.Errorf("message %d was confirmed by a broker that hangs", i)
			}
			record[batch[i].ID] = err
		}
	}
	f.Link.Resume()
	maps.Copy(record, until(t, f, target, "back", allConfirmed))
	check(t, f, target, record)
}

func testContext(t *testing.T, f Fixture) {
	target := f.NewTarget()
	record := warmUp(t, f, target)
	f.Link.Hang()
	ctx, cancel := context.WithCancel(t.Context())
	batch := claims(target, "cancelled", 10)
	got := make(chan []error)
	go func() { got <- f.Sink.Publish(ctx, batch) }()
	cancel()
	select {
	case errs := <-got:
		for i, err := range errs {
			if err == nil || delaybridge.ClassOf(err) != delaybridge.ClassUnknown {
				t.Errorf("message %d is %v, want unknown: %v", i, delaybridge.ClassOf(err), err)
			}
			record[batch[i].ID] = err
		}
	case <-time.After(patience / 2):
		t.Fatal("Publish did not end with its context")
	}
	f.Link.Resume()
	maps.Copy(record, until(t, f, target, "back", allConfirmed))
	check(t, f, target, record)
}

func testCuts(t *testing.T, f Fixture) {
	target := f.NewTarget()
	warmUp(t, f, target)
	var mu sync.Mutex
	record := map[string]error{}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				batch := claims(target, fmt.Sprintf("w%d-%d", w, n), 50)
				errs := f.Sink.Publish(t.Context(), batch)
				mu.Lock()
				for i, err := range errs {
					record[batch[i].ID] = err
				}
				mu.Unlock()
			}
		})
	}
	for range 6 {
		// Let it run for a while, so that the cut falls into the middle of something.
		time.Sleep(time.Duration(50+rand.IntN(150)) * time.Millisecond)
		f.Link.Down()
		time.Sleep(time.Duration(rand.IntN(50)) * time.Millisecond)
		f.Link.Up(t)
		until(t, f, target, fmt.Sprintf("between-%d", time.Now().UnixNano()), allConfirmed)
	}
	close(stop)
	wg.Wait()
	counts := map[string]int{}
	for _, err := range record {
		if err == nil {
			counts["confirmed"]++
		} else {
			counts[delaybridge.ClassOf(err).String()]++
		}
	}
	t.Logf("outcomes: %v", counts)
	maps.Copy(record, until(t, f, target, "end", allConfirmed))
	check(t, f, target, record)
}
