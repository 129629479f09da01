package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"delaybridge"
	"delaybridge/luascripts"
)

// refusal is an answer of Redis that is an error.
type refusal string

func (r refusal) Error() string { return string(r) }
func (r refusal) RedisError()   {}

type stubLoop []string

func (l stubLoop) Stalled(time.Duration) []string { return l }

// healthy is a process where all is well: it reads Kafka and publishes to both.
type healthy struct {
	look                         queueLook
	silent                       bool // Redis does not answer
	natsErr, kafkaErr, ingestErr error
	loop                         stubLoop
	circuitOpen                  bool
	reached                      bool // once, before it broke
	phase                        string
}

func (p *healthy) health() *health {
	h := &health{metrics: newMetrics(nil, []string{"kafka", "nats", "nats-core"}), maxOverdue: time.Minute, stallAfter: time.Minute, phase: p.phase}
	h.look = &snapshot[queueLook]{fresh: lookFresh, wait: lookWait, limit: lookLimit, ask: func(ctx context.Context) queueLook {
		if p.silent {
			<-ctx.Done()
		}
		return p.look
	}}
	add := func(broker, use string, err *error, lanes ...string) {
		l := &link{broker: broker, use: use, lanes: lanes}
		l.asks(func(context.Context) error { return *err })
		l.reached.Store(p.reached)
		h.watch(l, nil)
	}
	add(brokerKafka, useIngest, &p.ingestErr)
	add(brokerNATS, useSink, &p.natsErr, "nats", "nats-core")
	add(brokerKafka, useSink, &p.kafkaErr, "kafka")
	h.watchLoops(p.loop)
	h.metrics.Circuit("nats", p.circuitOpen)
	return h
}

func TestReady(t *testing.T) {
	away := errors.New("connection refused")
	overdue := func(lane string, d time.Duration) queueLook {
		return queueLook{stats: luascripts.Stats{Lanes: map[string]luascripts.LaneStats{lane: {OverdueFor: d}}}}
	}
	for _, row := range []struct {
		sentence string
		p        healthy
		want     []string // what each reason begins with
	}{
		{"all is well", healthy{}, nil},
		{"it starts", healthy{phase: phaseStarting}, []string{"starting"}},
		{"Redis is away", healthy{look: queueLook{probeErr: away}}, []string{"redis: it does not answer: connection refused"}},
		{"Redis runs no script", healthy{look: queueLook{probeErr: fmt.Errorf("probe: %w", refusal("READONLY"))}}, []string{"redis: it runs no script: probe: READONLY"}},
		{"Redis cannot be counted", healthy{look: queueLook{statsErr: away}}, []string{"redis: connection refused"}},
		{"Redis says nothing", healthy{silent: true}, []string{"redis: no answer within"}},
		{"a broker is away that was there", healthy{natsErr: away, reached: true}, nil},
		{"a broker was not there yet", healthy{natsErr: away}, []string{"broker nats: not reached since the start (sink: connection refused)"}},
		{"one use of a broker was not there yet", healthy{ingestErr: away}, []string{"broker kafka: not reached since the start (ingest: connection refused)"}},
		{"all brokers are away that were there", healthy{natsErr: away, kafkaErr: away, ingestErr: errNotConnected, reached: true},
			[]string{"brokers: none is connected: kafka (ingest: not connected; sink: connection refused), nats (sink: connection refused)"}},
		{"no broker was there yet", healthy{natsErr: away, kafkaErr: away, ingestErr: away},
			[]string{"broker kafka: not", "broker nats: not", "brokers: none is connected"}},
		{"a message is late", healthy{look: overdue("nats", 61*time.Second)},
			[]string{"overdue: the oldest message for nats has been due for 1m1s, more than 1m (BRIDGE_READY_MAX_OVERDUE), and its broker is there"}},
		{"a message is a little late", healthy{look: overdue("nats", time.Minute)}, nil},
		{"a message of Kafka's is late", healthy{look: overdue("kafka", time.Hour)}, []string{"overdue: the oldest message for kafka"}},
		{"a message is late whose broker is away", healthy{look: overdue("nats", time.Hour), natsErr: away, reached: true}, nil},
		{"a message is late whose circuit is open", healthy{look: overdue("nats", time.Hour), circuitOpen: true}, nil},
		{"a message is late of a sink that others publish to", healthy{look: overdue("smoke", time.Hour)}, nil},
		{"a loop hangs", healthy{loop: stubLoop{"settling for nats"}}, []string{"loop: settling for nats has made no turn for 1m0s"}},
	} {
		t.Run(row.sentence, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := row.p.health()
				began := time.Now()
				reasons, running := h.ready(t.Context())
				if took := time.Since(began); took >= time.Second {
					t.Errorf("took %v, more than Kubernetes waits", took)
				}
				if running != (row.p.phase == "") {
					t.Errorf("running is %v", running)
				}
				if len(reasons) != len(row.want) {
					t.Fatalf("%q, want %q", reasons, row.want)
				}
				for i := range reasons {
					if !strings.HasPrefix(reasons[i], row.want[i]) {
						t.Errorf("%q, want %q", reasons[i], row.want[i])
					}
				}
				if alive := h.alive(); (len(alive) > 0) != (len(row.p.loop) > 0) {
					t.Errorf("it is alive but for %q", alive)
				}
				h.settle()
			})
		})
	}
}

func TestWhatWasPublishedReachedItsBroker(t *testing.T) {
	p := healthy{natsErr: errNotConnected}
	h := p.health()
	h.metrics.lanes[delaybridge.SinkNATSCore].answered.Store(true)
	if reasons, _ := h.ready(t.Context()); len(reasons) != 0 {
		t.Errorf("%q", reasons)
	}
}

func TestProbeBody(t *testing.T) {
	for _, row := range []struct {
		reasons []string
		code    int
		body    string
	}{
		{nil, http.StatusOK, "ok\n"},
		{[]string{"redis: a\r\nb", "loop: c"}, http.StatusServiceUnavailable, "redis: a b\nloop: c\n"},
	} {
		w := httptest.NewRecorder()
		answerProbe(w, row.reasons)
		if w.Code != row.code || w.Body.String() != row.body {
			t.Errorf("%q: %d %q", row.reasons, w.Code, w.Body.String())
		}
	}
}

func TestSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, takes := 0, 100*time.Millisecond
		s := &snapshot[int]{fresh: time.Second, wait: 800 * time.Millisecond, limit: 5 * time.Second, ask: func(ctx context.Context) int {
			asked++
			n := asked
			select {
			case <-ctx.Done():
			case <-time.After(takes):
			}
			return n
		}}
		get := func(sentence string, want int, wantOK bool, wantTook time.Duration) {
			t.Helper()
			began := time.Now()
			got, ok := s.get(t.Context())
			if took := time.Since(began); got != want || ok != wantOK || took != wantTook {
				t.Errorf("%s: %d, %v after %v, want %d, %v after %v", sentence, got, ok, took, want, wantOK, wantTook)
			}
		}
		get("the first answer is waited for", 1, true, takes)
		get("a fresh one is not asked for again", 1, true, 0)
		go get("who asks while one is on its way", 1, true, 0)
		time.Sleep(time.Second)
		go get("waits for the same one", 2, true, takes)
		get("an old one is asked for again", 2, true, takes)
		time.Sleep(time.Second)
		takes = time.Hour
		get("nobody waits for longer than he may", 0, false, 800*time.Millisecond)
		get("nor does the next", 0, false, 800*time.Millisecond)
		s.settle()
		get("what comes late is an answer once, from when it was asked for", 0, false, 800*time.Millisecond)
		s.settle()
		if asked != 4 {
			t.Errorf("asked %d times, want 4", asked)
		}
	})
}

func TestStallAfterFollowsTheClientsTimeouts(t *testing.T) {
	for url, want := range map[string]time.Duration{
		"redis://localhost:6379":                                     3 * time.Minute,
		"redis://localhost:6379?read_timeout=60s&write_timeout=-1ns": 15 * (60 + 2 + 3) * time.Second,
	} {
		client, err := luascripts.Connect(url, luascripts.ModeSingle)
		if err != nil {
			t.Fatal(err)
		}
		if got := stallAfter(client); got != want {
			t.Errorf("%s: %v, want %v", url, got, want)
		}
		_ = client.Close()
	}
}

// TestEarlyProbeDelaysNothing: what a probe was told before a broker was reached is
// not told to the next ones for as long as an answer is good otherwise.
func TestEarlyProbeDelaysNothing(t *testing.T) {
	asked := 0
	l := &link{broker: brokerKafka, use: useSink}
	l.asks(func(context.Context) error {
		if asked++; asked == 1 {
			return errNotConnected
		}
		return nil
	})
	if err := l.check(t.Context()); err == nil {
		t.Fatal("the first answer is that it is not connected")
	}
	l.asked.at = l.asked.at.Add(-2 * briefly) // some time passes, less than an answer is good for
	if err := l.check(t.Context()); err != nil || asked != 2 {
		t.Errorf("the next probe is told %v, after %d questions", err, asked)
	}
	l.asked.at = l.asked.at.Add(-2 * briefly)
	if err := l.check(t.Context()); err != nil || asked != 2 {
		t.Errorf("once it was reached, an answer is good for longer: %v, %d questions", err, asked)
	}
}
