package delaybridge_test

import (
	"testing"
	"testing/synctest"
	"time"

	"delaybridge"
)

func TestPulse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p delaybridge.Pulse
		check := func(sentence string, want bool) {
			t.Helper()
			time.Sleep(2 * time.Minute)
			if got := p.Missed(time.Minute); got != want {
				t.Errorf("%s: missed is %v", sentence, got)
			}
		}
		check("a loop that has not begun hangs nowhere", false)
		p.Beat()
		if p.Missed(time.Minute) {
			t.Error("missed at once")
		}
		check("a loop at work that does not get on hangs", true)
		p.Rest()
		check("a loop at rest may take its time", false)
		(*delaybridge.Pulse)(nil).Beat()
		(*delaybridge.Pulse)(nil).Rest()
	})
}
