package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"delaybridge"
	"delaybridge/ingest"
)

// level is how much a finding matters.
type level string

// The levels, the worst last.
const (
	levelOK      level = "ok"
	levelNote    level = "note"    // worth knowing; nothing needs to be done
	levelWarning level = "warning" // works now, and may lose or hold up messages
	levelProblem level = "problem" // messages are held up, lost or refused
)

// The parts that are looked at, in the order in which they are shown.
const (
	partSettings = "settings"
	partRedis    = "redis"
	partQueue    = "queue"
	partNATS     = "nats"
	partKafka    = "kafka"
)

var doctorParts = []string{partSettings, partRedis, partQueue, partNATS, partKafka}

// finding is one thing that was looked at.
type finding struct {
	Part  string `json:"part"`
	Check string `json:"check"`
	Level level  `json:"level"`
	// Text says what was found and what it means.
	Text string `json:"text"`
	// Do says what to do about it, with the command or setting; empty where
	// nothing is to be done.
	Do string `json:"do,omitempty"`
}

// doctorView is the report in JSON.
type doctorView struct {
	Items    []finding `json:"items"`
	Problems int       `json:"problems"`
	Warnings int       `json:"warnings"`
}

func newDoctor() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check Redis, NATS, Kafka and the queue, and say what to do about what is found",
		Long: `Check what the bridge depends on, with the settings that "bridge serve" has: Redis,
NATS, Kafka, the queue, and the clocks. Each finding is ok, a note, a warning or a
problem, and says what to do about it.

It only looks. No message is published or taken in, no stream, topic, consumer or
key is made or changed. What cannot be reached hides nothing of the rest.

Exit codes: 0 no problem, 1 a problem (with --strict: or a warning), 2 a setting is wrong.`,
		Example: `  bridge doctor
  bridge doctor --strict -o json`,
		Args: noArgs,
	}
	output := outputFlag(cmd)
	strict := cmd.Flags().Bool("strict", false, "exit with 1 for a warning, too")
	timeout := cmd.Flags().Duration("timeout", 5*time.Second, "how long one check may take")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *timeout <= 0 {
			return usagef("--timeout takes more than 0")
		}
		s, warnings, err := loadSettings()
		if err != nil {
			return err
		}
		v := examine(cmd.Context(), s, warnings, *timeout)
		out := cmd.OutOrStdout()
		if *output == formatJSON {
			err = printJSON(out, v)
		} else {
			err = v.print(out, isTerminal(out) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
		}
		if err == nil && (v.Problems > 0 || *strict && v.Warnings > 0) {
			return errSilent
		}
		return err
	}
	return cmd
}

// examine looks at all parts at the same time, each check for at most limit, and
// returns what it found, in order.
func examine(ctx context.Context, s *Settings, warnings []string, limit time.Duration) doctorView {
	reports := map[string]*report{}
	for _, part := range doctorParts {
		reports[part] = &report{part: part, secrets: s.secrets()}
	}
	reports[partSettings].checkSettings(s, warnings)
	var wg sync.WaitGroup
	look := func(of func(context.Context), parts ...string) {
		wg.Go(func() {
			// Clients are bounded by their contexts; should one not keep to it, the
			// rest is not to wait for it.
			const checks = 6
			ctx, cancel := context.WithTimeout(ctx, checks*limit)
			defer cancel()
			done := make(chan struct{})
			go func() { defer close(done); of(ctx) }()
			select {
			case <-done:
				return
			case <-ctx.Done():
			}
			select {
			case <-done:
				return
			case <-time.After(limit):
			}
			for _, part := range parts {
				reports[part].close(fmt.Sprintf("gave up after %v: the rest was not looked at", (checks+1)*limit))
			}
		})
	}
	look(func(ctx context.Context) {
		(&redisDoctor{report: reports[partRedis], queue: reports[partQueue], s: s, limit: limit}).run(ctx)
	}, partRedis, partQueue)
	look(func(ctx context.Context) {
		(&natsDoctor{report: reports[partNATS], s: s, limit: limit}).run(ctx)
	}, partNATS)
	look(func(ctx context.Context) {
		(&kafkaDoctor{report: reports[partKafka], s: s, limit: limit}).run(ctx)
	}, partKafka)
	wg.Wait()

	v := doctorView{Items: []finding{}}
	for _, part := range doctorParts {
		for _, f := range reports[part].all() {
			switch f.Level {
			case levelProblem:
				v.Problems++
			case levelWarning:
				v.Warnings++
			}
			v.Items = append(v.Items, f)
		}
	}
	return v
}

// print writes a finding a line, in columns.
func (v doctorView) print(w io.Writer, colour bool) error {
	widths := [3]int{}
	for _, f := range v.Items {
		for i, cell := range []string{string(f.Level), f.Part, f.Check} {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	pad := func(cell string, width int) string {
		return cell + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(cell))+2)
	}
	paint := map[level]string{levelOK: "\x1b[32m", levelNote: "\x1b[36m", levelWarning: "\x1b[33m", levelProblem: "\x1b[31;1m"}
	for _, f := range v.Items {
		first := pad(string(f.Level), widths[0])
		if colour {
			first = paint[f.Level] + first + "\x1b[0m"
		}
		b.WriteString(first + pad(f.Part, widths[1]) + pad(f.Check, widths[2]) + f.Text)
		if f.Do != "" {
			b.WriteString("; do: " + f.Do)
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "\n%s, %s.\n", plural(v.Problems, "problem"), plural(v.Warnings, "warning"))
	_, err := io.WriteString(w, b.String())
	return err
}

// urlWithUser matches a URL within a text up to the end of its user part. A finding
// holds what servers have said, in which an @ may mean anything else.
var urlWithUser = regexp.MustCompile(`[A-Za-z][A-Za-z0-9+.-]*://[^\s,"]*@`)

// report collects the findings of one part. It is safe for concurrent use.
type report struct {
	part    string
	secrets []string

	mu       sync.Mutex
	findings []finding
	closed   bool
}

func (r *report) add(l level, check, text, do string) {
	clean := func(s string) string {
		s = urlWithUser.ReplaceAllStringFunc(strings.Join(strings.Fields(s), " "), func(u string) string {
			scheme, rest, _ := strings.Cut(u, "://")
			return scheme + "://" + maskUser(rest)
		})
		s = passwordParameter.ReplaceAllString(s, "${1}"+masked)
		for _, secret := range r.secrets {
			s = strings.ReplaceAll(s, secret, masked)
		}
		return printable(s)
	}
	f := finding{Part: r.part, Check: check, Level: l, Text: clean(text), Do: clean(do)}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.findings = append(r.findings, f)
	}
}

func (r *report) ok(check, format string, args ...any) {
	r.add(levelOK, check, fmt.Sprintf(format, args...), "")
}

func (r *report) note(check, text, do string)    { r.add(levelNote, check, text, do) }
func (r *report) warning(check, text, do string) { r.add(levelWarning, check, text, do) }
func (r *report) problem(check, text, do string) { r.add(levelProblem, check, text, do) }

// close adds a last problem and takes no more.
func (r *report) close(text string) {
	r.problem("time", text, "look for what does not answer: see the findings before this one, or take more time with --timeout")
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
}

func (r *report) all() []finding {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.findings)
}

// secrets are the values that no text may show, whatever wrote it. Short ones are
// left out: what is shown is masked by its place, and a password such as "a" would
// mask every a.
func (s *Settings) secrets() (values []string) {
	add := func(v string) {
		if len(v) >= 6 {
			values = append(values, v)
		}
	}
	for _, v := range []secret{s.Redis.Password, s.NATS.Nkey, s.Kafka.SASL.Password, s.API.Token} {
		add(string(v))
	}
	for _, a := range []address{s.Redis.URL, s.NATS.URL} {
		for _, u := range strings.Split(string(a), ",") {
			rest := u
			if _, after, ok := strings.Cut(u, "://"); ok {
				rest = after
			}
			if at := strings.LastIndexByte(rest, '@'); at > 0 {
				user, password, isPassword := strings.Cut(rest[:at], ":")
				if isPassword {
					add(password)
				} else {
					add(user) // a token
				}
			}
		}
	}
	return values
}

// checkSettings reports what the settings alone tell.
func (r *report) checkSettings(s *Settings, warnings []string) {
	if e := s.checkBrokers(); e != nil {
		r.problem("brokers", e.Error(), "set BRIDGE_NATS_URL or BRIDGE_KAFKA_BROKERS")
	}
	for _, w := range warnings {
		r.warning("variables", w, "correct its name, or unset it")
	}
	for _, w := range s.targetsOfOthers() {
		r.warning("targets", w, "set the broker, or run a process that has it")
	}
	if len(r.all()) == 0 {
		r.ok("settings", "roles %s, namespace %s, %d shards", s.Roles, s.Namespace, s.Shards)
	}
}

// settingTarget is a target that the settings name.
type settingTarget struct {
	delaybridge.Target
	setting string
}

// settingTargets are the targets of one kind of sinks that the settings name, each
// once: of routes, of the reject and the dead target, and those that may be used
// and are no patterns.
func (s *Settings) settingTargets(sinks ...string) (targets []settingTarget) {
	add := func(setting string, t delaybridge.Target) {
		known := slices.ContainsFunc(targets, func(o settingTarget) bool { return o.Target == t })
		if slices.Contains(sinks, t.Sink) && !known {
			targets = append(targets, settingTarget{t, prefix + "_" + setting})
		}
	}
	routes, _ := ingest.ParseRoutes(string(s.Routes)) // these were checked
	for _, r := range routes {
		add("ROUTES", r.Target)
	}
	for _, named := range []struct {
		setting string
		value   text
	}{{"REJECT_TARGET", s.RejectTarget}, {"DEAD_TARGET", s.DeadTarget}} {
		t, _ := optionalTarget(named.setting, named.value)
		add(named.setting, t)
	}
	for _, pattern := range s.AllowedTargets {
		if t, err := delaybridge.ParseTarget(pattern); err == nil && !strings.ContainsAny(pattern, "*>?") {
			add("ALLOWED_TARGETS", t)
		}
	}
	return targets
}

// routeSources are the sources of the routes, of one broker.
func (s *Settings) routeSources(sink string) (names []string) {
	routes, _ := ingest.ParseRoutes(string(s.Routes)) // they were checked
	for _, r := range routes {
		if r.Source.Sink == sink && !slices.Contains(names, r.Source.Name) {
			names = append(names, r.Source.Name)
		}
	}
	return names
}

// checkClock reports how far another clock is from this host's. half is for how
// long the answer may have been under way, which cannot be told from skew.
func (r *report) checkClock(whose string, skew, half time.Duration, tolerance time.Duration) {
	const check, do = "clock", "synchronise the clocks of both hosts (chronyc tracking, or timedatectl), or raise BRIDGE_CLOCK_TOLERANCE"
	text := fmt.Sprintf("%s's clock is %v from this host's (within %v), and %v is tolerated", whose, skew.Round(time.Millisecond), half.Round(time.Millisecond), tolerance)
	switch off := max(skew, -skew) - half; {
	case off > tolerance:
		r.problem(check, text+": messages may be held back, or be delivered late", do)
	case off > max(tolerance/2, time.Second):
		r.warning(check, text, do)
	default:
		r.ok(check, "%s", text)
	}
}

// byteSize writes a number of bytes for people.
func byteSize(n int64) string {
	for _, u := range sizeUnits {
		if n >= u.bytes {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/float64(u.bytes)), ".0") + " " + u.name
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// shortCause is an error's text without what the caller says anyway.
func shortCause(err error) string {
	if errors.Is(err, context.DeadlineExceeded) {
		return "no answer in time"
	}
	return err.Error()
}
