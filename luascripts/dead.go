package luascripts

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"delaybridge"
)

// Letter is a dead letter as the queue holds it, with what a replay must show.
type Letter struct {
	delaybridge.DeadLetter
	shard int
	marks string
}

// WithoutContent returns the letter without its key, headers and payload, which may
// be large: enough to name it to Purge.
func (l Letter) WithoutContent() Letter {
	l.Key, l.Headers, l.Payload, l.Raw, l.marks = nil, nil, nil, nil, ""
	// These are parts of the text that was read, and would keep all of it.
	l.Error, l.Position.Source = strings.Clone(l.Error), strings.Clone(l.Position.Source)
	l.Reason = delaybridge.Reason(strings.Clone(string(l.Reason)))
	return l
}

// Dead returns up to limit dead letters, the oldest first, beginning behind the
// cursor that the call before it returned, and the cursor to go on with, empty
// at the end.
func (q *Queue) Dead(ctx context.Context, limit int, after string) ([]Letter, string, error) {
	var letters []Letter
	next, err := q.WalkDead(ctx, limit, after, func(l Letter) bool {
		letters = append(letters, l)
		return true
	})
	if err != nil {
		return nil, "", err
	}
	return letters, next, nil
}

// WalkDead is Dead, but hands over one letter after the other, until each returns
// false: only some megabytes of them are in memory at a time, however large they
// are. The cursor goes on behind the last that was handed over.
func (q *Queue) WalkDead(ctx context.Context, limit int, after string, each func(Letter) bool) (next string, err error) {
	sets := make([]string, len(q.keys))
	shards := map[string]int{}
	for i := range q.keys {
		sets[i] = q.keys[i].dead
		shards[sets[i]] = i
	}
	entries, next, err := q.page(ctx, sets, limit, after)
	if err != nil {
		return "", fmt.Errorf("dead letters: %w", err)
	}
	err = inParts(len(entries), func(from, to int) (bytes int, err error) {
		part := entries[from:to]
		texts := make([]*redis.StringCmd, len(part))
		err = reading(q.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, e := range part {
				texts[i] = p.HGet(ctx, q.keys[shards[e.set]].deadmsg, e.id)
			}
			return nil
		}))
		if err != nil {
			return 0, err
		}
		for i, e := range part {
			bytes += len(texts[i].Val())
			if each(newLetter(e.id, texts[i].Val(), time.UnixMilli(e.score), shards[e.set])) {
				continue
			}
			if from+i < len(entries)-1 {
				next = e.cursor()
			}
			return 0, errEnough
		}
		return bytes, nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return "", fmt.Errorf("dead letters: %w", err)
	}
	return next, nil
}

// errEnough ends a list where no more of it is wanted.
var errEnough = errors.New("enough")

func newLetter(id, text string, died time.Time, shard int) Letter {
	d, marks := decodeLetter(id, text, died)
	return Letter{DeadLetter: d, shard: shard, marks: marks}
}

// DeadLetter returns one dead letter; the error matches ErrUnknown if there is none.
func (q *Queue) DeadLetter(ctx context.Context, id string) (Letter, error) {
	shard := shardOf(id, q.cfg.Shards)
	k := &q.keys[shard]
	var died *redis.FloatCmd
	var text *redis.StringCmd
	err := reading(q.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		died, text = p.ZScore(ctx, k.dead, id), p.HGet(ctx, k.deadmsg, id)
		return nil
	}))
	if err != nil {
		return Letter{}, fmt.Errorf("dead letter %q: %w", id, err)
	}
	if died.Err() != nil {
		return Letter{}, fmt.Errorf("dead letter %q: %w", id, ErrUnknown)
	}
	return newLetter(id, text.Val(), time.UnixMilli(int64(died.Val())), shard), nil
}

// Replay makes a dead letter a pending message again: m is what to deliver, as
// the caller has checked it, under the letter's own id. It starts without
// attempts. Errors match ErrPending if the id is pending or in flight and force
// is false, and ErrUnknown if the letter is gone or has died again since it was
// read.
func (q *Queue) Replay(ctx context.Context, letter Letter, m delaybridge.Message, force bool) error {
	lane := laneIndex(m.Target.Sink)
	if lane < 0 || m.ID != letter.ID {
		return fmt.Errorf("replay %q: %w: target %q, id %q", letter.ID, delaybridge.ErrInvalid, m.Target, m.ID)
	}
	body, err := encodeMessage(&m)
	if err != nil {
		return fmt.Errorf("replay %q: %w", letter.ID, err)
	}
	forced := 0
	if force {
		forced = 1
	}
	k := &q.keys[letter.shard]
	r := &run{
		script: q.scripts.replay,
		keys:   k.lanes(k.msg, k.tries, k.dead, k.deadmsg, k.deadcount, k.doneA, k.doneB),
		args: []any{
			wakeChannel(q.cfg.Namespace), letter.shard, forced,
			letter.ID, letter.Died.UnixMilli(), lane + 1, dueScore(&m), letter.marks,
			// A delivery of its own: brokers that drop repeated publishes must not drop it.
			"api:" + rand.Text(), 1, body,
		},
	}
	do(ctx, q.client, []*run{r})
	codes, err := r.ints(1)
	switch {
	case err != nil:
		return fmt.Errorf("replay %q: %w", letter.ID, err)
	case codes[0] == 1:
		return fmt.Errorf("replay %q: %w", letter.ID, ErrUnknown)
	case codes[0] == 2:
		return fmt.Errorf("replay %q: %w", letter.ID, ErrPending)
	}
	return nil
}

// Purge drops dead letters for good, if they are still those that were read. It
// returns one error for each; it matches ErrUnknown where the letter is gone or
// has died again since.
func (q *Queue) Purge(ctx context.Context, letters []Letter) []error {
	errs := make([]error, len(letters))
	items := map[int][]int{}
	for i := range letters {
		items[letters[i].shard] = append(items[letters[i].shard], i)
	}
	type part struct {
		run   *run
		items []int
	}
	var parts []part
	var runs []*run
	for shard, all := range items {
		k := &q.keys[shard]
		for len(all) > 0 {
			n := min(len(all), MaxBatch)
			r := &run{script: q.scripts.purge, keys: []string{k.dead, k.deadmsg, k.deadcount}}
			for _, i := range all[:n] {
				r.args = append(r.args, letters[i].ID, letters[i].Died.UnixMilli())
			}
			parts, runs = append(parts, part{r, all[:n]}), append(runs, r)
			all = all[n:]
		}
	}
	if len(runs) == 0 {
		return errs
	}
	do(ctx, q.client, runs)
	for _, p := range parts {
		codes, err := p.run.ints(len(p.items))
		for n, i := range p.items {
			switch {
			case err != nil:
				errs[i] = fmt.Errorf("purge %q: %w", letters[i].ID, err)
			case codes[n] == 0:
				errs[i] = fmt.Errorf("purge %q: %w", letters[i].ID, ErrUnknown)
			}
		}
	}
	return errs
}
