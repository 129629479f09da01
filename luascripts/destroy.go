package luascripts

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Destroy removes the whole queue of the namespace, pending messages and dead
// letters included. It is for namespaces that were made to be thrown away;
// nothing may use the queue at the same time. To repeat it is safe.
func (q *Queue) Destroy(ctx context.Context) error {
	_, err := q.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range q.keys {
			k := &q.keys[i]
			p.Unlink(ctx, k.lanes(k.msg, k.tries, k.dead, k.deadmsg, k.deadcount, k.doneA, k.doneB)...)
		}
		p.Unlink(ctx, metaKey(q.cfg.Namespace))
		return nil
	})
	if err != nil {
		return fmt.Errorf("queue: destroy %s: %w", q.cfg.Namespace, err)
	}
	return nil
}
