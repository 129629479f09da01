package test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"delaybridge/test/servers"
)

// TestKafkaTransactions has a transactional producer commit twice and abort
// once, with a plain producer between. What was aborted is no message, nor are
// the markers that end transactions.
//
// segmentio/kafka-go#659, #1332: both looked like data (B38).
func TestKafkaTransactions(t *testing.T) {
	t.Parallel()
	w := newKafkaWorld(t, 1)
	w.run(t, nil)
	producer := w.kafka.Client(t, kgo.TransactionalID(w.in))
	for _, tx := range []struct {
		name string
		end  kgo.TransactionEndTry
	}{{"first", kgo.TryCommit}, {"aborted", kgo.TryAbort}, {"second", kgo.TryCommit}} {
		if err := producer.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			r := request(fmt.Sprint(tx.name, "-", i), "Bridge-Target: kafka://"+w.out, "Bridge-Delay: 500ms")
			r.Topic = w.in
			if err := producer.ProduceSync(t.Context(), r).FirstErr(); err != nil {
				t.Fatal(err)
			}
			// An open transaction holds back what is written behind it.
			w.send(t, request(fmt.Sprint("plain-", tx.name, "-", i), "Bridge-Target: kafka://"+w.out, "Bridge-Delay: 500ms"))
		}
		if err := producer.EndTransaction(t.Context(), tx.end); err != nil {
			t.Fatal(err)
		}
	}
	log := w.watch(t, w.out)
	w.send(t, request("last", "Bridge-Target: kafka://"+w.out, "Bridge-Delay: 1s"))
	log.await(t, "last")
	w.awaitEmpty(t) // there are no dead letters either

	want := []string{"last"}
	for i := range 3 {
		for _, name := range []string{"first", "second", "plain-first", "plain-aborted", "plain-second"} {
			want = append(want, fmt.Sprint(name, "-", i))
		}
	}
	got := valuesOf(log.all())
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("arrived:\n%q, want\n%q", got, want)
	}
}

// TestKafkaReplayedSource sets the group's offsets back to the start of the
// source while no bridge runs: of what was delivered, cancelled, replaced or is
// still pending, nothing comes again or back.
//
// B13 (etf1/kafka-message-scheduler#44): a rescan at midnight sent everything again.
// B39 (segmentio/kafka-go#1308): what is read twice is scheduled once.
func TestKafkaReplayedSource(t *testing.T) {
	t.Parallel()
	const messages, partitions = 200, 3
	w := newKafkaWorld(t, partitions)
	log := w.watch(t, w.out)
	p := w.run(t, nil)
	var records []*kgo.Record
	add := func(value string, headers ...string) {
		r := request(value, append(headers, "Bridge-Target: kafka://"+w.out)...)
		r.Partition = int32(len(records) % partitions)
		records = append(records, r)
	}
	for i := range messages {
		headers := []string{fmt.Sprintf("Bridge-Delay: %dms", i*5)}
		if i%2 == 0 {
			headers = append(headers, fmt.Sprint("Bridge-Id: own-", i))
		}
		add(fmt.Sprint("m-", i), headers...)
	}
	// All in one partition, since positions order only what comes from the same.
	records = append(records,
		request("cancelled", "Bridge-Target: kafka://"+w.out, "Bridge-Delay: 8s", "Bridge-Id: cancelled"),
		request("", "Bridge-Op: cancel", "Bridge-Id: cancelled"),
		request("replaced", "Bridge-Target: kafka://"+w.out, "Bridge-Delay: 8s", "Bridge-Id: replaced"),
		request("replaces", "Bridge-Target: kafka://"+w.out, "Bridge-Delay: 1s", "Bridge-Id: replaced"),
		request("pending", "Bridge-Target: kafka://"+w.out, "Bridge-Delay: 10s", "Bridge-Id: pending"),
		request("rejected", "Bridge-Delay: 5"))
	w.send(t, records...)
	const delivered = messages + 1
	log.awaitCount(t, delivered)

	p.Signal(syscall.SIGTERM)
	if code := p.Exit(t); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	ends := ends(records, partitions)
	if got := w.committed(t, partitions); !slices.Equal(got, ends) {
		t.Errorf("committed %v after an orderly stop; the ends are %v", got, ends)
	}
	w.resetOffsets(t, w.in, partitions)
	if got := w.committed(t, partitions); !slices.Equal(got, make([]int64, partitions)) {
		t.Fatalf("committed %v after the reset", got)
	}

	w.run(t, nil)
	var got []int64
	if !servers.Eventually(func() bool { got = w.committed(t, partitions); return slices.Equal(got, ends) }) {
		t.Fatalf("the source was not read again: committed %v of %v", got, ends)
	}
	last := log.await(t, "pending")
	// "pending" is due later than anything that could have come back.
	if late := headerTime(t, last.Record, "Bridge-Due-At"); time.Now().Before(late) {
		t.Errorf("it arrived before %v", late)
	}
	seen := map[string]int{}
	for _, r := range log.all() {
		seen[string(r.Value)]++
	}
	for value, n := range seen {
		if n > 1 || value == "cancelled" || value == "replaced" {
			t.Errorf("%q arrived %d times", value, n)
		}
	}
	if len(seen) != delivered+1 {
		t.Errorf("%d different messages arrived, not %d", len(seen), delivered+1)
	}
	stats := decode(t, Run(t, w.env, "", "stats", "-o", "json").Stdout)
	if dead := stats["dead"].(map[string]any)["rejected"]; dead != float64(1) {
		t.Errorf("the rejected record is %v dead letters", dead)
	}
}

// ends returns the offsets behind the last of some records that were sent.
func ends(records []*kgo.Record, partitions int) []int64 {
	ends := make([]int64, partitions)
	for _, r := range records {
		ends[r.Partition] = max(ends[r.Partition], r.Offset+1)
	}
	return ends
}

func (w *kafkaWorld) committed(t *testing.T, partitions int) []int64 {
	t.Helper()
	offsets := make([]int64, partitions)
	for p := range offsets {
		offsets[p] = w.kafka.Committed(t, w.group, w.in, p)
	}
	return offsets
}
