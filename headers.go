package delaybridge

import "strings"

// Headers that the bridge gives a message for the reject or dead target. They
// steer nothing, and pass through where a delivered message comes back.
const (
	// HeaderError says what was wrong, at most MaxErrorBytes.
	HeaderError = "Bridge-Error"
	// HeaderRejectedPrefix begins the name of a header of a refused message that
	// steered the bridge: Bridge-Rejected-Delay held what was in Bridge-Delay.
	HeaderRejectedPrefix = "Bridge-Rejected-"
)

// TellsOfFailure reports whether a header, in any case, is one of those.
func TellsOfFailure(name string) bool {
	return strings.EqualFold(name, HeaderError) || HasPrefixFold(name, HeaderRejectedPrefix)
}

// Steers reports whether a header of this name, in any case, steers the bridge
// or a broker (Bridge-…, Nats-…, Status, Description). Such a header is never
// copied from a source to a target.
func Steers(name string) bool {
	return HasPrefixFold(name, "Bridge-") || HasPrefixFold(name, "Nats-") ||
		strings.EqualFold(name, "Status") || strings.EqualFold(name, "Description")
}

// HasPrefixFold reports whether s begins with prefix, which is ASCII, in any case.
func HasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
