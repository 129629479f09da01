package main

import (
	"fmt"
	"time"
	"unicode/utf8"

	"delaybridge"
	"delaybridge/luascripts"
)

// listView is a page of a list. Next is the cursor to go on with, absent at the end.
type listView[T any] struct {
	Items []T    `json:"items"`
	Next  string `json:"next,omitempty"`
}

// acceptedView answers a schedule request.
type acceptedView struct {
	ID        string `json:"id"`
	Outcome   string `json:"outcome"` // scheduled or replaced
	Target    string `json:"target"`
	DeliverAt stamp  `json:"deliver_at"`
}

// cancelView says in which state a cancel has left, or found, a message.
type cancelView struct {
	ID    string            `json:"id"`
	State delaybridge.State `json:"state"`
}

// messageView is what is known of one message.
type messageView struct {
	ID         string            `json:"id"`
	State      delaybridge.State `json:"state"`
	Target     string            `json:"target,omitempty"`
	Due        stamp             `json:"due"`
	Attempts   int               `json:"attempts"`
	LostLeases int               `json:"lost_leases"`
	LastError  string            `json:"last_error,omitempty"` // why the last attempt failed
	// NextTry differs from Due after a failed attempt.
	NextTry      stamp  `json:"next_try"`
	LeaseEnd     stamp  `json:"lease_end"`
	ScheduledAt  stamp  `json:"scheduled_at"`
	ExpiresAfter string `json:"expires_after,omitempty"`
	PayloadBytes int    `json:"payload_bytes"`
}

// fullMessageView is a message with all that it carries, which is nothing where
// only its state is known.
type fullMessageView struct {
	messageView
	Source  string       `json:"source,omitempty"`
	Key     *bytesView   `json:"key"`
	Headers []headerView `json:"headers"`
	Payload *bytesView   `json:"payload"`
}

func newMessageView(id string, s luascripts.Status) messageView {
	v := messageView{
		ID: id, State: s.State, Attempts: s.Failed, LostLeases: s.LostLeases, LastError: s.LastError,
		NextTry: stamp(s.Due), LeaseEnd: stamp(s.LeaseEnd), Due: stamp(s.Due),
	}
	v.describe(s.Message)
	return v
}

func newPendingView(p luascripts.Pending) messageView {
	v := messageView{
		ID: p.ID, State: delaybridge.StatePending, Target: p.Lane + "://?", Attempts: p.Failed, LostLeases: p.LostLeases,
		LastError: p.LastError, NextTry: stamp(p.Due), Due: stamp(p.Due),
	}
	v.describe(p.Message)
	return v
}

// isKnown reports whether more than the state is kept of the message, and can be read.
func (v *messageView) isKnown() bool { return !time.Time(v.ScheduledAt).IsZero() }

// describe fills in what the message itself says; m is nil where it cannot be read.
func (v *messageView) describe(m *delaybridge.Message) {
	if m == nil {
		return
	}
	v.Target, v.Due, v.ScheduledAt, v.PayloadBytes = "", stamp(m.Due), stamp(m.Scheduled), len(m.Payload)
	if m.Target != (delaybridge.Target{}) { // that of a refused request may not be known
		v.Target = m.Target.String()
	}
	if m.ExpiresAfter > 0 {
		v.ExpiresAfter = duration(m.ExpiresAfter).String()
	}
}

// laneView counts one lane.
type laneView struct {
	Pending        int64   `json:"pending"`
	InFlight       int64   `json:"in_flight"`
	Overdue        int64   `json:"overdue"`
	OverdueSeconds float64 `json:"overdue_seconds"`
	Far            int64   `json:"far"`
	NextDue        stamp   `json:"next_due"`
}

// statsView counts the whole queue.
type statsView struct {
	Now   stamp                        `json:"now"`
	Lanes map[string]laneView          `json:"lanes"`
	Dead  map[delaybridge.Reason]int64 `json:"dead"`
	// Process is what the process that answers has counted itself; nil where a
	// command has read Redis.
	Process *processView `json:"process,omitempty"`
}

func newStatsView(s luascripts.Stats) statsView {
	v := statsView{Now: stamp(s.Now), Lanes: map[string]laneView{}, Dead: s.Dead}
	for name, l := range s.Lanes {
		v.Lanes[name] = laneView{
			Pending: l.Pending, InFlight: l.InFlight, Overdue: l.Overdue,
			OverdueSeconds: l.OverdueFor.Round(time.Millisecond).Seconds(), Far: l.Far, NextDue: stamp(l.NextDue),
		}
	}
	return v
}

// letterView is a dead letter as lists show it.
type letterView struct {
	ID         string             `json:"id"`
	Reason     delaybridge.Reason `json:"reason"`
	Error      string             `json:"error"`
	Target     string             `json:"target,omitempty"`
	Due        stamp              `json:"due"`
	DiedAt     stamp              `json:"died_at"`
	Attempts   int                `json:"attempts"`
	LostLeases int                `json:"lost_leases"`
	Corrupt    bool               `json:"corrupt,omitempty"`

	letter *luascripts.Letter // without its content; nil where the API told of it
}

func newLetterView(l *luascripts.Letter) letterView {
	head := l.WithoutContent() // a list must not hold what each carries
	d := &head.DeadLetter
	v := letterView{
		letter: &head,
		ID:     d.ID, Reason: d.Reason, Error: d.Error, Due: stamp(d.Due), DiedAt: stamp(d.Died),
		Attempts: d.Attempts, LostLeases: d.LostLeases, Corrupt: d.Corrupt,
	}
	if d.Target != (delaybridge.Target{}) {
		v.Target = d.Target.String()
	}
	return v
}

// fullLetterView is a dead letter with all that it carries.
type fullLetterView struct {
	letterView
	ScheduledAt  stamp        `json:"scheduled_at"`
	ExpiresAfter string       `json:"expires_after,omitempty"`
	Source       string       `json:"source,omitempty"`
	Key          *bytesView   `json:"key"`
	Headers      []headerView `json:"headers"`
	Payload      *bytesView   `json:"payload"`
}

// headerView is one header, in the order of the message; a null value is null.
type headerView struct {
	Name  string     `json:"name"`
	Value *bytesView `json:"value"`
}

// bytesView shows bytes as text where they are text, else in base64.
type bytesView struct {
	Text   *string `json:"text,omitempty"`
	Base64 []byte  `json:"base64,omitempty"`
}

// newBytesView returns nil for null.
func newBytesView(b []byte) *bytesView {
	switch {
	case b == nil:
		return nil
	case utf8.Valid(b):
		s := string(b)
		return &bytesView{Text: &s}
	}
	return &bytesView{Base64: b}
}

// String shows the bytes on one line.
func (v *bytesView) String() string {
	switch {
	case v == nil:
		return "null"
	case v.Text != nil:
		return printable(*v.Text)
	}
	return fmt.Sprintf("%d bytes: %x", len(v.Base64), v.Base64)
}

func newFullLetterView(l *luascripts.Letter) fullLetterView {
	d := &l.DeadLetter
	v := fullLetterView{
		letterView: newLetterView(l), ScheduledAt: stamp(d.Scheduled), Source: sourceText(&d.Message),
		Key: newBytesView(d.Key), Headers: headerViews(d.Headers), Payload: newBytesView(d.Payload),
	}
	if d.ExpiresAfter > 0 {
		v.ExpiresAfter = duration(d.ExpiresAfter).String()
	}
	if d.Corrupt {
		v.Payload = newBytesView(d.Raw)
	}
	return v
}

// sourceText is where a message came from, empty where that is not known.
func sourceText(m *delaybridge.Message) string {
	if m.Position.Source == "" {
		return ""
	}
	return m.Position.String()
}

func headerViews(headers []delaybridge.Header) []headerView {
	views := make([]headerView, 0, len(headers))
	for _, h := range headers {
		views = append(views, headerView{h.Name, newBytesView(h.Value)})
	}
	return views
}
