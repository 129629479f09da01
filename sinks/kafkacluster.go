package sinks

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/metadata"

	"delaybridge"
)

// layoutAge is how long a topic's partitions and leaders are taken for true
// without asking again, as long as nothing speaks against them. New partitions
// are noticed after that time at the latest.
const layoutAge = 30 * time.Second

// kafkaLayout is what a publish knows of the cluster.
type kafkaLayout struct {
	brokers map[int32]string // addresses
	topics  map[string]*kafkaTopic
}

// kafkaTopic is what is known of a topic. It is not changed once it is made.
type kafkaTopic struct {
	err        error // what is wrong with the topic, nothing else is set then
	asked      time.Time
	partitions []int         // all, in order
	led        []int         // those that have a leader
	leaders    map[int]int32 // broker by partition
}

// kafkaCluster knows the brokers and the topics that are in use, and keeps
// connections. It is safe for concurrent use.
type kafkaCluster struct {
	cfg KafkaConfig
	// attempt limits one connection attempt, and one question about the layout:
	// several brokers may have to be tried.
	attempt time.Duration
	// requests limits the unanswered requests to all topics.
	requests chan struct{}

	mu      sync.Mutex
	closed  bool
	idle    map[string][]*kafkaConn // by address
	brokers map[int32]string
	// topics and limits hold topics that exist, or did.
	topics map[string]*kafkaTopic
	limits map[string]chan struct{}
}

func newKafkaCluster(cfg KafkaConfig) *kafkaCluster {
	return &kafkaCluster{
		cfg: cfg, attempt: min(cfg.PublishTimeout/4, 3*time.Second),
		requests: make(chan struct{}, cfg.Requests),
		idle:     map[string][]*kafkaConn{}, brokers: map[int32]string{},
		topics: map[string]*kafkaTopic{}, limits: map[string]chan struct{}{},
	}
}

// layout returns what is known of the topics, asking for those that are not
// known well enough. A topic that does not exist is asked for each time, so
// that it is seen as soon as it does. The error says that nobody could be asked.
func (c *kafkaCluster) layout(ctx context.Context, names []string) (*kafkaLayout, error) {
	l := &kafkaLayout{topics: map[string]*kafkaTopic{}}
	var ask []string
	c.mu.Lock()
	for _, name := range names {
		if t := c.topics[name]; t != nil && time.Since(t.asked) < layoutAge {
			l.topics[name] = t
		} else {
			ask = append(ask, name)
		}
	}
	l.brokers = c.brokers
	c.mu.Unlock()
	if len(ask) == 0 {
		return l, nil
	}
	fetched, err := c.fetch(ctx, ask)
	if err != nil {
		return nil, err
	}
	// A topic that is known by now, from another publish, may be led by a broker
	// that this answer does not have yet, or no more.
	brokers := maps.Clone(l.brokers)
	maps.Copy(brokers, fetched.brokers)
	l.brokers = brokers
	maps.Copy(l.topics, fetched.topics)
	return l, nil
}

// fetch asks the brokers, one after the other until one answers, about topics.
func (c *kafkaCluster) fetch(ctx context.Context, names []string) (*kafkaLayout, error) {
	// An empty list asks about no topic, a nil one about all.
	req := &metadata.Request{TopicNames: append([]string{}, names...)}
	var errs []error
	for _, addr := range c.addresses() {
		res, err := c.ask(ctx, addr, req)
		if err != nil {
			errs = append(errs, err)
			if ctx.Err() != nil {
				break
			}
			continue
		}
		return c.learn(names, res), nil
	}
	return nil, fmt.Errorf("no Kafka broker answers: %w", errors.Join(errs...))
}

// addresses returns where to ask: the configured brokers, in random order, then
// the others that are known.
func (c *kafkaCluster) addresses() []string {
	addrs := slices.Clone(c.cfg.Brokers)
	rand.Shuffle(len(addrs), func(i, j int) { addrs[i], addrs[j] = addrs[j], addrs[i] })
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, addr := range c.brokers {
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

func (c *kafkaCluster) ask(ctx context.Context, addr string, req *metadata.Request) (*metadata.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, c.attempt)
	defer cancel()
	conn, err := c.connect(ctx, addr)
	if err != nil {
		return nil, err
	}
	res, _, err := conn.roundTrip(ctx, req)
	if err != nil {
		conn.close()
		return nil, fmt.Errorf("ask broker %s about topics: %w", addr, err)
	}
	c.release(conn)
	return res.(*metadata.Response), nil
}

// learn keeps an answer, and returns it as a layout that has every name.
func (c *kafkaCluster) learn(names []string, res *metadata.Response) *kafkaLayout {
	l := &kafkaLayout{brokers: map[int32]string{}, topics: map[string]*kafkaTopic{}}
	for _, b := range res.Brokers {
		l.brokers[b.NodeID] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
	}
	for _, t := range res.Topics {
		if code := kafka.Error(t.ErrorCode); code != 0 {
			l.topics[t.Name] = &kafkaTopic{err: topicError(t.Name, code)}
			continue
		}
		topic := &kafkaTopic{asked: time.Now(), leaders: map[int]int32{}}
		for _, p := range t.Partitions {
			n := int(p.PartitionIndex)
			topic.partitions = append(topic.partitions, n)
			if _, ok := l.brokers[p.LeaderID]; ok {
				topic.led = append(topic.led, n)
				topic.leaders[n] = p.LeaderID
			}
		}
		slices.Sort(topic.partitions)
		if len(topic.partitions) == 0 {
			topic = &kafkaTopic{err: delaybridge.Transient(fmt.Errorf("topic %q has no partitions", t.Name))}
		}
		if len(topic.led) < len(topic.partitions) {
			topic.asked = time.Time{} // ask again each time, until all have a leader
		}
		l.topics[t.Name] = topic
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.brokers = l.brokers
	for _, name := range names {
		topic := l.topics[name]
		switch {
		case topic == nil:
			l.topics[name] = &kafkaTopic{err: delaybridge.Transient(fmt.Errorf("topic %q: Kafka's answer leaves it out", name))}
		case topic.err == nil:
			c.topics[name] = topic
		}
		if l.topics[name].err != nil {
			delete(c.topics, name)
		}
	}
	return l
}

// forget makes the next layout ask about a topic again.
func (c *kafkaCluster) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.topics, name)
}

// slots returns what limits the unanswered requests for a topic: sending to it
// takes a slot.
func (c *kafkaCluster) slots(topic string) chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.limits[topic]
	if s == nil {
		s = make(chan struct{}, c.cfg.RequestsPerTopic)
		c.limits[topic] = s
	}
	return s
}

// connect returns a connection that nobody else uses, an idle one if there is one.
func (c *kafkaCluster) connect(ctx context.Context, addr string) (*kafkaConn, error) {
	for {
		c.mu.Lock()
		n := len(c.idle[addr])
		if n == 0 {
			c.mu.Unlock()
			break
		}
		conn := c.idle[addr][n-1]
		c.idle[addr] = c.idle[addr][:n-1]
		c.mu.Unlock()
		if conn.wake() {
			return conn, nil
		}
		conn.close()
	}
	start := time.Now()
	limited, cancel := context.WithTimeout(ctx, c.attempt)
	defer cancel()
	conn, err := dialKafka(limited, c.cfg, addr)
	if err != nil {
		err = fmt.Errorf("connect to broker %s: %w", addr, err)
		if isTimeout(err) && time.Since(start) < c.attempt/2 {
			return nil, err // that says nothing about the broker
		}
		return nil, fmt.Errorf("%w: %w", errNotConnected, err)
	}
	return conn, nil
}

// take waits for one of the slots; false says that there was none as long as it
// would have been of use.
func (c *kafkaCluster) take(ctx context.Context, slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	if !c.hasTime(ctx) {
		<-slots
		return false
	}
	return true
}

// hasTime reports whether enough time is left to begin something whose failure
// would say more than that there was too little of it.
func (c *kafkaCluster) hasTime(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() == nil && (!ok || time.Until(deadline) >= c.attempt/2)
}

func isTimeout(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// release keeps a connection for the next request.
func (c *kafkaCluster) release(conn *kafkaConn) {
	if conn.spoilt || conn.expired() {
		conn.close()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		conn.close()
		return
	}
	c.idle[conn.addr] = append(c.idle[conn.addr], conn)
	conn.sleep(func() bool { return c.remove(conn) })
}

// remove takes a connection out of the idle ones; false says that it has been
// taken already.
func (c *kafkaCluster) remove(conn *kafkaConn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.idle[conn.addr], conn)
	if i < 0 {
		return false
	}
	c.idle[conn.addr] = slices.Delete(c.idle[conn.addr], i, i+1)
	return true
}

func (c *kafkaCluster) close() {
	c.mu.Lock()
	c.closed = true
	idle := c.idle
	c.idle = map[string][]*kafkaConn{}
	c.mu.Unlock()
	for _, conns := range idle {
		for _, conn := range conns {
			conn.wake()
			conn.close()
		}
	}
}
