package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"delaybridge/luascripts"
	"delaybridge/test/servers"
)

// TestDoctorLooksAtARedisCluster has one as it should be.
func TestDoctorLooksAtARedisCluster(t *testing.T) {
	t.Parallel()
	c := servers.NewRedisCluster(t)
	s := defaultSettings()
	s.Redis.URL, s.Redis.Mode, s.Redis.WaitReplicas = address(c.URL), luascripts.ModeCluster, 1
	openedQueue(t, s)
	v := ofParts(examine(t.Context(), s, nil, doctorLimit), partRedis, partQueue)
	mustFind(t, v,
		expected{partRedis, "cluster", levelOK, "all 16384 slots are served, by 3 masters", ""},
		expected{partRedis, "permissions", levelOK, "", ""},
		expected{partRedis, "scripts", levelOK, "", ""},
		expected{partRedis, "shards", levelOK, "8, as Redis knows", ""},
		expected{partRedis, "replicas", levelOK, "1 follow, writes wait for 1", ""},
		expected{partQueue, "pending", levelOK, "0 wait", ""},
	)
	versions := 0
	for _, f := range v.Items {
		if f.Check == "version" {
			versions++
		}
	}
	if versions != 3 {
		t.Errorf("%d masters tell their version", versions)
	}
}

// TestDoctorLooksAtApacheKafka has a broker that speaks the protocol in all of its
// versions, where there is one.
func TestDoctorLooksAtApacheKafka(t *testing.T) {
	t.Parallel()
	k := servers.SharedKafka(t)
	in, out, narrow := k.Topic(t, 2), servers.TopicName(t)+"-out", servers.TopicName(t)+"-narrow"
	k.CreateTopic(t, out, 3)
	k.CreateTopic(t, narrow, 1, "max.message.bytes=1000", "min.insync.replicas=2", "cleanup.policy=compact")
	s := defaultSettings()
	s.Redis.URL, s.MaxPayload, s.Kafka.Brokers = "unix:///nowhere", 512<<10, k.Brokers
	s.Kafka.Ingest.Topics, s.Kafka.Ingest.Group = list{in}, text(servers.TopicName(t)+"-group")
	s.DeadTarget, s.RejectTarget = text("kafka://"+out), text("kafka://"+narrow)
	look := func() doctorView { return ofParts(examine(t.Context(), s, nil, 2*doctorLimit), partKafka) }
	wants := []expected{
		{partKafka, "reachable", levelOK, "knows the API versions", ""},
		{partKafka, "source", levelNote, in + " has one replica", ""},
		{partKafka, "target", levelNote, out + " has one replica", ""},
		{partKafka, "target", levelWarning, narrow + ": max.message.bytes is 1000 bytes", "max.message.bytes="},
		{partKafka, "target", levelProblem, narrow + ": min.insync.replicas is 2 and it has 1 replicas", "min.insync.replicas=1"},
		{partKafka, "target", levelNote, narrow + " is compacted", "Bridge-Key"},
		{partKafka, "group", levelNote, "", "bridge serve"},
	}
	mustFind(t, look(), wants...)

	c := k.Client(t, kgo.ConsumeTopics(in), kgo.ConsumerGroup(string(s.Kafka.Ingest.Group)), kgo.DisableAutoCommit())
	for range 3 {
		if err := c.ProduceSync(t.Context(), &kgo.Record{Topic: in, Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if f := c.PollFetches(t.Context()); f.Err() != nil {
		t.Fatal(f.Err())
	}
	stable := expected{partKafka, "group", levelOK, "is stable: 1 member, 3 messages wait", ""}
	if v := look(); !slices.ContainsFunc(v.Items, stable.matches) {
		t.Errorf("no %+v in %+v", stable, v.Items)
	}
	s.Kafka.Ingest.Topics = list{in, out}
	other := expected{partKafka, "group", levelWarning, "members that do not read " + out, "BRIDGE_KAFKA_INGEST_TOPICS"}
	if v := look(); !slices.ContainsFunc(v.Items, other.matches) {
		t.Errorf("no %+v in %+v", other, v.Items)
	}
	c.LeaveGroup()
	empty := expected{partKafka, "group", levelWarning, "has no members, and 3 messages wait", "role ingest"}
	if v := look(); !slices.ContainsFunc(v.Items, empty.matches) {
		t.Errorf("no %+v in %+v", empty, v.Items)
	}
}

func TestDoctorJudgesReplicasOfAStream(t *testing.T) {
	cluster := func(replicas int, leader string, peers ...*jetstream.PeerInfo) *jetstream.StreamInfo {
		return &jetstream.StreamInfo{
			Config:  jetstream.StreamConfig{Name: "S", Replicas: replicas},
			Cluster: &jetstream.ClusterInfo{Name: "C", Leader: leader, Replicas: peers},
		}
	}
	for _, row := range []struct {
		sentence string
		info     *jetstream.StreamInfo
		want     level
		text     string
	}{
		{"a server alone has no replicas to judge", &jetstream.StreamInfo{Config: jetstream.StreamConfig{Name: "S", Replicas: 1}}, "", ""},
		{"three that are in step are as it should be", cluster(3, "a", &jetstream.PeerInfo{Name: "b", Current: true}), "", ""},
		{"one in a cluster is warned of", cluster(1, "a"), levelWarning, "one replica in the cluster C"},
		{"one that is behind is warned of", cluster(3, "a", &jetstream.PeerInfo{Name: "b"}), levelWarning, "on b is behind"},
		{"no leader is a problem", cluster(3, ""), levelProblem, "no leader"},
	} {
		d := &natsDoctor{report: &report{part: partNATS}}
		d.cluster(row.info)
		all := d.all()
		if row.want == "" && len(all) != 0 || row.want != "" && (len(all) != 1 || all[0].Level != row.want || !strings.Contains(all[0].Text, row.text)) {
			t.Errorf("%s: %+v", row.sentence, all)
		}
	}
}

func TestSizesAreWrittenForPeople(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1000: "1000 bytes", 1024: "1 KiB", 1536: "1.5 KiB", 1 << 20: "1 MiB", 3 << 30: "3 GiB"} {
		if got := byteSize(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}

func TestSubscribedTopics(t *testing.T) {
	for _, row := range []struct {
		sentence string
		metadata string
		want     []string
	}{
		{"nothing says nothing", "", nil},
		{"two topics, and more behind them", "\x00\x03\x00\x00\x00\x02\x00\x01a\x00\x02bc\xff\xff\xff\xff", []string{"a", "bc"}},
		{"what is cut off is left out", "\x00\x00\x00\x00\x00\x02\x00\x01a\x00\x09b", []string{"a"}},
		{"a number that is a lie ends with the bytes", "\x00\x00\xff\xff\xff\xff", nil},
	} {
		if got := subscribedTopics([]byte(row.metadata)); !slices.Equal(got, row.want) {
			t.Errorf("%s: %q", row.sentence, got)
		}
	}
}
