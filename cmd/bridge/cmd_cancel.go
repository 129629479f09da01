package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"delaybridge"
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
	cmd.RunE = withOperator(func(ctx context.Context, cmd *cobra.Command, args []string, o operator) error {
		id := args[0]
		if id == "" || len(id) > delaybridge.MaxIDBytes {
			return usagef("the id has %d bytes; it takes 1 to %d", len(id), delaybridge.MaxIDBytes)
		}
		state, err := o.Cancel(ctx, id)
		if *output == formatJSON && state != "" {
			if err := printJSON(cmd.OutOrStdout(), cancelView{id, state}); err != nil {
				return err
			}
		}
		if err != nil || *output == formatJSON {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "cancelled %s\n", printable(id))
		return err
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
