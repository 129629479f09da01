// Package deploy checks what is in deploy/ with the libraries of the programs that
// read it: Helm, Kubernetes, Prometheus, Docker. It runs neither a cluster nor a
// container.
package deploy

import (
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/yaml"
)

// deployDir is what is checked.
const deployDir = "../../deploy"

func loadChart(t testing.TB) *chart.Chart {
	t.Helper()
	c, err := loader.Load(filepath.Join(deployDir, "helm/delaybridge"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// render returns the text of each template, as "helm install delaybridge" in the
// namespace delaybridge would make it, by the template's file name.
func render(c *chart.Chart, values string) (map[string]string, error) {
	var v map[string]any
	if err := yaml.Unmarshal([]byte(values), &v); err != nil {
		return nil, err
	}
	release := chartutil.ReleaseOptions{Name: "delaybridge", Namespace: "delaybridge", Revision: 1, IsInstall: true}
	// It checks the values against the schema, too.
	all, err := chartutil.ToRenderValues(c, v, release, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	e := engine.Engine{Strict: true}
	out, err := e.Render(c, all)
	if err != nil {
		return nil, err
	}
	texts := map[string]string{}
	for name, text := range out {
		texts[path.Base(name)] = text
	}
	return texts, nil
}

// documents splits a stream of YAML documents, without the empty ones.
func documents(text string) (docs []string) {
	for d := range strings.SplitSeq("\n"+text, "\n---\n") {
		var v any
		if err := yaml.Unmarshal([]byte(d), &v); err == nil && v == nil {
			continue
		}
		docs = append(docs, strings.Trim(d, "\n")+"\n")
	}
	return docs
}

// valueSets are the ways to install the chart that are checked.
var valueSets = map[string]string{
	"the defaults": ``,
	"roles apart":  `rolesApart: true`,
	"Kafka alone, with everything by Secrets": `
image: {repository: registry.example/bridge, digest: "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", pullSecrets: [pull]}
redis: {urlSecret: {name: redis}, mode: cluster, strict: true, waitReplicas: 1}
nats: {url: ""}
kafka:
  brokers: "kafka-0:9093,kafka-1:9093"
  sasl: {mechanism: scram-sha-512, username: bridge, passwordSecret: {name: kafka-user}}
  tls: {enable: true, secret: kafka-tls, cert: tls.crt, key: tls.key}
settings: {MAX_DELAY: 30d, ROUTES: "kafka://orders-in-5m -> kafka://orders delay=5m", MAX_PENDING: "5000000"}
`,
	"both brokers, NATS by creds": `
nats: {urlSecret: {name: nats}, credsSecret: {name: nats}, tls: {secret: nats-tls, cert: tls.crt, key: tls.key}}
kafka: {brokers: "kafka:9092"}
`,
	"Redis by TLS, its password apart": `redis: {url: "rediss://bridge@redis:6380/0", passwordSecret: {name: redis}, tls: {secret: redis-tls, cert: tls.crt, key: tls.key}}`,
	"NATS by NKey":                     `nats: {nkeySecret: {name: nats, key: seed}}`,
	"the API":                          `api: {enabled: true, tokenSecret: {name: bridge-api}, service: {annotations: {a: b}}}`,
	"monitored": `
serviceMonitor: {enabled: true, labels: {release: prometheus}}
prometheusRule: {enabled: true, labels: {release: prometheus}, runbook: "https://git.example/delaybridge/docs/operations.md", disabled: [BridgeLate]}
dashboard: {enabled: true}
`,
	"scaled by KEDA": `
kafka: {brokers: "kafka:9092"}
settings: {KAFKA_INGEST_TOPICS: "bridge.schedule, later"}
keda: {enabled: true, kafka: {enabled: true, authenticationRef: kafka}, nats: {enabled: true}, prometheus: {enabled: true}}
`,
	"scaled by KEDA, roles apart": `
rolesApart: true
keda: {enabled: true, minReplicas: 1, nats: {enabled: true}, prometheus: {enabled: true}}
`,
	"fenced in": `
api: {enabled: true, tokenSecret: {name: bridge-api}}
networkPolicy:
  enabled: true
  metricsFrom: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]
  egress: {redis: {ports: [6380], to: [{ipBlock: {cidr: 10.0.0.0/8}}]}, kafka: null}
  extraEgress: [{ports: [{port: 4317}]}]
`,
	"with all that can be put in": `
nameOverride: later
podLabels: {team: orders}
podAnnotations: {a: b}
deploymentAnnotations: {a: b}
nodeSelector: {kubernetes.io/arch: arm64}
tolerations: [{key: spot, operator: Exists}]
affinity: {nodeAffinity: {}}
priorityClassName: high
serviceAccount: {name: own, annotations: {eks.amazonaws.com/role-arn: "arn:aws:iam::1:role/bridge"}, automountToken: true}
metrics: {service: {annotations: {prometheus.io/scrape: "true"}}}
extraEnv: [{name: AWS_REGION, value: eu-west-1}]
extraEnvFrom: [{secretRef: {name: more}}]
extraVolumes: [{name: ca, configMap: {name: ca}}]
extraVolumeMounts: [{name: ca, mountPath: /etc/ca, readOnly: true}]
rollout: {maxSurge: 25%}
`,
	"with nothing that can be left out": `
serviceAccount: {create: false}
podDisruptionBudget: {enabled: false}
topologySpread: {enabled: false}
`,
}

// TestRendered decodes every object that the chart makes, strictly, and holds it
// to what must be true of it whatever the values are.
func TestRendered(t *testing.T) {
	c := loadChart(t)
	for _, name := range slices.Sorted(maps.Keys(valueSets)) {
		t.Run(name, func(t *testing.T) {
			texts, err := render(c, valueSets[name])
			if err != nil {
				t.Fatal(err)
			}
			seen := map[string]bool{}
			for _, file := range slices.Sorted(maps.Keys(texts)) {
				if !strings.HasSuffix(file, ".yaml") {
					continue
				}
				for _, doc := range documents(texts[file]) {
					o := decode(t, file, doc)
					if o.id == "" {
						continue
					}
					if seen[o.id] {
						t.Errorf("%s: %s is there twice", file, o.id)
					}
					seen[o.id] = true
					if o.namespace != "delaybridge" {
						t.Errorf("%s: %s is in the namespace %q", file, o.id, o.namespace)
					}
					o.check(t)
				}
			}
			checkTogether(t, texts)
		})
	}
}

// TestValues has wrong values refused, with a message that says where they are.
func TestValues(t *testing.T) {
	c := loadChart(t)
	for _, row := range []struct{ name, values, want string }{
		{"a misspelt value", `replica: 3`, "replica"},
		{"a misspelt value further in", `redis: {uri: "redis://x"}`, "uri"},
		{"no broker at all", `nats: {url: ""}`, "nothing to serve"},
		{"the tag latest", `image: {tag: latest}`, "tag"},
		{"no replica", `bridge: {replicas: 0}`, "replicas"},
		{"KEDA down to zero", `keda: {enabled: true, minReplicas: 0, nats: {enabled: true}}`, "minReplicas"},
		{"KEDA without a trigger", `keda: {enabled: true}`, "without a trigger"},
		{"KEDA without a trigger for the scheduler", `{rolesApart: true, keda: {enabled: true, nats: {enabled: true}}}`, "delaybridge-scheduler"},
		{"KEDA on Kafka without Kafka", `keda: {enabled: true, kafka: {enabled: true}}`, "kafka.brokers"},
		{"an API without a token", `api: {enabled: true}`, "tokenSecret"},
		{"two ways to sign in", `nats: {credsSecret: {name: a}, nkeySecret: {name: b}}`, "set one of them"},
		{"a setting that has a value of its own", `settings: {SHUTDOWN_TIMEOUT: 5m}`, "SHUTDOWN_TIMEOUT"},
		{"a setting with its prefix and in small letters", `settings: {max_delay: 30d}`, "max_delay"},
		{"a setting that is no string, which YAML may read otherwise", `settings: {MAX_PENDING: 1_000}`, "MAX_PENDING"},
		{"a mode that there is not", `redis: {mode: replicated}`, "mode"},
	} {
		t.Run(row.name, func(t *testing.T) {
			_, err := render(c, row.values)
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, want an error that names %q", err, row.want)
			}
		})
	}
}

// TestValuesAreExplained holds values.yaml to having a comment for each part.
func TestValuesAreExplained(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(deployDir, "helm/delaybridge/values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	paragraph := false // a comment or a line that has one above it, without a blank line between
	for i, line := range strings.Split(string(text), "\n") {
		switch {
		case line == "":
			paragraph = false
		case strings.HasPrefix(strings.TrimSpace(line), "#"):
			paragraph = true
		case line[0] != ' ' && !paragraph && !slices.Contains([]string{
			"image:", "redis:", "nats:", "kafka:", "serviceAccount:", "probes:", "metrics:", "networkPolicy:", "podLabels: {}",
			"podAnnotations: {}", "nodeSelector: {}", "tolerations: []", "affinity: {}", `priorityClassName: ""`}, line):
			t.Errorf("values.yaml:%d: %s has no comment", i+1, line)
		}
	}
}
