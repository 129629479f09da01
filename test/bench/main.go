// Command bench runs the bridge and what it is compared with in turn, on the same
// servers on the same machine, and prints what it found as a table.
//
//	go run .             everything, three rounds: about 14 minutes
//	go run . -quick      a smoke run with small counts, whose figures mean nothing
//	go run . -only drain measures whose name matches
//
// Each measurement starts a redis-server (AOF, fsync every second) and a NATS
// server (file storage), all workers are processes of their own, and the
// contenders of a measure take turns in each round. Results are appended to
// raw.jsonl in the output directory as they come; -from prints the table of such a
// file without measuring.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// modeVariable makes this program one of the servers or workers.
const modeVariable = "DELAYBRIDGE_BENCH_MODE"

func main() {
	if mode := os.Getenv(modeVariable); mode != "" {
		if err := runMode(mode, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// runMode is this program as what it has started itself for.
func runMode(mode string, args []string) error {
	switch mode {
	case "nats-server":
		return natsServer(args)
	case "kfake":
		return kafkaServer(args)
	case "bare":
		return bareWorker(args)
	case "asynq":
		return queuedWorker(args)
	case "probe":
		return probeWorker(args)
	}
	return fmt.Errorf("no mode %q", mode)
}

// bench is one run.
type bench struct {
	bridge  string // the binary
	scratch string // directory of the servers
	raw     io.Writer
	log     io.Writer
	noKafka bool
	lead    float64 // how much longer than usual storing may take
}

// sample is one measurement.
type sample struct {
	At        time.Time `json:"at"`
	Round     int       `json:"round"`
	Measure   string    `json:"measure"`
	Contender string    `json:"contender"`
	Seconds   float64   `json:"seconds"` // that it took
	Values    values    `json:"values"`
	Error     string    `json:"error,omitempty"`
}

// errSkipped is of a measure that cannot be taken here.
var errSkipped = errors.New("left out")

func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(b.log, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	rounds := flags.Int("rounds", 3, "how often everything is measured")
	quick := flags.Bool("quick", false, "a smoke run: one round with small counts, whose figures mean nothing")
	big := flags.Bool("big", false, "a backlog of ten million, too (about 6 GB in Redis)")
	only := flags.String("only", "", "a pattern that the names of the measures match")
	who := flags.String("who", "", "a pattern that the names of the contenders match")
	out := flags.String("out", "", "directory for raw.jsonl (default: a new one among temporary files)")
	from := flags.String("from", "", "print the table of this raw.jsonl and measure nothing")
	output := flags.String("o", "table", "how to print: table or json")
	bridge := flags.String("bridge", "", "binary to measure (default: built from the source)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *rounds < 1 || *output != "table" && *output != "json" {
		return fmt.Errorf("takes no argument such as %q, at least 1 round, and table or json as -o", flags.Arg(0))
	}
	if *from != "" {
		samples, err := readSamples(*from)
		if err != nil {
			return err
		}
		return printSamples(stdout, samples, *output)
	}
	matches, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	matchesWho, err := regexp.Compile(*who)
	if err != nil {
		return fmt.Errorf("-who: %w", err)
	}
	b := &bench{log: stderr, bridge: *bridge}
	if b.scratch, err = os.MkdirTemp("", "bench"); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(b.scratch) }()
	if *out == "" {
		if *out, err = os.MkdirTemp("", "bench-results"); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	raw, err := os.OpenFile(filepath.Join(*out, "raw.jsonl"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { _ = raw.Close() }()
	b.raw = raw
	if b.bridge == "" {
		if b.bridge, err = build(ctx, b.scratch); err != nil {
			return err
		}
	}
	s := fullSizes()
	if *quick {
		s, *rounds = quickSizes(), 1
	}
	if *big {
		s.backlogs = append(s.backlogs, 10_000_000)
	}
	b.say("results go to %s", raw.Name())
	samples, failed := b.measure(ctx, measures(s), *rounds, func(measure, contender string) bool {
		return matches.MatchString(measure) && matchesWho.MatchString(contender)
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := printSamples(stdout, samples, *output); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d measurements failed", failed)
	}
	return nil
}

// measure takes all measures, round by round.
func (b *bench) measure(ctx context.Context, all []measure, rounds int, wanted func(measure, contender string) bool) (samples []sample, failed int) {
	for round := 1; round <= rounds; round++ {
		for _, m := range all {
			for _, name := range m.contenders {
				if ctx.Err() != nil || !wanted(m.name, name) {
					continue
				}
				began := time.Now()
				limited, cancel := context.WithTimeout(ctx, 10*time.Minute)
				var v values
				err := errTooSlow
				for b.lead = 1; errors.Is(err, errTooSlow) && b.lead <= 8; b.lead *= 2 {
					v, err = m.run(limited, b, name)
				}
				cancel()
				if errors.Is(err, errSkipped) {
					continue
				}
				s := sample{At: began, Round: round, Measure: m.name, Contender: name, Seconds: time.Since(began).Seconds(), Values: v}
				if err != nil {
					failed++
					s.Error = err.Error()
				}
				samples = append(samples, s)
				if line, err := json.Marshal(s); err == nil {
					_, _ = b.raw.Write(append(line, '\n'))
				}
				b.say("round %d of %d  %-30s %-24s %5.1f s  %s%s", round, rounds, m.name, name, s.Seconds, v.text(), s.Error)
			}
		}
	}
	return samples, failed
}

// build builds the bridge from the module that this one replaces its own with.
func build(ctx context.Context, dir string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "delaybridge").Output()
	if err != nil {
		return "", fmt.Errorf("find the bridge's source: %w", err)
	}
	path := filepath.Join(dir, "bridge")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "./cmd/bridge")
	cmd.Dir = strings.TrimSpace(string(root))
	if said, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the bridge: %w: %s", err, said)
	}
	return path, nil
}

// readSamples reads a raw.jsonl. It may hold several runs.
func readSamples(path string) ([]sample, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var samples []sample
	for d := json.NewDecoder(f); ; {
		var s sample
		err := d.Decode(&s)
		if errors.Is(err, io.EOF) {
			return samples, nil
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		samples = append(samples, s)
	}
}
