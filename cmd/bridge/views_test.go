package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"delaybridge"
	"delaybridge/luascripts"
)

// TestWhatHasNoTargetNamesNone: a refused request may have none, and has a payload.
func TestWhatHasNoTargetNamesNone(t *testing.T) {
	v := newMessageView("rejected:nats:S:1", luascripts.Status{
		State: delaybridge.StateDead, Message: &delaybridge.Message{Scheduled: time.Now(), Due: time.Now(), Payload: []byte("abc")},
	})
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := printMessage(&out, v); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{string(text), out.String()} {
		if strings.Contains(s, "target") || strings.Contains(s, "://") || !strings.Contains(s, "3") {
			t.Errorf("it has no target and 3 bytes: %s", s)
		}
	}
}
