package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/luascripts"
)

// operations are what can be asked of the queue from outside. They are the same
// for the commands that speak to Redis themselves, for the HTTP API and for the
// NATS service. They are safe for concurrent use.
//
// An error that says what the asker did wrong, or that the answer is no, is a
// *problem or matches delaybridge.ErrInvalid; any other is that of a queue which
// could not be asked, so that a change may or may not have been made.
type operations struct {
	queue   *luascripts.Queue
	decoder *ingest.Decoder
	// count is told what became of each request to schedule or to cancel; nil:
	// nobody is.
	count func(delaybridge.Outcome)
	// replayed and purged are told the reason of each dead letter that was; nil:
	// nobody is.
	replayed, purged func(delaybridge.Reason)
	// fromCLI says that a command asks.
	fromCLI bool
}

// repeats says that what is refused may have been done before, by an earlier try of
// the same request. There may be no operations yet, and nothing to be done.
func (o *operations) repeats() bool { return o != nil && o.queue.Repeats() }

// problem is an answer that is no success.
type problem struct {
	status int    // an HTTP status
	text   string // for a person
	field  string // what is wrong, as the asker knows it; empty if no field is
	// id and state are what a cancel found where it came too late.
	id    string
	state delaybridge.State
	err   error // what it matches, too; may be nil
}

func (p *problem) Error() string { return p.text }
func (p *problem) Unwrap() error { return p.err }

// nothingKnown says that nothing is known of an id.
func nothingKnown(id string) error {
	return &problem{status: http.StatusNotFound, text: "nothing is known of " + id + ", or not any more; a request that was refused is a dead letter under an id of its own", err: luascripts.ErrUnknown}
}

// Schedule stores what a record asks for. Its position and time are those of a
// request that is made now; errors match delaybridge.ErrInvalid where it is refused.
func (o *operations) Schedule(ctx context.Context, record ingest.Record) (acceptedView, error) {
	request, err := o.parse(record)
	if err != nil {
		return acceptedView{}, err
	}
	outcome, _, err := o.store(ctx, request)
	if err != nil {
		return acceptedView{}, err
	}
	m := &request.Message
	return acceptedView{ID: m.ID, Outcome: outcome.String(), Target: m.Target.String(), DeliverAt: stamp(m.Due)}, nil
}

// parse checks what Schedule is asked for; the queue need not be there.
func (o *operations) parse(record ingest.Record) (delaybridge.Request, error) {
	record.Position, record.Time, record.FromAPI, record.FromCLI = newPosition(), time.Now(), true, o.fromCLI
	r, err := o.decoder.Parse(record)
	if err == nil && r.Op != delaybridge.OpSchedule {
		err = &delaybridge.FieldError{Code: "invalid_op", Field: "Bridge-Op", Value: r.Op.String(), Reason: "this only schedules: to cancel is a request of its own"}
	}
	return r, err
}

func (o *operations) store(ctx context.Context, r delaybridge.Request) (delaybridge.Outcome, delaybridge.State, error) {
	result := o.queue.Store(ctx, []delaybridge.Request{r})[0]
	if result.Err != nil {
		return 0, "", result.Err
	}
	if o.count != nil {
		o.count(result.Outcome)
	}
	return result.Outcome, result.State, nil
}

// Cancel takes back a pending message, and returns its state, which is cancelled.
// The error is a *problem with the state that was found where it is too late.
func (o *operations) Cancel(ctx context.Context, id string) (delaybridge.State, error) {
	if id == "" || len(id) > delaybridge.MaxIDBytes {
		return "", nothingKnown(id)
	}
	outcome, state, err := o.store(ctx, delaybridge.Request{
		Op: delaybridge.OpCancel, FromAPI: true,
		Message: delaybridge.Message{ID: id, Position: newPosition()},
	})
	switch {
	case err != nil:
		return "", err
	case outcome == delaybridge.Cancelled:
		return delaybridge.StateCancelled, nil
	case outcome == delaybridge.TooLate:
		return state, tooLate(id, state)
	}
	return "", nothingKnown(id)
}

func tooLate(id string, state delaybridge.State) error {
	return &problem{
		status: http.StatusConflict, id: id, state: state,
		text: fmt.Sprintf("too late to cancel %s: it is %s", id, strings.ReplaceAll(string(state), "_", " ")),
	}
}

// Get says what is known of a message.
func (o *operations) Get(ctx context.Context, id string) (messageView, error) {
	s, err := o.status(ctx, id)
	if err != nil {
		return messageView{}, err
	}
	return newMessageView(id, s), nil
}

// GetFull is Get with all that the message carries.
func (o *operations) GetFull(ctx context.Context, id string) (fullMessageView, error) {
	s, err := o.status(ctx, id)
	if err != nil {
		return fullMessageView{}, err
	}
	v := fullMessageView{messageView: newMessageView(id, s), Headers: []headerView{}}
	if m := s.Message; m != nil {
		v.Source, v.Key, v.Headers, v.Payload = sourceText(m), newBytesView(m.Key), headerViews(m.Headers), newBytesView(m.Payload)
	}
	return v, nil
}

func (o *operations) status(ctx context.Context, id string) (luascripts.Status, error) {
	s, err := o.queue.Get(ctx, id)
	if errors.Is(err, luascripts.ErrUnknown) {
		err = nothingKnown(id)
	}
	return s, err
}

// List returns a page of the pending messages, of one sink or of all.
func (o *operations) List(ctx context.Context, sink string, p page) (listView[messageView], error) {
	view := listView[messageView]{Items: []messageView{}}
	next, err := o.queue.WalkPending(ctx, sink, p.limit, p.after, func(m luascripts.Pending) { view.Items = append(view.Items, newPendingView(m)) })
	if err != nil {
		return listView[messageView]{}, cursorProblem(err)
	}
	view.Next = next
	return view, nil
}

// cursorProblem says so where a list cannot go on from a cursor.
func cursorProblem(err error) error {
	if errors.Is(err, luascripts.ErrCursor) {
		return &problem{status: http.StatusBadRequest, text: "after: takes the cursor that a list gave", field: "after", err: luascripts.ErrCursor}
	}
	return err
}

// Stats counts the queue.
func (o *operations) Stats(ctx context.Context) (statsView, error) {
	s, err := o.queue.Stats(ctx)
	if err != nil {
		return statsView{}, err
	}
	return newStatsView(s), nil
}

// defaultLimit is how long a page is unless somebody wants it otherwise.
const defaultLimit = 100

func checkLimit(n int) error {
	if n < 1 || n > 1000 {
		return badParameter("limit", "takes a number from 1 to 1000")
	}
	return nil
}

func checkSink(sink string) error {
	if sink != "" && !slices.Contains(delaybridge.Lanes[:], sink) {
		return badParameter("sink", "takes one of "+strings.Join(delaybridge.Lanes[:], ", "))
	}
	return nil
}

func checkReason(reason string) error {
	if (&letterFilter{reason: reason}).check() != nil {
		return badParameter("reason", fmt.Sprintf("takes one of %v", delaybridge.Reasons))
	}
	return nil
}

func badParameter(name, takes string) error {
	return &problem{status: http.StatusBadRequest, text: name + ": " + takes, field: name}
}

// The most dead letters that are looked through for one page, and for how long: with
// a filter that few of them match, a page may be short though it has a next one.
const (
	letterStep  = 100
	letterSteps = 50
	letterTime  = 2 * time.Second
)

// Letters returns a page of the dead letters that match a filter. It may hold
// fewer than the limit, or none, and still have a next one.
func (o *operations) Letters(ctx context.Context, f letterFilter, p page) (listView[letterView], error) {
	view := listView[letterView]{Items: []letterView{}, Next: p.after}
	began := time.Now()
	for range letterSteps {
		next, err := o.queue.WalkDead(ctx, letterStep, view.Next, func(l luascripts.Letter) bool {
			if f.matches(&l) {
				view.Items = append(view.Items, newLetterView(&l))
			}
			return len(view.Items) < p.limit && time.Since(began) < letterTime
		})
		if err != nil {
			return listView[letterView]{}, cursorProblem(err)
		}
		if view.Next = next; next == "" || len(view.Items) >= p.limit || time.Since(began) >= letterTime {
			break
		}
	}
	return view, nil
}

// Letter returns one dead letter with all that it carries.
func (o *operations) Letter(ctx context.Context, id string) (fullLetterView, error) {
	l, err := o.letter(ctx, id)
	if err != nil {
		return fullLetterView{}, err
	}
	return newFullLetterView(&l), nil
}

func (o *operations) letter(ctx context.Context, id string) (luascripts.Letter, error) {
	l, err := o.queue.DeadLetter(ctx, id)
	if !errors.Is(err, luascripts.ErrUnknown) {
		return l, err
	}
	text := "there is no dead letter " + id
	// Who has the place of a message in its source, from a log or a publisher's
	// reply, may not know what a rejected one is called.
	if rejected := "rejected:" + id; !strings.HasPrefix(id, "rejected:") {
		if _, err := o.queue.DeadLetter(ctx, rejected); err == nil {
			text += ", but there is " + rejected
		}
	}
	return l, &problem{status: http.StatusNotFound, text: text, err: luascripts.ErrUnknown}
}

// letterOf returns the dead letter of a view as it is now. If the view has a time of
// death, the letter must still be that one.
func (o *operations) letterOf(ctx context.Context, v letterView) (luascripts.Letter, error) {
	l, err := o.letter(ctx, v.ID)
	if err != nil {
		return l, err
	}
	if at := time.Time(v.DiedAt); !at.IsZero() && !at.Equal(l.Died) {
		return l, &problem{status: http.StatusNotFound, text: letterGone, err: luascripts.ErrUnknown}
	}
	return l, nil
}

const letterGone = "it is gone, or has died again since it was read"

// replayOptions say how a letter is replayed.
type replayOptions struct {
	force  bool // replace what is pending under its id
	dryRun bool // only check it
}

// Replay makes a dead letter a pending message again. The error says why it was
// not; replayProblem words it.
func (o *operations) Replay(ctx context.Context, v letterView, how replayOptions) error {
	l, err := o.letterOf(ctx, v)
	if err != nil {
		return err
	}
	if how.dryRun {
		_, err := replayRequest(o.decoder, &l)
		return err
	}
	if err := replayLetter(ctx, o.queue, o.decoder, l, how.force); err != nil {
		return err
	}
	if o.replayed != nil {
		o.replayed(l.Reason)
	}
	return nil
}

// Purge drops dead letters for good, and returns an error for each.
func (o *operations) Purge(ctx context.Context, views []letterView) []error {
	errs := make([]error, len(views))
	var letters []luascripts.Letter
	var at []int
	for i, v := range views {
		if v.letter == nil {
			l, err := o.letterOf(ctx, v)
			if err != nil {
				errs[i] = err
				continue
			}
			v = newLetterView(&l)
		}
		letters, at = append(letters, *v.letter), append(at, i)
	}
	for n, err := range o.queue.Purge(ctx, letters) {
		if errors.Is(err, luascripts.ErrUnknown) {
			err = &problem{status: http.StatusNotFound, text: letterGone, err: luascripts.ErrUnknown}
		}
		if err == nil && o.purged != nil {
			o.purged(letters[n].Reason)
		}
		errs[at[n]] = err
	}
	return errs
}
