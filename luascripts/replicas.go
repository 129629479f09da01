package luascripts

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrReplicas is matched when a write was made, but too few replicas said in time
// that they have it. To repeat the request is safe, and waits for them again.
var ErrReplicas = errors.New("too few replicas have the write")

// replicasTimeout is how long WAIT may take: less than a reply may.
const replicasTimeout = time.Second

// doDurably is do for what a source is acknowledged after: it also waits until
// WaitReplicas replicas have it.
//
// WAIT speaks of its own connection's writes, so it goes behind the scripts in
// one pipeline to one server: after a fail-over, another connection would ask a
// new master about a write that it never saw.
func (q *Queue) doDurably(ctx context.Context, runs []*run) {
	if q.cfg.WaitReplicas == 0 || len(runs) == 0 {
		do(ctx, q.client, runs)
		return
	}
	cluster, ok := q.client.(*redis.ClusterClient)
	if !ok {
		q.doAndWait(ctx, q.client, runs)
		return
	}
	parts := map[*redis.Client][]*run{}
	for _, r := range runs {
		master, err := cluster.MasterForKey(ctx, r.keys[0])
		if err != nil {
			r.err = fmt.Errorf("%s: %w", r.script.name, err)
			continue
		}
		parts[master] = append(parts[master], r)
	}
	var wg sync.WaitGroup
	for master, part := range parts {
		wg.Go(func() { q.doAndWait(ctx, master, part) })
	}
	wg.Wait()
	for _, r := range runs {
		if r.err != nil {
			// The slots may have moved, which a plain connection is told of in vain.
			cluster.ReloadState(ctx)
			return
		}
	}
}

// doAndWait is do, on one server, and WAIT.
//
// WAIT asks about the last write of its connection. A request that is repeated
// writes nothing, and the write that it must wait for was perhaps another
// connection's, so one is made, of a key that is gone at once. A full Redis
// refuses it, and most requests with it.
func (q *Queue) doAndWait(ctx context.Context, server redis.UniversalClient, runs []*run) {
	var wait *redis.Cmd
	doThen(ctx, server, runs, func(p redis.Pipeliner) {
		p.Set(ctx, tagOf(runs[0].keys[0])+":wait", "", time.Millisecond)
		wait = p.Do(ctx, "WAIT", q.cfg.WaitReplicas, replicasTimeout.Milliseconds())
	})
	have, err := wait.Int64()
	if err == nil && have < int64(q.cfg.WaitReplicas) {
		err = fmt.Errorf("%w: %d of %d", ErrReplicas, have, q.cfg.WaitReplicas)
	}
	if err == nil {
		return
	}
	for _, r := range runs {
		if r.err == nil {
			r.err = fmt.Errorf("%s: wait for replicas: %w", r.script.name, err)
		}
	}
}
