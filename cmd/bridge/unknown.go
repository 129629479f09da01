package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// serviceLink matches what Kubernetes sets for a Service called bridge, or
// bridge-something.
var serviceLink = regexp.MustCompile(`^BRIDGE_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$`)

// unknownVariables returns a warning for each variable of ours in the
// environment that no setting reads, with the nearest name that one does.
func unknownVariables(environ []string, table []*setting) []string {
	var names []string
	for _, r := range table {
		names = append(names, r.Name)
		if r.FileName != "" {
			names = append(names, r.FileName)
		}
	}
	var warnings []string
	links := 0
	for _, e := range slices.Sorted(slices.Values(environ)) {
		name, _, _ := strings.Cut(e, "=")
		switch {
		case !strings.HasPrefix(name, prefix+"_"), slices.Contains(names, name):
		case serviceLink.MatchString(name):
			links++
		default:
			warnings = append(warnings, fmt.Sprintf("%s is set, but nothing reads it; the nearest setting is %s", name, nearest(name, names)))
		}
	}
	if links > 0 {
		warnings = append(warnings, fmt.Sprintf(
			"%d variables such as BRIDGE_PORT are set that nothing reads; they look like Kubernetes service links (enableServiceLinks: false leaves them out)", links))
	}
	return warnings
}

// nearest returns the name with the fewest edits to s.
func nearest(s string, names []string) string {
	return slices.MinFunc(names, func(a, b string) int { return editDistance(s, a) - editDistance(s, b) })
}

// editDistance counts the insertions, deletions and replacements of one byte
// that turn a into b.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
