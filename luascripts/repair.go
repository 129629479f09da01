package luascripts

import (
	"context"
	"crypto/rand"
	"fmt"
)

// Wiped reports whether Redis has lost the queue since it was opened, or since
// the last call that said so: somebody flushed it, or it came back empty. What
// was pending is gone then; what comes in from now on is safe again.
func (q *Queue) Wiped(ctx context.Context) (bool, error) {
	if err := q.checkShards(ctx); err != nil {
		return false, err
	}
	epoch, err := q.firstEver(ctx, "epoch", rand.Text())
	if err != nil {
		return false, err
	}
	before := q.epoch.Swap(&epoch)
	return before != nil && *before != epoch, nil
}

// repairScan is about how many records one Repair looks at.
const repairScan = 100

// Repair looks at some records of a shard, going on where it left off, and makes
// those due again that stand in no set any more, so that nothing would ever
// deliver them. No transition leaves one like that; a hand that edits Redis, or
// a restore of half of it, may. It returns how many it found.
func (q *Queue) Repair(ctx context.Context, shard int) (int, error) {
	if shard < 0 || shard >= len(q.keys) {
		return 0, fmt.Errorf("queue: no shard %d", shard)
	}
	k := &q.keys[shard]
	strays, err := q.stray(ctx, shard)
	if err != nil || len(strays) == 0 {
		return 0, err
	}
	repair := &run{script: q.scripts.repair, keys: k.lanes(k.msg), args: []any{wakeChannel(q.cfg.Namespace), shard}}
	for _, s := range strays {
		// What cannot be read is claimed from any lane, at once, and buried.
		lane, due := 0, int64(0)
		if m, _, err := decodeRecord(s.id, s.record); err == nil && laneIndex(m.Target.Sink) >= 0 {
			lane, due = laneIndex(m.Target.Sink), dueScore(&m)
		}
		repair.args = append(repair.args, s.id, lane+1, due)
	}
	do(ctx, q.client, []*run{repair})
	codes, err := repair.ints(len(strays))
	repaired := 0
	for _, code := range codes {
		repaired += int(code)
	}
	return repaired, err
}

// stray is a record in no set.
type stray struct{ id, record string }

// stray looks at the next records of a shard, MaxBatch strays at the most.
func (q *Queue) stray(ctx context.Context, shard int) ([]stray, error) {
	k := &q.keys[shard]
	r := &run{script: q.scripts.stray, keys: k.lanes(k.msg), args: []any{q.scanned[shard].Load(), repairScan}}
	do(ctx, q.client, []*run{r})
	if r.err != nil {
		return nil, r.err
	}
	list, _ := r.reply.([]any)
	if len(list)%2 != 1 {
		return nil, fmt.Errorf("stray: unexpected reply of %d items", len(list))
	}
	cursor, _ := list[0].(string)
	q.scanned[shard].Store(atoi(cursor))
	var out []stray
	for i := 1; i < len(list) && len(out) < MaxBatch; i += 2 {
		id, _ := list[i].(string)
		record, _ := list[i+1].(string)
		out = append(out, stray{id, record})
	}
	return out, nil
}
