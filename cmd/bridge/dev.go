package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"delaybridge/luascripts"
)

// What "bridge dev" brings along for trying things out.
const (
	devStream = "DEV"
	devHello  = "dev.hello"
	devTopic  = "orders"

	devMetricsPort = 9090
	devAPIPort     = 8080
)

var devSubjects = []string{"dev.>", "orders.>"}

func newDev() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Run everything in one process, with nothing to install; nothing survives exit",
		Long: `Run the bridge with an in-memory Redis and a NATS server with JetStream, all in
this process and on loopback only. With --kafka it brings a Kafka-compatible
broker along, too. Nothing survives exit. The BRIDGE_ settings are honoured,
except those that say where Redis and the brokers are.

What arrives for dev.> and orders.> is printed, and so is why a message was refused
or cannot be delivered. "bridge dead list" has what was given up, and "bridge list"
what is still tried.`,
		Example: `  bridge dev
  bridge dev --kafka
  bridge dev --nats-port 14222 --redis-port 16379`,
		Args: noArgs,
	}
	var ports devPorts
	cmd.Flags().IntVar(&ports.redis, "redis-port", 6399, "port of the in-memory Redis; 0 takes any free one")
	cmd.Flags().IntVar(&ports.nats, "nats-port", 4222, "port of the NATS server; 0 takes any free one")
	cmd.Flags().IntVar(&ports.kafka, "kafka-port", 9092, "port of the Kafka broker; 0 takes any free one")
	cmd.Flags().IntVar(&ports.metrics, "metrics-port", devMetricsPort, "port of metrics and probes, on loopback; 0 takes any free one, as does the default where it is taken")
	cmd.Flags().IntVar(&ports.api, "api-port", devAPIPort, "port of the console and the HTTP API, on loopback; 0 takes any free one, as does the default where it is taken")
	cmd.Flags().BoolVar(&ports.withKafka, "kafka", false, "bring a Kafka-compatible broker along")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, p := range []struct {
			flag string
			port int
		}{{"--redis-port", ports.redis}, {"--nats-port", ports.nats}, {"--kafka-port", ports.kafka}, {"--metrics-port", ports.metrics}, {"--api-port", ports.api}} {
			if p.port < 0 || p.port > 65535 {
				return usagef("%s %d: takes a port, or 0", p.flag, p.port)
			}
		}
		if cmd.Flags().Changed("kafka-port") && !ports.withKafka {
			return usagef("--kafka-port: takes --kafka beside it")
		}
		ports.metricsAsked, ports.apiAsked = cmd.Flags().Changed("metrics-port"), cmd.Flags().Changed("api-port")
		return dev(cmd.Context(), ports, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

// dev runs the embedded servers, the bridge, and a first message, until ctx ends.
func dev(ctx context.Context, ports devPorts, stdout, stderr io.Writer) error {
	s, err := settingsFor(stderr)
	if err != nil {
		return err
	}
	servers, err := startEmbedded(ports, append(slices.Clone([]string(s.Kafka.Ingest.Topics)), devTopic))
	if err != nil {
		return err
	}
	defer servers.close()
	for _, name := range []string{"REDIS_URL", "NATS_URL", "KAFKA_BROKERS"} {
		if os.Getenv(prefix+"_"+name) != "" {
			fmt.Fprintf(stderr, "bridge: warning: %s_%s is not used: everything is in this process\n", prefix, name)
		}
	}
	s.useEmbedded(servers)
	metrics, err := s.listenDevMetrics(ports)
	if err != nil {
		return err
	}
	api, err := s.listenDevAPI(ports)
	if err != nil {
		return err
	}
	level := text("warn")
	if os.Getenv(prefix+"_LOG_LEVEL") != "" {
		level = s.LogLevel
	}
	log := newLog(level, "console")
	defer func() { _ = log.Sync() }()

	out := &screen{w: stdout}
	out.printf(`Delaybridge, everything in one process. NOTHING SURVIVES EXIT.

  Redis  %-28s in memory
  NATS   %-28s JetStream, in a directory that is removed at exit
         schedule on %s
         stream %s holds %s
`, servers.redisURL, servers.natsURL, strings.Join(s.NATS.Ingest.Subjects, ", "), devStream, strings.Join(devSubjects, " and "))
	if servers.kafka != nil {
		out.printf("  Kafka  %-28s in memory; schedule on %s\n", strings.Join(servers.brokers, ","), strings.Join(s.Kafka.Ingest.Topics, ", "))
	}
	if metrics != nil {
		out.printf("  Watch  http://%s/metrics, and /healthz and /readyz\n", metrics.Addr())
	}
	if api != nil {
		out.printf("  Open   http://%-21s the console; its API is under /v1/\n", api.Addr())
	}
	out.printf("\n")

	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return run(ctx, s, log, nil, listeners{metrics, api}) })
	g.Go(func() error { return demo(ctx, s, servers, out) })
	if err := g.Wait(); err != nil {
		return err
	}
	out.printf("Stopped; everything is gone.\n")
	return nil
}

// listenDevMetrics listens where the flag says, else where BRIDGE_METRICS_ADDR
// does, else on a port that is free: that of the default is Prometheus's own, and
// no reason not to start.
func (s *Settings) listenDevMetrics(ports devPorts) (net.Listener, error) {
	_, isSet := os.LookupEnv(prefix + "_METRICS_ADDR")
	switch {
	case ports.metricsAsked:
		if err := claimPort("--metrics-port", &ports.metrics); err != nil {
			return nil, err
		}
	case isSet:
		return s.listenMetrics()
	default:
		if claimPort("--metrics-port", &ports.metrics) != nil {
			ports.metrics = 0
		}
	}
	return net.Listen("tcp", loopback(ports.metrics))
}

// listenDevAPI listens where the flag says, else where BRIDGE_API_ADDR does, else
// on its usual port, or on one that is free where that is taken.
func (s *Settings) listenDevAPI(ports devPorts) (net.Listener, error) {
	_, isSet := os.LookupEnv(prefix + "_API_ADDR")
	switch {
	case ports.apiAsked:
		if err := claimPort("--api-port", &ports.api); err != nil {
			return nil, err
		}
	case isSet:
		return s.listenAPI()
	default:
		if claimPort("--api-port", &ports.api) != nil {
			ports.api = 0
		}
	}
	s.API.Addr = listenAddress(loopback(ports.api))
	return s.listenAPI()
}

// useEmbedded points the settings at the embedded servers.
func (s *Settings) useEmbedded(e *embedded) {
	s.Roles = list{roleIngest, roleScheduler}
	plain := defaultSettings()
	s.Redis.TLS, s.NATS.TLS, s.Kafka.TLS, s.Redis.Password = plain.Redis.TLS, plain.NATS.TLS, plain.Kafka.TLS, ""
	s.Redis.URL, s.Redis.Mode, s.Redis.WaitReplicas = address(e.redisURL), luascripts.ModeSingle, 0
	s.NATS.URL, s.NATS.Creds, s.NATS.Nkey = address(e.natsURL), "", ""
	s.NATS.Ingest.Create = true
	s.Kafka.Brokers = e.brokers
	s.Kafka.SASL.Mechanism = ""
}

// demo makes the stream to try things on, shows what arrives there, and sends
// one message through the bridge as a proof that it works.
func demo(ctx context.Context, s *Settings, servers *embedded, out *screen) error {
	nc, err := nats.Connect(servers.natsURL, nats.Name("bridge dev"), nats.InProcessServer(servers.nats))
	if err != nil {
		return fmt.Errorf("connect to the embedded NATS server: %w", err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{
		Name: devStream, Subjects: devSubjects, Discard: jetstream.DiscardOld, MaxBytes: 64 << 20,
	}); err != nil {
		return fmt.Errorf("make stream %s: %w", devStream, err)
	}

	hello := make(chan struct{})
	var once sync.Once
	for _, subject := range devSubjects {
		if _, err := nc.Subscribe(subject, func(m *nats.Msg) {
			out.printf("%s  arrived on %s: %s%s\n", clock(time.Now()), printable(m.Subject), shorten(m.Data), lateness(m, time.Now()))
			if m.Subject == devHello {
				once.Do(func() { close(hello) })
			}
		}); err != nil {
			return err
		}
	}

	const delay = 2 * time.Second
	if !publishWhenReady(ctx, js, s, delay) {
		return nil
	}
	out.printf("%s  ready; scheduled a message for nats://%s in %s\n", clock(time.Now()), devHello, delay)
	select {
	case <-ctx.Done():
		return nil
	case <-hello:
	case <-time.After(delay + 10*time.Second):
		out.printf("%s  the message has not arrived; perhaps a setting rejects it:\n", clock(time.Now()))
		out.printf("  %s dead list\n", ourself(servers))
	}
	out.printf(`
Try next, from another terminal; what arrives is shown here:

  %[1]s schedule --target nats://orders.timeout --delay 5s '{"order":7}'
  %[1]s list

or with the nats command, from any NATS client alike:

  nats --server %[2]s pub %[3]s '{"order":8}' -H Bridge-Target:nats://orders.timeout -H Bridge-Delay:5s
  nats --server %[2]s sub 'orders.>'
`, ourself(servers), servers.natsURL, s.NATS.Ingest.Subjects[0])
	if servers.kafka != nil {
		out.printf(`
or with kcat, from Kafka to Kafka and from Kafka to NATS:

  echo '{"order":9}' | kcat -P -b %[1]s -t %[2]s -H Bridge-Target=kafka://%[3]s -H Bridge-Delay=5s
  echo '{"order":10}' | kcat -P -b %[1]s -t %[2]s -H Bridge-Target=nats://orders.timeout -H Bridge-Delay=5s
  kcat -C -b %[1]s -t %[3]s
`, strings.Join(servers.brokers, ","), s.Kafka.Ingest.Topics[0], devTopic)
	}
	out.printf("\nIf nothing arrives, it may have been refused; this says why:\n\n  %s dead list\n", ourself(servers))
	out.printf("\nCtrl-C stops it.\n\n")
	<-ctx.Done()
	return nil
}

// publishWhenReady sends the first message as a producer would, as soon as the
// bridge has made the stream it reads from. It returns false if ctx ended first.
func publishWhenReady(ctx context.Context, js jetstream.JetStream, s *Settings, delay time.Duration) bool {
	for {
		m := nats.NewMsg(strings.NewReplacer("*", "dev", ">", "dev").Replace(s.NATS.Ingest.Subjects[0]))
		m.Header.Set("Bridge-Target", "nats://"+devHello)
		m.Header.Set("Bridge-Delay", delay.String())
		m.Data = []byte("hello, later")
		_, err := js.PublishMsg(ctx, m, jetstream.WithRetryAttempts(0))
		if err == nil {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// lateness says how long after its due time a message of the bridge arrived.
func lateness(m *nats.Msg, at time.Time) string {
	due, err := time.Parse(time.RFC3339, m.Header.Get("Bridge-Due-At"))
	if err != nil {
		return ""
	}
	return fmt.Sprintf("  (%d ms after it was due)", at.Sub(due).Milliseconds())
}

// ourself is how this program is run again, with what it needs to find Redis.
func ourself(servers *embedded) string {
	program := os.Args[0]
	if strings.Contains(program, "go-build") {
		program = "go run ./cmd/bridge"
	} else if _, err := os.Stat(program); err != nil && filepath.Base(program) != program {
		program = "bridge"
	}
	return fmt.Sprintf("%s_REDIS_URL=%s %s", prefix, servers.redisURL, program)
}

func clock(t time.Time) string { return t.Format("15:04:05.000") }

func shorten(b []byte) string {
	const most = 80
	if len(b) > most {
		return printable(string(b[:most])) + "..."
	}
	return printable(string(b))
}

// screen lets several goroutines print.
type screen struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *screen) printf(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.w, format, args...)
}
