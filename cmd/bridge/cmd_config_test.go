package main

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

// TestConfigShowsEverySetting has one set in each way, and variables of
// OpenTelemetry beside them.
func TestConfigShowsEverySetting(t *testing.T) {
	clearSettings(t)
	t.Setenv("BRIDGE_MAX_DELAY", "30d")
	t.Setenv("BRIDGE_NATS_URL", "nats://user:hush-hush@h:4222")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:hush-hush@collector:4318")
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=hush-hush")
	t.Setenv("OTEL_SERVICE_NAME", "mine")
	run := func(args ...string) string {
		t.Helper()
		var out, errOut bytes.Buffer
		if code := execute(t.Context(), append([]string{"config"}, args...), strings.NewReader(""), &out, &errOut); code != exitOK {
			t.Fatalf("code %d: %s", code, errOut.String())
		}
		if strings.Contains(out.String()+errOut.String(), "hush-hush") {
			t.Errorf("it shows a secret: %s", out.String())
		}
		return out.String()
	}
	text := run()
	var list listView[settingView]
	if err := json.Unmarshal([]byte(run("-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	has := func(name string) *settingView {
		t.Helper()
		i := slices.IndexFunc(list.Items, func(v settingView) bool { return v.Name == name })
		if i < 0 {
			t.Fatalf("no %s", name)
		}
		return &list.Items[i]
	}
	for _, r := range defaultSettings().table() {
		if v := has(r.Name); v.Default != r.Default || v.Doc == "" || v.From == "" {
			t.Errorf("%+v", v)
		}
		if !strings.Contains(text, r.Name+" ") || !strings.Contains(text, r.Doc) {
			t.Errorf("the text has no %s", r.Name)
		}
	}
	if v := has("BRIDGE_MAX_DELAY"); v.Value != "720h" || v.Default != "168h" || v.From != "environment" {
		t.Errorf("%+v", v)
	}
	if v := has("BRIDGE_SHARDS"); v.From != "default" {
		t.Errorf("%+v", v)
	}
	for name, value := range map[string]string{"OTEL_SERVICE_NAME": "mine", "OTEL_EXPORTER_OTLP_HEADERS": masked, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://user:" + masked + "@collector:4318"} {
		if v := has(name); v.Value != value || v.From != "environment" {
			t.Errorf("%+v", v)
		}
		if !strings.Contains(text, name) {
			t.Errorf("the text has no %s", name)
		}
	}
	t.Setenv("OTEL_SDK_DISABLED", "true")
	if !strings.Contains(run(), "switched off") {
		t.Error("it does not say that there are no traces")
	}
}
