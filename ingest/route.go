package ingest

import (
	"fmt"
	"strings"
	"time"

	"delaybridge"
)

// routesField is the setting that the errors of routes name.
const routesField = "BRIDGE_ROUTES"

const routeForm = "want <source> -> <target> [delay=5m] [expires_after=1h] [format=json]; several are divided by ;"

// Route gives the messages of a source defaults, so that plain messages can be
// delayed with no header at all. A message's own headers win over them.
type Route struct {
	// Source is a Kafka topic (SinkKafka), or a NATS subject that may hold
	// wildcards (SinkNATS).
	Source delaybridge.Target
	// Target is the default target; zero if the route has none.
	Target delaybridge.Target
	// Delay is the default delay, if HasDelay.
	Delay    time.Duration
	HasDelay bool
	// ExpiresAfter replaces the setting of that name, if HasExpiresAfter.
	ExpiresAfter    time.Duration
	HasExpiresAfter bool
	// Envelope reads every message of the source as a JSON envelope.
	Envelope bool
}

// ParseRoutes reads the routes of BRIDGE_ROUTES:
//
//	kafka://orders-in-5m -> kafka://orders delay=5m; nats://later.30s.> -> nats://orders delay=30s
//
// Routes are divided by semicolons. A source is a Kafka topic or a NATS subject
// with or without wildcards; "-> <target>" may be left out where the messages
// name their own. Options are delay, expires_after and format (json or plain).
// Routes must not overlap, and none may lead to a source. Errors are *FieldError.
func ParseRoutes(setting string) ([]Route, error) {
	var routes []Route
	for text := range strings.SplitSeq(setting, ";") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		r, err := parseRoute(text)
		if err != nil {
			return nil, err
		}
		routes = append(routes, r)
	}
	if err := checkRoutes(routes); err != nil {
		return nil, err
	}
	return routes, nil
}

func parseRoute(text string) (Route, error) {
	refuse := func(reason string) (Route, error) {
		return Route{}, &delaybridge.FieldError{Code: "invalid_route", Field: routesField, Value: text, Reason: reason}
	}
	words := strings.Fields(text)
	source, err := ParseSource(words[0])
	if err != nil {
		return refuse("source " + words[0] + ": " + reasonOf(err))
	}
	r, words := Route{Source: source}, words[1:]
	if len(words) > 0 && words[0] == "->" {
		if len(words) == 1 {
			return refuse("no target behind ->: " + routeForm)
		}
		if r.Target, err = delaybridge.ParseTarget(words[1]); err != nil {
			return refuse("target " + words[1] + ": " + reasonOf(err))
		}
		words = words[2:]
	}
	seen := make(map[string]bool)
	for _, word := range words {
		if strings.HasSuffix(word, ",") {
			return refuse(fmt.Sprintf("%q ends with a comma: %s", word, routeForm))
		}
		name, value, ok := strings.Cut(word, "=")
		if !ok {
			return refuse(fmt.Sprintf("%q is no option: %s", word, routeForm))
		}
		if seen[name] {
			return refuse("option " + name + " is given twice")
		}
		seen[name] = true
		switch name {
		case "delay":
			r.Delay, err = delaybridge.ParseDuration(value)
			r.HasDelay = true
		case "expires_after":
			r.ExpiresAfter, err = delaybridge.ParseDuration(value)
			r.HasExpiresAfter = true
		case "format":
			if value != "json" && value != "plain" {
				return refuse("format " + value + ": want json or plain")
			}
			r.Envelope = value == "json"
		default:
			return refuse(fmt.Sprintf("there is no option %q: there are delay, expires_after, format", name))
		}
		if err != nil {
			return refuse("option " + word + ": " + reasonOf(err))
		}
	}
	return r, nil
}

// ParseSource reads a source: "kafka://<topic>" or "nats://<subject>", the
// latter with or without wildcards. Errors are *FieldError with Field empty.
func ParseSource(s string) (delaybridge.Target, error) {
	sink, name, err := delaybridge.SplitTarget(s)
	if err != nil {
		return delaybridge.Target{}, err
	}
	reason := ""
	switch sink {
	case delaybridge.SinkNATS:
		reason = checkSubjectPattern(name)
	case delaybridge.SinkNATSCore:
		reason = "a source is read from a stream, which confirms what it stored: write nats:// for it"
	default:
		if strings.Contains(name, "*") {
			reason = "a Kafka source is one topic: it takes no wildcards"
			break
		}
		if _, err := delaybridge.ParseTarget(s); err != nil {
			return delaybridge.Target{}, err
		}
	}
	if reason != "" {
		return delaybridge.Target{}, &delaybridge.FieldError{Code: "invalid_source", Value: s, Reason: reason}
	}
	return delaybridge.Target{Sink: sink, Name: name}, nil
}

// checkRoutes refuses routes that overlap or lead to a source.
func checkRoutes(routes []Route) error {
	for i, r := range routes {
		for _, other := range routes[:i] {
			if sourcesOverlap(r.Source, other.Source) {
				return &delaybridge.FieldError{
					Code: "invalid_route", Field: routesField, Value: r.Source.String(),
					Reason: "overlaps with the source " + other.Source.String() + ": it would not be clear whose defaults count",
				}
			}
		}
	}
	for _, r := range routes {
		for _, other := range routes {
			if r.Target != (delaybridge.Target{}) && sourceTakes(other.Source, r.Target) {
				return &delaybridge.FieldError{
					Code: "invalid_route", Field: routesField, Value: r.Source.String() + " -> " + r.Target.String(),
					Reason: "the target is a source itself (" + other.Source.String() + "): its messages would come back",
				}
			}
		}
	}
	return nil
}

// checkCrossing refuses subjects that overlap without one covering the other: a
// consumer's filters must not overlap, and neither can be left out. Sources from
// routes on are those of routes.
func checkCrossing(sources []delaybridge.Target, routes int) error {
	for i, s := range sources {
		for _, other := range sources[:i] {
			if s.Sink != delaybridge.SinkNATS || !sourcesOverlap(s, other) ||
				coversSubjects(s.Name, other.Name) || coversSubjects(other.Name, s.Name) {
				continue
			}
			e := &delaybridge.FieldError{
				Code: "invalid_route", Field: routesField, Value: s.String(),
				Reason: "overlaps with the source " + other.String() + ", and neither holds all of the other: no JetStream consumer can read both",
			}
			if i < routes {
				e.Code, e.Field, e.Value = "invalid_setting", "BRIDGE_NATS_INGEST_SUBJECTS", s.Name
			}
			return e
		}
	}
	return nil
}

// sourcesOverlap reports whether a message can come from both sources.
func sourcesOverlap(a, b delaybridge.Target) bool {
	if a.Sink != b.Sink || a.Sink == delaybridge.SinkKafka {
		return a == b
	}
	_, ok := intersectSubjects(a.Name, b.Name)
	return ok
}

// sourceTakes reports whether what is published to target is read by source.
func sourceTakes(source, target delaybridge.Target) bool {
	if source.Sink == delaybridge.SinkKafka || target.Sink == delaybridge.SinkKafka {
		return source == target
	}
	// A stream stores what is published by core NATS, too.
	return matchSubject(source.Name, target.Name)
}

// reasonOf returns what a FieldError says about its value, which the caller names itself.
func reasonOf(err error) string {
	if fe, ok := err.(*delaybridge.FieldError); ok {
		return fe.Reason
	}
	return err.Error()
}
