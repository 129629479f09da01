package luascripts

import (
	"hash/fnv"
	"strconv"
	"strings"

	"delaybridge"
)

// keys are the names of one shard's keys. All carry the shard's hash tag, so
// that Redis Cluster keeps them in one slot.
type keys struct {
	due, inflight            [len(delaybridge.Lanes)]string
	msg, tries               string
	dead, deadmsg, deadcount string
	doneA, doneB             string
}

func shardKeys(namespace string, shard int) keys {
	tag := "{" + namespace + ":" + strconv.Itoa(shard) + "}"
	k := keys{
		msg: tag + ":msg", tries: tag + ":tries",
		dead: tag + ":dead", deadmsg: tag + ":deadmsg", deadcount: tag + ":deadcount",
		doneA: tag + ":done:a", doneB: tag + ":done:b",
	}
	for i, lane := range delaybridge.Lanes {
		k.due[i] = tag + ":due:" + lane
		k.inflight[i] = tag + ":inflight:" + lane
	}
	return k
}

// lanes returns the due keys and then the in-flight keys of every lane, as the
// scripts that touch all lanes take them, and then more.
func (k *keys) lanes(more ...string) []string {
	all := append(append(make([]string, 0, 2*len(delaybridge.Lanes)+len(more)), k.due[:]...), k.inflight[:]...)
	return append(all, more...)
}

// tagOf returns the hash tag of a shard's key.
func tagOf(key string) string { return key[:strings.IndexByte(key, '}')+1] }

func metaKey(namespace string) string     { return namespace + ":meta" }
func wakeChannel(namespace string) string { return namespace + ":wake" }

// shardOf spreads ids over shards; it must never change, since what is stored
// is found by it.
func shardOf(id string, shards int) int {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id))
	return int(h.Sum64() % uint64(shards))
}

// laneIndex returns the place of a sink in delaybridge.Lanes, -1 for none.
func laneIndex(sink string) int {
	for i, lane := range delaybridge.Lanes {
		if lane == sink {
			return i
		}
	}
	return -1
}
