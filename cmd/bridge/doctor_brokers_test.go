package main

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/test/servers"
)

// silentServer takes connections and says nothing.
func silentServer(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { _ = c.Close() })
		}
	}()
	return l.Addr().String()
}

// goodStream is how the bridge makes its own.
func goodStream(name string, subjects ...string) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Subjects: subjects, Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew,
		Storage: jetstream.FileStorage, Duplicates: 10 * time.Minute,
	}
}

// goodConsumer is how the bridge makes its own.
func goodConsumer() jetstream.ConsumerConfig {
	d := ingest.DefaultNATSConfig()
	return jetstream.ConsumerConfig{
		Durable: d.Durable, AckPolicy: jetstream.AckExplicitPolicy, AckWait: d.AckWait, MaxAckPending: d.MaxAckPending,
		MaxDeliver: -1, FilterSubject: "bridge.schedule",
	}
}

func TestDoctorLooksAtNATS(t *testing.T) {
	t.Parallel()
	type world struct {
		*servers.NATS
		js jetstream.JetStream
	}
	users := func(p *server.Permissions) func(*server.Options) {
		return func(o *server.Options) {
			o.Users = []*server.User{{Username: "admin", Password: "admin-password"}, {Username: "bridge", Password: "hush-hush", Permissions: p}}
		}
	}
	asUser := func(t *testing.T, w world, s *Settings) {
		s.NATS.URL = address(strings.Replace(w.URL, "//", "//bridge:hush-hush@", 1))
	}
	stream := func(change func(*jetstream.StreamConfig)) func(*testing.T, world, *Settings) {
		return func(t *testing.T, w world, _ *Settings) {
			c := goodStream("BRIDGE_SCHEDULE", "bridge.schedule")
			change(&c)
			if _, err := w.js.CreateStream(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
	}
	consumer := func(change func(*jetstream.ConsumerConfig)) func(*testing.T, world, *Settings) {
		return func(t *testing.T, w world, s *Settings) {
			stream(func(*jetstream.StreamConfig) {})(t, w, s)
			c := goodConsumer()
			change(&c)
			if _, err := w.js.CreateConsumer(t.Context(), "BRIDGE_SCHEDULE", c); err != nil {
				t.Fatal(err)
			}
		}
	}
	target := func(change func(*jetstream.StreamConfig)) func(*testing.T, world, *Settings) {
		return func(t *testing.T, w world, s *Settings) {
			consumer(func(*jetstream.ConsumerConfig) {})(t, w, s)
			s.Routes = "nats://later.> -> nats://orders delay=5s"
			c := goodStream("ORDERS", "orders")
			change(&c)
			if c.Name != "" {
				if _, err := w.js.CreateStream(t.Context(), c); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	const payload = 512 << 10
	for _, row := range []struct {
		sentence string
		options  []func(*server.Options)
		breakIt  func(*testing.T, world, *Settings)
		want     []expected
	}{
		{"a server on which no bridge ran yet has nothing wrong", nil, nil,
			[]expected{{partNATS, "subjects", levelNote, "bridge serve puts them", "bridge serve"}, {partNATS, "max_payload", levelOK, "", ""}, {partNATS, "permissions", levelOK, "", ""}}},
		{"a stream and a consumer as the bridge makes them have nothing wrong", nil, consumer(func(*jetstream.ConsumerConfig) {}),
			[]expected{{partNATS, "stream", levelOK, "BRIDGE_SCHEDULE holds bridge.schedule", ""}, {partNATS, "consumer", levelNote, "nobody reads it", ""}, {partNATS, "clock", levelOK, "", ""}}},
		{"a server that is gone is told", nil, func(t *testing.T, w world, _ *Settings) { w.Stop() },
			[]expected{{partNATS, "reachable", levelProblem, "does not answer", "BRIDGE_NATS_URL"}}},
		{"a wrong password is told, and not shown", []func(*server.Options){users(nil)}, func(t *testing.T, w world, s *Settings) {
			s.NATS.URL = address(strings.Replace(w.URL, "//", "//bridge:wrong-hush-hush@", 1))
		}, []expected{{partNATS, "reachable", levelProblem, "refuses the user", "BRIDGE_NATS_CREDS"}}},
		{"a server without JetStream is told", []func(*server.Options){func(o *server.Options) { o.JetStream = false }}, nil,
			[]expected{{partNATS, "jetstream", levelProblem, "not enabled", "-js"}}},
		{"messages that the server cannot take are told", []func(*server.Options){func(o *server.Options) { o.MaxPayload = 64 << 10 }}, nil,
			[]expected{{partNATS, "max_payload", levelProblem, "max_payload is 64 KiB", "max_payload: "}}},
		{"subjects that no stream holds, with no leave to add them, are a problem", nil, func(t *testing.T, w world, s *Settings) {
			stream(func(c *jetstream.StreamConfig) { c.Subjects = []string{"something.else"} })(t, w, s)
			s.NATS.Ingest.Create = false
		}, []expected{{partNATS, "subjects", levelProblem, "no stream holds bridge.schedule", "nats stream edit BRIDGE_SCHEDULE --subjects something.else,bridge.schedule"}}},
		{"no stream at all, with no leave to make it, is a problem", nil, func(t *testing.T, w world, s *Settings) { s.NATS.Ingest.Create = false },
			[]expected{{partNATS, "subjects", levelProblem, "no stream holds bridge.schedule", "nats stream add BRIDGE_SCHEDULE"}}},
		{"a pattern of which streams hold a part only is a problem", nil, func(t *testing.T, w world, s *Settings) {
			stream(func(c *jetstream.StreamConfig) { c.Subjects = []string{"later.a"} })(t, w, s)
			s.NATS.Ingest.Subjects = list{"later.*"}
		}, []expected{{partNATS, "subjects", levelProblem, "only a part of later.*", "--subjects later.*"}}},
		{"a stream that drops its oldest is warned of", nil, stream(func(c *jetstream.StreamConfig) { c.Discard, c.MaxMsgs = jetstream.DiscardOld, 100 }),
			[]expected{{partNATS, "stream", levelWarning, "a limit of 100 messages and drops its oldest", "--discard new"}}},
		{"a stream that forgets by age is warned of", nil, stream(func(c *jetstream.StreamConfig) { c.MaxAge, c.Duplicates = time.Hour, time.Hour }),
			[]expected{{partNATS, "stream", levelWarning, "maximum age of 1h0m0s", "--max-age 0"}}},
		{"a stream in memory is warned of", nil, stream(func(c *jetstream.StreamConfig) { c.Storage = jetstream.MemoryStorage }),
			[]expected{{partNATS, "stream", levelWarning, "in memory", "--storage file"}}},
		{"interest retention drops what comes before the consumer", nil, stream(func(c *jetstream.StreamConfig) { c.Retention = jetstream.InterestPolicy }),
			[]expected{{partNATS, "stream", levelWarning, "interest retention", "--retention work"}}},
		{"limits retention is only noted", nil, stream(func(c *jetstream.StreamConfig) { c.Retention = jetstream.LimitsPolicy }),
			[]expected{{partNATS, "stream", levelNote, "limits retention", ""}, {partNATS, "consumer", levelNote, "there is no bridge", ""}}},
		{"messages that wait while there is no consumer are warned of", nil, func(t *testing.T, w world, s *Settings) {
			stream(func(*jetstream.StreamConfig) {})(t, w, s)
			if _, err := w.js.Publish(t.Context(), "bridge.schedule", nil); err != nil {
				t.Fatal(err)
			}
		}, []expected{{partNATS, "consumer", levelWarning, "1 messages wait in the stream", "role ingest"}}},
		{"messages that nobody asks for are warned of", nil, func(t *testing.T, w world, s *Settings) {
			consumer(func(*jetstream.ConsumerConfig) {})(t, w, s)
			if _, err := w.js.Publish(t.Context(), "bridge.schedule", nil); err != nil {
				t.Fatal(err)
			}
		}, []expected{{partNATS, "consumer", levelWarning, "1 messages wait, and nobody asks", "role ingest"}}},
		{"a consumer that was changed is warned of", nil, consumer(func(c *jetstream.ConsumerConfig) { c.MaxDeliver, c.AckWait = 5, time.Second }),
			[]expected{{partNATS, "consumer", levelWarning, "max deliver is 5", "restart bridge serve"}, {partNATS, "consumer", levelNote, "nobody reads", ""}}},
		{"a consumer that cannot be used is a problem", nil, func(t *testing.T, w world, s *Settings) {
			stream(func(c *jetstream.StreamConfig) { c.Retention = jetstream.LimitsPolicy })(t, w, s)
			c := goodConsumer()
			c.AckPolicy, c.MaxAckPending = jetstream.AckNonePolicy, 0
			if _, err := w.js.CreateConsumer(t.Context(), "BRIDGE_SCHEDULE", c); err != nil {
				t.Fatal(err)
			}
		}, []expected{{partNATS, "consumer", levelProblem, "explicit acknowledgements", "nats consumer rm"}, {partNATS, "consumer", levelWarning, "was changed", ""}}},
		{"a paused consumer is a problem", nil, consumer(func(c *jetstream.ConsumerConfig) { until := time.Now().Add(time.Hour); c.PauseUntil = &until }),
			[]expected{{partNATS, "consumer", levelProblem, "is paused", "nats consumer resume"}}},
		{"a consumer that waits for acknowledgements only is a problem", nil, func(t *testing.T, w world, s *Settings) {
			consumer(func(c *jetstream.ConsumerConfig) { c.MaxAckPending = 1 })(t, w, s)
			if _, err := w.js.Publish(t.Context(), "bridge.schedule", nil); err != nil {
				t.Fatal(err)
			}
			c, err := w.js.Consumer(t.Context(), "BRIDGE_SCHEDULE", "bridge")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := c.Next(); err != nil {
				t.Fatal(err)
			}
		}, []expected{{partNATS, "consumer", levelProblem, "all 1 places", "$JS.ACK.>"}, {partNATS, "consumer", levelWarning, "max ack pending is 1", ""}}},
		{"a target that no stream holds is a problem", nil, target(func(c *jetstream.StreamConfig) { c.Name = "" }),
			[]expected{{partNATS, "target", levelProblem, "no stream holds orders (BRIDGE_ROUTES)", "nats stream add"}, {partNATS, "subjects", levelNote, "later.>", ""}}},
		{"a target with a good stream has nothing wrong", nil, target(func(*jetstream.StreamConfig) {}),
			[]expected{{partNATS, "target", levelOK, "nats://orders goes to stream ORDERS", ""}}},
		{"a target whose stream drops its oldest is noted", nil, target(func(c *jetstream.StreamConfig) { c.Discard, c.MaxMsgs = jetstream.DiscardOld, 10 }),
			[]expected{{partNATS, "target", levelNote, "drops its oldest", "--discard new"}}},
		{"a target whose stream forgets repeats too soon is warned of", nil, target(func(c *jetstream.StreamConfig) { c.Duplicates = 5 * time.Second }),
			[]expected{{partNATS, "duplicates", levelWarning, "knows repeats for 5s", "--dupe-window"}}},
		{"one that forgets them before the last attempt is noted", nil, target(func(c *jetstream.StreamConfig) { c.Duplicates = 2 * time.Minute }),
			[]expected{{partNATS, "duplicates", levelNote, "knows repeats for 2m0s", "--dupe-window 7m30s"}}},
		{"a target whose stream takes small messages only is warned of", nil, target(func(c *jetstream.StreamConfig) { c.MaxMsgSize = 1000 }),
			[]expected{{partNATS, "target", levelWarning, "up to 1000 bytes", "--max-msg-size"}}},
		{"a target whose stream is sealed is a problem", nil, func(t *testing.T, w world, s *Settings) {
			target(func(*jetstream.StreamConfig) {})(t, w, s)
			info, err := w.js.Stream(t.Context(), "ORDERS")
			if err != nil {
				t.Fatal(err)
			}
			c := info.CachedInfo().Config
			c.Sealed = true
			if _, err := w.js.UpdateStream(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}, []expected{{partNATS, "target", levelProblem, "is sealed", ""}}},
		{"a reject target without a stream is a problem", nil, func(t *testing.T, w world, s *Settings) { s.RejectTarget = "nats://bridge.rejected" },
			[]expected{{partNATS, "target", levelProblem, "bridge.rejected (BRIDGE_REJECT_TARGET)", "nats stream add"}}},
		{"core NATS as a target is noted for what it is", nil, func(t *testing.T, w world, s *Settings) { s.DeadTarget = "nats-core://bridge.dead" },
			[]expected{{partNATS, "target", levelNote, "flush only", "nats://bridge.dead"}}},
		{"a user that may not acknowledge is told, with nothing published",
			[]func(*server.Options){users(&server.Permissions{Publish: &server.SubjectPermission{Deny: []string{"$JS.ACK.>"}}})}, asUser,
			[]expected{{partNATS, "permissions", levelProblem, "publish to $JS.ACK.BRIDGE_SCHEDULE.bridge.>", "allow"}}},
		{"a user that may not publish to a target is told",
			[]func(*server.Options){users(&server.Permissions{Publish: &server.SubjectPermission{Allow: []string{"$JS.>", "$SYS.REQ.USER.INFO", "orders.*"}}})},
			func(t *testing.T, w world, s *Settings) { asUser(t, w, s); s.DeadTarget = "nats-core://bridge.dead" },
			[]expected{{partNATS, "permissions", levelProblem, "the user may not publish to bridge.dead", "allow"}}},
		{"a user that may do its work and nothing else has nothing wrong",
			[]func(*server.Options){users(&server.Permissions{Publish: &server.SubjectPermission{Allow: []string{"$JS.API.STREAM.NAMES", "$JS.API.STREAM.*.BRIDGE_SCHEDULE", "$JS.API.CONSUMER.>", "$JS.ACK.>", "orders"}}})}, asUser,
			[]expected{{partNATS, "permissions", levelNote, "may not ask what it may do", "$SYS.REQ.USER.INFO"}, {partNATS, "jetstream", levelNote, "may not ask how full", "$JS.API.INFO"},
				{partNATS, "subjects", levelNote, "bridge serve puts them", "bridge serve"}}},
		{"a user that may do all that is needed has nothing wrong",
			[]func(*server.Options){users(&server.Permissions{Publish: &server.SubjectPermission{Allow: []string{"$JS.API.>", "$JS.ACK.>", "$SYS.REQ.USER.INFO", "bridge.>"}}})}, asUser,
			[]expected{{partNATS, "permissions", levelOK, "all that the settings need", ""}}},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			t.Parallel()
			w := world{NATS: servers.NewNATS(t, row.options...)}
			s := defaultSettings()
			s.Redis.URL = address("unix:///nowhere")
			s.NATS.URL, s.MaxPayload = address(w.URL), payload
			if len(row.options) == 0 {
				w.js = w.JetStream(t)
			}
			if row.breakIt != nil {
				row.breakIt(t, w, s)
			}
			v := examine(t.Context(), s, nil, doctorLimit)
			mustFind(t, ofParts(v, partNATS), row.want...)
			if text := fmt.Sprint(v); strings.Contains(text, "hush-hush") {
				t.Errorf("it shows the password: %s", text)
			}
		})
	}
}

func TestDoctorLooksAtKafka(t *testing.T) {
	t.Parallel()
	topic := func(name string, partitions int, settings ...string) func(*testing.T, *servers.Kafka, *Settings) {
		return func(t *testing.T, k *servers.Kafka, _ *Settings) { k.CreateTopic(t, name, partitions, settings...) }
	}
	both := func(steps ...func(*testing.T, *servers.Kafka, *Settings)) func(*testing.T, *servers.Kafka, *Settings) {
		return func(t *testing.T, k *servers.Kafka, s *Settings) {
			for _, step := range steps {
				step(t, k, s)
			}
		}
	}
	source := topic("bridge.schedule", 2)
	routed := func(t *testing.T, k *servers.Kafka, s *Settings) { s.DeadTarget = "kafka://dead" }
	for _, row := range []struct {
		sentence string
		options  []kfake.Opt
		breakIt  func(*testing.T, *servers.Kafka, *Settings)
		want     []expected
	}{
		{"a cluster as it should be has nothing wrong", nil, source,
			[]expected{{partKafka, "reachable", levelOK, "knows the API versions", ""}, {partKafka, "source", levelNote, "one replica", ""}, {partKafka, "cluster", levelOK, "", ""}}},
		{"a topic to read that does not exist is a problem", nil, nil,
			[]expected{{partKafka, "source", levelProblem, "bridge.schedule does not exist", "kafka-topics"}}},
		{"a target that does not exist is a problem", nil, both(source, routed),
			[]expected{{partKafka, "target", levelProblem, "dead does not exist (BRIDGE_DEAD_TARGET)", "kafka-topics"}}},
		{"a target whose topic takes less than the bridge is warned of", nil, both(source, routed, topic("dead", 1, "max.message.bytes=1000")),
			[]expected{{partKafka, "target", levelWarning, "max.message.bytes is 1000 bytes", "max.message.bytes="}}},
		{"a target that wants more replicas than there are is a problem", nil, both(source, routed, topic("dead", 1, "min.insync.replicas=2")),
			[]expected{{partKafka, "target", levelProblem, "min.insync.replicas is 2 and it has 1 replicas", "min.insync.replicas=1"}}},
		{"a compacted target is noted", nil, both(source, routed, topic("dead", 1, "cleanup.policy=compact")),
			[]expected{{partKafka, "target", levelNote, "refuses messages without a key", "Bridge-Key"}}},
		{"a compacted source is warned of", nil, topic("bridge.schedule", 1, "cleanup.policy=compact"),
			[]expected{{partKafka, "source", levelWarning, "is compacted", "cleanup.policy=delete"}}},
		{"a source that forgets soon is warned of", nil, topic("bridge.schedule", 1, "retention.ms=60000"),
			[]expected{{partKafka, "source", levelWarning, "keeps messages for 1m0s", "retention.ms="}}},
		{"a group that nobody is in, with messages waiting, is warned of", nil, func(t *testing.T, k *servers.Kafka, s *Settings) {
			source(t, k, s)
			c := k.Client(t, kgo.ConsumeTopics("bridge.schedule"), kgo.ConsumerGroup("bridge"), kgo.DisableAutoCommit())
			for range 3 {
				if err := c.ProduceSync(t.Context(), &kgo.Record{Topic: "bridge.schedule", Value: []byte("x")}).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			f := c.PollFetches(t.Context())
			if f.Err() != nil || len(f.Records()) == 0 {
				t.Fatal("nothing was read", f.Err())
			}
			if err := c.CommitRecords(t.Context(), f.Records()[0]); err != nil {
				t.Fatal(err)
			}
			c.LeaveGroup()
			c.Close()
		}, []expected{{partKafka, "group", levelWarning, "has no members, and 2 messages wait", "role ingest"}}},
		{"a broker that is gone is told", nil, func(t *testing.T, k *servers.Kafka, s *Settings) { s.Kafka.Brokers = list{"127.0.0.1:1"} },
			[]expected{{partKafka, "reachable", levelProblem, "127.0.0.1:1 does not answer", "BRIDGE_KAFKA_BROKERS"}}},
		{"of two brokers the one that is away is told, and the other is used", nil, func(t *testing.T, k *servers.Kafka, s *Settings) {
			source(t, k, s)
			s.Kafka.Brokers = append(list{"127.0.0.1:1"}, k.Brokers...)
		}, []expected{{partKafka, "reachable", levelProblem, "127.0.0.1:1 does not answer", ""}, {partKafka, "cluster", levelOK, "", ""}}},
		{"a wrong password is told, and not shown", []kfake.Opt{kfake.EnableSASL(), kfake.Superuser("PLAIN", "admin", "admin-secret")}, func(t *testing.T, k *servers.Kafka, s *Settings) {
			s.Kafka.SASL.Mechanism, s.Kafka.SASL.Username, s.Kafka.SASL.Password = saslPlain, "admin", "hush-hush"
		}, []expected{{partKafka, "reachable", levelProblem, "", "BRIDGE_KAFKA_SASL_"}}},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			t.Parallel()
			var k *servers.Kafka
			s := defaultSettings()
			s.Redis.URL, s.MaxPayload = "unix:///nowhere", 512<<10
			if row.options == nil {
				k = servers.NewKfake(t)
				s.Kafka.Brokers = k.Brokers
			} else {
				// The helpers of the tests sign in as nobody.
				c, err := kfake.NewCluster(append(row.options, kfake.NumBrokers(1))...)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(c.Close)
				s.Kafka.Brokers = c.ListenAddrs()
			}
			if row.breakIt != nil {
				row.breakIt(t, k, s)
			}
			v := examine(t.Context(), s, nil, doctorLimit)
			mustFind(t, ofParts(v, partKafka), row.want...)
			if text := fmt.Sprint(v); strings.Contains(text, "hush-hush") {
				t.Errorf("it shows the password: %s", text)
			}
		})
	}
}

// TestDoctorChangesNothing compares what all servers hold before and after.
func TestDoctorChangesNothing(t *testing.T) {
	t.Parallel()
	r := servers.NewRedis(t, "--appendonly", "yes", "--enable-debug-command", "local")
	n := servers.NewNATS(t)
	k := servers.NewKfake(t)
	s := redisSettings(r)
	s.NATS.URL, s.Kafka.Brokers = address(n.URL), k.Brokers
	s.Routes, s.DeadTarget, s.RejectTarget = "nats://later.> -> nats://orders delay=5s; kafka://in -> kafka://out delay=5s", "nats://no.stream", "kafka://no.topic"
	q := openedQueue(t, s)
	stored(t, q, delaybridge.OpSchedule, "late", "nats://orders", time.Now().Add(-time.Hour))
	stored(t, q, delaybridge.OpReject, "r", "nats://orders", time.Now())
	js := n.JetStream(t)
	if _, err := js.CreateStream(t.Context(), goodStream("BRIDGE_SCHEDULE", "bridge.schedule", "later.>")); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "bridge.schedule", []byte("x")); err != nil {
		t.Fatal(err)
	}
	k.CreateTopic(t, "in", 1)
	client := r.Client(t)
	sub, err := n.Connect(t).SubscribeSync("orders.>") // and what is published at all
	if err != nil {
		t.Fatal(err)
	}
	state := func() string {
		ctx := context.Background()
		var b strings.Builder
		fmt.Fprintln(&b, client.Do(ctx, "DEBUG", "DIGEST").Val(), client.DBSize(ctx).Val(), infoFields(client.Info(ctx, "persistence").Val())["rdb_changes_since_last_save"])
		var names []string
		for info := range js.ListStreams(ctx).Info() {
			names = append(names, fmt.Sprint(info.Config, info.State.Msgs, info.State.LastSeq, info.State.Consumers))
		}
		slices.Sort(names)
		fmt.Fprintln(&b, names)
		fmt.Fprintln(&b, kafkaState(t, k))
		return b.String()
	}
	before := state()
	examine(t.Context(), s, nil, doctorLimit)
	if after := state(); after != before {
		t.Errorf("before %s\nafter %s", before, after)
	}
	if m, err := sub.NextMsg(time.Millisecond); err != nats.ErrTimeout {
		t.Errorf("it has published %v (%v)", m, err)
	}
}

// kafkaState are the topics, how much is in them, and the groups.
func kafkaState(t *testing.T, k *servers.Kafka) string {
	t.Helper()
	c := k.Client(t)
	meta, err := kmsg.NewPtrMetadataRequest().RequestWith(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, topic := range meta.Topics {
		end := kmsg.NewPtrListOffsetsRequest()
		of := kmsg.NewListOffsetsRequestTopic()
		of.Topic = *topic.Topic
		for _, p := range topic.Partitions {
			at := kmsg.NewListOffsetsRequestTopicPartition()
			at.Partition, at.Timestamp = p.Partition, -1
			of.Partitions = append(of.Partitions, at)
		}
		end.Topics = append(end.Topics, of)
		ends, err := end.RequestWith(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range ends.Topics {
			for _, p := range e.Partitions {
				all = append(all, fmt.Sprint(e.Topic, p.Partition, p.Offset))
			}
		}
	}
	groups, err := kmsg.NewPtrListGroupsRequest().RequestWith(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups.Groups {
		all = append(all, "group "+g.Group)
	}
	slices.Sort(all)
	return fmt.Sprint(all)
}
