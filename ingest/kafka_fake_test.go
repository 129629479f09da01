package ingest_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"delaybridge/ingest"
	"delaybridge/test/servers"
)

func commitRequest(group, topic string, partition int32, offset int64) *kmsg.OffsetCommitRequest {
	p := kmsg.NewOffsetCommitRequestTopicPartition()
	p.Partition, p.Offset = partition, offset
	rt := kmsg.NewOffsetCommitRequestTopic()
	rt.Topic, rt.Partitions = topic, append(rt.Partitions, p)
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Topics = group, append(req.Topics, rt)
	return req
}

// committedMark returns the metadata of the commit of partition 0.
func committedMark(t *testing.T, k *servers.Kafka, group, topic string) string {
	t.Helper()
	rt := kmsg.NewOffsetFetchRequestTopic()
	rt.Topic, rt.Partitions = topic, []int32{0}
	gt := kmsg.NewOffsetFetchRequestGroupTopic()
	gt.Topic, gt.Partitions = topic, []int32{0}
	g := kmsg.NewOffsetFetchRequestGroup()
	g.Group, g.Topics = group, append(g.Topics, gt)
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group, req.Topics, req.Groups = group, append(req.Topics, rt), append(req.Groups, g)
	resp, err := req.RequestWith(t.Context(), k.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	mark := resp.Groups[0].Topics[0].Partitions[0].Metadata
	if mark == nil || *mark == "" {
		t.Fatal("the commit says nothing of the topic's incarnation")
	}
	return *mark
}

// members returns how many members a group has, -1 while it is about to change.
func members(t *testing.T, k *servers.Kafka, group string) int {
	t.Helper()
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{group}
	resp, err := req.RequestWith(t.Context(), k.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	if g := resp.Groups[0]; g.State == "Stable" {
		return len(g.Members)
	}
	return -1
}

// countRequests counts a kfake's join requests, and the metadata requests that
// would create topics.
func countRequests(k *servers.Kafka) (joins, autos func() int64) {
	var nj, na atomic.Int64
	if c := k.Fake(); c != nil {
		c.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			nj.Add(1)
			return nil, nil, false
		})
		c.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
			c.KeepControl()
			if r.(*kmsg.MetadataRequest).AllowAutoTopicCreation {
				na.Add(1)
			}
			return nil, nil, false
		})
	}
	return nj.Load, na.Load
}

// An idle source asks again only when a fetch has waited for MaxWait, and what
// comes in ends the wait.
func TestKafkaDoesNotPoll(t *testing.T) {
	t.Parallel()
	k := servers.NewKfake(t)
	var fetches atomic.Int64
	c := k.Fake()
	c.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		fetches.Add(1)
		return nil, nil, false
	})
	topic := k.Topic(t, 4)
	q := newKafkaQueue()
	read(t, k, q, topic, []string{topic}, func(c *ingest.KafkaConfig) { c.MaxWait = time.Second })
	produceN(t, k.Client(t), topic, 0, 0, 1)
	q.awaitCount(t, 1)
	before := fetches.Load()
	time.Sleep(2 * time.Second)
	if n := fetches.Load() - before; n > 20 {
		t.Errorf("%d fetches in 2s with nothing to read", n)
	}
	writer := k.Client(t)
	begin := time.Now()
	const more = 60 // by polling alone they would take about a minute
	for i := range more {
		produceN(t, writer, topic, int32(i%4), 1+i, 1)
		q.awaitCount(t, 2+i)
	}
	if d := time.Since(begin); d > more*time.Second*3/4 {
		t.Errorf("%d records, one after another, took %v: each waited for the end of a fetch", more, d)
	}
}

func TestKafkaFollowsLeaders(t *testing.T) {
	t.Parallel()
	k := servers.NewKfake(t, kfake.NumBrokers(3))
	topic := k.Topic(t, 6)
	q := newKafkaQueue()
	read(t, k, q, topic, []string{topic})
	c := k.Client(t)
	for round := range 5 {
		for p := range int32(6) {
			produceN(t, c, topic, p, 10*round, 10)
		}
		q.awaitCount(t, 60*(round+1))
		for p := range int32(6) {
			if err := k.Fake().MoveTopicPartition(topic, p, (p+int32(round))%3); err != nil {
				t.Fatal(err)
			}
		}
	}
	for p := range 6 {
		awaitCommitted(t, k, topic, topic, p, 50)
	}
	for at, ms := range q.all() {
		if len(ms) != 1 {
			t.Errorf("%v stored %d times", at, len(ms))
		}
	}
}

// The compactor takes the last records of the last batch: the position goes on
// behind it all the same, and the lag ends at zero.
func TestKafkaGoesOnBehindACompactedBatch(t *testing.T) {
	t.Parallel()
	k := servers.NewKfake(t)
	topic := k.Topic(t, 1, "cleanup.policy=compact", "segment.bytes=1000")
	c := k.Client(t, kgo.ProducerLinger(50*time.Millisecond))
	produce(t, c, request(topic, 0, []byte("a"), []byte("1")), request(topic, 0, []byte("b"), []byte("1")), request(topic, 0, []byte("c"), make([]byte, 2000)))
	produce(t, c, request(topic, 0, []byte("b"), make([]byte, 2000)), request(topic, 0, []byte("c"), []byte("2")))
	produce(t, c, request(topic, 0, []byte("c"), []byte("3")))
	k.Fake().Compact()
	q := newKafkaQueue()
	// Batch by batch, so that nothing is learnt from the next one.
	m := read(t, k, q, topic, []string{topic}, func(c *ingest.KafkaConfig) { c.PartitionBytes = 1 })
	awaitCommitted(t, k, topic, topic, 0, 6)
	if lag := m.Lag()["kafka://"+topic]; lag != 0 {
		t.Errorf("lag %d", lag)
	}
	t.Logf("%d records of 6 are left", len(q.all()))
}

// Brokers of before Kafka 2.8 have no topic ids.
func TestKafkaOfBeforeTopicIDs(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]*kversion.Versions{"0.11": kversion.V0_11_0(), "1.0": kversion.V1_0_0(), "2.4": kversion.V2_4_0(), "2.7": kversion.V2_7_0()} {
		t.Run(name, func(t *testing.T) {
			k := servers.NewKfake(t, kfake.MaxVersions(v))
			topic := k.Topic(t, 2)
			q := newKafkaQueue()
			read(t, k, q, topic, []string{topic})
			c := k.Client(t)
			produceN(t, c, topic, 0, 0, 10)
			produceN(t, c, topic, 1, 0, 10)
			q.awaitCount(t, 20)
			awaitCommitted(t, k, topic, topic, 0, 10)
			// A new topic is found out by its end, which is before the position.
			if err := k.Fake().DeleteTopic(topic); err != nil {
				t.Fatal(err)
			}
			if err := k.Fake().CreateTopic(topic, 2, nil); err != nil {
				t.Fatal(err)
			}
			produceN(t, k.Client(t), topic, 0, 0, 5)
			q.awaitCount(t, 25)
		})
	}
}

// A leader that lost the end of its log gives the offsets of it again: the
// records of its own time are new ones, those of before are not read twice.
func TestKafkaReadsOffsetsThatAreGivenAgain(t *testing.T) {
	t.Parallel()
	k := servers.NewKfake(t)
	topic := k.Topic(t, 1)
	f := k.Fake()
	if err := f.MoveTopicPartition(topic, 0, 0); err != nil { // its epoch is not the first
		t.Fatal(err)
	}
	c := k.Client(t)
	produceN(t, c, topic, 0, 0, 10)
	q := newKafkaQueue()
	read(t, k, q, topic, []string{topic})
	q.awaitCount(t, 10)
	awaitCommitted(t, k, topic, topic, 0, 10)

	// kfake cannot lose anything, so it is made to say so. A leader that has moved
	// comes first, as it does then.
	says := []int16{kerr.NotLeaderForPartition.Code, kerr.OffsetOutOfRange.Code}
	var fetched atomic.Int64
	f.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		req := r.(*kmsg.FetchRequest)
		n := int(fetched.Add(1))
		if n > len(says) {
			return nil, nil, false
		}
		if n < len(says) {
			f.KeepControl()
		}
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic, rt.TopicID = req.Topics[0].Topic, req.Topics[0].TopicID
		rp := kmsg.NewFetchResponseTopicPartition()
		rp.ErrorCode = says[n-1]
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	var listed atomic.Int64
	f.ControlKey(int16(kmsg.ListOffsets), func(r kmsg.Request) (kmsg.Response, error, bool) {
		req := r.(*kmsg.ListOffsetsRequest)
		if listed.Add(1) < 2 {
			f.KeepControl()
		}
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		rt := kmsg.NewListOffsetsResponseTopic()
		rt.Topic = topic
		rp := kmsg.NewListOffsetsResponseTopicPartition()
		if req.Topics[0].Partitions[0].Timestamp == -1 {
			rp.Offset = 7
		} else {
			rp.Offset = 0
		}
		rt.Partitions = append(rt.Partitions, rp)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	if err := f.MoveTopicPartition(topic, 0, 0); err != nil { // a later epoch
		t.Fatal(err)
	}
	produceN(t, c, topic, 0, 10, 5)
	stored := q.awaitCount(t, 15)
	for p := range stored {
		if (p.Offset >= 10) != (p.Source != "kafka:"+topic+":0") {
			t.Errorf("stored %v", p)
		}
	}
	awaitCommitted(t, k, topic, topic, 0, 15)
}
