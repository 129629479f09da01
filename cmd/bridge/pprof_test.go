package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

func TestPprofIsForThisHostOnly(t *testing.T) {
	for address, ok := range map[string]bool{
		"": true, "127.0.0.1:0": true, "localhost:6060": true, "[::1]:6060": true, "127.1.2.3:6060": true,
		":6060": false, "0.0.0.0:6060": false, "[::]:6060": false, "10.0.0.1:6060": false, "example.org:6060": false,
		"localhost.example.org:6060": false, "6060": false, "127.0.0.1": false,
	} {
		clearSettings(t)
		t.Setenv("BRIDGE_PPROF_ADDR", address)
		if _, _, err := loadSettings(); (err == nil) != ok {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestPprofServes(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	s := defaultSettings()
	s.PprofAddr = "127.0.0.1:0"
	stop, err := s.servePprof(zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	base := "http://" + logs.All()[0].ContextMap()["address"].(string)
	get := func(path, host string) (int, string) {
		req, err := http.NewRequest(http.MethodGet, base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			req.Host = host
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if code, body := get("/debug/pprof/goroutine?debug=1", ""); code != 200 || !strings.Contains(body, "goroutine profile") {
		t.Errorf("%d %.200s", code, body)
	}
	if code, _ := get("/debug/pprof/cmdline", ""); code != 404 {
		t.Errorf("the command line is served: %d", code)
	}
	if code, _ := get("/metrics", ""); code != 404 {
		t.Errorf("something else is served: %d", code)
	}
	if code, _ := get("/debug/pprof/heap", "attacker.example"); code != 403 {
		t.Errorf("by another name: %d", code)
	}
}
