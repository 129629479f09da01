package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// page is one page of the documentation.
type page struct {
	path  string // from the repository's root
	text  string
	lines []string
}

// pages reads the README and what is under docs and deploy.
func pages(t *testing.T) []page {
	t.Helper()
	paths := []string{"README.md"}
	for _, pattern := range []string{"docs/*.md", "deploy/*.md", "deploy/*/*.md"} {
		found, err := filepath.Glob(filepath.Join("..", pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			paths = append(paths, strings.TrimPrefix(filepath.ToSlash(f), "../"))
		}
	}
	var all []page
	for _, path := range paths {
		b, err := os.ReadFile(filepath.Join("..", path))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, page{path, string(b), strings.Split(string(b), "\n")})
	}
	return all
}

// code returns the lines of fenced and of indented code by their numbers.
func (p page) code() map[int]string {
	lines := map[int]string{}
	fenced := false
	for i, line := range p.lines {
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			fenced = !fenced
		case fenced:
			lines[i+1] = line
		case strings.HasPrefix(line, "    "):
			lines[i+1] = strings.TrimPrefix(line, "    ")
		}
	}
	return lines
}

// prose returns the page without its fenced code.
func (p page) prose() string {
	var b strings.Builder
	fenced := false
	for _, line := range p.lines {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if !fenced {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

var (
	// assignments before a command, as in BRIDGE_ROLES=ingest bin/bridge serve
	assignments = regexp.MustCompile(`^((export )?[A-Z_]+=('[^']*'|"[^"]*"|\S*)\s+)+`)
	bridgeLine  = regexp.MustCompile(`^(?:bridge|bin/bridge|go run \./cmd/bridge)\s+(.*)$`)
	exampleLine = regexp.MustCompile(`^go run \./(test/examples/\S+)(.*)$`)
	inlineCode  = regexp.MustCompile("`bridge ([a-z][^`]*)`")
	flagForm    = regexp.MustCompile(`(?:^|\s)(--?[A-Za-z][A-Za-z0-9-]*)`)
	quoted      = regexp.MustCompile(`'[^']*'|"[^"]*"`)
)

// help is what "bridge <command> --help" says, "" if there is no such command.
func help(t *testing.T, known map[string]string, words []string) (command, text string) {
	t.Helper()
	for n := min(2, len(words)); n > 0; n-- {
		command = strings.Join(words[:n], " ")
		text, ok := known[command]
		if !ok {
			r := Run(t, Env{}, "", append(slices.Clone(words[:n]), "--help")...)
			// Of a group with an unknown word behind it the group's help comes.
			if r.Code == 0 && strings.Contains(r.Stdout, "bridge "+command) {
				text = r.Stdout
			}
			known[command] = text
		}
		if text != "" {
			return command, text
		}
	}
	return strings.Join(words[:1], " "), ""
}

// TestDocsNameRealCommands: every command of the bridge in the documentation is
// one, with the flags that it has.
func TestDocsNameRealCommands(t *testing.T) {
	t.Parallel()
	binary(t)
	known := map[string]string{}
	checked := 0
	check := func(where, line string) {
		line, _, _ = strings.Cut(line, " | ") // of a pipe, what begins it
		words := strings.Fields(quoted.ReplaceAllString(line, "x"))
		for len(words) > 0 && strings.HasPrefix(words[0], "-") {
			if words[0] == "--api" { // a flag of every command, with a value
				words = words[1:]
			}
			words = words[min(1, len(words)):]
		}
		if len(words) == 0 {
			return
		}
		// "bridge dead list\|show ID" stands for several.
		first, rest := words[0], words[1:]
		if first == "..." {
			return
		}
		alternatives := []string{""}
		if len(rest) > 0 && strings.Contains(rest[0], "|") {
			alternatives = strings.Split(strings.ReplaceAll(rest[0], "\\", ""), "|")
			rest = rest[1:]
		}
		for _, a := range alternatives {
			command := []string{first}
			if a != "" {
				command = append(command, a)
			}
			name, text := help(t, known, append(command, rest...))
			checked++
			if text == "" || a != "" && name != first+" "+a {
				t.Errorf("%s: there is no command bridge %s", where, strings.Join(command, " "))
				continue
			}
			for _, f := range flagForm.FindAllStringSubmatch(quoted.ReplaceAllString(line, "x"), -1) {
				if f[1] != "--help" && !regexp.MustCompile(`(^|[\s,])`+regexp.QuoteMeta(f[1])+`[\s,]`).MatchString(text) {
					t.Errorf("%s: bridge %s has no flag %s", where, name, f[1])
				}
			}
		}
	}
	for _, p := range pages(t) {
		for n, line := range p.code() {
			where := p.path + ":" + strconv.Itoa(n)
			line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
			line = assignments.ReplaceAllString(line, "")
			line, _, _ = strings.Cut(line, " # ")
			if m := bridgeLine.FindStringSubmatch(line); m != nil {
				if !strings.HasPrefix(m[1], "->") && !strings.HasPrefix(m[1], "(") {
					check(where, m[1])
				}
			}
			if m := exampleLine.FindStringSubmatch(line); m != nil {
				checkExample(t, where, m[1], quoted.ReplaceAllString(m[2], "x"))
				checked++
			}
		}
		for _, m := range inlineCode.FindAllStringSubmatch(p.prose(), -1) {
			check(p.path+": `bridge "+m[1]+"`", strings.Join(strings.Fields(m[1]), " "))
		}
	}
	if checked < 40 {
		t.Errorf("only %d commands were found in the documentation", checked)
	}
}

// checkExample looks for an example's flags in its source.
func checkExample(t *testing.T, where, dir, args string) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join("..", dir, "main.go"))
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	for _, f := range flagForm.FindAllStringSubmatch(args, -1) {
		if !strings.Contains(string(source), `("`+strings.TrimLeft(f[1], "-")+`", `) {
			t.Errorf("%s: %s has no flag %s", where, dir, f[1])
		}
	}
}

var variable = regexp.MustCompile(`\bBRIDGE_[A-Z0-9_]*[A-Z0-9](?:_(?:\.\.\.|…|\*))?`)

// notSettings begin with BRIDGE_ and are none.
var notSettings = map[string]string{
	"BRIDGE_SCHEDULE":      "the stream that is read unless set otherwise",
	"BRIDGE_TEST_KAFKA":    "of the tests: which Kafka they use",
	"BRIDGE_TEST_CHROMIUM": "of the tests: which browser they use",
	"BRIDGE_PASSWORD":      "of an example: a shell's own",
	"BRIDGE_PORT":          "what Kubernetes sets beside a Service called bridge",
	"BRIDGE_SERVICE_HOST":  "likewise",
}

// TestDocsNameRealSettings: every BRIDGE_ variable in the documentation is a
// setting, or is known to be something else.
func TestDocsNameRealSettings(t *testing.T) {
	t.Parallel()
	names := settingNames(t)
	for _, p := range pages(t) {
		for i, line := range p.lines {
			for _, v := range variable.FindAllString(line, -1) {
				if prefix, ok := cutAny(v, "...", "…", "*"); ok {
					if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, prefix) }) {
						t.Errorf("%s:%d: no setting begins with %s", p.path, i+1, prefix)
					}
				} else if !slices.Contains(names, v) && notSettings[v] == "" {
					t.Errorf("%s:%d: there is no setting %s", p.path, i+1, v)
				}
			}
		}
	}
}

func cutAny(s string, suffixes ...string) (string, bool) {
	for _, suffix := range suffixes {
		if before, ok := strings.CutSuffix(s, suffix); ok {
			return before, true
		}
	}
	return s, false
}

// settingNames asks the program for its settings.
func settingNames(t *testing.T) []string {
	t.Helper()
	r := Run(t, Env{}, "", "config", "-o", "json")
	var all any
	if err := json.Unmarshal([]byte(r.Stdout), &all); err != nil {
		t.Fatalf("bridge config -o json: %v in %+v", err, r)
	}
	var names []string
	for _, m := range variable.FindAllString(r.Stdout, -1) {
		names = append(names, m, m+"_FILE")
	}
	if len(names) < 40 {
		t.Fatalf("bridge config names %d settings", len(names))
	}
	return names
}

var (
	docLink = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*?)\s*$`)
	notSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]+`)
)

// anchors are the names by which the headings of a page are linked to.
func (p page) anchors() []string {
	var all []string
	times := map[string]int{}
	for _, m := range heading.FindAllStringSubmatch(p.prose(), -1) {
		text := docLink.ReplaceAllStringFunc(m[1], func(s string) string { return s[1:strings.Index(s, "]")] })
		slug := strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(text), ""), " ", "-")
		if n := times[slug]; n > 0 {
			all = append(all, slug+"-"+strconv.Itoa(n))
		} else {
			all = append(all, slug)
		}
		times[slug]++
	}
	return all
}

// TestDocsLinksResolve: relative links lead to files, and to headings in them; and
// every page is linked from the README.
func TestDocsLinksResolve(t *testing.T) {
	t.Parallel()
	all := pages(t)
	byPath := map[string]page{}
	for _, p := range all {
		byPath[p.path] = p
	}
	linked := map[string]bool{}
	for _, p := range all {
		for _, m := range docLink.FindAllStringSubmatch(p.prose(), -1) {
			to, anchor, hasAnchor := strings.Cut(m[1], "#")
			if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
				continue
			}
			path := p.path
			if to != "" {
				path = filepath.ToSlash(filepath.Join(filepath.Dir(p.path), to))
			}
			if p.path == "README.md" {
				linked[path] = true
			}
			if _, err := os.Stat(filepath.Join("..", path)); err != nil {
				t.Errorf("%s: the link %s leads nowhere", p.path, m[1])
				continue
			}
			target, isPage := byPath[path]
			if hasAnchor && isPage && !slices.Contains(target.anchors(), anchor) {
				t.Errorf("%s: %s has no heading %q", p.path, path, anchor)
			}
		}
	}
	for _, p := range all {
		if strings.HasPrefix(p.path, "docs/") && !linked[p.path] {
			t.Errorf("the README does not lead to %s", p.path)
		}
	}
}

var metricName = regexp.MustCompile(`\bbridge_[a-z][a-z0-9_]*[a-z0-9]`)

// TestDocsNameRealMetrics: every metric in the documentation is served, and every
// one that is served is in the table of docs/metrics.md.
func TestDocsNameRealMetrics(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// A broker that is away has its series, too, and an API counts what it does.
	p := w.serve(t, Env{"KAFKA_BROKERS": "127.0.0.1:1", "API_ADDR": "127.0.0.1:0"})
	_, body := p.Ask(t, "/metrics")
	served := map[string]bool{}
	for line := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ := strings.Cut(rest, " ")
			served[name] = true
		}
	}
	documented := map[string]bool{}
	for _, p := range pages(t) {
		for _, name := range metricName.FindAllString(p.text, -1) {
			base := name
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				base = strings.TrimSuffix(base, suffix)
			}
			documented[base] = documented[base] || p.path == "docs/metrics.md"
			// Gauges of what is not found yet have no series.
			if !served[base] && base != "bridge_ingest_lag" && !notMetrics[base] {
				t.Errorf("%s: there is no metric %s", p.path, name)
			}
		}
	}
	for name := range served {
		if strings.HasPrefix(name, "bridge_") && !documented[name] {
			t.Errorf("docs/metrics.md does not name %s", name)
		}
	}
}

// notMetrics look like metrics in the documentation and are none.
var notMetrics = map[string]bool{}
