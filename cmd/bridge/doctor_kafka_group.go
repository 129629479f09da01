package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/describegroups"
)

// group reports the consumer group, and how far behind it is.
func (d *kafkaDoctor) group(ctx context.Context, names []string, topics map[string]kafka.Topic) {
	const check = "group"
	id := string(d.s.Kafka.Ingest.Group)
	acl := "kafka-acls --bootstrap-server <broker> --add --allow-principal User:<user> --operation Read --operation Describe --group " + id
	g, err := d.describe(ctx, id)
	switch {
	case errors.Is(err, kafka.GroupAuthorizationFailed):
		d.problem(check, "the user may not use the group "+id+": nothing is taken in", acl)
		return
	case errors.Is(err, kafka.GroupIdNotFound):
		d.note(check, id+" does not exist yet: bridge serve makes it", "run bridge serve with the role ingest")
		return
	case errors.Is(err, kafka.GroupCoordinatorNotAvailable), errors.Is(err, kafka.NotCoordinatorForGroup), errors.Is(err, kafka.GroupLoadInProgress):
		d.warning(check, id+" cannot be asked for: its coordinator is not ready, as for some seconds after a start of the brokers", "try again; if it stays so, see the brokers' log and the topic __consumer_offsets")
		return
	case err != nil:
		d.problem(check, id+" cannot be asked for: "+shortCause(err), "see the brokers' log: the group's coordinator does not answer")
		return
	}
	if !mayDo(g.AuthorizedOperations, aclRead) {
		d.problem(check, "the user may look at the group "+id+" and not join it: nothing is taken in", acl)
		return
	}
	lag, behind, lagErr := d.lag(ctx, id, names, topics)
	switch {
	case lagErr != nil:
		d.note("lag", "it cannot be told: "+shortCause(lagErr), acl)
	case len(behind) > 0:
		d.warning("lag", fmt.Sprintf("%s deleted messages that the group had not read: %s", id, some(behind)), "raise retention.ms of the topic, and run more processes with the role ingest")
	}
	var others []string
	for _, m := range g.Members {
		topics := subscribedTopics(m.MemberMetadata)
		if len(topics) == 0 {
			continue // not told
		}
		for _, name := range names {
			if !slices.Contains(topics, name) && !slices.Contains(others, name) {
				others = append(others, name)
			}
		}
	}
	if len(others) > 0 {
		d.warning(check, fmt.Sprintf("%s has members that do not read %s: processes with other settings share the group", id, some(others)), "give all of them the same BRIDGE_KAFKA_INGEST_TOPICS and BRIDGE_ROUTES, or another BRIDGE_KAFKA_INGEST_GROUP")
	}
	switch g.GroupState {
	case "Dead", "Empty", "":
		if lag > 0 {
			d.warning(check, fmt.Sprintf("%s has no members, and %d messages wait", id, lag), "run bridge serve with the role ingest")
		} else {
			d.note(check, id+" has no members: nobody reads", "run bridge serve with the role ingest")
		}
	case "Stable":
		d.ok(check, "%s is stable: %s, %d messages wait", id, plural(len(g.Members), "member"), lag)
	default:
		d.note(check, fmt.Sprintf("%s is in state %s, with %s: it is being shared out anew, and goes on by itself", id, g.GroupState, plural(len(g.Members), "member")), "look again in half a minute; if it stays so, a member cannot keep up its session: see its log")
	}
}

// describe asks for a group. It does not use kafka-go's own call, which cannot read
// what members of other clients say.
func (d *kafkaDoctor) describe(ctx context.Context, group string) (describegroups.ResponseGroup, error) {
	m, err := d.client.Transport.RoundTrip(ctx, d.client.Addr, &describegroups.Request{Groups: []string{group}, IncludeAuthorizedOperations: true})
	if err != nil {
		return describegroups.ResponseGroup{}, err
	}
	res, ok := m.(*describegroups.Response)
	if !ok || len(res.Groups) != 1 {
		return describegroups.ResponseGroup{}, fmt.Errorf("%T answers with no group", m)
	}
	if code := kafka.Error(res.Groups[0].ErrorCode); code != 0 {
		return res.Groups[0], code
	}
	return res.Groups[0], nil
}

// subscribedTopics reads the topics out of what a member says of itself: a version,
// the topics, and more that depends on the version.
func subscribedTopics(metadata []byte) (topics []string) {
	rest := metadata
	take := func(n int) []byte {
		if n < 0 || n > len(rest) {
			rest = nil
			return nil
		}
		b := rest[:n]
		rest = rest[n:]
		return b
	}
	if len(take(2)) == 0 {
		return nil
	}
	count := take(4)
	if len(count) == 0 {
		return nil
	}
	for range binary.BigEndian.Uint32(count) {
		length := take(2)
		if len(length) == 0 {
			return topics
		}
		name := take(int(binary.BigEndian.Uint16(length)))
		if name == nil {
			return topics
		}
		topics = append(topics, string(name))
	}
	return topics
}

// lag returns how many messages of the topics the group has not read, and where it
// fell behind what Kafka still has.
func (d *kafkaDoctor) lag(ctx context.Context, group string, names []string, topics map[string]kafka.Topic) (lag int64, behind []string, err error) {
	ask, ends := map[string][]int{}, map[string][]kafka.OffsetRequest{}
	for _, name := range names {
		if topics[name].Error != nil {
			continue
		}
		for _, p := range topics[name].Partitions {
			ask[name] = append(ask[name], p.ID)
			ends[name] = append(ends[name], kafka.FirstOffsetOf(p.ID), kafka.LastOffsetOf(p.ID))
		}
	}
	if len(ask) == 0 {
		return 0, nil, nil
	}
	committed, err := d.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group, Topics: ask})
	if err == nil {
		err = committed.Error
	}
	if err != nil {
		return 0, nil, err
	}
	offsets, err := d.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: ends})
	if err != nil {
		return 0, nil, err
	}
	at := map[string]map[int]int64{}
	for name, partitions := range committed.Topics {
		at[name] = map[int]int64{}
		for _, p := range partitions {
			if p.Error != nil {
				return 0, nil, p.Error
			}
			at[name][p.Partition] = p.CommittedOffset
		}
	}
	for name, partitions := range offsets.Topics {
		for _, p := range partitions {
			if p.Error != nil {
				return 0, nil, p.Error
			}
			from, ok := at[name][p.Partition]
			if !ok || from < 0 {
				from = p.FirstOffset // it begins at the start
			}
			if from < p.FirstOffset {
				behind = append(behind, fmt.Sprintf("%d in partition %d of %s", p.FirstOffset-from, p.Partition, name))
				from = p.FirstOffset
			}
			lag += max(0, p.LastOffset-from)
		}
	}
	return lag, behind, nil
}
