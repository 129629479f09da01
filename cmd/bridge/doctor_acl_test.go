package main

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl/plain"
)

// TestDoctorLooksAtKafkaPermissions has users that may do some of it.
func TestDoctorLooksAtKafkaPermissions(t *testing.T) {
	t.Parallel()
	allow := func(resource kmsg.ACLResourceType, name string, operations ...kmsg.ACLOperation) (acls []kfake.ACL) {
		for _, o := range operations {
			acls = append(acls, kfake.ACL{Resource: resource, Name: name, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: o, Allow: true})
		}
		return acls
	}
	const topic, group = kmsg.ACLResourceTypeTopic, kmsg.ACLResourceTypeGroup
	const read, write, describe, configs = kmsg.ACLOperationRead, kmsg.ACLOperationWrite, kmsg.ACLOperationDescribe, kmsg.ACLOperationDescribeConfigs
	for _, row := range []struct {
		sentence string
		acls     [][]kfake.ACL
		want     []expected
	}{
		{"a user that may do all that is needed has nothing wrong",
			[][]kfake.ACL{allow(topic, "bridge.schedule", read, describe, configs), allow(topic, "dead", write, describe, configs), allow(group, "bridge", read, describe)},
			[]expected{{partKafka, "permissions", levelOK, "", ""}, {partKafka, "group", levelNote, "", ""}}},
		{"one that may not write is told, with nothing written",
			[][]kfake.ACL{allow(topic, "bridge.schedule", read, describe, configs), allow(topic, "dead", describe, configs), allow(group, "bridge", read, describe)},
			[]expected{{partKafka, "permissions", levelProblem, "may not write dead", "--operation Write --operation Describe --topic dead"}}},
		{"one that may not read is told",
			[][]kfake.ACL{allow(topic, "bridge.schedule", describe, configs), allow(topic, "dead", write, describe, configs), allow(group, "bridge", read, describe)},
			[]expected{{partKafka, "permissions", levelProblem, "may not read bridge.schedule", "--operation Read"}}},
		{"one that may not see a topic is told",
			[][]kfake.ACL{allow(topic, "bridge.schedule", read, describe, configs), allow(group, "bridge", read, describe)},
			[]expected{{partKafka, "target", levelProblem, "dead: the user may not see it", "kafka-acls"}}},
		{"one that may not use the group is told",
			[][]kfake.ACL{allow(topic, "bridge.schedule", read, describe, configs), allow(topic, "dead", write, describe, configs)},
			[]expected{{partKafka, "group", levelProblem, "may not use the group bridge", "--group bridge"}}},
		{"one that may not ask for settings is no trouble",
			[][]kfake.ACL{allow(topic, "bridge.schedule", read, describe), allow(topic, "dead", write, describe), allow(group, "bridge", read, describe)},
			[]expected{{partKafka, "topics", levelNote, "cannot be asked for", "DescribeConfigs"}}},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			t.Parallel()
			var acls []kfake.ACL
			for _, some := range row.acls {
				acls = append(acls, some...)
			}
			cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.EnableACLs(),
				kfake.Superuser("PLAIN", "admin", "admin-secret"), kfake.User("PLAIN", "bridge", "bridge-secret", acls...))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(cluster.Close)
			admin, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.SASL(plain.Auth{User: "admin", Pass: "admin-secret"}.AsMechanism()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(admin.Close)
			req := kmsg.NewPtrCreateTopicsRequest()
			for _, name := range []string{"bridge.schedule", "dead"} {
				c := kmsg.NewCreateTopicsRequestTopic()
				c.Topic, c.NumPartitions, c.ReplicationFactor = name, 1, 1
				req.Topics = append(req.Topics, c)
			}
			if _, err := req.RequestWith(t.Context(), admin); err != nil {
				t.Fatal(err)
			}
			s := defaultSettings()
			s.Redis.URL, s.MaxPayload, s.DeadTarget = "unix:///nowhere", 512<<10, "kafka://dead"
			s.Kafka.Brokers = cluster.ListenAddrs()
			s.Kafka.SASL.Mechanism, s.Kafka.SASL.Username, s.Kafka.SASL.Password = saslPlain, "bridge", "bridge-secret"
			mustFind(t, ofParts(examine(t.Context(), s, nil, doctorLimit), partKafka), row.want...)
		})
	}
}
