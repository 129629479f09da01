package main

import (
	"os"
	"runtime"
	"runtime/debug"
)

// headroom is how much garbage may pile up before it is collected where little
// memory is in use, which is the rule here: what passes through is short-lived.
const headroom = 32 << 20

// steadyMemory keeps the collector from running dozens of times a second under
// load, which it does while the program holds only some megabytes: it goes by
// what is in use, and this makes it reckon with headroom more. That much of the
// address space is taken and never touched. Call release at the end. What GOGC says is
// left alone, and so is a GOMEMLIMIT that has little room for more.
func steadyMemory() (release func()) {
	if os.Getenv("GOGC") != "" || debug.SetMemoryLimit(-1) < 8*headroom { // -1 only asks
		return func() {}
	}
	untouched := make([]byte, headroom)
	return func() { runtime.KeepAlive(untouched) }
}
