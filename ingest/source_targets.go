package ingest

import (
	"strings"

	"delaybridge"
)

// sourceTargetsField is the setting that the errors of source targets name.
const sourceTargetsField = "BRIDGE_SOURCE_TARGETS"

const sourceTargetsForm = "want <source> -> <pattern>, <pattern>; several are divided by ;"

// The sources that are no subject or topic, as BRIDGE_SOURCE_TARGETS names them.
const (
	sourceAPI    = "api" // requests by HTTP
	sourceCLI    = "cli" // bridge schedule, where it speaks to Redis itself
	sourceOthers = "*"   // every source that has no entry of its own
)

// SourceTargets are the targets that the messages of one source may name.
type SourceTargets struct {
	// Source is a Kafka topic or a NATS subject with or without wildcards; zero
	// if Name says what it is.
	Source delaybridge.Target
	// Name is "api", "cli" or "*"; empty for a subject or topic.
	Name string

	patterns []targetPattern
}

// String returns the source as it is written in the setting.
func (s SourceTargets) String() string {
	if s.Name != "" {
		return s.Name
	}
	return s.Source.String()
}

// ParseSourceTargets reads BRIDGE_SOURCE_TARGETS:
//
//	nats://bridge.schedule -> nats://orders.>, kafka://orders.*; kafka://bridge.schedule -> kafka://*; api -> *
//
// Entries are divided by semicolons, an entry's patterns (see targetPattern) by
// commas; "*" as a pattern is every target, and "none" in place of patterns is
// none. A source is a Kafka topic, a NATS subject with or without wildcards,
// "api" (HTTP), "cli" (bridge schedule) or "*" (all that have no entry). Entries
// must not overlap. Errors are *FieldError.
func ParseSourceTargets(setting string) ([]SourceTargets, error) {
	var entries []SourceTargets
	for text := range strings.SplitSeq(setting, ";") {
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		e, err := parseSourceTargets(text)
		if err != nil {
			return nil, err
		}
		for _, other := range entries {
			if e.Name == other.Name && (e.Name != "" || sourcesOverlap(e.Source, other.Source)) {
				return nil, &delaybridge.FieldError{
					Code: "invalid_source_targets", Field: sourceTargetsField, Value: text,
					Reason: "overlaps with the entry of " + other.String() + ": it would not be clear which one counts",
				}
			}
		}
		entries = append(entries, e)
	}
	return entries, nil
}

func parseSourceTargets(text string) (SourceTargets, error) {
	refuse := func(reason string) (SourceTargets, error) {
		return SourceTargets{}, &delaybridge.FieldError{Code: "invalid_source_targets", Field: sourceTargetsField, Value: text, Reason: reason}
	}
	source, patterns, ok := strings.Cut(text, "->")
	if !ok {
		return refuse("has no ->: " + sourceTargetsForm)
	}
	var e SourceTargets
	switch source = strings.TrimSpace(source); source {
	case sourceAPI, sourceCLI, sourceOthers:
		e.Name = source
	default:
		var err error
		if e.Source, err = ParseSource(source); err != nil {
			return refuse("source " + source + ": " + reasonOf(err) + "; or one of api, cli, *")
		}
	}
	if strings.TrimSpace(patterns) == "none" {
		return e, nil
	}
	for p := range strings.SplitSeq(patterns, ",") {
		switch p = strings.TrimSpace(p); p {
		case "":
			return refuse("a pattern is empty: " + sourceTargetsForm + "; none lets nothing pass")
		case "*":
			for _, lane := range delaybridge.Lanes {
				name := ">"
				if lane == delaybridge.SinkKafka {
					name = "*"
				}
				e.patterns = append(e.patterns, targetPattern{lane, name})
			}
		default:
			pattern, err := parseTargetPattern(p)
			if err != nil {
				return refuse("pattern " + p + ": " + reasonOf(err))
			}
			e.patterns = append(e.patterns, pattern)
		}
	}
	return e, nil
}

// checkSourceTargets refuses entries for what is no source: a misspelt one would
// leave the source that was meant to the rules of others.
func checkSourceTargets(entries []SourceTargets, sources []delaybridge.Target) error {
next:
	for _, e := range entries {
		if e.Name != "" {
			continue
		}
		for _, s := range sources {
			if sourcesOverlap(e.Source, s) {
				continue next
			}
		}
		return &delaybridge.FieldError{
			Code: "invalid_source_targets", Field: sourceTargetsField, Value: e.String(),
			Reason: "is no source of this bridge: it has neither an ingest subject or topic nor a route of that name",
		}
	}
	return nil
}

// mayName says why a record may not name the target t, "" if it may. Where there
// are entries at all, a source without one may name nothing: what was forgotten
// is closed.
func (d *Decoder) mayName(rec *Record, t delaybridge.Target) string {
	if len(d.cfg.SourceTargets) == 0 || rec.Replayed {
		return ""
	}
	source, entry := d.sourceTargets(rec)
	if entry != nil && matchesAny(entry.patterns, t) {
		return ""
	}
	if entry == nil {
		return "the source " + source + " has no entry in " + sourceTargetsField + ", so its messages may name no target"
	}
	return "is not among the targets of the source " + entry.String() + " (" + sourceTargetsField + ")"
}

// sourceTargets returns how the source of a record is called and the entry that
// counts for it, nil for none.
func (d *Decoder) sourceTargets(rec *Record) (name string, entry *SourceTargets) {
	switch {
	case rec.FromCLI:
		name = sourceCLI
	case rec.FromAPI || rec.Origin == (delaybridge.Target{}):
		name = sourceAPI
	}
	var others *SourceTargets
	for i := range d.cfg.SourceTargets {
		e := &d.cfg.SourceTargets[i]
		switch {
		case e.Name == sourceOthers:
			others = e
		case name != "" && e.Name == name, name == "" && e.Name == "" && sourceTakes(e.Source, rec.Origin):
			return e.String(), e
		}
	}
	if name == "" {
		name = rec.Origin.String()
	}
	return name, others
}

func matchesAny(patterns []targetPattern, t delaybridge.Target) bool {
	for _, p := range patterns {
		if p.match(t) {
			return true
		}
	}
	return false
}
