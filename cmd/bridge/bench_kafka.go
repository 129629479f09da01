package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	saslaws "github.com/twmb/franz-go/pkg/sasl/aws"
	saslplain "github.com/twmb/franz-go/pkg/sasl/plain"
	saslscram "github.com/twmb/franz-go/pkg/sasl/scram"

	"delaybridge"
)

// benchKafka is the lane of Kafka. The target's records bear the broker's time,
// which the bridge's own client does not read: this one does.
type benchKafka struct {
	b       *benchRun
	client  *kgo.Client
	options []kgo.Opt
	in, out string // topics
}

func newBenchKafka(ctx context.Context, b *benchRun) (*benchKafka, error) {
	k := &benchKafka{b: b, in: b.name + ".in", out: b.name + ".out"}
	k.options = []kgo.Opt{
		kgo.SeedBrokers(b.settings.Kafka.Brokers...), kgo.ClientID(kafkaClientID + "-bench"),
		kgo.RecordDeliveryTimeout(time.Duration(b.settings.PublishTimeout)), kgo.RetryTimeout(10 * time.Second),
		kgo.MaxBufferedRecords(20_000),
	}
	if b.settings.kafkaUsesTLS() {
		k.options = append(k.options, kgo.Dialer(b.settings.kafkaTLS().dial))
	}
	if m := b.settings.benchSASL(); m != nil {
		k.options = append(k.options, kgo.SASL(m))
	}
	var err error
	if k.client, err = kgo.NewClient(k.options...); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	reaching, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := k.client.Ping(reaching); err != nil {
		k.client.Close()
		return nil, fmt.Errorf("kafka at %s (BRIDGE_KAFKA_BROKERS): no broker answers: %w", strings.Join(b.settings.Kafka.Brokers, ","), err)
	}
	return k, nil
}

// benchSASL is kafkaSASL for the client of the measurement, nil for none.
func (s *Settings) benchSASL() sasl.Mechanism {
	k := &s.Kafka.SASL
	user, password := string(k.Username), string(k.Password)
	switch k.Mechanism {
	case saslPlain:
		return saslplain.Auth{User: user, Pass: password}.AsMechanism()
	case saslScramSHA256:
		return saslscram.Auth{User: user, Pass: password}.AsSha256Mechanism()
	case saslScramSHA512:
		return saslscram.Auth{User: user, Pass: password}.AsSha512Mechanism()
	case saslMSKIAM:
		return saslaws.ManagedStreamingIAM(func(ctx context.Context) (saslaws.Auth, error) {
			c, err := awsconfig.LoadDefaultConfig(ctx)
			if err != nil {
				return saslaws.Auth{}, err
			}
			v, err := c.Credentials.Retrieve(ctx)
			return saslaws.Auth{AccessKey: v.AccessKeyID, SecretKey: v.SecretAccessKey, SessionToken: v.SessionToken}, err
		})
	}
	return nil
}

func (k *benchKafka) create(ctx context.Context) (made []string, err error) {
	topics := []string{k.out}
	if k.b.path == pathFull {
		topics = append(topics, k.in)
	}
	request := kmsg.NewPtrCreateTopicsRequest()
	request.TimeoutMillis = 10_000
	for _, name := range topics {
		t := kmsg.NewCreateTopicsRequestTopic()
		t.Topic, t.NumPartitions, t.ReplicationFactor = name, int32(k.b.partitions), -1
		if k.b.replicas > 0 {
			t.ReplicationFactor = int16(k.b.replicas)
		}
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = "message.timestamp.type", kmsg.StringPtr("LogAppendTime")
		t.Configs = append(t.Configs, c)
		request.Topics = append(request.Topics, t)
	}
	response, err := request.RequestWith(ctx, k.client)
	if err != nil {
		return nil, fmt.Errorf("make topics %s: %w", strings.Join(topics, ", "), err)
	}
	for _, t := range response.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			said := ""
			if t.ErrorMessage != nil {
				said = ": " + *t.ErrorMessage
			}
			return made, fmt.Errorf("make topic %s: %w%s", t.Topic, err, said)
		}
		made = append(made, "topic "+t.Topic)
	}
	return made, nil
}

func (k *benchKafka) targets() []delaybridge.Target {
	return []delaybridge.Target{{Sink: delaybridge.SinkKafka, Name: k.out}}
}

func (k *benchKafka) settings() map[string]string {
	return map[string]string{"KAFKA_INGEST_TOPICS": k.in, "KAFKA_INGEST_GROUP": k.b.name}
}

func (k *benchKafka) publish(ctx context.Context, count int, over, delay time.Duration, payload []byte, done *counter) error {
	target := []byte(k.targets()[0].String())
	after := []byte(strconv.FormatInt(delay.Milliseconds(), 10) + "ms")
	var once sync.Once
	var failed error
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	for i := range count {
		if pace(ctx, began, over, i, count) != nil {
			break
		}
		k.client.Produce(ctx, &kgo.Record{Topic: k.in, Value: payload, Headers: []kgo.RecordHeader{
			{Key: "Bridge-Target", Value: target}, {Key: "Bridge-Delay", Value: after},
		}}, func(_ *kgo.Record, err error) {
			if err != nil {
				once.Do(func() { failed = fmt.Errorf("publish to %s: %w", k.in, err); cancel() })
				return
			}
			done.add(1)
		})
	}
	if err := k.client.Flush(ctx); err != nil && failed == nil {
		return err
	}
	return failed
}

// ends tells the next offset of each partition of the target.
func (k *benchKafka) ends(ctx context.Context) (map[int32]int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request := kmsg.NewPtrListOffsetsRequest()
	t := kmsg.NewListOffsetsRequestTopic()
	t.Topic = k.out
	for p := range k.b.partitions {
		part := kmsg.NewListOffsetsRequestTopicPartition()
		part.Partition, part.Timestamp = int32(p), -1
		t.Partitions = append(t.Partitions, part)
	}
	request.Topics = append(request.Topics, t)
	ends := map[int32]int64{}
	var err error
	for _, shard := range k.client.RequestSharded(ctx, request) {
		if shard.Err != nil {
			err = shard.Err
			continue
		}
		for _, t := range shard.Resp.(*kmsg.ListOffsetsResponse).Topics {
			for _, p := range t.Partitions {
				if e := kerr.ErrorForCode(p.ErrorCode); e != nil {
					err = e
					continue
				}
				ends[p.Partition] = p.Offset
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("look at topic %s: %w", k.out, err)
	}
	return ends, nil
}

func (k *benchKafka) arrived(ctx context.Context) (n int64, err error) {
	ends, err := k.ends(ctx)
	for _, end := range ends {
		n += end
	}
	return n, err
}

func (k *benchKafka) read(ctx context.Context, each func(arrival)) error {
	ends, err := k.ends(ctx)
	if err != nil {
		return err
	}
	left := int64(0)
	starts := map[int32]kgo.Offset{}
	for p, end := range ends {
		if end > 0 {
			starts[p] = kgo.NewOffset().AtStart()
			left += end
		}
	}
	reader, err := kgo.NewClient(append(k.options, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{k.out: starts}))...)
	if err != nil {
		return err
	}
	defer reader.Close()
	for left > 0 {
		fetches := reader.PollFetches(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if errs := fetches.Errors(); len(errs) > 0 {
			return fmt.Errorf("read topic %s: %w", k.out, errs[0].Err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			each(newArrival(func(name string) string {
				for _, h := range r.Headers {
					if h.Key == name {
						return string(h.Value)
					}
				}
				return ""
			}, r.Timestamp))
			left--
		})
	}
	return nil
}

func (k *benchKafka) remove(ctx context.Context) error {
	defer k.client.Close()
	request := kmsg.NewPtrDeleteTopicsRequest()
	request.TimeoutMillis = 10_000
	for _, name := range []string{k.in, k.out} {
		t := kmsg.NewDeleteTopicsRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		request.Topics, request.TopicNames = append(request.Topics, t), append(request.TopicNames, name)
	}
	var errs []error
	byHand := "remove the topics " + k.in + " and " + k.out + " by hand"
	response, err := request.RequestWith(ctx, k.client)
	if err != nil {
		return fmt.Errorf("remove topics: %w: %s", err, byHand)
	}
	for _, t := range response.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil && !errors.Is(err, kerr.UnknownTopicOrPartition) {
			errs = append(errs, fmt.Errorf("remove topics: %w: %s", err, byHand))
		}
	}
	if k.b.path != pathFull {
		return errors.Join(errs...)
	}
	groups := kmsg.NewPtrDeleteGroupsRequest()
	groups.Groups = []string{k.b.name}
	if answer, err := groups.RequestWith(ctx, k.client); err == nil {
		for _, g := range answer.Groups {
			// Without topics the group may have gone by itself.
			if err := kerr.ErrorForCode(g.ErrorCode); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
				errs = append(errs, fmt.Errorf("remove consumer group %s: %w: remove it by hand", g.Group, err))
			}
		}
	}
	return errors.Join(errs...)
}
