package main

import (
	"context"
	"fmt"
	"slices"

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
not be there yet: the bridge waits for them, and /readyz at BRIDGE_METRICS_ADDR
says which it misses.

SIGTERM stops taking in and claiming, finishes or hands back what is held within
BRIDGE_SHUTDOWN_TIMEOUT, and exits with 0. A second signal exits at once; nothing
is lost either way.`,
		Example: `  BRIDGE_REDIS_URL=redis://10.0.0.5:6379/0 BRIDGE_NATS_URL=nats://10.0.0.6:4222 bridge serve
  BRIDGE_ROLES=scheduler bridge serve`,
		Args: noArgs,
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
	metrics, err := s.listenMetrics()
	if err != nil {
		return err
	}
	api, err := s.listenAPI()
	if err != nil {
		return err
	}
	log := newLog(s.LogLevel, s.LogFormat)
	defer func() { _ = log.Sync() }() // a terminal cannot be synced, and that is no matter
	for _, w := range append(warnings, s.targetsOfOthers()...) {
		log.Warn(w)
	}
	v := currentVersion()
	log.Info("starting", zap.String("version", v.Version), zap.Strings("roles", s.Roles), zap.Stringer("namespace", s.Namespace),
		zap.Stringer("redis", s.Redis.URL), zap.Stringer("nats", s.NATS.URL), zap.Strings("kafka", s.Kafka.Brokers))
	stopProfiles, err := s.servePprof(log)
	if err != nil {
		return err
	}
	defer stopProfiles()
	return run(ctx, s, log, func(ctx context.Context, client redis.UniversalClient) error {
		return reportRedis(ctx, client, bool(s.Redis.Strict), log)
	}, listeners{metrics, api})
}

// checkBrokers makes sure that there is something to serve: commands need only
// Redis, and do not ask this.
func (s *Settings) checkBrokers() *settingError {
	if !s.hasAnyBroker() && s.API.Addr == "" {
		return wrong("NATS_URL", s.NATS.URL, "is empty and so is BRIDGE_KAFKA_BROKERS: set one of them, as there is nothing to serve")
	}
	if s.NATS.API && s.NATS.URL == "" {
		return wrong("NATS_API", s.NATS.API, "takes BRIDGE_NATS_URL")
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

// hasAnyBroker reports whether there is a broker to read from or to publish to:
// a process may only serve the API.
func (s *Settings) hasAnyBroker() bool { return s.NATS.URL != "" || len(s.Kafka.Brokers) > 0 }

// targetsOfOthers warns of targets in the settings that this process, which has
// the role scheduler, does not publish to: their messages wait for one that does.
func (s *Settings) targetsOfOthers() (warnings []string) {
	if !slices.Contains(s.Roles, roleScheduler) {
		return nil
	}
	look := func(name string, t delaybridge.Target) {
		switch {
		case t.Sink == delaybridge.SinkKafka && len(s.Kafka.Brokers) == 0:
			warnings = append(warnings, fmt.Sprintf("%s_%s has the target %s, and %[1]s_KAFKA_BROKERS is empty: its messages wait until a process publishes to Kafka", prefix, name, t))
		case (t.Sink == delaybridge.SinkNATS || t.Sink == delaybridge.SinkNATSCore) && s.NATS.URL == "":
			warnings = append(warnings, fmt.Sprintf("%s_%s has the target %s, and %[1]s_NATS_URL is empty: its messages wait until a process publishes to NATS", prefix, name, t))
		}
	}
	routes, _ := ingest.ParseRoutes(string(s.Routes)) // they were checked, as were the others
	for _, r := range routes {
		look("ROUTES", r.Target)
	}
	for name, v := range map[string]text{"REJECT_TARGET": s.RejectTarget, "DEAD_TARGET": s.DeadTarget} {
		t, _ := optionalTarget(name, v)
		look(name, t)
	}
	return warnings
}
