package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"delaybridge"
	"delaybridge/scheduler"
)

// gather returns the value of every counter and gauge, and the count of every
// histogram, by name and labels.
func gather(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			name := f.GetName() + " " + strings.Join(labels, ",")
			switch {
			case m.Counter != nil:
				all[name] = m.Counter.GetValue()
			case m.Gauge != nil:
				all[name] = m.Gauge.GetValue()
			case m.Histogram != nil:
				all[name] = float64(m.Histogram.GetSampleCount())
			}
		}
	}
	return all
}

func TestSeriesAreThereFromTheStart(t *testing.T) {
	m := newMetrics([]string{"nats://bridge.schedule", "nats://later.>"}, []string{"kafka", "nats"})
	all := gather(t, m.registry)
	var want []string
	for _, source := range []string{"nats://bridge.schedule", "nats://later.>", "other"} {
		for _, result := range []string{"scheduled", "replaced", "duplicate", "cancelled", "too_late", "unknown", "rejected"} {
			want = append(want, fmt.Sprintf("bridge_ingested_total result=%s,source=%s", result, source))
		}
	}
	for _, sink := range []string{"kafka", "nats"} {
		for _, result := range []string{"ok", "unavailable", "unknown", "transient", "permanent"} {
			want = append(want, fmt.Sprintf("bridge_published_total result=%s,sink=%s", result, sink))
		}
		for _, reason := range []string{"unknown", "transient"} {
			want = append(want, fmt.Sprintf("bridge_retries_total reason=%s,sink=%s", reason, sink))
		}
		for _, name := range []string{"bridge_lateness_seconds", "bridge_leases_expired_total", "bridge_circuit_open"} {
			want = append(want, fmt.Sprintf("%s sink=%s", name, sink))
		}
	}
	want = append(want, "bridge_redis_wiped_total ", "bridge_dead_trimmed_total ", "bridge_repaired_total ")
	for _, series := range want {
		if v, ok := all[series]; !ok || v != 0 {
			t.Errorf("%s is %v (there: %v)", series, v, ok)
		}
	}
	for series := range all {
		if strings.HasPrefix(series, "bridge_") && !strings.HasPrefix(series, "bridge_build_info ") && !slices.Contains(want, series) {
			t.Errorf("nobody expected %s", series)
		}
	}
	if !slices.ContainsFunc(slices.Collect(keysOf(all)), func(s string) bool { return strings.HasPrefix(s, "go_goroutines") }) {
		t.Error("no metrics of Go")
	}
}

func keysOf(m map[string]float64) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// nats-io/prometheus-nats-exporter#376: labels from messages filled memory (B56).
func TestNoLabelComesFromOutside(t *testing.T) {
	m := newMetrics([]string{"nats://bridge.schedule"}, []string{"nats"})
	before := len(gather(t, m.registry))
	for i := range 10_000 {
		name := fmt.Sprint("x", i)
		m.Ingested("nats://"+name, delaybridge.Scheduled)
		m.Published(name, scheduler.Results{Confirmed: 1})
		m.Delivered(name, []time.Duration{time.Second})
		m.LeasesExpired(name, 1)
		m.Circuit(name, true)
	}
	m.Ingested("nats://bridge.schedule", delaybridge.Outcome(200))
	all := gather(t, m.registry)
	if len(all) != before {
		t.Errorf("%d series, %d before", len(all), before)
	}
	if n := all["bridge_ingested_total result=scheduled,source=other"]; n != 10_000 {
		t.Errorf("%v from other sources", n)
	}
}

func TestMetricsCount(t *testing.T) {
	m := newMetrics([]string{"nats://a"}, []string{"nats"})
	m.Ingested("nats://a", delaybridge.TooLate)
	m.Published("nats", scheduler.Results{
		Confirmed: 3, Failed: [delaybridge.Classes]int{1, 2, 3, 4}, Retried: [delaybridge.Classes]int{1, 0, 2, 0},
	})
	m.Delivered("nats", []time.Duration{-time.Second, time.Millisecond, time.Hour})
	m.LeasesExpired("nats", 5)
	m.Circuit("nats", true)
	m.Wiped()
	m.DeadTrimmed(2)
	m.Repaired(3)
	all := gather(t, m.registry)
	for series, want := range map[string]float64{
		"bridge_ingested_total result=too_late,source=nats://a": 1,
		"bridge_published_total result=ok,sink=nats":            3,
		"bridge_published_total result=unknown,sink=nats":       1,
		"bridge_published_total result=unavailable,sink=nats":   2,
		"bridge_published_total result=transient,sink=nats":     3,
		"bridge_published_total result=permanent,sink=nats":     4,
		"bridge_retries_total reason=unknown,sink=nats":         1,
		"bridge_retries_total reason=transient,sink=nats":       2,
		"bridge_lateness_seconds sink=nats":                     3,
		"bridge_leases_expired_total sink=nats":                 5,
		"bridge_circuit_open sink=nats":                         1,
		"bridge_redis_wiped_total ":                             1,
		"bridge_dead_trimmed_total ":                            2,
		"bridge_repaired_total ":                                3,
	} {
		if all[series] != want {
			t.Errorf("%s is %v, want %v", series, all[series], want)
		}
	}
	m.Circuit("nats", false)
	if v := gather(t, m.registry)["bridge_circuit_open sink=nats"]; v != 0 {
		t.Errorf("the circuit is closed, and its gauge %v", v)
	}
}

func TestObservedIsWhatTheProcessDoes(t *testing.T) {
	for _, row := range []struct {
		sentence       string
		env            map[string]string
		sources, sinks string
	}{
		{"both roles, NATS alone", map[string]string{"NATS_URL": "nats://x"}, "nats://bridge.schedule", "nats nats-core"},
		{"a scheduler takes nothing in", map[string]string{"NATS_URL": "nats://x", "ROLES": "scheduler"}, "", "nats nats-core"},
		{"ingest publishes nothing", map[string]string{"KAFKA_BROKERS": "x:9092", "ROLES": "ingest"}, "kafka://bridge.schedule", ""},
		{"routes are sources, each once", map[string]string{
			"KAFKA_BROKERS": "x:9092", "NATS_URL": "nats://x", "ROUTES": "nats://later.> -> nats://a delay=1s; nats://bridge.schedule format=json",
		}, "kafka://bridge.schedule nats://bridge.schedule nats://later.>", "kafka nats nats-core"},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			clearSettings(t)
			for k, v := range row.env {
				t.Setenv(prefix+"_"+k, v)
			}
			s, _, err := loadSettings()
			if err != nil {
				t.Fatal(err)
			}
			d, err := s.newDecoder()
			if err != nil {
				t.Fatal(err)
			}
			sources := s.observedSources(d)
			slices.Sort(sources)
			if got := strings.Join(sources, " "); got != row.sources {
				t.Errorf("sources %s", got)
			}
			if got := strings.Join(s.observedSinks(), " "); got != row.sinks {
				t.Errorf("sinks %s", got)
			}
		})
	}
}

func BenchmarkIngested(b *testing.B) {
	m := newMetrics([]string{"nats://bridge.schedule"}, []string{"nats"})
	b.ReportAllocs()
	for b.Loop() {
		m.Ingested("nats://bridge.schedule", delaybridge.Scheduled)
	}
}

func BenchmarkDelivered(b *testing.B) {
	m := newMetrics([]string{"nats://bridge.schedule"}, []string{"nats"})
	late := make([]time.Duration, 200)
	for i := range late {
		late[i] = time.Duration(i) * time.Millisecond
	}
	b.ReportAllocs()
	for b.Loop() {
		m.Published("nats", scheduler.Results{Confirmed: len(late)})
		m.Delivered("nats", late)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/200, "ns/message")
}
