package ingest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/test/servers"
)

func TestKafkaLeavesNothingBehind(t *testing.T) {
	k := servers.NewKfake(t)
	topic := k.Topic(t, 2)
	w := k.Client(t)
	produceN(t, w, topic, 0, 0, 10)
	w.Close()
	before := goleak.IgnoreCurrent()
	q := newKafkaQueue()
	m := read(t, k, q, topic, []string{topic, "missing"})
	q.awaitCount(t, 10)
	m.stop()
	// The broker is in this process, too, and may not have seen yet that we left.
	goleak.VerifyNone(t, before, goleak.IgnoreAnyFunction("github.com/twmb/franz-go/pkg/kfake.(*clientConn).read.func1"),
		goleak.IgnoreAnyFunction("github.com/twmb/franz-go/pkg/kfake.(*clientConn).read"),
		goleak.IgnoreAnyFunction("github.com/twmb/franz-go/pkg/kfake.(*clientConn).write"))
}

// Whatever is away, a stop is not held up.
func TestKafkaStops(t *testing.T) {
	within := func(t *testing.T, m *member, limit time.Duration) {
		t.Helper()
		begin := time.Now()
		m.stop()
		if d := time.Since(begin); d > limit {
			t.Errorf("stopping took %v, want at most %v", d, limit)
		}
	}
	t.Run("while the queue is away: it commits nothing, and the next one reads everything", func(t *testing.T) {
		t.Parallel()
		k := servers.NewKfake(t)
		topic := k.Topic(t, 1)
		produceN(t, k.Client(t), topic, 0, 0, 10)
		q := newKafkaQueue()
		tried := make(chan struct{}, 1)
		q.setBefore(func([]delaybridge.Request) error {
			select {
			case tried <- struct{}{}:
			default:
			}
			return errors.New("Redis is away")
		})
		m := read(t, k, q, topic, []string{topic})
		<-tried
		within(t, m, 30*time.Second)
		if got := k.Committed(t, topic, topic, 0); got != -1 {
			t.Errorf("committed to %d", got)
		}
		q.setBefore(nil)
		read(t, k, q, topic, []string{topic})
		q.awaitCount(t, 10)
	})
	t.Run("while there is no broker", func(t *testing.T) {
		t.Parallel()
		k := servers.NewKfake(t)
		topic := k.Topic(t, 1)
		produceN(t, k.Client(t), topic, 0, 0, 10)
		q := newKafkaQueue()
		m := read(t, k, q, topic, []string{topic})
		q.awaitCount(t, 10)
		k.Stop()
		within(t, m, 30*time.Second)
	})
	t.Run("while the group does not answer: nothing is in hand, and nothing is waited for", func(t *testing.T) {
		t.Parallel()
		k := servers.NewKfake(t)
		topic := k.Topic(t, 1)
		asked, release := make(chan struct{}), make(chan struct{})
		f := k.Fake()
		f.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
			close(asked)
			f.SleepControl(func() { <-release })
			return nil, nil, false
		})
		m := read(t, k, newKafkaQueue(), topic, []string{topic}, func(c *ingest.KafkaConfig) {
			c.StopTimeout, c.RebalanceTimeout = time.Second, time.Minute
		})
		<-asked
		within(t, m, 30*time.Second)
		close(release)
	})
}
