package delaybridge

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// A copy of a dead letter for the dead target is a message of its own: its id and
// the source of its position are those of what has died, behind this.
const deadCopyPrefix = "dead:"

// DeadCopyID returns the id of the copy of a dead letter. One that would be too
// long, so that the copy could not be replayed, ends in a hash of the whole.
func DeadCopyID(id string) string {
	all := deadCopyPrefix + id
	if len(all) <= MaxIDBytes {
		return all
	}
	sum := sha256.Sum256([]byte(id))
	hash := "~" + hex.EncodeToString(sum[:8])
	return strings.ToValidUTF8(all[:MaxIDBytes-len(hash)], "") + hash
}

// DeadCopyPosition returns the position of the copy: the same for the same death,
// so that one which a crash repeats makes no second copy.
func DeadCopyPosition(p Position) Position {
	return Position{Source: deadCopyPrefix + p.Source, Offset: p.Offset}
}

// IsDeadCopy reports whether m is the copy of a dead letter for that target. One
// that dies has no copy itself, also when it was replayed in between, which gave
// it another position: each replay would make one more.
func IsDeadCopy(m *Message, target Target) bool {
	return strings.HasPrefix(m.Position.Source, deadCopyPrefix) ||
		m.Target == target && strings.HasPrefix(m.ID, deadCopyPrefix)
}
