package deploy

import (
	"encoding/json"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql/parser"
)

// target are the labels that Prometheus puts to all that it scrapes.
var target = map[string]bool{"namespace": true, "job": true, "instance": true, "pod": true}

// checkQuery parses a query, and holds its metrics and labels to those that a
// running bridge has.
func checkQuery(t testing.TB, where, query string) {
	t.Helper()
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v\n%s", where, err, query)
		return
	}
	has := exposed(t)
	known := maps.Clone(target)
	known["le"] = true
	var grouped []string
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.VectorSelector:
			series := has[n.Name]
			if len(series) == 0 {
				t.Errorf("%s: the bridge has no metric %q\n%s", where, n.Name, query)
			}
			for _, s := range series {
				for k := range s {
					known[k] = true
				}
			}
			for _, m := range n.LabelMatchers {
				// Sources are the installation's own: their values are not asked for.
				if m.Name == model.MetricNameLabel || target[m.Name] || m.Name == "source" && anyHas(series, "source") {
					continue
				}
				if !slices.ContainsFunc(series, func(s map[string]string) bool { return m.Matches(s[m.Name]) && s[m.Name] != "" }) {
					t.Errorf("%s: no series of %s has %s\n%s", where, n.Name, m, query)
				}
			}
		case *parser.AggregateExpr:
			grouped = append(grouped, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				grouped = append(grouped, n.VectorMatching.MatchingLabels...)
			}
		case *parser.Call:
			if n.Func.Name == "label_replace" {
				known[n.Args[1].(*parser.StringLiteral).Val] = true
			}
		}
		return nil
	})
	for _, g := range grouped {
		if !known[g] {
			t.Errorf("%s: nothing in it has a label %q\n%s", where, g, query)
		}
	}
}

func anyHas(series []map[string]string, label string) bool {
	return slices.ContainsFunc(series, func(s map[string]string) bool { return s[label] != "" })
}

// panel is what we look at in a panel of Grafana.
type panel struct {
	ID          int
	Title, Type string
	Description string
	Panels      []panel
	GridPos     struct{ H, W, X, Y int }
	FieldConfig struct{ Defaults struct{ Unit string } }
	Targets     []struct{ Expr, LegendFormat, RefID string }
}

// TestDashboard parses each query of the dashboard, holds it to the metrics of a
// running bridge, and makes sure that none of them is missing.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(deployDir + "/grafana/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		UID, Title string
		Panels     []panel
		Templating struct {
			List []struct {
				Name, Type string
				Query      json.RawMessage
			}
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	if d.UID == "" || d.Title == "" {
		t.Error("it has no uid, or no title")
	}
	var names []string
	for _, v := range d.Templating.List {
		names = append(names, v.Name)
	}
	for _, want := range []string{"datasource", "namespace", "job", "sink"} {
		if !slices.Contains(names, want) {
			t.Errorf("it has no variable %s", want)
		}
	}
	grafana := strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h", "$__interval", "1m",
		`"$namespace"`, `".*"`, `"$job"`, `".*"`, `"$sink"`, `".*"`)
	used, ids := map[string]bool{}, map[int]bool{}
	var look func(panels []panel)
	look = func(panels []panel) {
		for _, p := range panels {
			if ids[p.ID] {
				t.Errorf("%s: the id %d is there twice", p.Title, p.ID)
			}
			ids[p.ID] = true
			if p.GridPos.W == 0 || p.GridPos.X+p.GridPos.W > 24 {
				t.Errorf("%s: is not on the grid: %+v", p.Title, p.GridPos)
			}
			look(p.Panels)
			if p.Type == "row" {
				continue
			}
			if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
				t.Errorf("panel %d %q has no title, description, unit or query", p.ID, p.Title)
			}
			for _, q := range p.Targets {
				query := grafana.Replace(q.Expr)
				if strings.Contains(query, "$") {
					t.Errorf("%s: a variable that there is not: %s", p.Title, query)
				}
				for _, v := range []string{"namespace", "job"} {
					if !strings.Contains(q.Expr, v+`=~"$`+v+`"`) {
						t.Errorf("%s: does not ask for the %s: %s", p.Title, v, q.Expr)
					}
				}
				checkQuery(t, p.Title, query)
				for name := range exposed(t) {
					if strings.Contains(q.Expr, name+"{") {
						used[name] = true
					}
				}
			}
		}
	}
	look(d.Panels)
	for _, name := range slices.Sorted(maps.Keys(exposed(t))) {
		base := strings.TrimSuffix(strings.TrimSuffix(name, "_count"), "_sum")
		if strings.HasPrefix(name, "bridge_") && !used[name] && !used[base+"_bucket"] {
			t.Errorf("the dashboard does not show %s", name)
		}
	}
}

// TestQueueGaugesAreNotSummed holds alerts and dashboard to the max of what is the
// same in every process.
func TestQueueGaugesAreNotSummed(t *testing.T) {
	check := func(where, query string) {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
		if err != nil {
			t.Errorf("%s: %v", where, err)
			return
		}
		parser.Inspect(expr, func(n parser.Node, path []parser.Node) error {
			v, ok := n.(*parser.VectorSelector)
			if !ok || !slices.Contains([]string{"bridge_pending", "bridge_pending_far", "bridge_inflight", "bridge_overdue_seconds", "bridge_dead", "bridge_redis_memory_ratio"}, v.Name) {
				return nil
			}
			for i := len(path) - 1; i >= 0; i-- {
				if a, ok := path[i].(*parser.AggregateExpr); ok {
					if a.Op != parser.MAX {
						t.Errorf("%s: %s is taken by %s first: %s", where, v.Name, a.Op, query)
					}
					return nil
				}
			}
			t.Errorf("%s: %s is there once for each process: %s", where, v.Name, query)
			return nil
		})
	}
	for _, a := range alerts(t) {
		check(a.Alert, a.Expr)
	}
	text, err := os.ReadFile(deployDir + "/grafana/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct{ Panels []panel }
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		for _, p := range append(p.Panels, p) {
			for _, q := range p.Targets {
				check(p.Title, strings.NewReplacer("$__rate_interval", "5m", "$__range", "1h").Replace(q.Expr))
			}
		}
	}
}
