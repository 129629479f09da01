package servers

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Kafka is a Kafka cluster of one broker: Apache Kafka in a process of its own,
// or kfake in this process where Apache Kafka is not to be had.
type Kafka struct {
	// Brokers is what BRIDGE_KAFKA_BROKERS takes.
	Brokers []string
	// Real says that it is Apache Kafka.
	Real bool

	real *javaKafka
	fake *fakeKafka
}

// KafkaEnv is the variable that chooses the broker of the tests: "kfake" never
// starts Apache Kafka, "real" fails where it cannot be started; anything else
// takes Apache Kafka if it can be had.
const KafkaEnv = "BRIDGE_TEST_KAFKA"

// NewKafka starts a broker of the test's own, with more broker properties
// ("message.max.bytes=100000") if given. It takes a few seconds: a test that
// does not stop or configure its broker uses SharedKafka.
func NewKafka(t testing.TB, properties ...string) *Kafka {
	t.Helper()
	jars, ok := kafkaJars(t)
	if !ok {
		logKfake(t)
		return newFakeKafka(t, fakeOptions(t, properties)...)
	}
	dir, err := os.MkdirTemp("", "kafka")
	if err != nil {
		t.Fatal(err)
	}
	k := newJavaKafka(jars, dir, properties)
	t.Cleanup(func() {
		k.real.kill()
		if t.Failed() {
			t.Logf("Kafka said:\n%s", k.real.said())
		}
		_ = os.RemoveAll(dir)
	})
	k.Start(t)
	return k
}

// KafkaPort as a property of NewKafka has Apache Kafka listen on a port that is
// known before it starts, for what has to be told of it.
func KafkaPort(port int) string { return kafkaPort + strconv.Itoa(port) }

const kafkaPort = "\x00port="

// shared is the broker of the whole test binary.
var shared struct {
	sync.Mutex
	kafka *Kafka
}

// SharedKafka returns the one broker that all tests of this test binary use,
// started by the first of them. It ends with the test binary, however that
// ends. Tests keep apart by topics and groups of their own names: see Topic.
func SharedKafka(t testing.TB) *Kafka {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	jars, ok := kafkaJars(t)
	if !ok {
		logKfake(t)
	}
	if shared.kafka != nil {
		return shared.kafka
	}
	if !ok {
		shared.kafka = startFakeKafka(t, fakeOptions(t, nil)...)
		return shared.kafka
	}
	dir, err := os.MkdirTemp("", "kafka")
	if err != nil {
		t.Fatal(err)
	}
	k := newJavaKafka(jars, dir, nil)
	if err := k.real.removeAtExit(); err != nil {
		t.Fatal(err)
	}
	k.Start(t)
	shared.kafka = k
	return k
}

// Start starts the broker again after Stop or Kill, on the same port with the
// same topics and groups.
func (k *Kafka) Start(t testing.TB) {
	t.Helper()
	if k.fake != nil {
		k.fake.start(t)
	} else {
		k.real.start(t)
		k.Brokers = []string{k.real.address()}
	}
	c := k.Client(t)
	defer c.Close()
	if !Eventually(func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		// The first to ask for a group's offsets waits for an internal topic to
		// be made and loaded; clients that are told "not yet" wait seconds.
		g := kmsg.NewOffsetFetchRequestGroup()
		g.Group = "warm-up"
		req := kmsg.NewPtrOffsetFetchRequest()
		req.Group, req.Groups = g.Group, append(req.Groups, g)
		resp, err := req.RequestWith(ctx, c)
		if err != nil {
			return false
		}
		code := resp.ErrorCode
		if len(resp.Groups) > 0 {
			code = resp.Groups[0].ErrorCode
		}
		return code == 0 || code == kerr.GroupIDNotFound.Code
	}) {
		t.Fatal("the Kafka broker did not answer in time")
	}
}

// Stop ends the broker as a deploy would: it closes its log cleanly.
func (k *Kafka) Stop() {
	if k.fake != nil {
		k.fake.stop()
		return
	}
	k.real.stop()
}

// Kill ends the broker as a crash would. What it had confirmed it still has
// after Start. kfake cannot crash: it stops.
func (k *Kafka) Kill() {
	if k.fake != nil {
		k.fake.stop()
		return
	}
	k.real.kill()
}

// Fake is the kfake cluster, for its control functions; nil on Apache Kafka.
func (k *Kafka) Fake() *kfake.Cluster {
	if k.fake == nil {
		return nil
	}
	return k.fake.cluster
}

// Client returns a franz-go client that is closed with the test.
func (k *Kafka) Client(t testing.TB, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(k.Brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0), kgo.MetadataMinAge(10 * time.Millisecond),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

var (
	notInTopic = regexp.MustCompile(`[^A-Za-z0-9._-]+`)
	topicCount atomic.Int64
)

// TopicName returns a name that no other test uses, for a topic or a group.
func TopicName(t testing.TB) string {
	name := notInTopic.ReplaceAllString(t.Name(), "-")
	if len(name) > 150 {
		name = name[:150]
	}
	return fmt.Sprintf("%s-%d", name, topicCount.Add(1))
}

// Topic creates a topic that no other test uses, with topic settings
// ("max.message.bytes=2000000") if given, and returns its name.
func (k *Kafka) Topic(t testing.TB, partitions int, settings ...string) string {
	t.Helper()
	name := TopicName(t)
	k.CreateTopic(t, name, partitions, settings...)
	return name
}

// CreateTopic creates a topic, and returns when its partitions can be written.
func (k *Kafka) CreateTopic(t testing.TB, name string, partitions int, settings ...string) {
	t.Helper()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = name, int32(partitions), 1
	for _, s := range settings {
		key, value, _ := strings.Cut(s, "=")
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = key, kmsg.StringPtr(value)
		topic.Configs = append(topic.Configs, c)
	}
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis, req.Topics = 10_000, append(req.Topics, topic)
	k.admin(t, "create topic "+name, func(c *kgo.Client, ctx context.Context) error {
		resp, err := req.RequestWith(ctx, c)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	})
	k.awaitPartitions(t, name, partitions)
}

// AddPartitions raises the number of a topic's partitions to total.
func (k *Kafka) AddPartitions(t testing.TB, name string, total int) {
	t.Helper()
	topic := kmsg.NewCreatePartitionsRequestTopic()
	topic.Topic, topic.Count = name, int32(total)
	req := kmsg.NewPtrCreatePartitionsRequest()
	req.TimeoutMillis, req.Topics = 10_000, append(req.Topics, topic)
	k.admin(t, "add partitions to "+name, func(c *kgo.Client, ctx context.Context) error {
		resp, err := req.RequestWith(ctx, c)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	})
	k.awaitPartitions(t, name, total)
}

// DeleteTopic deletes a topic, and returns when the broker knows it no more.
func (k *Kafka) DeleteTopic(t testing.TB, name string) {
	t.Helper()
	topic := kmsg.NewDeleteTopicsRequestTopic()
	topic.Topic = kmsg.StringPtr(name)
	req := kmsg.NewPtrDeleteTopicsRequest()
	req.TimeoutMillis, req.TopicNames, req.Topics = 10_000, []string{name}, append(req.Topics, topic)
	k.admin(t, "delete topic "+name, func(c *kgo.Client, ctx context.Context) error {
		resp, err := req.RequestWith(ctx, c)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	})
	k.awaitPartitions(t, name, 0)
}

// DeleteRecords deletes what a partition holds below offset, as retention does.
func (k *Kafka) DeleteRecords(t testing.TB, name string, partition int, offset int64) {
	t.Helper()
	p := kmsg.NewDeleteRecordsRequestTopicPartition()
	p.Partition, p.Offset = int32(partition), offset
	topic := kmsg.NewDeleteRecordsRequestTopic()
	topic.Topic, topic.Partitions = name, append(topic.Partitions, p)
	req := kmsg.NewPtrDeleteRecordsRequest()
	req.TimeoutMillis, req.Topics = 10_000, append(req.Topics, topic)
	k.admin(t, "delete records of "+name, func(c *kgo.Client, ctx context.Context) error {
		resp, err := req.RequestWith(ctx, c)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
	})
}

// Committed returns the offset that a group has committed, -1 for none.
func (k *Kafka) Committed(t testing.TB, group, name string, partition int) int64 {
	t.Helper()
	topic := kmsg.NewOffsetFetchRequestTopic()
	topic.Topic, topic.Partitions = name, []int32{int32(partition)}
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group, req.Topics = group, append(req.Topics, topic)
	g := kmsg.NewOffsetFetchRequestGroup()
	gt := kmsg.NewOffsetFetchRequestGroupTopic()
	gt.Topic, gt.Partitions = name, topic.Partitions
	g.Group, g.Topics = group, append(g.Topics, gt)
	req.Groups = append(req.Groups, g)
	offset := int64(-1)
	k.admin(t, "offsets of group "+group, func(c *kgo.Client, ctx context.Context) error {
		resp, err := req.RequestWith(ctx, c)
		if err != nil {
			return err
		}
		for _, g := range resp.Groups {
			if err := kerr.ErrorForCode(g.ErrorCode); err != nil {
				return err
			}
			for _, t := range g.Topics {
				for _, p := range t.Partitions {
					offset = p.Offset
				}
			}
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				offset = p.Offset
			}
		}
		return nil
	})
	return offset
}

// awaitPartitions waits until a topic has just so many partitions, each with a leader.
func (k *Kafka) awaitPartitions(t testing.TB, name string, partitions int) {
	t.Helper()
	c := k.Client(t)
	defer c.Close()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = kmsg.StringPtr(name)
	req := kmsg.NewPtrMetadataRequest()
	req.Topics, req.AllowAutoTopicCreation = append(req.Topics, topic), false
	if !Eventually(func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		resp, err := req.RequestWith(ctx, c)
		if err != nil {
			return false
		}
		led := 0
		for _, p := range resp.Topics[0].Partitions {
			if p.Leader >= 0 {
				led++
			}
		}
		return led == partitions
	}) {
		t.Fatalf("topic %s did not get to %d partitions in time", name, partitions)
	}
}

// admin runs a request again until it succeeds: a broker that has just started
// may not know its own controller yet.
func (k *Kafka) admin(t testing.TB, what string, do func(*kgo.Client, context.Context) error) {
	t.Helper()
	c := k.Client(t)
	defer c.Close()
	var err error
	if !Eventually(func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
		defer cancel()
		err = do(c, ctx)
		return err == nil
	}) {
		t.Fatalf("%s: %v", what, err)
	}
}

// HaveKafka says whether NewKafka and SharedKafka give Apache Kafka.
func HaveKafka(t testing.TB) bool {
	t.Helper()
	_, ok := kafkaJars(t)
	return ok
}
