package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/metadata"
)

// Operations of Kafka's permissions: an answer holds a bit for each that is allowed.
const (
	aclRead  = 3
	aclWrite = 4
)

// mayDo reports whether an answer allows an operation. One that does not tell,
// as of brokers before 2.3, allows all.
func mayDo(allowed int32, operation int) bool {
	return allowed == 0 || allowed == math.MinInt32 || allowed&(1<<operation) != 0
}

// allowedRequest asks any broker about topics and what the user may do with them.
// The transport would answer plain metadata requests from its memory, which does
// not have that.
type allowedRequest struct {
	protocol.Message
	version int16
}

// Broker lets any do.
func (*allowedRequest) Broker(protocol.Cluster) (protocol.Broker, error) {
	return protocol.Broker{ID: -1}, nil
}

// Required says that the exchange is this type's.
func (*allowedRequest) Required(map[protocol.ApiKey]int16) bool { return true }

// Prepare learns the version that was negotiated.
func (r *allowedRequest) Prepare(version int16) { r.version = version }

// RawExchange sends the request.
func (r *allowedRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	m, err := protocol.RoundTrip(rw, r.version, 1, kafkaClientID, r.Message)
	return allowedResponse{m}, err
}

// allowedResponse answers it; the transport would take a plain one for an answer to
// a request of its own.
type allowedResponse struct{ protocol.Message }

// permissions asks what the user may do with the topics: nothing is written to find
// out.
func (d *kafkaDoctor) permissions(ctx context.Context, sources []string, targets []settingTarget) {
	const check = "permissions"
	names := append([]string{}, sources...)
	for _, t := range targets {
		names = append(names, t.Name)
	}
	if len(names) == 0 {
		return
	}
	m, err := d.client.Transport.RoundTrip(ctx, d.client.Addr, &allowedRequest{Message: &metadata.Request{TopicNames: names, IncludeTopicAuthorizedOperations: true}})
	answer, _ := m.(allowedResponse)
	res, ok := answer.Message.(*metadata.Response)
	if err != nil || !ok {
		if err == nil {
			err = fmt.Errorf("%T is no answer", m)
		}
		d.note(check, "the brokers do not say what the user may do: "+shortCause(err), "look by hand: kafka-acls --bootstrap-server <broker> --list")
		return
	}
	told := true
	before := len(d.all())
	refused := func(topic, operation, otherwise string) {
		d.problem(check, fmt.Sprintf("the user may not %s %s: %s", strings.ToLower(operation), topic, otherwise),
			"kafka-acls --bootstrap-server <broker> --add --allow-principal User:<user> --operation "+operation+" --operation Describe --topic "+topic)
	}
	for _, t := range res.Topics {
		if kafka.Error(t.ErrorCode) != 0 {
			continue // it was said
		}
		told = told && t.TopicAuthorizedOperations != 0 && t.TopicAuthorizedOperations != math.MinInt32
		if slices.Contains(sources, t.Name) && !mayDo(t.TopicAuthorizedOperations, aclRead) {
			refused(t.Name, "Read", "nothing is taken in from it")
		}
		if slices.ContainsFunc(targets, func(o settingTarget) bool { return o.Name == t.Name }) && !mayDo(t.TopicAuthorizedOperations, aclWrite) {
			refused(t.Name, "Write", "its messages become dead letters, reason permanent")
		}
	}
	switch {
	case len(d.all()) > before:
	case told:
		d.ok(check, "the user may do with the topics what the settings need (targets that only messages name are not known here)")
	default:
		d.note(check, "the brokers do not say what the user may do", "")
	}
}
