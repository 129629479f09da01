package main

import (
	"context"
	"errors"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// errMayNotAsk is that the user may not publish to the subject of a request.
var errMayNotAsk = errors.New("the user may not ask for it")

// refusedRequests ends a request that the server refuses: it says so on the
// connection, and the request by itself would wait for an answer until its time is
// up. Its zero value is ready, and it is safe for concurrent use.
type refusedRequests struct {
	mu      sync.Mutex
	subject string // of the request that is being made; "" for none
	cancel  context.CancelCauseFunc
}

// ask makes a request to a subject, one at a time. The error is errMayNotAsk where
// the user has no right to make it.
func (r *refusedRequests) ask(ctx context.Context, subject string, request func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.set(subject, cancel)
	defer r.set("", nil)
	err := request(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errMayNotAsk) {
		return errMayNotAsk
	}
	return err
}

func (r *refusedRequests) set(subject string, cancel context.CancelCauseFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.subject, r.cancel = subject, cancel
}

// hear is told the errors of the connection.
func (r *refusedRequests) hear(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.subject != "" && errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+r.subject+`"`) {
		r.cancel(errMayNotAsk)
	}
}
