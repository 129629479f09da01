// Command bridge takes in messages that are to be delivered later, keeps them
// in Redis, and publishes each to its target when it is due.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9/logging"

	"delaybridge"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	logging.Disable() // go-redis writes to stderr what it returns as an error, too
	ctx, stop := untilSignal(context.Background())
	code := execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// untilSignal returns a context that the first SIGTERM or SIGINT ends. A second
// one ends the process at once: what it holds comes back when the leases end.
func untilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	// Who signals a process and then its whole group, as timeout(1) does, means
	// it once.
	const echo = 300 * time.Millisecond
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
			return
		}
		first := time.Now()
		for range signals {
			if time.Since(first) > echo {
				fmt.Fprintln(os.Stderr, "bridge: second signal, exiting at once")
				os.Exit(exitFailed)
			}
		}
	}()
	return ctx, func() { signal.Stop(signals); cancel() }
}

// execute runs one command line and returns its exit code. Errors are one line
// on stderr.
func execute(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	started := false
	root := newRoot(&started)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	cmd, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errSilent):
		return exitFailed
	}
	said := oneLine(strings.ReplaceAll(err.Error(), "\n", "; "))
	if !started {
		said += fmt.Sprintf(" (see %q)", cmd.CommandPath()+" --help")
	}
	fmt.Fprintln(errOut, "bridge: "+said)
	if !started || isUsage(err) {
		return exitUsage
	}
	return exitFailed
}

// errSilent ends a command with exit code 1 when all has been said already.
var errSilent = errors.New("failed")

// usageError is a wrong use of a command that its arguments' types do not show.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// isUsage tells what the user must change from what went wrong.
func isUsage(err error) bool {
	if _, ok := errors.AsType[usageError](err); ok {
		return true
	}
	if _, ok := errors.AsType[settingError](err); ok {
		return true
	}
	return errors.Is(err, delaybridge.ErrInvalid)
}

// oneLine joins lines and escapes what a terminal would obey.
func oneLine(s string) string { return printable(strings.Join(strings.Fields(s), " ")) }
