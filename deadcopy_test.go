package delaybridge_test

import (
	"strings"
	"testing"

	"delaybridge"
)

func TestDeadCopyIDs(t *testing.T) {
	long := strings.Repeat("ä", delaybridge.MaxIDBytes/2)
	for _, id := range []string{"a", long, long[:250], long[2:] + "ö"} {
		c := delaybridge.DeadCopyID(id)
		if err := delaybridge.ValidateID(c); err != nil || !strings.HasPrefix(c, "dead:") {
			t.Errorf("the copy of %q has the id %q: %v", id, c, err)
		}
	}
	if delaybridge.DeadCopyID(long) == delaybridge.DeadCopyID(long[2:]+"ö") {
		t.Error("two letters share the id of their copies")
	}
}

func TestDeadCopiesAreKnown(t *testing.T) {
	dead := delaybridge.Target{Sink: "nats", Name: "dead"}
	api := delaybridge.Position{Source: "api:1", Offset: 1}
	for _, row := range []struct {
		about string
		m     delaybridge.Message
		want  bool
	}{
		{"any message", delaybridge.Message{ID: "a", Position: api}, false},
		{"one that goes to the dead target by itself", delaybridge.Message{ID: "a", Position: api, Target: dead}, false},
		{"one whose id only looks like it", delaybridge.Message{ID: "dead:a", Position: api}, false},
		{"a copy", delaybridge.Message{ID: "dead:a", Position: delaybridge.DeadCopyPosition(api), Target: dead}, true},
		{"a copy that was replayed", delaybridge.Message{ID: "dead:a", Position: api, Target: dead}, true},
		{"a copy for a dead target of before", delaybridge.Message{ID: "dead:a", Position: delaybridge.DeadCopyPosition(api)}, true},
	} {
		if got := delaybridge.IsDeadCopy(&row.m, dead); got != row.want {
			t.Errorf("%s: %v", row.about, got)
		}
	}
}
