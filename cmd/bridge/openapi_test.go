package main

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestDescriptionHasEveryRoute holds routes and description to each other: paths,
// methods, parameters, and which of them take a body. A module under test/ holds
// the answers to it.
func TestDescriptionHasEveryRoute(t *testing.T) {
	var doc struct {
		OpenAPI string `json:"openapi"`
		Paths   map[string]map[string]struct {
			Parameters []struct {
				Ref, Name, In string
			} `json:"parameters"`
			RequestBody any            `json:"requestBody"`
			Responses   map[string]any `json:"responses"`
		} `json:"paths"`
		Components struct {
			Parameters map[string]struct{ Name, In string } `json:"parameters"`
		} `json:"components"`
	}
	text := strings.ReplaceAll(string(apiDescription), `"$ref"`, `"Ref"`)
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("it is OpenAPI %s", doc.OpenAPI)
	}
	described := map[string]bool{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			name := strings.ToUpper(method) + " " + path
			described[name] = true
			if path == descriptionPath {
				continue
			}
			i := slices.IndexFunc(apiRoutes, func(r apiRoute) bool { return r.method+" "+r.path == name })
			if i < 0 {
				t.Errorf("there is no %s", name)
				continue
			}
			var query []string
			for _, p := range op.Parameters {
				if p.Ref != "" {
					of := doc.Components.Parameters[strings.TrimPrefix(p.Ref, "#/components/parameters/")]
					p.Name, p.In = of.Name, of.In
				}
				if p.In == "query" {
					query = append(query, p.Name)
				}
			}
			slices.Sort(query)
			if has := slices.Sorted(slices.Values(apiRoutes[i].query)); !slices.Equal(query, has) {
				t.Errorf("%s takes %v, and %v are described", name, has, query)
			}
			if (op.RequestBody != nil) != (apiRoutes[i].kind == routeBody) {
				t.Errorf("%s takes a body: %v; it is not described so", name, apiRoutes[i].kind == routeBody)
			}
			// Of every operation.
			for _, status := range []string{"400", "401", "403", "503"} {
				if op.Responses[status] == nil {
					t.Errorf("%s: %s is not described", name, status)
				}
			}
		}
	}
	for _, r := range apiRoutes {
		if name := r.method + " " + r.path; !described[name] {
			t.Errorf("%s is not described; there are %v", name, slices.Sorted(maps.Keys(described)))
		}
	}
}

// TestDescriptionIsServed to anybody, as it is.
func TestDescriptionIsServed(t *testing.T) {
	w := newAPIWorld(t, func(s *Settings) { s.API.Token = apiTestToken })
	a := w.ask(t, http.MethodGet, descriptionPath, "")
	if a.status != http.StatusOK || a.body != string(apiDescription) || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %v", a.status, a.header)
	}
	if a := w.ask(t, http.MethodHead, descriptionPath, ""); a.status != http.StatusOK || a.body != "" {
		t.Errorf("%+v", a)
	}
}
