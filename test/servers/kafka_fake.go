package servers

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
)

// fakeKafka is kfake with its log on disk, so that it can be stopped and
// started like a process.
type fakeKafka struct {
	options []kfake.Opt
	cluster *kfake.Cluster
}

// NewKfake starts a kfake broker of the test's own, whatever BRIDGE_TEST_KAFKA
// says, for tests that inject errors with its control functions.
func NewKfake(t testing.TB, options ...kfake.Opt) *Kafka {
	t.Helper()
	return newFakeKafka(t, options...)
}

func newFakeKafka(t testing.TB, options ...kfake.Opt) *Kafka {
	t.Helper()
	k := startFakeKafka(t, append([]kfake.Opt{kfake.DataDir(t.TempDir())}, options...)...)
	t.Cleanup(k.fake.stop)
	return k
}

// startFakeKafka starts a broker that nobody stops. Options come after ours, so
// that they win.
func startFakeKafka(t testing.TB, options ...kfake.Opt) *Kafka {
	t.Helper()
	// Not any ports: an outgoing connection could have one of them after Stop.
	listen := func(network, address string) (net.Listener, error) {
		if host, port, _ := net.SplitHostPort(address); port == "0" {
			address = net.JoinHostPort(host, strconv.Itoa(FreePort(t)))
		}
		return net.Listen(network, address)
	}
	k := &Kafka{fake: &fakeKafka{options: append([]kfake.Opt{
		kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(0), kfake.ListenFn(listen),
	}, options...)}}
	k.fake.start(t)
	k.Brokers = k.fake.cluster.ListenAddrs()
	// They stay the same over Stop and Start.
	var ports []int
	for _, addr := range k.Brokers {
		_, port, _ := net.SplitHostPort(addr)
		n, _ := strconv.Atoi(port)
		ports = append(ports, n)
	}
	k.fake.options = append(k.fake.options, kfake.Ports(ports...))
	return k
}

func (f *fakeKafka) start(t testing.TB) {
	t.Helper()
	c, err := kfake.NewCluster(f.options...)
	if err != nil {
		t.Fatalf("kfake: %v", err)
	}
	f.cluster = c
}

func (f *fakeKafka) stop() {
	if f.cluster != nil {
		f.cluster.Close()
		f.cluster = nil
	}
}

// fakeOptions says in kfake's options what properties say to Apache Kafka.
func fakeOptions(t testing.TB, properties []string) []kfake.Opt {
	t.Helper()
	settings := map[string]string{}
	var options []kfake.Opt
	for _, p := range properties {
		key, value, _ := strings.Cut(p, "=")
		switch {
		case key == "auto.create.topics.enable":
			if value == "true" {
				options = append(options, kfake.AllowAutoTopicCreation())
			}
		case key == "num.partitions":
			n, err := strconv.Atoi(value)
			if err != nil {
				t.Fatalf("property %s: %v", p, err)
			}
			options = append(options, kfake.DefaultNumPartitions(n))
		default:
			settings[key] = value
		}
	}
	if len(settings) > 0 {
		options = append(options, kfake.BrokerConfigs(settings))
	}
	return options
}
