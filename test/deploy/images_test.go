package deploy

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"
	core "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// TestDockerfile parses the Dockerfile as BuildKit does, with its linter, and holds
// the image to what the manifests rely on.
func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile(deployDir + "/Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	ast, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range ast.Warnings {
		t.Errorf("%s (%s)", w.Short, w.URL)
	}
	lint := linter.New(&linter.Config{Warn: func(rule, description, _, message string, _ []parser.Range) {
		t.Errorf("%s: %s: %s", rule, description, message)
	}})
	stages, _, err := instructions.Parse(ast.AST, lint)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(stages); n != 2 || stages[1].BaseName != "scratch" {
		t.Fatalf("%d stages, the last one from %s", n, stages[n-1].BaseName)
	}
	if p := stages[0].Platform; p != "$BUILDPLATFORM" {
		t.Errorf("it is compiled on %q: an emulated compiler is slow", p)
	}
	if !strings.Contains(string(text), "CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath") {
		t.Error("it is not built static, for the platform that is asked for")
	}
	var user string
	var entry, command []string
	for _, c := range stages[1].Commands {
		switch c := c.(type) {
		case *instructions.UserCommand:
			user = c.User
		case *instructions.EntrypointCommand:
			entry = c.CmdLine
		case *instructions.CmdCommand:
			command = c.CmdLine
		case *instructions.RunCommand:
			t.Error("there is no shell in the image to run anything")
		}
	}
	if !regexp.MustCompile(`^[1-9][0-9]*:[1-9][0-9]*$`).MatchString(user) {
		t.Errorf("it runs as %q: Kubernetes takes a number for no root", user)
	}
	if !slices.Equal(entry, []string{"/bridge"}) || !slices.Equal(command, []string{"serve"}) {
		t.Errorf("it runs %v %v", entry, command)
	}
	for _, v := range []string{"go.mod", "Dockerfile"} {
		goVersion := regexp.MustCompile(`(?:^|\n)go (1\.\d+)`)
		if v == "Dockerfile" {
			goVersion = regexp.MustCompile(`golang:(1\.\d+)`)
		}
		path := filepath.Join(deployDir, v)
		if v == "go.mod" {
			path = "../../go.mod"
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		m := goVersion.FindSubmatch(b)
		if m == nil {
			t.Fatalf("%s names no version of Go", path)
		}
		if want := "1.26"; string(m[1]) != want {
			t.Errorf("%s is of Go %s, want %s", path, m[1], want)
		}
	}
}

// TestImageHasAllItNeeds makes sure that no file the program is built from is left
// out of what is sent to the builder.
func TestImageHasAllItNeeds(t *testing.T) {
	f, err := os.Open(deployDir + "/Dockerfile.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	patterns, err := ignorefile.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	ignored, err := patternmatcher.New(patterns)
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-deps", "-f",
		`{{if eq .Module.Path "delaybridge"}}{{$d := .Dir}}{{range .GoFiles}}{{$d}}/{{.}} {{end}}{{range .EmbedFiles}}{{$d}}/{{.}} {{end}}{{end}}`, "./cmd/bridge")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	cmd.Args[4] = strings.Replace(cmd.Args[4], "{{if eq", "{{if .Module}}{{if eq", 1) + "{{end}}"
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files := append(strings.Fields(string(out)), root+"/go.mod", root+"/go.sum")
	if len(files) < 50 {
		t.Fatalf("only %d files", len(files))
	}
	sent := func(path string) bool {
		path, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		is, err := ignored.MatchesOrParentMatches(path)
		if err != nil {
			t.Fatal(err)
		}
		return !is
	}
	for _, f := range files {
		if !sent(f) {
			t.Errorf("%s is not sent to the builder", f)
		}
	}
	for _, f := range []string{".git/config", "bin/bridge", "test/bridge.go", "docs/operations.md", "deploy/compose.yaml", "cmd/bridge/config_test.go"} {
		if sent(filepath.Join(root, f)) {
			t.Errorf("%s is sent to the builder", f)
		}
	}
}

// TestCompose loads compose.yaml with the library that docker compose reads it with.
func TestCompose(t *testing.T) {
	for _, row := range []struct {
		profiles []string
		bridges  int
	}{{nil, 2}, {[]string{"three"}, 3}} {
		o, err := cli.NewProjectOptions([]string{deployDir + "/compose.yaml"}, cli.WithProfiles(row.profiles), cli.WithInterpolation(true), cli.WithResolvedPaths(true), cli.WithConsistency(true))
		if err != nil {
			t.Fatal(err)
		}
		p, err := o.LoadProject(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		bridges := 0
		for name, s := range p.Services {
			if strings.HasPrefix(name, "bridge") {
				bridges++
				if !s.ReadOnly || !slices.Contains(s.CapDrop, "ALL") || s.Build == nil {
					t.Errorf("%s: may write, has capabilities, or is not built", name)
				}
				if s.StopGracePeriod == nil || s.StopGracePeriod.String() != "45s" {
					t.Errorf("%s: is killed after %v", name, s.StopGracePeriod)
				}
			} else if !regexp.MustCompile(`:v?[0-9]+\.[0-9]+`).MatchString(s.Image) {
				t.Errorf("%s: image %q has no version", name, s.Image)
			}
			for _, port := range s.Ports {
				if port.HostIP != "127.0.0.1" {
					t.Errorf("%s: port %s can be reached from elsewhere", name, port.Published)
				}
			}
			if s.Restart != "no" && s.HealthCheck == nil {
				t.Errorf("%s: has no health check", name)
			}
			for _, v := range s.Volumes {
				if _, err := os.Stat(v.Source); v.Type == "bind" && err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			for other, d := range s.DependsOn {
				if d.Condition == "service_healthy" && p.Services[other].HealthCheck == nil {
					t.Errorf("%s waits for %s, which has no health check", name, other)
				}
			}
		}
		if bridges != row.bridges {
			t.Errorf("profiles %v: %d bridges, want %d", row.profiles, bridges, row.bridges)
		}
		for _, name := range []string{"redis", "nats", "kafka", "prometheus", "grafana"} {
			if _, ok := p.Services[name]; !ok {
				t.Errorf("there is no %s", name)
			}
		}
		if redis := strings.Join(p.Services["redis"].Command, " "); !strings.Contains(redis, "--appendonly yes") || !strings.Contains(redis, "--maxmemory-policy noeviction") {
			t.Errorf("redis may lose what it promised: %s", redis)
		}
	}
}

// TestProcfile reads the Procfile as foreman does: a name, a colon, a command.
func TestProcfile(t *testing.T) {
	text, err := os.ReadFile(deployDir + "/Procfile")
	if err != nil {
		t.Fatal(err)
	}
	ports, bridges := map[string]bool{}, 0
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		if strings.HasPrefix(line, "#") {
			continue
		}
		m := regexp.MustCompile(`^([a-z0-9_-]+): (.+)$`).FindStringSubmatch(line)
		if m == nil {
			t.Errorf("is no process: %q", line)
			continue
		}
		if !strings.HasPrefix(m[1], "bridge") {
			continue
		}
		bridges++
		port := regexp.MustCompile(`BRIDGE_METRICS_ADDR=127\.0\.0\.1:(\d+)`).FindStringSubmatch(m[2])
		if port == nil || ports[port[1]] {
			t.Errorf("%s has no port of its own", m[1])
			continue
		}
		ports[port[1]] = true
	}
	if bridges != 3 {
		t.Errorf("%d bridges", bridges)
	}
}

// configOf is the data of the ConfigMap that the pods read.
func configOf(t testing.TB, texts map[string]string) map[string]string {
	t.Helper()
	var config core.ConfigMap
	if err := yaml.UnmarshalStrict([]byte(documents(texts["configmap.yaml"])[0]), &config); err != nil {
		t.Fatal(err)
	}
	return config.Data
}
