package scheduler

import (
	"time"
)

// retryAfter is how long to wait after the failed-th failed attempt (1 is the
// first): base, doubled for each attempt before, at most longest, and then times
// a factor between one half and one and a half that random, in [0, 1), picks.
// The result stays within longest and never goes below half of base.
func retryAfter(base, longest time.Duration, failed int, random float64) time.Duration {
	wait := doubled(base, longest, failed-1)
	return min(time.Duration(float64(wait)*(0.5+random)), longest)
}

// doubled is base times two to the n, at most longest, without overflowing.
func doubled(base, longest time.Duration, n int) time.Duration {
	if n <= 0 {
		return min(base, longest)
	}
	if n >= 62 || base > longest>>n {
		return longest
	}
	return base << n
}

// Waits between looks at something that does not answer: a broker behind an open
// circuit, or the queue.
const (
	probeFirst   = 100 * time.Millisecond
	probeLongest = 2 * time.Second
)

// probeAfter is how long to leave something alone after n failures in a row.
func probeAfter(n int) time.Duration { return doubled(probeFirst, probeLongest, n-1) }

// share is how much to ask of each of n shards when there is room for free more,
// batch at the most each; it may be that not all n can be asked.
func share(free, n, batch int) (each, shards int) {
	if free <= 0 || n == 0 {
		return 0, 0
	}
	shards = min(n, free)
	return min(batch, free/shards), shards
}
