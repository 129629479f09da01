package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"delaybridge"
	"delaybridge/luascripts"
)

// tlsLink is how connections to one kind of server are made by TLS. Its files are
// read anew for each connection, so that certificates may be replaced while the
// program runs. A file that cannot be read fails the connection, which is tried
// again: nothing weaker is taken in its place.
type tlsLink struct {
	name                      string // of its settings: REDIS_TLS
	ca, cert, key, serverName text
	insecure                  boolean
}

func (s *Settings) redisTLS() tlsLink {
	t := &s.Redis.TLS
	return tlsLink{name: "REDIS_TLS", ca: t.CA, cert: t.Cert, key: t.Key, serverName: t.ServerName, insecure: t.InsecureSkipVerify}
}

func (s *Settings) natsTLS() tlsLink {
	t := &s.NATS.TLS
	return tlsLink{name: "NATS_TLS", ca: t.CA, cert: t.Cert, key: t.Key, serverName: t.ServerName, insecure: t.InsecureSkipVerify}
}

func (s *Settings) kafkaTLS() tlsLink {
	t := &s.Kafka.TLS
	return tlsLink{name: "KAFKA_TLS", ca: t.CA, cert: t.Cert, key: t.Key, serverName: t.ServerName, insecure: t.InsecureSkipVerify}
}

// isSet reports whether anything was said that makes sense with TLS only.
func (l tlsLink) isSet() bool {
	return l.ca != "" || l.cert != "" || l.key != "" || l.serverName != "" || bool(l.insecure)
}

// check looks at the files as they are now.
func (l tlsLink) check() *settingError {
	if (l.cert == "") != (l.key == "") {
		return wrong(l.name+"_CERT", l.cert, "takes the certificate of "+prefix+"_"+l.name+"_KEY: set both or none")
	}
	if e := first(readable(l.name+"_CA", l.ca), readable(l.name+"_CERT", l.cert), readable(l.name+"_KEY", l.key)); e != nil {
		return e
	}
	if l.insecure && l.ca != "" {
		return wrong(l.name+"_CA", l.ca, "is of no use beside "+prefix+"_"+l.name+"_INSECURE_SKIP_VERIFY: unset that one")
	}
	_, e := l.config()
	return e
}

// config returns what a handshake needs, read now.
func (l tlsLink) config() (*tls.Config, *settingError) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: string(l.serverName), InsecureSkipVerify: bool(l.insecure)}
	if l.ca != "" {
		pool, e := l.authorities()
		if e != nil {
			return nil, e
		}
		c.RootCAs = pool
	}
	if l.cert != "" {
		pair, e := l.certificate()
		if e != nil {
			return nil, e
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

func (l tlsLink) authorities() (*x509.CertPool, *settingError) {
	pem, err := os.ReadFile(string(l.ca))
	if err != nil {
		return nil, wrong(l.name+"_CA", l.ca, "takes the path of a file that can be read: "+err.Error())
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, wrong(l.name+"_CA", l.ca, "takes the path of certificates in PEM, and finds none in it")
	}
	return pool, nil
}

func (l tlsLink) certificate() (tls.Certificate, *settingError) {
	pair, err := tls.LoadX509KeyPair(string(l.cert), string(l.key))
	if err != nil {
		return pair, wrong(l.name+"_CERT", l.cert, "takes a certificate and in "+prefix+"_"+l.name+"_KEY its key, in PEM: "+err.Error())
	}
	return pair, nil
}

// dial opens a connection and goes through the handshake, until ctx ends.
func (l tlsLink) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, e := l.config()
	if e != nil {
		return nil, *e
	}
	if c.ServerName == "" {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		c.ServerName = host
	}
	plain, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	encrypted := tls.Client(plain, c)
	if err := encrypted.HandshakeContext(ctx); err != nil {
		_ = plain.Close()
		return nil, fmt.Errorf("TLS: %w", err)
	}
	return encrypted, nil
}

// connectRedis makes the client of the settings, without connecting yet.
func (s *Settings) connectRedis() (redis.UniversalClient, error) {
	return luascripts.ConnectBy(string(s.Redis.URL), string(s.Redis.Mode), s.redisLink())
}

func (s *Settings) redisLink() luascripts.Link {
	link := luascripts.Link{DialTLS: s.redisTLS().dial}
	switch {
	case s.Redis.Password != "":
		password := s.secretOf("REDIS_PASSWORD", string(s.Redis.Password))
		link.Password = func() (string, error) { return password.read(), nil }
	case os.Getenv(prefix+"_REDIS_URL_FILE") != "":
		whole := s.secretOf("REDIS_URL", string(s.Redis.URL))
		link.Credentials = func() (user, password string, err error) {
			text := whole.read()
			if !sameServer(text, string(s.Redis.URL)) {
				text = string(s.Redis.URL) // no server gets the password of another
			}
			u, err := url.Parse(text)
			if err != nil {
				return "", "", *wrong("REDIS_URL", s.Redis.URL, "cannot be read any more")
			}
			password, _ = u.User.Password()
			return u.User.Username(), password, nil
		}
	}
	return link
}

// sameServer reports whether two URLs differ in their users only.
func sameServer(a, b string) bool {
	u, err1 := url.Parse(a)
	v, err2 := url.Parse(b)
	if err1 != nil || err2 != nil {
		return false
	}
	u.User, v.User = nil, nil
	return u.String() == v.String()
}

// rotating is a secret that is read anew where it comes from a file.
type rotating struct {
	path string // empty: it never changes

	mu   sync.Mutex
	last string
}

// secretOf returns the secret of a setting, which was value at the start.
func (s *Settings) secretOf(name, value string) *rotating {
	r := &rotating{last: value}
	if os.Getenv(prefix+"_"+name) == "" {
		r.path = os.Getenv(prefix + "_" + name + "_FILE")
	}
	return r
}

// read returns the secret as it is now. While the file cannot be read, or is
// empty for just being written, it is the one of before.
func (r *rotating) read() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.path == "" {
		return r.last
	}
	if content, err := os.ReadFile(r.path); err == nil {
		if text := strings.TrimSpace(string(content)); text != "" {
			r.last = text
		}
	}
	return r.last
}

// securityWarnings are about settings that give up what TLS is for. They are said
// at every start.
func (s *Settings) securityWarnings() (warnings []string) {
	for _, l := range []tlsLink{s.redisTLS(), s.natsTLS(), s.kafkaTLS()} {
		if l.insecure {
			warnings = append(warnings, fmt.Sprintf(
				"INSECURE: %s_%s_INSECURE_SKIP_VERIFY is set: nobody checks who the server is, and anybody in between can read and change everything; "+
					"set %[1]s_%[2]s_CA to its authority instead", prefix, l.name))
		}
	}
	if s.Kafka.SASL.Mechanism == saslPlain && !s.kafkaUsesTLS() && len(s.Kafka.Brokers) > 0 {
		warnings = append(warnings, "INSECURE: "+prefix+"_KAFKA_SASL_MECHANISM=plain without TLS: the password crosses the network as it is; set "+prefix+"_KAFKA_TLS_ENABLE=true")
	}
	return warnings
}

// checkTLS refuses settings that would be passed over in silence.
func (s *Settings) checkTLS() *settingError {
	redis := s.redisTLS()
	if redis.isSet() && !strings.HasPrefix(string(s.Redis.URL), "rediss://") {
		return wrong("REDIS_URL", s.Redis.URL, "takes a rediss:// URL where "+prefix+"_REDIS_TLS_... is set: this one would not be encrypted")
	}
	if u, err := url.Parse(string(s.Redis.URL)); err == nil {
		if u.Query().Has("skip_verify") {
			return wrong("REDIS_URL", s.Redis.URL, "takes no skip_verify: "+prefix+"_REDIS_TLS_INSECURE_SKIP_VERIFY says it where it is seen")
		}
		if _, has := u.User.Password(); has && s.Redis.Password != "" {
			return wrong("REDIS_PASSWORD", s.Redis.Password, "cannot be set beside a password in "+prefix+"_REDIS_URL: set one of them")
		}
	}
	nats := s.natsTLS()
	for u := range strings.SplitSeq(string(s.NATS.URL), ",") {
		if nats.isSet() && delaybridge.HasPrefixFold(strings.TrimSpace(u), "ws://") {
			return wrong("NATS_URL", s.NATS.URL, "takes nats://, tls:// or wss:// URLs where "+prefix+"_NATS_TLS_... is set: ws:// would not be encrypted")
		}
	}
	return first(redis.check(), nats.check(), s.kafkaTLS().check())
}
