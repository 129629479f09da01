package delaybridge

import (
	"math/rand/v2"
	"testing"
)

// TestPlainNames: what is taken at a glance is what would be taken at length.
func TestPlainNames(t *testing.T) {
	plain := 0
	check := func(name string) {
		if !isPlainName(name) {
			return
		}
		plain++
		if r := checkTopic(name); r != "" {
			t.Errorf("%q is plain, and no topic: %s", name, r)
		}
		if r := checkSubject(name); r != "" || SystemSubjectPrefix(name) != "" {
			t.Errorf("%q is plain, and no subject to publish to: %s", name, r)
		}
	}
	const chars = "aZ09.-_$*> \x00é/%"
	for range 200_000 {
		name := make([]byte, rand.IntN(6))
		for i := range name {
			name[i] = chars[rand.IntN(len(chars))]
		}
		check(string(name))
	}
	for _, name := range []string{"orders.timeout", "a", "A-b_c.9"} {
		if !isPlainName(name) {
			t.Errorf("%q is not plain", name)
		}
	}
	if plain < 1000 {
		t.Errorf("only %d names were plain", plain)
	}
}
