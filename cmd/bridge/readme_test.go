package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of docs/settings.md anew")

// TestReadmeListsTheSettings holds the table of docs/settings.md to the settings:
//
//	go test ./cmd/bridge -run Readme -update
func TestReadmeListsTheSettings(t *testing.T) {
	clearSettings(t)
	const path, begin, end = "../../docs/settings.md", "<!-- settings: begin -->\n", "<!-- settings: end -->\n"
	readme, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok1 := strings.Cut(string(readme), begin)
	table, tail, ok2 := strings.Cut(rest, end)
	if !ok1 || !ok2 {
		t.Fatalf("%s has no %q and %q", path, begin, end)
	}
	want := settingsTable()
	if table == want {
		return
	}
	if !*update {
		t.Fatalf("the table of settings in %s is not that of the program; go test ./cmd/bridge -run Readme -update writes it", path)
	}
	if err := os.WriteFile(path, []byte(head+begin+want+end+tail), 0o644); err != nil {
		t.Fatal(err)
	}
}

func settingsTable() string {
	var b strings.Builder
	b.WriteString("| setting | default | what it is |\n|---|---|---|\n")
	escape := strings.NewReplacer("|", "\\|", "<", "&lt;", "*", "\\*")
	for _, r := range defaultSettings().table() {
		def := ""
		if r.Default != "" {
			def = "`" + r.Default + "`"
		}
		name := "`" + r.Name + "`"
		if r.FileName != "" {
			name += " (or `_FILE`)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, def, escape.Replace(r.Doc))
	}
	return b.String()
}
