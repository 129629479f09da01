package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"

	"delaybridge"
)

// kafkaDoctor looks at Kafka.
type kafkaDoctor struct {
	*report
	s     *Settings
	limit time.Duration

	client *kafka.Client
	size   int // brokers of the cluster, as one of them says
}

// step runs one check within the limit.
func (d *kafkaDoctor) step(ctx context.Context, check func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	check(ctx)
}

func (d *kafkaDoctor) run(ctx context.Context) {
	if len(d.s.Kafka.Brokers) == 0 {
		d.note("settings", "BRIDGE_KAFKA_BROKERS is empty: Kafka is not used", "")
		return
	}
	link, err := d.s.newKafkaLink(ctx)
	if err != nil {
		d.problem("settings", err.Error(), "correct the setting that it names")
		return
	}
	sources := d.sourceTopics()
	targets := d.s.settingTargets(delaybridge.SinkKafka)
	names := append([]string{}, sources...)
	for _, t := range targets {
		if !slices.Contains(names, t.Name) {
			names = append(names, t.Name)
		}
	}
	transport := link.transport(names...)
	transport.DialTimeout = d.limit / 2
	defer transport.CloseIdleConnections()
	d.client = &kafka.Client{Addr: kafka.TCP(d.s.Kafka.Brokers...), Transport: transport, Timeout: d.limit}

	answering := d.brokers(ctx)
	if len(answering) == 0 {
		return
	}
	d.client.Addr = kafka.TCP(answering...)

	topics := map[string]kafka.Topic{}
	known := false
	d.step(ctx, func(ctx context.Context) {
		m, err := d.client.Metadata(ctx, &kafka.MetadataRequest{Topics: names})
		if err != nil {
			d.problem("topics", "they cannot be asked for: "+shortCause(err), "see the brokers' log")
			return
		}
		known = true
		for _, t := range m.Topics {
			topics[t.Name] = t
		}
		d.size = len(m.Brokers)
		d.ok("cluster", "%d brokers, id %s", len(m.Brokers), m.ClusterID)
	})
	if !known {
		return
	}
	var configs map[string]map[string]string
	d.step(ctx, func(ctx context.Context) { configs = d.configs(ctx, names, topics) })
	for _, name := range sources {
		d.source(name, topics[name], configs[name])
	}
	for _, t := range targets {
		d.target(t, topics[t.Name], configs[t.Name])
	}
	d.step(ctx, func(ctx context.Context) { d.permissions(ctx, sources, targets) })
	if slices.Contains(d.s.Roles, roleIngest) && len(sources) > 0 {
		d.step(ctx, func(ctx context.Context) { d.group(ctx, sources, topics) })
	}
}

// sourceTopics are the topics that the group reads, none without the role.
func (d *kafkaDoctor) sourceTopics() []string {
	if !slices.Contains(d.s.Roles, roleIngest) {
		return nil
	}
	names := slices.Clone([]string(d.s.Kafka.Ingest.Topics))
	for _, name := range d.s.routeSources(delaybridge.SinkKafka) {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// apiNeeds are the APIs without which the bridge cannot work, with the lowest
// version that a broker must know: those of Kafka 0.11, the first with headers.
var apiNeeds = []struct {
	key, version int
	name         string
}{{0, 3, "Produce"}, {1, 4, "Fetch"}, {2, 1, "ListOffsets"}, {3, 1, "Metadata"}, {8, 2, "OffsetCommit"}, {9, 1, "OffsetFetch"}, {11, 1, "JoinGroup"}}

// brokers asks each configured broker for itself, and returns those that answer.
func (d *kafkaDoctor) brokers(ctx context.Context) (answering []string) {
	for _, addr := range d.s.Kafka.Brokers {
		d.step(ctx, func(ctx context.Context) {
			began := time.Now()
			v, err := d.client.ApiVersions(ctx, &kafka.ApiVersionsRequest{Addr: kafka.TCP(addr)})
			if err == nil {
				err = v.Error
			}
			switch {
			case err == nil:
			case isSASLError(err):
				d.problem("reachable", addr+" refuses to let it sign in: "+err.Error(), "set BRIDGE_KAFKA_SASL_MECHANISM, _USERNAME and _PASSWORD as the broker has them")
				return
			default:
				d.problem("reachable", addr+" does not answer: "+shortCause(err), "start it, or correct BRIDGE_KAFKA_BROKERS and the BRIDGE_KAFKA_TLS_ and BRIDGE_KAFKA_SASL_ settings: a broker that wants TLS or SASL closes what comes without")
				return
			}
			answering = append(answering, addr)
			for _, need := range apiNeeds {
				i := slices.IndexFunc(v.ApiKeys, func(k kafka.ApiVersionsResponseApiKey) bool { return k.ApiKey == need.key })
				if i < 0 || v.ApiKeys[i].MaxVersion < need.version {
					d.problem("versions", fmt.Sprintf("%s does not know version %d of %s: it is older than Kafka 0.11", addr, need.version, need.name), "upgrade it")
					return
				}
			}
			d.ok("reachable", "%s answers in %v, and knows the API versions", addr, time.Since(began).Round(100*time.Microsecond))
		})
	}
	if n := len(answering); n == 0 {
		d.problem("reachable", "no broker can be used: nothing is taken in from Kafka or delivered to it", "see above")
	} else if len(d.s.Kafka.Brokers) == 1 {
		d.note("reachable", "BRIDGE_KAFKA_BROKERS names one broker: a process that starts while it is away finds no other", "add others, with commas between")
	}
	return answering
}

func isSASLError(err error) bool {
	return errors.Is(err, kafka.SASLAuthenticationFailed) || errors.Is(err, kafka.UnsupportedSASLMechanism) || strings.Contains(err.Error(), "SASL")
}

// configs returns the settings of those of the topics that are there.
func (d *kafkaDoctor) configs(ctx context.Context, names []string, topics map[string]kafka.Topic) map[string]map[string]string {
	req := &kafka.DescribeConfigsRequest{}
	for _, name := range names {
		if t, ok := topics[name]; ok && t.Error == nil {
			req.Resources = append(req.Resources, kafka.DescribeConfigRequestResource{
				ResourceType: kafka.ResourceTypeTopic, ResourceName: name,
				ConfigNames: []string{"min.insync.replicas", "max.message.bytes", "cleanup.policy", "retention.ms"},
			})
		}
	}
	configs := map[string]map[string]string{}
	if len(req.Resources) == 0 {
		return configs
	}
	res, err := d.client.DescribeConfigs(ctx, req)
	if err != nil {
		d.note("topics", "their settings cannot be asked for: "+shortCause(err), "allow DescribeConfigs on them, or look by hand: kafka-configs --describe --entity-type topics")
		return configs
	}
	for _, r := range res.Resources {
		if r.Error != nil {
			d.note("topics", "the settings of "+r.ResourceName+" cannot be asked for: "+r.Error.Error(), "allow DescribeConfigs on it")
			continue
		}
		c := map[string]string{}
		for _, e := range r.ConfigEntries {
			c[e.ConfigName] = e.ConfigValue
		}
		configs[r.ResourceName] = c
	}
	return configs
}

// alter is the command that sets a topic's setting.
func alter(topic, setting string) string {
	return "kafka-configs --bootstrap-server <broker> --alter --entity-type topics --entity-name " + topic + " --add-config " + setting
}

// usable reports whether a topic is there and can be used; what becomes of its
// messages if not is said in the finding.
func (d *kafkaDoctor) usable(check, name string, t kafka.Topic, otherwise string) bool {
	create := "kafka-topics --bootstrap-server <broker> --create --topic " + name + fmt.Sprintf(" --partitions 6 --replication-factor %d", min(d.size, 3))
	switch {
	case errors.Is(t.Error, kafka.TopicAuthorizationFailed):
		d.problem(check, name+": the user may not see it"+otherwise, "kafka-acls --bootstrap-server <broker> --add --allow-principal User:<user> --operation All --topic "+name)
		return false
	case t.Name == "" || errors.Is(t.Error, kafka.UnknownTopicOrPartition):
		d.problem(check, name+" does not exist"+otherwise, create)
		return false
	case t.Error != nil:
		d.problem(check, name+": "+t.Error.Error()+otherwise, "see the brokers' log")
		return false
	}
	leaderless := 0
	for _, p := range t.Partitions {
		if p.Leader.Host == "" || p.Error != nil && !errors.Is(p.Error, kafka.ReplicaNotAvailable) {
			leaderless++
		}
	}
	if leaderless > 0 {
		d.problem(check, fmt.Sprintf("%s: %d of %d partitions have no leader%s", name, leaderless, len(t.Partitions), otherwise), "start the brokers that are away: kafka-topics --describe --topic "+name)
		return false
	}
	return true
}

// fewestInSync is how many replicas the worst partition has in sync, and of how many.
func fewestInSync(t kafka.Topic) (inSync, replicas int) {
	inSync, replicas = -1, 0
	for _, p := range t.Partitions {
		if inSync < 0 || len(p.Isr) < inSync {
			inSync, replicas = len(p.Isr), len(p.Replicas)
		}
	}
	return inSync, replicas
}

// source reports a topic that is read.
func (d *kafkaDoctor) source(name string, t kafka.Topic, c map[string]string) {
	const check = "source"
	if !d.usable(check, name, t, ": nothing is taken in from it, and the bridge waits for it") {
		return
	}
	before := len(d.all())
	if strings.Contains(c["cleanup.policy"], "compact") {
		d.warning(check, name+" is compacted: of requests with the same key only the last is sure to be read", alter(name, "cleanup.policy=delete"))
	}
	if ms, err := strconv.ParseInt(c["retention.ms"], 10, 64); err == nil && ms >= 0 && ms < (24*time.Hour).Milliseconds() {
		d.warning(check, fmt.Sprintf("%s keeps messages for %v: those that are not taken in by then, while the bridge is away, are lost", name, time.Duration(ms)*time.Millisecond), alter(name, "retention.ms=604800000"))
	}
	if _, replicas := fewestInSync(t); replicas == 1 {
		d.note(check, name+" has one replica: a broker that loses its disk loses its messages", "give it 3 replicas: kafka-reassign-partitions")
	}
	if len(d.all()) == before {
		d.ok(check, "%s: %s", name, plural(len(t.Partitions), "partition"))
	}
}

// target reports a topic that is published to.
func (d *kafkaDoctor) target(of settingTarget, t kafka.Topic, c map[string]string) {
	const check = "target"
	name := of.Name
	if !d.usable(check, name, t, " ("+of.setting+"): its messages are tried again until they are dead letters") {
		return
	}
	before := len(d.all())
	inSync, replicas := fewestInSync(t)
	least, _ := strconv.Atoi(c["min.insync.replicas"])
	switch {
	case least > replicas:
		d.problem(check, fmt.Sprintf("%s: min.insync.replicas is %d and it has %d replicas: every publish is refused", name, least, replicas), alter(name, fmt.Sprintf("min.insync.replicas=%d", max(1, replicas-1))))
	case least > inSync:
		d.problem(check, fmt.Sprintf("%s: %d replicas are in sync and min.insync.replicas is %d: publishes are refused, and tried again", name, inSync, least), "start the brokers that are away: kafka-topics --describe --topic "+name)
	case least == replicas && replicas > 1:
		d.warning(check, fmt.Sprintf("%s: min.insync.replicas is %d, as many as its replicas: publishes are refused as soon as one broker is away", name, least), alter(name, fmt.Sprintf("min.insync.replicas=%d", replicas-1)))
	case least == 1 && replicas > 1:
		d.note(check, name+": min.insync.replicas is 1: a message may be confirmed by one broker alone, and be lost with it", alter(name, "min.insync.replicas=2"))
	}
	if replicas == 1 {
		d.note(check, name+" has one replica: a confirmed message is lost with its broker's disk, and none is taken while it is away", "give it 3 replicas: kafka-reassign-partitions")
	}
	if most, err := strconv.ParseInt(c["max.message.bytes"], 10, 64); err == nil {
		payload := int64(d.s.MaxPayload)
		text := fmt.Sprintf("%s: max.message.bytes is %s and BRIDGE_MAX_PAYLOAD %s", name, byteSize(most), d.s.MaxPayload)
		do := alter(name, fmt.Sprintf("max.message.bytes=%d", payload+64<<10)) + ", or set BRIDGE_MAX_PAYLOAD to less"
		switch {
		case most < payload:
			d.warning(check, text+": larger messages are taken in and can never be delivered to it (dead letters, reason permanent)", do)
		case most < payload+headersRoom:
			d.note(check, text+": key and headers count, so the very largest messages cannot be delivered to it", do)
		}
	}
	if strings.Contains(c["cleanup.policy"], "compact") {
		d.note(check, name+" is compacted: it refuses messages without a key (dead letters, reason permanent)", "have producers set a key, or Bridge-Key")
	}
	if len(d.all()) == before {
		d.ok(check, "%s: %s, %d replicas, min.insync.replicas %d", name, plural(len(t.Partitions), "partition"), replicas, least)
	}
}
