package main

import (
	"net"
	"sync"
)

// Connections at a time. Each takes a file descriptor, of which those to Redis and
// the brokers must find some left, whoever has opened what to a port of ours.
const (
	apiConnections     = 4096
	metricsConnections = 512
)

// limitedListener accepts only so many connections at a time; others wait until one
// of those is closed.
type limitedListener struct {
	net.Listener
	places chan struct{}
	closed chan struct{}
	once   sync.Once
}

func limitConnections(l net.Listener, most int) net.Listener {
	return &limitedListener{Listener: l, places: make(chan struct{}, most), closed: make(chan struct{})}
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	select {
	case l.places <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.places
		return nil, err
	}
	return &limitedConn{Conn: c, leave: sync.OnceFunc(func() { <-l.places })}, nil
}

// Close implements net.Listener.
func (l *limitedListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
