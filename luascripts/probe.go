package luascripts

import "context"

// Probe returns nil if every shard runs a script that may write. A Redis that
// answers PING need not do that: it may have become a replica, deny scripts, or
// refuse writes for want of its disk. One that is full does: what empties it works.
func (q *Queue) Probe(ctx context.Context) error {
	runs := make([]*run, len(q.keys))
	for i := range q.keys {
		runs[i] = &run{script: q.scripts.probe, keys: []string{q.keys[i].tries}}
	}
	do(ctx, q.client, runs)
	for _, r := range runs {
		if r.err != nil {
			return r.err
		}
	}
	return nil
}
