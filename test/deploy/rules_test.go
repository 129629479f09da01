package deploy

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"sigs.k8s.io/yaml"
)

const rulesFile = deployDir + "/prometheus/rules.yaml"

// ruleTests is what we use of the file format of "promtool test rules".
type ruleTests struct {
	RuleFiles          []string       `json:"rule_files"`
	EvaluationInterval model.Duration `json:"evaluation_interval"`
	Tests              []struct {
		Name        string         `json:"name"`
		Interval    model.Duration `json:"interval"`
		InputSeries []struct {
			Series string `json:"series"`
			Values string `json:"values"`
		} `json:"input_series"`
		AlertRuleTest []struct {
			AlertName string         `json:"alertname"`
			EvalTime  model.Duration `json:"eval_time"`
			ExpAlerts []struct {
				ExpLabels      map[string]string `json:"exp_labels"`
				ExpAnnotations map[string]string `json:"exp_annotations"`
			} `json:"exp_alerts"`
		} `json:"alert_rule_test"`
	} `json:"tests"`
}

// TestAlerts has Prometheus's own rule manager evaluate the alerts on the series
// of rules_test.yaml, every minute, and compares what fires.
func TestAlerts(t *testing.T) {
	text, err := os.ReadFile(deployDir + "/prometheus/rules_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file ruleTests
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		t.Fatal(err)
	}
	fired := map[string]bool{}
	for _, test := range file.Tests {
		t.Run(test.Name, func(t *testing.T) {
			load := "load " + test.Interval.String() + "\n"
			for _, s := range test.InputSeries {
				load += "  " + s.Series + " " + s.Values + "\n"
			}
			store := promqltest.LoadedStorage(t, load)
			defer func() { _ = store.Close() }()
			engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
			m := rules.NewManager(&rules.ManagerOptions{
				QueryFunc: rules.EngineQueryFunc(engine, store), AppendableV2: store, Queryable: store,
				NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
			})
			groups, errs := m.LoadGroups(time.Minute, labels.EmptyLabels(), "", nil, false, rulesFile)
			if errs != nil {
				t.Fatal(errs)
			}
			last := time.Duration(0)
			for _, a := range test.AlertRuleTest {
				last = max(last, time.Duration(a.EvalTime))
			}
			for at := time.Duration(0); at <= last; at += time.Duration(file.EvaluationInterval) {
				for _, g := range groups {
					g.Eval(t.Context(), time.Unix(0, 0).Add(at))
					for _, r := range g.Rules() {
						if err := r.LastError(); err != nil {
							t.Fatalf("%s at %v: %v", r.Name(), at, err)
						}
					}
				}
				for _, a := range test.AlertRuleTest {
					if time.Duration(a.EvalTime) != at {
						continue
					}
					var want []string
					for _, e := range a.ExpAlerts {
						want = append(want, describe(e.ExpLabels, e.ExpAnnotations))
						fired[a.AlertName] = true
					}
					slices.Sort(want)
					if got := firing(groups, a.AlertName); !slices.Equal(got, want) {
						t.Errorf("%s at %v:\n got %s\nwant %s", a.AlertName, at, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
					}
				}
			}
		})
	}
	for _, alert := range alerts(t) {
		if !fired[alert.Alert] {
			t.Errorf("no test in rules_test.yaml has %s fire", alert.Alert)
		}
	}
}

// firing returns the alerts of one rule that fire, sorted.
func firing(groups map[string]*rules.Group, name string) (got []string) {
	for _, g := range groups {
		for _, r := range g.Rules() {
			alert, ok := r.(*rules.AlertingRule)
			if !ok || alert.Name() != name {
				continue
			}
			for _, a := range alert.ActiveAlerts() {
				if a.State != rules.StateFiring {
					continue
				}
				l := a.Labels.Map()
				delete(l, "alertname")
				got = append(got, describe(l, a.Annotations.Map()))
			}
		}
	}
	slices.Sort(got)
	return got
}

func describe(lbls, annotations map[string]string) string {
	var b strings.Builder
	for _, m := range []map[string]string{lbls, annotations} {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(&b, "%s=%q ", k, m[k])
		}
	}
	return b.String()
}

// alerts are the rules of rules.yaml.
func alerts(t testing.TB) (all []rulefmt.Rule) {
	t.Helper()
	groups, errs := rulefmt.ParseFile(rulesFile, false, model.UTF8Validation, parser.NewParser(parser.Options{}), promslog.NewNopLogger())
	if errs != nil {
		t.Fatal(errs)
	}
	for _, g := range groups.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// TestAlertsAreComplete holds each alert to what people who are woken by it need:
// how bad it is, what has happened, and where it stands what to do. It holds its
// expression to the metrics that the bridge has.
func TestAlertsAreComplete(t *testing.T) {
	anchors := runbookAnchors(t)
	for _, a := range alerts(t) {
		if s := a.Labels["severity"]; s != "critical" && s != "warning" && s != "info" {
			t.Errorf("%s has the severity %q", a.Alert, s)
		}
		for _, k := range []string{"summary", "description", "runbook_url"} {
			if a.Annotations[k] == "" {
				t.Errorf("%s has no %s", a.Alert, k)
			}
		}
		file, anchor, _ := strings.Cut(a.Annotations["runbook_url"], "#")
		if file != "docs/operations.md" || !anchors[anchor] || anchor != strings.ToLower(a.Alert) {
			t.Errorf("%s: there is no %s", a.Alert, a.Annotations["runbook_url"])
		}
		if a.For == 0 && !strings.Contains(a.Expr, "increase(") {
			t.Errorf("%s fires at the first look, and is no counter", a.Alert)
		}
		checkQuery(t, a.Alert, a.Expr)
		delete(anchors, anchor)
	}
	for anchor := range anchors {
		if strings.HasPrefix(anchor, "bridge") && !strings.Contains(anchor, "-") {
			t.Errorf("docs/operations.md#%s: there is no such alert", anchor)
		}
	}
}

var heading = regexp.MustCompile(`(?m)^#+ (.+)$`)

// runbookAnchors are the headings of docs/operations.md as links name them.
func runbookAnchors(t testing.TB) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(deployDir, "../docs/operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	anchors := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(string(text), -1) {
		name := strings.ToLower(strings.TrimSpace(m[1]))
		name = regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(name, "")
		anchors[strings.ReplaceAll(name, " ", "-")] = true
	}
	return anchors
}
