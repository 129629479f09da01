// Package scheduler claims due messages, publishes them through a sink, and
// settles each claim once.
//
// Each lane has a loop of its own, so that a broker that is down holds up its
// own messages only:
//
//	wait until something is due -> claim -> publish, a batch for each target
//	                                  ^         |
//	                                  |         v
//	                            room again <- settle: ack, retry, release or bury
package scheduler

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"delaybridge"
)

// Queue is what the scheduler asks of the queue.
type Queue interface {
	// Shards is the number of shards.
	Shards() int
	// Peek says for each shard how long until something of the lane can be
	// claimed, negative if nothing is there; with leases it looks for leases that
	// run out, too.
	Peek(ctx context.Context, lane string, leases bool) ([]time.Duration, error)
	// Claim leases due messages, and answers each ask.
	Claim(ctx context.Context, lane string, asks []delaybridge.Ask) []delaybridge.Grant
	// Watch calls wake when something earlier has come in, and with shard -1
	// when that may have been missed. It blocks.
	Watch(ctx context.Context, wake func(lane string, shard int)) error
	// Sweep drops what has outlived its time in a shard.
	Sweep(ctx context.Context, shard int) (int, error)
	// Repair makes what has fallen out of all sets due again, and counts it.
	Repair(ctx context.Context, shard int) (int, error)
	// Wiped reports, once, that the queue's data were lost.
	Wiped(ctx context.Context) (bool, error)

	// Store takes in copies of dead letters.
	Store(ctx context.Context, requests []delaybridge.Request) []delaybridge.Result
	// Ack, Release, Retry and Bury settle claims. Each returns one error a claim;
	// what is not ErrLeaseLost is safe to try again.
	Ack(ctx context.Context, claims []delaybridge.Claim) []error
	Release(ctx context.Context, claims []delaybridge.Claim) []error
	Retry(ctx context.Context, retries []delaybridge.Retry) []error
	Bury(ctx context.Context, burials []delaybridge.Burial) []error
}

// Config tells a Scheduler what to claim and how to go about it.
type Config struct {
	// Lanes are the sinks that the process can publish to. No default.
	Lanes []string
	// Batch is the most messages claimed from a shard, and published, in one go.
	// Defaults to 200.
	Batch int
	// MaxInflight is the most messages that a lane holds at a time. Defaults to 8000.
	MaxInflight int
	// MaxInflightBytes is how much a lane may hold before it claims no more, so
	// that large messages for a broker that hangs do not fill the memory; one more
	// round of claims may pass it. Defaults to 128 MiB.
	MaxInflightBytes int
	// Lease is the queue's lease: how long settling is worth trying. Defaults to 60 s.
	Lease time.Duration
	// RetryBase is the mean wait after the first failed attempt; it doubles with
	// each further one, up to RetryMax. They default to 1 s and 5 min.
	RetryBase, RetryMax time.Duration
	// MaxAttempts is after how many failed attempts a message is a dead letter.
	// Defaults to 12.
	MaxAttempts int
	// DeadTarget is told of each dead letter by a message of its own, but for
	// those that cannot be read. Defaults to none.
	DeadTarget delaybridge.Target
	// PollMax is the longest that a lane sleeps without a look at the queue.
	// Defaults to 1 s.
	PollMax time.Duration
	// ShutdownTimeout is how long Run may take to finish what it holds once its
	// context has ended. Defaults to 30 s.
	ShutdownTimeout time.Duration

	// Observe counts what happens. Defaults to none.
	Observe Observer
	// Settled is told what the queue has taken of a lane's outcomes. It is called
	// from several goroutines. Defaults to none.
	Settled func(lane string, s Settled)
	// Log takes what an operator wants to know; nothing for each message but
	// for dead letters. Defaults to no log.
	Log *zap.Logger
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Batch: 200, MaxInflight: 8000, MaxInflightBytes: 128 << 20, Lease: time.Minute,
		RetryBase: time.Second, RetryMax: 5 * time.Minute, MaxAttempts: 12,
		PollMax: time.Second, ShutdownTimeout: 30 * time.Second, Log: zap.NewNop(),
	}
}

// Validate returns an error that names the first field that makes no sense.
func (c Config) Validate() error {
	switch {
	case len(c.Lanes) == 0:
		return fmt.Errorf("no lanes")
	case c.Batch < 1:
		return fmt.Errorf("batch %d, want at least 1", c.Batch)
	case c.MaxInflight < c.Batch:
		return fmt.Errorf("max inflight %d is less than the batch of %d", c.MaxInflight, c.Batch)
	case c.MaxInflightBytes < 1:
		return fmt.Errorf("max inflight bytes %d, want at least 1", c.MaxInflightBytes)
	case c.Lease <= 0:
		return fmt.Errorf("lease %v, want more than 0", c.Lease)
	case c.RetryBase < time.Millisecond:
		return fmt.Errorf("retry base %v, want at least 1ms", c.RetryBase)
	case c.RetryMax < c.RetryBase:
		return fmt.Errorf("retry max %v is less than the retry base %v", c.RetryMax, c.RetryBase)
	case c.MaxAttempts < 1:
		return fmt.Errorf("max attempts %d, want at least 1", c.MaxAttempts)
	case c.PollMax < time.Millisecond:
		return fmt.Errorf("poll max %v, want at least 1ms", c.PollMax)
	case c.ShutdownTimeout < 0:
		return fmt.Errorf("shutdown timeout %v is negative", c.ShutdownTimeout)
	case c.Log == nil:
		return fmt.Errorf("no log")
	}
	return nil
}
