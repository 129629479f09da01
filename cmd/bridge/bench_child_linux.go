package main

import (
	"os"
	"syscall"
)

// ownChild keeps a Ctrl-C at the terminal from the processes, which are asked to
// end in order, and has them end with this one, however it ends.
func ownChild() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// maxMemory is the most resident memory that a process had, in bytes.
func maxMemory(s *os.ProcessState) int64 {
	if usage, ok := s.SysUsage().(*syscall.Rusage); ok {
		return usage.Maxrss << 10
	}
	return 0
}
