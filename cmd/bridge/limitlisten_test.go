package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestConnectionsAreLimited: who opens many connections keeps others waiting, and
// takes no more file descriptors than that.
func TestConnectionsAreLimited(t *testing.T) {
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limitConnections(plain, 2)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	dial := func() net.Conn {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		return c
	}
	answers := func(c net.Conn, within time.Duration) bool {
		_ = c.SetReadDeadline(time.Now().Add(within))
		line, _ := bufio.NewReader(c).ReadString('\n')
		return line == "HTTP/1.1 200 OK\r\n"
	}
	first, second := dial(), dial()
	if !answers(first, 20*time.Second) || !answers(second, 20*time.Second) {
		t.Fatal("the first two are not answered")
	}
	third := dial()
	if answers(third, 300*time.Millisecond) {
		t.Error("a third is answered beside two that are open")
	}
	_ = first.Close()
	if !answers(third, 20*time.Second) {
		t.Error("the third is not answered after the first has gone")
	}
	// It stops while it waits for a place, too.
	dial()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-served:
		if err != http.ErrServerClosed {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the server does not end")
	}
}
