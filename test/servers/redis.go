// Package servers starts the real servers that the tests of every package run
// against: each test owns its servers, on private sockets and ports, and they
// are gone when it ends.
package servers

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis is a redis-server of one test.
type Redis struct {
	// URL is what BRIDGE_REDIS_URL takes: a Unix socket, or a TCP address if
	// the server was started with RedisTCP.
	URL string
	// Dir is the server's working directory; its socket is redis.sock in it.
	Dir string
	// Port is the TCP port, 0 without RedisTCP.
	Port int

	args []string
	cmd  *exec.Cmd
	out  *lockedBuffer
}

// RedisTCP as an argument of NewRedis makes the server listen on a loopback
// port too, for tests that cut the connection.
const RedisTCP = "\x00tcp"

// NewRedis starts a redis-server that keeps nothing on disk unless args say
// otherwise (they are passed on as they are, "--appendonly", "yes"). It fails
// the test, naming the package to install, where there is no redis-server.
func NewRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Fatalf("redis-server is not installed (package redis-server; `make test` installs it): %v", err)
	}
	// Not t.TempDir: a socket's path is limited to about 107 bytes.
	dir, err := os.MkdirTemp("", "rds")
	if err != nil {
		t.Fatal(err)
	}
	r := &Redis{Dir: dir, out: &lockedBuffer{}}
	for _, a := range args {
		if a == RedisTCP {
			r.Port = FreePort(t)
			continue
		}
		r.args = append(r.args, a)
	}
	r.URL = "unix://" + r.socket() + "?db=0"
	if r.Port != 0 {
		r.URL = fmt.Sprintf("redis://127.0.0.1:%d/0", r.Port)
	}
	t.Cleanup(func() {
		r.Kill()
		_ = os.RemoveAll(dir)
		if t.Failed() {
			t.Logf("redis-server said:\n%s", r.out.String())
		}
	})
	r.Start(t)
	return r
}

func (r *Redis) socket() string { return filepath.Join(r.Dir, "redis.sock") }

// Start starts the server again after Kill or Stop, with what it kept on disk.
func (r *Redis) Start(t testing.TB) {
	t.Helper()
	args := []string{
		"--port", fmt.Sprint(r.Port), "--bind", "127.0.0.1", "--unixsocket", r.socket(), "--dir", r.Dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--maxmemory-policy", "noeviction",
		"--repl-diskless-sync-delay", "0",
	}
	r.cmd = exec.Command("redis-server", append(args, r.args...)...)
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.out
	// The server must not outlive a test binary that is killed.
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		t.Fatalf("start redis-server: %v", err)
	}
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: r.socket(), MaxRetries: -1, DisableIdentity: true})
	defer func() { _ = c.Close() }()
	if !Eventually(func() bool { return c.Ping(context.Background()).Err() == nil }) {
		t.Fatalf("redis-server did not answer in time:\n%s", r.out.String())
	}
}

// Client returns a plain client on the server's socket, closed with the test.
func (r *Redis) Client(t testing.TB) *redis.Client {
	c := redis.NewClient(&redis.Options{Network: "unix", Addr: r.socket(), MaxRetries: -1, DisableIdentity: true})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// Kill ends the server with SIGKILL, as a crash would.
func (r *Redis) Kill() { r.end(syscall.SIGKILL) }

// Stop ends the server with SIGTERM, as a deploy would.
func (r *Redis) Stop() { r.end(syscall.SIGTERM) }

// Pause stops the process from answering until Resume.
func (r *Redis) Pause() { _ = r.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume lets a paused server answer again.
func (r *Redis) Resume() { _ = r.cmd.Process.Signal(syscall.SIGCONT) }

func (r *Redis) end(sig syscall.Signal) {
	if r.cmd == nil || r.cmd.ProcessState != nil {
		return
	}
	_ = r.cmd.Process.Signal(syscall.SIGCONT)
	_ = r.cmd.Process.Signal(sig)
	_ = r.cmd.Wait()
}

// FreePort returns a loopback TCP port that nobody listens on just now. It is
// below those that a system hands out by itself, to outgoing connections and to
// who asks for any: a server that is away for a moment finds it free again. No
// other test of this process or of one beside it is given the same.
func FreePort(t testing.TB) int {
	t.Helper()
	const low, high = 15_000, 32_000
	for range 1000 {
		port := low + rand.IntN(high-low)
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		// The UDP port of that number, which nobody else wants, marks it as taken.
		mark, err := net.ListenPacket("udp", address)
		if err != nil {
			continue
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			_ = mark.Close()
			continue
		}
		_ = l.Close()
		marks.Store(port, mark)
		return port
	}
	t.Fatal("no port is free")
	return 0
}

// marks keeps what FreePort has marked until the process ends.
var marks sync.Map

// patience is the limit for what must happen. It is for failures only, and so
// long that a machine that is busy with much else keeps it.
const patience = time.Minute

// Eventually asks ok again and again, for at most a minute, and says whether it
// came true. It is for what another process does; what our own code does is
// awaited by an event.
func Eventually(ok func() bool) bool { return within(patience, ok) }

func within(limit time.Duration, ok func() bool) bool {
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return true
		}
	}
	return false
}

// lockedBuffer collects a server's output.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
