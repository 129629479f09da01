package ingest_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"delaybridge"
	"delaybridge/ingest"
)

var update = flag.Bool("update", false, "write the answers of testdata/decode/*.golden anew")

// The golden files say what becomes of a record, a file for each rule. A case
// is a sentence behind ==, the record, --, and the request that it becomes.
//
//	config allowed kafka://orders.*    once per file, before the first case
//	== a sentence
//	from nats://bridge.schedule        where it was published to (this, unless said)
//	by cli                             a request by that, or by api
//	at 2030-01-01T00:00:00Z            its own timestamp (this, unless said; - is none)
//	key "k"                            the Kafka key, or null
//	header Bridge-Delay: 90s           as it stands, or a Go string behind =, or = null
//	body "hello"                       a Go string, or null
//
// It is ten seconds past that timestamp, and the record is number 7 of its source.
func TestDecodeGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/decode/*.golden")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".golden"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			g := parseGolden(t, string(text))
			decoder, err := ingest.NewDecoder(g.config)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			out.WriteString(g.head)
			for _, c := range g.cases {
				got := formatRequest(decoder.Decode(c.record))
				out.WriteString(c.text + "--\n" + got + "\n")
				t.Run(c.sentence, func(t *testing.T) {
					if !*update && got != c.want {
						t.Errorf("got\n%s\nwant\n%s", got, c.want)
					}
				})
			}
			if *update {
				if err := os.WriteFile(file, []byte(strings.TrimRight(out.String(), "\n")+"\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

type golden struct {
	head   string
	config ingest.DecoderConfig
	cases  []goldenCase
}

type goldenCase struct {
	sentence, text, want string
	record               ingest.Record
}

var goldenTime = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func parseGolden(t *testing.T, text string) golden {
	t.Helper()
	head, rest, _ := strings.Cut(text, "== ")
	g := golden{head: head, config: ingest.DefaultDecoderConfig()}
	g.config.Now = func() time.Time { return goldenTime.Add(10 * time.Second) }
	g.config.Sources = []delaybridge.Target{{Sink: "nats", Name: "bridge.schedule"}, {Sink: "kafka", Name: "bridge.schedule"}}
	for line := range strings.Lines(head) {
		if setting, ok := strings.CutPrefix(strings.TrimSpace(line), "config "); ok {
			configure(t, &g.config, setting)
		}
	}
	for text := range strings.SplitSeq(rest, "\n== ") {
		in, want, _ := strings.Cut(text, "--\n")
		sentence, lines, _ := strings.Cut(in, "\n")
		g.cases = append(g.cases, goldenCase{
			sentence: sentence, text: "== " + in, want: strings.TrimRight(want, "\n") + "\n",
			record: parseRecord(t, lines),
		})
	}
	return g
}

func configure(t *testing.T, cfg *ingest.DecoderConfig, setting string) {
	t.Helper()
	name, value, _ := strings.Cut(setting, " ")
	var err error
	switch name {
	case "allowed":
		cfg.AllowedTargets = strings.Fields(value)
	case "routes":
		cfg.Routes, err = ingest.ParseRoutes(value)
	case "source_targets":
		cfg.SourceTargets, err = ingest.ParseSourceTargets(value)
	case "reject":
		cfg.RejectTarget, err = delaybridge.ParseTarget(value)
	case "expires":
		cfg.ExpiresAfter, err = delaybridge.ParseDuration(value)
	case "max_delay":
		cfg.MaxDelay, err = delaybridge.ParseDuration(value)
	case "max_payload":
		cfg.MaxPayload, err = strconv.Atoi(value)
	case "max_headers":
		cfg.MaxHeaders, err = strconv.Atoi(value)
	case "max_header_bytes":
		cfg.MaxHeaderBytes, err = strconv.Atoi(value)
	default:
		t.Fatalf("no such setting: %s", setting)
	}
	if err != nil {
		t.Fatalf("%s: %v", setting, err)
	}
}

func parseRecord(t *testing.T, lines string) ingest.Record {
	t.Helper()
	rec := ingest.Record{
		Origin: delaybridge.Target{Sink: "nats", Name: "bridge.schedule"},
		Time:   goldenTime,
	}
	for line := range strings.Lines(lines) {
		word, value, _ := strings.Cut(strings.TrimRight(line, "\n"), " ")
		switch word {
		case "from":
			rec.Origin.Sink, rec.Origin.Name, _ = strings.Cut(value, "://")
		case "at":
			rec.Time = time.Time{}
			if value != "-" {
				at, err := time.Parse(time.RFC3339Nano, value)
				if err != nil {
					t.Fatal(err)
				}
				rec.Time = at
			}
		case "key":
			rec.Key = parseBytes(t, value)
		case "body":
			rec.Payload = parseBytes(t, value)
		case "by":
			rec.Origin, rec.FromAPI, rec.FromCLI = delaybridge.Target{}, true, value == "cli"
		case "envelope":
			rec.Envelope = true
		case "header":
			h := delaybridge.Header{}
			if name, text, ok := strings.Cut(value, ": "); ok && !strings.Contains(name, " = ") {
				h.Name, h.Value = name, []byte(text)
			} else {
				name, text, _ := strings.Cut(value, " = ")
				h.Name, h.Value = name, parseBytes(t, text)
			}
			rec.Headers = append(rec.Headers, h)
		case "":
		default:
			t.Fatalf("no such line in a record: %q", line)
		}
	}
	rec.Position = delaybridge.Position{Source: "nats:S", Offset: 7}
	if rec.Origin.Sink == "kafka" {
		rec.Position.Source = "kafka:" + rec.Origin.Name + ":3"
	}
	return rec
}

func parseBytes(t *testing.T, s string) []byte {
	t.Helper()
	if s == "null" {
		return nil
	}
	text, err := strconv.Unquote(s)
	if err != nil {
		t.Fatalf("%s: %v", s, err)
	}
	return []byte(text)
}

func formatBytes(b []byte) string {
	if b == nil {
		return "null"
	}
	return strconv.Quote(string(b))
}

func formatRequest(r delaybridge.Request) string {
	var b bytes.Buffer
	m := r.Message
	fmt.Fprintf(&b, "%v %s\n", r.Op, m.ID)
	if r.Error != "" {
		fmt.Fprintf(&b, "error %s\n", r.Error)
	}
	if r.Op == delaybridge.OpCancel {
		return b.String()
	}
	if m.Target != (delaybridge.Target{}) {
		fmt.Fprintf(&b, "target %v\n", m.Target)
	}
	const layout = "2006-01-02T15:04:05.999Z07:00"
	fmt.Fprintf(&b, "scheduled %s\n", m.Scheduled.Format(layout))
	fmt.Fprintf(&b, "due %s\n", m.Due.Format(layout))
	if m.ExpiresAfter != 0 {
		fmt.Fprintf(&b, "expires %v\n", m.ExpiresAfter)
	}
	if m.Key != nil {
		fmt.Fprintf(&b, "key %s\n", formatBytes(m.Key))
	}
	for _, h := range m.Headers {
		fmt.Fprintf(&b, "header %s = %s\n", h.Name, formatBytes(h.Value))
	}
	fmt.Fprintf(&b, "payload %s\n", formatBytes(m.Payload))
	return b.String()
}
