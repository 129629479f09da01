package deploy

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// object is one decoded manifest.
type object struct {
	file, id, namespace string
	// is one of the types below.
	is any
}

// scaledObject is what this chart uses of KEDA's ScaledObject (keda.sh/v1alpha1).
// KEDA's own types would bring a few hundred modules along for this one.
type scaledObject struct {
	meta.TypeMeta   `json:",inline"`
	meta.ObjectMeta `json:"metadata"`
	Spec            struct {
		ScaleTargetRef struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Name       string `json:"name"`
		} `json:"scaleTargetRef"`
		MinReplicaCount *int32 `json:"minReplicaCount"`
		MaxReplicaCount *int32 `json:"maxReplicaCount"`
		PollingInterval *int32 `json:"pollingInterval"`
		CooldownPeriod  *int32 `json:"cooldownPeriod"`
		Fallback        *struct {
			FailureThreshold int32  `json:"failureThreshold"`
			Replicas         int32  `json:"replicas"`
			Behavior         string `json:"behavior"`
		} `json:"fallback"`
		Advanced struct {
			HorizontalPodAutoscalerConfig struct {
				Behavior *autoscaling.HorizontalPodAutoscalerBehavior `json:"behavior"`
			} `json:"horizontalPodAutoscalerConfig"`
		} `json:"advanced"`
		Triggers []struct {
			Type              string            `json:"type"`
			Metadata          map[string]string `json:"metadata"`
			AuthenticationRef *struct {
				Name string `json:"name"`
			} `json:"authenticationRef"`
		} `json:"triggers"`
	} `json:"spec"`
}

// decode reads one manifest strictly: a field that the type does not have, or that
// is there twice, fails the test. The id is empty if it cannot be read.
func decode(t testing.TB, file, doc string) object {
	t.Helper()
	o := object{file: file}
	var head struct {
		meta.TypeMeta `json:",inline"`
		Metadata      meta.ObjectMeta `json:"metadata"`
	}
	if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
		t.Errorf("%s: %v\n%s", file, err, doc)
		return o
	}
	kinds := map[string]any{
		"apps/v1 Deployment":                      &apps.Deployment{},
		"batch/v1 CronJob":                        &batch.CronJob{},
		"v1 ConfigMap":                            &core.ConfigMap{},
		"v1 Namespace":                            &core.Namespace{},
		"v1 Pod":                                  &core.Pod{},
		"v1 Service":                              &core.Service{},
		"v1 ServiceAccount":                       &core.ServiceAccount{},
		"policy/v1 PodDisruptionBudget":           &policy.PodDisruptionBudget{},
		"networking.k8s.io/v1 NetworkPolicy":      &networking.NetworkPolicy{},
		"monitoring.coreos.com/v1 ServiceMonitor": &monitoring.ServiceMonitor{},
		"monitoring.coreos.com/v1 PrometheusRule": &monitoring.PrometheusRule{},
		"keda.sh/v1alpha1 ScaledObject":           &scaledObject{},
	}
	kind := head.APIVersion + " " + head.Kind
	if o.is = kinds[kind]; o.is == nil {
		t.Errorf("%s: nobody expects %q here", file, kind)
		return o
	}
	if err := yaml.UnmarshalStrict([]byte(doc), o.is); err != nil {
		t.Errorf("%s: %s %s: %v\n%s", file, kind, head.Metadata.Name, err, doc)
		return o
	}
	o.id, o.namespace = kind+" "+head.Metadata.Name, head.Metadata.Namespace
	if errs := validation.IsDNS1123Label(head.Metadata.Name); len(errs) > 0 {
		t.Errorf("%s: %s: %v", file, o.id, errs)
	}
	checkLabels(t, o.id, head.Metadata.Labels)
	return o
}

func checkLabels(t testing.TB, id string, labels map[string]string) {
	t.Helper()
	for k, v := range labels {
		if errs := append(validation.IsQualifiedName(k), validation.IsValidLabelValue(v)...); len(errs) > 0 {
			t.Errorf("%s: label %s=%q: %v", id, k, v, errs)
		}
	}
}

// check holds an object to what must be true of it in every installation.
func (o object) check(t testing.TB) {
	t.Helper()
	switch is := o.is.(type) {
	case *apps.Deployment:
		o.checkDeployment(t, is)
	case *core.Pod:
		o.checkPod(t, is.Spec, false)
	case *batch.CronJob:
		o.checkPod(t, is.Spec.JobTemplate.Spec.Template.Spec, false)
		if is.Spec.ConcurrencyPolicy == "" || is.Spec.JobTemplate.Spec.ActiveDeadlineSeconds == nil {
			t.Errorf("%s: no concurrencyPolicy, or no activeDeadlineSeconds", o.id)
		}
	case *core.ConfigMap:
		for k, v := range is.Data {
			if strings.HasPrefix(k, "BRIDGE_") && strings.ContainsAny(v, "\n") {
				t.Errorf("%s: %s has a line break", o.id, k)
			}
		}
	case *core.Service:
		if is.Name == "bridge" {
			t.Errorf("%s would put BRIDGE_PORT into the environment of its neighbours", o.id)
		}
	case *core.ServiceAccount:
		if is.AutomountServiceAccountToken == nil {
			t.Errorf("%s: does not say whether its token is mounted", o.id)
		}
	case *scaledObject:
		o.checkScaled(t, is)
	case *monitoring.PrometheusRule:
		for _, g := range is.Spec.Groups {
			for _, r := range g.Rules {
				if !strings.Contains(r.Annotations["runbook_url"], "docs/operations.md#") {
					t.Errorf("%s: %s has no link to its runbook", o.id, r.Alert)
				}
				if r.For != nil && *r.For == "" {
					t.Errorf("%s: %s: for is empty", o.id, r.Alert)
				}
			}
		}
	case *policy.PodDisruptionBudget:
		if is.Spec.MaxUnavailable == nil || is.Spec.MinAvailable != nil {
			t.Errorf("%s: would hold up a drain for ever where there is one pod", o.id)
		}
	}
}

func (o object) checkDeployment(t testing.TB, d *apps.Deployment) {
	t.Helper()
	if r := d.Spec.Strategy.RollingUpdate; r == nil || r.MaxUnavailable == nil || r.MaxUnavailable.IntValue() != 0 {
		t.Errorf("%s: a rollout stops a pod before the next one is ready", o.id)
	}
	selector, err := meta.LabelSelectorAsMap(d.Spec.Selector)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range selector {
		if d.Spec.Template.Labels[k] != v {
			t.Errorf("%s: its pods have no label %s=%s, by which it selects them", o.id, k, v)
		}
		if strings.Contains(k, "version") || strings.Contains(k, "chart") {
			t.Errorf("%s: selects by %s, which cannot be changed", o.id, k)
		}
	}
	checkLabels(t, o.id, d.Spec.Template.Labels)
	if d.Spec.Replicas == nil {
		t.Logf("%s: replicas are KEDA's", o.id)
	} else if *d.Spec.Replicas < 1 {
		t.Errorf("%s: %d replicas", o.id, *d.Spec.Replicas)
	}
	o.checkPod(t, d.Spec.Template.Spec, true)
}

// checkPod holds a pod to the "restricted" Pod Security Standard, and one that
// serves to its probes.
func (o object) checkPod(t testing.TB, p core.PodSpec, serves bool) {
	t.Helper()
	fail := func(format string, args ...any) { t.Helper(); t.Errorf("%s: %s", o.id, fmt.Sprintf(format, args...)) }
	if p.EnableServiceLinks == nil || *p.EnableServiceLinks {
		fail("enableServiceLinks is not false")
	}
	if p.AutomountServiceAccountToken == nil {
		fail("does not say whether a token is mounted")
	}
	s := p.SecurityContext
	if s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser == 0 || s.SeccompProfile == nil || s.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
		fail("runs as root, or without a seccomp profile")
	}
	volumes := map[string]bool{}
	for _, v := range p.Volumes {
		volumes[v.Name] = true
		if v.HostPath != nil {
			fail("mounts a path of its host")
		}
	}
	if len(p.Containers) != 1 {
		t.Fatalf("%s: %d containers", o.id, len(p.Containers))
	}
	c := p.Containers[0]
	if tag := c.Image[strings.LastIndex(c.Image, "/")+1:]; !strings.ContainsAny(tag, ":@") || strings.HasSuffix(tag, ":latest") {
		fail("image %q has no version", c.Image)
	}
	if x := c.SecurityContext; x == nil || x.ReadOnlyRootFilesystem == nil || !*x.ReadOnlyRootFilesystem || x.AllowPrivilegeEscalation == nil || *x.AllowPrivilegeEscalation ||
		x.Capabilities == nil || !slices.Equal(x.Capabilities.Drop, []core.Capability{"ALL"}) || len(x.Capabilities.Add) > 0 {
		fail("may do more than it needs")
	}
	if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
		fail("asks for no CPU or memory, or has no limit of memory")
	}
	if !c.Resources.Limits.Cpu().IsZero() {
		fail("is throttled, which makes it late")
	}
	for _, m := range c.VolumeMounts {
		if !volumes[m.Name] {
			fail("mounts %q, which is no volume", m.Name)
		}
		if !m.ReadOnly {
			fail("mounts %q to write", m.Name)
		}
	}
	for _, e := range c.Env {
		if strings.HasPrefix(e.Name, "BRIDGE_") && e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			fail("%s is a secret in the environment", e.Name)
		}
	}
	if serves {
		o.checkServing(t, p, c)
	}
}

func (o object) checkServing(t testing.TB, p core.PodSpec, c core.Container) {
	t.Helper()
	if !slices.Equal(c.Args, []string{"serve"}) || len(c.Command) > 0 {
		t.Errorf("%s: runs %v %v", o.id, c.Command, c.Args)
	}
	for name, probe := range map[string]*core.Probe{"startup": c.StartupProbe, "liveness": c.LivenessProbe, "readiness": c.ReadinessProbe} {
		want := "/healthz"
		if name == "readiness" {
			want = "/readyz"
		}
		if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != want || probe.HTTPGet.Port.String() != "metrics" {
			t.Errorf("%s: no %s probe at %s", o.id, name, want)
			continue
		}
		// What /readyz asks is given up after 0.8 s.
		if probe.TimeoutSeconds < 2 {
			t.Errorf("%s: the %s probe has less time than its answer may take", o.id, name)
		}
	}
	if p.TerminationGracePeriodSeconds == nil {
		t.Errorf("%s: no terminationGracePeriodSeconds", o.id)
	}
	for _, port := range c.Ports {
		if errs := validation.IsValidPortName(port.Name); len(errs) > 0 {
			t.Errorf("%s: %v", o.id, errs)
		}
	}
}

func (o object) checkScaled(t testing.TB, s *scaledObject) {
	t.Helper()
	if s.Spec.MinReplicaCount == nil || *s.Spec.MinReplicaCount < 1 || s.Spec.Fallback == nil || s.Spec.Fallback.Replicas < 1 {
		t.Errorf("%s: may be scaled to zero", o.id)
	}
	if s.Spec.ScaleTargetRef.Kind != "Deployment" || s.Spec.ScaleTargetRef.Name == "" {
		t.Errorf("%s: scales %+v", o.id, s.Spec.ScaleTargetRef)
	}
	needed := map[string][]string{
		"kafka":          {"bootstrapServers", "consumerGroup", "topic", "lagThreshold"},
		"nats-jetstream": {"natsServerMonitoringEndpoint", "account", "stream", "consumer", "lagThreshold"},
		"prometheus":     {"serverAddress", "query", "threshold"},
	}
	if len(s.Spec.Triggers) == 0 {
		t.Errorf("%s: no trigger", o.id)
	}
	for _, trigger := range s.Spec.Triggers {
		if needed[trigger.Type] == nil {
			t.Errorf("%s: a trigger of type %q: one on Redis counts what is not due", o.id, trigger.Type)
		}
		for _, k := range needed[trigger.Type] {
			if trigger.Metadata[k] == "" {
				t.Errorf("%s: %s without %s", o.id, trigger.Type, k)
			}
		}
		if q := trigger.Metadata["query"]; q != "" {
			checkQuery(t, o.id, q)
		}
	}
}

// checkTogether holds the objects of one installation to each other.
func checkTogether(t testing.TB, texts map[string]string) {
	t.Helper()
	var config *core.ConfigMap
	var deployments []*apps.Deployment
	pods := func(selector map[string]string) (n int) {
		for _, d := range deployments {
			matches := true
			for k, v := range selector {
				matches = matches && d.Spec.Template.Labels[k] == v
			}
			if matches {
				n++
			}
		}
		return n
	}
	var rest []object
	for _, file := range slices.Sorted(maps.Keys(texts)) {
		if !strings.HasSuffix(file, ".yaml") {
			continue
		}
		for _, doc := range documents(texts[file]) {
			o := decode(t, file, doc)
			switch is := o.is.(type) {
			case *core.ConfigMap:
				if !strings.HasSuffix(is.Name, "-dashboard") {
					config = is
				}
			case *apps.Deployment:
				deployments = append(deployments, is)
			default:
				rest = append(rest, o)
			}
		}
	}
	if config == nil || len(deployments) == 0 {
		t.Fatal("no ConfigMap, or no Deployment")
	}
	shutdown, err := time.ParseDuration(config.Data["BRIDGE_SHUTDOWN_TIMEOUT"])
	if err != nil {
		t.Fatal(err)
	}
	roles := map[string]bool{}
	for _, d := range deployments {
		spec := d.Spec.Template.Spec
		c := spec.Containers[0]
		need := shutdown + 5*time.Second
		if c.Lifecycle != nil {
			need += time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
		}
		if grace := time.Duration(*spec.TerminationGracePeriodSeconds) * time.Second; grace < need {
			t.Errorf("%s is killed after %v, and takes up to %v to stop", d.Name, grace, need)
		}
		if len(c.EnvFrom) == 0 || c.EnvFrom[0].ConfigMapRef == nil || c.EnvFrom[0].ConfigMapRef.Name != config.Name {
			t.Errorf("%s does not read the ConfigMap %s", d.Name, config.Name)
		}
		if p := c.Ports[0]; config.Data["BRIDGE_METRICS_ADDR"] != ":"+strconv.Itoa(int(p.ContainerPort)) || p.Name != "metrics" {
			t.Errorf("%s: metrics at %s, and the port is %+v", d.Name, config.Data["BRIDGE_METRICS_ADDR"], p)
		}
		for _, e := range c.Env {
			if e.Name == "BRIDGE_ROLES" {
				for r := range strings.SplitSeq(e.Value, ",") {
					roles[r] = true
				}
			}
		}
		checkFiles(t, config, spec)
		if pods(d.Spec.Selector.MatchLabels) != 1 {
			t.Errorf("%s selects the pods of others, too", d.Name)
		}
	}
	if !roles["ingest"] || !roles["scheduler"] {
		t.Errorf("the roles are %v", roles)
	}
	for _, o := range rest {
		var selector map[string]string
		switch is := o.is.(type) {
		case *core.Service:
			selector = is.Spec.Selector
		case *policy.PodDisruptionBudget:
			selector = is.Spec.Selector.MatchLabels
		case *networking.NetworkPolicy:
			selector = is.Spec.PodSelector.MatchLabels
		default:
			continue
		}
		if pods(selector) == 0 {
			t.Errorf("%s selects no pod", o.id)
		}
	}
}

// checkFiles makes sure that each file named by a setting is mounted, and that
// each file that is mounted is named.
func checkFiles(t testing.TB, config *core.ConfigMap, spec core.PodSpec) {
	t.Helper()
	mounted := map[string]bool{}
	for _, v := range spec.Volumes {
		if v.Name != "secrets" {
			continue
		}
		for _, s := range v.Projected.Sources {
			for _, i := range s.Secret.Items {
				mounted["/etc/bridge/"+i.Path] = true
			}
		}
	}
	for k, v := range config.Data {
		if !strings.HasPrefix(v, "/etc/bridge/") {
			continue
		}
		if !mounted[v] {
			t.Errorf("%s is %s, which is not mounted", k, v)
		}
		delete(mounted, v)
	}
	for path := range mounted {
		t.Errorf("%s is mounted, and no setting names it", path)
	}
}

// variable is a setting wherever it is mentioned.
var variable = regexp.MustCompile(`\bBRIDGE_[A-Z0-9_]*[A-Z0-9]\b`)
