package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"delaybridge/luascripts"
)

func (s *Settings) queueConfig() luascripts.Config {
	c := luascripts.DefaultConfig()
	c.Namespace = string(s.Namespace)
	c.Shards = int(s.Shards)
	c.Lease = time.Duration(s.Lease)
	c.DedupWindow = time.Duration(s.DedupWindow)
	c.MaxLostLeases = int(s.MaxLostLeases)
	c.DeadRetention = time.Duration(s.DeadRetention)
	c.WaitReplicas = int(s.Redis.WaitReplicas)
	c.ClockTolerance = time.Duration(s.ClockTolerance)
	return c
}

// openQueue opens the queue for one command. Close the client afterwards.
func openQueue(ctx context.Context, s *Settings) (*luascripts.Queue, redis.UniversalClient, error) {
	client, err := s.connectRedis()
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	q, err := luascripts.Open(ctx, client, s.queueConfig())
	if err != nil {
		_ = client.Close()
		return nil, nil, openError(s, err)
	}
	return q, client, nil
}

func openError(s *Settings, err error) error {
	if errors.Is(err, luascripts.ErrShards) {
		return *wrong("SHARDS", s.Shards, "takes the number that Redis knows: "+err.Error())
	}
	return fmt.Errorf("redis at %s (BRIDGE_REDIS_URL): %w", s.Redis.URL, err)
}

// inspection looks at a Redis before it is used.
type inspection func(context.Context, redis.UniversalClient) error

// awaitQueue opens the queue as soon as Redis answers: until then it tries
// again, for as long as ctx allows. Only wrong settings are errors, and what
// inspect refuses with errRedisUnsafe.
func awaitQueue(ctx context.Context, s *Settings, client redis.UniversalClient, inspect inspection, log *zap.Logger) (*luascripts.Queue, error) {
	const pauseMax = 2 * time.Second
	said := ""
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, pauseMax) {
		q, err := luascripts.Open(ctx, client, s.queueConfig())
		if err == nil && inspect != nil {
			err = inspect(ctx, client)
		}
		switch {
		case err == nil:
			if said != "" {
				log.Info("redis answers")
			}
			return q, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, luascripts.ErrShards):
			return nil, openError(s, err)
		case errors.Is(err, errRedisUnsafe):
			return nil, err
		case redis.IsAuthError(err), redis.IsPermissionError(err):
			return nil, openError(s, err)
		}
		if err.Error() != said {
			log.Warn("redis does not answer yet, trying again until it does", zap.Stringer("url", s.Redis.URL), zap.Error(err))
			said = err.Error()
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(pause):
		}
	}
}
