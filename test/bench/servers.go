package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kfake"
)

// process is a server or a worker that was started for a measurement.
type process struct {
	name    string
	cmd     *exec.Cmd
	metrics string // where a bridge serves them

	mu    sync.Mutex
	said  bytes.Buffer
	lines chan string // what it says, while there is room
	ended chan struct{}
}

// start starts a program; it ends with this one.
func start(name string, env []string, path string, args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(path, args...), lines: make(chan string, 100), ended: make(chan struct{})}
	p.cmd.Env = env
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.cmd.Stderr = in, in
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	_ = in.Close()
	go func() {
		defer close(p.ended)
		defer func() { _ = out.Close() }()
		s := bufio.NewScanner(out)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			p.mu.Lock()
			if p.said.Len() < 1<<20 {
				p.said.WriteString(s.Text() + "\n")
			}
			p.mu.Unlock()
			select {
			case p.lines <- s.Text():
			default:
			}
		}
		_ = p.cmd.Wait()
	}()
	return p, nil
}

// startSelf starts this program again in one of its modes.
func startSelf(mode string, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(mode, append(os.Environ(), modeVariable+"="+mode), self, args...)
}

// await returns the first line that has a text in it.
func (p *process) await(text string) (string, error) {
	late := time.After(60 * time.Second)
	for {
		select {
		case line := <-p.lines:
			if strings.Contains(line, text) {
				return line, nil
			}
		case <-p.ended:
			return "", fmt.Errorf("%s ended: %s", p.name, p.output())
		case <-late:
			return "", fmt.Errorf("%s does not say %q: %s", p.name, text, p.output())
		}
	}
}

func (p *process) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// stop asks the process to end, and makes it end if it does not.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		p.kill()
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// cpu is the processor time that the process has used so far.
func (p *process) cpu() time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	// Behind the name in brackets; utime and stime are fields 14 and 15, in
	// hundredths of a second.
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond
}

// memory is what /proc says of the process in bytes, by the name of the field.
func (p *process) memory(field string) int64 {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			n, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return n << 10
		}
	}
	return 0
}

// world are the servers of one measurement: Redis with its AOF, and NATS with a
// stream for the targets.
type world struct {
	dir         string
	bridge      string // the binary
	lead        float64
	redis, nats *process
	redisAddr   string
	redisURL    string
	natsURL     string
	client      *redis.Client
	nc          *nats.Conn
	js          jetstream.JetStream
	target      jetstream.Stream
	// mixed says that the target stream holds what is not delivered yet, too.
	mixed   bool
	others  []*process // bridges and other workers
	cleanup []func()
}

const targetStream = "OUT"

// newWorld starts fresh servers. The target stream may be changed by an option.
func newWorld(ctx context.Context, b *bench, options ...func(*jetstream.StreamConfig)) (w *world, err error) {
	w = &world{bridge: b.bridge, lead: b.lead}
	defer func() {
		if err != nil {
			w.close()
		}
	}()
	if w.dir, err = os.MkdirTemp(b.scratch, "w"); err != nil {
		return w, err
	}
	port, err := freePort()
	if err != nil {
		return w, err
	}
	redisDir := filepath.Join(w.dir, "redis")
	if err := os.Mkdir(redisDir, 0o700); err != nil {
		return w, err
	}
	w.redisAddr = fmt.Sprintf("127.0.0.1:%d", port)
	w.redisURL = "redis://" + w.redisAddr + "/0"
	if w.redis, err = start("redis-server", os.Environ(), "redis-server", "--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", redisDir,
		"--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction", "--latency-monitor-threshold", "3", "--daemonize", "no"); err != nil {
		return w, err
	}
	if _, err = w.redis.await("Ready to accept connections"); err != nil {
		return w, err
	}
	w.client = redis.NewClient(&redis.Options{Addr: w.redisAddr, MaxRetries: -1, DisableIdentity: true, ReadTimeout: 30 * time.Second})
	if w.nats, err = startSelf("nats-server", filepath.Join(w.dir, "nats")); err != nil {
		return w, err
	}
	line, err := w.nats.await("listening ")
	if err != nil {
		return w, err
	}
	w.natsURL = strings.TrimPrefix(line, "listening ")
	if w.nc, err = nats.Connect(w.natsURL); err != nil {
		return w, err
	}
	if w.js, err = jetstream.New(w.nc, jetstream.WithPublishAsyncMaxPending(4000)); err != nil {
		return w, err
	}
	c := jetstream.StreamConfig{Name: targetStream, Subjects: []string{"out.>"}, Storage: jetstream.FileStorage}
	for _, o := range options {
		o(&c)
	}
	w.target, err = w.js.CreateStream(ctx, c)
	return w, err
}

// close ends everything and removes it.
func (w *world) close() {
	for _, p := range w.others {
		p.kill()
	}
	for _, f := range w.cleanup {
		f()
	}
	if w.nc != nil {
		w.nc.Close()
	}
	if w.client != nil {
		_ = w.client.Close()
	}
	for _, p := range []*process{w.redis, w.nats} {
		if p != nil {
			p.kill()
		}
	}
	_ = os.RemoveAll(w.dir)
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// natsServer is this program as a NATS server with a directory for its files.
func natsServer(args []string) error {
	s, err := server.NewServer(&server.Options{
		ServerName: "bench", Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: args[0], NoSigs: true, NoLog: true,
	})
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		return fmt.Errorf("not ready in time")
	}
	fmt.Println("listening " + s.ClientURL())
	select {}
}

// kafkaServer is this program as a Kafka-compatible broker in memory.
func kafkaServer(topics []string) error {
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(kafkaPartitions, topics...))
	if err != nil {
		return err
	}
	fmt.Println("listening " + strings.Join(c.ListenAddrs(), ","))
	select {}
}
