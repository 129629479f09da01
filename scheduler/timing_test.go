package scheduler

import (
	"testing"
	"time"
)

// B36 (onosproject/onos-lib-go#127, heminetwork#664): the backoff overflowed.
func TestRetryAfter(t *testing.T) {
	const s, longest = time.Second, 5 * time.Minute
	tests := []struct {
		sentence string
		failed   int
		random   float64
		want     time.Duration
	}{
		{"the first retry is a second away on average", 1, 0.5, s},
		{"at the least half of it", 1, 0, s / 2},
		{"the second is two", 2, 0.5, 2 * s},
		{"the third is four", 3, 0.5, 4 * s},
		{"and at most half as much again", 3, 0.999999999, 6*s - 4*time.Nanosecond},
		{"from the tenth on it is the longest", 10, 0.5, longest},
		{"which no factor exceeds", 10, 0.99, longest},
		{"no attempt at all counts as the first", 0, 0.5, s},
		{"nor does a negative number do harm", -1, 0.5, s},
		{"31 attempts do not overflow", 31, 0.5, longest},
		{"nor do 63", 63, 0.5, longest},
		{"nor 64", 64, 0.5, longest},
		{"nor a million", 1_000_000, 0.5, longest},
	}
	for _, tt := range tests {
		t.Run(tt.sentence, func(t *testing.T) {
			got := retryAfter(s, longest, tt.failed, tt.random)
			if diff := got - tt.want; diff < -10 || diff > 10 {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

func TestShare(t *testing.T) {
	tests := []struct {
		sentence             string
		free, n, batch       int
		wantEach, wantShards int
	}{
		{"room for all asks each shard for a batch", 2000, 8, 200, 200, 8},
		{"less room is shared evenly", 80, 8, 200, 10, 8},
		{"with less room than shards some are asked for one", 3, 8, 200, 1, 3},
		{"no room asks none", 0, 8, 200, 0, 0},
		{"less than no room asks none", -5, 8, 200, 0, 0},
		{"nothing ready asks none", 100, 0, 200, 0, 0},
	}
	for _, tt := range tests {
		t.Run(tt.sentence, func(t *testing.T) {
			each, shards := share(tt.free, tt.n, tt.batch)
			if each != tt.wantEach || shards != tt.wantShards {
				t.Errorf("got %d each of %d, want %d of %d", each, shards, tt.wantEach, tt.wantShards)
			}
		})
	}
}
