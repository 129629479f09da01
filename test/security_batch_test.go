package test

import (
	"context"
	bigEndian "encoding/binary"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"delaybridge/test/servers"
)

// TestBatchesThatMakeNoSense has a producer of his own send batches that some brokers
// take without a look into them. What others send behind them is delivered, they are
// kept, and they take no memory.
func TestBatchesThatMakeNoSense(t *testing.T) {
	t.Parallel()
	k := servers.NewKfake(t) // Apache Kafka refuses all of these
	in, out := k.Topic(t, 1), k.Topic(t, 1)
	env := Env{"REDIS_URL": servers.NewRedis(t).URL, "KAFKA_BROKERS": strings.Join(k.Brokers, ","),
		"KAFKA_INGEST_TOPICS": in, "KAFKA_INGEST_GROUP": servers.TopicName(t)}
	client, producer := k.Client(t, kgo.MaxVersions(kversion.V3_0_0())), k.Client(t)
	send := func(attributes int16, count int32, body []byte) {
		t.Helper()
		batch := kmsg.RecordBatch{
			PartitionLeaderEpoch: -1, Magic: 2, Attributes: attributes, LastOffsetDelta: count - 1,
			ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: count, Records: body,
		}
		raw := batch.AppendTo(nil)
		bigEndian.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
		bigEndian.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
		req := kmsg.NewPtrProduceRequest()
		req.Acks, req.TimeoutMillis = -1, 10_000
		topic, partition := kmsg.NewProduceRequestTopic(), kmsg.NewProduceRequestTopicPartition()
		topic.Topic, partition.Records = in, raw
		topic.Partitions = append(topic.Partitions, partition)
		req.Topics = append(req.Topics, topic)
		res, err := req.RequestWith(context.Background(), client)
		if err == nil {
			err = kerr.ErrorForCode(res.Topics[0].Partitions[0].ErrorCode)
		}
		if err != nil {
			t.Fatalf("produce: %v", err)
		}
	}
	good := func(name string) {
		t.Helper()
		r := request(name, "Bridge-Target: kafka://"+out, "Bridge-Delay: 0s", "Bridge-Id: "+name)
		r.Topic = in
		if err := producer.ProduceSync(context.Background(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	const gzip, snappy, lz4, zstd = 1, 2, 3, 4
	zeros := make([]byte, 200)
	sent := 0
	for _, b := range []struct {
		attributes int16
		count      int32
		body       []byte
	}{
		{0, 3, []byte("no records")}, {gzip, 2, []byte("no gzip")}, {lz4, 1, nil},
		{snappy, 1, append([]byte{0xf0, 0xff, 0xff, 0xff, 0x0e}, zeros...)},                                     // 4 GiB, it says
		{snappy, 1, append([]byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01\xff\xff\xff\xf0"), zeros...)}, // and so does this one
		{zstd, 1, append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0x00, 19 << 3, 0x01, 0x00, 0x00}, zeros...)},            // 512 MiB
		{0, 2, []byte{14, 0, 0, 0, 1, 2, 'a', 0, 14, 0, 0, 0xd0, 0x0f, 1, 2, 'b', 0}},                           // the second offset is a thousand ahead
	} {
		send(b.attributes, b.count, b.body)
		sent++
	}
	good("behind")
	p := Serve(t, env)
	memory := watchMemory(t, p)
	if !servers.Eventually(func() bool { return strings.Contains(Run(t, env, "", "get", "behind").Stdout, "delivered") }) {
		t.Errorf("what is behind them was not delivered:\n%s", p.Output())
	}
	for i := range 3 {
		good("later" + string(rune('0'+i)))
	}
	if !servers.Eventually(func() bool { return strings.Contains(Run(t, env, "", "get", "later2").Stdout, "delivered") }) {
		t.Errorf("what came later was not delivered:\n%s", p.Output())
	}
	list := Run(t, env, "", "dead", "list", "-o", "json")
	if n := strings.Count(list.Stdout, "invalid_batch"); n != sent {
		t.Errorf("%d of %d batches were kept: %s", n, sent, list.Stdout)
	}
	if r := Run(t, env, "", "dead", "replay", "--all"); !strings.Contains(r.Stderr, "not read as a whole") {
		t.Errorf("replay: %+v", r)
	}
	if most := memory.most.Load(); most > 400<<20 && !raceEnabled {
		t.Errorf("it took %d MiB", most>>20)
	}
}
