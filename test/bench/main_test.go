package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain lets the test binary be the servers and workers that a run starts.
func TestMain(m *testing.M) {
	if mode := os.Getenv(modeVariable); mode != "" {
		if err := runMode(mode, os.Args[1:]); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Everything is measured once with small counts, so that nothing of it rots.
func TestQuickRun(t *testing.T) {
	dir := t.TempDir()
	var stdout, stderr bytes.Buffer
	if err := run(t.Context(), []string{"-quick", "-out", dir, "-only", "^[^K]*$"}, &stdout, &stderr); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	for _, want := range []string{"| bridge |", "| bare loop |", "| asynq |", "| NATS schedules |", "drain, of the bare loop", "idle commands/s", "full path kfake"} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("there is no %q in the table:\n%s", want, stdout.String())
		}
	}
	var again bytes.Buffer
	if err := run(t.Context(), []string{"-from", filepath.Join(dir, "raw.jsonl")}, &again, &stderr); err != nil {
		t.Fatal(err)
	}
	if again.String() != stdout.String() {
		t.Errorf("the file that was written gives another table:\n%s", again.String())
	}
}
