package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/kelseyhightower/envconfig"
)

// clearSettings empties the environment of settings for one test.
func clearSettings(t *testing.T) {
	t.Helper()
	for _, e := range os.Environ() {
		if name, _, _ := strings.Cut(e, "="); strings.HasPrefix(name, prefix+"_") {
			t.Setenv(name, "")
			if err := os.Unsetenv(name); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestEverySettingIsNamedAsEnvconfigNamesIt(t *testing.T) {
	var want bytes.Buffer
	if err := envconfig.Usagef(prefix, defaultSettings(), &want, "{{range .}}{{usage_key .}}\n{{end}}"); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, r := range defaultSettings().table() {
		fmt.Fprintln(&got, r.Name)
	}
	if got.String() != want.String() {
		t.Errorf("table has\n%s\nenvconfig reads\n%s", got.String(), want.String())
	}
}

// B58 (sequinstream/sequin#2155): no setting has a name that Kubernetes gives to a service's address.
func TestEverySettingIsDocumentedAndSafelyNamed(t *testing.T) {
	for _, r := range defaultSettings().table() {
		if r.Doc == "" {
			t.Errorf("%s has no documentation", r.Name)
		}
		if serviceLink.MatchString(r.Name) {
			t.Errorf("%s may be set by Kubernetes", r.Name)
		}
	}
	var check func(reflect.Type)
	check = func(typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			if _, ok := f.Tag.Lookup("envconfig"); ok {
				t.Errorf("%s has an envconfig tag: it would be read from a variable without prefix", f.Name)
			}
			if f.Tag.Get("split_words") != "true" {
				t.Errorf("%s has no split_words tag", f.Name)
			}
			if f.Type.Kind() == reflect.Struct {
				check(f.Type)
			}
		}
	}
	check(reflect.TypeFor[Settings]())
}

func TestDefaultsAreValid(t *testing.T) {
	clearSettings(t)
	s, warnings, err := loadSettings()
	if err != nil || len(warnings) != 0 {
		t.Fatalf("%v, %q", err, warnings)
	}
	if !reflect.DeepEqual(s, defaultSettings()) {
		t.Errorf("an empty environment gives %+v", s)
	}
}

func TestValuesAreReadStrictly(t *testing.T) {
	for _, row := range []struct {
		about, name, value string
		want               string // as the table shows it; empty: refused
		takes              string // part of the error
	}{
		{"blanks around a value do not count", "SHARDS", " 16 ", "16", ""},
		{"a leading zero does not make it octal", "SHARDS", "010", "10", ""},
		{"empty is not set", "SHARDS", "", "8", ""},
		{"a number has digits only", "SHARDS", "1_000", "", "whole number"},
		{"hexadecimal is no number", "SHARDS", "0x10", "", "whole number"},
		{"a sign is no digit", "MAX_ATTEMPTS", "+5", "", "whole number"},
		{"a number has limits", "SHARDS", "0", "", "from 1 to 1024"},
		{"a number may be too large to be one", "MAX_PENDING", "99999999999999999999", "", "whole number"},
		{"days are a unit", "MAX_DELAY", "30d", "720h", ""},
		{"units can be joined", "LEASE", "1m30s", "1m30s", ""},
		{"a duration needs a unit", "LEASE", "60", "", "with its unit"},
		{"a duration is not negative", "POLL_MAX", "-1s", "", "with its unit"},
		{"zero needs no unit", "EXPIRES_AFTER", "0", "0", ""},
		{"a size may have a unit", "MAX_PAYLOAD", "64KiB", "64KiB", ""},
		{"a size may be bytes", "MAX_PAYLOAD", "1048576", "1MiB", ""},
		{"a size has binary units only", "MAX_PAYLOAD", "1MB", "", "a size such as"},
		{"a size may overflow", "MAX_PAYLOAD", "99999999999GiB", "", "a size such as"},
		{"a list is trimmed and has no empty items", "ROLES", " scheduler , ", "scheduler", ""},
		{"a list has known words", "ROLES", "ingest,worker", "", "ingest, scheduler, or both"},
		{"true can be said in several ways", "NATS_INGEST_CREATE", "No", "false", ""},
		{"a flag is true or false", "NATS_INGEST_CREATE", "maybe", "", "true or false"},
		{"a word is one of few", "LOG_LEVEL", "loud", "", "debug, info, warn or error"},
		{"a namespace has no braces", "NAMESPACE", "a{b}", "", "letters, digits"},
		{"a lease outlasts two publishes", "LEASE", "19s", "", "twice BRIDGE_PUBLISH_TIMEOUT (10s)"},
		{"a lease outlasts a short pause, too", "LEASE", "999ms", "", "at least 1s: a process that pauses"},
		{"the longest wait is not under the first", "RETRY_MAX", "500ms", "", "at least BRIDGE_RETRY_BASE"},
		{"a lane holds at least a batch", "MAX_INFLIGHT", "10", "", "from 200"},
		{"a target is checked", "REJECT_TARGET", "nats://a..b", "", "takes a target"},
		{"a source subject is checked", "NATS_INGEST_SUBJECTS", "bridge.schedule,$JS.API.>", "", "takes subjects"},
		{"a stream's name has no dots", "NATS_INGEST_STREAM", "a.b", "", "a stream name"},
		{"a file must be there", "NATS_CREDS", "/nowhere/x.creds", "", "can be read"},
		{"a certificate needs its key", "NATS_TLS_CERT", "config_test.go", "", "set both or none"},
		{"a Redis URL has slashes", "REDIS_URL", "redis:redis.example:6379", "", "takes a URL"},
		{"a NATS URL has a scheme of NATS", "NATS_URL", "http://localhost:4222", "", "takes nats://"},
		{"a NATS URL can be read", "NATS_URL", "nats://localhost:port", "", "takes nats://"},
		{"a Redis URL has a scheme", "REDIS_URL", "localhost:6379", "", "takes a URL"},
		{"a broker has a port", "KAFKA_BROKERS", "one:9092, two", "", "host:port"},
		{"brokers are a list", "KAFKA_BROKERS", "one:9092, two:9092", "one:9092,two:9092", ""},
		{"a mechanism is one of few", "KAFKA_SASL_MECHANISM", "gssapi", "", "plain, scram-sha-256, scram-sha-512 or aws-msk-iam"},
		{"a mechanism needs a user", "KAFKA_SASL_MECHANISM", "plain", "", "BRIDGE_KAFKA_SASL_USERNAME"},
		{"a source topic is checked", "KAFKA_INGEST_TOPICS", "a,b c", "", "takes topics"},
		{"a dead target is no source of ours", "DEAD_TARGET", "kafka://bridge.schedule", "", "own sources"},
		{"letters may be kept for ever", "DEAD_RETENTION", "0", "0", ""},
		{"metrics may be served at any host", "METRICS_ADDR", " [::1]:0 ", "[::1]:0", ""},
		{"metrics have a port", "METRICS_ADDR", "9090", "", "host:port"},
		{"a port is a number", "METRICS_ADDR", ":http", "", "host:port"},
		{"a port has 16 bits", "METRICS_ADDR", ":70000", "", "host:port"},
		{"overdue has a least", "READY_MAX_OVERDUE", "10ms", "", "at least 1s"},
		{"a route has a form", "ROUTES", "nats://later.> => nats://orders", "", "option"},
		{"an allowed target has a form", "ALLOWED_TARGETS", "orders.*", "", "ALLOWED_TARGETS"},
	} {
		t.Run(row.about, func(t *testing.T) {
			clearSettings(t)
			t.Setenv(prefix+"_"+row.name, row.value)
			s, _, err := loadSettings()
			if row.want == "" {
				if err == nil {
					t.Fatalf("%s=%q was taken", row.name, row.value)
				}
				text := err.Error()
				if !strings.HasPrefix(text, prefix+"_"+row.name) || !strings.Contains(text, row.takes) || strings.Contains(text, "\n") {
					t.Errorf("error is %q", text)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range s.table() {
				if r.Name == prefix+"_"+row.name && r.Value != row.want {
					t.Errorf("%s=%q is read as %q, want %q", row.name, row.value, r.Value, row.want)
				}
			}
		})
	}
}

func TestSecretsAreNeverShown(t *testing.T) {
	const password = "s3cr3t"
	for _, row := range []struct{ about, name, value string }{
		{"a password in a Redis URL", "REDIS_URL", "redis://user:s3cr3t@localhost:6379/0"},
		{"a Redis URL that cannot be parsed", "REDIS_URL", "redis://user:s3cr3t/x@localhost:6379/0"},
		{"a password without a user", "REDIS_URL", "redis://:s3cr3t@localhost:port/0"},
		{"a password as a parameter", "REDIS_URL", "redis://localhost:6379/0?password=s3cr3t&x=1"},
		{"a password in the second of several URLs", "NATS_URL", "nats://a:b@one:4222,nats://user:s3cr3t@two:4222"},
		{"a password with a :// in it", "REDIS_URL", "redis://user:s3cr3t://x@localhost:6379/0"},
		{"a token", "NATS_URL", "nats://s3cr3t@localhost:4222"},
		{"a password with an @ in it", "NATS_URL", "nats://user:s3cr3t@x@localhost:4222"},
		{"a seed that is none", "NATS_NKEY", "s3cr3t"},
		{"a password", "KAFKA_SASL_PASSWORD", "s3cr3t"},
	} {
		t.Run(row.about, func(t *testing.T) {
			clearSettings(t)
			t.Setenv(prefix+"_"+row.name, row.value)
			for _, args := range [][]string{{"config"}, {"config", "-o", "json"}, {"serve"}, {"get", "x"}} {
				if args[0] != "config" && row.name != "NATS_NKEY" {
					continue // these would try to connect
				}
				var out bytes.Buffer
				execute(t.Context(), args, strings.NewReader(""), &out, &out)
				if strings.Contains(out.String(), password) {
					t.Errorf("%v prints the password: %s", args, out.String())
				}
			}
			s, _, err := loadSettings()
			if strings.Contains(fmt.Sprintf("%v %+v %#v", s, s, err), password) {
				t.Errorf("printing settings or error shows the password")
			}
		})
	}
}

func TestSecretFromFile(t *testing.T) {
	clearSettings(t)
	path := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(path, []byte("redis://:pw@redis:6379/3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("BRIDGE_REDIS_URL_FILE", path)
	s, warnings, err := loadSettings()
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	if s.Redis.URL != "redis://:pw@redis:6379/3" {
		t.Errorf("read %q", string(s.Redis.URL))
	}
	for _, r := range s.table() {
		if r.Name == "BRIDGE_REDIS_URL" && (r.From != "file "+path || r.Value != "redis://:********@redis:6379/3") {
			t.Errorf("table says %q from %q", r.Value, r.From)
		}
	}

	t.Setenv("BRIDGE_REDIS_URL", "redis://other:6379")
	if _, _, err := loadSettings(); err == nil || !strings.HasPrefix(err.Error(), "BRIDGE_REDIS_URL_FILE") {
		t.Errorf("both set: %v", err)
	}
	t.Setenv("BRIDGE_REDIS_URL", "")
	t.Setenv("BRIDGE_REDIS_URL_FILE", path+".none")
	if _, _, err := loadSettings(); err == nil || !strings.HasPrefix(err.Error(), "BRIDGE_REDIS_URL_FILE") {
		t.Errorf("no file: %v", err)
	}
}

// B58 (sequinstream/sequin#2155, cloud-on-k8s#1987): an orchestrator's variables hit a setting.
func TestEmptyMetricsAddressIsAValue(t *testing.T) {
	for _, row := range []struct {
		set         bool
		value, from string
	}{{false, ":9090", "default"}, {true, "", "environment"}} {
		clearSettings(t)
		if row.set {
			t.Setenv("BRIDGE_METRICS_ADDR", " ")
		}
		s, _, err := loadSettings()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range s.table() {
			if r.Name == "BRIDGE_METRICS_ADDR" && (r.Value != row.value || r.From != row.from) {
				t.Errorf("set: %v, %q from %s", row.set, r.Value, r.From)
			}
		}
		if row.set {
			if l, err := s.listenMetrics(); l != nil || err != nil {
				t.Errorf("it listens: %v %v", l, err)
			}
		}
	}
}

func TestUnknownVariablesAreWarnedAbout(t *testing.T) {
	warnings := unknownVariables([]string{
		"BRIDGE_MAXDELAY=1h", "BRIDGE_REDIS_URI=x", "BRIDGE_NAMESPACE=ok", "BRIDGE_REDIS_URL_FILE=ok", "HOME=/",
		"BRIDGE_PORT=tcp://10.0.0.1:80", "BRIDGE_SERVICE_HOST=10.0.0.1", "BRIDGE_PORT_80_TCP_ADDR=10.0.0.1", "BRIDGE_REDIS_PORT=tcp://10.0.0.1:6379",
	}, defaultSettings().table())
	want := []string{"BRIDGE_MAXDELAY is set, but nothing reads it; the nearest setting is BRIDGE_MAX_DELAY", "nearest setting is BRIDGE_REDIS_URL", "4 variables such as BRIDGE_PORT"}
	if len(warnings) != len(want) {
		t.Fatalf("warnings: %q", warnings)
	}
	for i := range want {
		if !strings.Contains(warnings[i], want[i]) {
			t.Errorf("warning %q, want %q", warnings[i], want[i])
		}
	}
}

func TestConfigCommand(t *testing.T) {
	clearSettings(t)
	t.Setenv("BRIDGE_MAX_DELAY", "30d")
	var out bytes.Buffer
	if code := execute(t.Context(), []string{"config", "-o", "json"}, nil, &out, &out); code != exitOK {
		t.Fatalf("code %d: %s", code, out.String())
	}
	var got listView[settingView]
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := settingView{"BRIDGE_MAX_DELAY", "720h", "environment", "168h", "longest way ahead that a message may be due; more is rejected"}
	found := false
	for _, v := range got.Items {
		found = found || v == want
	}
	if !found {
		t.Errorf("no %+v in %s", want, out.String())
	}
}
