package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// againMost is how many tests may fail and be run again: more are no coincidence.
const againMost = 3

// proofs are tests in which one failure is a fault, however often they pass: they
// look for what is lost, early or doubled, at random.
var proofs = regexp.MustCompile(`Chaos|Crash|Race|Model|Loses|Early|Twice|Fuzz`)

// rerun runs tests of a package once more and reports whether all of them passed.
type rerun func(pkg string, tests []string) bool

// again runs the failed tests once more, if they are few, and nothing says that it is
// no matter of time: real servers on a busy machine now and then miss what a test
// waits for. What passes then is counted as passed, and named as flaky.
func (c *counter) again(run rerun) {
	failed := map[string][]string{} // top-level tests by package
	total := 0
	for _, r := range c.order {
		if r.outcome != "fail" && r.outcome != "" {
			continue
		}
		output := strings.Join(r.output, "")
		if r.outcome == "" || strings.Contains(output, "DATA RACE") || strings.Contains(output, "panic: ") {
			return
		}
		if r.test == "" {
			continue
		}
		top, _, _ := strings.Cut(r.test, "/")
		if proofs.MatchString(top) {
			return
		}
		if !slices.Contains(failed[r.pkg], top) {
			failed[r.pkg] = append(failed[r.pkg], top)
			total++
		}
	}
	if total == 0 || total > againMost {
		return
	}
	for _, r := range c.order {
		if r.test == "" && r.outcome == "fail" && len(failed[r.pkg]) == 0 {
			return // not for a test: it does not build, say
		}
	}
	for pkg, tests := range failed {
		fmt.Fprintf(c.out, "again: %s %s\n", pkg, strings.Join(tests, " "))
		if !run(pkg, tests) {
			continue
		}
		for _, r := range c.order {
			if r.pkg == pkg && r.outcome == "fail" {
				r.outcome, r.flaky = "pass", r.test != ""
			}
		}
	}
}

// goTest is a rerun by the go command, with the flags that the tests were run with.
func goTest(flags []string, out io.Writer) rerun {
	return func(pkg string, tests []string) bool {
		args := append([]string{"test", "-json", "-count=1"}, flags...)
		cmd := exec.Command("go", append(args, "-run", "^("+strings.Join(tests, "|")+")$", pkg)...)
		// A module of its own has its go.mod where its package is.
		if dir := strings.TrimPrefix(pkg, "delaybridge/"); dir != pkg {
			if _, err := os.Stat(dir + "/go.mod"); err == nil {
				cmd.Dir = dir
			}
		}
		cmd.Stderr = out
		pipe, err := cmd.StdoutPipe()
		if err != nil {
			return false
		}
		if err := cmd.Start(); err != nil {
			fmt.Fprintln(out, "again:", err)
			return false
		}
		c := newCounter(out)
		err = c.read(pipe)
		ran := slices.ContainsFunc(c.order, func(r *result) bool { return r.test != "" && r.outcome == "pass" })
		return cmd.Wait() == nil && err == nil && ran
	}
}
