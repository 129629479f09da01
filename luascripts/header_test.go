package luascripts

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
)

// headers reads what a script's header promises, and numbers what its body uses.
var (
	firstLine   = regexp.MustCompile(`^-- ([a-z]+)\.lua: (.+)$`)
	stateChange = regexp.MustCompile(`^(\(none( \| [a-z]+)*\)|\([a-z]+( \| [a-z]+)*\)|[a-z]+) -> (\([a-z]+\)|[a-z]+)`)
	headerLine  = regexp.MustCompile(`^-- (KEYS|ARGV)\[(\d+)(\.\.\d+|\.\.\.)?\]  +\S`)
	bodyKey     = regexp.MustCompile(`KEYS\[(\w+)( \+ \d)?\]`)
	bodyArg     = regexp.MustCompile(`ARGV\[(\d+)\]`)
	bodyLoop    = regexp.MustCompile(`for i = (\d+), #ARGV, (\d+) do`)
	bodyItem    = regexp.MustCompile(`ARGV\[i( \+ (\d+))?\]`)
)

var counts = map[string]int{
	"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
}

// scriptFiles are the scripts of the queue. denied.lua is none: it asks Redis about
// its user, without the prelude, and knows nothing of keys.
func scriptFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.lua")
	if err != nil || len(files) < 2 {
		t.Fatalf("no scripts: %v %v", files, err)
	}
	return slices.DeleteFunc(files, func(f string) bool { return f == "prelude.lua" || f == "denied.lua" })
}

func TestHeaders(t *testing.T) {
	for _, file := range scriptFiles(t) {
		t.Run(file, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			header, body := splitHeader(string(text))
			for _, problem := range checkHeader(file, header, body) {
				t.Error(problem)
			}
		})
	}
}

// splitHeader cuts a script behind the comment block that it begins with.
func splitHeader(text string) (header []string, body string) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "--") {
			break
		}
		header = append(header, strings.TrimRight(line, "\n"))
	}
	for _, line := range header {
		text = text[len(line)+1:]
	}
	return header, text
}

// checkHeader says where a header and its body disagree.
func checkHeader(file string, header []string, body string) (problems []string) {
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if len(header) < 5 {
		return []string{"no header"}
	}
	first := firstLine.FindStringSubmatch(header[0])
	if first == nil || first[1]+".lua" != file {
		bad("first line %q, want \"-- %s: from -> to\"", header[0], file)
	} else if !stateChange.MatchString(first[2]) {
		bad("first line %q names no change of state", header[0])
	}
	text := strings.Join(header, "\n")
	for _, part := range []string{"\n--\n-- KEYS[1", "\n-- Returns  ", "\n-- Cost     "} {
		if !strings.Contains(text, part) {
			bad("no part %q", part)
		}
	}

	// What the header lists, and whether the numbers follow each other.
	listed := map[string][]int{}
	repeated, each := 0, 0 // the first of ARGV's items, and how many each has
	for n, line := range header {
		m := headerLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		kind, from := m[1], number(m[2])
		to := from
		if m[3] == "..." {
			repeated = from
			said := strings.Join(header[n:min(n+3, len(header))], " ")
			count := regexp.MustCompile(`(\w+) for each`).FindStringSubmatch(said)
			if count == nil || counts[count[1]] == 0 {
				bad("%q does not say how many each item has", line)
				continue
			}
			each = counts[count[1]]
			list, _, _ := strings.Cut(strings.SplitN(said, "]", 2)[1], ": "+count[0])
			if commas := strings.Count(list, ",") + 1; commas != each {
				bad("%q lists %d, and says %d", line, commas, each)
			}
			continue
		} else if m[3] != "" {
			to = number(m[3][2:])
		}
		for i := from; i <= to; i++ {
			listed[kind] = append(listed[kind], i)
		}
	}
	for kind, numbers := range listed {
		for i, n := range numbers {
			if n != i+1 {
				bad("%s are numbered %v", kind, numbers)
				break
			}
		}
	}
	if repeated > 0 && repeated != len(listed["ARGV"])+1 {
		bad("items begin at ARGV[%d], behind %d others", repeated, len(listed["ARGV"]))
	}

	// What the body uses.
	args := map[int]bool{}
	for _, m := range bodyArg.FindAllStringSubmatch(body, -1) {
		args[number(m[1])] = true
	}
	if used := sorted(args); !slices.Equal(used, listed["ARGV"]) {
		bad("the header has ARGV %v, the body uses %v", listed["ARGV"], used)
	}
	keys := map[int]bool{}
	for _, m := range bodyKey.FindAllStringSubmatch(body, -1) {
		if n, err := strconv.Atoi(m[1]); err == nil {
			keys[n] = true
			continue
		}
		// KEYS[lane] and KEYS[l] are one of the first three, KEYS[l + 3] of the next.
		low := 1
		if m[2] != "" {
			low += number(strings.TrimPrefix(m[2], " + "))
		}
		for n := low; n < low+3; n++ {
			keys[n] = true
		}
	}
	if used := sorted(keys); !slices.Equal(used, listed["KEYS"]) {
		bad("the header has KEYS %v, the body uses %v", listed["KEYS"], used)
	}
	loop := bodyLoop.FindStringSubmatch(body)
	switch {
	case loop == nil && repeated > 0:
		bad("the header has items, the body no loop over them")
	case loop != nil && (number(loop[1]) != repeated || number(loop[2]) != each):
		bad("the body loops from %s by %s, the header has items from %d by %d", loop[1], loop[2], repeated, each)
	}
	items := map[int]bool{}
	for _, m := range bodyItem.FindAllStringSubmatch(body, -1) {
		if m[2] == "" {
			m[2] = "0"
		}
		items[number(m[2])] = true
	}
	if used := sorted(items); len(used) != each || each > 0 && used[each-1] != each-1 {
		bad("the header has %d for each item, the body uses %v", each, used)
	}
	return problems
}

func number(s string) int {
	n, _ := strconv.Atoi(strings.TrimSpace(s))
	return n
}

func sorted(set map[int]bool) []int {
	var all []int
	for n := range set {
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

// TestHeaderCheck shows that the check sees what it is there for.
func TestHeaderCheck(t *testing.T) {
	text, err := os.ReadFile("ack.lua")
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{
		{"-- ack.lua: inflight", "-- ack.lua inflight"},
		{"ack.lua: inflight -> done", "nack.lua: inflight -> done"},
		{"inflight -> done", "settles"},
		{"-- ARGV[3]     window", "-- window"},
		{"-- KEYS[3]     tries", "-- KEYS[4]     tries"},
		{"-- Returns  ", "-- Gives    "},
		{"-- Cost  ", "-- Prize "},
		{"KEYS[5]", "KEYS[6]"},
		{"#ARGV, 2", "#ARGV, 3"},
		{"i = 4", "i = 3"},
		{"ARGV[i + 1]", "ARGV[i + 2]"},
		{"two for each", "three for each"},
		{"call('HLEN', KEYS[3]) > 0 then call('HDEL', KEYS[3]", "call('HLEN', KEYS[2]) > 0 then call('HDEL', KEYS[2]"},
		{"allowed_ms(ARGV[1]", "allowed_ms(''"},
	} {
		// The body's, where a text stands in both.
		broken := string(text)
		if at := strings.LastIndex(broken, change[0]); at < 0 {
			t.Errorf("%q is not there to be changed", change[0])
			continue
		} else {
			broken = broken[:at] + change[1] + broken[at+len(change[0]):]
		}
		header, body := splitHeader(broken)
		if len(checkHeader("ack.lua", header, body)) == 0 {
			t.Errorf("nothing was found wrong when %q is %q", change[0], change[1])
		}
	}
}

// TestScriptsAreEmbedded holds the files against the scripts that run, and
// against the Go methods, which have their names.
func TestScriptsAreEmbedded(t *testing.T) {
	// Two transitions are operations of Store, and a page is part of the lists.
	methods := map[string]string{"schedule": "Store", "cancel": "Store", "reject": "Store", "page": "List", "stray": "Repair"}
	loaded := reflect.ValueOf(newScripts(shebang))
	files := scriptFiles(t)
	if loaded.NumField() != len(files) {
		t.Errorf("%d scripts are loaded, there are %d files", loaded.NumField(), len(files))
	}
	for _, file := range files {
		name := strings.TrimSuffix(file, ".lua")
		field := loaded.FieldByName(name)
		if !field.IsValid() {
			t.Errorf("%s is not among the scripts", file)
			continue
		}
		if got := field.FieldByName("name").String(); got != name {
			t.Errorf("%s calls itself %q in errors", file, got)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		want := redis.NewScript(shebang + prelude + string(text)).Hash()
		if got := field.FieldByName("Script").Elem().FieldByName("hash").String(); got != want {
			t.Errorf("the script %s is not the text of %s behind the prelude", name, file)
		}
		method := methods[name]
		if method == "" {
			method = strings.ToUpper(name[:1]) + name[1:]
		}
		if _, ok := reflect.TypeFor[*Queue]().MethodByName(method); !ok {
			t.Errorf("%s has no method Queue.%s", file, method)
		}
	}
}
