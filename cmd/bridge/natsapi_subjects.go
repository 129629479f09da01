package main

import (
	"strings"

	"delaybridge"
	"delaybridge/ingest"
)

// natsAPISubjects are the service's. They are a source of the bridge's, as far as
// targets go: a message that is delivered there would schedule the next one.
var natsAPISubjects = delaybridge.Target{Sink: delaybridge.SinkNATS, Name: natsAPIGroup + ".>"}

// takesAPISubjects reports whether a subject pattern takes one of the service's in.
func takesAPISubjects(pattern string) bool {
	tokens := strings.Split(pattern, ".")
	for i, own := range strings.Split(natsAPIGroup, ".") {
		switch {
		case i == len(tokens):
			return false
		case tokens[i] == ">":
			return true
		case tokens[i] != own && tokens[i] != "*":
			return false
		}
	}
	return len(tokens) > 2
}

// readsAPISubjects returns the setting, and the subject in it, by which ingest
// would take requests of the service for its own; both are empty if none does.
func (s *Settings) readsAPISubjects(routes []ingest.Route) (setting, subject string) {
	for _, pattern := range s.NATS.Ingest.Subjects {
		if takesAPISubjects(pattern) {
			return "NATS_INGEST_SUBJECTS", pattern
		}
	}
	for _, r := range routes {
		if r.Source.Sink == delaybridge.SinkNATS && takesAPISubjects(r.Source.Name) {
			return "ROUTES", r.Source.Name
		}
	}
	return "", ""
}

// checkNATSAPI makes sure that nothing but the service gets its requests.
func (s *Settings) checkNATSAPI() *settingError {
	if !s.NATS.API {
		return nil
	}
	routes, _ := ingest.ParseRoutes(string(s.Routes)) // its errors are for another check
	switch setting, subject := s.readsAPISubjects(routes); setting {
	case "NATS_INGEST_SUBJECTS":
		return wrong(setting, s.NATS.Ingest.Subjects, "has "+subject+", which takes in "+natsAPISubjects.Name+", where BRIDGE_NATS_API answers: takes other subjects beside it")
	case "ROUTES":
		return wrong(setting, s.Routes, "has the source "+subject+", which takes in "+natsAPISubjects.Name+", where BRIDGE_NATS_API answers: takes other subjects beside it")
	}
	return nil
}
