package test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"delaybridge/test/servers"
)

// secrets hands out values that are looked for in all that is printed.
type secrets struct {
	mu     sync.Mutex
	values map[string]string // by what they are
}

func (s *secrets) add(what, value string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[what] = value
	return value
}

// word makes one that nothing else can contain.
func (s *secrets) word(what string) string {
	return s.add(what, "M4rk3r"+strings.NewReplacer(" ", "", "_", "").Replace(what)+"S3cret")
}

func (s *secrets) check(t *testing.T, where, text string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for what, value := range s.values {
		if i := strings.Index(text, value); i >= 0 {
			t.Errorf("%s shows the secret %q:\n%s", where, what, text[max(0, i-200):min(len(text), i+200)])
		}
	}
}

// TestSecretsAreNowhere plants a word in every secret and in the user part of every
// URL, has all of it work, fail, and be wrong, and looks for the words in whatever
// comes out: logs at debug level, errors, config, metrics, and what a crash prints.
func TestSecretsAreNowhere(t *testing.T) {
	t.Parallel()
	s := &secrets{values: map[string]string{}}
	seed := newSeed(t).seed
	s.add("nkey seed", seed)
	redis := servers.NewRedis(t, servers.RedisTCP)
	if err := redis.Client(t).ConfigSet(t.Context(), "requirepass", s.word("Redis password")).Err(); err != nil {
		t.Fatal(err)
	}
	closed := servers.FreePort(t)
	nobody := fmt.Sprintf("127.0.0.1:%d", closed)
	password := s.values["Redis password"]
	redisURL := fmt.Sprintf("redis://:%s@127.0.0.1:%d/0", password, redis.Port)
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		putFile(t, path, content)
		return path
	}
	creds := "-----BEGIN NATS USER JWT-----\n" + s.word("JWT") + "\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\n" + seed + "\n------END USER NKEY SEED------\n"
	sasl := Env{"KAFKA_BROKERS": nobody, "KAFKA_SASL_USERNAME": "user", "KAFKA_SASL_PASSWORD": s.word("Kafka password")}
	debug := Env{"LOG_LEVEL": "debug", "API_TOKEN": s.word("API token"), "API_ADDR": "127.0.0.1:0"}

	for _, row := range []struct {
		about string
		env   Env
	}{
		{"Redis that works, NATS that is not there", Env{"REDIS_URL": redisURL, "NATS_URL": "nats://user:" + s.word("NATS password") + "@" + nobody}},
		{"a token for NATS, and several servers", Env{"REDIS_URL": redisURL, "NATS_URL": "nats://" + s.word("NATS token") + "@" + nobody + ",nats://u:" + s.word("second NATS password") + "@" + nobody}},
		{"an NKey seed", Env{"REDIS_URL": redisURL, "NATS_URL": "nats://" + nobody, "NATS_NKEY": seed}},
		{"a seed in a file", Env{"REDIS_URL": redisURL, "NATS_URL": "nats://" + nobody, "NATS_NKEY_FILE": file("seed", seed)}},
		{"credentials that are broken", Env{"REDIS_URL": redisURL, "NATS_URL": "nats://" + nobody, "NATS_CREDS": file("creds", creds)}},
		{"Kafka, plain", sasl.With(Env{"REDIS_URL": redisURL, "KAFKA_SASL_MECHANISM": "plain"})},
		{"Kafka, SCRAM", sasl.With(Env{"REDIS_URL": redisURL, "KAFKA_SASL_MECHANISM": "scram-sha-512"})},
		{"a password that SCRAM does not take", sasl.With(Env{"REDIS_URL": redisURL, "KAFKA_SASL_MECHANISM": "scram-sha-256", "KAFKA_SASL_PASSWORD": s.add("odd password", "M4rk3rOdd\u0007\u00adS3cret")})},
		{"Redis that refuses the password", Env{"REDIS_URL": fmt.Sprintf("redis://user:%s@127.0.0.1:%d/0", s.word("wrong Redis password"), redis.Port), "NATS_URL": "nats://" + nobody}},
		{"the password in a setting of its own", Env{"REDIS_URL": fmt.Sprintf("redis://127.0.0.1:%d/0", redis.Port), "REDIS_PASSWORD": password, "NATS_URL": "nats://" + nobody}},
		{"Redis that is not there", Env{"REDIS_URL": "redis://user:" + s.word("absent Redis password") + "@" + nobody, "NATS_URL": "nats://" + nobody}},
		{"a Redis URL that cannot be read", Env{"REDIS_URL": "redis://user:" + s.word("broken") + "%zz@" + nobody + "/x"}},
		{"a Redis URL with a port that is none", Env{"REDIS_URL": "redis://user:" + s.word("port") + "@host:port/0"}},
		{"a Redis URL with a slash in the password", Env{"REDIS_URL": "redis://user:a/" + s.word("slash") + "@" + nobody + "/0"}},
		{"a Redis URL of no known scheme", Env{"REDIS_URL": "http://user:" + s.word("scheme") + "@" + nobody}},
		{"a NATS URL that cannot be read", Env{"REDIS_URL": redisURL, "NATS_URL": "nats://user:" + s.word("NATS broken") + "%zz@" + nobody}},
		{"a NATS URL of no known scheme", Env{"REDIS_URL": redisURL, "NATS_URL": "http://user:" + s.word("NATS scheme") + "@" + nobody}},
		{"a Sentinel URL with passwords as parameters", Env{"REDIS_MODE": "sentinel", "NATS_URL": "nats://" + nobody,
			"REDIS_URL": "redis://user:" + s.word("behind Sentinel") + "@" + nobody + "/0?master_name=x&sentinel_password=" + s.word("Sentinel password")}},
		{"a seed that is none", Env{"REDIS_URL": redisURL, "NATS_URL": "nats://" + nobody, "NATS_NKEY": "SU" + s.word("no seed")}},
		{"a token that is too short to be one", Env{"REDIS_URL": redisURL, "NATS_URL": "nats://" + nobody, "API_ADDR": "0.0.0.0:0", "API_TOKEN": s.add("short", "M4sh0rt")}},
		{"names that are misspelt", Env{"REDIS_URL": redisURL, "NATS_URL": "nats://" + nobody, "KAFKA_SASL_PASWORD": s.word("misspelt")}},
	} {
		t.Run(row.about, func(t *testing.T) {
			env := debug.With(row.env)
			p := Start(t, env, "serve")
			for _, args := range [][]string{{"config"}, {"config", "-o", "json"}, {"stats"}, {"doctor"}, {"dead", "list"}} {
				r := Run(t, env, "", args...)
				s.check(t, fmt.Sprintf("bridge %q", args), r.Stdout+r.Stderr)
			}
			if at := regexp.MustCompile(`"serving metrics and probes","address":"([^"]+)"`).FindStringSubmatch(p.Output()); at != nil {
				for _, path := range []string{"/metrics", "/readyz", "/healthz"} {
					if resp, err := http.Get("http://" + at[1] + path); err == nil {
						body, _ := io.ReadAll(resp.Body)
						_ = resp.Body.Close()
						s.check(t, path, string(body))
					}
				}
			}
			p.Signal(3) // what Go prints when it crashes: every goroutine
			<-p.exited
			s.check(t, "bridge serve", p.Output())
		})
	}
}
