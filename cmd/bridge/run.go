package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"delaybridge"
	"delaybridge/scheduler"
	"delaybridge/sinks"
)

// run is the whole program with one set of settings. It builds, in this order,
//
//	Redis <- queue <- ingest    <- NATS, Kafka
//	           ^------ scheduler -> sinks -> NATS, Kafka
//
// and runs all of it until ctx ends. Then ingest takes in no more, the scheduler
// claims no more, both finish what they hold, and the connections are closed
// after that. It returns nil after an orderly end. Metrics and probes, and the API,
// are served from before the first of these; the API takes no more requests when
// ctx ends, the others are served until after the last.
func run(ctx context.Context, s *Settings, log *zap.Logger, inspect inspection, at listeners) (err error) {
	defer steadyMemory()()
	mon, err := startMonitor(s, at.metrics, log)
	if err != nil {
		return err
	}
	defer mon.close()
	api := startAPI(s, at.api, mon.metrics, log)
	defer api.close()
	client, err := s.connectRedis()
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	queue, err := awaitQueue(ctx, s, client, inspect, log)
	if ctx.Err() != nil {
		return nil // stopped before anything began
	}
	if err != nil {
		return err
	}

	mon.health.enter(phaseStarting)
	mon.health.watchQueue(queue, client)

	asked := ctx // ends when somebody wants the program to stop
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // for what has been started when a later step fails
	g, ctx := errgroup.WithContext(ctx)
	onLost := endWhenLost(ctx, g)

	if err := api.open(s, queue); err != nil {
		return err
	}
	if api != nil {
		g.Go(func() error { return api.run(ctx, time.Duration(s.ShutdownTimeout)) })
	}

	if slices.Contains(s.Roles, roleIngest) {
		sources, close, err := s.newSources(ctx, queue, onLost, mon, log)
		if err != nil {
			return err
		}
		defer close()
		for _, source := range sources {
			g.Go(func() error { return source.Run(ctx) })
		}
	}
	if slices.Contains(s.Roles, roleScheduler) && s.hasAnyBroker() {
		mux, close, err := s.newSinks(ctx, onLost, mon, log)
		if err != nil {
			return err
		}
		defer close()
		c := s.schedulerConfig(mux, log)
		c.Observe = mon.metrics
		sched, err := scheduler.New(c, mon.tracing.queue(queue), mon.tracing.sink(mux))
		if err != nil {
			return err
		}
		mon.health.watchLoops(sched)
		g.Go(func() error { return sched.Run(ctx) })
	}

	if s.NATS.API {
		service, err := s.newNATSAPI(queue, onLost, mon, log)
		if err != nil {
			return err
		}
		g.Go(func() error { return service.run(ctx, time.Duration(s.ShutdownTimeout)) })
	}

	log.Info("running")
	mon.health.enter("")
	<-ctx.Done()
	mon.health.enter(phaseStopping)
	log.Info("stopping: taking in and claiming no more, finishing what is held")
	err = waitFor(g, time.Duration(s.ShutdownTimeout)+time.Second)
	switch {
	case err == nil || errors.Is(err, context.Canceled):
	case asked.Err() != nil:
		log.Warn("something was left, which loses nothing", zap.Error(err))
	default:
		return err
	}
	log.Info("stopped")
	return nil
}

// listeners are where a process is asked by HTTP; nil is nowhere.
type listeners struct{ metrics, api net.Listener }

// endWhenLost returns what a connection that is closed for good is to call: it ends
// the group, and with it the program, to be started again.
func endWhenLost(ctx context.Context, g *errgroup.Group) func(error) {
	lost := make(chan error, 1)
	g.Go(func() error {
		select {
		case err := <-lost:
			return err
		case <-ctx.Done():
			return nil
		}
	})
	return func(err error) {
		select {
		case lost <- err:
		default:
		}
	}
}

// waitFor waits for the group to end, but not for ever: what is left is
// somebody else's once its leases have ended.
func waitFor(g *errgroup.Group, most time.Duration) error {
	ended := make(chan error, 1)
	go func() { ended <- g.Wait() }()
	select {
	case err := <-ended:
		return err
	case <-time.After(most):
		return fmt.Errorf("not everything has ended within %v: exiting all the same, what is held comes back when its leases end", most)
	}
}

// newSinks connects to every configured broker. Call close after the last publish.
func (s *Settings) newSinks(ctx context.Context, lost func(error), mon *monitor, log *zap.Logger) (_ sinks.Mux, close func(), err error) {
	mux := sinks.Mux{}
	var closers []func()
	close = func() {
		for _, c := range closers {
			c()
		}
	}
	defer func() {
		if err != nil {
			close()
		}
	}()
	if s.NATS.URL != "" {
		l := &link{broker: brokerNATS, use: useSink, lanes: []string{delaybridge.SinkNATS, delaybridge.SinkNATSCore}}
		nc, err := connectNATS(s, l, log, lost)
		if err != nil {
			return nil, nil, err
		}
		closers = append(closers, nc.Close)
		c := sinks.DefaultNATSConfig()
		c.PublishTimeout = time.Duration(s.PublishTimeout)
		if mux[delaybridge.SinkNATS], err = sinks.NewNATS(nc, c); err != nil {
			return nil, nil, err
		}
		if mux[delaybridge.SinkNATSCore], err = sinks.NewNATSCore(nc, c); err != nil {
			return nil, nil, err
		}
		l.asks(isConnected(nc.IsConnected))
		mon.health.watch(l, nil)
	}
	if len(s.Kafka.Brokers) > 0 {
		kafka, err := s.newKafkaLink(ctx)
		if err != nil {
			return nil, nil, err
		}
		c := sinks.DefaultKafkaConfig()
		c.Brokers, c.ClientID, c.Dial, c.SASL = s.Kafka.Brokers, kafkaClientID, kafka.dial, kafka.sasl
		c.PublishTimeout = time.Duration(s.PublishTimeout)
		k, err := sinks.NewKafka(c)
		if err != nil {
			return nil, nil, err
		}
		closers = append(closers, k.Close)
		mux[delaybridge.SinkKafka] = k
		l := &link{broker: brokerKafka, use: useSink, lanes: []string{delaybridge.SinkKafka}}
		l.asks(k.Ping)
		mon.health.watch(l, nil)
	}
	return mux, close, nil
}

func (s *Settings) schedulerConfig(mux sinks.Mux, log *zap.Logger) scheduler.Config {
	c := scheduler.DefaultConfig()
	for _, lane := range delaybridge.Lanes {
		if mux[lane] != nil {
			c.Lanes = append(c.Lanes, lane)
		}
	}
	c.Batch, c.MaxInflight = int(s.Batch), int(s.MaxInflight)
	c.Lease = time.Duration(s.Lease)
	c.RetryBase, c.RetryMax = time.Duration(s.RetryBase), time.Duration(s.RetryMax)
	c.MaxAttempts, c.PollMax = int(s.MaxAttempts), time.Duration(s.PollMax)
	if s.DeadTarget != "" {
		c.DeadTarget, _ = delaybridge.ParseTarget(string(s.DeadTarget)) // it was checked
	}
	c.ShutdownTimeout, c.Log = time.Duration(s.ShutdownTimeout), log
	return c
}
