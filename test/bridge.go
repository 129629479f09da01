// Package test runs the built program, as its users do, against real servers:
// several processes, set by environment only, killed and started again.
package test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for what must happen. It is a limit for
// failures, not a promise of speed: a machine may be ten times as slow as usual.
const patience = time.Minute

// built holds the binary that the tests of this package run, armed the same with
// its failpoints.
var built, armed build

type build struct {
	sync.Once
	dir, path string
	err       error
}

// binary builds the program once.
func binary(t testing.TB) string {
	t.Helper()
	return built.get(t)
}

func (b *build) get(t testing.TB, flags ...string) string {
	t.Helper()
	b.make(flags...)
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.path
}

func (b *build) make(flags ...string) {
	b.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "bridge-test-"); b.err != nil {
			return
		}
		b.path = filepath.Join(b.dir, "bridge")
		args := append([]string{"build", "-o", b.path}, flags...)
		if raceEnabled {
			args = append(args, "-race")
		}
		if out, err := exec.Command("go", append(args, "delaybridge/cmd/bridge")...).CombinedOutput(); err != nil {
			b.err = fmt.Errorf("build: %w\n%s", err, out)
		}
	})
}

func removeBinary() {
	for _, b := range []*build{&built, &armed} {
		if b.dir != "" {
			_ = os.RemoveAll(b.dir)
		}
	}
}

// Env is the settings of a process, without the BRIDGE_ of their names; those of
// OpenTelemetry, OTEL_..., have their whole names. Nothing
// else of the test's own environment reaches the process but what Go and a
// shell need. Metrics are served at a port that is free, unless it says otherwise.
type Env map[string]string

// With returns a copy with more settings.
func (e Env) With(more Env) Env {
	all := Env{}
	for _, m := range []Env{e, more} {
		for k, v := range m {
			all[k] = v
		}
	}
	return all
}

func (e Env) list() []string {
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + os.TempDir()}
	for k, v := range (Env{"METRICS_ADDR": "127.0.0.1:0"}).With(e) {
		if !strings.HasPrefix(k, "OTEL_") {
			k = "BRIDGE_" + k
		}
		env = append(env, k+"="+v)
	}
	return env
}

// Process is a running bridge.
type Process struct {
	cmd    *exec.Cmd
	out    output
	exited chan struct{}
	code   int
}

// Start runs the program with args and returns at once. The process is killed
// with the test, and its output shown if the test failed.
func Start(t testing.TB, env Env, args ...string) *Process {
	t.Helper()
	return start(t, binary(t), env, args...)
}

// ServeUntil runs "bridge serve" and has it killed, as by a crash, when it
// passes a failpoint for the n-th time.
func ServeUntil(t testing.TB, env Env, failpoint string, n int) *Process {
	t.Helper()
	p := start(t, armed.get(t, "-tags", "failpoints"), env.With(Env{"FAILPOINT": fmt.Sprintf("%s:%d", failpoint, n)}), "serve")
	p.Await(t, `"msg":"running"`)
	return p
}

func start(t testing.TB, path string, env Env, args ...string) *Process {
	t.Helper()
	p := &Process{cmd: exec.Command(path, args...), exited: make(chan struct{})}
	p.cmd.Env = env.list()
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	// The process must not outlive a test binary that is killed.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start bridge: %v", err)
	}
	go func() {
		_ = p.cmd.Wait()
		p.code = p.cmd.ProcessState.ExitCode()
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("bridge %s (pid %d) said:\n%s", strings.Join(args, " "), p.Pid(), tail(p.out.String()))
		}
	})
	return p
}

func tail(s string) string {
	const most = 8000
	if len(s) > most {
		return "...\n" + s[len(s)-most:]
	}
	return s
}

// Serve starts "bridge serve" and waits until it runs.
func Serve(t testing.TB, env Env) *Process {
	t.Helper()
	p := Start(t, env, "serve")
	p.Await(t, `"msg":"running"`)
	return p
}

// Pid is the process's number.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Output is everything that the process has said so far.
func (p *Process) Output() string { return p.out.String() }

// Kill ends the process as a crash would, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// Signal sends a signal and does not wait.
func (p *Process) Signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// Ended says whether the process has ended, and whether it was killed.
func (p *Process) Ended() (ended, killed bool) {
	select {
	case <-p.exited:
		status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
		return true, ok && status.Signal() == syscall.SIGKILL
	default:
		return false, false
	}
}

// Exit waits for the process to end by itself and returns its exit code.
func (p *Process) Exit(t testing.TB) int {
	t.Helper()
	select {
	case <-p.exited:
	case <-time.After(2 * patience):
		t.Fatalf("bridge (pid %d) did not end in time; it said:\n%s", p.Pid(), tail(p.Output()))
	}
	return p.code
}

// Await waits until the process has said something.
func (p *Process) Await(t testing.TB, text string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		said, more := p.out.next()
		if strings.Contains(said, text) {
			return
		}
		select {
		case <-more:
		case <-p.exited:
			if !strings.Contains(p.Output(), text) {
				t.Fatalf("bridge ended (code %d) without %q; it said:\n%s", p.code, text, tail(p.Output()))
			}
			return
		case <-deadline:
			t.Fatalf("bridge did not say %q in time; it said:\n%s", text, tail(said))
		}
	}
}

// output collects what a process says, and tells who waits for more.
type output struct {
	mu   sync.Mutex
	b    bytes.Buffer
	more chan struct{}
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more != nil {
		close(o.more)
		o.more = nil
	}
	return o.b.Write(p)
}

// String returns everything so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// next returns everything so far, and a channel that is closed at the next write.
func (o *output) next() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more == nil {
		o.more = make(chan struct{})
	}
	return o.b.String(), o.more
}

// Ran is a command that has ended.
type Ran struct {
	Stdout, Stderr string
	Code           int
}

// Run runs one command to its end.
func Run(t testing.TB, env Env, stdin string, args ...string) Ran {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary(t), args...)
	cmd.Env = env.list()
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatalf("bridge %s: %v", strings.Join(args, " "), err)
	}
	return Ran{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}
