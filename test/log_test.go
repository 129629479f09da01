package test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"delaybridge/test/servers"
)

// logFields are the fields that the documentation lists, with their types.
func logFields(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("../docs/observe.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "<!-- log fields: begin -->")
	table, _, ok := strings.Cut(table, "<!-- log fields: end -->")
	if !ok {
		t.Fatal("docs/observe.md has no table of log fields")
	}
	fields := map[string]string{}
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) == 5 && strings.Contains(cells[1], "`") {
			fields[strings.Trim(cells[1], " `")] = strings.TrimSpace(cells[2])
		}
	}
	return fields
}

// fieldTypes says as what each of zap's fields is written.
var fieldTypes = map[string]string{
	"String": "text", "Stringer": "text", "NamedError": "text", "Duration": "number", "Bool": "boolean", "Strings": "list",
	"Int": "number", "Int32": "number", "Int64": "number", "Uint64": "number", "Float64": "number", "Time": "text",
}

// TestLogFieldsAreThoseOfTheDocumentation looks at every zap field in the source.
func TestLogFieldsAreThoseOfTheDocumentation(t *testing.T) {
	t.Parallel()
	documented := logFields(t)
	used := map[string]bool{"error": true} // zap.Error
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if path != ".." && slices.Contains([]string{"test", "bin", "dist", "deploy", ".git", ".ci", "testdata"}, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Logf("%s is left out: %v", path, err)
			return nil
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			f, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || len(call.Args) < 2 {
				return true
			}
			if pkg, ok := f.X.(*ast.Ident); !ok || pkg.Name != "zap" {
				return true
			}
			kind, ok := fieldTypes[f.Sel.Name]
			if !ok {
				t.Errorf("%s: zap.%s: its type is not plain", path, f.Sel.Name)
				return true
			}
			name, ok := call.Args[0].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: a field's name is no plain text", path)
				return true
			}
			field, _ := strconv.Unquote(name.Value)
			used[field] = true
			if documented[field] != kind {
				t.Errorf("%s: field %q is written as %s, the documentation says %q", path, field, kind, documented[field])
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for field := range documented {
		if !used[field] {
			t.Errorf("the documentation lists %q, which nothing writes", field)
		}
	}
}

// TestLogsAreBounded has a busy bridge with all sorts of trouble: what it says does
// not grow with the messages, each line is JSON with known fields, and none holds a
// payload.
func TestLogsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.serve(t, Env{"RETRY_BASE": "20ms", "RETRY_MAX": "100ms", "MAX_ATTEMPTS": "100", "BATCH": "20"})
	const payload = "this-is-the-payload"
	send := func(round, n int) {
		for i := range n {
			id := fmt.Sprintf("Bridge-Id: %d-%d", round, i)
			publish(t, w.js, "bridge.schedule", payload, "Bridge-Target: nats://orders.a", "Bridge-Delay: 20ms", id)
			publish(t, w.js, "bridge.schedule", payload, "Bridge-Target: nats://orders.a", "Bridge-Delay: 5") // refused
			if i%10 == 0 {
				publish(t, w.js, "bridge.schedule", payload, "Bridge-Target: nats://nobody.holds.this", "Bridge-Delay: 0s", "Bridge-Expires-After: 1h")
			}
		}
	}
	lines := func() int { return strings.Count(p.Output(), "\n") }
	send(1, 20)
	w.table.Await(t, "1-19")
	few := lines()
	send(2, 300)
	w.table.Await(t, "2-299")
	// More of the same is nothing new: another refusal in ten seconds is.
	if many := lines(); many > few+10 {
		t.Errorf("%d lines after 20 rounds, %d after 320", few, many)
	}
	w.redis.Kill()
	p.Await(t, "does not answer")
	w.redis.Start(t)
	w.nats.Stop()
	p.Await(t, "disconnected from NATS")
	w.nats.Start(t)
	p.Await(t, "reconnected to NATS")
	p.Signal(syscall.SIGTERM)
	p.Exit(t)

	known := logFields(t)
	all := strings.Split(strings.TrimSpace(p.Output()), "\n")
	if len(all) > 100 {
		t.Errorf("%d lines", len(all))
	}
	if !slices.ContainsFunc(all, func(l string) bool { return strings.Contains(l, "request refused and kept") }) ||
		!slices.ContainsFunc(all, func(l string) bool { return strings.Contains(l, "target does not take messages") }) {
		t.Error("there was no trouble")
	}
	for _, line := range all {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Errorf("no JSON: %q: %v", line, err)
			continue
		}
		for name, value := range fields {
			if slices.Contains([]string{"level", "time", "msg"}, name) {
				continue
			}
			kind := "text"
			switch value.(type) {
			case float64:
				kind = "number"
			case bool:
				kind = "boolean"
			case []any:
				kind = "list"
			}
			if known[name] != kind {
				t.Errorf("field %q is a %s, known as %q: %s", name, kind, known[name], line)
			}
		}
		if strings.Contains(line, payload) {
			t.Errorf("a payload: %s", line)
		}
	}
	if !servers.Eventually(func() bool { ended, _ := p.Ended(); return ended }) {
		t.Error("it has not ended")
	}
}
