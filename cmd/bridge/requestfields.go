package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"delaybridge"
)

// requestFields are what a request to schedule says, by the names that it has as
// a flag, as a header and in JSON. Errors of the decoder name the header.
var requestFields = []requestField{
	{"target", "Bridge-Target", "target"},
	{"delay", "Bridge-Delay", "delay"},
	{"at", "Bridge-Deliver-At", "deliver_at"},
	{"id", "Bridge-Id", "id"},
	{"expires-after", "Bridge-Expires-After", "expires_after"},
	{"key", "Bridge-Key", "key"},
	{"", "Bridge-Op", "op"},
}

type requestField struct{ flag, header, json string }

// noDefault is what the decoder says of sources that might have had a route.
const noDefault = ", since the source has no default"

// renamed returns an error that names the fields as name does, instead of by
// their headers.
func renamed(fe *delaybridge.FieldError, name func(requestField) string) *delaybridge.FieldError {
	out := *fe
	out.Reason = strings.TrimSuffix(out.Reason, noDefault)
	for _, f := range requestFields {
		to := name(f)
		if strings.EqualFold(fe.Field, f.header) {
			out.Field = to
		}
		// Whole words only: Bridge-Key is the beginning of another name.
		out.Reason = regexp.MustCompile(regexp.QuoteMeta(f.header)+`\b`).ReplaceAllLiteralString(out.Reason, to)
	}
	return &out
}

// asFlag is the header where there is no flag: a command takes that, too.
func (f requestField) asFlag() string {
	if f.flag == "" {
		return f.header
	}
	return "--" + f.flag
}

func (f requestField) asJSON() string { return f.json }

// flagError names the flag where an error names its header, or where the API
// names a field of its own.
func flagError(err error) error {
	if fe, ok := errors.AsType[*delaybridge.FieldError](err); ok {
		return fmt.Errorf("%w", renamed(fe, requestField.asFlag))
	}
	p, ok := errors.AsType[*problem](err)
	if !ok || p.field == "" {
		return err
	}
	said := *p
	said.text = flagText(p.text, p.field)
	return &said
}

// flagText puts flags in place of the names that a text of the API has for them:
// "<code>: <field>: <value>: <reason>". Only what the reason can mean as a name
// is one there.
func flagText(text, field string) string {
	code, rest, ok := strings.Cut(text, ": "+field+": ")
	if !ok {
		return text
	}
	for _, f := range requestFields {
		to := f.asFlag()
		if f.json == field {
			field = to
		}
		for _, form := range []string{"this or %s is required", "%s is given too"} {
			rest = strings.Replace(rest, fmt.Sprintf(form, f.json), fmt.Sprintf(form, to), 1)
		}
	}
	return code + ": " + field + ": " + rest
}
