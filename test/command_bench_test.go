package test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"delaybridge/test/servers"
)

// measured is what "bridge bench -o json" says, as far as the tests look at it.
type measured struct {
	Count, Missing, Duplicates, Early int

	Store, Publish *struct {
		Messages  int
		PerSecond float64 `json:"per_second"`
	}
	Memory *struct {
		PerMessage float64 `json:"per_message"`
		Beyond     float64 `json:"beyond_id_and_payload"`
	}
	Deliver struct {
		Messages  int
		PerSecond float64 `json:"per_second"`
	}
	Lateness map[string]struct {
		Messages  int
		P50       float64 `json:"p50_ms"`
		P99       float64 `json:"p99_ms"`
		Max       float64 `json:"max_ms"`
		Histogram []struct{ Count int }
	}
	Usage []struct {
		CPUSeconds float64 `json:"cpu_seconds"`
	}
}

// benchWorld is a world with what a measurement must leave alone: a queue in use,
// routes, and a stream.
type benchWorld struct {
	*world
	keys    int64
	streams []string
}

func newBenchWorld(t *testing.T) *benchWorld {
	t.Helper()
	binary(t) // to build it takes longer than a command may
	w := &benchWorld{world: newWorld(t)}
	w.env = w.env.With(Env{
		"ROUTES": "nats://later.> -> nats://orders.routed delay=30s", "ALLOWED_TARGETS": "nats://orders.*",
		"SOURCE_TARGETS": "nats://bridge.schedule -> none; cli -> *", "INGEST_RATE": "10", "NATS_API": "true", "PPROF_ADDR": "127.0.0.1:0",
	})
	if r := Run(t, w.env, "", "schedule", "--target", "nats://orders.mine", "--delay", "1h", "--id", "mine", "x"); r.Code != 0 {
		t.Fatal(r.Stderr)
	}
	w.keys, w.streams = w.left(t)
	return w
}

// left is what there is in Redis and in JetStream.
func (w *benchWorld) left(t *testing.T) (keys int64, streams []string) {
	t.Helper()
	keys, err := w.redis.Client(t).DBSize(context.Background()).Result()
	if err != nil {
		t.Fatal(err)
	}
	names := w.js.StreamNames(context.Background())
	for name := range names.Name() {
		streams = append(streams, name)
	}
	if names.Err() != nil {
		t.Fatal(names.Err())
	}
	return keys, streams
}

// checkNothingLeft holds the servers to what they had before.
func (w *benchWorld) checkNothingLeft(t *testing.T) {
	t.Helper()
	keys, streams := w.left(t)
	if keys != w.keys || strings.Join(streams, " ") != strings.Join(w.streams, " ") {
		t.Errorf("%d keys and the streams %q are left, want %d and %q", keys, streams, w.keys, w.streams)
	}
	w.awaitState(t, "mine", "pending")
}

// bench runs the command and reads its report.
func bench(t *testing.T, env Env, args ...string) (m measured, stderr string) {
	t.Helper()
	r := Run(t, env, "", append([]string{"bench", "-o", "json"}, args...)...)
	if r.Code != 0 {
		t.Fatalf("bench %v: code %d: %s", args, r.Code, r.Stderr)
	}
	if err := json.Unmarshal([]byte(r.Stdout), &m); err != nil {
		t.Fatalf("%v: %s", err, r.Stdout)
	}
	if m.Missing+m.Duplicates+m.Early != 0 || m.Deliver.Messages != m.Count || m.Deliver.PerSecond <= 0 {
		t.Errorf("bench %v: %+v", args, m)
	}
	return m, r.Stderr
}

func TestBenchMeasuresOnServersInUseAndLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newBenchWorld(t)
	m, stderr := bench(t, w.env, "--count", "5000", "--size", "100", "--subjects", "3")
	if m.Store == nil || m.Store.PerSecond <= 0 || m.Memory == nil || m.Memory.PerMessage < 100 || m.Memory.Beyond > m.Memory.PerMessage-100 {
		t.Errorf("store %+v, memory %+v", m.Store, m.Memory)
	}
	l := m.Lateness["nats"]
	sum := 0
	for _, k := range l.Histogram {
		sum += k.Count
	}
	if l.Messages != 5000 || sum != 5000 || l.P50 > l.P99 || l.P99 > l.Max {
		t.Errorf("lateness %+v", l)
	}
	if len(m.Usage) != 1 || m.Usage[0].CPUSeconds <= 0 {
		t.Errorf("usage %+v", m.Usage)
	}
	if !strings.Contains(stderr, "made for this: keys {bench-") || !strings.Contains(stderr, "stream bench-") {
		t.Errorf("it does not say what it makes: %q", stderr)
	}
	w.checkNothingLeft(t)

	// As a person sees it, two processes, a spread, and both lanes of NATS.
	r := Run(t, w.env, "", "bench", "--count", "2001", "--spread", "1s", "--lanes", "nats,nats-core", "--processes", "2")
	for _, want := range []string{
		"2,001 messages of 256 bytes, due over 1s, path queue, to nats and nats-core, 2 processes, Redis ",
		"\nstore            2,001 in ", "\nmemory  ", "\ndeliver          2,001 in ",
		"lateness  nats: p50 ", "lateness  nats-core: p50 ", "##", "\nprocess 1 ", "\nprocess 2 ",
	} {
		if !strings.Contains(r.Stdout, want) {
			t.Errorf("there is no %q in %s", want, r.Stdout)
		}
	}
	if r.Code != 0 || strings.ContainsAny(r.Stdout+r.Stderr, "\r\x1b") {
		t.Errorf("code %d, and a progress bar where there is no terminal? %q %q", r.Code, r.Stdout, r.Stderr)
	}
	w.checkNothingLeft(t)
}

func TestBenchMeasuresTheFullPath(t *testing.T) {
	t.Parallel()
	w := newBenchWorld(t)
	for _, args := range [][]string{
		{"--count", "3000", "--processes", "2"},
		{"--count", "1000", "--spread", "1s", "--lanes", "nats,nats-core"},
	} {
		m, _ := bench(t, w.env, append(args, "--path", "full")...)
		if m.Publish == nil || m.Publish.PerSecond <= 0 || m.Store != nil || m.Memory != nil {
			t.Errorf("%v: %+v", args, m)
		}
		w.checkNothingLeft(t)
	}
}

func TestBenchMeasuresKafka(t *testing.T) {
	t.Parallel()
	w := newBenchWorld(t)
	k := servers.NewKfake(t)
	env := w.env.With(Env{"KAFKA_BROKERS": strings.Join(k.Brokers, ",")})
	if m, _ := bench(t, env, "--count", "2000", "--lanes", "kafka", "--spread", "500ms"); m.Lateness["kafka"].Messages != 2000 {
		t.Errorf("%+v", m)
	}
	bench(t, env, "--count", "2000", "--lanes", "kafka,nats", "--path", "full")
	w.checkNothingLeft(t)
	answer, err := kmsg.NewPtrMetadataRequest().RequestWith(context.Background(), k.Client(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range answer.Topics {
		if strings.HasPrefix(*topic.Topic, "bench-") {
			t.Errorf("topic %s is left", *topic.Topic)
		}
	}
}

func TestBenchThatIsInterruptedLeavesNothing(t *testing.T) {
	t.Parallel()
	w := newBenchWorld(t)
	for _, row := range []struct {
		about string
		args  []string
	}{
		{"while messages wait", []string{"--count", "1000", "--spread", "1h"}},
		{"while messages are published", []string{"--count", "1000", "--spread", "1h", "--path", "full"}},
	} {
		t.Run(row.about, func(t *testing.T) {
			p := Start(t, w.env, append([]string{"bench"}, row.args...)...)
			p.Await(t, "removed at the end")
			if !servers.Eventually(func() bool { // its own process has begun
				n, err := w.redis.Client(t).PubSubNumSub(context.Background(), benchChannel(p.Output())).Result()
				return err == nil && n[benchChannel(p.Output())] > 0
			}) {
				t.Fatal("its process did not begin")
			}
			p.Signal(syscall.SIGINT)
			if code := p.Exit(t); code != 1 || !strings.Contains(p.Output(), "bridge: interrupted") {
				t.Errorf("code %d: %s", code, p.Output())
			}
			w.checkNothingLeft(t)
		})
	}
}

// benchChannel is the wake-up channel of the measurement that said so.
func benchChannel(said string) string {
	_, rest, _ := strings.Cut(said, "keys {")
	name, _, _ := strings.Cut(rest, ":")
	return name + ":wake"
}

func TestBenchThatFailsLeavesNothingAndSaysWhy(t *testing.T) {
	t.Parallel()
	w := newBenchWorld(t)
	for _, row := range []struct {
		about string
		env   Env
		args  string
		code  int
		says  string
	}{
		{"no Redis", Env{"REDIS_URL": "redis://127.0.0.1:1/0"}, "", 1, "redis at redis://127.0.0.1:1/0 (BRIDGE_REDIS_URL)"},
		{"no NATS server", Env{"NATS_URL": "nats://127.0.0.1:1"}, "", 1, "nats at nats://127.0.0.1:1 (BRIDGE_NATS_URL): no server answers"},
		{"no Kafka broker", Env{"KAFKA_BROKERS": "127.0.0.1:1"}, "--lanes kafka", 1, "kafka at 127.0.0.1:1 (BRIDGE_KAFKA_BROKERS): no broker answers"},
		{"more copies than servers", nil, "--replicas 3", 1, "make stream bench-"},
		{"no broker at all", Env{"NATS_URL": ""}, "", 2, "BRIDGE_NATS_URL"},
		{"a lane that there is not", nil, "--lanes mqtt", 2, `--lanes "mqtt": takes kafka, nats, nats-core`},
		{"a lane twice", nil, "--lanes nats,nats", 2, "--lanes: nats is there twice"},
		{"a lane without a broker", nil, "--lanes kafka", 2, "--lanes kafka: takes BRIDGE_KAFKA_BROKERS, which is empty"},
		{"no message", nil, "--count 0", 2, "--count 0: takes a number from 1"},
		{"too large a payload", Env{"MAX_PAYLOAD": "1KiB"}, "--size 2000", 2, "--size 2000: takes a number from 0 to 1024, which is BRIDGE_MAX_PAYLOAD"},
		{"no process", nil, "--processes 0", 2, "--processes 0"},
		{"too long a spread", nil, "--spread 100h", 2, "--spread 100h0m0s: takes 0 to 84h0m0s, half of BRIDGE_MAX_DELAY"},
		{"another path", nil, "--path half", 2, `--path "half": takes queue or full`},
		{"an argument", nil, "now", 2, "takes no argument"},
	} {
		t.Run(row.about, func(t *testing.T) {
			r := Run(t, w.env.With(row.env), "", append([]string{"bench"}, strings.Fields(row.args)...)...)
			if r.Code != row.code || !strings.Contains(r.Stderr, row.says) {
				t.Errorf("code %d, want %d; stderr %q, want %q in it", r.Code, row.code, r.Stderr, row.says)
			}
		})
	}
	w.checkNothingLeft(t)
}

// A process of the measurement that dies ends it.
func TestBenchSaysThatItsProcessDied(t *testing.T) {
	t.Parallel()
	w := newBenchWorld(t)
	p := Start(t, w.env, "bench", "--count", "1000", "--spread", "1h")
	var children []string
	if !servers.Eventually(func() bool {
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.Pid()))
		for _, list := range lists {
			text, _ := os.ReadFile(list)
			for _, child := range strings.Fields(string(text)) {
				// Go itself forks once to see what it can do.
				if line, _ := os.ReadFile("/proc/" + child + "/cmdline"); strings.HasSuffix(string(line), "\x00serve\x00") {
					children = append(children, child)
				}
			}
		}
		return len(children) > 0
	}) {
		t.Fatal("it started no process")
	}
	pid, err := strconv.Atoi(children[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := p.Exit(t); code != 1 || !strings.Contains(p.Output(), fmt.Sprintf("a bridge process (%d) ended: signal: killed", pid)) {
		t.Errorf("code %d: %s", code, p.Output())
	}
	w.checkNothingLeft(t)
}
