package deploy

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"delaybridge/test/servers"
)

// program is the bridge, built as the Dockerfile builds it, and removed by TestMain.
var program struct {
	sync.Once
	dir, path string
	err       error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if program.dir != "" {
		_ = os.RemoveAll(program.dir)
	}
	os.Exit(code)
}

func bridge(t testing.TB) string {
	t.Helper()
	program.Do(func() {
		if program.dir, program.err = os.MkdirTemp("", "bridge-deploy-"); program.err != nil {
			return
		}
		program.path = filepath.Join(program.dir, "bridge")
		// In its own module: what this one depends on is not what it is built with.
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program.path, "./cmd/bridge")
		cmd.Dir, cmd.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			program.err = fmt.Errorf("build: %w\n%s", err, out)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return program.path
}

// setting is a row of "bridge config -o json".
type setting struct{ Name, Default string }

func settings(t testing.TB) map[string]setting {
	t.Helper()
	cmd := exec.Command(bridge(t), "config", "-o", "json")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []setting }
	if err := json.Unmarshal(out, &list); err != nil {
		t.Fatal(err)
	}
	all := map[string]setting{}
	for _, s := range list.Items {
		all[s.Name] = s
	}
	return all
}

// TestSettings holds every variable that is mentioned in deploy/ and in the runbook
// to being a setting of the bridge.
func TestSettings(t *testing.T) {
	real := settings(t)
	files := []string{filepath.Join(deployDir, "../docs/operations.md")}
	err := filepath.WalkDir(deployDir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range variable.FindAllString(string(text), -1) {
			switch _, ok := real[strings.TrimSuffix(name, "_FILE")]; {
			case ok:
			case name == "BRIDGE_SCHEDULE": // the stream
			case name == "BRIDGE_PORT": // what Kubernetes would set
			default:
				t.Errorf("%s mentions %s, which is no setting", f, name)
			}
		}
	}
}

// TestChartSettings has the bridge read the settings that the chart makes, as it
// would in a pod: all are known and none is refused.
func TestChartSettings(t *testing.T) {
	c := loadChart(t)
	for name, values := range valueSets {
		t.Run(name, func(t *testing.T) {
			texts, err := render(c, values)
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(bridge(t), "config", "-o", "json")
			cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
			dir := t.TempDir()
			for k, v := range configOf(t, texts) {
				if path, ok := strings.CutPrefix(v, "/etc/bridge/"); ok {
					v = filepath.Join(dir, filepath.Base(path))
					if err := os.WriteFile(v, []byte(secretFor(t, k)), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				cmd.Env = append(cmd.Env, k+"="+v)
			}
			var said bytes.Buffer
			cmd.Stderr = &said
			if _, err := cmd.Output(); err != nil || said.Len() > 0 {
				t.Errorf("bridge config: %v\n%s", err, said.String())
			}
		})
	}
}

// secretFor is a value of the right form for a setting that is read from a file.
func secretFor(t testing.TB, name string) string {
	t.Helper()
	switch name {
	case "BRIDGE_REDIS_TLS_CA", "BRIDGE_REDIS_TLS_CERT", "BRIDGE_NATS_TLS_CA", "BRIDGE_NATS_TLS_CERT", "BRIDGE_KAFKA_TLS_CA", "BRIDGE_KAFKA_TLS_CERT":
		cert, _ := certificate(t)
		return cert
	case "BRIDGE_REDIS_TLS_KEY", "BRIDGE_NATS_TLS_KEY", "BRIDGE_KAFKA_TLS_KEY":
		_, key := certificate(t)
		return key
	case "BRIDGE_REDIS_URL_FILE":
		return "redis://:secret@redis:6379/0"
	case "BRIDGE_NATS_URL_FILE":
		return "nats://user:secret@nats:4222"
	case "BRIDGE_NATS_NKEY_FILE":
		// The seed of a key that is nobody's.
		return "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY"
	}
	return "secret-of-thirty-two-characters-or-more"
}

// pair is one certificate that is signed by itself, and its key.
var pair struct {
	sync.Once
	cert, key string
	err       error
}

// certificate returns a certificate and its key, PEM, the same each time.
func certificate(t testing.TB) (cert, key string) {
	t.Helper()
	pair.Do(func() {
		private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			pair.err = err
			return
		}
		template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
		der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
		if err != nil {
			pair.err = err
			return
		}
		k, err := x509.MarshalPKCS8PrivateKey(private)
		pair.cert = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
		pair.key, pair.err = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k})), err
	})
	if pair.err != nil {
		t.Fatal(pair.err)
	}
	return pair.cert, pair.key
}

var (
	scraped sync.Once
	metrics map[string][]map[string]string
)

// exposed are the metrics of a "bridge serve" that runs on a real Redis and a real
// NATS server, and is told of a Kafka that is not there: for each name the labels
// of its series. It is started once.
func exposed(t testing.TB) map[string][]map[string]string {
	t.Helper()
	scraped.Do(func() { metrics = scrape(t) })
	if metrics == nil {
		t.Fatal("the bridge could not be scraped")
	}
	return metrics
}

var servingAt = regexp.MustCompile(`"msg":"serving metrics and probes".*"address":"([^"]+)"`)

func scrape(t testing.TB) map[string][]map[string]string {
	redis, nats := servers.NewRedis(t, "--maxmemory", "64mb"), servers.NewNATS(t)
	cmd := exec.Command(bridge(t), "serve")
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "BRIDGE_REDIS_URL=" + redis.URL, "BRIDGE_NATS_URL=" + nats.URL,
		fmt.Sprintf("BRIDGE_KAFKA_BROKERS=127.0.0.1:%d", servers.FreePort(t)), "BRIDGE_METRICS_ADDR=127.0.0.1:0"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	address := ""
	lines := bufio.NewScanner(out)
	for lines.Scan() && address == "" {
		if m := servingAt.FindStringSubmatch(lines.Text()); m != nil {
			address = m[1]
		}
	}
	if address == "" {
		t.Fatal("the bridge does not say where its metrics are")
	}
	go func() { // else it would block on a full pipe
		for lines.Scan() {
		}
	}()
	var all map[string][]map[string]string
	// The lag of a stream is there once the stream was found.
	ok := servers.Eventually(func() bool {
		time.Sleep(50 * time.Millisecond)
		all = get(t, "http://"+address+"/metrics")
		return len(all["bridge_ingest_lag"]) > 0 && len(all["bridge_pending"]) > 0
	})
	if !ok {
		t.Fatalf("after a while there still is no bridge_ingest_lag or bridge_pending: %v", slices.Sorted(maps.Keys(all)))
	}
	return all
}

// get scrapes once.
func get(t testing.TB, url string) map[string][]map[string]string {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Body.Close() }()
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]map[string]string{}
	for name, f := range families {
		for _, m := range f.Metric {
			l := map[string]string{}
			for _, pair := range m.Label {
				l[pair.GetName()] = pair.GetValue()
			}
			names := []string{name}
			switch f.GetType() {
			case dto.MetricType_HISTOGRAM:
				names = []string{name + "_bucket", name + "_sum", name + "_count"}
			case dto.MetricType_SUMMARY:
				names = []string{name, name + "_sum", name + "_count"}
			}
			for _, n := range names {
				all[n] = append(all[n], l)
			}
		}
	}
	return all
}
