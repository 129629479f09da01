package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"delaybridge/test/servers"
)

// TestNATSLinks signs in to NATS in each way that there is, with the settings
// alone, and passes one message through.
func TestNATSLinks(t *testing.T) {
	t.Parallel()
	certs := newCertificates(t)
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := user.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	seedFile := filepath.Join(t.TempDir(), "seed")
	if err := os.WriteFile(seedFile, append(seed, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}

	for _, row := range []struct {
		about  string
		server func(*server.Options)
		client []nats.Option
		user   string // part of the URL
		env    Env
	}{
		{"user and password in the URL", func(o *server.Options) { o.Username, o.Password = "bridge", "p@ss" },
			[]nats.Option{nats.UserInfo("bridge", "p@ss")}, "bridge:p%40ss@", nil},
		{"a token in the URL", func(o *server.Options) { o.Authorization = "t0ken" },
			[]nats.Option{nats.Token("t0ken")}, "t0ken@", nil},
		{"an NKey seed from a file", func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: public}} },
			[]nats.Option{nats.Nkey(public, user.Sign)}, "", Env{"NATS_NKEY_FILE": seedFile}},
		{"TLS with a client certificate", func(o *server.Options) { o.TLSConfig, o.TLS, o.TLSVerify = certs.server(), true, true },
			[]nats.Option{nats.Secure(certs.client())}, "", Env{"NATS_TLS_CA": certs.ca, "NATS_TLS_CERT": certs.cert, "NATS_TLS_KEY": certs.key}},
	} {
		t.Run(row.about, func(t *testing.T) {
			t.Parallel()
			redis, ns := servers.NewRedis(t), servers.NewNATS(t, row.server)
			nc := ns.Connect(t, row.client...)
			js, err := jetstream.New(nc)
			if err != nil {
				t.Fatal(err)
			}
			stream(t, js, "ORDERS", "orders.>")
			table := NewTimetable(t, nc, "orders.>")
			address := ns.URL[strings.LastIndex(ns.URL, "/")+1:]
			p := Serve(t, Env{"REDIS_URL": redis.URL, "NATS_URL": "nats://" + row.user + address}.With(row.env))
			w := &world{js: js}
			w.awaitStream(t)
			sent := publish(t, js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: 100ms", "Bridge-Id: one")
			table.Expect("one", sent.Add(100*time.Millisecond))
			table.Check(t)
			for _, secret := range []string{"p%40ss", "p@ss", "t0ken", string(seed)} {
				if strings.Contains(p.Output(), secret) {
					t.Errorf("the log shows %s:\n%s", secret, p.Output())
				}
			}
		})
	}
}

// TestWrongPasswordIsSaidOnce starts a bridge that NATS does not let in, until
// it does.
func TestWrongPasswordIsSaidOnce(t *testing.T) {
	t.Parallel()
	redis := servers.NewRedis(t)
	ns := servers.NewNATS(t, func(o *server.Options) { o.Username, o.Password = "bridge", "right" })
	address := ns.URL[strings.LastIndex(ns.URL, "/")+1:]
	p := Serve(t, Env{"REDIS_URL": redis.URL, "NATS_URL": "nats://bridge:wr0ng@" + address})
	p.Await(t, "Authorization Violation")
	if strings.Contains(p.Output(), "wr0ng") {
		t.Errorf("the log shows the password:\n%s", p.Output())
	}
}

// TestKafkaLink signs in to Kafka by TLS and SCRAM, to read and to write. kfake
// stands in for the broker, since it is the same to the client.
func TestKafkaLink(t *testing.T) {
	t.Parallel()
	certs := newCertificates(t)
	redis := servers.NewRedis(t)
	kafka := servers.NewKfake(t, kfake.TLS(certs.server()), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-256", "bridge", "s3cret"),
		kfake.SeedTopics(1, "bridge.schedule", "orders"))
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	client := func(options ...kgo.Opt) *kgo.Client {
		return kafka.Client(t, append(options, kgo.DialTLSConfig(certs.client()),
			kgo.SASL(scram.Auth{User: "bridge", Pass: "s3cret"}.AsSha256Mechanism()))...)
	}
	p := Serve(t, Env{
		"REDIS_URL": redis.URL, "KAFKA_BROKERS": strings.Join(kafka.Brokers, ","), "KAFKA_TLS_CA": certs.ca,
		"KAFKA_SASL_MECHANISM": "scram-sha-256", "KAFKA_SASL_USERNAME": "bridge", "KAFKA_SASL_PASSWORD_FILE": password,
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := client().ProduceSync(ctx, &kgo.Record{Topic: "bridge.schedule", Value: []byte("x"), Headers: []kgo.RecordHeader{
		{Key: "Bridge-Target", Value: []byte("kafka://orders")}, {Key: "Bridge-Delay", Value: []byte("100ms")},
	}}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	fetches := client(kgo.ConsumeTopics("orders"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())).PollFetches(ctx)
	if err := fetches.Err(); err != nil || string(fetches.Records()[0].Value) != "x" {
		t.Fatalf("%v, %v", err, fetches.Records())
	}
	if strings.Contains(p.Output(), "s3cret") {
		t.Errorf("the log shows the password:\n%s", p.Output())
	}
}

// TestRedisStrictRefuses holds a start to what Redis says of itself.
func TestRedisStrictRefuses(t *testing.T) {
	t.Parallel()
	ns := servers.NewNATS(t)
	for _, row := range []struct {
		about string
		args  []string
		says  string // empty: it starts
	}{
		{"nothing on disk", nil, "keeps nothing on disk"},
		{"evicts", []string{"--appendonly", "yes", "--maxmemory-policy", "allkeys-lru"}, "maxmemory-policy is allkeys-lru"},
		{"snapshots only", []string{"--save", "60 1"}, ""},
		{"as it should be", []string{"--appendonly", "yes"}, ""},
	} {
		t.Run(row.about, func(t *testing.T) {
			t.Parallel()
			env := Env{"REDIS_URL": servers.NewRedis(t, row.args...).URL, "NATS_URL": ns.URL, "REDIS_STRICT": "true", "NATS_INGEST_CREATE": "false"}
			if row.says == "" {
				Serve(t, env)
				return
			}
			p := Start(t, env, "serve")
			if code := p.Exit(t); code != 1 || !strings.Contains(p.Output(), "bridge: BRIDGE_REDIS_STRICT") || !strings.Contains(p.Output(), row.says) {
				t.Errorf("code %d: %s", code, p.Output())
			}
		})
	}
}

// TestRedisPassword tells a wrong password from a Redis that is not there: only
// the first is worth no waiting.
func TestRedisPassword(t *testing.T) {
	t.Parallel()
	redis := servers.NewRedis(t, servers.RedisTCP)
	if err := redis.Client(t).ConfigSet(context.Background(), "requirepass", "right").Err(); err != nil {
		t.Fatal(err)
	}
	address := strings.TrimPrefix(redis.URL, "redis://")
	if r := Run(t, Env{"REDIS_URL": "redis://:right@" + address}, "", "stats"); r.Code != 0 {
		t.Errorf("right password: %+v", r)
	}
	p := Start(t, Env{"REDIS_URL": "redis://:wr0ng@" + address, "NATS_URL": "nats://127.0.0.1:1"}, "serve")
	if code := p.Exit(t); code != 1 || !strings.Contains(p.Output(), "WRONGPASS") || strings.Contains(p.Output(), "wr0ng") {
		t.Errorf("wrong password: code %d: %s", code, p.Output())
	}
}

// TestSourceIsAckedAfterReplicas holds back the acknowledgement until a replica
// has what was written.
func TestSourceIsAckedAfterReplicas(t *testing.T) {
	t.Parallel()
	w, master := newWorld(t), servers.NewRedis(t, servers.RedisTCP)
	w.env = w.env.With(Env{"REDIS_URL": master.URL})
	p := w.serve(t, Env{"REDIS_WAIT_REPLICAS": "1"})
	publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: 1h", "Bridge-Id: one")
	p.Await(t, "too few replicas have the write")
	consumer, err := w.js.Consumer(context.Background(), "BRIDGE_SCHEDULE", "bridge")
	if err != nil {
		t.Fatal(err)
	}
	if n := consumer.CachedInfo().NumAckPending; n != 1 {
		t.Errorf("%d messages wait for their acknowledgement, want 1", n)
	}
	replica := servers.NewRedis(t)
	if err := replica.Client(t).ReplicaOf(context.Background(), "127.0.0.1", strconv.Itoa(master.Port)).Err(); err != nil {
		t.Fatal(err)
	}
	if !servers.Eventually(func() bool {
		info, err := consumer.Info(context.Background())
		return err == nil && info.NumAckPending == 0 && info.AckFloor.Stream == 1
	}) {
		t.Error("the message was not acknowledged")
	}
}

// certificates are a CA and a certificate of it that serves both ends, in files.
type certificates struct {
	ca, cert, key string
	pair          tls.Certificate
	pool          *x509.CertPool
}

func newCertificates(t *testing.T) *certificates {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	template := func(serial int64, isCA bool) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "bridge test"},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			IsCA: isCA, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	ca := template(1, true)
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	check(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	certDER, err := x509.CreateCertificate(rand.Reader, template(2, false), ca, key.Public(), caKey)
	check(err)
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	check(err)

	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(dir, name)
		check(os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return path
	}
	c := &certificates{
		ca:   write("ca.pem", "CERTIFICATE", caDER),
		cert: write("cert.pem", "CERTIFICATE", certDER), key: write("key.pem", "PRIVATE KEY", keyDER),
		pool: x509.NewCertPool(),
	}
	c.pair, err = tls.LoadX509KeyPair(c.cert, c.key)
	check(err)
	parsed, err := x509.ParseCertificate(caDER)
	check(err)
	c.pool.AddCert(parsed)
	return c
}

func (c *certificates) server() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{c.pair}, ClientCAs: c.pool}
}

func (c *certificates) client() *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{c.pair}, RootCAs: c.pool}
}
