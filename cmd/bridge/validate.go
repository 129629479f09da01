package main

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nkeys"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/luascripts"
)

var (
	namespaceForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
	// streamForm is what JetStream takes as the name of a stream or consumer.
	streamForm = regexp.MustCompile(`^[^\s.*>/\\\x00-\x1f]{1,200}$`)
	groupForm  = regexp.MustCompile(`^\S{1,255}$`)
)

// Validate checks every value on its own and against the others. Its error is
// a settingError that names the variable.
func (s *Settings) Validate() error {
	for _, check := range []func() *settingError{s.checkProcess, s.checkPprof, s.checkRedis, s.checkTLS, s.checkNATS, s.checkNATSAPI, s.checkKafka, s.checkMessages, s.checkDelivery} {
		if e := check(); e != nil {
			return *e
		}
	}
	// Routes and targets are checked against each other, and by the rules of
	// what they are for.
	_, err := s.newDecoder()
	return err
}

func (s *Settings) checkProcess() *settingError {
	for i, r := range s.Roles {
		if (r != roleIngest && r != roleScheduler) || slices.Contains(s.Roles[:i], r) {
			return wrong("ROLES", s.Roles, "takes ingest, scheduler, or both with a comma between")
		}
	}
	return first(
		matches("NAMESPACE", s.Namespace, namespaceForm, "takes up to 64 letters, digits, dots, dashes and underscores"),
		between("SHARDS", s.Shards, 1, 1024),
		atLeast("SHUTDOWN_TIMEOUT", s.ShutdownTimeout, time.Millisecond),
		listens("METRICS_ADDR", s.MetricsAddr),
		listens("API_ADDR", s.API.Addr),
		s.checkAPIToken(),
		atLeast("READY_MAX_OVERDUE", s.ReadyMaxOverdue, time.Second),
		oneOf("LOG_LEVEL", s.LogLevel, "debug", "info", "warn", "error"),
		oneOf("LOG_FORMAT", s.LogFormat, "json", "console"),
	)
}

func (s *Settings) checkRedis() *settingError {
	if e := first(
		oneOf("REDIS_MODE", s.Redis.Mode, luascripts.ModeSingle, luascripts.ModeSentinel, luascripts.ModeCluster),
		between("REDIS_WAIT_REPLICAS", s.Redis.WaitReplicas, 0, 100),
	); e != nil {
		return e
	}
	if u, err := url.Parse(string(s.Redis.URL)); err == nil && u.Query().Has("skip_verify") {
		return nil // checkTLS says more
	}
	client, err := luascripts.Connect(string(s.Redis.URL), string(s.Redis.Mode))
	if err == nil {
		_ = client.Close()
	}
	// Without the slashes the parser sees no host, and takes its default for it.
	if err != nil || !strings.Contains(string(s.Redis.URL), "://") {
		// The parser's own error repeats parts of the URL, which may be the password.
		return wrong("REDIS_URL", s.Redis.URL,
			fmt.Sprintf("takes a URL for mode %s such as redis://user:password@host:6379/0 (special characters in a password as %%xx)", s.Redis.Mode))
	}
	return nil
}

func (s *Settings) checkNATS() *settingError {
	n := &s.NATS
	for u := range strings.SplitSeq(string(n.URL), ",") {
		if n.URL != "" && !isNATSURL(strings.TrimSpace(u)) {
			return wrong("NATS_URL", n.URL, "takes nats://, tls://, ws:// or wss:// URLs with commas between")
		}
	}
	if n.Creds != "" && n.Nkey != "" {
		return wrong("NATS_NKEY", n.Nkey, "cannot be set beside BRIDGE_NATS_CREDS: set one of them")
	}
	if n.Nkey != "" {
		if _, err := nkeys.FromSeed([]byte(n.Nkey)); err != nil {
			return wrong("NATS_NKEY", n.Nkey, takesSeed)
		}
	}
	for _, subject := range n.Ingest.Subjects {
		if _, err := ingest.ParseSource(delaybridge.SinkNATS + "://" + subject); err != nil {
			return wrong("NATS_INGEST_SUBJECTS", text(subject), "takes subjects such as bridge.schedule: "+reasonOf(err))
		}
	}
	return first(
		readable("NATS_CREDS", n.Creds),
		matches("NATS_INGEST_STREAM", n.Ingest.Stream, streamForm, "takes a stream name: no blanks, dots, slashes, * or >"),
		matches("NATS_INGEST_DURABLE", n.Ingest.Durable, streamForm, "takes a consumer name: no blanks, dots, slashes, * or >"),
	)
}

// isNATSURL reports whether the client can make use of one server's address.
func isNATSURL(s string) bool {
	if !strings.Contains(s, "://") {
		s = "nats://" + s
	}
	u, err := url.Parse(s)
	return err == nil && slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) && u.Hostname() != ""
}

// maxPayloadSetting is the most that BRIDGE_MAX_PAYLOAD can be: a Redis value holds
// at most 512 MiB.
const maxPayloadSetting size = 256 << 20

func (s *Settings) checkMessages() *settingError {
	return first(
		atLeast("MAX_DELAY", s.MaxDelay, time.Second),
		sizeBetween("MAX_PAYLOAD", s.MaxPayload, 1, maxPayloadSetting),
		between("MAX_HEADERS", s.MaxHeaders, 1, 100_000),
		sizeBetween("MAX_HEADER_BYTES", s.MaxHeaderBytes, 1<<10, 16<<20),
		atLeast("DEDUP_WINDOW", s.DedupWindow, time.Second),
	)
}

func (s *Settings) checkDelivery() *settingError {
	if e := first(
		atLeast("PUBLISH_TIMEOUT", s.PublishTimeout, 100*time.Millisecond),
		between("BATCH", s.Batch, 1, 1000),
		between("MAX_INFLIGHT", s.MaxInflight, s.Batch, 1_000_000),
		atLeast("RETRY_BASE", s.RetryBase, time.Millisecond),
		between("MAX_ATTEMPTS", s.MaxAttempts, 1, 1_000_000),
		between("MAX_LOST_LEASES", s.MaxLostLeases, 1, 1_000_000),
		between("MAX_PENDING", s.MaxPending, 0, 1<<40),
		between("INGEST_RATE", s.IngestRate, 0, 10_000_000),
		atLeast("POLL_MAX", s.PollMax, 10*time.Millisecond),
		atLeast("CLOCK_TOLERANCE", s.ClockTolerance, 0),
	); e != nil {
		return e
	}
	if s.Lease < duration(time.Second) {
		return wrong("LEASE", s.Lease, "takes at least 1s: a process that pauses for less would lose what it holds, and it would be delivered twice")
	}
	if s.Lease < 2*s.PublishTimeout {
		return wrong("LEASE", s.Lease, fmt.Sprintf("takes at least twice BRIDGE_PUBLISH_TIMEOUT (%s), so that a publish has ended before its lease has", s.PublishTimeout))
	}
	if s.RetryMax < s.RetryBase {
		return wrong("RETRY_MAX", s.RetryMax, fmt.Sprintf("takes at least BRIDGE_RETRY_BASE (%s)", s.RetryBase))
	}
	return nil
}

// wrong makes the error of one setting; a secret's value stays out of it.
func wrong(name string, value fmt.Stringer, takes string) *settingError {
	e := &settingError{name: prefix + "_" + name, value: value.String(), takes: takes}
	if _, ok := value.(secret); ok {
		e.value = ""
	}
	return e
}

func first(errs ...*settingError) *settingError {
	for _, e := range errs {
		if e != nil {
			return e
		}
	}
	return nil
}

func matches(name string, v text, form *regexp.Regexp, takes string) *settingError {
	if form.MatchString(string(v)) {
		return nil
	}
	return wrong(name, v, takes)
}

func oneOf(name string, v text, words ...string) *settingError {
	if slices.Contains(words, string(v)) {
		return nil
	}
	last := len(words) - 1
	return wrong(name, v, "takes "+strings.Join(words[:last], ", ")+" or "+words[last])
}

func between(name string, v, low, high count) *settingError {
	if low <= v && v <= high {
		return nil
	}
	return wrong(name, v, fmt.Sprintf("takes a number from %d to %d", low, high))
}

func listens(name string, v listenAddress) *settingError {
	if v == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(string(v))
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || perr != nil || n > 65535 {
		return wrong(name, v, "takes host:port such as :9090 or 127.0.0.1:9090, or nothing")
	}
	return nil
}

func sizeBetween(name string, v, low, high size) *settingError {
	if low <= v && v <= high {
		return nil
	}
	return wrong(name, v, fmt.Sprintf("takes a size from %s to %s", low, high))
}

func atLeast(name string, v duration, low time.Duration) *settingError {
	if v >= duration(low) {
		return nil
	}
	return wrong(name, v, "takes at least "+duration(low).String())
}

func readable(name string, path text) *settingError {
	if path == "" {
		return nil
	}
	f, err := os.Open(string(path))
	if err != nil {
		return wrong(name, path, "takes the path of a file that can be read: "+err.Error())
	}
	_ = f.Close()
	return nil
}
