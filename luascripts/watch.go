package luascripts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"delaybridge"
)

// watchIdle is after how long without a word a subscription is asked whether
// its connection lives; without an answer for as long again, it does not.
const watchIdle = 15 * time.Second

// Watch calls wake whenever the earliest due message of a lane and shard has
// moved forward, and with an empty lane and shard -1 once it listens: what
// happened before that may have been missed. It returns when ctx ends, or with
// the error that ended the subscription; then it is to be called again.
func (q *Queue) Watch(ctx context.Context, wake func(lane string, shard int)) error {
	channel := wakeChannel(q.cfg.Namespace)
	sub := q.client.Subscribe(ctx, channel)
	defer func() { _ = sub.Close() }()
	// A blocked read does not see ctx end, but it does see its connection closed.
	defer context.AfterFunc(ctx, func() { _ = sub.Close() })()
	for asked := false; ; {
		msg, err := sub.ReceiveTimeout(ctx, cmp.Or(q.cfg.watchIdle, watchIdle))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() && !asked {
			asked, err = true, sub.Ping(ctx)
		} else {
			asked = false
		}
		if err != nil {
			return fmt.Errorf("watch %s: %w", channel, err)
		}
		switch msg := msg.(type) {
		case *redis.Message:
			if lane, shard, ok := parseWake(msg.Payload); ok && shard < q.cfg.Shards {
				wake(lane, shard)
			}
		case *redis.Subscription:
			wake("", -1)
		}
	}
}

func parseWake(payload string) (lane string, shard int, ok bool) {
	l, s, _ := strings.Cut(payload, " ")
	n, err := strconv.Atoi(l)
	if err != nil || n < 1 || n > len(delaybridge.Lanes) {
		return "", 0, false
	}
	shard, err = strconv.Atoi(s)
	return delaybridge.Lanes[n-1], shard, err == nil && shard >= 0
}

// Peek says for each shard how long until something of the lane may be claimed,
// by the rules of Grant.Wait; with leases it also looks for those that run out.
// It only reads, and costs one cheap command a shard, two with leases: it is what
// an idle scheduler asks.
func (q *Queue) Peek(ctx context.Context, lane string, leases bool) ([]time.Duration, error) {
	l := laneIndex(lane)
	if l < 0 {
		return nil, fmt.Errorf("queue: no lane %q", lane)
	}
	var clock *redis.TimeCmd
	due, ends := make([]*redis.ZSliceCmd, len(q.keys)), make([]*redis.ZSliceCmd, len(q.keys))
	_, err := q.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		clock = p.Time(ctx)
		for i := range q.keys {
			due[i] = p.ZRangeWithScores(ctx, q.keys[i].due[l], 0, 0)
			if leases {
				ends[i] = p.ZRangeWithScores(ctx, q.keys[i].inflight[l], 0, 0)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("peek: %w", err)
	}
	now := clock.Val()
	if q.cfg.clock != nil {
		now = q.cfg.clock()
	}
	limit := now
	if ceiling := time.UnixMilli(q.ceiling()); ceiling.Before(limit) {
		limit = ceiling
	}
	waits := make([]time.Duration, len(q.keys))
	for i := range waits {
		waits[i] = -1
		if head := due[i].Val(); len(head) > 0 {
			waits[i] = max(0, time.UnixMilli(int64(head[0].Score)).Sub(limit))
		}
		if !leases {
			continue
		}
		if head := ends[i].Val(); len(head) > 0 {
			if w := max(0, time.UnixMilli(int64(head[0].Score)).Sub(now)); waits[i] < 0 || w < waits[i] {
				waits[i] = w
			}
		}
	}
	return waits, nil
}
