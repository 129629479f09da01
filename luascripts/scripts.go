package luascripts

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

//go:embed prelude.lua
var prelude string

var (
	//go:embed schedule.lua
	scheduleLua string
	//go:embed cancel.lua
	cancelLua string
	//go:embed claim.lua
	claimLua string
	//go:embed ack.lua
	ackLua string
	//go:embed retry.lua
	retryLua string
	//go:embed release.lua
	releaseLua string
	//go:embed bury.lua
	buryLua string
	//go:embed reject.lua
	rejectLua string
	//go:embed replay.lua
	replayLua string
	//go:embed purge.lua
	purgeLua string
	//go:embed sweep.lua
	sweepLua string
	//go:embed stray.lua
	strayLua string
	//go:embed repair.lua
	repairLua string
	//go:embed page.lua
	pageLua string
	//go:embed probe.lua
	probeLua string
)

// script is one transition's text with its name for errors.
type script struct {
	name string
	*redis.Script
}

// scripts are all transitions, and page and probe, which change nothing. A Queue has its own,
// so that the tests can put Redis's "#!lua" line before them, with which it
// checks keys and slots.
type scripts struct {
	schedule, cancel, claim, ack, retry, release, bury, reject, replay, purge, sweep, stray, repair, page, probe script
}

func newScripts(shebang string) scripts {
	text := func(name, body string) script {
		return script{name, redis.NewScript(shebang + prelude + body)}
	}
	return scripts{
		schedule: text("schedule", scheduleLua), cancel: text("cancel", cancelLua),
		claim: text("claim", claimLua), ack: text("ack", ackLua), retry: text("retry", retryLua),
		release: text("release", releaseLua), bury: text("bury", buryLua), reject: text("reject", rejectLua),
		replay: text("replay", replayLua), purge: text("purge", purgeLua), sweep: text("sweep", sweepLua),
		stray: text("stray", strayLua), repair: text("repair", repairLua), page: text("page", pageLua),
		probe: text("probe", probeLua),
	}
}

// run is one script run: its keys are all of one shard.
type run struct {
	script script
	keys   []string
	args   []any
	// whole sends the script's text instead of its hash: the server cannot but
	// know it, so that this run comes before those behind it in any case.
	whole bool

	reply any
	err   error
}

// do sends all runs in one round trip and fills in their replies. Only what the
// server did not know yet is sent again, in full: a NOSCRIPT run has done nothing,
// but others may have overtaken it.
func do(ctx context.Context, client redis.UniversalClient, runs []*run) {
	doThen(ctx, client, runs, func(redis.Pipeliner) {})
}

// doThen is do with more behind the runs, each time that they are sent.
func doThen(ctx context.Context, client redis.UniversalClient, runs []*run, then func(redis.Pipeliner)) {
	send := func(runs []*run, eval func(redis.Pipeliner, *run) *redis.Cmd) {
		cmds := make([]*redis.Cmd, len(runs))
		// The error is the first command's; each is looked at by itself.
		_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for i, r := range runs {
				cmds[i] = eval(p, r)
			}
			then(p)
			return nil
		})
		for i, r := range runs {
			r.reply, r.err = cmds[i].Result()
			if r.err == nil && r.reply == nil && err != nil {
				r.err = err
			}
			if r.err != nil {
				r.err = fmt.Errorf("%s: %w", r.script.name, r.err)
			}
		}
	}
	eval := func(p redis.Pipeliner, r *run) *redis.Cmd { return r.script.Eval(ctx, p, r.keys, r.args...) }
	send(runs, func(p redis.Pipeliner, r *run) *redis.Cmd {
		if r.whole {
			return eval(p, r)
		}
		return r.script.EvalSha(ctx, p, r.keys, r.args...)
	})
	var unknown []*run
	for _, r := range runs {
		if r.err != nil && redis.HasErrorPrefix(errors.Unwrap(r.err), "NOSCRIPT") {
			unknown = append(unknown, r)
		}
	}
	if len(unknown) > 0 {
		send(unknown, eval)
	}
}

// ints reads a reply that is a list of want integers.
func (r *run) ints(want int) ([]int64, error) {
	if r.err != nil {
		return nil, r.err
	}
	list, ok := r.reply.([]any)
	if !ok || len(list) != want {
		return nil, fmt.Errorf("%s: unexpected reply %.80v, want %d integers", r.script.name, r.reply, want)
	}
	out := make([]int64, want)
	for i, v := range list {
		if out[i], ok = v.(int64); !ok {
			return nil, fmt.Errorf("%s: unexpected reply item %.80v", r.script.name, v)
		}
	}
	return out, nil
}
