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
			[]string{"p.go:1: undefined", "failed: p (the package as a whole)\np.go:1: undefined", "0 passed, 1 failed, 0 skipped"}, true},
		{"a test that never ended has failed",
			`{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
			[]string{"failed: p TestA", "0 passed, 1 failed, 0 skipped"}, true},
		{"a package without tests is nothing",
			`{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Output":"?   \tp\t[no test files]\n"}
{"Action":"skip","Package":"p"}`,
			[]string{"0 passed, 0 failed, 0 skipped"}, false},
		{"what tells why stands at the end, also of a test that failed long before",
			`{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:5: seed=7\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: got\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"        nothing\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    redis.go:9: redis-server said:\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"        Ready\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
			[]string{"failed: p TestA\n    a_test.go:5: seed=7\n    a_test.go:7: got\n        nothing\n    redis.go:9: redis-server said:\n        Ready\n0 passed, 1 failed, 0 skipped", "0 passed, 1 failed, 0 skipped"}, true},
		{"a parent that failed too says why, and is not counted",
			`{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"output","Package":"p","Test":"TestA/one","Output":"    a_test.go:7: wrong\n"}
{"Action":"fail","Package":"p","Test":"TestA/one"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:9: wrong too\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
			[]string{"beside a failed test, p TestA:\n    a_test.go:9: wrong too\nfailed: p TestA/one\n    a_test.go:7: wrong", "0 passed, 1 failed, 0 skipped"}, true},
		{"a test that ran out of time shows where it hangs",
			`{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"panic: test timed out after 2s\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"\trunning tests:\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"\t\tTestA (2s)\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"goroutine 1 [chan receive]:\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"testing.(*T).Run(0x3b5d42b7c008, {0x586444?, 0x0?}, 0x594128)\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"\t/usr/local/go/src/testing/testing.go:2109 +0x4e5\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"goroutine 5 [sleep]:\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"p.TestA(0x3b5d42b7c248)\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"\t/src/p/a_test.go:8 +0x6a\n"}
{"Action":"fail","Package":"p"}`,
			[]string{"failed: p TestA\npanic: test timed out after 2s\n\trunning tests:\n\t\tTestA (2s)\ngoroutine 5 [sleep]:\np.TestA(0x3b5d42b7c248)\n\t/src/p/a_test.go:8 +0x6a", "0 passed, 1 failed, 0 skipped"}, true},
		{"a race that was found is shown",
			`{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"==================\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"WARNING: DATA RACE\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"Read at 0x00c000018188 by goroutine 12:\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"  p.TestA.func1()\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"      /src/p/a_test.go:6 +0x33\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"==================\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    testing.go:1712: race detected during execution of test\n"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`,
			[]string{"failed: p TestA\nWARNING: DATA RACE\nRead at 0x00c000018188 by goroutine 12:\n  p.TestA.func1()\n      /src/p/a_test.go:6 +0x33\n    testing.go:1712: race detected during execution of test", "0 passed, 1 failed, 0 skipped"}, true},
	} {
		t.Run(row.about, func(t *testing.T) {
			var out strings.Builder
			failed, err := count(strings.NewReader(row.in), &out, nil)
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

// TestWhyIsShort has one test say far too much.
func TestWhyIsShort(t *testing.T) {
	output := []string{"    a_test.go:1: seed=7\n"}
	for range 1000 {
		output = append(output, "    a_test.go:2: "+strings.Repeat("x", 1000)+"\n")
	}
	output = append(output, "    a_test.go:3: the end\n")
	lines := why(output, whyLines)
	if len(lines) != whyLines || lines[0] != "    a_test.go:1: seed=7" || lines[len(lines)-1] != "    a_test.go:3: the end" {
		t.Errorf("%d lines: %.400q", len(lines), lines)
	}
	if said := strings.Join(lines, "\n"); len(said) > whyBytes {
		t.Errorf("%d bytes", len(said))
	}
}
