package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"go.uber.org/zap"

	"delaybridge"
)

// Whatever is asked, the answer is one of those that are described, as one line of
// JSON that steers no terminal.
func FuzzAPIRequest(f *testing.F) {
	f.Add("POST", "/v1/messages", "", "application/json", []byte(`{"target":"nats://x","delay":"1h","payload":{"a":1}}`))
	f.Add("POST", "/v1/messages", "", "text/plain", []byte("x"))
	f.Add("GET", "/v1/messages/a%2Fb", "", "", []byte(nil))
	f.Add("GET", "/v1/messages", "sink=nats&limit=5&after=x", "", []byte(nil))
	f.Add("DELETE", "/v1/messages/\x1b[2J", "", "", []byte(nil))
	f.Add("GET", "/v1/dead", "reason=rejected&target=nats://x", "", []byte(nil))
	f.Add("POST", "/v1/dead/rejected:nats:S:1/replay", "force=true", "", []byte(nil))
	f.Add("GET", "/v1/stats", "%zz", "", []byte(nil))
	f.Add("PATCH", "/v1/../v1//", "", "", []byte(nil))

	settings := defaultSettings()
	settings.Redis.URL = address("redis://" + miniredis.RunT(f).Addr() + "/0")
	queue, client, err := openQueue(f.Context(), settings)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = client.Close() })
	a := newAPI(settings, newMetrics([]string{sourceAPI}, []string{delaybridge.SinkNATS}), zap.NewNop())
	if err := a.open(settings, queue); err != nil {
		f.Fatal(err)
	}
	known := map[int]bool{200: true, 202: true, 204: true, 400: true, 401: true, 403: true, 404: true, 405: true, 409: true, 413: true, 415: true, 422: true, 503: true}
	f.Fuzz(func(t *testing.T, method, path, query, contentType string, body []byte) {
		r, err := http.NewRequest(method, "http://127.0.0.1/", bytes.NewReader(body))
		if err != nil {
			return
		}
		r.URL = &url.URL{Scheme: "http", Host: "127.0.0.1", Path: path, RawQuery: query}
		if unescaped, err := url.PathUnescape(path); err == nil {
			r.URL.Path, r.URL.RawPath = unescaped, path
		}
		r.Host, r.RemoteAddr = "127.0.0.1", "127.0.0.1:1"
		r.Header.Set("Content-Type", contentType)
		w := httptest.NewRecorder()
		a.ServeHTTP(w, r)
		if path != "/v1" && (len(path) < 4 || path[:4] != "/v1/") || w.Body.Len() == 0 {
			return
		}
		if !known[w.Code] {
			t.Errorf("%s %q: %d %s", method, path, w.Code, w.Body)
		}
		line := bytes.TrimSuffix(w.Body.Bytes(), []byte("\n"))
		if !json.Valid(line) {
			t.Errorf("no JSON: %q", line)
		}
		if len(line) < 100_000 { // the description is longer, and our own
			checkVisible(t, string(bytes.ReplaceAll(line, []byte("\n"), nil)))
		}
	})
}
