package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"delaybridge"
)

// processView is what one process has done since it was started. Every count in it
// only grows: who asks twice has the rate.
type processView struct {
	Version   string                     `json:"version"`
	StartedAt stamp                      `json:"started_at"`
	Lanes     map[string]processLaneView `json:"lanes"`
	// Ingested counts requests by source and by what became of them.
	Ingested map[string]map[string]int64 `json:"ingested"`
	// IngestHeld is why its sources are not read any more, until there is room.
	IngestHeld string `json:"ingest_held,omitempty"`
}

// processLaneView is what a process has published to one sink.
type processLaneView struct {
	Published   map[string]int64 `json:"published"` // by result
	Lateness    latenessView     `json:"lateness"`
	CircuitOpen bool             `json:"circuit_open"`
}

// latenessView is a histogram of seconds: each bucket is its upper bound and how
// many are at most that late.
type latenessView struct {
	Count   uint64       `json:"count"`
	Sum     float64      `json:"sum"`
	Buckets [][2]float64 `json:"buckets"`
}

// processView reads the counters.
func (m *metrics) processView(started time.Time) *processView {
	v := &processView{
		Version: currentVersion().Version, StartedAt: stamp(started),
		Lanes: map[string]processLaneView{}, Ingested: map[string]map[string]int64{},
	}
	for sink, l := range m.lanes {
		lane := processLaneView{
			Published:   map[string]int64{"ok": int64(read(l.confirmed).GetCounter().GetValue())},
			CircuitOpen: l.down.Load(),
			Lateness:    latenessView{Buckets: [][2]float64{}},
		}
		for class, c := range l.published {
			lane.Published[delaybridge.Class(class).String()] = int64(read(c).GetCounter().GetValue())
		}
		if late, ok := l.late.(prometheus.Metric); ok {
			h := read(late).GetHistogram()
			lane.Lateness.Count, lane.Lateness.Sum = h.GetSampleCount(), h.GetSampleSum()
			for _, b := range h.GetBucket() {
				lane.Lateness.Buckets = append(lane.Lateness.Buckets, [2]float64{b.GetUpperBound(), float64(b.GetCumulativeCount())})
			}
		}
		v.Lanes[sink] = lane
	}
	for source, outcomes := range m.ingested {
		counts := map[string]int64{}
		for o, c := range outcomes {
			counts[delaybridge.Outcome(o).String()] = int64(read(c).GetCounter().GetValue())
		}
		v.Ingested[source] = counts
	}
	if held := m.held.Load(); held != nil {
		v.IngestHeld = (*held)()
	}
	return v
}

// watchIngest has processView say why nothing is taken in, when held says so.
func (m *metrics) watchIngest(held func() string) { m.held.Store(&held) }

// read returns a metric's value; one that cannot be read is 0.
func read(m prometheus.Metric) *dto.Metric {
	var out dto.Metric
	_ = m.Write(&out)
	return &out
}
