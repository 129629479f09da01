package ingest

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"delaybridge"
)

func TestTargetPatterns(t *testing.T) {
	for _, c := range []struct {
		sentence, pattern, target string
		want                      bool
	}{
		{"a whole topic", "kafka://orders", "kafka://orders", true},
		{"another topic", "kafka://orders", "kafka://orders2", false},
		{"a star at the end", "kafka://orders.*", "kafka://orders.a.b", true},
		{"a star needs what stands before it", "kafka://orders.*", "kafka://orders", false},
		{"a star may be nothing", "kafka://orders*", "kafka://orders", true},
		{"a star at the start", "kafka://*.dlq", "kafka://a.b.dlq", true},
		{"a star at the start, another end", "kafka://*.dlq", "kafka://a.dlq.b", false},
		{"stars around", "kafka://*in*", "kafka://pointing", true},
		{"a star alone", "kafka://*", "kafka://x", true},
		{"the end must not use the begin again", "kafka://aba*ba", "kafka://aba", false},
		{"many stars", "kafka://a*b*c", "kafka://aXbbYc", true},
		{"another sink", "kafka://*", "nats://x", false},
		{"a whole subject", "nats://a.b", "nats://a.b", true},
		{"a token", "nats://a.*", "nats://a.b", true},
		{"no token", "nats://a.*", "nats://a", false},
		{"two tokens", "nats://a.*", "nats://a.b.c", false},
		{"the rest", "nats://a.>", "nats://a.b.c", true},
		{"no rest", "nats://a.>", "nats://a", false},
		{"a token in the middle", "nats://a.*.c", "nats://a.b.c", true},
		{"everything", "nats://>", "nats://a.b.c", true},
		{"core NATS is another sink", "nats://>", "nats-core://a", false},
	} {
		t.Run(c.sentence, func(t *testing.T) {
			p, err := parseTargetPattern(c.pattern)
			if err != nil {
				t.Fatal(err)
			}
			target, err := delaybridge.ParseTarget(c.target)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.match(target); got != c.want {
				t.Errorf("%s matches %s: %v", c.pattern, c.target, got)
			}
		})
	}
}

func TestIntersectSubjects(t *testing.T) {
	for _, c := range []struct{ a, b, want string }{
		{"a.b", "a.b", "a.b"},
		{"a.b", "a.c", ""},
		{"a.*", "a.b", "a.b"},
		{"a.*", "*.b", "a.b"},
		{"a.>", "a.b.*", "a.b.*"},
		{"a.>", "a", ""},
		{"a.>", "*.>", "a.>"},
		{">", "a.*.c", "a.*.c"},
		{"a.*", "a.>", "a.*"},
		{"a.*.c", "a.b.>", "a.b.c"},
		{"a.*", "a.*.c", ""},
	} {
		for _, s := range [][2]string{{c.a, c.b}, {c.b, c.a}} {
			got, ok := intersectSubjects(s[0], s[1])
			if ok != (c.want != "") || ok && got != c.want {
				t.Errorf("%s and %s meet in %q, %v; want %q", s[0], s[1], got, ok, c.want)
			}
		}
	}
}

// What two patterns have in common is held against every subject over a small
// alphabet.
func TestIntersectSubjectsAgainstAll(t *testing.T) {
	var subjects []string
	for _, a := range []string{"a", "b"} {
		subjects = append(subjects, a)
		for _, b := range []string{"a", "b"} {
			subjects = append(subjects, a+"."+b)
			for _, c := range []string{"a", "b"} {
				subjects = append(subjects, a+"."+b+"."+c)
			}
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	pattern := func() string {
		tokens := make([]string, 1+random.IntN(3))
		for i := range tokens {
			tokens[i] = []string{"a", "b", "*"}[random.IntN(3)]
		}
		if random.IntN(3) == 0 {
			tokens[len(tokens)-1] = ">"
		}
		return strings.Join(tokens, ".")
	}
	for range 5000 {
		p, q := pattern(), pattern()
		both, ok := intersectSubjects(p, q)
		for _, s := range subjects {
			want := matchSubject(p, s) && matchSubject(q, s)
			if got := ok && matchSubject(both, s); got != want {
				t.Fatalf("%s and %s meet in %q, %v: wrong for %s", p, q, both, ok, s)
			}
		}
	}
}

func TestWithoutCovered(t *testing.T) {
	got := withoutCovered([]string{"a.b", "c", "a.*", "a.>", "c", "b.*.c"})
	if want := []string{"a.>", "b.*.c", "c"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
