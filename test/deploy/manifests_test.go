package deploy

import (
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write what is made from something else: the plain manifests, and the chart's copies of rules and dashboard")

// plain are the manifests in deploy/k8s, made from the chart: the values, and
// which of its templates.
var plain = []struct {
	file, values string
	templates    []string
	head         string
}{
	{
		"delaybridge.yaml", ``,
		[]string{"serviceaccount.yaml", "configmap.yaml", "deployment.yaml", "service.yaml", "poddisruptionbudget.yaml"},
		`# The bridge, two pods that do both, on NATS. Set the addresses in the ConfigMap and
# the image in the Deployment, then: kubectl apply -k deploy/k8s
`,
	},
	{
		"networkpolicy.yaml", `networkPolicy: {enabled: true}`, []string{"networkpolicy.yaml"},
		`# What may connect to the pods, and where they may connect to.
`,
	},
	{
		"monitoring.yaml", `{serviceMonitor: {enabled: true}, prometheusRule: {enabled: true}}`,
		[]string{"servicemonitor.yaml", "prometheusrule.yaml"},
		`# For the Prometheus Operator: what to scrape, and the alerts.
`,
	},
	{
		"keda.yaml", `keda: {enabled: true, nats: {enabled: true}, prometheus: {enabled: true}}`, []string{"scaledobject.yaml"},
		`# For KEDA. Take "replicas" out of the Deployment, which is KEDA's then.
`,
	},
}

// TestCopies holds the chart's files to being those that stand beside it: a chart
// cannot read what is outside its folder. It stands first, as -update goes on with it.
func TestCopies(t *testing.T) {
	for _, c := range []struct{ from, to string }{
		{"prometheus/rules.yaml", "helm/delaybridge/files/rules.yaml"},
		{"grafana/dashboard.json", "helm/delaybridge/files/dashboard.json"},
	} {
		text, err := os.ReadFile(filepath.Join(deployDir, c.from))
		if err != nil {
			t.Fatal(err)
		}
		same(t, filepath.Join(deployDir, c.to), string(text))
	}
}

// TestPlainManifests holds deploy/k8s to being what the chart makes.
func TestPlainManifests(t *testing.T) {
	c := loadChart(t)
	for _, p := range plain {
		t.Run(p.file, func(t *testing.T) {
			texts, err := render(c, p.values)
			if err != nil {
				t.Fatal(err)
			}
			var docs []string
			for _, name := range p.templates {
				for _, doc := range documents(texts[name]) {
					docs = append(docs, withoutHelm(doc))
				}
			}
			got := p.head + "# Made from deploy/helm/delaybridge: change that, and then\n# (cd test/deploy && go test -run 'PlainManifests|Copies' -update)\n" + strings.Join(docs, "---\n")
			same(t, filepath.Join(deployDir, "k8s", p.file), got)
		})
	}
}

// withoutHelm takes out the labels that say that Helm manages it, which it does not.
func withoutHelm(doc string) string {
	var lines []string
	for _, l := range strings.Split(doc, "\n") {
		if s := strings.TrimSpace(l); !strings.HasPrefix(s, "app.kubernetes.io/managed-by:") && !strings.HasPrefix(s, "helm.sh/chart:") {
			lines = append(lines, l)
		}
	}
	return strings.Join(lines, "\n")
}

// same compares a file with what it should hold, or writes that with -update.
func same(t testing.TB, path, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what it is made from any more: (cd test/deploy && go test -run 'PlainManifests|Copies' -update)", path)
	}
}

// TestManifestsAreStrict decodes what is in deploy/k8s, the examples too.
func TestManifestsAreStrict(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(deployDir, "k8s/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Glob(filepath.Join(deployDir, "k8s/examples/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{}
	for _, file := range append(files, examples...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		for _, doc := range documents(string(text)) {
			o := decode(t, file, doc)
			o.check(t)
			kinds[strings.Join(strings.Fields(o.id)[:2], " ")] = true
		}
	}
	for _, kind := range []string{"apps/v1 Deployment", "batch/v1 CronJob", "policy/v1 PodDisruptionBudget", "networking.k8s.io/v1 NetworkPolicy",
		"monitoring.coreos.com/v1 ServiceMonitor", "monitoring.coreos.com/v1 PrometheusRule", "keda.sh/v1alpha1 ScaledObject"} {
		if !kinds[kind] {
			t.Errorf("there is no %s among %v", kind, slices.Sorted(maps.Keys(kinds)))
		}
	}
}
