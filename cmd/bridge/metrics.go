package main

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/scheduler"
)

// metrics are what this process counts, in a registry of its own. Every series is
// there from the start, at 0, and no label takes a value from a message: sources
// and sinks are those of the settings, results and reasons are the program's.
type metrics struct {
	registry *prometheus.Registry

	ingested map[string]*outcomeCounters // by source; read only
	lanes    map[string]*laneMetrics     // by sink; read only

	// held is why this process takes nothing in; nil in one that has no sources.
	held atomic.Pointer[func() string]

	wiped, trimmed, repaired prometheus.Counter
	// replayed and purged are by reason; read only, and empty where nobody can ask for it.
	replayed, purged map[delaybridge.Reason]prometheus.Counter
}

// outcomeCounters counts the outcomes of one source, by delaybridge.Outcome.
type outcomeCounters [delaybridge.Rejected + 1]prometheus.Counter

type laneMetrics struct {
	published [delaybridge.Classes]prometheus.Counter // by class
	confirmed prometheus.Counter
	late      prometheus.Observer
	retries   [delaybridge.Classes]prometheus.Counter // by class, nil where it never is
	expired   prometheus.Counter
	circuit   prometheus.Gauge
	// down is circuit once more, for the probes; answered says that the broker has
	// answered since the start.
	down, answered atomic.Bool
}

var _ scheduler.Observer = (*metrics)(nil)

// otherSource is the label of what comes from no source of the settings, which a
// consumer of another configuration may hand to us.
const otherSource = "other"

// lateBuckets are seconds: from what an idle bridge needs to what an outage costs.
var lateBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 600}

// newMetrics returns the metrics of a process that takes in from sources, and
// publishes to sinks.
func newMetrics(sources, sinks []string) *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		ingested: map[string]*outcomeCounters{}, lanes: map[string]*laneMetrics{},
		replayed: map[delaybridge.Reason]prometheus.Counter{}, purged: map[delaybridge.Reason]prometheus.Counter{},
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		m.registry.MustRegister(c)
		return c
	}
	v := currentVersion()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "bridge_build_info", Help: "Always 1; the labels say which build this is.",
		ConstLabels: prometheus.Labels{"version": v.Version, "revision": v.Revision, "goversion": v.Go},
	})
	info.Set(1)
	m.registry.MustRegister(info, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.wiped = counter("bridge_redis_wiped_total", "How often Redis was found to have lost the queue's data.")
	m.trimmed = counter("bridge_dead_trimmed_total", "Dead letters dropped since they were older than BRIDGE_DEAD_RETENTION.")
	m.repaired = counter("bridge_repaired_total", "Messages that had fallen out of the queue's index and were made due again.")

	replayed := counters("bridge_dead_replayed_total", "Dead letters made pending messages again, at this process's API.", "reason")
	purged := counters("bridge_dead_purged_total", "Dead letters dropped for good, at this process's API.", "reason")
	if slices.Contains(sources, sourceAPI) || slices.Contains(sources, sourceNATSAPI) {
		for _, r := range delaybridge.Reasons {
			m.replayed[r], m.purged[r] = replayed.WithLabelValues(string(r)), purged.WithLabelValues(string(r))
		}
	}

	ingested := counters("bridge_ingested_total", "Requests taken in, by what became of them.", "source", "result")
	if len(sources) > 0 {
		sources = append(slices.Clip(sources), otherSource)
	}
	for _, source := range sources {
		c := &outcomeCounters{}
		for o := range c {
			c[o] = ingested.WithLabelValues(source, delaybridge.Outcome(o).String())
		}
		m.ingested[source] = c
	}

	published := counters("bridge_published_total", "Publishes, by what the broker said.", "sink", "result")
	retries := counters("bridge_retries_total", "Failed attempts that are tried again, by what had failed.", "sink", "reason")
	expired := counters("bridge_leases_expired_total", "Leases that ran out: a process crashed or stalled, and its message is delivered again.", "sink")
	late := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "bridge_lateness_seconds", Buckets: lateBuckets,
		Help: "From when a message was first due until its broker confirmed it, whatever was in between.",
	}, []string{"sink"})
	circuit := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "bridge_circuit_open", Help: "1 while the broker cannot be reached and its messages wait.",
	}, []string{"sink"})
	m.registry.MustRegister(late, circuit)
	for _, sink := range sinks {
		l := &laneMetrics{
			confirmed: published.WithLabelValues(sink, "ok"), late: late.WithLabelValues(sink),
			expired: expired.WithLabelValues(sink), circuit: circuit.WithLabelValues(sink),
		}
		for class := range l.published {
			l.published[class] = published.WithLabelValues(sink, delaybridge.Class(class).String())
		}
		for _, class := range []delaybridge.Class{delaybridge.ClassUnknown, delaybridge.ClassTransient} {
			l.retries[class] = retries.WithLabelValues(sink, class.String())
		}
		m.lanes[sink] = l
	}
	return m
}

// Ingested is ingest.Config.Observe.
func (m *metrics) Ingested(source string, outcome delaybridge.Outcome) {
	c := m.ingested[source]
	if c == nil {
		if c = m.ingested[otherSource]; c == nil {
			return
		}
	}
	if int(outcome) < len(c) {
		c[outcome].Inc()
	}
}

// Published implements scheduler.Observer.
func (m *metrics) Published(lane string, r scheduler.Results) {
	l := m.lanes[lane]
	if l == nil {
		return
	}
	l.confirmed.Add(float64(r.Confirmed))
	for class, n := range r.Failed {
		if n > 0 {
			l.published[class].Add(float64(n))
		}
	}
	for class, n := range r.Retried {
		if n > 0 && l.retries[class] != nil {
			l.retries[class].Add(float64(n))
		}
	}
	if r.Confirmed+r.Failed[delaybridge.ClassTransient]+r.Failed[delaybridge.ClassPermanent] > 0 {
		l.answered.Store(true)
	}
}

// Delivered implements scheduler.Observer.
func (m *metrics) Delivered(lane string, late []time.Duration) {
	l := m.lanes[lane]
	if l == nil {
		return
	}
	for _, d := range late {
		l.late.Observe(max(0, d.Seconds())) // the clocks of hosts differ a little
	}
}

// LeasesExpired implements scheduler.Observer.
func (m *metrics) LeasesExpired(lane string, n int) {
	if l := m.lanes[lane]; l != nil {
		l.expired.Add(float64(n))
	}
}

// Circuit implements scheduler.Observer.
func (m *metrics) Circuit(lane string, open bool) {
	l := m.lanes[lane]
	if l == nil {
		return
	}
	l.down.Store(open)
	if open {
		l.circuit.Set(1)
	} else {
		l.circuit.Set(0)
	}
}

// Replayed counts a dead letter that was made a pending message again.
func (m *metrics) Replayed(reason delaybridge.Reason) {
	if c := m.replayed[reason]; c != nil { // another version may have other reasons
		c.Inc()
	}
}

// Purged counts a dead letter that somebody dropped.
func (m *metrics) Purged(reason delaybridge.Reason) {
	if c := m.purged[reason]; c != nil {
		c.Inc()
	}
}

// Wiped implements scheduler.Observer.
func (m *metrics) Wiped() { m.wiped.Inc() }

// DeadTrimmed implements scheduler.Observer.
func (m *metrics) DeadTrimmed(n int) { m.trimmed.Add(float64(n)) }

// Repaired implements scheduler.Observer.
func (m *metrics) Repaired(n int) { m.repaired.Add(float64(n)) }

// observedSources are the sources that this process reads, as metrics name them.
func (s *Settings) observedSources(d *ingest.Decoder) (names []string) {
	if slices.Contains(s.Roles, roleIngest) {
		for _, t := range d.Sources() {
			name := t.String()
			if s.hasBroker(t.Sink) && t != natsAPISubjects && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if s.API.Addr != "" {
		names = append(names, sourceAPI)
	}
	if s.NATS.API && s.NATS.URL != "" {
		names = append(names, sourceNATSAPI)
	}
	return names
}

// observedSinks are the sinks that this process publishes to.
func (s *Settings) observedSinks() (names []string) {
	if !slices.Contains(s.Roles, roleScheduler) {
		return nil
	}
	for _, lane := range delaybridge.Lanes {
		if s.hasBroker(lane) {
			names = append(names, lane)
		}
	}
	return names
}

// hasBroker reports whether the settings say where the broker of a sink is.
func (s *Settings) hasBroker(sink string) bool {
	if sink == delaybridge.SinkKafka {
		return len(s.Kafka.Brokers) > 0
	}
	return s.NATS.URL != ""
}
