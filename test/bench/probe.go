package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// probe is another client of Redis, which measures how long it waits. It is a
// process of its own, before all others where that is allowed: what it waits for is
// Redis, and not a processor to run on itself.
type probe struct{ *process }

func (w *world) startProbe() (probe, error) {
	self, err := os.Executable()
	if err != nil {
		return probe{}, err
	}
	env := append(os.Environ(), modeVariable+"=probe", "GOMAXPROCS=1")
	p, err := start("probe", env, "nice", "-n", "-20", self, w.redisAddr)
	if err != nil {
		return probe{}, err
	}
	w.cleanup = append(w.cleanup, p.kill)
	_, err = p.await("probing")
	return probe{p}, err
}

// worst ends the probe and returns the longest wait in ms since shortly before due, 0
// for less than half of one.
func (p probe) worst(due time.Time) (ms float64, err error) {
	select {
	case <-p.ended:
		return 0, fmt.Errorf("the probe ended: %s", p.output())
	default:
		p.kill()
	}
	for line := range strings.Lines(p.output()) {
		var at, us int64
		if _, err := fmt.Sscanf(line, "waited %d %d", &at, &us); err != nil {
			continue
		}
		if us < 0 {
			return 0, fmt.Errorf("the probe: Redis did not answer: %s", p.output())
		}
		if time.UnixMicro(at).After(due.Add(-100 * time.Millisecond)) {
			ms = max(ms, float64(us)/1000)
		}
	}
	return ms, nil
}

// probeWorker sends PING and SET in turn, and says when it waited for half a
// millisecond or more, in Unix us and us.
func probeWorker(args []string) error {
	client := redis.NewClient(&redis.Options{Addr: args[0], MaxRetries: -1, DisableIdentity: true})
	ctx := context.Background()
	fmt.Println("probing")
	for n := 0; ; n++ {
		began := time.Now()
		var err error
		if n%2 == 0 {
			err = client.Ping(ctx).Err()
		} else {
			err = client.Set(ctx, "probe", n, 0).Err()
		}
		took := time.Since(began).Microseconds()
		if err != nil {
			took = -1
		}
		if took < 0 || took >= 500 {
			fmt.Println("waited", began.UnixMicro(), took)
		}
		time.Sleep(200 * time.Microsecond)
	}
}
