package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

func newConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Print every setting: its value, where it comes from, its default and what it is for",
		Example: `  bridge config
  BRIDGE_MAX_DELAY=30d bridge config -o json`,
		Args: noArgs,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := settingsFor(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		if *output == formatJSON {
			return printJSON(cmd.OutOrStdout(), listView[settingView]{Items: append(settingViews(s), tracingViews(os.Environ())...)})
		}
		t := newTable(cmd.OutOrStdout())
		fmt.Fprintln(t, "SETTING\tVALUE\tFROM\tDEFAULT\tWHAT IT IS")
		for _, r := range s.table() {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", r.Name, orDash(r.Value), printable(r.From), orDash(r.Default), r.Doc)
		}
		for _, v := range tracingViews(os.Environ()) {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", v.Name, orDash(v.Value), v.From, orDash(v.Default), v.Doc)
		}
		return t.Flush()
	}
	return cmd
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return printable(s)
}

// settingView is one setting in JSON.
type settingView struct {
	Name    string `json:"name"`
	Value   string `json:"value"`
	From    string `json:"from"`
	Default string `json:"default"`
	Doc     string `json:"doc"`
}

func settingViews(s *Settings) []settingView {
	var views []settingView
	for _, r := range s.table() {
		views = append(views, settingView{r.Name, r.Value, r.From, r.Default, r.Doc})
	}
	return views
}

// tracingViews are the variables of OpenTelemetry that are set. They are no settings
// of ours, and say how traces are made.
func tracingViews(environ []string) (views []settingView) {
	doc := "of OpenTelemetry, for traces"
	if _, on, err := traceEndpoint(); err == nil && !on {
		doc += "; there are none, since no OTLP endpoint is set or they are switched off"
	}
	for _, e := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, "OTEL_") {
			continue
		}
		if strings.HasSuffix(name, "_HEADERS") && value != "" {
			value = masked // these sign in to the collector
		}
		views = append(views, settingView{Name: name, Value: maskURLs(value), From: "environment", Doc: doc})
	}
	return views
}
