package main

import (
	"fmt"
	"strings"
	"testing"
)

func TestAgain(t *testing.T) {
	fail := func(pkg, test, says string) string {
		return fmt.Sprintf(`{"Action":"run","Package":%[1]q,"Test":%[2]q}
{"Action":"output","Package":%[1]q,"Test":%[2]q,"Output":"    a_test.go:7: %[3]s\n"}
{"Action":"fail","Package":%[1]q,"Test":%[2]q}
{"Action":"fail","Package":%[1]q}
{"Action":"broken"}
`, pkg, test, says)
	}
	for _, row := range []struct {
		about, in string
		passes    bool   // the second time
		asked     string // what is run again
		last      string
		failed    bool
	}{
		{"what passes the second time is flaky", fail("p", "TestA", "too slow"), true, "p [TestA];", "1 passed, 0 failed, 0 skipped", false},
		{"what fails the second time has failed", fail("p", "TestA", "wrong"), false, "p [TestA];", "0 passed, 1 failed, 0 skipped", true},
		{"of a subtest its test is run again", `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"run","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`, true, "p [TestA];", "1 passed, 0 failed, 0 skipped", false},
		{"a proof is not asked again", fail("p", "TestChaos", "lost 1"), true, "", "0 passed, 1 failed, 0 skipped", true},
		{"nor is anything beside it", fail("p", "TestCrashMatrix", "lost 1") + fail("q", "TestB", "x"), true, "", "0 passed, 2 failed, 0 skipped", true},
		{"a data race is none that may pass", fail("p", "TestA", "WARNING: DATA RACE"), true, "", "0 passed, 1 failed, 0 skipped", true},
		{"a panic is none either", fail("p", "TestA", "panic: oh"), true, "", "0 passed, 1 failed, 0 skipped", true},
		{"many failures are no coincidence", fail("p", "TestA", "x") + fail("q", "TestB", "x") + fail("r", "TestC", "x") + fail("s", "TestD", "x"),
			true, "", "0 passed, 4 failed, 0 skipped", true},
		{"a test that never ended is not run again", `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"fail","Package":"p"}`, true, "", "0 passed, 1 failed, 0 skipped", true},
		{"a package that does not build is not either", `{"Action":"fail","Package":"p","FailedBuild":"p"}`, true, "", "0 passed, 1 failed, 0 skipped", true},
		{"a run that fails without a test that did", `{"Action":"broken"}`, true, "", "0 passed, 1 failed, 0 skipped", true},
	} {
		t.Run(row.about, func(t *testing.T) {
			var out strings.Builder
			asked := ""
			failed, err := count(strings.NewReader(row.in), &out, func(pkg string, tests []string) bool {
				asked += fmt.Sprint(pkg, " ", tests, ";")
				return row.passes
			})
			if err != nil || failed != row.failed || asked != row.asked || !strings.HasSuffix(strings.TrimSpace(out.String()), row.last) {
				t.Errorf("failed %v, %v; asked %q; it says\n%s", failed, err, asked, out.String())
			}
			if says := strings.Contains(out.String(), "flaky: p TestA"); says != (row.asked != "" && row.passes) {
				t.Errorf("it says\n%s", out.String())
			}
		})
	}
}
