package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// text lists values for the log.
func (v values) text() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(v)) {
		fmt.Fprintf(&b, "%s=%s ", name, short(v[name]))
	}
	return b.String()
}

func short(x float64) string {
	switch {
	case math.Abs(x) >= 1000:
		s := fmt.Sprintf("%.0f", x)
		for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
			s = s[:i] + "," + s[i:]
		}
		return s
	case math.Abs(x) >= 100:
		return fmt.Sprintf("%.0f", x)
	case math.Abs(x) >= 10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.2f", x)
}

// figure is one value over all rounds.
type figure struct {
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
	N      int     `json:"n"`
}

func (f figure) ok() bool { return f.N > 0 }

func (f figure) String() string {
	if !f.ok() {
		return "-"
	}
	if f.N == 1 || short(f.Least) == short(f.Most) {
		return short(f.Median)
	}
	return fmt.Sprintf("%s (%s-%s)", short(f.Median), short(f.Least), short(f.Most))
}

// figures gathers samples by measure, contender and value.
type figures map[string]map[string]map[string]figure

func gather(samples []sample) figures {
	lists := map[[3]string][]float64{}
	for _, s := range samples {
		if s.Error != "" {
			continue
		}
		for name, x := range s.Values {
			key := [3]string{s.Measure, s.Contender, name}
			lists[key] = append(lists[key], x)
		}
	}
	all := figures{}
	for key, list := range lists {
		if all[key[0]] == nil {
			all[key[0]] = map[string]map[string]figure{}
		}
		if all[key[0]][key[1]] == nil {
			all[key[0]][key[1]] = map[string]figure{}
		}
		slices.Sort(list)
		middle := list[len(list)/2]
		if len(list)%2 == 0 {
			middle = (list[len(list)/2-1] + list[len(list)/2]) / 2
		}
		all[key[0]][key[1]][key[2]] = figure{Median: middle, Least: list[0], Most: list[len(list)-1], N: len(list)}
	}
	return all
}

func (f figures) of(measure, contender, value string) figure { return f[measure][contender][value] }

// target is one of the things to reach.
type target struct {
	Name string `json:"name"`
	// Want is "at least" or "at most" a limit.
	AtLeast bool    `json:"at_least"`
	Limit   float64 `json:"limit"`
	// Got is a median, or where AtLeast the ratio of it to that of another.
	Got    float64 `json:"got"`
	Figure string  `json:"figure"`
	Of     string  `json:"of,omitempty"` // what it is compared with
	Held   bool    `json:"held"`
}

// targets holds what was measured to what is to be reached; what was not measured
// is left out.
func (f figures) targets() (all []target) {
	add := func(name string, atLeast bool, limit, got float64, of figure, what string) {
		held := got <= limit
		if atLeast {
			held = got >= limit
		}
		all = append(all, target{Name: name, AtLeast: atLeast, Limit: limit, Got: got, Figure: of.String(), Of: what, Held: held})
	}
	ratio := func(name string, limit float64, mine, theirs figure, whose string) {
		if mine.ok() && theirs.ok() {
			add(name, true, limit, mine.Median/theirs.Median, mine, whose+" "+theirs.String())
		}
	}
	most := func(name string, limit float64, mine figure) {
		if mine.ok() {
			add(name, false, limit, mine.Median, mine, "")
		}
	}
	drain := f.of("drain", nameOurs, "per_s")
	bareDrain := f.of("drain", nameBare, "per_s")
	ratio("drain, messages/s, of NATS schedules", 1.3, drain, f.of("drain", nameNative, "per_s"), nameNative)
	half := "drain of half as many"
	ratio("drain of half as many, of NATS schedules", 1.3, f.of(half, nameOurs, "per_s"), f.of(half, nameNative, "per_s"), nameNative)
	ratio("drain, of asynq", 10, drain, f.of("drain", nameAsynq, "per_s"), nameAsynq)
	ratio("drain, of the bare loop", 0.8, drain, bareDrain, nameBare)
	ratio("drain, of the bare loop with a lease for each message", 0.8, drain, f.of("drain", nameLeased, "per_s"), nameLeased)
	all2 := "drain, all subjects distinct"
	ratio("drain with all subjects distinct, of the bare loop", 0.8, f.of(all2, nameOurs, "per_s"), f.of(all2, nameBare, "per_s"), nameBare)
	ratio("drain by two processes, of one", 1, f.of("drain", nameTwo, "per_s"), drain, nameOurs)
	for _, path := range []string{"JetStream", "kfake", "Kafka"} {
		ratio("full path "+path+", messages/s, of the bare loop's drain", 0.45, f.of("full path "+path, nameOurs, "per_s"), bareDrain, nameBare)
	}
	for _, l := range []struct {
		rate  int
		limit float64
	}{{1000, 5}, {5000, 10}, {10_000, 10}} {
		m := fmt.Sprintf("lateness at %d/s", l.rate)
		most(fmt.Sprintf("p99 lateness in ms at %d/s, stored at the target", l.rate), l.limit, f.of(m, nameTwo, "p99_ms"))
		most(fmt.Sprintf("p99 lateness in ms at %d/s, confirmed (from buckets)", l.rate), l.limit, f.of(m, nameTwo, "confirmed_p99_ms"))
	}
	m := "same millisecond"
	most("another lane's lateness in ms at the most, while 100,000 are due at once", 50, f.of(m, nameOurs, "other_max_ms"))
	most("the longest script in ms, meanwhile", 5, f.of(m, nameOurs, "script_max_ms"))
	if wait, bare := f.of(m, nameOurs, "client_waits_ms"), f.of(m, nameBare, "client_waits_ms"); wait.ok() && bare.ok() {
		add("the longest wait of another client of Redis in ms, meanwhile", false, 5, wait.Median, wait, nameBare+" "+bare.String())
	}
	var steps []int
	for name := range f {
		var n int
		if _, err := fmt.Sscanf(name, "backlog of %d", &n); err == nil {
			steps = append(steps, n)
		}
	}
	slices.Sort(steps)
	for _, n := range steps {
		m := fmt.Sprintf("backlog of %d", n)
		ratio(fmt.Sprintf("drain behind a backlog of %s, of the bare loop", short(float64(n))), 0.8, f.of(m, nameOurs, "per_s"), f.of(m, nameBare, "per_s"), nameBare)
	}
	most("idle commands/s, nothing pending", 50, f.of("idle", nameOurs, "commands_per_s_nothing"))
	most("idle commands/s, a million pending", 50, f.of("idle", nameOurs, "commands_per_s_far"))
	most("idle CPU in %, nothing pending", 1, f.of("idle", nameOurs, "cpu_percent_nothing"))
	most("idle CPU in %, a million pending", 1, f.of("idle", nameOurs, "cpu_percent_far"))
	most("Redis bytes a message beyond id and payload", 280, f.of("memory", nameOurs, "bytes_beyond"))
	most("the same, with ids of the producer's and two headers, beyond these", 280, f.of("memory", nameOurs, "bytes_own_id_headers_beyond"))
	return all
}

// printSamples prints everything as markdown, or as JSON.
func printSamples(w io.Writer, samples []sample, output string) error {
	f := gather(samples)
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(struct {
			Figures figures  `json:"figures"`
			Targets []target `json:"targets"`
			Samples []sample `json:"samples"`
		}{f, f.targets(), samples})
	}
	var b strings.Builder
	f.printContenders(&b)
	f.printTargets(&b)
	f.printRest(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// printContenders prints the table of all contenders.
func (f figures) printContenders(b *strings.Builder) {
	b.WriteString("| | drain, all due at once, messages/s | lateness p50 / p99 / max in ms at 1,000/s | at 5,000/s | at 10,000/s | Redis bytes per pending |\n|---|---|---|---|---|---|\n")
	for _, name := range []string{nameAsynq, nameAsynq2, nameNative, nameBare, nameLeased, nameOurs, nameTwo} {
		late := func(rate int) string {
			m := fmt.Sprintf("lateness at %d/s", rate)
			if !f.of(m, name, "p50_ms").ok() {
				return "-"
			}
			s := fmt.Sprintf("%s / %s / %s", f.of(m, name, "p50_ms"), f.of(m, name, "p99_ms"), f.of(m, name, "max_ms"))
			if n := f.of(m, name, "early").Median; n > 0 {
				s += fmt.Sprintf(", %s early", short(n))
			}
			return s
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s |\n", name, f.of("drain", name, "per_s"), late(1000), late(5000), late(10_000), f.of("memory", name, "bytes"))
	}
	b.WriteString("\n")
}

// printTargets prints what was to be reached, and what was.
func (f figures) printTargets(b *strings.Builder) {
	b.WriteString("| to reach | | measured: median (least-most) | compared with | ratio | held |\n|---|---|---|---|---|---|\n")
	for _, t := range f.targets() {
		want, got := "at most ", ""
		if t.AtLeast {
			want = "at least "
		}
		if t.Of != "" && t.AtLeast { // a ratio
			got = fmt.Sprintf("%.2f", t.Got)
		}
		held := "yes"
		if !t.Held {
			held = "**no**"
		}
		fmt.Fprintf(b, "| %s | %s%s | %s | %s | %s | %s |\n", t.Name, want, short(t.Limit), t.Figure, t.Of, got, held)
	}
	b.WriteString("\n")
}

// printRest prints every value that was measured.
func (f figures) printRest(b *strings.Builder) {
	b.WriteString("| measure | of | value | median (least-most) |\n|---|---|---|---|\n")
	for _, m := range slices.Sorted(maps.Keys(f)) {
		for _, c := range slices.Sorted(maps.Keys(f[m])) {
			for _, v := range slices.Sorted(maps.Keys(f[m][c])) {
				fmt.Fprintf(b, "| %s | %s | %s | %s |\n", m, c, v, f[m][c][v])
			}
		}
	}
}
