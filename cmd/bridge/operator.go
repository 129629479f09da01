package main

import (
	"context"

	"github.com/spf13/cobra"

	"delaybridge"
	"delaybridge/ingest"
)

// operator is what a command asks: the queue itself, or the API of a process. The
// answers and errors are those of operations.
type operator interface {
	Schedule(ctx context.Context, record ingest.Record) (acceptedView, error)
	Cancel(ctx context.Context, id string) (delaybridge.State, error)
	Get(ctx context.Context, id string) (messageView, error)
	GetFull(ctx context.Context, id string) (fullMessageView, error)
	List(ctx context.Context, sink string, p page) (listView[messageView], error)
	Stats(ctx context.Context) (statsView, error)
	Letters(ctx context.Context, f letterFilter, p page) (listView[letterView], error)
	Letter(ctx context.Context, id string) (fullLetterView, error)
	Replay(ctx context.Context, l letterView, how replayOptions) error
	Purge(ctx context.Context, letters []letterView) []error
}

var (
	_ operator = (*operations)(nil)
	_ operator = (*apiClient)(nil)
)

// apiURL is the value of --api, empty where a command speaks to Redis itself.
func apiURL(cmd *cobra.Command) string {
	f := cmd.Flag(apiFlag)
	if f == nil {
		return ""
	}
	return f.Value.String()
}

// openOperator returns what a command asks. Call done afterwards.
func openOperator(cmd *cobra.Command, s *Settings) (o operator, done func(), err error) {
	// An empty URL is a variable that is not set: Redis was not meant.
	if base := apiURL(cmd); base != "" || cmd.Flags().Changed(apiFlag) {
		c, err := newAPIClient(base, string(s.API.Token))
		if err != nil {
			return nil, nil, err
		}
		return c, c.close, nil
	}
	decoder, err := s.newDecoder()
	if err != nil {
		return nil, nil, err
	}
	queue, client, err := openQueue(cmd.Context(), s)
	if err != nil {
		return nil, nil, err
	}
	return &operations{queue: queue, decoder: decoder, fromCLI: true}, func() { _ = client.Close() }, nil
}

// withOperator wraps the work of a command that asks one thing.
func withOperator(work func(ctx context.Context, cmd *cobra.Command, args []string, o operator) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s, err := settingsFor(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		o, done, err := openOperator(cmd, s)
		if err != nil {
			return err
		}
		defer done()
		return work(cmd.Context(), cmd, args, o)
	}
}
