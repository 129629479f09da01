package servers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"delaybridge/test/kafka"
)

// javaKafka is one Apache Kafka process, broker and controller in one.
type javaKafka struct {
	jars       string // directory
	dir        string
	properties []string
	fixed      int // the port that it must have, 0 for any
	port       int
	controller int

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	out  *lockedBuffer
}

func newJavaKafka(jars, dir string, properties []string) *Kafka {
	k := &javaKafka{jars: jars, dir: dir, out: &lockedBuffer{}}
	for _, p := range properties {
		if port, ok := strings.CutPrefix(p, kafkaPort); ok {
			k.fixed, _ = strconv.Atoi(port)
		} else {
			k.properties = append(k.properties, p)
		}
	}
	return &Kafka{Real: true, real: k}
}

func (k *javaKafka) address() string { return fmt.Sprintf("127.0.0.1:%d", k.port) }

// start starts the process, formatting its storage first if it has none. A
// first start may find its ports taken by another since they were chosen, and
// chooses others.
func (k *javaKafka) start(t testing.TB) {
	t.Helper()
	first := k.port == 0
	for try := 1; ; try++ {
		if first {
			k.port, k.controller = cmp.Or(k.fixed, FreePort(t)), FreePort(t)
			if err := k.format(); err != nil {
				t.Fatalf("format Kafka's storage: %v", err)
			}
		}
		err := k.run()
		if err == nil {
			return
		}
		if !first || try == 3 {
			t.Fatalf("start Kafka: %v\n%s", err, k.said())
		}
		_ = os.RemoveAll(k.data())
	}
}

func (k *javaKafka) data() string   { return filepath.Join(k.dir, "data") }
func (k *javaKafka) config() string { return filepath.Join(k.dir, "server.properties") }

func (k *javaKafka) format() error {
	properties := append([]string{
		"process.roles=broker,controller",
		"node.id=1",
		fmt.Sprintf("controller.quorum.voters=1@127.0.0.1:%d", k.controller),
		fmt.Sprintf("listeners=PLAINTEXT://127.0.0.1:%d,CONTROLLER://127.0.0.1:%d", k.port, k.controller),
		"controller.listener.names=CONTROLLER",
		"log.dirs=" + k.data(),
		// One broker cannot keep the usual three copies of these.
		"offsets.topic.replication.factor=1",
		"offsets.topic.num.partitions=1",
		"transaction.state.log.replication.factor=1",
		"transaction.state.log.min.isr=1",
		"transaction.state.log.num.partitions=1",
		"share.coordinator.state.topic.replication.factor=1",
		"share.coordinator.state.topic.min.isr=1",
		"share.coordinator.state.topic.num.partitions=1",
		// Tests do not wait.
		"group.initial.rebalance.delay.ms=0",
		"group.min.session.timeout.ms=100",
		"log.initial.task.delay.ms=500",
		// A broker that was killed may register anew only when its old session is over.
		"broker.session.timeout.ms=1500",
		"broker.heartbeat.interval.ms=300",
		// Small: several test packages run at once.
		"num.network.threads=1",
		"num.io.threads=2",
		"num.recovery.threads.per.data.dir=1",
		"log.cleaner.dedupe.buffer.size=2000000",
		"log.index.size.max.bytes=65536",
		"auto.create.topics.enable=false",
	}, k.properties...)
	if err := os.WriteFile(k.config(), []byte(strings.Join(properties, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := k.java(ctx, "kafka.tools.StorageTool", "format", "--cluster-id", "delaybridge-tests-0000", "--config", k.config())
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func (k *javaKafka) java(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "java", append([]string{
		"-Xmx256m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", filepath.Join(k.jars, "*"),
	}, args...)...)
	// The process must not outlive a test binary that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// run starts the process and returns when it listens, or has ended.
func (k *javaKafka) run() error {
	cmd := k.java(context.Background(), "kafka.Kafka", k.config())
	cmd.Stdout, cmd.Stderr = k.out, k.out
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	k.cmd, k.done = cmd, done
	go func() {
		_ = cmd.Wait()
		close(done)
	}()
	ended := false
	// It takes seconds of processor time until it listens, and there may be little.
	up := within(3*patience, func() bool {
		select {
		case <-done:
			ended = true
			return true
		default:
		}
		return listening(k.address())
	})
	switch {
	case ended:
		return fmt.Errorf("the process ended: %v", cmd.ProcessState)
	case !up:
		k.kill()
		return fmt.Errorf("nothing listened on %s in time", k.address())
	}
	return nil
}

func (k *javaKafka) stop() { k.end(syscall.SIGTERM) }
func (k *javaKafka) kill() { k.end(syscall.SIGKILL) }

func (k *javaKafka) end(sig syscall.Signal) {
	if k.cmd == nil {
		return
	}
	_ = k.cmd.Process.Signal(sig)
	select {
	case <-k.done:
	case <-time.After(patience):
		_ = k.cmd.Process.Kill()
		<-k.done
	}
	k.cmd = nil
}

// said returns the end of what the process wrote.
func (k *javaKafka) said() string {
	s := k.out.String()
	if len(s) > 8000 {
		s = "…" + s[len(s)-8000:]
	}
	return s
}

// removeAtExit has the directory removed when this process has ended, however
// that happens: a shell waits for the end of a pipe that only we hold.
func (k *javaKafka) removeAtExit() error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	cmd := exec.Command("sh", "-c", `cat >/dev/null; sleep 1; rm -rf -- "$0"`, k.dir)
	cmd.Stdin = r
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		_ = w.Close()
		return err
	}
	exitPipes = append(exitPipes, w)
	return nil
}

// exitPipes are held open, and from being collected, until this process ends.
var exitPipes []*os.File

// jars is the directory of Apache Kafka's jars, looked for once per test binary.
var jars struct {
	sync.Once
	dir string
	err error
}

// kafkaJars returns the directory that holds Apache Kafka's jars, fetching them
// if it must. It returns false, and says why once, where kfake is to be used.
func kafkaJars(t testing.TB) (string, bool) {
	t.Helper()
	jars.Do(func() {
		if os.Getenv(KafkaEnv) == "kfake" {
			jars.err = fmt.Errorf("%s says so", KafkaEnv)
		} else {
			jars.dir, jars.err = fetchKafka()
		}
		if jars.err != nil && os.Getenv(KafkaEnv) != "real" {
			_, _ = fmt.Fprintln(os.Stderr, usingKfake, jars.err)
		}
	})
	if jars.err != nil && os.Getenv(KafkaEnv) == "real" {
		t.Fatalf("%s=real, and Apache Kafka cannot be had: %v", KafkaEnv, jars.err)
	}
	return jars.dir, jars.err == nil
}

// usingKfake is what stands before the reason. "make test" collects these lines.
const usingKfake = "Kafka: using the in-process broker (kfake), because"

// logKfake has a test say that it does not run on Apache Kafka.
func logKfake(t testing.TB) {
	t.Helper()
	t.Logf("%s %v", usingKfake, jars.err)
}

// fetchKafka has Maven copy Apache Kafka's jars into the user's cache, unless
// they are there. Test packages that run at the same time wait for one another.
func fetchKafka() (string, error) {
	if _, err := exec.LookPath("java"); err != nil {
		return "", fmt.Errorf("there is no Java: %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	cache = filepath.Join(cache, "delaybridge-tests")
	dir := filepath.Join(cache, fmt.Sprintf("kafka-%.6x", sha256.Sum256(kafka.POM)))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "kafka.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }() // which unlocks it
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		return "", fmt.Errorf("there is no Maven: %w", err)
	}
	work, err := os.MkdirTemp(cache, "fetch")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(work) }()
	pom := filepath.Join(work, "pom.xml")
	if err := os.WriteFile(pom, kafka.POM, 0o600); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "mvn", "-B", "-q", "-f", pom, "dependency:copy-dependencies",
		"-DincludeScope=runtime", "-DoutputDirectory="+filepath.Join(work, "jars"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("maven could not fetch it: %w: %s", err, firstLine(out))
	}
	// A rename, so that a directory of that name is always complete.
	if err := os.Rename(filepath.Join(work, "jars"), dir); err != nil {
		return "", err
	}
	return dir, nil
}

// firstLine returns the first line of b that is not empty.
func firstLine(b []byte) string {
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" {
			return line
		}
	}
	return ""
}

// listening reports whether something accepts connections at addr.
func listening(addr string) bool {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
