//go:build !failpoints

package delaybridge

// Failpoint marks a place where the crash tests kill the process. It does
// nothing, and costs nothing, unless the program is built with the tag
// "failpoints".
func Failpoint(string) {}
