package test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"delaybridge/test/servers"
)

// A Redis Cluster under two bridges loses a master, whose replica takes over, and
// gets it back as that one's replica. With WAIT on, every message that was taken
// from its stream arrives, none early, and a copy says that it may be one.
func TestClusterLosesAMaster(t *testing.T) {
	t.Parallel()
	c := servers.NewRedisCluster(t)
	n := servers.NewNATS(t)
	js := n.JetStream(t)
	stream(t, js, "ORDERS", "orders.>")
	table := NewTimetable(t, n.Connect(t), "orders.>")
	env := Env{
		"REDIS_URL": c.URL, "REDIS_MODE": "cluster", "REDIS_WAIT_REPLICAS": "1", "SHARDS": "24",
		"NATS_URL": n.URL, "PUBLISH_TIMEOUT": "1s", "LEASE": "3s",
	}
	p := Serve(t, env)
	Serve(t, env)
	p.Await(t, `"slots_ok":"16384"`)

	const count = 900
	due := map[string]time.Time{}
	for i := range count {
		switch i {
		case count / 3:
			c.Masters[1].Kill()
		case 2 * count / 3:
			heir := c.Replicas[1].Client(t)
			if !servers.Eventually(func() bool {
				return strings.Contains(heir.Info(t.Context(), "replication").Val(), "role:master")
			}) {
				t.Fatal("the replica does not take over")
			}
			c.Masters[1].Start(t)
		}
		id, delay := fmt.Sprint("m", i), time.Duration(i*37%4000)*time.Millisecond
		due[id] = publish(t, js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a",
			"Bridge-Delay: "+delay.String(), "Bridge-Id: "+id).Add(delay)
	}
	first := map[string]Arrival{}
	copies := 0
	if !servers.Eventually(func() bool {
		clear(first)
		copies = 0
		for _, a := range table.Arrivals() {
			if _, again := first[a.ID]; !again {
				first[a.ID] = a
			} else if copies++; a.Header.Get("Bridge-Attempt") == "1" {
				t.Errorf("a copy of %s says that it is the first", a.ID)
			}
		}
		return len(first) == count
	}) {
		t.Errorf("%d of %d arrived", len(first), count)
	}
	for id, a := range first {
		if early := due[id].Sub(a.At); early > 0 {
			t.Errorf("%s arrived %v early", id, early)
		}
	}
	t.Logf("%d messages, %d copies", count, copies)
}
