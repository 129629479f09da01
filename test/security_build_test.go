package test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestBuildIsReproducible builds the program from two directories as `make build`
// does: the bytes are the same, so that anybody can tell that a binary comes from a
// commit.
func TestBuildIsReproducible(t *testing.T) {
	if raceEnabled {
		t.Skip("nothing of it runs in parallel")
	}
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(makefile), "$(GO) build -trimpath -ldflags") {
		t.Error("make build does not use -trimpath")
	}
	list := exec.Command("git", "ls-files", "-z", "--", "*.go", "*.lua", "go.mod", "go.sum", "cmd")
	list.Dir = ".."
	out, err := list.Output()
	if err != nil {
		t.Skipf("the sources cannot be listed: %v", err)
	}
	var built [2][]byte
	for i, name := range []string{"one", "another-place"} {
		dir := filepath.Join(t.TempDir(), name)
		for file := range strings.SplitSeq(strings.TrimRight(string(out), "\x00"), "\x00") {
			content, err := os.ReadFile(filepath.Join("..", file))
			if os.IsNotExist(err) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			to := filepath.Join(dir, file)
			if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to, content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		// A commit's checkouts carry the same stamp of it; these have none.
		build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-X main.version=test", "-o", "bridge", "./cmd/bridge")
		build.Dir = dir
		if said, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, said)
		}
		if built[i], err = os.ReadFile(filepath.Join(dir, "bridge")); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			version := exec.Command(filepath.Join(dir, "bridge"), "version")
			if said, err := version.Output(); err != nil || !strings.HasPrefix(string(said), "bridge test ") {
				t.Errorf("version says %q, %v", said, err)
			}
		}
	}
	if !bytes.Equal(built[0], built[1]) {
		t.Errorf("%d and %d bytes, which differ", len(built[0]), len(built[1]))
	}
	if home, err := os.Getwd(); err == nil && bytes.Contains(built[0], []byte(filepath.Dir(home))) {
		t.Error("the binary holds a path of the machine that it was built on")
	}
}

// TestDependenciesHaveReasons holds the list in docs/security.md to go.mod: each
// direct dependency has its reason, and no other is named.
func TestDependenciesHaveReasons(t *testing.T) {
	mod, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(string(mod), -1) {
		want = append(want, m[1])
	}
	doc, err := os.ReadFile("../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok1 := strings.Cut(string(doc), "<!-- dependencies: begin -->")
	table, _, ok2 := strings.Cut(rest, "<!-- dependencies: end -->")
	if !ok1 || !ok2 {
		t.Fatal("docs/security.md has no list of dependencies")
	}
	var have []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (.+) \\|$").FindAllStringSubmatch(table, -1) {
		have = append(have, m[1])
		if len(strings.Fields(m[2])) < 3 {
			t.Errorf("%s has no reason: %q", m[1], m[2])
		}
	}
	slices.Sort(want)
	slices.Sort(have)
	if fmt.Sprint(want) != fmt.Sprint(have) {
		t.Errorf("go.mod has\n%s\nthe list has\n%s", strings.Join(want, "\n"), strings.Join(have, "\n"))
	}
}
