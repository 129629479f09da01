package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"delaybridge"
	"delaybridge/luascripts"
)

func newCancel() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cancel ID",
		Short: "Take back a pending message",
		Long: `Take back a pending message. It fails (exit code 1) when it is too late: the
message is in flight, delivered, dead or cancelled already, or not known.`,
		Example: `  bridge cancel order-7`,
		Args:    oneID,
	}
	output := outputFlag(cmd)
	cmd.RunE = withQueue(func(ctx context.Context, cmd *cobra.Command, args []string, _ *Settings, q *luascripts.Queue) error {
		id := args[0]
		if id == "" || len(id) > delaybridge.MaxIDBytes {
			return usagef("the id has %d bytes; it takes 1 to %d", len(id), delaybridge.MaxIDBytes)
		}
		r := q.Store(ctx, []delaybridge.Request{{
			Op: delaybridge.OpCancel, FromAPI: true,
			Message: delaybridge.Message{ID: id, Position: newPosition()},
		}})[0]
		var state delaybridge.State
		switch {
		case r.Err != nil:
			return r.Err
		case r.Outcome == delaybridge.Cancelled:
			state = delaybridge.StateCancelled
		case r.Outcome == delaybridge.TooLate:
			state = r.State
		default:
			return fmt.Errorf("nothing is known of %s", id)
		}
		if *output == formatJSON {
			if err := printJSON(cmd.OutOrStdout(), map[string]any{"id": id, "state": state}); err != nil {
				return err
			}
		}
		if r.Outcome == delaybridge.TooLate {
			return fmt.Errorf("too late to cancel %s: it is %s", id, strings.ReplaceAll(string(state), "_", " "))
		}
		if *output == formatText {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "cancelled %s\n", printable(id))
			return err
		}
		return nil
	})
	return cmd
}

// newPosition returns a position for one request of a person: a source of its
// own, so that it is never taken for a redelivery of another.
func newPosition() delaybridge.Position {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return delaybridge.Position{Source: "api:" + hex.EncodeToString(b[:]), Offset: 1}
}

// settingsFor loads the settings for a command of a person, and warns on stderr.
func settingsFor(stderr io.Writer) (*Settings, error) {
	s, warnings, err := loadSettings()
	for _, w := range warnings {
		fmt.Fprintln(stderr, "bridge: warning: "+oneLine(w))
	}
	return s, err
}

// withQueue wraps the work of a command that asks the queue one thing.
func withQueue(work func(ctx context.Context, cmd *cobra.Command, args []string, s *Settings, q *luascripts.Queue) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		s, err := settingsFor(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		q, client, err := openQueue(cmd.Context(), s)
		if err != nil {
			return err
		}
		defer func() { _ = client.Close() }()
		return work(cmd.Context(), cmd, args, s, q)
	}
}
