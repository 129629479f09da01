package ingest_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/scram"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	franzscram "github.com/twmb/franz-go/pkg/sasl/scram"

	"delaybridge/ingest"
	"delaybridge/test/servers"
)

// Both of kafka-go's ways to a broker are taken: the group's and the fetches'.
func TestKafkaOverTLSWithSASL(t *testing.T) {
	t.Parallel()
	cert, pool := selfSigned(t)
	client := &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12}
	const topic = "secured"
	k := servers.NewKfake(t, kfake.TLS(&tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}),
		kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "bridge", "secret"), kfake.SeedTopics(1, topic))
	w := k.Client(t, kgo.DialTLSConfig(client), kgo.SASL(franzscram.Auth{User: "bridge", Pass: "secret"}.AsSha512Mechanism()))
	produceN(t, w, topic, 0, 0, 10)

	mechanism, err := scram.Mechanism(scram.SHA512, "bridge", "secret")
	if err != nil {
		t.Fatal(err)
	}
	transport := &kafka.Transport{TLS: client, SASL: mechanism}
	t.Cleanup(transport.CloseIdleConnections)
	q := newKafkaQueue()
	read(t, k, q, "group", []string{topic}, func(c *ingest.KafkaConfig) {
		c.Transport, c.Dialer = transport, &kafka.Dialer{TLS: client, SASLMechanism: mechanism}
	})
	q.awaitCount(t, 10)
}

// selfSigned returns a certificate for 127.0.0.1, and the pool that trusts it.
func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}
