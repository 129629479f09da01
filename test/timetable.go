package test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// Arrival is one delivered message.
type Arrival struct {
	Subject string
	ID      string // its Bridge-Id
	Header  nats.Header
	Payload string
	At      time.Time
}

// Due is the time that the message says it was due at.
func (a Arrival) Due(t testing.TB) time.Time {
	t.Helper()
	due, err := time.Parse(time.RFC3339, a.Header.Get("Bridge-Due-At"))
	if err != nil {
		t.Fatalf("%s: Bridge-Due-At: %v", a.ID, err)
	}
	return due
}

// Timetable is what a test expects to arrive and when. It fails the test for
// what is early, late, lost, doubled, or not expected at all.
type Timetable struct {
	mu       sync.Mutex
	arrivals []Arrival
	more     chan struct{}
	expected map[string]interval
	// mayRepeat allows copies that say that they are no first attempt.
	mayRepeat bool
}

type interval struct{ from, to time.Time }

// NewTimetable records everything that is published on the subjects.
func NewTimetable(t testing.TB, nc *nats.Conn, subjects ...string) *Timetable {
	t.Helper()
	tt := &Timetable{more: make(chan struct{}), expected: map[string]interval{}}
	for _, s := range subjects {
		sub, err := nc.Subscribe(s, func(m *nats.Msg) {
			tt.add(Arrival{m.Subject, m.Header.Get("Bridge-Id"), m.Header, string(m.Data), time.Now()})
		})
		if err != nil {
			t.Fatal(err)
		}
		// A slow test machine must not lose what it asked for.
		if err := sub.SetPendingLimits(-1, -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return tt
}

func (tt *Timetable) add(a Arrival) {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	tt.arrivals = append(tt.arrivals, a)
	close(tt.more)
	tt.more = make(chan struct{})
}

// Arrivals returns what has arrived so far, in order.
func (tt *Timetable) Arrivals() []Arrival {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	return slices.Clone(tt.arrivals)
}

// Expect says that a message must arrive once, not before from. How late it may
// be is only a limit for failures: machines that run tests are slow.
func (tt *Timetable) Expect(id string, from time.Time) {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	tt.expected[id] = interval{from, from.Add(patience)}
}

// MayRepeat allows copies that say that they are no first attempt: with a lease of
// seconds a slow machine loses it.
func (tt *Timetable) MayRepeat() {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	tt.mayRepeat = true
}

// Await waits until an id has arrived and returns its arrival.
func (tt *Timetable) Await(t testing.TB, id string) Arrival {
	t.Helper()
	deadline := time.After(patience)
	for {
		tt.mu.Lock()
		i := slices.IndexFunc(tt.arrivals, func(a Arrival) bool { return a.ID == id })
		var found Arrival
		if i >= 0 {
			found = tt.arrivals[i]
		}
		more := tt.more
		tt.mu.Unlock()
		if i >= 0 {
			return found
		}
		select {
		case <-more:
		case <-deadline:
			t.Fatalf("%s did not arrive in time; what did: %s", id, tt.describe())
		}
	}
}

// Check waits for everything that is expected, then compares.
func (tt *Timetable) Check(t testing.TB) {
	t.Helper()
	tt.mu.Lock()
	ids := make([]string, 0, len(tt.expected))
	for id := range tt.expected {
		ids = append(ids, id)
	}
	tt.mu.Unlock()
	for _, id := range ids {
		tt.Await(t, id)
	}
	times := map[string]int{}
	for _, a := range tt.Arrivals() {
		want, ok := tt.expected[a.ID]
		times[a.ID]++
		switch {
		case !ok:
			t.Errorf("%q arrived on %s, which nobody expected", a.ID, a.Subject)
		case a.At.Before(want.from):
			t.Errorf("%s arrived %v early", a.ID, want.from.Sub(a.At))
		case a.At.After(want.to):
			t.Errorf("%s arrived %v late", a.ID, a.At.Sub(want.from))
		case times[a.ID] > 1 && (!tt.mayRepeat || a.Header.Get("Bridge-Attempt") == "1"):
			t.Errorf("%s arrived %d times", a.ID, times[a.ID])
		}
	}
}

func (tt *Timetable) describe() string {
	var b strings.Builder
	for _, a := range tt.Arrivals() {
		fmt.Fprintf(&b, "\n  %s  %s on %s", a.At.Format("15:04:05.000"), a.ID, a.Subject)
	}
	if b.Len() == 0 {
		return "nothing"
	}
	return b.String()
}
