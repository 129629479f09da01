package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/luascripts"
)

// errCorruptLetter says that a letter has no message that could be delivered.
var errCorruptLetter = errors.New("its record cannot be read; only purge it")

// replayRequest checks a dead letter as if it were new. A rejected one is
// decoded again from what its source sent, and goes out under its own id; any
// other is due now, under the same id. The error is why it is still invalid.
func replayRequest(d *ingest.Decoder, letter *luascripts.Letter) (delaybridge.Request, error) {
	if letter.Corrupt {
		return delaybridge.Request{}, errCorruptLetter
	}
	record, err := ingest.RejectedRecord(letter.Message)
	if err == nil {
		r, err := d.Parse(record)
		// A replay is asked for now: what came from the source meanwhile does
		// not make it stale.
		r.Message.Position, r.FromAPI = replayPosition(letter), true
		return r, err
	}
	m := letter.Message
	m.Due = later(m.Due, time.Now())
	record = ingest.Record{Position: newPosition(), Key: m.Key, Payload: m.Payload, FromAPI: true, Replayed: true, Headers: []delaybridge.Header{
		{Name: "Bridge-Id", Value: []byte(m.ID)},
		{Name: "Bridge-Target", Value: []byte(m.Target.String())},
		{Name: "Bridge-Deliver-At", Value: strconv.AppendInt(nil, m.Due.UnixMilli(), 10)},
	}}
	if _, err := d.Parse(record); err != nil {
		return delaybridge.Request{}, err
	}
	return delaybridge.Request{Op: delaybridge.OpSchedule, Message: m, FromAPI: true}, nil
}

// replayPosition is that of the replay of one letter that goes out under another
// id. It is the same however often that is asked for: of two at once, and of one
// that is repeated since the letter was still there, the second is a duplicate.
func replayPosition(letter *luascripts.Letter) delaybridge.Position {
	sum := sha256.Sum256([]byte(letter.ID))
	return delaybridge.Position{Source: "api:" + hex.EncodeToString(sum[:16]), Offset: uint64(max(1, letter.Died.UnixMilli()))}
}

// replayLetter makes a dead letter a pending message again. With force it
// replaces what is pending under its id.
func replayLetter(ctx context.Context, q *luascripts.Queue, d *ingest.Decoder, letter luascripts.Letter, force bool) error {
	r, err := replayRequest(d, &letter)
	if err != nil {
		return err
	}
	if r.Op == delaybridge.OpSchedule && r.Message.ID == letter.ID {
		return q.Replay(ctx, letter, r.Message, force)
	}
	// Under another id: stored first, dropped after that, so that a crash in
	// between leaves the letter to be replayed again.
	if !force && r.Op == delaybridge.OpSchedule {
		s, err := q.Get(ctx, r.Message.ID)
		if err != nil && !errors.Is(err, luascripts.ErrUnknown) {
			return err
		}
		if err == nil && (s.State == delaybridge.StatePending || s.State == delaybridge.StateInFlight) {
			return fmt.Errorf("%s: %w", r.Message.ID, luascripts.ErrPending)
		}
	}
	result := q.Store(ctx, []delaybridge.Request{r})[0]
	if result.Err != nil {
		return result.Err
	}
	err = q.Purge(ctx, []luascripts.Letter{letter})[0]
	switch {
	case errors.Is(err, luascripts.ErrUnknown) && result.Outcome != delaybridge.Duplicate:
		return nil // somebody has purged it meanwhile, and it goes out all the same
	case err != nil && !errors.Is(err, luascripts.ErrUnknown):
		return &problem{status: http.StatusServiceUnavailable, text: "it was replayed, and its letter could not be dropped: " + err.Error(), err: err}
	}
	return err
}

// replayProblem says why a letter was not replayed, without repeating its id.
func replayProblem(err error) string {
	switch {
	case errors.Is(err, luascripts.ErrPending):
		return "a message of that id is pending; --force replaces it"
	case errors.Is(err, luascripts.ErrUnknown):
		return letterGone
	case errors.Is(err, delaybridge.ErrInvalid) && !isProblem(err):
		return "still invalid: " + err.Error()
	}
	return err.Error()
}

// isProblem says that an error is worded already.
func isProblem(err error) bool {
	_, ok := errors.AsType[*problem](err)
	return ok
}

// later returns the later of two times, to the millisecond.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		a = b
	}
	return a.Truncate(time.Millisecond).UTC()
}
