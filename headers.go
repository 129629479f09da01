package delaybridge

import (
	"strconv"
	"strings"
)

// Headers that the bridge gives a message for the reject or dead target. They
// steer nothing, and pass through where a delivered message comes back.
const (
	// HeaderError says what was wrong, at most MaxErrorBytes.
	HeaderError = "Bridge-Error"
	// HeaderRejectedPrefix begins the name of a header of a refused message that
	// steered the bridge: Bridge-Rejected-Delay held what was in Bridge-Delay.
	HeaderRejectedPrefix = "Bridge-Rejected-"
)

// HeaderHops counts the bridges that a message has passed. What is delivered
// carries the number that it came with and one more; a stored message holds the
// former among its headers, if it is not 0.
const HeaderHops = "Bridge-Hops"

// MaxHops is the most bridges that a message may pass: one that is led in a
// circle through other bridges ends there.
const MaxHops = 8

// Hops returns how many bridges a stored message had passed when it came in.
func Hops(headers []Header) int {
	for _, h := range headers {
		if h.Name == HeaderHops {
			n, _ := strconv.Atoi(string(h.Value)) // ingest has checked it
			return n
		}
	}
	return 0
}

// TellsOfFailure reports whether a header, in any case, is one of those.
func TellsOfFailure(name string) bool {
	return strings.EqualFold(name, HeaderError) || HasPrefixFold(name, HeaderRejectedPrefix)
}

// Steers reports whether a header of this name, in any case, steers the bridge
// or a broker (Bridge-…, Nats-…, Status, Description). Such a header is never
// copied from a source to a target. Blanks around a name do not hide it.
func Steers(name string) bool {
	name = strings.TrimSpace(name)
	return HasPrefixFold(name, "Bridge-") || HasPrefixFold(name, "Nats-") ||
		strings.EqualFold(name, "Status") || strings.EqualFold(name, "Description")
}

// HasPrefixFold reports whether s begins with prefix, which is ASCII, in any case.
func HasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
