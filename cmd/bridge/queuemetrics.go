package main

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"delaybridge"
	"delaybridge/luascripts"
)

// queueLook is what Redis says, for metrics and probes alike.
type queueLook struct {
	stats luascripts.Stats
	skew  time.Duration // Redis's clock minus this host's
	// full is Redis's used memory by its limit, of the fullest node; 0 without a limit.
	full float64
	// statsErr is why stats and skew are not known, fullErr why full is not, and
	// probeErr why no script runs.
	statsErr, fullErr, probeErr error
}

// Times of a look at Redis. Prometheus gives a scrape 10 s unless told otherwise,
// Kubernetes a probe 1 s.
const (
	lookFresh = time.Second
	lookWait  = 800 * time.Millisecond
	lookLimit = 5 * time.Second
)

var errNoAnswer = errors.New("no answer within " + lookWait.String())

// newQueueLook returns looks at a queue and its Redis.
func newQueueLook(queue *luascripts.Queue, client redis.UniversalClient) *snapshot[queueLook] {
	return &snapshot[queueLook]{
		fresh: lookFresh, wait: lookWait, limit: lookLimit,
		ask: func(ctx context.Context) (l queueLook) {
			l.probeErr = queue.Probe(ctx)
			began := time.Now()
			var now time.Time
			if now, l.statsErr = client.Time(ctx).Result(); l.statsErr != nil {
				return l
			}
			// It was read about half way through.
			l.skew = now.Sub(began.Add(time.Since(began) / 2))
			if l.stats, l.statsErr = queue.Stats(ctx); l.statsErr != nil {
				return l
			}
			var p delaybridge.Pressure
			p, l.fullErr = queue.Pressure(ctx)
			l.full = p.MemoryRatio
			return l
		},
	}
}

// queueMetrics are the gauges about the queue, the same in every process. They are
// read when they are scraped, and left out while Redis does not answer: no value
// is better than one of which nobody knows how old it is. bridge_redis_up says
// which it is.
type queueMetrics struct {
	ctx  context.Context // ends what is on its way when the program does
	look func() *snapshot[queueLook]

	up, pending, far, inflight, overdue, dead, skew, full *prometheus.Desc
}

func newQueueMetrics(ctx context.Context, look func() *snapshot[queueLook]) *queueMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &queueMetrics{
		ctx: ctx, look: look,
		up:       desc("bridge_redis_up", "1 if Redis answers and runs the queue's scripts; else what it would say is left out."),
		pending:  desc("bridge_pending", "Messages that wait for their time, or for their broker.", "sink"),
		far:      desc("bridge_pending_far", "Those of bridge_pending that are due in over an hour.", "sink"),
		inflight: desc("bridge_inflight", "Messages that some process is publishing.", "sink"),
		overdue:  desc("bridge_overdue_seconds", "For how long the oldest message that is due and not claimed has been due.", "sink"),
		dead:     desc("bridge_dead", "Dead letters kept.", "reason"),
		skew:     desc("bridge_clock_skew_seconds", "Redis's clock minus this host's."),
		full:     desc("bridge_redis_memory_ratio", "Redis's used memory by its maxmemory, of the fullest node; 0 where it has no limit. Above 0.9 nothing is taken in."),
	}
}

// Describe implements prometheus.Collector.
func (q *queueMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{q.up, q.pending, q.far, q.inflight, q.overdue, q.dead, q.skew, q.full} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (q *queueMetrics) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	var l queueLook
	ok := false
	if look := q.look(); look != nil {
		l, ok = look.get(q.ctx)
	}
	if !ok || l.probeErr != nil || l.statsErr != nil {
		gauge(q.up, 0)
	} else {
		gauge(q.up, 1)
	}
	if !ok || l.statsErr != nil {
		return
	}
	gauge(q.skew, l.skew.Seconds())
	if l.fullErr == nil {
		gauge(q.full, l.full)
	}
	for _, lane := range delaybridge.Lanes {
		s := l.stats.Lanes[lane]
		gauge(q.pending, float64(s.Pending), lane)
		gauge(q.far, float64(s.Far), lane)
		gauge(q.inflight, float64(s.InFlight), lane)
		gauge(q.overdue, s.OverdueFor.Seconds(), lane)
	}
	// Only reasons that this version knows: another one may have written others.
	for _, reason := range delaybridge.Reasons {
		gauge(q.dead, float64(l.stats.Dead[reason]), string(reason))
	}
}

// sourceMetrics are what the sources know of themselves.
type sourceMetrics struct {
	sources      func() []source
	lag, skipped *prometheus.Desc
}

func newSourceMetrics(sources func() []source) *sourceMetrics {
	return &sourceMetrics{
		sources: sources,
		lag: prometheus.NewDesc("bridge_ingest_lag",
			"Messages that the source holds and Redis does not have yet, as last heard: of a stream in all, of a topic in this process's partitions.", []string{"source"}, nil),
		skipped: prometheus.NewDesc("bridge_kafka_skipped_total", "Offsets that Kafka deleted before they were read.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (s *sourceMetrics) Describe(to chan<- *prometheus.Desc) { to <- s.lag; to <- s.skipped }

// Collect implements prometheus.Collector.
func (s *sourceMetrics) Collect(to chan<- prometheus.Metric) {
	for _, source := range s.sources() {
		for name, n := range source.Lag() {
			to <- prometheus.MustNewConstMetric(s.lag, prometheus.GaugeValue, float64(n), name)
		}
		if k, ok := source.(interface{ Skipped() int64 }); ok {
			to <- prometheus.MustNewConstMetric(s.skipped, prometheus.CounterValue, float64(k.Skipped()))
		}
	}
}
