package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A server that offers nothing newer than TLS 1.1 is not spoken to.
func TestTLSIsAtLeast12(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	pair := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	for _, row := range []struct {
		about    string
		min, max uint16
		link     tlsLink
		says     string // of the error, empty for none
	}{
		{"1.3", tls.VersionTLS13, tls.VersionTLS13, tlsLink{ca: text(ca)}, ""},
		{"1.2", tls.VersionTLS12, tls.VersionTLS12, tlsLink{ca: text(ca)}, ""},
		{"1.1", tls.VersionTLS10, tls.VersionTLS11, tlsLink{ca: text(ca)}, "protocol version"},
		{"1.1, even where nothing else is checked", tls.VersionTLS10, tls.VersionTLS11, tlsLink{insecure: true}, "protocol version"},
		{"a name that is not the certificate's", tls.VersionTLS12, tls.VersionTLS13, tlsLink{ca: text(ca), serverName: "redis.example"}, "redis.example"},
		{"the system's authorities", tls.VersionTLS12, tls.VersionTLS13, tlsLink{}, "unknown authority"},
	} {
		l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: row.min, MaxVersion: row.max})
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			if c, err := l.Accept(); err == nil {
				_ = c.(*tls.Conn).Handshake()
				_ = c.Close()
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		row.link.name = "X_TLS"
		c, err := row.link.dial(ctx, "tcp", l.Addr().String())
		cancel()
		if err == nil {
			_ = c.Close()
		}
		if row.says == "" && err != nil || row.says != "" && (err == nil || !strings.Contains(err.Error(), row.says)) {
			t.Errorf("%s: %v", row.about, err)
		}
		_ = l.Close()
		<-served
	}
}

func TestRotatingSecretKeepsWhatItHad(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	r := &rotating{path: path, last: "first"}
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct{ about, content, want string }{
		{"no file", "", "first"}, {"another secret", "second\n", "second"}, {"just being written", " \n", "second"}, {"a third", "third", "third"},
	} {
		if step.content != "" {
			write(step.content)
		}
		if got := r.read(); got != step.want {
			t.Errorf("%s: %q, want %q", step.about, got, step.want)
		}
	}
	if !sameServer("redis://a:b@host:1/0", "redis://c:d@host:1/0") || sameServer("redis://a:b@host:1/0", "redis://a:b@other:1/0") {
		t.Error("sameServer")
	}
}
