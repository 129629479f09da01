package main

import (
	"strings"
	"testing"
)

func TestCount(t *testing.T) {
	for _, row := range []struct {
		about  string
		in     string
		want   []string // lines that must be there; the last one is the last line
		failed bool
	}{
		{"a parent does not count beside its subtests",
			`{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"run","Package":"p","Test":"TestA/two"}
{"Action":"pass","Package":"p","Test":"TestA/one"}
{"Action":"pass","Package":"p","Test":"TestA/two"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Elapsed":1.5}`,
			[]string{"ok   p  1.5s", "2 passed, 0 failed, 0 skipped"}, false},
		{"a slash in a subtest's name makes no test of its own",
			`{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/from_a/b_to_c/d"}
{"Action":"pass","Package":"p","Test":"TestA/from_a/b_to_c/d"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}`,
			[]string{"1 passed, 0 failed, 0 skipped"}, false},
		{"a skipped test is named with its reason",
			`{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: there is no Java\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}`,
			[]string{"skipped: p TestA: there is no Java", "0 passed, 0 failed, 1 skipped"}, false},
		{"a test on the in-process broker is named with the reason",
			`{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: Kafka: using the in-process broker (kfake), because there is no Java\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p"}`,
			[]string{"WARNING: not on Apache Kafka but on the in-process broker (kfake), because there is no Java:", "on kfake: p TestA", "1 passed, 0 failed, 0 skipped"}, false},
		{"a failed subtest counts once and shows what it said",
			`{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"output","Package":"p","Test":"TestA/one","Output":"    a_test.go:7: wrong\n"}
{"Action":"fail","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
			[]string{"    a_test.go:7: wrong", "failed: p TestA/one", "0 passed, 1 failed, 0 skipped"}, true},
		{"a package that does not build is one failure",
			`{"ImportPath":"p","Action":"build-output","Output":"p.go:1: undefined\n"}
{"ImportPath":"p","Action":"build-fail"}
{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}
{"Action":"fail","Package":"p","FailedBuild":"p"}`,
			[]string{"p.go:1: undefined", "failed: p (the package as a whole)", "0 passed, 1 failed, 0 skipped"}, true},
		{"a test that never ended has failed",
			`{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
			[]string{"failed: p TestA", "0 passed, 1 failed, 0 skipped"}, true},
		{"a package without tests is nothing",
			`{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Output":"?   \tp\t[no test files]\n"}
{"Action":"skip","Package":"p"}`,
			[]string{"0 passed, 0 failed, 0 skipped"}, false},
	} {
		t.Run(row.about, func(t *testing.T) {
			var out strings.Builder
			failed, err := count(strings.NewReader(row.in), &out)
			if err != nil || failed != row.failed {
				t.Errorf("failed = %v, %v; want %v", failed, err, row.failed)
			}
			lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			for i, want := range row.want {
				if !strings.Contains(out.String(), want+"\n") || i == len(row.want)-1 && lines[len(lines)-1] != want {
					t.Errorf("no line %q in\n%s", want, out.String())
				}
			}
		})
	}
}
