package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// What is repeated of failed tests just above the closing line is short, since
// whoever reads the log of a CI run may see no more than its end.
const (
	whyLines  = 20  // of all failed tests together
	whyTests  = 5   // of so many of them
	whyBlock  = 12  // of one message, race report or stack
	whyLength = 400 // bytes of a line
	whyBytes  = 4096
)

var (
	// logged is the first line of what a test logged or complained of; go test
	// says which of the two it was as little as this can.
	logged = regexp.MustCompile(`^( *)[^ ]+\.go:\d+: `)
	// quoted is what servers and processes said, logged at the end of a test that
	// failed anyway.
	quoted = regexp.MustCompile(`\.go:\d+: [^;]* said:$`)
	ofGo   = regexp.MustCompile(`^\s+.*(/src/(runtime|testing|internal)/|_testmain\.go)`)
)

// why returns the lines of a failed test's output that tell why it failed, most
// at the most. Where no line looks like that it is the end of the output.
func why(output []string, most int) []string {
	lines, said := complaints(output, most)
	if room := most - len(lines); room > 3 {
		lines = append(lines, said[:min(len(said), room)]...)
	}
	if len(lines) > 0 {
		return cut(lines)
	}
	for _, line := range split(output) {
		if strings.TrimSpace(line) != "" && !strings.HasPrefix(strings.TrimSpace(line), "--- ") {
			lines = append(lines, line)
		}
	}
	return cut(lines[max(0, len(lines)-most):])
}

// complaints returns what a test logged, in which its complaints are, race
// reports and panics, most lines at the most, and apart what servers said.
func complaints(output []string, most int) (found, said []string) {
	all := split(output)
	for i := 0; i < len(all); {
		block, next := blockAt(all, i)
		block = slices.DeleteFunc(slices.Clone(block), func(line string) bool { return strings.TrimSpace(line) == "" })
		switch {
		case len(block) == 0:
		case quoted.MatchString(block[0]):
			said = append(said, shorten(block, whyBlock)...)
		default:
			found = append(found, shorten(block, whyBlock)...)
		}
		i = next
	}
	// The first lines may say how to repeat a run, the last ones what ended it.
	return shorten(found, most), said
}

func split(output []string) []string {
	return strings.Split(strings.TrimRight(strings.Join(output, ""), "\n"), "\n")
}

// cut shortens long lines, and more so where it is too much in all.
func cut(lines []string) []string {
	size := 0
	for _, line := range lines {
		size += min(len(line), whyLength) + len("…\n")
	}
	most := whyLength
	if size > whyBytes {
		most = whyBytes/len(lines) - len("…\n")
	}
	for i, line := range lines {
		if len(line) > most {
			lines[i] = strings.ToValidUTF8(line[:most], "") + "…"
		}
	}
	return lines
}

// blockAt returns what belongs together from line i on, nil if that is nothing
// to be shown, and the line after it.
func blockAt(all []string, i int) (block []string, next int) {
	line := all[i]
	next = i + 1
	switch first := logged.FindStringSubmatch(line); {
	case first != nil:
		for indent := first[1] + "    "; next < len(all) && strings.HasPrefix(all[next], indent) && !logged.MatchString(all[next]); next++ {
		}
		return all[i:next], next
	case strings.HasPrefix(line, "WARNING: DATA RACE"):
		for next < len(all) && !strings.HasPrefix(all[next], "======") {
			next++
		}
		return head(withoutGo(all[i:next])), next
	case strings.HasPrefix(line, "panic: "), strings.HasPrefix(line, "fatal error: "):
		return head(withoutGo(all[i:])), len(all)
	case strings.HasPrefix(line, "exit status "), strings.HasPrefix(line, "signal: "):
		return all[i:next], next
	}
	return nil, next
}

// withoutGo leaves out blank lines, Go's own frames, and goroutines that have no
// other ones.
func withoutGo(trace []string) []string {
	var kept []string
	isGoroutine := func(line string) bool {
		return strings.HasPrefix(line, "goroutine ") && strings.HasSuffix(line, ":")
	}
	for i, line := range trace {
		switch {
		case strings.TrimSpace(line) == "", ofGo.MatchString(line), i+1 < len(trace) && ofGo.MatchString(trace[i+1]):
			continue
		case isGoroutine(line) && len(kept) > 0 && isGoroutine(kept[len(kept)-1]):
			kept = kept[:len(kept)-1]
		}
		kept = append(kept, line)
	}
	return kept
}

func head(trace []string) []string { return trace[:min(len(trace), whyBlock)] }

// shorten leaves out lines from the middle where there are more than most.
func shorten(lines []string, most int) []string {
	if len(lines) <= most {
		return lines
	}
	last := (most - 1) / 2
	first := most - 1 - last
	short := append([]string(nil), lines[:first]...)
	short = append(short, fmt.Sprintf("    … %d lines more, see above", len(lines)-first-last))
	return append(short, lines[len(lines)-last:]...)
}
