package test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestIdleBridgeRests measures what a bridge with nothing to do asks of Redis
// and of its host.
func TestIdleBridgeRests(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector changes what is measured")
	}
	w := newWorld(t)
	p := w.serve(t, nil)
	// One message that is due much later: the usual state of an idle bridge.
	publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: 1h", "Bridge-Id: far")
	w.awaitState(t, "far", "pending")

	const span = 10 * time.Second
	client := w.redis.Client(t)
	commands := func() float64 {
		info, err := client.Info(context.Background(), "commandstats").Result()
		if err != nil {
			t.Fatal(err)
		}
		total := 0.0
		for line := range strings.SplitSeq(info, "\r\n") {
			// What scripts call shows in it too, as what Redis has to do.
			if _, rest, ok := strings.Cut(line, ":calls="); ok && !strings.HasPrefix(line, "cmdstat_info") {
				n, _, _ := strings.Cut(rest, ",")
				calls, err := strconv.ParseFloat(n, 64)
				if err != nil {
					t.Fatal(err)
				}
				total += calls
			}
		}
		return total
	}
	c0, cpu0 := commands(), cpuTime(t, p.Pid())
	time.Sleep(span) // what is measured is a span of time, there is no event to wait for
	perSecond := (commands() - c0) / span.Seconds()
	cpu := 100 * (cpuTime(t, p.Pid()) - cpu0).Seconds() / span.Seconds()
	t.Logf("idle: %.1f commands a second, %.2f%% CPU", perSecond, cpu)
	if perSecond >= 50 {
		t.Errorf("an idle bridge sends Redis %.1f commands a second", perSecond)
	}
	// CPU time does not grow with what else the machine does, as latency would.
	if cpu >= 1 {
		t.Errorf("an idle bridge uses %.2f%% CPU", cpu)
	}
}

// cpuTime is what a process has used so far.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Skipf("no CPU times here: %v", err)
	}
	// Behind the name in brackets, which may hold blanks: state is field 3,
	// utime and stime are 14 and 15, in hundredths of a second.
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
