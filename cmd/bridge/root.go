package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// newRoot builds the command tree. started is set once a command's own work
// begins; until then every error is one of usage.
func newRoot(started *bool) *cobra.Command {
	root := &cobra.Command{
		Use:   "bridge",
		Short: "Deliver messages later: NATS and Kafka messages, held in Redis until they are due",
		Long: `Delaybridge takes in messages with a delay, keeps them in Redis, and publishes
each to its target when it is due.

Settings come from the environment (BRIDGE_...); "bridge config" lists them.
Exit codes: 0 ok, 1 failed, 2 wrong usage or a wrong setting.`,
		Example: `  bridge dev                                            try it, with nothing installed
  bridge serve                                          run it
  bridge schedule --target nats://orders.timeout --delay 5s '{"order":7}'
  bridge stats --watch`,
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.Version = currentVersion().String()
	root.SetVersionTemplate("{{.Version}}\n")
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		newServe(), newDev(), newDrain(),
		newSchedule(), newCancel(), newGet(), newList(), newStats(), newDead(), newBench(),
		newDoctor(),
		newConfig(), newVersion(),
	)
	root.PersistentFlags().String(apiFlag, "", "ask the API at this URL instead of Redis; its token is taken from BRIDGE_API_TOKEN")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		if apiURL(cmd) != "" && !asksAPI(cmd) {
			return fmt.Errorf("takes no --%s", apiFlag)
		}
		return nil
	}
	markStart(root, started)
	return root
}

// asksAPI reports whether a command can ask the API.
func asksAPI(cmd *cobra.Command) bool {
	switch cmd.CommandPath() {
	case "bridge schedule", "bridge cancel", "bridge get", "bridge list", "bridge stats",
		"bridge dead list", "bridge dead show", "bridge dead replay", "bridge dead purge":
		return true
	}
	return false
}

// markStart makes every command of the tree set started before its own work.
func markStart(cmd *cobra.Command, started *bool) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*started = true
			return run(cmd, args)
		}
	}
	for _, c := range cmd.Commands() {
		markStart(c, started)
	}
}

// group makes a command that only holds others.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(commands...)
	return c
}

func noArgs(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("takes no argument such as %q", args[0])
	}
	return nil
}

func oneID(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("takes one id, not %d", len(args))
	}
	return nil
}

func onePayload(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return fmt.Errorf("takes one payload, not %d: quote what has blanks", len(args))
	}
	return nil
}
