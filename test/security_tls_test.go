package test

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"delaybridge/test/servers"
)

// replaced is a set of files that stay where they are while what is in them
// changes, as a secret manager does it.
type replaced struct{ ca, cert, key string }

func newReplaced(t *testing.T) replaced {
	dir := t.TempDir()
	return replaced{filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")}
}

// by puts certificates of that authority into the files.
func (r replaced) by(t *testing.T, ca *authority, name string) {
	t.Helper()
	c := ca.issue(t, name)
	for to, from := range map[string]string{r.ca: ca.file, r.cert: c.certFile, r.key: c.keyFile} {
		content, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		putFile(t, to, string(content))
	}
}

// putFile replaces a file at once.
func putFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// passes sends a message through the bridge and waits for it.
func (w *world) passes(t *testing.T, id string) {
	t.Helper()
	publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: 0s", "Bridge-Id: "+id)
	w.table.Await(t, id)
}

// TestRedisByTLS runs everything over TLS with certificates on both sides, and
// goes on when all of them are replaced by those of another authority.
func TestRedisByTLS(t *testing.T) {
	t.Parallel()
	port := servers.FreePort(t)
	theirs, ours := newReplaced(t), newReplaced(t)
	ca := newAuthority(t)
	theirs.by(t, ca, "redis")
	ours.by(t, ca, "bridge")
	w := &world{nats: servers.NewNATS(t), redis: servers.NewRedis(t, "--appendonly", "yes", "--tls-port", fmt.Sprint(port),
		"--tls-cert-file", theirs.cert, "--tls-key-file", theirs.key, "--tls-ca-cert-file", theirs.ca, "--tls-auth-clients", "yes")}
	w.js = w.nats.JetStream(t)
	stream(t, w.js, "ORDERS", "orders.>")
	w.table = NewTimetable(t, w.nats.Connect(t), "orders.>")
	host := fmt.Sprintf("127.0.0.1:%d", port)
	w.env = Env{"NATS_URL": w.nats.URL, "REDIS_URL": "rediss://" + host + "/0", "REDIS_TLS_CA": ours.ca, "REDIS_TLS_CERT": ours.cert, "REDIS_TLS_KEY": ours.key}
	w.serve(t, nil)
	w.passes(t, "one")

	other := newAuthority(t)
	for _, row := range []struct {
		about string
		env   Env
		code  int
		says  string
	}{
		{"all is well", nil, 0, ""},
		{"an authority that did not sign the server's certificate", Env{"REDIS_TLS_CA": other.file}, 1, "certificate signed by unknown authority"},
		{"the system's authorities", Env{"REDIS_TLS_CA": ""}, 1, "certificate signed by unknown authority"},
		{"a name that the server does not have", Env{"REDIS_URL": fmt.Sprintf("rediss://localhost:%d/0", port)}, 1, "localhost"},
		{"a name of its own to look for", Env{"REDIS_URL": fmt.Sprintf("rediss://localhost:%d/0", port), "REDIS_TLS_SERVER_NAME": "127.0.0.1"}, 0, ""},
		{"no certificate of ours", Env{"REDIS_TLS_CERT": "", "REDIS_TLS_KEY": ""}, 1, "certificate"},
		{"a plain URL beside TLS settings", Env{"REDIS_URL": "redis://" + host + "/0"}, 2, "would not be encrypted"},
		{"a certificate without its key", Env{"REDIS_TLS_KEY": ""}, 2, "set both or none"},
		{"a key of another certificate", Env{"REDIS_TLS_KEY": theirs.key}, 2, "REDIS_TLS_CERT"},
		{"what is no certificate", Env{"REDIS_TLS_CA": ours.key}, 2, "finds none in it"},
		{"no check by the URL", Env{"REDIS_URL": "rediss://" + host + "/0?skip_verify=true"}, 2, "INSECURE_SKIP_VERIFY"},
		{"no check by the setting, which shouts", Env{"REDIS_TLS_CA": "", "REDIS_TLS_INSECURE_SKIP_VERIFY": "true"}, 0, "INSECURE: BRIDGE_REDIS_TLS_INSECURE_SKIP_VERIFY"},
	} {
		if r := Run(t, w.env.With(row.env), "", "stats"); r.Code != row.code || !strings.Contains(r.Stderr, row.says) {
			t.Errorf("%s: %+v", row.about, r)
		}
	}

	theirs.by(t, other, "redis")
	ours.by(t, other, "bridge")
	w.redis.Stop()
	w.redis.Start(t)
	w.passes(t, "two")
	if r := Run(t, w.env, "", "stats"); r.Code != 0 {
		t.Errorf("a command afterwards: %+v", r)
	}
}

// TestNATSByTLS does the same with NATS, and with an NKey seed that changes.
func TestNATSByTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ours := newReplaced(t)
	first, second := newAuthority(t), newAuthority(t)
	ours.by(t, first, "bridge")
	seed := filepath.Join(dir, "seed")
	putFile(t, seed, newSeed(t).seed+"\n")
	var opts *server.Options
	secure := func(ca *authority) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "nats").pair}, ClientCAs: ca.pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12}
	}
	user := newSeed(t)
	putFile(t, seed, user.seed+"\n")
	w := &world{redis: servers.NewRedis(t), nats: servers.NewNATS(t, func(o *server.Options) {
		opts = o
		o.TLS, o.TLSConfig, o.TLSTimeout = true, secure(first), 5
		o.Nkeys = []*server.NkeyUser{{Nkey: user.public}}
		o.Users = []*server.User{{Username: "admin", Password: "a"}}
	})}
	admin := func(ca *authority) nats.Option {
		return func(o *nats.Options) error {
			c := ca.issue(t, "admin")
			o.User, o.Password, o.Secure = "admin", "a", true
			o.TLSConfig = &tls.Config{RootCAs: ca.pool, Certificates: []tls.Certificate{c.pair}, MinVersion: tls.VersionTLS12}
			return nil
		}
	}
	watch := func(ca *authority) {
		nc := w.nats.Connect(t, admin(ca), nats.NoReconnect())
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		w.js, w.table = js, NewTimetable(t, nc, "orders.>")
	}
	watch(first)
	stream(t, w.js, "ORDERS", "orders.>")
	w.env = Env{"REDIS_URL": w.redis.URL, "NATS_URL": w.nats.URL, "NATS_TLS_CA": ours.ca, "NATS_TLS_CERT": ours.cert, "NATS_TLS_KEY": ours.key, "NATS_NKEY_FILE": seed}
	p := w.serve(t, nil)
	w.passes(t, "one")

	// Another authority, another user: all at once, while the server is away.
	w.nats.Stop()
	user = newSeed(t)
	putFile(t, seed, user.seed+"\n")
	ours.by(t, second, "bridge")
	opts.TLSConfig, opts.Nkeys = secure(second), []*server.NkeyUser{{Nkey: user.public}}
	w.nats.Start(t)
	watch(second)
	w.passes(t, "two")
	if strings.Contains(p.Output(), user.seed) {
		t.Error("the seed is in the log")
	}

	// A server that has no TLS any more is no server.
	w.nats.Stop()
	opts.TLS, opts.TLSConfig = false, nil
	w.nats.Start(t)
	p.Await(t, "secure connection not available")
	for _, url := range []string{"ws://127.0.0.1:1", "nats://127.0.0.1:1, WS://127.0.0.1:1"} {
		if r := Run(t, w.env.With(Env{"NATS_URL": url}), "", "config"); r.Code != 2 || !strings.Contains(r.Stderr, "would not be encrypted") {
			t.Errorf("%s with TLS settings: %+v", url, r)
		}
	}
}

// TestTLSThatIsNotChecked shouts, in the log of serve as well.
func TestTLSThatIsNotChecked(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	w := &world{redis: servers.NewRedis(t), nats: servers.NewNATS(t, func(o *server.Options) {
		o.TLS, o.TLSTimeout = true, 5
		o.TLSConfig = &tls.Config{Certificates: []tls.Certificate{ca.issue(t, "nats").pair}, MinVersion: tls.VersionTLS12}
	})}
	env := Env{"REDIS_URL": w.redis.URL, "NATS_URL": w.nats.URL, "NATS_TLS_INSECURE_SKIP_VERIFY": "true"}
	p := Serve(t, env)
	p.Await(t, "connected to NATS")
	if !strings.Contains(p.Output(), `"level":"warn"`) || !strings.Contains(p.Output(), "INSECURE: BRIDGE_NATS_TLS_INSECURE_SKIP_VERIFY") {
		t.Errorf("it does not shout:\n%s", p.Output())
	}
	if r := Run(t, env.With(Env{"NATS_TLS_CA": ca.file}), "", "config"); r.Code != 2 || !strings.Contains(r.Stderr, "BRIDGE_NATS_TLS_CA") {
		t.Errorf("beside an authority: %+v", r)
	}
	if r := Run(t, Env{"KAFKA_BROKERS": "127.0.0.1:1", "KAFKA_SASL_MECHANISM": "plain", "KAFKA_SASL_USERNAME": "u", "KAFKA_SASL_PASSWORD": "p"}, "", "config"); !strings.Contains(r.Stderr, "INSECURE: BRIDGE_KAFKA_SASL_MECHANISM=plain") {
		t.Errorf("a password in the clear: %+v", r)
	}
}

// TestRedisPasswordRotates has a user whose password changes, in a file that is
// read again, and whose connections are cut.
func TestRedisPasswordRotates(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx := context.Background()
	root := w.redis.Client(t)
	set := func(password string) {
		if err := root.Do(ctx, "ACL", "SETUSER", "bridge", "on", "resetpass", ">"+password, "~*", "&*", "+@all").Err(); err != nil {
			t.Fatal(err)
		}
		_ = root.Do(ctx, "CLIENT", "KILL", "USER", "bridge")
	}
	socket := strings.TrimPrefix(w.redis.URL, "unix://")
	for _, row := range []struct {
		about string
		env   func(password string) (Env, string) // and what is in the file
	}{
		{"the password alone", func(p string) (Env, string) { return Env{"REDIS_URL": "unix://bridge@" + socket}, p }},
		{"in the URL", func(p string) (Env, string) { return Env{}, "unix://bridge:" + p + "@" + socket }},
	} {
		t.Run(row.about, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "secret")
			setting := "REDIS_PASSWORD_FILE"
			env, content := row.env("first-password")
			if env["REDIS_URL"] == "" {
				setting = "REDIS_URL_FILE"
			}
			putFile(t, file, content+"\n")
			set("first-password")
			p := w.serve(t, env.With(Env{"REDIS_URL": env["REDIS_URL"], setting: file}))
			w.passes(t, setting+" one")
			_, content = row.env("second-password")
			putFile(t, file, content+"\n")
			set("second-password")
			w.passes(t, setting+" two")
			p.Signal(15)
			if code := p.Exit(t); code != 0 || strings.Contains(p.Output(), "-password") {
				t.Errorf("code %d, output:\n%s", code, p.Output())
			}
		})
	}
}
