package console

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"delaybridge"
	"delaybridge/luascripts"
	"delaybridge/test/servers"
)

// patience is how long a test waits for what must happen: a limit for failures, not
// a promise of speed.
const patience = time.Minute

// world is a bridge with its servers, and what has arrived on orders.>.
type world struct {
	redis *servers.Redis
	nats  *servers.NATS
	js    jetstream.JetStream
	env   []string
	// url is where the console is.
	url     string
	process *exec.Cmd

	mu      sync.Mutex
	arrived map[string]string // id -> payload
}

// newWorld starts a bridge whose stream ORDERS takes orders.>; settings are
// NAME=value, without the BRIDGE_ of the names.
func newWorld(t *testing.T, settings ...string) *world {
	t.Helper()
	w := &world{redis: servers.NewRedis(t, "--appendonly", "yes"), nats: servers.NewNATS(t), arrived: map[string]string{}}
	w.js = w.nats.JetStream(t)
	w.stream(t, "ORDERS", "orders.>")
	w.watch(t, "orders.>")
	w.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}
	for _, s := range append([]string{"REDIS_URL=" + w.redis.URL, "NATS_URL=" + w.nats.URL, "METRICS_ADDR=127.0.0.1:0", "API_ADDR=127.0.0.1:0"}, settings...) {
		w.env = append(w.env, "BRIDGE_"+s)
	}
	w.serve(t)
	return w
}

// serve starts the bridge and waits until it serves and runs.
func (w *world) serve(t *testing.T) {
	t.Helper()
	said := &output{}
	cmd := exec.Command(program(t), "serve")
	cmd.Env = w.env
	cmd.Stdout, cmd.Stderr = said, said
	// The process must not outlive a test binary that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.process = cmd
	t.Cleanup(func() {
		w.kill()
		if t.Failed() {
			t.Logf("bridge said:\n%s", said)
		}
	})
	address := regexp.MustCompile(`"msg":"serving the API[^\n]*"address":"([^"]+)"`)
	var found []string
	if !servers.Eventually(func() bool {
		found = address.FindStringSubmatch(said.String())
		return found != nil && strings.Contains(said.String(), `"msg":"running"`)
	}) {
		t.Fatalf("the bridge did not run in time:\n%s", said)
	}
	w.url = "http://" + found[1]
}

// kill ends the bridge as a crash would.
func (w *world) kill() {
	if w.process.ProcessState == nil {
		_ = w.process.Process.Kill()
		_ = w.process.Wait()
	}
}

func (w *world) stream(t *testing.T, name, subjects string) {
	t.Helper()
	if _, err := w.js.CreateStream(context.Background(), jetstream.StreamConfig{Name: name, Subjects: []string{subjects}}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) watch(t *testing.T, subjects string) {
	t.Helper()
	nc := w.nats.Connect(t)
	if _, err := nc.Subscribe(subjects, func(m *nats.Msg) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.arrived[m.Header.Get("Bridge-Id")] = string(m.Data)
	}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

// awaitArrival waits until a message has been delivered.
func (w *world) awaitArrival(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		if !servers.Eventually(func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			_, ok := w.arrived[id]
			return ok
		}) {
			t.Fatalf("%s was not delivered", id)
		}
	}
}

// run runs a command of the program, and returns what it printed and its code.
func (w *world) run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(t), args...)
	cmd.Env = w.env
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatalf("bridge %v: %v", args, err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// state is what the queue says of an id, empty if it knows nothing.
func (w *world) state(t *testing.T, id string) string {
	t.Helper()
	out, code := w.run(t, "get", id, "-o", "json")
	if code != 0 {
		return ""
	}
	var v struct{ State string }
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	return v.State
}

// schedule asks the API for a message.
func (w *world) schedule(t *testing.T, message map[string]any) {
	t.Helper()
	body, err := json.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post(w.url+"/v1/messages", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if said, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusAccepted {
		t.Fatalf("schedule %.200v: %s %s", message, resp.Status, said)
	}
}

// publish sends a message to the bridge's own source.
func (w *world) publish(t *testing.T, payload string, headers map[string]string) {
	t.Helper()
	m := nats.NewMsg("bridge.schedule")
	m.Data = []byte(payload)
	for name, value := range headers {
		m.Header[name] = []string{value}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := w.js.PublishMsg(ctx, m); err != nil {
		t.Fatal(err)
	}
}

// kept makes dead letters of the reason attempts: no stream takes their target.
func (w *world) kept(t *testing.T, target string, ids ...string) {
	t.Helper()
	for _, id := range ids {
		w.schedule(t, map[string]any{"id": id, "target": target, "delay": "0s", "payload": "payload of " + id})
	}
	if !servers.Eventually(func() bool {
		for _, id := range ids {
			if w.state(t, id) != "dead" {
				return false
			}
		}
		return true
	}) {
		t.Fatalf("%v are not dead", ids)
	}
}

// fill puts many pending messages straight into the queue, due one after the other.
func (w *world) fill(t *testing.T, target delaybridge.Target, ids []string, first time.Time) {
	t.Helper()
	client, err := luascripts.Connect(w.redis.URL, luascripts.ModeSingle)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	queue, err := luascripts.Open(context.Background(), client, luascripts.DefaultConfig())
	if err != nil {
		t.Fatal(err)
	}
	for len(ids) > 0 {
		n := min(500, len(ids))
		batch := make([]delaybridge.Request, n)
		for i, id := range ids[:n] {
			batch[i] = delaybridge.Request{FromAPI: true, Message: delaybridge.Message{
				ID: id, Target: target, Scheduled: time.Now().Truncate(time.Millisecond),
				Due:      first.Add(time.Duration(i) * time.Second).Truncate(time.Millisecond),
				Payload:  []byte(`{"n":1}`),
				Position: delaybridge.Position{Source: "api:" + id, Offset: 1},
			}}
		}
		for _, r := range queue.Store(context.Background(), batch) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		ids, first = ids[n:], first.Add(time.Duration(n)*time.Second)
	}
}

// output collects what a process says.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

// String returns everything so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
