package main

import (
	"context"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"delaybridge"
	"delaybridge/ingest"
)

func newServe() *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the bridge until SIGTERM",
		Long: `Run the bridge: take in messages (role ingest) and deliver what is due (role
scheduler). Any number of processes may run side by side. Brokers and Redis need
not be there yet: the bridge waits for them.

SIGTERM stops taking in and claiming, finishes or hands back what is held within
BRIDGE_SHUTDOWN_TIMEOUT, and exits with 0. A second signal exits at once; nothing
is lost either way.`,
		Example: `  BRIDGE_REDIS_URL=redis://10.0.0.5:6379/0 BRIDGE_NATS_URL=nats://10.0.0.6:4222 bridge serve
  BRIDGE_ROLES=scheduler bridge serve`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context()) },
	}
}

func serve(ctx context.Context) error {
	s, warnings, err := loadSettings()
	if err != nil {
		return err
	}
	if e := s.checkBrokers(); e != nil {
		return *e
	}
	log := newLog(s.LogLevel, s.LogFormat)
	defer func() { _ = log.Sync() }() // a terminal cannot be synced, and that is no matter
	for _, w := range warnings {
		log.Warn(w)
	}
	v := currentVersion()
	log.Info("starting", zap.String("version", v.Version), zap.Strings("roles", s.Roles), zap.Stringer("namespace", s.Namespace),
		zap.Stringer("redis", s.Redis.URL), zap.Stringer("nats", s.NATS.URL), zap.Strings("kafka", s.Kafka.Brokers))
	return run(ctx, s, log, func(ctx context.Context, client redis.UniversalClient) error {
		return reportRedis(ctx, client, bool(s.Redis.Strict), log)
	})
}

// checkBrokers makes sure that there is something to serve: commands need only
// Redis, and do not ask this.
func (s *Settings) checkBrokers() *settingError {
	if s.NATS.URL == "" && len(s.Kafka.Brokers) == 0 {
		return wrong("NATS_URL", s.NATS.URL, "is empty and so is BRIDGE_KAFKA_BROKERS: set one of them, as there is nothing to serve")
	}
	routes, _ := ingest.ParseRoutes(string(s.Routes)) // they were checked
	for _, r := range routes {
		switch {
		case r.Source.Sink == delaybridge.SinkNATS && s.NATS.URL == "":
			return wrong("ROUTES", s.Routes, "has the source "+r.Source.String()+", which takes BRIDGE_NATS_URL")
		case r.Source.Sink == delaybridge.SinkKafka && len(s.Kafka.Brokers) == 0:
			return wrong("ROUTES", s.Routes, "has the source "+r.Source.String()+", which takes BRIDGE_KAFKA_BROKERS")
		}
	}
	return nil
}
