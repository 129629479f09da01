package scheduler

import (
	"fmt"
	"slices"
	"strings"
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
	eight := []int{0, 1, 2, 3, 4, 5, 6, 7}
	tests := []struct {
		sentence     string
		free, batch  int
		shards, deep []int
		want         string
	}{
		{"room for all asks each shard for a batch", 2000, 200, eight, nil, "0:200 1:200 2:200 3:200 4:200 5:200 6:200 7:200"},
		{"less room is shared evenly", 80, 200, eight, nil, "0:10 1:10 2:10 3:10 4:10 5:10 6:10 7:10"},
		{"with less room than shards some are asked for one", 3, 200, eight, nil, "0:1 1:1 2:1"},
		{"of those with more a few are asked for a batch", 400, 200, eight, eight, "0:200 1:200"},
		{"the last of them for what is left", 500, 200, eight, eight, "0:200 1:200 2:100"},
		{"the others for their share, and first", 400, 200, []int{1, 0, 3, 2}, []int{1, 3}, "0:100 2:100 1:200"},
		{"one does not wait until each of many has given a batch", 200, 200, eight, eight[:7], "7:25 0:175"},
		{"the others leave half of the room", 200, 200, eight, eight[7:], "0:25 1:25 2:25 3:25 4:25 5:25 6:25 7:25"},
		{"with room for one it is anyone's", 1, 200, eight, eight[:1], "0:1"},
		{"no room asks none", 0, 200, eight, nil, ""},
		{"less than no room asks none", -5, 200, eight, eight, ""},
		{"nothing ready asks none", 100, 200, nil, nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.sentence, func(t *testing.T) {
			var got []string
			for _, ask := range share(tt.free, tt.batch, slices.Clone(tt.shards), func(shard int) bool { return slices.Contains(tt.deep, shard) }) {
				got = append(got, fmt.Sprintf("%d:%d", ask.Shard, ask.Limit))
			}
			if got := strings.Join(got, " "); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
