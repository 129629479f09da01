package ingest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/test/servers"
)

// onKafkas runs a test on Apache Kafka, where it can be had, and on kfake.
func onKafkas(t *testing.T, test func(t *testing.T, k *servers.Kafka)) {
	t.Parallel() // they wait more than they work
	if k := servers.SharedKafka(t); k.Real {
		t.Run("kafka", func(t *testing.T) { test(t, k) })
	}
	t.Run("kfake", func(t *testing.T) { test(t, servers.NewKfake(t)) })
}

// kafkaQueue notes what is stored, and how often.
type kafkaQueue struct {
	mu     sync.Mutex
	stored map[delaybridge.Position][]delaybridge.Message
	marks  map[string]string
	// before is called before each store; an error fails all of it.
	before func(rs []delaybridge.Request) error
	change chan struct{}
}

func newKafkaQueue() *kafkaQueue {
	return &kafkaQueue{stored: map[delaybridge.Position][]delaybridge.Message{}, marks: map[string]string{}, change: make(chan struct{})}
}

func (q *kafkaQueue) Store(_ context.Context, rs []delaybridge.Request) []delaybridge.Result {
	results := make([]delaybridge.Result, len(rs))
	q.mu.Lock()
	before := q.before
	q.mu.Unlock()
	if before != nil {
		if err := before(rs); err != nil {
			for i := range results {
				results[i].Err = err
			}
			return results
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range rs {
		q.stored[r.Message.Position] = append(q.stored[r.Message.Position], r.Message)
	}
	close(q.change)
	q.change = make(chan struct{})
	return results
}

func (q *kafkaQueue) Pressure(context.Context) (delaybridge.Pressure, error) {
	return delaybridge.Pressure{}, nil
}

func (q *kafkaQueue) Incarnation(_ context.Context, source, mark string) (string, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if first, ok := q.marks[source]; ok && first != mark {
		return source + "@" + mark, nil
	}
	q.marks[source] = mark
	return source, nil
}

func (q *kafkaQueue) setBefore(f func([]delaybridge.Request) error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.before = f
}

// all returns what is stored by now.
func (q *kafkaQueue) all() map[delaybridge.Position][]delaybridge.Message {
	q.mu.Lock()
	defer q.mu.Unlock()
	return maps.Clone(q.stored)
}

// await returns what is stored once ok says that it is what the test waits for.
func (q *kafkaQueue) await(t *testing.T, what string, ok func(stored map[delaybridge.Position][]delaybridge.Message) bool) map[delaybridge.Position][]delaybridge.Message {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		q.mu.Lock()
		stored, change := maps.Clone(q.stored), q.change
		q.mu.Unlock()
		if ok(stored) {
			return stored
		}
		select {
		case <-change:
		case <-limit:
			t.Fatalf("%s did not come in time; %d positions stored: %v", what, len(stored), slices.SortedFunc(maps.Keys(stored), byPosition)[:min(20, len(stored))])
		}
	}
}

func byPosition(a, b delaybridge.Position) int { return strings.Compare(a.String(), b.String()) }

// awaitCount waits until n positions are stored.
func (q *kafkaQueue) awaitCount(t *testing.T, n int) map[delaybridge.Position][]delaybridge.Message {
	t.Helper()
	return q.await(t, fmt.Sprintf("%d records", n), func(s map[delaybridge.Position][]delaybridge.Message) bool { return len(s) >= n })
}

// member is one process's Kafka source.
type member struct {
	*ingest.Kafka
	stop func()
}

// read starts a source that reads topics into q. It is stopped with the test.
func read(t *testing.T, k *servers.Kafka, q ingest.Queue, group string, topics []string, changes ...func(*ingest.KafkaConfig)) *member {
	t.Helper()
	return readObserved(t, k, q, group, topics, nil, changes...)
}

// readObserved does the same, and has the outcomes told.
func readObserved(t *testing.T, k *servers.Kafka, q ingest.Queue, group string, topics []string, observe func(string, delaybridge.Outcome), changes ...func(*ingest.KafkaConfig)) *member {
	t.Helper()
	h := ingest.DefaultConfig()
	h.Queue, h.Decoder, h.Grace = q, newDecoder(t, nil), 2*time.Second
	h.RetryMax, h.Observe = 200*time.Millisecond, observe
	handler, err := ingest.NewHandler(h)
	if err != nil {
		t.Fatal(err)
	}
	cfg := ingest.DefaultKafkaConfig()
	cfg.Brokers, cfg.Topics, cfg.Group = k.Brokers, topics, group
	// A busy machine may not get to say anything for seconds.
	cfg.HeartbeatInterval, cfg.SessionTimeout, cfg.RebalanceTimeout = 100*time.Millisecond, 5*time.Second, 5*time.Second
	cfg.JoinBackoff, cfg.WatchInterval, cfg.CommitInterval = 100*time.Millisecond, 200*time.Millisecond, 10*time.Millisecond
	cfg.Log = zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel))
	for _, change := range changes {
		change(&cfg)
	}
	source, err := ingest.NewKafka(cfg, handler)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- source.Run(ctx) }()
	m := &member{Kafka: source, stop: sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("Run did not return in time")
		}
	})}
	t.Cleanup(m.stop)
	return m
}

// request returns a record that schedules value.
func request(topic string, partition int32, key, value []byte) *kgo.Record {
	return &kgo.Record{Topic: topic, Partition: partition, Key: key, Value: value, Headers: []kgo.RecordHeader{
		{Key: "Bridge-Target", Value: []byte("kafka://out")}, {Key: "Bridge-Delay", Value: []byte("1h")},
	}}
}

func produce(t *testing.T, c *kgo.Client, rs ...*kgo.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.ProduceSync(ctx, rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// produceN writes n records, the values their numbers from first on, to a partition.
func produceN(t *testing.T, c *kgo.Client, topic string, partition int32, first, n int) {
	t.Helper()
	rs := make([]*kgo.Record, n)
	for i := range rs {
		rs[i] = request(topic, partition, nil, []byte(strconv.Itoa(first+i)))
	}
	produce(t, c, rs...)
}

func awaitCommitted(t *testing.T, k *servers.Kafka, group, topic string, partition int, want int64) {
	t.Helper()
	var got int64
	if !servers.Eventually(func() bool { got = k.Committed(t, group, topic, partition); return got == want }) {
		t.Fatalf("partition %d committed to %d, want %d", partition, got, want)
	}
}

func at(topic string, partition int, offset uint64) delaybridge.Position {
	return delaybridge.Position{Source: fmt.Sprintf("kafka:%s:%d", topic, partition), Offset: offset}
}

// same reports whether a and b are equal, and both null or both not.
func same(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

func TestKafkaKeepsNullEmptyAndPresentApart(t *testing.T) {
	onKafkas(t, func(t *testing.T, k *servers.Kafka) {
		topic := k.Topic(t, 1)
		forms := [][]byte{nil, {}, []byte("present")}
		var rs []*kgo.Record
		for _, key := range forms {
			for _, value := range forms {
				r := request(topic, 0, key, value)
				r.Headers = append(r.Headers, kgo.RecordHeader{Key: "h", Value: key}, kgo.RecordHeader{Key: "h", Value: value}, kgo.RecordHeader{Key: ""})
				rs = append(rs, r)
			}
		}
		produce(t, k.Client(t), rs...)
		q := newKafkaQueue()
		read(t, k, q, topic, []string{topic})
		stored := q.awaitCount(t, 9)
		for i, r := range rs {
			m := stored[at(topic, 0, uint64(i))][0]
			if !same(m.Key, r.Key) || !same(m.Payload, r.Value) {
				t.Errorf("record %d: key %#v value %#v, want %#v %#v", i, m.Key, m.Payload, r.Key, r.Value)
			}
			want := []delaybridge.Header{{Name: "h", Value: r.Key}, {Name: "h", Value: r.Value}, {}}
			if !slices.EqualFunc(m.Headers, want, func(a, b delaybridge.Header) bool { return a.Name == b.Name && same(a.Value, b.Value) }) {
				t.Errorf("record %d: headers %#v, want %#v", i, m.Headers, want)
			}
			if m.ID != at(topic, 0, uint64(i)).String() {
				t.Errorf("record %d: id %q", i, m.ID)
			}
		}
	})
}

func TestKafkaTimestamps(t *testing.T) {
	onKafkas(t, func(t *testing.T, k *servers.Kafka) {
		written := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
		for setting, ok := range map[string]func(time.Time) bool{
			"message.timestamp.type=CreateTime":    func(at time.Time) bool { return at.Equal(written) },
			"message.timestamp.type=LogAppendTime": func(at time.Time) bool { return time.Since(at) < 30*time.Second },
		} {
			if !k.Real && strings.HasSuffix(setting, "LogAppendTime") {
				continue // kfake keeps the producer's time
			}
			topic := k.Topic(t, 1, setting)
			one, two := request(topic, 0, nil, []byte("1")), request(topic, 0, nil, []byte("2"))
			one.Timestamp, two.Timestamp = written, written
			produce(t, k.Client(t), one, two)
			q := newKafkaQueue()
			read(t, k, q, topic, []string{topic})
			for at, m := range q.awaitCount(t, 2) {
				if !ok(m[0].Scheduled) {
					t.Errorf("%s: %v counts from %v, written with %v", setting, at, m[0].Scheduled, written)
				}
			}
		}
	})
}

// B38 (segmentio/kafka-go#659, #1332): markers and aborted records looked like data.
func TestKafkaLeavesOutWhatWasAborted(t *testing.T) {
	onKafkas(t, func(t *testing.T, k *servers.Kafka) {
		topic := k.Topic(t, 1)
		a := k.Client(t, kgo.TransactionalID(topic+"-a"))
		b := k.Client(t, kgo.TransactionalID(topic+"-b"))
		plain := k.Client(t)
		in := func(c *kgo.Client, values ...string) {
			for _, v := range values {
				produce(t, c, request(topic, 0, nil, []byte(v)))
			}
		}
		begin := func(c *kgo.Client) {
			if err := c.BeginTransaction(); err != nil {
				t.Fatal(err)
			}
		}
		end := func(c *kgo.Client, how kgo.TransactionEndTry) {
			if err := c.EndTransaction(t.Context(), how); err != nil {
				t.Fatal(err)
			}
		}
		// Two producers and a plain one, mixed: an abort ends with its own
		// marker, and a transaction of the same producer after it counts.
		begin(a)
		in(a, "a1 aborted")
		begin(b)
		in(b, "b1")
		in(plain, "p1")
		in(a, "a2 aborted")
		end(a, kgo.TryAbort)
		begin(a)
		in(a, "a3")
		in(b, "b2")
		end(b, kgo.TryCommit)
		end(a, kgo.TryCommit)
		begin(b)
		in(b, "b3 aborted")
		in(plain, "p2")
		end(b, kgo.TryAbort)

		want := []string{"a3", "b1", "b2", "p1", "p2"}
		for _, bytes := range []int{1 << 20, 1} { // in one fetch, and batch by batch
			q := newKafkaQueue()
			group := fmt.Sprintf("%s-%d", topic, bytes)
			m := read(t, k, q, group, []string{topic}, func(c *ingest.KafkaConfig) { c.PartitionBytes = bytes })
			stored := q.awaitCount(t, len(want))
			awaitCommitted(t, k, group, topic, 0, 12) // 8 records and 4 markers
			m.stop()
			var got []string
			for _, ms := range stored {
				for _, m := range ms {
					got = append(got, string(m.Payload))
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("stored %q, want %q", got, want)
			}
			if lag := m.Lag(); lag["kafka://"+topic] != 0 {
				t.Errorf("lag %v", lag)
			}
		}
	})
}

func TestKafkaReadsEveryCompression(t *testing.T) {
	onKafkas(t, func(t *testing.T, k *servers.Kafka) {
		topic := k.Topic(t, 1)
		codecs := []kgo.CompressionCodec{kgo.GzipCompression(), kgo.SnappyCompression(), kgo.Lz4Compression(), kgo.ZstdCompression(), kgo.NoCompression()}
		for i, codec := range codecs {
			produceN(t, k.Client(t, kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(50*time.Millisecond)), topic, 0, i*100, 100)
		}
		q := newKafkaQueue()
		read(t, k, q, topic, []string{topic})
		stored := q.awaitCount(t, 500)
		for i := range 500 {
			if got := stored[at(topic, 0, uint64(i))]; len(got) != 1 || string(got[0].Payload) != strconv.Itoa(i) {
				t.Fatalf("offset %d: %v", i, got)
			}
		}
	})
}

// A fetch that begins in the middle of a batch brings records from before it.
func TestKafkaGoesOnInTheMiddleOfABatch(t *testing.T) {
	onKafkas(t, func(t *testing.T, k *servers.Kafka) {
		topic := k.Topic(t, 1)
		produceN(t, k.Client(t, kgo.ProducerLinger(50*time.Millisecond)), topic, 0, 0, 50)
		commit(t, k, topic, topic, 0, 20)
		q := newKafkaQueue()
		read(t, k, q, topic, []string{topic})
		awaitCommitted(t, k, topic, topic, 0, 50)
		stored := q.awaitCount(t, 30)
		if len(stored) != 30 || stored[at(topic, 0, 20)] == nil || stored[at(topic, 0, 19)] != nil {
			t.Errorf("stored %d records", len(stored))
		}
	})
}

// commit commits an offset as an operator's tool does.
func commit(t *testing.T, k *servers.Kafka, group, topic string, partition int32, offset int64) {
	t.Helper()
	c := k.Client(t, kgo.MaxVersions(kversion.V3_9_0())) // later ones want topic ids
	req := commitRequest(group, topic, partition, offset)
	resp, err := req.RequestWith(t.Context(), c)
	if err != nil || resp.Topics[0].Partitions[0].ErrorCode != 0 {
		t.Fatalf("commit: %v %+v", err, resp)
	}
}

// One message is larger than all the limits of a fetch, while another partition
// has more than enough to fill every one.
func TestKafkaReadsMessagesLargerThanTheLimits(t *testing.T) {
	onKafkas(t, func(t *testing.T, k *servers.Kafka) {
		const many = 1000
		topic := k.Topic(t, 2)
		c := k.Client(t)
		for i := range many / 2 { // a batch each
			produceN(t, c, topic, 0, 2*i, 2)
		}
		produceN(t, c, topic, 1, 0, 5)
		produce(t, c, request(topic, 1, nil, bytes.Repeat([]byte("x"), 200_000)))
		q := newKafkaQueue()
		ahead := make(chan int, 1) // how many of the other partition came before the large message
		others := 0
		q.setBefore(func(rs []delaybridge.Request) error {
			q.mu.Lock()
			defer q.mu.Unlock()
			for _, r := range rs {
				switch p := r.Message.Position; {
				case p.Source == at(topic, 0, 0).Source:
					others++
				case p == at(topic, 1, 5):
					select {
					case ahead <- others:
					default:
					}
				}
			}
			return nil
		})
		read(t, k, q, topic, []string{topic}, func(c *ingest.KafkaConfig) { c.PartitionBytes, c.MaxBytes = 300, 400 })
		stored := q.awaitCount(t, many+6)
		if got := len(stored[at(topic, 1, 5)][0].Payload); got != 200_000 {
			t.Errorf("%d bytes", got)
		}
		if <-ahead >= many {
			t.Error("the large message had to wait until the other partition was read to its end")
		}
	})
}

func TestKafkaCommitsWhatIsStoredWhenStopped(t *testing.T) {
	onKafkas(t, func(t *testing.T, k *servers.Kafka) {
		topic := k.Topic(t, 2)
		c := k.Client(t)
		q := newKafkaQueue()
		m := read(t, k, q, topic, []string{topic}, func(c *ingest.KafkaConfig) { c.CommitInterval = time.Hour })
		produceN(t, c, topic, 0, 0, 10)
		produceN(t, c, topic, 1, 0, 20)
		q.awaitCount(t, 30)
		m.stop()
		for p, want := range []int64{10, 20} {
			if got := k.Committed(t, topic, topic, p); got != want {
				t.Errorf("partition %d committed to %d, want %d", p, got, want)
			}
		}
		// It has left the group: another one need not wait for its session to end.
		produceN(t, c, topic, 0, 10, 1)
		q2 := newKafkaQueue()
		read(t, k, q2, topic, []string{topic})
		if stored := q2.awaitCount(t, 1); stored[at(topic, 0, 10)] == nil {
			t.Errorf("stored %v", stored)
		}
	})
}

// While the queue takes nothing, nothing is committed and the membership stays;
// afterwards everything is there.
func TestKafkaOutlastsTheQueue(t *testing.T) {
	onKafkas(t, func(t *testing.T, k *servers.Kafka) {
		topic := k.Topic(t, 1)
		c := k.Client(t)
		q := newKafkaQueue()
		tried := make(chan struct{}, 1000)
		q.setBefore(func([]delaybridge.Request) error {
			select {
			case tried <- struct{}{}:
			default:
			}
			return errors.New("Redis is away")
		})
		var session time.Duration
		read(t, k, q, topic, []string{topic}, func(c *ingest.KafkaConfig) { session = c.SessionTimeout })
		produceN(t, c, topic, 0, 0, 100)
		// Longer than a session: who says nothing is expelled.
		for begin := time.Now(); time.Since(begin) < session+time.Second; {
			<-tried
		}
		if got := k.Committed(t, topic, topic, 0); got != -1 {
			t.Errorf("committed to %d", got)
		}
		if got := members(t, k, topic); got != 1 {
			t.Errorf("%d members", got)
		}
		q.setBefore(nil)
		for at, ms := range q.awaitCount(t, 100) {
			if len(ms) != 1 {
				t.Errorf("%v stored %d times", at, len(ms))
			}
		}
		awaitCommitted(t, k, topic, topic, 0, 100)
	})
}

// Members come and go while records are written: each is stored, and no commit
// is ever ahead of what is stored.
func TestKafkaSharesPartitions(t *testing.T) {
	onKafkas(t, func(t *testing.T, k *servers.Kafka) {
		const partitions = 6
		topic := k.Topic(t, partitions)
		q := newKafkaQueue()
		q.setBefore(func([]delaybridge.Request) error { time.Sleep(2 * time.Millisecond); return nil })
		small := func(c *ingest.KafkaConfig) { c.Batch = 20 }
		var writers sync.WaitGroup
		changed, written := make(chan struct{}), make([]int, partitions)
		stopWriting := sync.OnceFunc(func() { close(changed); writers.Wait() })
		t.Cleanup(stopWriting)
		for p := range partitions {
			c := k.Client(t)
			writers.Go(func() {
				for {
					produceN(t, c, topic, int32(p), written[p], 20)
					written[p] += 20
					select {
					case <-changed:
						return
					case <-time.After(20 * time.Millisecond):
					}
				}
			})
		}
		check := func() {
			for p := range partitions {
				committed := k.Committed(t, topic, topic, p)
				q.mu.Lock()
				for o := range uint64(max(committed, 0)) {
					if q.stored[at(topic, p, o)] == nil {
						t.Errorf("partition %d is committed to %d, and offset %d is not stored", p, committed, o)
					}
				}
				q.mu.Unlock()
			}
		}
		awaitMembers := func(n int) {
			if !servers.Eventually(func() bool { return members(t, k, topic) == n }) {
				t.Fatalf("the group did not get to %d members", n)
			}
			q.awaitCount(t, len(q.all())+500)
			check()
		}
		one := read(t, k, q, topic, []string{topic}, small)
		awaitMembers(1)
		two := read(t, k, q, topic, []string{topic}, small)
		awaitMembers(2)
		read(t, k, q, topic, []string{topic}, small)
		awaitMembers(3)
		one.stop()
		awaitMembers(2)
		two.stop()
		awaitMembers(1)
		stopWriting()
		all := 0
		for p := range partitions {
			all += written[p]
			awaitCommitted(t, k, topic, topic, p, int64(written[p]))
		}
		stored := q.all()
		if len(stored) != all {
			t.Errorf("%d records stored, %d written", len(stored), all)
		}
		twice := 0
		for _, ms := range stored {
			twice += len(ms) - 1
		}
		t.Logf("%d of %d records were stored once more after a rebalance", twice, all)
	})
}

// A member that was expelled while it stored commits in vain: the next owner
// reads the records again.
//
// B39 (segmentio/kafka-go#1308, confluent-kafka-go#209): the late commit was accepted.
func TestKafkaRefusesALateCommit(t *testing.T) {
	onKafkas(t, func(t *testing.T, k *servers.Kafka) {
		topic := k.Topic(t, 1)
		c := k.Client(t)
		produceN(t, c, topic, 0, 0, 10)
		storing, goOn := make(chan struct{}), make(chan struct{})
		slow := newKafkaQueue()
		var once sync.Once
		slow.setBefore(func([]delaybridge.Request) error {
			once.Do(func() { close(storing) })
			<-goOn
			return nil
		})
		late := read(t, k, slow, topic, []string{topic})
		<-storing
		// Another comes, waits for the first to finish until the rebalance times
		// out, takes over, and reads but the half of it before it goes.
		q := newKafkaQueue()
		next := read(t, k, q, topic, []string{topic})
		q.awaitCount(t, 10)
		next.stop()
		commit(t, k, topic, topic, 0, 5)
		close(goOn)
		slow.awaitCount(t, 10)
		// The late one joins anew, reads the second half again, and goes on.
		produceN(t, c, topic, 0, 10, 1)
		slow.awaitCount(t, 11)
		awaitCommitted(t, k, topic, topic, 0, 11)
		late.stop()
		slow.mu.Lock()
		defer slow.mu.Unlock()
		for o := range uint64(10) {
			if got, want := len(slow.stored[at(topic, 0, o)]), 1+int(o/5); got != want {
				t.Errorf("offset %d stored %d times, want %d: a late commit was accepted", o, got, want)
			}
		}
	})
}

// B47 (segmentio/kafka-go#365): thousands of records were passed over with a line in the log.
func TestKafkaTellsWhenRetentionOvertakesIt(t *testing.T) {
	onKafkas(t, func(t *testing.T, k *servers.Kafka) {
		topic := k.Topic(t, 1)
		c := k.Client(t)
		produceN(t, c, topic, 0, 0, 100)
		commit(t, k, topic, topic, 0, 30)
		k.DeleteRecords(t, topic, 0, 60)
		q := newKafkaQueue()
		m := read(t, k, q, topic, []string{topic})
		stored := q.awaitCount(t, 40)
		if stored[at(topic, 0, 60)] == nil {
			t.Error("the first record that is left was not read")
		}
		if got := m.Skipped(); got != 30 {
			t.Errorf("skipped %d, want 30", got)
		}
		awaitCommitted(t, k, topic, topic, 0, 100)
		// While it runs, with everything deleted at its position.
		k.DeleteRecords(t, topic, 0, 100)
		produceN(t, c, topic, 0, 100, 1)
		q.awaitCount(t, 41)
		if got := m.Skipped(); got != 30 {
			t.Errorf("skipped %d, want 30 still", got)
		}
	})
}

func TestKafkaReadsATopicThatWasMadeAnew(t *testing.T) {
	again := func(topic string) string { return "kafka:" + topic + ":0@" }
	count := func(s map[delaybridge.Position][]delaybridge.Message, prefix string) (n int) {
		for p := range s {
			if strings.HasPrefix(p.Source, prefix) {
				n++
			}
		}
		return n
	}
	onKafkas(t, func(t *testing.T, k *servers.Kafka) {
		t.Run("while it runs", func(t *testing.T) {
			topic := k.Topic(t, 1)
			produceN(t, k.Client(t), topic, 0, 0, 10)
			q := newKafkaQueue()
			read(t, k, q, topic, []string{topic})
			q.awaitCount(t, 10)
			k.DeleteTopic(t, topic)
			k.CreateTopic(t, topic, 1)
			// More than before: no offset is out of range.
			produceN(t, k.Client(t), topic, 0, 100, 20)
			stored := q.awaitCount(t, 30)
			if got := count(stored, again(topic)); got != 20 {
				t.Errorf("%d records under the new name, want 20: %v", got, slices.SortedFunc(maps.Keys(stored), byPosition))
			}
			awaitCommitted(t, k, topic, topic, 0, 20)
		})
		t.Run("between two fetches", func(t *testing.T) {
			topic := k.Topic(t, 1)
			q := newKafkaQueue()
			read(t, k, q, topic, []string{topic}, func(c *ingest.KafkaConfig) { c.MaxWait = 50 * time.Millisecond })
			produceN(t, k.Client(t), topic, 0, 0, 10)
			q.awaitCount(t, 10)
			storing, goOn := make(chan struct{}), make(chan struct{})
			var once sync.Once
			q.setBefore(func([]delaybridge.Request) error {
				once.Do(func() { close(storing) })
				<-goOn
				return nil
			})
			produceN(t, k.Client(t), topic, 0, 10, 1)
			<-storing
			time.Sleep(time.Second) // the fetch that runs beside it has ended with nothing
			k.DeleteTopic(t, topic)
			k.CreateTopic(t, topic, 1)
			produceN(t, k.Client(t), topic, 0, 100, 20)
			close(goOn)
			stored := q.awaitCount(t, 31)
			if got := count(stored, again(topic)); got != 20 || len(stored) != 31 {
				t.Errorf("%d records under the new name, want 20, of %d: %v", got, len(stored), slices.SortedFunc(maps.Keys(stored), byPosition))
			}
			awaitCommitted(t, k, topic, topic, 0, 20)
		})
		t.Run("while it is away, with the old offsets still committed", func(t *testing.T) {
			topic := k.Topic(t, 1)
			produceN(t, k.Client(t), topic, 0, 0, 10)
			q := newKafkaQueue()
			m := read(t, k, q, topic, []string{topic})
			q.awaitCount(t, 10)
			awaitCommitted(t, k, topic, topic, 0, 10)
			mark := committedMark(t, k, topic, topic)
			m.stop()
			k.DeleteTopic(t, topic)
			k.CreateTopic(t, topic, 1)
			produceN(t, k.Client(t), topic, 0, 100, 20)
			req := commitRequest(topic, topic, 0, 10)
			req.Topics[0].Partitions[0].Metadata = &mark
			if _, err := req.RequestWith(t.Context(), k.Client(t, kgo.MaxVersions(kversion.V3_9_0()))); err != nil {
				t.Fatal(err)
			}
			if got := k.Committed(t, topic, topic, 0); got != 10 {
				t.Fatalf("committed to %d, want 10", got)
			}
			read(t, k, q, topic, []string{topic})
			stored := q.awaitCount(t, 30)
			if got := count(stored, again(topic)); got != 20 {
				t.Errorf("%d records under the new name, want 20", got)
			}
		})
	})
}

// A topic that does not exist is waited for without a storm of joins, and is
// not created by asking for it; a second topic does not wait for it.
func TestKafkaWaitsForAMissingTopic(t *testing.T) {
	onKafkas(t, func(t *testing.T, k *servers.Kafka) {
		there, missing := k.Topic(t, 1), servers.TopicName(t)
		produceN(t, k.Client(t), there, 0, 0, 1)
		joins, autos := countRequests(k)
		q := newKafkaQueue()
		read(t, k, q, there, []string{missing, there})
		q.awaitCount(t, 1)
		time.Sleep(2 * time.Second)
		if k.Fake() != nil && (joins() > 2 || autos() > 2) {
			t.Errorf("%d joins, %d metadata requests that create topics", joins(), autos())
		}
		k.CreateTopic(t, missing, 2)
		produceN(t, k.Client(t), missing, 1, 0, 1)
		produceN(t, k.Client(t), there, 0, 1, 1)
		q.awaitCount(t, 3)
		k.DeleteTopic(t, missing)
		produceN(t, k.Client(t), there, 0, 2, 1)
		q.awaitCount(t, 4)
		if k.Fake() != nil && joins() > 12 {
			t.Errorf("%d joins", joins())
		}
	})
}

func TestKafkaSeesNewPartitions(t *testing.T) {
	onKafkas(t, func(t *testing.T, k *servers.Kafka) {
		topic := k.Topic(t, 1)
		q := newKafkaQueue()
		read(t, k, q, topic, []string{topic})
		read(t, k, q, topic, []string{topic})
		produceN(t, k.Client(t), topic, 0, 0, 1)
		q.awaitCount(t, 1)
		k.AddPartitions(t, topic, 4)
		c := k.Client(t)
		for p := range int32(4) {
			produceN(t, c, topic, p, 1, 1)
		}
		q.awaitCount(t, 5)
	})
}

func TestKafkaOutlastsTheBroker(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) *servers.Kafka{
		"NewKafka": func(t *testing.T) *servers.Kafka { return servers.NewKafka(t) },
		"kfake":    func(t *testing.T) *servers.Kafka { return servers.NewKfake(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := start(t)
			topic := k.Topic(t, 2)
			q := newKafkaQueue()
			m := read(t, k, q, topic, []string{topic})
			produceN(t, k.Client(t), topic, 0, 0, 10)
			q.awaitCount(t, 10)
			k.Kill()
			if !servers.Eventually(func() bool { return !m.Connected() }) {
				t.Error("it does not say that it is not connected")
			}
			k.Start(t)
			produceN(t, k.Client(t), topic, 1, 0, 10)
			q.awaitCount(t, 20)
			if !m.Connected() {
				t.Error("it does not say that it is connected")
			}
			awaitCommitted(t, k, topic, topic, 1, 10)
			if n := len(q.all()); n != 20 {
				t.Errorf("%d positions, want 20", n)
			}
		})
	}
}
