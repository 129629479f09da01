package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/aws_msk_iam_v2"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"delaybridge"
	"delaybridge/ingest"
)

const (
	kafkaClientID    = "delaybridge"
	kafkaDialTimeout = 5 * time.Second
)

// kafkaLink is how every connection to Kafka is made, to read and to write.
type kafkaLink struct {
	// dial opens a connection, by TLS where the settings ask for it.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	sasl sasl.Mechanism
}

// newKafkaLink returns the link of the settings; the error is a settingError.
func (s *Settings) newKafkaLink(ctx context.Context) (link kafkaLink, err error) {
	link.dial = (&net.Dialer{}).DialContext
	if s.kafkaUsesTLS() {
		link.dial = s.kafkaTLS().dial
	}
	link.sasl, err = s.kafkaSASL(ctx)
	return link, err
}

// transport returns a transport for all topics, or for some only.
func (l kafkaLink) transport(topics ...string) *kafka.Transport {
	return &kafka.Transport{
		ClientID: kafkaClientID, DialTimeout: kafkaDialTimeout, Dial: l.dial, SASL: l.sasl, MetadataTopics: topics,
	}
}

func (l kafkaLink) dialer() *kafka.Dialer {
	return &kafka.Dialer{ClientID: kafkaClientID, Timeout: kafkaDialTimeout, DialFunc: l.dial, SASLMechanism: l.sasl}
}

// kafkaUsesTLS says that TLS was asked for, by its switch or by any of its settings.
func (s *Settings) kafkaUsesTLS() bool { return bool(s.Kafka.TLS.Enable) || s.kafkaTLS().isSet() }

// The mechanisms of BRIDGE_KAFKA_SASL_MECHANISM.
const (
	saslPlain       = "plain"
	saslScramSHA256 = "scram-sha-256"
	saslScramSHA512 = "scram-sha-512"
	saslMSKIAM      = "aws-msk-iam"
)

// passwordMechanism signs in with the password that is valid when a connection is
// made.
type passwordMechanism struct {
	name     string
	password *rotating
	with     func(password string) (sasl.Mechanism, error)
}

// Name implements sasl.Mechanism.
func (m *passwordMechanism) Name() string { return m.name }

// Start implements sasl.Mechanism.
func (m *passwordMechanism) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	now, err := m.with(m.password.read())
	if err != nil {
		return nil, nil, err
	}
	return now.Start(ctx)
}

func (s *Settings) kafkaSASL(ctx context.Context) (sasl.Mechanism, error) {
	k := &s.Kafka.SASL
	byPassword := func(with func(password string) (sasl.Mechanism, error)) (sasl.Mechanism, error) {
		m, err := with(string(k.Password))
		if err != nil {
			return nil, err
		}
		return &passwordMechanism{name: m.Name(), password: s.secretOf("KAFKA_SASL_PASSWORD", string(k.Password)), with: with}, nil
	}
	scramOf := func(algorithm scram.Algorithm) (sasl.Mechanism, error) {
		return byPassword(func(password string) (sasl.Mechanism, error) {
			m, err := scram.Mechanism(algorithm, string(k.Username), password)
			if err != nil {
				// The text may repeat what cannot be prepared, which is the password.
				return nil, *wrong("KAFKA_SASL_PASSWORD", k.Password, "or BRIDGE_KAFKA_SASL_USERNAME has characters that SCRAM does not allow")
			}
			return m, nil
		})
	}
	switch k.Mechanism {
	case saslPlain:
		return byPassword(func(password string) (sasl.Mechanism, error) {
			return plain.Mechanism{Username: string(k.Username), Password: password}, nil
		})
	case saslScramSHA256:
		return scramOf(scram.SHA256)
	case saslScramSHA512:
		return scramOf(scram.SHA512)
	case saslMSKIAM:
		// Region and credentials are found as every AWS program finds them.
		c, err := awsconfig.LoadDefaultConfig(ctx)
		if err == nil && c.Region == "" {
			err = errors.New("no region is known; set AWS_REGION")
		}
		if err != nil {
			return nil, *wrong("KAFKA_SASL_MECHANISM", k.Mechanism, "takes AWS's own settings too: "+err.Error())
		}
		return aws_msk_iam_v2.NewMechanism(c), nil
	}
	return nil, nil
}

func (s *Settings) checkKafka() *settingError {
	k := &s.Kafka
	for _, b := range k.Brokers {
		host, port, err := net.SplitHostPort(b)
		if n, perr := strconv.Atoi(port); err != nil || host == "" || perr != nil || n < 1 || n > 65535 {
			return wrong("KAFKA_BROKERS", k.Brokers, "takes host:port addresses with commas between")
		}
	}
	if k.SASL.Mechanism != "" {
		if e := oneOf("KAFKA_SASL_MECHANISM", k.SASL.Mechanism, saslPlain, saslScramSHA256, saslScramSHA512, saslMSKIAM); e != nil {
			return e
		}
		if k.SASL.Mechanism != saslMSKIAM && (k.SASL.Username == "" || k.SASL.Password == "") {
			return wrong("KAFKA_SASL_MECHANISM", k.SASL.Mechanism, "takes BRIDGE_KAFKA_SASL_USERNAME and BRIDGE_KAFKA_SASL_PASSWORD too")
		}
	}
	for _, topic := range k.Ingest.Topics {
		if _, err := ingest.ParseSource(delaybridge.SinkKafka + "://" + topic); err != nil {
			return wrong("KAFKA_INGEST_TOPICS", k.Ingest.Topics, fmt.Sprintf("takes topics with commas between; %s %s", topic, reasonOf(err)))
		}
	}
	return first(
		matches("KAFKA_INGEST_GROUP", k.Ingest.Group, groupForm, "takes the name of a consumer group"),
	)
}
