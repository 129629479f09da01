package luascripts

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"delaybridge"
	"delaybridge/test/servers"
)

func TestInParts(t *testing.T) {
	for _, row := range []struct {
		about   string
		n, each int // records, and the bytes of each
		want    []int
	}{
		{"nothing", 0, 0, nil},
		{"fewer than the first part", 3, 100, []int{3}},
		{"small ones: large parts behind the first", 600, 100, []int{4, 250, 250, 96}},
		{"empty ones", 300, 0, []int{4, 250, 46}},
		{"ones of a megabyte: four at a time", 9, 1 << 20, []int{4, 4, 1}},
		{"ones of more than a part: one at a time", 7, 10 << 20, []int{4, 1, 1, 1}},
	} {
		var got []int
		at := 0
		err := inParts(row.n, func(from, to int) (int, error) {
			if from != at {
				t.Errorf("%s: from %d, want %d", row.about, from, at)
			}
			at, got = to, append(got, to-from)
			return (to - from) * row.each, nil
		})
		if err != nil || !slices.Equal(got, row.want) {
			t.Errorf("%s: %v, %v, want %v", row.about, got, err, row.want)
		}
	}
}

// TestListsHoldFewRecords reads lists of what would not fit at once.
func TestListsHoldFewRecords(t *testing.T) {
	ctx := context.Background()
	h := newHarness(t, servers.NewRedis(t).Client(t), testConfig())
	const n, size = 60, 1 << 20
	for i := range n {
		m := message(fmt.Sprintf("m-%d", i), "hi", "nats:S 1")
		m.Position.Offset, m.Payload = uint64(i), make([]byte, size)
		letter := m
		letter.ID = fmt.Sprintf("l-%d", i)
		for _, r := range h.q.Store(ctx, []delaybridge.Request{{Message: m}, {Op: delaybridge.OpReject, Message: letter, Error: "no"}}) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	held := func() uint64 {
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	// Content, which is not kept here, must not be kept by what is.
	var heads []Letter
	count, most := 0, uint64(0)
	before := held()
	look := func() {
		if count++; count%10 == 0 {
			most = max(most, held())
		}
	}
	if _, err := h.q.WalkDead(ctx, 1000, "", func(l Letter) bool {
		if len(l.Payload) != size {
			t.Errorf("letter %s has %d bytes", l.ID, len(l.Payload))
		}
		heads = append(heads, l.WithoutContent())
		look()
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.q.WalkPending(ctx, "", 1000, "", func(p Pending) {
		if p.Message == nil || len(p.Message.Payload) != size {
			t.Errorf("message %s without its payload", p.ID)
		}
		look()
	}); err != nil {
		t.Fatal(err)
	}
	if count != 2*n || most > before+n/2*size {
		t.Errorf("%d records, %d MiB of them at once; %d MiB are kept", count, (most-before)>>20, (held()-before)>>20)
	}
	if errs := h.q.Purge(ctx, heads[:2]); errs[0] != nil || errs[1] != nil {
		t.Error("letters without content are purged like others:", errs)
	}
}

// TestWalkDeadStops goes on behind the letter at which it was stopped.
func TestWalkDeadStops(t *testing.T) {
	ctx := context.Background()
	h := newHarness(t, servers.NewRedis(t).Client(t), testConfig())
	var want []string
	for i := range 23 {
		h.at(int64(i))
		m := message(fmt.Sprintf("m-%02d", i), "hi", "nats:S 1")
		m.Position.Offset = uint64(i)
		if r := h.q.Store(ctx, []delaybridge.Request{{Op: delaybridge.OpReject, Message: m, Error: "no"}})[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
		want = append(want, m.ID)
	}
	for _, limit := range []int{1, 10, 22, 23, 100} {
		for stop := 1; stop <= 24; stop++ {
			var got []string
			for after := ""; ; {
				n := 0
				next, err := h.q.WalkDead(ctx, limit, after, func(l Letter) bool {
					got, n = append(got, l.ID), n+1
					return n < stop
				})
				if err != nil {
					t.Fatal(err)
				}
				if after = next; after == "" {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("pages of %d, stopped after %d: %v", limit, stop, got)
			}
		}
	}
}
