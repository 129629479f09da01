package delaybridge

import "strings"

// Steers reports whether a header of this name, in any case, steers the bridge
// or a broker (Bridge-…, Nats-…, Status, Description). Such a header is never
// copied from a source to a target.
func Steers(name string) bool {
	return hasPrefixFold(name, "Bridge-") || hasPrefixFold(name, "Nats-") ||
		strings.EqualFold(name, "Status") || strings.EqualFold(name, "Description")
}

func hasPrefixFold(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}
