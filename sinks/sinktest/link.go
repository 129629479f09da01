package sinktest

import (
	"io"
	"net"
	"strconv"
	"sync"
	"testing"

	"delaybridge/test/servers"
)

// Link is a TCP connection point between a sink and its broker that can be cut
// or held up. It forwards to one address.
type Link struct {
	addr string

	mu       sync.Mutex
	to       string
	listener net.Listener
	conns    map[net.Conn]bool
	// flow is closed while bytes may pass.
	flow chan struct{}
	held bool
	wg   sync.WaitGroup
}

// NewLink returns a link to an address that is up, and gone with the test.
func NewLink(t testing.TB, to string) *Link {
	t.Helper()
	l := &Link{to: to, conns: map[net.Conn]bool{}, flow: make(chan struct{})}
	close(l.flow)
	// Not any port: an outgoing connection could have it when the link comes up again.
	l.addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(servers.FreePort(t)))
	if err := l.listen(l.addr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Resume()
		l.Down()
		l.wg.Wait()
	})
	return l
}

// Addr is what the sink connects to.
func (l *Link) Addr() string { return l.addr }

// Down breaks all connections and refuses new ones.
func (l *Link) Down() {
	l.mu.Lock()
	if l.listener != nil {
		_ = l.listener.Close()
		l.listener = nil
	}
	l.mu.Unlock()
	l.Cut()
}

// Up takes connections again after Down.
func (l *Link) Up(t testing.TB) {
	t.Helper()
	if err := l.listen(l.addr); err != nil {
		t.Fatalf("listen again on %s: %v", l.addr, err)
	}
}

// Cut breaks all connections; new ones are taken.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		_ = c.Close()
	}
}

// Retarget forwards new connections to another address, as a name that has moved
// does; those that there are stay where they are.
func (l *Link) Retarget(to string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.to = to
}

// Hang keeps all connections open and lets no byte pass, in either direction.
func (l *Link) Hang() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.held {
		l.held, l.flow = true, make(chan struct{})
	}
}

// Resume lets pass what Hang has held back, and all that follows.
func (l *Link) Resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held {
		l.held = false
		close(l.flow)
	}
}

func (l *Link) listen(addr string) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.listener = listener
	l.mu.Unlock()
	l.wg.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			l.wg.Go(func() { l.join(c) })
		}
	})
	return nil
}

// join forwards between a new connection and the broker until one side ends.
func (l *Link) join(near net.Conn) {
	l.mu.Lock()
	to := l.to
	l.mu.Unlock()
	far, err := net.Dial("tcp", to)
	if err != nil {
		_ = near.Close()
		return
	}
	l.mu.Lock()
	l.conns[near], l.conns[far] = true, true
	down := l.listener == nil
	l.mu.Unlock()
	var wg sync.WaitGroup
	both := func() { _, _ = near.Close(), far.Close() }
	if down {
		both()
	}
	wg.Go(func() { l.copy(far, near); both() })
	wg.Go(func() { l.copy(near, far); both() })
	wg.Wait()
	l.mu.Lock()
	delete(l.conns, near)
	delete(l.conns, far)
	l.mu.Unlock()
}

func (l *Link) copy(to io.Writer, from io.Reader) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		l.mu.Lock()
		flow := l.flow
		l.mu.Unlock()
		<-flow
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
