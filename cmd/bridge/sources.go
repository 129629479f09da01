package main

import (
	"context"
	"slices"
	"time"

	"go.uber.org/zap"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/luascripts"
)

// source takes requests in until ctx ends, and says how it is doing.
type source interface {
	Run(ctx context.Context) error
	Connected() bool
	Lag() map[string]int64
	Stalled(d time.Duration) []string
}

// newSources connects to every configured broker to read from. Call close after
// the last source has ended.
func (s *Settings) newSources(ctx context.Context, queue *luascripts.Queue, lost func(error), mon *monitor, log *zap.Logger) (sources []source, close func(), err error) {
	c := ingest.DefaultConfig()
	if c.Decoder, err = s.newDecoder(); err != nil {
		return nil, nil, err
	}
	c.Queue, c.Observe, c.Trace, c.Log = queue, mon.metrics.Ingested, mon.tracing.source(), log
	c.MaxPending, c.Rate, c.Grace = int64(s.MaxPending), int(s.IngestRate), time.Duration(s.ShutdownTimeout)
	handler, err := ingest.NewHandler(c)
	if err != nil {
		return nil, nil, err
	}
	mon.metrics.watchIngest(handler.Held)
	routes, err := ingest.ParseRoutes(string(s.Routes))
	if err != nil {
		return nil, nil, fieldSetting(err)
	}

	var closers []func()
	close = func() {
		for _, c := range closers {
			c()
		}
	}
	if s.NATS.URL != "" {
		l := &link{broker: brokerNATS, use: useIngest}
		nc, err := connectNATS(s, l, log, lost)
		if err != nil {
			return nil, nil, err
		}
		closers = append(closers, nc.Close)
		n, err := ingest.NewNATS(s.natsSourceConfig(routes, log), nc, handler)
		if err != nil {
			close()
			return nil, nil, err
		}
		l.asks(isConnected(n.Connected))
		mon.health.watch(l, n)
		sources = append(sources, n)
	}
	if len(s.Kafka.Brokers) > 0 {
		k, err := s.newKafkaSource(ctx, handler, routes, log)
		if err != nil {
			close()
			return nil, nil, err
		}
		l := &link{broker: brokerKafka, use: useIngest}
		l.asks(isConnected(k.Connected))
		mon.health.watch(l, k)
		sources = append(sources, k)
	}
	return sources, close, nil
}

func (s *Settings) natsSourceConfig(routes []ingest.Route, log *zap.Logger) ingest.NATSConfig {
	c := ingest.DefaultNATSConfig()
	c.Stream, c.Durable, c.Create = string(s.NATS.Ingest.Stream), string(s.NATS.Ingest.Durable), bool(s.NATS.Ingest.Create)
	c.Subjects, c.Batch, c.Log = s.NATS.Ingest.Subjects, int(s.Batch), log
	for _, r := range routes {
		if r.Source.Sink == delaybridge.SinkNATS {
			c.Subjects = append(slices.Clip(c.Subjects), r.Source.Name)
		}
	}
	return c
}

func (s *Settings) newKafkaSource(ctx context.Context, handler *ingest.Handler, routes []ingest.Route, log *zap.Logger) (*ingest.Kafka, error) {
	link, err := s.newKafkaLink(ctx)
	if err != nil {
		return nil, err
	}
	c := ingest.DefaultKafkaConfig()
	c.Brokers, c.Group, c.ClientID, c.Log = s.Kafka.Brokers, string(s.Kafka.Ingest.Group), kafkaClientID, log
	c.Topics = s.Kafka.Ingest.Topics
	for _, r := range routes {
		if r.Source.Sink == delaybridge.SinkKafka && !slices.Contains(c.Topics, r.Source.Name) {
			c.Topics = append(slices.Clip(c.Topics), r.Source.Name)
		}
	}
	c.Batch = int(s.Batch)
	c.Transport, c.Dialer = link.transport(c.Topics...), link.dialer()
	return ingest.NewKafka(c, handler)
}
