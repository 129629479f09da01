//go:build failpoints

package delaybridge

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// The failpoint to die at and how often it has yet to be passed before, from
// "BRIDGE_FAILPOINT=<name>:<n>".
var (
	failpointName string
	failpointLeft atomic.Int64
)

func init() {
	name, n, _ := strings.Cut(os.Getenv("BRIDGE_FAILPOINT"), ":")
	left, err := strconv.ParseInt(n, 10, 64)
	if name == "" || err != nil {
		return
	}
	failpointName = name
	failpointLeft.Store(left)
}

// Failpoint kills the process, as a crash would, when the point named by
// BRIDGE_FAILPOINT is reached for the n-th time.
func Failpoint(name string) {
	if name == failpointName && failpointLeft.Add(-1) == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	}
}
