package main

import (
	"net"
	"net/http"
	"strings"
)

// isLoopbackAddress reports whether only this host can reach what listens on
// host:port. A name other than localhost may be any address, and so may localhost
// with a dot behind it, which a DNS server is asked for.
func isLoopbackAddress(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	return err == nil && !strings.HasSuffix(host, ".") && isLoopbackHost(host)
}

// isOnLoopback reports whether a listener is where only this host can reach it: what
// a name stands for, this host's own tables say.
func isOnLoopback(l net.Listener) bool {
	a, ok := l.Addr().(*net.TCPAddr)
	return ok && a.IP.IsLoopback()
}

func isLoopbackHost(host string) bool {
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// isForLoopback reports whether a request names this host. One that does not may
// come from a page of another site, whose name leads here (DNS rebinding).
func isForLoopback(r *http.Request) bool {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return isLoopbackHost(strings.Trim(host, "[]"))
}
