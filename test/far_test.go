package test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

var farMessages = flag.Int("far", 100_000, "messages of the far future that a bridge is held against")

// TestFarFutureCostsTheBridgeNothing compares a bridge beside a full Redis with
// one beside an empty one: neither its memory, nor its start, nor what it reads
// from Redis grows with what is pending. Limits are factors, not times.
//
//	go test -run FarFuture ./test -v -args -far 1000000
//
// B55 (apache/pulsar#16763, celery/celery#9849): messages of the far future used up all memory.
func TestFarFutureCostsTheBridgeNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector changes what is measured")
	}
	t.Parallel()
	empty, full := newWorld(t), newWorld(t)
	due := time.Now().Add(30 * 24 * time.Hour)
	const step = 20_000
	for n := 0; n < *farMessages; n += step {
		full.fillFrom(t, 8, n, min(step, *farMessages-n), func(int) time.Time { return due })
	}
	a, b := cost(t, empty), cost(t, full)
	t.Logf("empty: %v; with %d pending: %v", a, *farMessages, b)
	if b.rss > 2*a.rss {
		t.Errorf("it takes %d KiB, beside an empty Redis %d", b.rss>>10, a.rss>>10)
	}
	// Who waits longer polls more often.
	if b.read > 3*a.read+1<<20 {
		t.Errorf("it has read %d bytes from Redis, from an empty one %d", b.read, a.read)
	}
	if b.start > 10*a.start+5*time.Second {
		t.Errorf("it starts within %v, beside an empty Redis within %v", b.start, a.start)
	}
}

// costs is what a bridge needs to start and to deliver some messages.
type costs struct {
	start     time.Duration // the best of several
	rss, read int64         // bytes, the most of several
}

func (c costs) String() string {
	return fmt.Sprintf("start %v, %d KiB of memory, %d KiB from Redis", c.start.Round(time.Millisecond), c.rss>>10, c.read>>10)
}

func cost(t *testing.T, w *world) (c costs) {
	t.Helper()
	client := w.redis.Client(t)
	for i := range 3 {
		before := redisOutput(t, client.Info(context.Background(), "stats").Val())
		began := time.Now()
		p := w.serve(t, nil)
		started := time.Since(began)
		for n := range 20 {
			id := fmt.Sprint("near-", i, "-", n)
			sent := publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.x", "Bridge-Delay: 100ms", "Bridge-Id: "+id)
			w.table.Expect(id, sent.Add(100*time.Millisecond))
		}
		w.table.Check(t)
		rss := residentSet(t, p.Pid())
		p.Kill()
		if c.start == 0 || started < c.start {
			c.start = started
		}
		c.rss = max(c.rss, rss)
		c.read = max(c.read, redisOutput(t, client.Info(context.Background(), "stats").Val())-before)
	}
	return c
}

// redisOutput is how many bytes a Redis has sent so far, by its INFO.
func redisOutput(t *testing.T, info string) int64 {
	t.Helper()
	_, rest, _ := strings.Cut(info, "total_net_output_bytes:")
	line, _, _ := strings.Cut(rest, "\r\n")
	n, err := strconv.ParseInt(line, 10, 64)
	if err != nil {
		t.Fatalf("INFO: %v", err)
	}
	return n
}

// residentSet is the memory that a process takes up, in bytes.
func residentSet(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Skipf("no memory use here: %v", err)
	}
	_, rest, _ := strings.Cut(string(status), "VmRSS:")
	fields := strings.Fields(rest)
	kib, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
