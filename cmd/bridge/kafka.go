package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
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
	tls  *tls.Config
	sasl sasl.Mechanism
}

// newKafkaLink returns the link of the settings; the error is a settingError.
func (s *Settings) newKafkaLink(ctx context.Context) (link kafkaLink, err error) {
	if link.tls, err = s.kafkaTLS(); err != nil {
		return link, err
	}
	link.sasl, err = s.kafkaSASL(ctx)
	return link, err
}

// transport returns a transport for all topics, or for some only.
func (l kafkaLink) transport(topics ...string) *kafka.Transport {
	return &kafka.Transport{
		ClientID: kafkaClientID, DialTimeout: kafkaDialTimeout, TLS: l.tls, SASL: l.sasl, MetadataTopics: topics,
	}
}

func (l kafkaLink) dialer() *kafka.Dialer {
	return &kafka.Dialer{ClientID: kafkaClientID, Timeout: kafkaDialTimeout, DualStack: true, TLS: l.tls, SASLMechanism: l.sasl}
}

func (s *Settings) kafkaTLS() (*tls.Config, error) {
	t := &s.Kafka.TLS
	if !t.Enable && t.CA == "" && t.Cert == "" {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		pem, err := os.ReadFile(string(t.CA))
		if err != nil {
			return nil, *wrong("KAFKA_TLS_CA", t.CA, "takes the path of a file that can be read: "+err.Error())
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, *wrong("KAFKA_TLS_CA", t.CA, "takes the path of certificates in PEM, and finds none in it")
		}
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(string(t.Cert), string(t.Key))
		if err != nil {
			return nil, *wrong("KAFKA_TLS_CERT", t.Cert, "takes a certificate and in BRIDGE_KAFKA_TLS_KEY its key, in PEM: "+err.Error())
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// The mechanisms of BRIDGE_KAFKA_SASL_MECHANISM.
const (
	saslPlain       = "plain"
	saslScramSHA256 = "scram-sha-256"
	saslScramSHA512 = "scram-sha-512"
	saslMSKIAM      = "aws-msk-iam"
)

func (s *Settings) kafkaSASL(ctx context.Context) (sasl.Mechanism, error) {
	k := &s.Kafka.SASL
	scramOf := func(algorithm scram.Algorithm) (sasl.Mechanism, error) {
		m, err := scram.Mechanism(algorithm, string(k.Username), string(k.Password))
		if err != nil {
			// The text may repeat what cannot be prepared, which is the password.
			return nil, *wrong("KAFKA_SASL_PASSWORD", k.Password, "or BRIDGE_KAFKA_SASL_USERNAME has characters that SCRAM does not allow")
		}
		return m, nil
	}
	switch k.Mechanism {
	case saslPlain:
		return plain.Mechanism{Username: string(k.Username), Password: string(k.Password)}, nil
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
	if (k.TLS.Cert == "") != (k.TLS.Key == "") {
		return wrong("KAFKA_TLS_CERT", k.TLS.Cert, "takes the certificate of BRIDGE_KAFKA_TLS_KEY: set both or none")
	}
	for _, topic := range k.Ingest.Topics {
		if _, err := ingest.ParseSource(delaybridge.SinkKafka + "://" + topic); err != nil {
			return wrong("KAFKA_INGEST_TOPICS", k.Ingest.Topics, fmt.Sprintf("takes topics with commas between; %s %s", topic, reasonOf(err)))
		}
	}
	return first(
		readable("KAFKA_TLS_CA", k.TLS.CA),
		readable("KAFKA_TLS_CERT", k.TLS.Cert),
		readable("KAFKA_TLS_KEY", k.TLS.Key),
		matches("KAFKA_INGEST_GROUP", k.Ingest.Group, groupForm, "takes the name of a consumer group"),
	)
}
