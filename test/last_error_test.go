package test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"delaybridge/test/servers"
)

var apiAddress = regexp.MustCompile(`"msg":"serving the API and the console"[^\n]*"address":"([^"]+)"`)

// TestLastErrorSaysWhyAMessageIsTriedAgain: what no broker takes says so wherever
// it is looked at, without the password that its broker was reached by, until it
// is replaced or delivered.
func TestLastErrorSaysWhyAMessageIsTriedAgain(t *testing.T) {
	t.Parallel()
	const password = "M4rk3rS3cret"
	w := newWorld(t)
	kafka := servers.NewKfake(t)
	where, err := url.Parse(w.nats.URL)
	if err != nil {
		t.Fatal(err)
	}
	where.User = url.UserPassword("user", password)
	w.env = w.env.With(Env{
		"NATS_URL": where.String(), "NATS_API": "true", "KAFKA_BROKERS": strings.Join(kafka.Brokers, ","),
		"API_ADDR": "127.0.0.1:0", "RETRY_BASE": "200ms", "RETRY_MAX": "1s", "MAX_ATTEMPTS": "100000",
	})
	p := w.serve(t, nil)
	p.Await(t, `"msg":"serving the API and the console"`)
	api := "http://" + apiAddress.FindStringSubmatch(p.Output())[1]

	// message is what the command says of an id.
	message := func(id string) map[string]any {
		t.Helper()
		r := Run(t, w.env, "", "get", id, "-o", "json")
		if r.Code != 0 {
			t.Fatalf("get %s: %+v", id, r)
		}
		return decode(t, r.Stdout)
	}
	byAPI := func(path string) map[string]any {
		t.Helper()
		res, err := http.Get(api + path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %s %v", path, res.Status, body, err)
		}
		return decode(t, string(body))
	}
	byNATS := func(request string) map[string]any {
		t.Helper()
		m, err := w.nats.Connect(t).Request("bridge.api.get", []byte(request), patience)
		if err != nil {
			t.Fatal(err)
		}
		return decode(t, string(m.Data))
	}

	for id, row := range map[string]struct{ target, says string }{
		"order-7": {"nats://nowhere.x", "stream"},
		"order-8": {"nats://nowhere.y", "stream"},
		"order-9": {"kafka://nowhere", "nowhere"},
	} {
		publish(t, w.js, "bridge.schedule", "payload of "+id, "Bridge-Target: "+row.target, "Bridge-Delay: 0s", "Bridge-Id: "+id)
		if !servers.Eventually(func() bool {
			r := Run(t, w.env, "", "get", id, "-o", "json")
			return r.Code == 0 && decode(t, r.Stdout)["attempts"].(float64) >= 2
		}) {
			t.Fatalf("%s is not tried again", id)
		}
		v := message(id)
		why, _ := v["last_error"].(string)
		if !strings.Contains(why, row.says) || len(why) > 256 {
			t.Fatalf("the last error of %s is %q, want %q in it", id, why, row.says)
		}
		t.Logf("%s: %s", row.target, why)
		for where, v := range map[string]map[string]any{
			"the API": byAPI("/v1/messages/" + id), "the API, all of it": byAPI("/v1/messages/" + id + "?payload=true"),
			"the API on NATS": byNATS(`{"id":"` + id + `"}`),
		} {
			if v["last_error"] != why || v["attempts"].(float64) < 2 {
				t.Errorf("%s of %s: %v, want the error %q", where, id, v, why)
			}
		}
		for _, args := range []string{"get " + id, "get " + id + " --payload", "--api " + api + " get " + id} {
			if r := Run(t, w.env, "", strings.Fields(args)...); r.Code != 0 || !regexp.MustCompile(`(?m)^last error +`+regexp.QuoteMeta(why)+`$`).MatchString(r.Stdout) {
				t.Errorf("bridge %s: %+v, want the error %q", args, r, why)
			}
		}
	}

	// It may be in flight, and then is in no list.
	listed := func(args string, says string) {
		t.Helper()
		var r Ran
		if !servers.Eventually(func() bool {
			r = Run(t, w.env, "", strings.Fields(args)...)
			return r.Code == 0 && strings.Contains(r.Stdout, says)
		}) {
			t.Errorf("bridge %s: %+v, want %q in it", args, r, says)
		}
	}
	why, _ := json.Marshal(message("order-7")["last_error"])
	listed("list -o json", `"last_error":`+string(why))
	listed("list", "  LAST ERROR\n")
	listed("list", "  "+strings.ReplaceAll(strings.Trim(string(why), `"`), `\"`, `"`)+"\n")

	// The newer one has not failed yet.
	publish(t, w.js, "bridge.schedule", "newer", "Bridge-Target: nats://nowhere.y", "Bridge-Delay: 1h", "Bridge-Id: order-8")
	if !servers.Eventually(func() bool { return message("order-8")["attempts"] == 0.0 }) {
		t.Errorf("order-8 is not replaced: %v", message("order-8"))
	}
	if v := message("order-8"); v["last_error"] != nil || v["state"] != "pending" {
		t.Errorf("the newer order-8 is %v", v)
	}

	stream(t, w.js, "NOWHERE", "nowhere.>")
	w.awaitState(t, "order-7", "delivered")
	if v := message("order-7"); v["last_error"] != nil {
		t.Errorf("delivered, order-7 is %v", v)
	}
	if r := Run(t, w.env, "", "get", "order-7"); r.Code != 0 || strings.Contains(r.Stdout, "last error") {
		t.Errorf("delivered: %+v", r)
	}
	tries := map[string]string{}
	client := w.redis.Client(t)
	for _, key := range client.Keys(t.Context(), "*:tries").Val() {
		for id, value := range client.HGetAll(t.Context(), key).Val() {
			tries[id] = value
			if strings.Contains(value, password) {
				t.Errorf("Redis has the password, in the tries of %s: %q", id, value)
			}
		}
	}
	if len(tries) != 1 || !strings.Contains(tries["order-9"], "nowhere") {
		t.Errorf("Redis counts the tries %q, want those of order-9 alone", tries)
	}
}
