package scheduler

import (
	"time"

	"delaybridge"
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

// share divides room for free more among shards, batch at the most each, in their
// order, which is to be another one each time: not all may be asked. Those that gave
// all that they were asked for, and have more, are asked for a batch: a batch of few
// costs the queue far less than a little of each. The others come first, in half of
// the room at the most: they would wait until each of many had given its batch, and
// those must not wait until the others have nothing.
func share(free, batch int, shards []int, deep func(shard int) bool) (asks []delaybridge.Ask) {
	if free <= 0 || len(shards) == 0 {
		return nil
	}
	even := min(max(1, free/len(shards)), batch)
	left := free
	ask := func(shard, limit int) {
		asks = append(asks, delaybridge.Ask{Shard: shard, Limit: limit})
		left -= limit
	}
	var rest []int
	for _, shard := range shards {
		if deep(shard) || left-even < (free+1)/2 {
			rest = append(rest, shard)
		} else {
			ask(shard, even)
		}
	}
	for _, shard := range rest {
		limit := even
		if deep(shard) {
			limit = batch
		}
		if limit = min(limit, left); limit == 0 {
			break
		}
		ask(shard, limit)
	}
	return asks
}
