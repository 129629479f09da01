package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// errRedisUnsafe ends the start with BRIDGE_REDIS_STRICT.
var errRedisUnsafe = errors.New("BRIDGE_REDIS_STRICT: this Redis may lose messages")

// reportRedis logs what matters about the Redis in use: its version, and
// whether it may evict messages or forget them at a restart. With strict it
// refuses what is unsafe, with errRedisUnsafe.
func reportRedis(ctx context.Context, client redis.UniversalClient, strict bool, log *zap.Logger) error {
	var mu sync.Mutex
	var unsafe []string
	report := func(ctx context.Context, node redis.Cmdable) error {
		f, err := readRedisFacts(ctx, node)
		if err != nil {
			return err
		}
		log.Info("redis", zap.String("version", f.version), zap.String("maxmemory_policy", f.policy),
			zap.Bool("aof", f.aof), zap.String("snapshots", f.save))
		for _, w := range f.warnings() {
			log.Warn("redis: " + w.text)
			if w.unsafe {
				mu.Lock()
				unsafe = append(unsafe, w.text)
				mu.Unlock()
			}
		}
		return nil
	}
	var err error
	if cluster, ok := client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return report(ctx, node) })
		if err == nil {
			err = reportSlots(ctx, cluster, log)
		}
	} else {
		err = report(ctx, client)
	}
	if _, refused := errors.AsType[redis.Error](err); refused {
		// Hosted servers and narrow ACLs may not tell.
		log.Warn("redis: it cannot be checked whether it evicts and persists", zap.Error(err))
		unsafe = append(unsafe, "it does not say whether it evicts and persists: "+err.Error())
	} else if err != nil {
		return fmt.Errorf("read what Redis says of itself: %w", err)
	}
	if strict && len(unsafe) > 0 {
		return fmt.Errorf("%w: %s", errRedisUnsafe, strings.Join(unsafe, "; "))
	}
	return nil
}

// reportSlots logs whether a cluster serves all of its slots: shards that lie in
// the others can neither be written nor read.
func reportSlots(ctx context.Context, cluster *redis.ClusterClient, log *zap.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	info, err := cluster.ClusterInfo(ctx).Result()
	if err != nil {
		return err
	}
	const all = "16384"
	f := infoFields(info)
	log.Info("redis cluster", zap.String("state", f["cluster_state"]), zap.String("slots_ok", f["cluster_slots_ok"]),
		zap.String("masters", f["cluster_size"]))
	if f["cluster_slots_ok"] != all {
		log.Warn("redis cluster: " + f["cluster_slots_ok"] + " of " + all + " slots are served: shards in the others wait until theirs are")
	}
	return nil
}

// infoFields reads what INFO and CLUSTER INFO answer.
func infoFields(info string) map[string]string {
	fields := map[string]string{}
	for line := range strings.SplitSeq(info, "\n") {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields
}

// redisFacts is what one node says of itself. Save is "unknown" where the
// server does not tell, as many hosted ones do not.
type redisFacts struct {
	version, policy string
	aof             bool
	save            string
}

func readRedisFacts(ctx context.Context, node redis.Cmdable) (redisFacts, error) {
	f := redisFacts{save: "unknown"}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	info, err := node.Info(ctx).Result()
	if err != nil {
		return f, err
	}
	fields := infoFields(info)
	f.version, f.policy, f.aof = fields["redis_version"], fields["maxmemory_policy"], fields["aof_enabled"] == "1"
	if save, err := node.ConfigGet(ctx, "save").Result(); err == nil {
		f.save = save["save"]
	}
	return f, nil
}

type redisWarning struct {
	text   string
	unsafe bool
}

func (f redisFacts) warnings() []redisWarning {
	var w []redisWarning
	major, _, _ := strings.Cut(f.version, ".")
	if n, err := strconv.Atoi(major); err == nil && n < 7 {
		w = append(w, redisWarning{"version " + f.version + " is older than 7.0, which is the oldest that is supported", false})
	}
	if f.policy != "" && f.policy != "noeviction" {
		w = append(w, redisWarning{"maxmemory-policy is " + f.policy + ": it may evict messages; set noeviction", true})
	}
	switch {
	case f.aof:
	case f.save == "":
		w = append(w, redisWarning{"it keeps nothing on disk: a restart loses every message; set appendonly yes", true})
	default:
		w = append(w, redisWarning{"appendonly is off: a crash loses what came since the last snapshot; set appendonly yes", false})
	}
	return w
}
