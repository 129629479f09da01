package luascripts

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"delaybridge"
)

//go:embed denied.lua
var deniedLua string

// ShardsInRedis returns the number of shards that Redis knows for a namespace, 0
// if it knows none: no bridge has used it yet. It writes nothing.
func ShardsInRedis(ctx context.Context, client redis.UniversalClient, namespace string) (int, error) {
	text, err := client.HGet(ctx, metaKey(namespace), "shards").Result()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("queue: read %s: %w", metaKey(namespace), err)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0, fmt.Errorf("queue: %s holds %q as the number of shards", metaKey(namespace), text)
	}
	return n, nil
}

// Permissions is what a user of Redis needs for the queue, as ACL SETUSER takes it.
type Permissions struct {
	// Keys and Channels are patterns, without ~ and &.
	Keys, Channels []string
	// Commands are in lower case, without +.
	Commands []string
}

// Permissions returns what the queue needs.
func (q *Queue) Permissions() Permissions {
	p := Permissions{
		Keys:     []string{"{" + q.cfg.Namespace + ":*}:*", metaKey(q.cfg.Namespace)},
		Channels: []string{wakeChannel(q.cfg.Namespace)},
	}
	for _, words := range q.commands(0) {
		if name := strings.ToLower(words[0]); !slices.Contains(p.Commands, name) {
			p.Commands = append(p.Commands, name)
		}
	}
	slices.Sort(p.Commands)
	return p
}

// commands are all that the queue sends, or runs in scripts, with the keys of one
// shard: each as it might be sent.
func (q *Queue) commands(shard int) [][]string {
	k := &q.keys[shard]
	meta, channel := metaKey(q.cfg.Namespace), wakeChannel(q.cfg.Namespace)
	all := [][]string{
		{"EVAL", "return 1", "1", k.msg}, {"EVALSHA", strings.Repeat("0", 40), "1", k.msg},
		{"PING"}, {"TIME"}, {"INFO", "memory"},
		{"HSETNX", meta, "shards", "8"}, {"HGET", meta, "shards"},
		{"PUBLISH", channel, "1 0"}, {"SUBSCRIBE", channel},
	}
	for _, hash := range []string{k.msg, k.tries, k.deadmsg, k.deadcount, k.doneA, k.doneB} {
		all = append(all,
			[]string{"HSET", hash, "f", "v"}, []string{"HDEL", hash, "f"}, []string{"HGET", hash, "f"}, []string{"HMGET", hash, "f"},
			[]string{"HEXISTS", hash, "f"}, []string{"HINCRBY", hash, "f", "1"}, []string{"HSCAN", hash, "0"},
			[]string{"HLEN", hash}, []string{"HGETALL", hash}, []string{"UNLINK", hash})
	}
	sets := append(append([]string{k.dead}, k.due[:]...), k.inflight[:]...)
	for _, set := range sets {
		all = append(all,
			[]string{"ZADD", set, "1", "m"}, []string{"ZREM", set, "m"}, []string{"ZSCORE", set, "m"}, []string{"ZMSCORE", set, "m"},
			[]string{"ZRANGE", set, "0", "0"}, []string{"ZRANGEBYSCORE", set, "-inf", "0"},
			[]string{"ZCOUNT", set, "-inf", "0"}, []string{"ZCARD", set})
	}
	if q.cfg.WaitReplicas > 0 {
		all = append(all, []string{"SET", tagOf(k.msg) + ":wait", "", "PX", "1"}, []string{"WAIT", "1", "1"})
	}
	return all
}

// Denied asks Redis which of the queue's commands its user may not run, and
// returns each as it might be sent ("hset {bridge:0}:msg"), none if all is well.
// It tries nothing. An error may be that the user may run no scripts, or that the
// server cannot be asked.
func (q *Queue) Denied(ctx context.Context) ([]string, error) {
	script := redis.NewScript(deniedLua)
	var denied []string
	// Users are given patterns: the first and the last shard speak for all.
	for _, shard := range slices.Compact([]int{0, len(q.keys) - 1}) {
		commands := q.commands(shard)
		var args []any
		for _, words := range commands {
			args = append(args, len(words))
			for _, w := range words {
				args = append(args, w)
			}
		}
		// A key, which the user may not have, says to a cluster where this runs.
		var keys []string
		if _, ok := q.client.(*redis.ClusterClient); ok {
			keys = []string{q.keys[shard].msg}
		}
		places, err := script.Eval(ctx, q.client, keys, args...).Int64Slice()
		if err != nil {
			return nil, fmt.Errorf("denied: %w", err)
		}
		for _, place := range places {
			if place < 1 || place > int64(len(commands)) {
				return nil, fmt.Errorf("denied: unexpected reply %d", place)
			}
			words := commands[place-1]
			what := strings.ToLower(words[0])
			if len(words) > 1 && !slices.Contains([]string{"eval", "evalsha", "info", "wait"}, what) {
				what += " " + words[1]
			}
			if !slices.Contains(denied, what) {
				denied = append(denied, what)
			}
		}
	}
	return denied, nil
}

// Leases counts the messages of each lane whose lease has run out and that nobody
// has claimed since, and says for how long the oldest of them has been like that.
func (q *Queue) Leases(ctx context.Context) (map[string]ExpiredLeases, error) {
	now, err := q.redisNow(ctx)
	if err != nil {
		return nil, fmt.Errorf("leases: %w", err)
	}
	heads := make([][len(delaybridge.Lanes)]*redis.ZSliceCmd, len(q.keys))
	counts := make([][len(delaybridge.Lanes)]*redis.IntCmd, len(q.keys))
	_, err = q.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i := range q.keys {
			for l, set := range q.keys[i].inflight {
				heads[i][l] = p.ZRangeWithScores(ctx, set, 0, 0)
				counts[i][l] = p.ZCount(ctx, set, "-inf", strconv.FormatInt(now.UnixMilli(), 10))
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("leases: %w", err)
	}
	lanes := map[string]ExpiredLeases{}
	for l, name := range delaybridge.Lanes {
		var e ExpiredLeases
		for i := range heads {
			e.Count += counts[i][l].Val()
			if head := heads[i][l].Val(); len(head) > 0 {
				e.Oldest = max(e.Oldest, now.Sub(time.UnixMilli(int64(head[0].Score))))
			}
		}
		lanes[name] = e
	}
	return lanes, nil
}

// ExpiredLeases are leases of one lane that have run out.
type ExpiredLeases struct {
	Count  int64
	Oldest time.Duration
}
