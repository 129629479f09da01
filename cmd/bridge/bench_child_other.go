//go:build !linux

package main

import (
	"os"
	"syscall"
)

// ownChild: what Linux can do here, other systems cannot or do otherwise.
func ownChild() *syscall.SysProcAttr { return nil }

// maxMemory is not known: systems count it in units of their own.
func maxMemory(*os.ProcessState) int64 { return 0 }
