package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// benchProcesses are the bridges that do the work of a measurement.
type benchProcesses struct {
	all []*benchProcess
	// failed tells of the first that ended without being asked to.
	failed chan error
}

type benchProcess struct {
	cmd     *exec.Cmd
	said    said
	running chan struct{} // closed when it says so
	ended   chan struct{}
	asked   chan struct{} // closed when it was asked to end
	once    sync.Once
}

// processUsage is what a process has used up to its end.
type processUsage struct {
	CPUSeconds float64 `json:"cpu_seconds"`
	// MaxBytes is its largest memory, 0 where the system does not tell.
	MaxBytes int64 `json:"max_memory_bytes,omitempty"`
}

// benchUnset are settings that a measurement must not have: they lead to what is
// the user's own, or away from what is measured. With NATS_API its processes would
// answer the user's requests, and keep them in the queue that is removed at the end.
var benchUnset = []string{
	"ROUTES", "ALLOWED_TARGETS", "SOURCE_TARGETS", "REJECT_TARGET", "DEAD_TARGET", "MAX_PENDING", "INGEST_RATE",
	"API_ADDR", "API_TOKEN", "API_TOKEN_FILE", "NATS_API", "PPROF_ADDR", "EXPIRES_AFTER",
}

// startBenchProcesses starts n bridges with the environment of this process, but
// for what over sets and for settings that begin as those in without, and waits
// until all run.
func startBenchProcesses(ctx context.Context, n int, over map[string]string, without []string) (*benchProcesses, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	ps := &benchProcesses{failed: make(chan error, 1)}
	for range n {
		p := &benchProcess{cmd: exec.Command(self, "serve"), running: make(chan struct{}), ended: make(chan struct{}), asked: make(chan struct{})}
		p.cmd.Env = benchEnvironment(os.Environ(), over, without)
		p.said.onRunning = sync.OnceFunc(func() { close(p.running) })
		p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
		p.cmd.SysProcAttr = ownChild()
		if err := p.cmd.Start(); err != nil {
			return ps, fmt.Errorf("start a bridge process: %w", err)
		}
		ps.all = append(ps.all, p)
		go func() {
			_ = p.cmd.Wait()
			close(p.ended)
			select {
			case <-p.asked:
			default:
				select {
				case ps.failed <- fmt.Errorf("a bridge process (%d) ended: %s: %s", p.cmd.Process.Pid, p.cmd.ProcessState, p.said.last()):
				default:
				}
			}
		}()
	}
	for _, p := range ps.all {
		select {
		case <-p.running:
		case err := <-ps.failed:
			return ps, err
		case <-ctx.Done():
			return ps, ctx.Err()
		case <-time.After(30 * time.Second):
			return ps, fmt.Errorf("a bridge process does not run after 30 s; it said: %s", p.said.last())
		}
	}
	return ps, nil
}

// benchEnvironment changes an environment's settings.
func benchEnvironment(environ []string, over map[string]string, without []string) []string {
	var env []string
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		setting, ours := strings.CutPrefix(name, prefix+"_")
		_, replaced := over[setting]
		if ours && (replaced || slices.Contains(benchUnset, setting) ||
			slices.ContainsFunc(without, func(w string) bool { return strings.HasPrefix(setting, w) })) {
			continue
		}
		env = append(env, e)
	}
	for name, value := range over {
		env = append(env, prefix+"_"+name+"="+value)
	}
	return env
}

// end asks a process to end.
func (p *benchProcess) end(sig os.Signal) {
	p.once.Do(func() { close(p.asked) })
	_ = p.cmd.Process.Signal(sig)
}

// stop ends all processes in order, and returns what they have used.
func (ps *benchProcesses) stop() ([]processUsage, error) {
	for _, p := range ps.all {
		p.end(syscall.SIGTERM)
	}
	var usage []processUsage
	late := time.After(40 * time.Second)
	for _, p := range ps.all {
		select {
		case <-p.ended:
		case <-late:
			return usage, fmt.Errorf("a bridge process (%d) does not end", p.cmd.Process.Pid)
		}
		if code := p.cmd.ProcessState.ExitCode(); code != exitOK {
			return usage, fmt.Errorf("a bridge process ended with code %d: %s", code, p.said.last())
		}
		s := p.cmd.ProcessState
		usage = append(usage, processUsage{CPUSeconds: (s.UserTime() + s.SystemTime()).Seconds(), MaxBytes: maxMemory(s)})
	}
	return usage, nil
}

// kill ends those that are left at once: what they hold is thrown away.
func (ps *benchProcesses) kill() {
	for _, p := range ps.all {
		select {
		case <-p.ended:
		default:
			p.end(os.Kill)
			<-p.ended
		}
	}
}

// lastWords is the last warning or error that any of them has logged.
func (ps *benchProcesses) lastWords() string {
	for _, p := range ps.all {
		if s := p.said.trouble(); s != "" {
			return s
		}
	}
	return ""
}

// said keeps the end of what a process says, a log line of JSON each.
type said struct {
	onRunning func()

	mu    sync.Mutex
	rest  []byte   // of a line that is not complete
	lines [][]byte // the last of them
	bad   string   // the last warning or error
}

// Write implements io.Writer.
func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rest = append(s.rest, b...)
	for {
		line, rest, ok := bytes.Cut(s.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		s.rest = rest
		s.lines = append(s.lines, bytes.Clone(line))
		s.lines = s.lines[max(0, len(s.lines)-5):]
		var entry struct{ Level, Msg, Error string }
		if json.Unmarshal(line, &entry) != nil {
			continue
		}
		if entry.Msg == "running" {
			s.onRunning()
		}
		if entry.Level == "warn" || entry.Level == "error" {
			s.bad = strings.TrimSuffix(entry.Msg+": "+entry.Error, ": ")
		}
	}
}

// last is the last line, for an error.
func (s *said) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lines) == 0 {
		return oneLine(string(s.rest))
	}
	return oneLine(string(s.lines[len(s.lines)-1]))
}

func (s *said) trouble() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return oneLine(s.bad)
}
