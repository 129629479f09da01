package main

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// addConfirmed adds what the bridges themselves say of lateness: from due until
// their broker's confirmation had arrived. It is known by buckets only.
func (w *world) addConfirmed(v values) error {
	counts := map[float64]float64{} // up to so many ms
	total := 0.0
	client := &http.Client{Timeout: 10 * time.Second}
	for _, p := range w.others {
		if p.metrics == "" {
			continue
		}
		r, err := client.Get("http://" + p.metrics + "/metrics")
		if err != nil {
			return fmt.Errorf("metrics of a bridge: %w", err)
		}
		lines := bufio.NewScanner(r.Body)
		for lines.Scan() {
			rest, ok := strings.CutPrefix(lines.Text(), `bridge_lateness_seconds_bucket{sink="nats",le="`)
			if !ok {
				continue
			}
			limit, count, _ := strings.Cut(rest, `"} `)
			n, err := strconv.ParseFloat(count, 64)
			if err != nil {
				return err
			}
			if limit == "+Inf" {
				total += n
			} else if seconds, err := strconv.ParseFloat(limit, 64); err == nil {
				counts[1000*seconds] += n
			}
		}
		_ = r.Body.Close()
	}
	if total == 0 {
		return fmt.Errorf("the bridges say nothing of lateness")
	}
	for _, ms := range []float64{5, 10} {
		v[fmt.Sprintf("confirmed_within_%.0fms", ms)] = counts[ms] / total
	}
	var limits []float64
	for ms := range counts {
		limits = append(limits, ms)
	}
	slices.Sort(limits)
	before, at := 0.0, 0.0
	for _, ms := range limits {
		if counts[ms] >= 0.99*total {
			v["confirmed_p99_ms"] = at + (ms-at)*(0.99*total-before)/max(counts[ms]-before, 1)
			break
		}
		before, at = counts[ms], ms
	}
	return nil
}
