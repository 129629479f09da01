package test

import (
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"delaybridge/test/servers"
)

// TestRefusedAcknowledgementsAreTold has a user who may do everything but
// acknowledge: messages go out, and come again and again.
func TestRefusedAcknowledgementsAreTold(t *testing.T) {
	t.Parallel()
	w := &world{redis: servers.NewRedis(t), nats: servers.NewNATS(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "admin", Password: "a"},
			{Username: "bridge", Password: "b", Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Deny: []string{"$JS.ACK.>"}},
			}},
		}
	})}
	admin := w.nats.Connect(t, nats.UserInfo("admin", "a"))
	js, err := jetstream.New(admin)
	if err != nil {
		t.Fatal(err)
	}
	w.js, w.table = js, NewTimetable(t, admin, "orders.>")
	stream(t, w.js, "ORDERS", "orders.>")
	w.env = Env{"REDIS_URL": w.redis.URL, "NATS_URL": strings.Replace(w.nats.URL, "//", "//bridge:b@", 1)}
	p := w.serve(t, nil)
	for _, id := range []string{"one", "two"} {
		publish(t, w.js, "bridge.schedule", "x", "Bridge-Target: nats://orders.a", "Bridge-Delay: 0s", "Bridge-Id: "+id)
		w.table.Await(t, id)
	}
	p.Await(t, "no permission to publish what taking messages in needs")
	if n := strings.Count(p.Output(), "no permission to publish"); n != 1 {
		t.Errorf("it was said %d times", n)
	}
}
