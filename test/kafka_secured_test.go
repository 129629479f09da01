package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"delaybridge/test/servers"
)

// TestKafkaSecured goes from Kafka to Kafka with a broker that takes TLS and a
// user's password only, by the settings of a user.
func TestKafkaSecured(t *testing.T) {
	t.Parallel()
	const user, password = "bridge", "s3cret, with blanks"
	ca := newAuthority(t)
	server := &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "broker").pair}, MinVersion: tls.VersionTLS12}
	mutual := server.Clone()
	mutual.ClientCAs, mutual.ClientAuth = ca.pool, tls.RequireAndVerifyClientCert
	client := ca.issue(t, "client")
	secret := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(secret, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	for _, row := range []struct {
		about     string
		tls       *tls.Config // of the broker, nil for none
		mechanism string      // as kfake spells it
		env       Env
		producer  sasl.Mechanism
	}{
		{"TLS alone", server, "", Env{"KAFKA_TLS_CA": ca.file}, nil},
		{"TLS with a client's certificate", mutual, "", Env{"KAFKA_TLS_CA": ca.file, "KAFKA_TLS_CERT": client.certFile, "KAFKA_TLS_KEY": client.keyFile}, nil},
		{"scram-sha-512 over TLS, password from a file", server, "SCRAM-SHA-512",
			Env{"KAFKA_TLS_CA": ca.file, "KAFKA_SASL_MECHANISM": "scram-sha-512", "KAFKA_SASL_USERNAME": user, "KAFKA_SASL_PASSWORD_FILE": secret},
			scram.Auth{User: user, Pass: password}.AsSha512Mechanism()},
		{"scram-sha-256 over TLS", server, "SCRAM-SHA-256",
			Env{"KAFKA_TLS_CA": ca.file, "KAFKA_SASL_MECHANISM": "scram-sha-256", "KAFKA_SASL_USERNAME": user, "KAFKA_SASL_PASSWORD": password},
			scram.Auth{User: user, Pass: password}.AsSha256Mechanism()},
		{"plain over TLS", server, "PLAIN",
			Env{"KAFKA_TLS_CA": ca.file, "KAFKA_SASL_MECHANISM": "plain", "KAFKA_SASL_USERNAME": user, "KAFKA_SASL_PASSWORD": password},
			plain.Auth{User: user, Pass: password}.AsMechanism()},
		{"scram-sha-512 without TLS", nil, "SCRAM-SHA-512",
			Env{"KAFKA_SASL_MECHANISM": "scram-sha-512", "KAFKA_SASL_USERNAME": user, "KAFKA_SASL_PASSWORD": password},
			scram.Auth{User: user, Pass: password}.AsSha512Mechanism()},
	} {
		t.Run(row.about, func(t *testing.T) {
			t.Parallel()
			options := []kfake.Opt{kfake.SeedTopics(1, "in", "out")}
			var link []kgo.Opt
			if row.tls != nil {
				options = append(options, kfake.TLS(row.tls))
				link = append(link, kgo.DialTLSConfig(&tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{client.pair}, MinVersion: tls.VersionTLS12}))
			}
			if row.mechanism != "" {
				options = append(options, kfake.EnableSASL(), kfake.Superuser(row.mechanism, user, password))
				link = append(link, kgo.SASL(row.producer))
			}
			k := servers.NewKfake(t, options...)
			env := Env{"REDIS_URL": servers.NewRedis(t).URL, "KAFKA_BROKERS": strings.Join(k.Brokers, ","), "KAFKA_INGEST_TOPICS": "in"}
			p := Serve(t, env.With(row.env))
			r := request("secured", "Bridge-Target: kafka://out", "Bridge-Delay: 100ms")
			r.Topic = "in"
			w := &kafkaWorld{kafka: k, producer: k.Client(t, link...)}
			w.send(t, r)
			watchTopics(t, k, []string{"out"}, link...).await(t, "secured")
			if strings.Contains(p.Output(), password) {
				t.Errorf("the password is in the log:\n%s", p.Output())
			}
		})
	}
}

// TestKafkaSecuredApache is the same on Apache Kafka, and what it says to a
// user who is not let in: the bridge repeats that, without the password, and
// waits.
func TestKafkaSecuredApache(t *testing.T) {
	t.Parallel()
	if !servers.HaveKafka(t) {
		t.Skip("kfake closes the connection where Apache Kafka says what is wrong")
	}
	const user, password = "bridge", "s3cret with blanks"
	ca, other := newAuthority(t), newAuthority(t)
	cert := ca.issue(t, "broker")
	store := filepath.Join(t.TempDir(), "store.pem")
	var both []byte
	for _, f := range []string{cert.keyFile, cert.certFile} {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		both = append(both, b...)
	}
	if err := os.WriteFile(store, both, 0o600); err != nil {
		t.Fatal(err)
	}
	plainPort, controller, secured := servers.FreePort(t), servers.FreePort(t), servers.FreePort(t)
	k := servers.NewKafka(t, servers.KafkaPort(plainPort),
		fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d,SASL_SSL://127.0.0.1:%d", plainPort, controller, secured),
		fmt.Sprintf("controller.quorum.voters=1@127.0.0.1:%d", controller),
		"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
		"ssl.keystore.type=PEM", "ssl.keystore.location="+store,
		"sasl.enabled.mechanisms=SCRAM-SHA-256,SCRAM-SHA-512",
		"listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
		"listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;",
	)
	addUser(t, k, user, password)
	in, out := k.Topic(t, 1), k.Topic(t, 1)
	settings := Env{
		"KAFKA_BROKERS": fmt.Sprintf("127.0.0.1:%d", secured), "KAFKA_INGEST_TOPICS": in, "KAFKA_TLS_CA": ca.file,
		"KAFKA_SASL_USERNAME": user, "KAFKA_SASL_PASSWORD": password, "KAFKA_SASL_MECHANISM": "scram-sha-512",
	}

	t.Run("let in", func(t *testing.T) {
		t.Parallel()
		Serve(t, settings.With(Env{"REDIS_URL": servers.NewRedis(t).URL}))
		w := &kafkaWorld{kafka: k, in: in, producer: k.Client(t)}
		w.send(t, request("secured", "Bridge-Target: kafka://"+out, "Bridge-Delay: 100ms"))
		w.watch(t, out).await(t, "secured")
	})
	for _, row := range []struct {
		about string
		env   Env
		says  string
	}{
		{"a wrong password", Env{"KAFKA_SASL_PASSWORD": "wr0ngpassw0rd"}, "SASL Authentication Failed"},
		{"an unknown user", Env{"KAFKA_SASL_USERNAME": "somebody"}, "SASL Authentication Failed"},
		{"a mechanism that the broker does not have", Env{"KAFKA_SASL_MECHANISM": "plain"}, "Unsupported SASL Mechanism"},
		{"an authority that did not sign the broker's certificate", Env{"KAFKA_TLS_CA": other.file}, "certificate signed by unknown authority"},
	} {
		t.Run(row.about, func(t *testing.T) {
			t.Parallel()
			p := Serve(t, settings.With(row.env).With(Env{"REDIS_URL": servers.NewRedis(t).URL, "KAFKA_INGEST_GROUP": servers.TopicName(t)}))
			p.Await(t, row.says)
			if ended, _ := p.Ended(); ended {
				t.Error("the bridge has ended")
			}
			for _, secret := range []string{password, "wr0ngpassw0rd"} {
				if strings.Contains(p.Output(), secret) {
					t.Errorf("the password is in the log:\n%s", p.Output())
				}
			}
		})
	}
}

// addUser gives a user of Apache Kafka a password for scram-sha-512.
func addUser(t *testing.T, k *servers.Kafka, user, password string) {
	t.Helper()
	const iterations = 4096
	salt := []byte("salt of the test")
	salted, err := pbkdf2.Key(sha512.New, password, salt, iterations, sha512.Size)
	if err != nil {
		t.Fatal(err)
	}
	u := kmsg.NewAlterUserSCRAMCredentialsRequestUpsertion()
	u.Name, u.Mechanism, u.Iterations, u.Salt, u.SaltedPassword = user, 2, iterations, salt, salted
	req := kmsg.NewPtrAlterUserSCRAMCredentialsRequest()
	req.Upsertions = append(req.Upsertions, u)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	resp, err := req.RequestWith(ctx, k.Client(t))
	if err == nil {
		err = kerr.ErrorForCode(resp.Results[0].ErrorCode)
	}
	if err != nil {
		t.Fatalf("add user %s: %v", user, err)
	}
}

// authority issues certificates for 127.0.0.1.
type authority struct {
	dir, file string
	pool      *x509.CertPool
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
}

type issued struct {
	pair              tls.Certificate
	certFile, keyFile string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{dir: t.TempDir(), pool: x509.NewCertPool()}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key = newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pool.AddCert(a.cert)
	a.file = a.write(t, "ca.pem", "CERTIFICATE", der)
	return a
}

// issue returns a certificate of that name, for servers and clients.
func (a *authority) issue(t *testing.T, name string) issued {
	t.Helper()
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return issued{
		pair:     tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		certFile: a.write(t, name+".pem", "CERTIFICATE", der),
		keyFile:  a.write(t, name+".key", "PRIVATE KEY", raw),
	}
}

func (a *authority) write(t *testing.T, name, kind string, der []byte) string {
	t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
