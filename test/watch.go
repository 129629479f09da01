package test

import (
	"bufio"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"delaybridge/test/servers"
)

var metricsAddress = regexp.MustCompile(`"msg":"serving metrics and probes","address":"([^"]+)"`)

// Ask asks the process's listener for a path, and returns status and body.
func (p *Process) Ask(t testing.TB, path string) (status int, body string) {
	t.Helper()
	p.Await(t, `"msg":"serving metrics and probes"`)
	client := &http.Client{Timeout: patience}
	defer client.CloseIdleConnections()
	res, err := client.Get("http://" + metricsAddress.FindStringSubmatch(p.Output())[1] + path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// AwaitReady waits until /readyz says ok, or for 503 with a line that begins with
// reason.
func (p *Process) AwaitReady(t testing.TB, reason string) {
	t.Helper()
	var status int
	var body string
	if !servers.Eventually(func() bool {
		// Not more often than a prober in a hurry.
		defer time.Sleep(50 * time.Millisecond)
		status, body = p.Ask(t, "/readyz")
		if reason == "" {
			return status == http.StatusOK
		}
		return status == http.StatusServiceUnavailable && strings.Contains("\n"+body, "\n"+reason)
	}) {
		t.Fatalf("/readyz says %d %q, want the reason %q", status, body, reason)
	}
}

// Series are the values of a scrape by name and labels, as they are written:
// bridge_pending{sink="nats"}.
type Series map[string]float64

// Scrape reads the process's metrics.
func (p *Process) Scrape(t testing.TB) Series {
	t.Helper()
	status, body := p.Ask(t, "/metrics")
	if status != http.StatusOK {
		t.Fatalf("/metrics: %d %s", status, body)
	}
	all := Series{}
	lines := bufio.NewScanner(strings.NewReader(body))
	for lines.Scan() {
		line := lines.Text()
		cut := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || cut < 0 {
			continue
		}
		v, err := strconv.ParseFloat(line[cut+1:], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all[line[:cut]] = v
	}
	return all
}

// Sum adds up the series of a name whose labels hold all of the given pairs.
func (s Series) Sum(name string, pairs ...string) (sum float64) {
	for series, v := range s {
		n, labels, _ := strings.Cut(series, "{")
		all := n == name
		for _, p := range pairs {
			all = all && strings.Contains(labels, p)
		}
		if all {
			sum += v
		}
	}
	return sum
}

// Has says whether there is a series of that name.
func (s Series) Has(name string) bool {
	for series := range s {
		if n, _, _ := strings.Cut(series, "{"); n == name {
			return true
		}
	}
	return false
}

// Ours counts the series of the bridge itself.
func (s Series) Ours() (n int) {
	for series := range s {
		if strings.HasPrefix(series, "bridge_") {
			n++
		}
	}
	return n
}
