// Command count reads the output of "go test -json", shows what a person wants
// to see of it, and ends with one line that counts the tests:
//
//	go test -json ./... | go run ./test/count
//
// Before that it names the tests that ran on the in-process broker because Apache
// Kafka is not to be had, the skipped ones, and last the failed ones, each with a
// few lines that tell why; the whole of their output stands further up.
//
// With -again, what fails is run once more, with the flags behind it:
//
//	go test -json -race ./... | go run ./test/count -again -race
//
// A few tests that pass then are named as flaky, and counted as passed; the proofs
// that nothing is lost, data races and panics are not asked again.
//
// A test that has subtests does not count beside them. A package that fails
// without a failed test (it does not build, it panicked, it ran out of time)
// counts as one failure. It exits with 1 when anything failed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// event is one line of "go test -json".
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Elapsed     float64
	Output      string
	FailedBuild string
}

// result is what is known of one test, or of a package as a whole.
type result struct {
	pkg, test string
	outcome   string // pass, fail, skip; empty while it runs
	output    []string
	built     []string // what the compiler said, where it failed
	parent    bool     // it has subtests
	elapsed   float64
	flaky     bool // it failed, and passed when it was run again
}

func main() {
	var run rerun
	if len(os.Args) > 1 && os.Args[1] == "-again" {
		run = goTest(os.Args[2:], os.Stdout)
	}
	failed, err := count(os.Stdin, os.Stdout, run)
	if err != nil {
		fmt.Fprintln(os.Stderr, "count:", err)
	}
	if failed || err != nil {
		os.Exit(1)
	}
}

func count(in io.Reader, out io.Writer, run rerun) (failed bool, err error) {
	c := newCounter(out)
	if err := c.read(in); err != nil {
		return true, err
	}
	if run != nil {
		c.again(run)
	}
	return c.close(), nil
}

// read takes all events of a run.
func (c *counter) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if strings.TrimSpace(line) != "" {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				// What go itself prints is no JSON.
				fmt.Fprint(c.out, line)
			} else {
				c.take(e)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

type counter struct {
	out     io.Writer
	results map[string]*result
	order   []*result
	builds  map[string][]string // what the compiler said, by package
	broken  bool                // the run says that it failed
}

func newCounter(out io.Writer) *counter {
	return &counter{out: out, results: map[string]*result{}, builds: map[string][]string{}}
}

func (c *counter) get(pkg, test string) *result {
	key := pkg + " " + test
	r := c.results[key]
	if r == nil {
		r = &result{pkg: pkg, test: test}
		c.results[key] = r
		c.order = append(c.order, r)
	}
	return r
}

func (c *counter) take(e event) {
	switch e.Action {
	case "build-output":
		fmt.Fprint(c.out, e.Output)
		c.builds[e.ImportPath] = append(c.builds[e.ImportPath], e.Output)
		return
	case "build-fail", "start":
		return
	case "broken":
		c.broken = true
		return
	}
	r := c.get(e.Package, e.Test)
	switch e.Action {
	case "run":
		// A name may have slashes of its own, so that not each of them ends a parent's.
		for name := e.Test; ; {
			i := strings.LastIndexByte(name, '/')
			if i < 0 {
				break
			}
			name = name[:i]
			if parent := c.results[e.Package+" "+name]; parent != nil {
				parent.parent = true
				break
			}
		}
	case "output":
		if !strings.HasPrefix(strings.TrimSpace(e.Output), "=== ") {
			r.output = append(r.output, e.Output)
		}
	case "pass", "fail", "skip":
		r.outcome, r.elapsed = e.Action, e.Elapsed
		if e.FailedBuild != "" {
			r.built = c.builds[e.FailedBuild]
		}
		switch {
		case e.Test == "" && e.Action != "skip":
			fmt.Fprintf(c.out, "%-4s %s  %.1fs\n", map[string]string{"pass": "ok", "fail": "FAIL"}[e.Action], e.Package, e.Elapsed)
		case e.Action == "fail":
			fmt.Fprint(c.out, strings.Join(r.output, ""))
		}
	}
}

// close prints the lists and the closing line.
func (c *counter) close() (failed bool) {
	var passed, failures int
	var skips, onKfake []string
	var fails, beside []*result // beside: their failure is counted as another's
	because := ""
	failedTests := map[string]bool{} // by package
	for _, r := range c.order {
		if r.test == "" {
			continue
		}
		if why, ok := kfake(r.output); ok {
			onKfake, because = append(onKfake, r.pkg+" "+r.test), why
		}
		bad := r.outcome == "fail" || r.outcome == ""
		if bad {
			failedTests[r.pkg] = true
		}
		if r.outcome == "" {
			fmt.Fprint(c.out, strings.Join(r.output, ""))
		}
		switch {
		case r.parent && (!bad || c.childFailed(r)):
			if bad {
				beside = append(beside, r)
			}
		case bad:
			failures++
			fails = append(fails, r)
		case r.outcome == "skip":
			skips = append(skips, r.pkg+" "+r.test+": "+reason(r.output))
		default:
			passed++
		}
	}
	for _, r := range c.order {
		if r.test != "" || r.outcome == "pass" || r.outcome == "skip" {
			continue
		}
		if failedTests[r.pkg] {
			beside = append(beside, r)
			continue
		}
		failures++
		fails = append(fails, r)
		fmt.Fprint(c.out, strings.Join(r.output, ""))
	}
	if len(onKfake) > 0 {
		fmt.Fprintf(c.out, "WARNING: not on Apache Kafka but on the in-process broker (kfake), because %s:\n", because)
		slices.Sort(onKfake)
		for _, name := range onKfake {
			fmt.Fprintln(c.out, "on kfake: "+name)
		}
	}
	slices.Sort(skips)
	for _, s := range skips {
		fmt.Fprintln(c.out, "skipped: "+s)
	}
	// Where much failed, all names come first, and what tells why last, of some.
	for _, r := range fails[min(len(fails), whyTests):] {
		fmt.Fprintf(c.out, "failed: %s\n", r.name())
	}
	fails = fails[:min(len(fails), whyTests)]
	anyFlaky := false
	for _, r := range c.order {
		if r.flaky {
			anyFlaky = true
		}
		if r.flaky && !r.parent {
			fmt.Fprintf(c.out, "flaky: %s failed, and passed when it was run again\n", r.name())
			for _, line := range why(r.output, whyLines/againMost) {
				fmt.Fprintln(c.out, line)
			}
		}
	}
	if c.broken && failures == 0 && !anyFlaky {
		failures++
		fmt.Fprintln(c.out, "failed: the run itself, see above")
	}
	most := whyLines / max(1, len(fails))
	for _, r := range beside[:min(len(beside), whyTests)] {
		if lines, _ := complaints(r.output, most); len(lines) > 0 {
			fmt.Fprintf(c.out, "beside a failed test, %s:\n", r.name())
			fmt.Fprintln(c.out, strings.Join(cut(lines), "\n"))
		}
	}
	for _, r := range fails {
		fmt.Fprintf(c.out, "failed: %s\n", r.name())
		for _, line := range why(slices.Concat(r.built, r.output), most) {
			fmt.Fprintln(c.out, line)
		}
	}
	fmt.Fprintf(c.out, "%d passed, %d failed, %d skipped\n", passed, failures, len(skips))
	return failures > 0
}

func (r *result) name() string {
	if r.test == "" {
		return r.pkg + " (the package as a whole)"
	}
	return r.pkg + " " + r.test
}

func (c *counter) childFailed(parent *result) bool {
	return slices.ContainsFunc(c.order, func(r *result) bool {
		return r.pkg == parent.pkg && strings.HasPrefix(r.test, parent.test+"/") && (r.outcome == "fail" || r.outcome == "")
	})
}

// kfake looks for a test's word that it ran on the in-process broker, and why.
func kfake(output []string) (because string, ok bool) {
	for _, line := range output {
		if _, because, ok = strings.Cut(line, "Kafka: using the in-process broker (kfake), because "); ok {
			return strings.TrimSpace(because), true
		}
	}
	return "", false
}

// reason returns what a skipped test said.
func reason(output []string) string {
	for _, line := range output {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "--- ") {
			continue
		}
		if _, said, ok := strings.Cut(line, ".go:"); ok {
			if _, said, ok = strings.Cut(said, ": "); ok {
				return said
			}
		}
		return line
	}
	return "no reason given"
}
