package ingest

import (
	"slices"
	"strings"

	"delaybridge"
)

// matchSubject reports whether a NATS subject is one that pattern stands for:
// a token * is any one token, a last token > one or more.
func matchSubject(pattern, subject string) bool {
	for {
		p, restP, moreP := strings.Cut(pattern, ".")
		if p == ">" && !moreP {
			return subject != ""
		}
		s, restS, moreS := strings.Cut(subject, ".")
		if s == "" || p != s && p != "*" || moreP != moreS {
			return false
		}
		if !moreP {
			return true
		}
		pattern, subject = restP, restS
	}
}

// intersectSubjects returns the pattern of the subjects that both a and b stand
// for; ok is false if there are none.
func intersectSubjects(a, b string) (both string, ok bool) {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	var tokens []string
	for i := 0; ; i++ {
		switch {
		case i < len(as) && as[i] == ">" && i < len(bs):
			return strings.Join(append(tokens, bs[i:]...), "."), true
		case i < len(bs) && bs[i] == ">" && i < len(as):
			return strings.Join(append(tokens, as[i:]...), "."), true
		case i == len(as) || i == len(bs):
			return strings.Join(tokens, "."), len(as) == len(bs)
		case as[i] == "*":
			tokens = append(tokens, bs[i])
		case bs[i] == "*" || as[i] == bs[i]:
			tokens = append(tokens, as[i])
		default:
			return "", false
		}
	}
}

// coversSubjects reports whether every subject of b is one of a, too.
func coversSubjects(a, b string) bool {
	both, ok := intersectSubjects(a, b)
	return ok && both == b
}

// withoutCovered drops the patterns that another one covers, since a consumer
// refuses filters that overlap.
func withoutCovered(patterns []string) []string {
	patterns = slices.Compact(slices.Sorted(slices.Values(patterns)))
	return slices.DeleteFunc(slices.Clone(patterns), func(p string) bool {
		return slices.ContainsFunc(patterns, func(q string) bool { return q != p && coversSubjects(q, p) })
	})
}

// checkSubjectPattern says what is wrong with a NATS subject pattern, "" if nothing is.
func checkSubjectPattern(pattern string) string {
	if reason := delaybridge.CheckSubjectTokens(pattern); reason != "" {
		return reason
	}
	tokens := strings.Split(pattern, ".")
	for i, token := range tokens {
		switch {
		case token == "*", token == ">" && i == len(tokens)-1:
		case token == ">":
			return "> can only be the last token"
		case strings.ContainsAny(token, "*>"):
			return "in NATS, * and > stand for whole tokens"
		}
	}
	if delaybridge.SystemSubjectPrefix(pattern) != "" {
		return "is the NATS server's own"
	}
	return ""
}

// targetPattern stands for the targets that an allow list lets pass. Each
// broker keeps the wildcards that its users know:
//
//	kafka://orders.*    a star is any run of characters, dots included, anywhere
//	nats://orders.*     a token * is any one token
//	nats://orders.>     a last token > is one or more tokens
//
// nats and nats-core are different sinks: each needs patterns of its own.
type targetPattern struct{ sink, name string }

func parseTargetPattern(s string) (targetPattern, error) {
	sink, name, err := delaybridge.SplitTarget(s)
	if err != nil {
		return targetPattern{}, err
	}
	reason := ""
	if sink != delaybridge.SinkKafka {
		reason = checkSubjectPattern(name)
	} else if name == "" {
		reason = "the topic is empty"
	} else if strings.Trim(strings.ToLower(name), "abcdefghijklmnopqrstuvwxyz0123456789._-*") != "" {
		reason = "only A-Z a-z 0-9 . _ - can be in a topic, and * for any run of them"
	}
	if reason != "" {
		return targetPattern{}, &delaybridge.FieldError{Code: "invalid_target", Value: s, Reason: reason}
	}
	return targetPattern{sink, name}, nil
}

func (p targetPattern) match(t delaybridge.Target) bool {
	if p.sink != t.Sink {
		return false
	}
	if p.sink == delaybridge.SinkKafka {
		return matchStars(p.name, t.Name)
	}
	return matchSubject(p.name, t.Name)
}

// matchStars matches s against a pattern in which * is any run of characters.
// Taking each piece at its first place is enough, so no pattern is slow.
func matchStars(pattern, s string) bool {
	first, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == s
	}
	if !strings.HasPrefix(s, first) {
		return false
	}
	s = s[len(first):]
	for {
		piece, more, star := strings.Cut(rest, "*")
		if !star {
			return strings.HasSuffix(s, piece)
		}
		at := strings.Index(s, piece)
		if at < 0 {
			return false
		}
		s, rest = s[at+len(piece):], more
	}
}
