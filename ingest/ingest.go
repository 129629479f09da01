// Package ingest takes requests in: it turns the records of NATS and Kafka into
// requests, stores them in the queue, and acknowledges a record to its broker
// only after the queue has it.
package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"delaybridge"
)

// Queue is what ingest asks of the queue.
type Queue interface {
	// Store carries out the requests and answers each, in order. It is safe to
	// repeat: a request's position tells a repetition from news.
	Store(ctx context.Context, requests []delaybridge.Request) []delaybridge.Result
	// Pressure tells how full the queue is.
	Pressure(ctx context.Context) (delaybridge.Pressure, error)
	// Incarnation returns the name under which the positions of a source are
	// kept while mark tells this incarnation of it from others: the source's
	// own name for the first one, another for one that was made anew and
	// numbers its messages from the start again.
	Incarnation(ctx context.Context, source, mark string) (string, error)
}

// Config is what every source needs to hand records to the queue.
type Config struct {
	Queue   Queue
	Decoder *Decoder

	// MaxPending is the number of pending messages above which nothing more is
	// pulled. 0 means no limit. Default: 0.
	MaxPending int64
	// Rate is how many messages a second are taken in of each source (a stream of
	// NATS, a topic of Kafka) by this process; the source keeps the others. 0 means
	// no limit. Default: 0.
	Rate int
	// MaxMemoryRatio is the share of Redis's maxmemory above which nothing more
	// is pulled. Default: 0.9.
	MaxMemoryRatio float64
	// RetryMin and RetryMax bound the pause before the queue is tried again.
	// Default: 50ms and 2s.
	RetryMin, RetryMax time.Duration
	// Grace is how long records in hand may still be stored after the stop was
	// asked for. What is not stored by then is the source's to deliver again.
	// Default: 10s.
	Grace time.Duration

	// Observe is told the outcome of every record, and which configured source
	// it came from (one of Decoder.Sources, such as "nats://later.>"). Nil:
	// nobody is. It is called from several goroutines.
	Observe func(source string, outcome delaybridge.Outcome)
	// Trace follows every record. Default: none, which costs nothing.
	Trace Tracer
	// Log is for changes of state. Default: none.
	Log *zap.Logger
}

// DefaultConfig returns the defaults; Queue and Decoder have none.
func DefaultConfig() Config {
	return Config{
		MaxMemoryRatio: 0.9,
		RetryMin:       50 * time.Millisecond,
		RetryMax:       2 * time.Second,
		Grace:          10 * time.Second,
		Log:            zap.NewNop(),
	}
}

// Validate checks the settings.
func (c *Config) Validate() error {
	switch {
	case c.Queue == nil:
		return errors.New("ingest: no queue")
	case c.Decoder == nil:
		return errors.New("ingest: no decoder")
	case c.MaxPending < 0:
		return fmt.Errorf("ingest: MaxPending is %d, it cannot be negative", c.MaxPending)
	case c.Rate < 0:
		return fmt.Errorf("ingest: Rate is %d, it cannot be negative", c.Rate)
	case !(c.MaxMemoryRatio > 0 && c.MaxMemoryRatio <= 1):
		return fmt.Errorf("ingest: MaxMemoryRatio is %v, want above 0 and at most 1", c.MaxMemoryRatio)
	case c.RetryMin <= 0 || c.RetryMax < c.RetryMin:
		return fmt.Errorf("ingest: RetryMin %v and RetryMax %v, want 0 < RetryMin <= RetryMax", c.RetryMin, c.RetryMax)
	case c.Grace < 0:
		return fmt.Errorf("ingest: Grace is %v, it cannot be negative", c.Grace)
	}
	return nil
}

// Handler stores the records of all sources. It is safe for concurrent use.
type Handler struct {
	cfg      Config
	gate     *gate
	rates    *rates
	refusals *refusals
	// turn beats with each try, which may be many: a queue that is away is no
	// loop that hangs. It may be nil.
	turn *delaybridge.Pulse
}

// NewHandler returns the handler that cfg describes.
func NewHandler(cfg Config) (*Handler, error) {
	if cfg.Log == nil {
		cfg.Log = zap.NewNop()
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Handler{cfg: cfg, gate: &gate{cfg: cfg}, rates: &rates{perSecond: cfg.Rate}, refusals: &refusals{log: cfg.Log}}, nil
}

// withPulse returns the handler for a loop with that pulse.
func (h *Handler) withPulse(turn *delaybridge.Pulse) *Handler {
	return &Handler{cfg: h.cfg, gate: h.gate, rates: h.rates, refusals: h.refusals, turn: turn}
}

// maxRecord is the largest record that a source has to read as a whole: one with
// a payload that is too large is refused with it, up to some length.
func (h *Handler) maxRecord() int64 {
	return max(maxInflatedRecord, int64(h.cfg.Decoder.cfg.MaxPayload)+1<<20)
}

// Handle decodes the records of source, a name for the log, and stores them, in
// order. It returns for each whether the queue has it, so that it may be
// acknowledged. It tries those that the queue did not take again for as long as
// ctx lives, and for the grace after it: only then is one of them false.
func (h *Handler) Handle(ctx context.Context, source string, records []Record) []bool {
	ctx, cancel := withGrace(ctx, h.cfg.Grace)
	defer cancel()
	return h.handle(ctx, source, records)
}

// handle is Handle with a context that ends when the grace does, for a source
// that may still call it several times after the stop.
func (h *Handler) handle(ctx context.Context, source string, records []Record) []bool {
	delaybridge.Failpoint("fetched")
	stored := make([]bool, len(records))
	left := make([]int, len(records)) // indexes of what the queue has not taken
	requests := make([]delaybridge.Request, len(records))
	for i, r := range records {
		left[i] = i
		requests[i] = h.cfg.Decoder.Decode(r)
	}
	var trace Trace
	if h.cfg.Trace != nil {
		trace = h.cfg.Trace.Received(records, requests)
		defer trace.End()
	}
	retry := backoff{min: h.cfg.RetryMin, max: h.cfg.RetryMax}
	for {
		h.turn.Beat()
		var err error
		left, err = h.store(ctx, source, records, requests, left, stored, trace)
		if len(left) == 0 {
			if retry.tries >= loggedTry {
				h.cfg.Log.Info("the queue takes records again", zap.String("source", source))
			}
			return stored
		}
		if retry.tries++; retry.tries == loggedTry {
			h.cfg.Log.Warn("the queue does not take records; trying again until it does",
				zap.String("source", source), zap.Int("count", len(left)), zap.Error(err))
		}
		if !retry.wait(ctx) {
			h.cfg.Log.Warn("stopped before the queue had all records; their source delivers them again",
				zap.String("source", source), zap.Int("count", len(left)), zap.Error(err))
			return stored
		}
	}
}

// loggedTry is the failed try that is logged: a single one is nothing to tell.
const loggedTry = 2

// store tries the requests in left, marks those that the queue has, and returns
// the others with one of their errors.
func (h *Handler) store(ctx context.Context, source string, records []Record, requests []delaybridge.Request, left []int, stored []bool, trace Trace) ([]int, error) {
	batch := make([]delaybridge.Request, len(left))
	copyOf := map[int]int{} // of a request in batch: where the copy of its dead letter is
	for i, n := range left {
		batch[i] = requests[n]
	}
	for i, n := range left {
		if c, ok := h.cfg.Decoder.deadCopy(records[n], &batch[i]); ok {
			copyOf[i] = len(batch)
			batch = append(batch, c)
		}
	}
	results := h.cfg.Queue.Store(ctx, batch)
	delaybridge.Failpoint("stored")
	if len(results) != len(batch) {
		return left, fmt.Errorf("the queue answered %d of %d requests", len(results), len(batch))
	}
	var (
		failed []int
		last   error
	)
	for i, n := range left {
		if c, ok := copyOf[i]; ok && results[i].Err == nil {
			results[i].Err = results[c].Err
		}
		if err := results[i].Err; err != nil {
			if errors.Is(err, delaybridge.ErrInvalid) {
				// Trying it again as it is would block the ones behind it for ever.
				requests[n] = h.cfg.Decoder.Reject(records[n], err)
			}
			failed, last = append(failed, n), err
			continue
		}
		stored[n] = true
		if batch[i].Error != "" && results[i].Outcome != delaybridge.Duplicate {
			h.refusals.note(&records[n], &batch[i], time.Now())
		}
		outcome := results[i].Outcome
		if batch[i].Error != "" && outcome != delaybridge.Duplicate {
			outcome = delaybridge.Rejected // on its way to the reject target, too
		}
		h.observe(source, &records[n], outcome)
		if trace != nil {
			trace.Stored(n, outcome)
		}
	}
	return failed, last
}

func (h *Handler) observe(source string, record *Record, outcome delaybridge.Outcome) {
	if h.cfg.Observe == nil {
		return
	}
	if s, ok := h.cfg.Decoder.sourceOf(record.Origin); ok {
		source = s.String() // a wildcard's subjects are without number
	}
	h.cfg.Observe(source, outcome)
}

// Open reports whether a source may pull more. It asks the queue at most once a
// second.
func (h *Handler) Open(ctx context.Context) bool {
	h.turn.Beat()
	return h.gate.open(ctx)
}

// Held returns why nothing more may be pulled, by the last answer of Open; "" while
// something may.
func (h *Handler) Held() string {
	if reason := h.gate.reason.Load(); reason != nil {
		return *reason
	}
	return ""
}

// WaitOpen returns when a source may pull more, or with ctx's error.
func (h *Handler) WaitOpen(ctx context.Context) error {
	for !h.Open(ctx) {
		if !sleep(ctx, gateInterval) {
			return ctx.Err()
		}
	}
	return ctx.Err()
}

// Incarnation asks the queue for the name of a source, until it answers or ctx
// ends.
func (h *Handler) Incarnation(ctx context.Context, source, mark string) (string, error) {
	retry := backoff{min: h.cfg.RetryMin, max: h.cfg.RetryMax}
	for {
		h.turn.Beat()
		name, err := h.cfg.Queue.Incarnation(ctx, source, mark)
		if err == nil {
			if retry.tries >= loggedTry {
				h.cfg.Log.Info("the queue knows the source again", zap.String("source", source))
			}
			return name, nil
		}
		if retry.tries++; retry.tries == loggedTry {
			h.cfg.Log.Warn("the queue cannot be asked for the source; trying again until it can", zap.String("source", source), zap.Error(err))
		}
		if !retry.wait(ctx) {
			return "", fmt.Errorf("incarnation of %s: %w", source, ctx.Err())
		}
	}
}

// withGrace returns a context that ends when grace has passed since ctx ended.
func withGrace(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		defer cancel()
		sleep(longer, grace)
	})
	return longer, func() { stop(); cancel() }
}
