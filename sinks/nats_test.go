package sinks_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"delaybridge"
	"delaybridge/sinks"
	"delaybridge/sinks/sinktest"
	"delaybridge/test/servers"
)

// connect returns a connection as a sink is to have it, through a link.
func connect(t *testing.T, link *sinktest.Link, options ...nats.Option) *nats.Conn {
	t.Helper()
	opts := append(sinks.NATSOptions(nil), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0))
	nc, err := nats.Connect("nats://"+link.Addr(), append(opts, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func newLink(t *testing.T, s *servers.NATS) *sinktest.Link {
	return sinktest.NewLink(t, strings.TrimPrefix(s.URL, "nats://"))
}

func natsConfig(timeout time.Duration) sinks.NATSConfig {
	cfg := sinks.DefaultNATSConfig()
	cfg.PublishTimeout = timeout
	return cfg
}

// newStream makes a stream that holds the subjects.
func newStream(t *testing.T, js jetstream.JetStream, cfg jetstream.StreamConfig) jetstream.Stream {
	t.Helper()
	s, err := js.CreateStream(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// readStream returns all messages of a stream on a subject.
func readStream(t *testing.T, s jetstream.Stream, subject string) []jetstream.Msg {
	t.Helper()
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter(subject))
	if err != nil {
		t.Fatal(err)
	}
	n := int(info.State.Subjects[subject])
	if n == 0 {
		return nil
	}
	consumer, err := s.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{FilterSubjects: []string{subject}})
	if err != nil {
		t.Fatal(err)
	}
	var msgs []jetstream.Msg
	for len(msgs) < n {
		batch, err := consumer.Fetch(n-len(msgs), jetstream.FetchMaxWait(10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		before := len(msgs)
		for m := range batch.Messages() {
			msgs = append(msgs, m)
		}
		if len(msgs) == before {
			t.Fatalf("stopped at %d of %d messages: %v", before, n, batch.Error())
		}
	}
	return msgs
}

// decode puts back in place what the sink had to say in headers.
func decode(t *testing.T, header nats.Header, data []byte) sinktest.Delivered {
	t.Helper()
	d := sinktest.Delivered{Payload: data, Bridge: map[string]string{}}
	if d.Payload == nil {
		d.Payload = []byte{}
	}
	for name, values := range header {
		switch name {
		case "Bridge-Key":
			d.Key = []byte(values[0])
		case "Bridge-Key-Base64":
			if err := json.Unmarshal([]byte(`"`+values[0]+`"`), &d.Key); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case "Bridge-Tombstone":
			if values[0] != "true" || len(data) != 0 {
				t.Errorf("%s: %q with a body of %d bytes", name, values[0], len(data))
			}
			d.Payload = nil
		case "Bridge-Raw-Headers":
			var list [][2][]byte
			if err := json.Unmarshal([]byte(values[0]), &list); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for _, h := range list {
				d.Headers = append(d.Headers, delaybridge.Header{Name: string(h[0]), Value: h[1]})
			}
		case "Bridge-Id", "Bridge-Scheduled-At", "Bridge-Due-At", "Bridge-Attempt", "Bridge-Hops":
			d.Bridge[name] = values[0]
			if len(values) != 1 {
				t.Errorf("%s stands there %d times", name, len(values))
			}
		case "Nats-Msg-Id":
		default:
			for _, v := range values {
				d.Headers = append(d.Headers, delaybridge.Header{Name: name, Value: []byte(v)})
			}
		}
	}
	return d
}

func TestNATSSuite(t *testing.T) {
	sinktest.Run(t, func(t *testing.T, timeout time.Duration) sinktest.Fixture {
		server := servers.NewNATS(t)
		js := server.JetStream(t)
		stream := newStream(t, js, jetstream.StreamConfig{Name: "TARGET", Subjects: []string{"target.>"}})
		link := newLink(t, server)
		sink, err := sinks.NewNATS(connect(t, link), natsConfig(timeout))
		if err != nil {
			t.Fatal(err)
		}
		targets := 0
		return sinktest.Fixture{
			Sink: sink, Link: link, TooLarge: 2 << 20,
			Missing: delaybridge.Target{Sink: delaybridge.SinkNATS, Name: "nowhere.at.all"},
			NewTarget: func() delaybridge.Target {
				targets++
				return delaybridge.Target{Sink: delaybridge.SinkNATS, Name: fmt.Sprintf("target.%d", targets)}
			},
			Delivered: func(target delaybridge.Target) (out []sinktest.Delivered) {
				for _, m := range readStream(t, stream, target.Name) {
					out = append(out, decode(t, m.Headers(), m.Data()))
				}
				return out
			},
		}
	})
}

func TestNATSCoreSuite(t *testing.T) {
	sinktest.Run(t, func(t *testing.T, timeout time.Duration) sinktest.Fixture {
		server := servers.NewNATS(t)
		link := newLink(t, server)
		sink, err := sinks.NewNATSCore(connect(t, link), natsConfig(timeout))
		if err != nil {
			t.Fatal(err)
		}
		consumer := server.Connect(t)
		var mu sync.Mutex
		got := map[string][]*nats.Msg{}
		return sinktest.Fixture{
			Sink: sink, Link: link, TooLarge: 2 << 20,
			NewTarget: func() delaybridge.Target {
				mu.Lock()
				subject := fmt.Sprintf("core.%d", len(got)+1)
				got[subject] = []*nats.Msg{}
				mu.Unlock()
				sub, err := consumer.Subscribe(subject, func(m *nats.Msg) {
					mu.Lock()
					defer mu.Unlock()
					got[subject] = append(got[subject], m)
				})
				if err != nil {
					t.Fatal(err)
				}
				if err := sub.SetPendingLimits(-1, -1); err != nil {
					t.Fatal(err)
				}
				if err := consumer.Flush(); err != nil {
					t.Fatal(err)
				}
				return delaybridge.Target{Sink: delaybridge.SinkNATSCore, Name: subject}
			},
			Delivered: func(target delaybridge.Target) (out []sinktest.Delivered) {
				// All that the server has taken is in the client after a flush,
				// and with its handlers after a barrier.
				if err := consumer.Flush(); err != nil {
					t.Fatal(err)
				}
				handled := make(chan struct{})
				if err := consumer.Barrier(func() { close(handled) }); err != nil {
					t.Fatal(err)
				}
				<-handled
				mu.Lock()
				defer mu.Unlock()
				for _, m := range got[target.Name] {
					out = append(out, decode(t, m.Header, m.Data))
				}
				return out
			},
		}
	})
}
