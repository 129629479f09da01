package main

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"time"
)

// benchReport is what a measurement has found. Rates are messages a second.
type benchReport struct {
	Name          string   `json:"name"`
	Path          string   `json:"path"`
	Count         int      `json:"count"`
	Size          int      `json:"size"`
	SpreadSeconds float64  `json:"spread_seconds"`
	Lanes         []string `json:"lanes"`
	Subjects      int      `json:"subjects"`
	Processes     int      `json:"processes"`

	Redis struct {
		Version string `json:"version,omitempty"`
		AOF     bool   `json:"aof"`
	} `json:"redis"`

	// Publish is of the full path, Store and Memory of the other.
	Publish *benchStage  `json:"publish,omitempty"`
	Store   *benchStage  `json:"store,omitempty"`
	Memory  *benchMemory `json:"memory,omitempty"`
	// StoredLate says that the first messages were due before the last was stored.
	StoredLate bool `json:"stored_late,omitempty"`

	Deliver    benchStage               `json:"deliver"`
	Lateness   map[string]benchLateness `json:"lateness"` // by lane
	Missing    int                      `json:"missing"`
	Duplicates int                      `json:"duplicates"`
	// Early are those that arrived before they were due, by the clocks of their
	// brokers, which may be behind.
	Early int `json:"early"`

	Usage []processUsage `json:"usage,omitempty"`

	first     time.Time // when the first was due
	fromFirst bool      // the rate counts from the first arrival instead
}

type benchStage struct {
	Messages  int     `json:"messages"`
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"per_second"`
}

func newStage(n int, took time.Duration) *benchStage {
	return &benchStage{n, took.Seconds(), float64(n) / max(took.Seconds(), 1e-6)}
}

// benchMemory is what Redis needed, in bytes a message.
type benchMemory struct {
	PerMessage float64 `json:"per_message"`
	// Beyond is without the message's own id and payload.
	Beyond float64 `json:"beyond_id_and_payload"`
}

// benchLateness is how long after their time the messages of a lane were there.
type benchLateness struct {
	Messages  int           `json:"messages"`
	P50       float64       `json:"p50_ms"`
	P90       float64       `json:"p90_ms"`
	P99       float64       `json:"p99_ms"`
	P999      float64       `json:"p99_9_ms"`
	Max       float64       `json:"max_ms"`
	Histogram []benchBucket `json:"histogram"`
}

// benchBucket counts the messages up to a lateness and above the one before; the
// last has none.
type benchBucket struct {
	UpTo  float64 `json:"up_to_ms,omitempty"`
	Count int     `json:"count"`
}

func newBenchReport(b *benchRun, facts redisFacts) benchReport {
	r := benchReport{
		Name: b.name, Path: b.path, Count: b.count, Size: b.size, SpreadSeconds: b.spread.Seconds(),
		Lanes: b.lanes, Subjects: b.subjects, Processes: b.processes,
	}
	r.Redis.Version, r.Redis.AOF = facts.version, facts.aof
	return r
}

// memory notes what the messages have taken up, unless it is not known.
func (r *benchReport) memory(before, after, own int64) {
	if before < 0 || after < 0 {
		return
	}
	n := float64(r.Count)
	r.Memory = &benchMemory{PerMessage: float64(after-before) / n, Beyond: float64(after-before-own) / n}
}

func (r *benchReport) usage(u []processUsage) { r.Usage = u }

// tally collects arrivals.
type tally struct {
	seed        maphash.Seed
	ids         map[uint64]struct{}
	late        map[string][]time.Duration
	first, last time.Time
	all, early  int
}

func newTally(lanes []string) *tally {
	t := &tally{seed: maphash.MakeSeed(), ids: map[uint64]struct{}{}, late: map[string][]time.Duration{}}
	for _, lane := range lanes {
		t.late[lane] = nil
	}
	return t
}

func (t *tally) add(lane string, a arrival) {
	t.all++
	id := maphash.String(t.seed, a.id)
	if _, again := t.ids[id]; again || a.id == "" || a.due.IsZero() {
		return
	}
	t.ids[id] = struct{}{}
	if t.first.IsZero() || a.at.Before(t.first) {
		t.first = a.at
	}
	if a.at.After(t.last) {
		t.last = a.at
	}
	late := a.at.Sub(a.due)
	if late < 0 {
		t.early++
	}
	t.late[lane] = append(t.late[lane], late)
}

func (r *benchReport) tally(t *tally, count int) {
	from := r.first
	if r.fromFirst || from.IsZero() {
		from = t.first
	}
	r.Deliver = *newStage(len(t.ids), t.last.Sub(from))
	r.Missing, r.Duplicates, r.Early = count-len(t.ids), t.all-len(t.ids), t.early
	r.Lateness = map[string]benchLateness{}
	if r.fromFirst {
		return // it was due before the processes began
	}
	for lane, late := range t.late {
		r.Lateness[lane] = newLateness(late)
	}
}

func newLateness(late []time.Duration) benchLateness {
	l := benchLateness{Messages: len(late)}
	if len(late) == 0 {
		return l
	}
	slices.Sort(late)
	ms := func(d time.Duration) float64 { return math.Round(float64(d)/float64(10*time.Microsecond)) / 100 }
	l.P50, l.P90 = ms(percentile(late, 0.5)), ms(percentile(late, 0.9))
	l.P99, l.P999 = ms(percentile(late, 0.99)), ms(percentile(late, 0.999))
	l.Max = ms(late[len(late)-1])
	at := 0
	for _, limit := range lateBuckets {
		n := at
		for n < len(late) && late[n] <= time.Duration(limit*float64(time.Second)) {
			n++
		}
		l.Histogram = append(l.Histogram, benchBucket{limit * 1000, n - at})
		at = n
	}
	l.Histogram = append(l.Histogram, benchBucket{0, len(late) - at})
	return l
}

// percentile is the smallest value that a part p of a sorted list does not exceed.
func percentile(sorted []time.Duration, p float64) time.Duration {
	return sorted[max(0, int(math.Ceil(p*float64(len(sorted))))-1)]
}

func (r *benchReport) heading() string {
	spread := "all due at once"
	if r.SpreadSeconds > 0 {
		spread = fmt.Sprintf("due over %v", time.Duration(r.SpreadSeconds*float64(time.Second)))
	}
	aof := "without AOF"
	if r.Redis.AOF {
		aof = "with AOF"
	}
	return fmt.Sprintf("%s messages of %d bytes, %s, path %s, to %s, %s, Redis %s %s\n\n", grouped(int64(r.Count)), r.Size, spread,
		r.Path, strings.Join(r.Lanes, " and "), pluralES(r.Processes, "process"), cmp.Or(r.Redis.Version, "of unknown version"), aof)
}

func pluralES(n int, what string) string {
	if n != 1 {
		what += "es"
	}
	return fmt.Sprintf("%d %s", n, what)
}

func (s *benchStage) line(name string) string {
	return fmt.Sprintf("%-10s%12s in %.2f s %14s/s\n", name, grouped(int64(s.Messages)), s.Seconds, grouped(int64(s.PerSecond)))
}

func (r *benchReport) publishLines() string { return r.Publish.line("publish") }

func (r *benchReport) storeLines() string {
	lines := r.Store.line("store")
	if r.Memory != nil {
		lines += fmt.Sprintf("memory    %12.0f bytes a message in Redis, %.0f beyond its id and payload\n", r.Memory.PerMessage, r.Memory.Beyond)
	}
	return lines
}

func (r *benchReport) deliverLines() string {
	var b strings.Builder
	b.WriteString(r.Deliver.line("deliver"))
	if r.Missing+r.Duplicates+r.Early > 0 {
		fmt.Fprintf(&b, "          %12s missing, %d twice, %d early by their broker's clock\n", grouped(int64(r.Missing)), r.Duplicates, r.Early)
	}
	for _, lane := range r.Lanes {
		l, ok := r.Lateness[lane]
		if !ok || l.Messages == 0 {
			continue
		}
		fmt.Fprintf(&b, "\nlateness  %s: p50 %s  p90 %s  p99 %s  p99.9 %s  max %s\n\n", lane, msText(l.P50), msText(l.P90), msText(l.P99), msText(l.P999), msText(l.Max))
		b.WriteString(histogramLines(l.Histogram))
	}
	return b.String()
}

func msText(ms float64) string {
	if ms >= 1000 {
		return fmt.Sprintf("%.2fs", ms/1000)
	}
	return fmt.Sprintf("%.1fms", ms)
}

// histogramLines draws the buckets from the first to the last that has any.
func histogramLines(buckets []benchBucket) string {
	const width = 40
	var b strings.Builder
	first, last, most, all := -1, 0, 0, 0
	for i, k := range buckets {
		if k.Count > 0 {
			if first < 0 {
				first = i
			}
			last = i
		}
		most, all = max(most, k.Count), all+k.Count
	}
	for i := max(first, 0); i <= last; i++ {
		k, name := buckets[i], ""
		switch {
		case i == len(buckets)-1:
			name = "more"
		default:
			name = "to " + msText(k.UpTo)
		}
		bar := strings.Repeat("#", (k.Count*width+max(most, 1)-1)/max(most, 1))
		fmt.Fprintf(&b, "%14s %12s %6.2f%%  %s\n", name, grouped(int64(k.Count)), 100*float64(k.Count)/float64(max(all, 1)), bar)
	}
	return b.String()
}

func (r *benchReport) processLines() string {
	var b strings.Builder
	b.WriteString("\n")
	for i, u := range r.Usage {
		memory := ""
		if u.MaxBytes > 0 {
			memory = fmt.Sprintf(", %d MiB at the most", u.MaxBytes>>20)
		}
		fmt.Fprintf(&b, "process %-2d%11.2f s CPU, from its start to its end%s\n", i+1, u.CPUSeconds, memory)
	}
	return b.String()
}
