package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/luascripts"
)

// errorView is the answer that is no success.
type errorView struct {
	Error string `json:"error"`
	// Field is what is wrong, where that is one thing of the request.
	Field string `json:"field,omitempty"`
	// ID and State are what a cancel found where it came too late.
	ID    string            `json:"id,omitempty"`
	State delaybridge.State `json:"state,omitempty"`
}

// ServeHTTP answers what is under /v1, and leaves the rest to the console.
func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/v1" && !strings.HasPrefix(r.URL.Path, "/v1/") {
		if p := a.checkHost(r); p != nil {
			a.refuse(w, p)
			return
		}
		a.console.ServeHTTP(w, r)
		return
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	if err := a.checkHost(r); err != nil {
		a.refuse(w, err)
		return
	}
	if r.URL.EscapedPath() == descriptionPath {
		a.describe(w, r)
		return
	}
	if err := a.checkAsker(r); err != nil {
		a.refuse(w, err)
		return
	}
	reply, err := a.route(w, r)
	if err != nil {
		a.refuseRequest(w, r, err)
		return
	}
	if reply.location != "" {
		h.Set("Location", reply.location)
	}
	writeJSON(w, reply.status, reply.body)
}

// checkHost refuses what was not meant for this host, where there is no token.
func (a *apiServer) checkHost(r *http.Request) error {
	if a.token != "" || isForLoopback(r) {
		return nil
	}
	return &problem{status: http.StatusForbidden, text: "without BRIDGE_API_TOKEN the API answers to localhost and loopback addresses only, not as another host"}
}

var crossOrigin = http.NewCrossOriginProtection()

// checkAsker wants the token, or, where there is none, that no page of another
// site asks.
func (a *apiServer) checkAsker(r *http.Request) error {
	if a.token == "" {
		if crossOrigin.Check(r) != nil {
			return &problem{status: http.StatusForbidden, text: "asked by a page of another site"}
		}
		return nil
	}
	scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	// Hashes are of one length, so that the time says nothing about the token's.
	want, got := sha256.Sum256([]byte(a.token)), sha256.Sum256([]byte(strings.TrimSpace(given)))
	if subtle.ConstantTimeCompare(want[:], got[:]) == 1 && strings.EqualFold(scheme, "Bearer") {
		return nil
	}
	if r.Header.Get("Authorization") == "" {
		return &problem{status: http.StatusUnauthorized, text: "takes a bearer token"}
	}
	return &problem{status: http.StatusUnauthorized, text: "the bearer token is not the right one"}
}

// route finds the operation and has it answer.
func (a *apiServer) route(w http.ResponseWriter, r *http.Request) (apiReply, error) {
	route, id, allowed := routeOf(r.Method, r.URL.EscapedPath())
	if len(allowed) > 0 {
		w.Header().Set("Allow", strings.Join(allowed, ", "))
		return apiReply{}, &problem{status: http.StatusMethodNotAllowed, text: "takes " + strings.Join(allowed, ", ") + " here"}
	}
	if route == nil {
		return apiReply{}, &problem{status: http.StatusNotFound, text: "there is nothing at this path; " + descriptionPath + " lists what there is"}
	}
	query, err := route.parseQuery(r.URL.RawQuery)
	if err != nil {
		return apiReply{}, err
	}
	if route.kind == routeBody {
		if err := a.checkBody(r); err != nil {
			return apiReply{}, err
		}
	}
	full := time.NewTimer(apiAskTimeout)
	defer full.Stop()
	places := a.atOnce[route.kind]
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	case <-full.C:
		return apiReply{}, &problem{status: http.StatusServiceUnavailable, text: "too many requests at once"}
	case <-r.Context().Done():
		return apiReply{}, r.Context().Err() // nobody waits for the answer
	}
	request := &apiRequest{Request: r, id: id, query: query}
	if route.kind == routeBody {
		if request.body, err = a.readBody(w, r); err != nil {
			return apiReply{}, err
		}
	}
	o := a.ops.Load()
	if o == nil {
		return apiReply{}, &problem{status: http.StatusServiceUnavailable, text: phaseRedis}
	}
	ctx, cancel := context.WithTimeout(r.Context(), apiAskTimeout)
	defer cancel()
	return route.answer(ctx, a, o, request)
}

// parseQuery takes the parameters that the route has, each once.
func (route *apiRoute) parseQuery(raw string) (url.Values, error) {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return nil, &problem{status: http.StatusBadRequest, text: "the query cannot be read"}
	}
	for name, values := range query {
		switch {
		case !slices.Contains(route.query, name) && len(route.query) == 0:
			return nil, badParameter(name, "there is no such parameter here")
		case !slices.Contains(route.query, name):
			return nil, badParameter(name, "there is no such parameter: there are "+strings.Join(route.query, ", "))
		case len(values) > 1:
			return nil, badParameter(name, "is given more than once")
		}
	}
	return query, nil
}

// checkBody refuses a body by what its header says of it, before any of it is read.
func (a *apiServer) checkBody(r *http.Request) error {
	contentType := r.Header.Get("Content-Type")
	kind, _, err := mime.ParseMediaType(contentType)
	if err != nil || kind != "application/json" && !ingest.IsEnvelopeType(kind) {
		return &problem{status: http.StatusUnsupportedMediaType, field: "Content-Type", text: "Content-Type: takes application/json"}
	}
	if r.Header.Get("Content-Encoding") != "" {
		return &problem{status: http.StatusUnsupportedMediaType, field: "Content-Encoding", text: "Content-Encoding: takes the body as it is"}
	}
	if r.ContentLength > a.bodyMax {
		return a.bodyTooLarge()
	}
	return nil
}

func (a *apiServer) bodyTooLarge() error {
	return &problem{status: http.StatusRequestEntityTooLarge, field: "body", text: fmt.Sprintf("body: takes at most %d bytes", a.bodyMax)}
}

// readBody reads what is to be JSON.
func (a *apiServer) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, a.bodyMax))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, a.bodyTooLarge()
	}
	if err != nil {
		return nil, &problem{status: http.StatusBadRequest, field: "body", text: "body: it did not arrive as a whole"}
	}
	return body, nil
}

// refuse answers with an error before anything was asked of the queue.
func (a *apiServer) refuse(w http.ResponseWriter, err error) { a.refuseAs(w, err, true) }

// refuseRequest answers a request with an error.
func (a *apiServer) refuseRequest(w http.ResponseWriter, r *http.Request, err error) {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead || r.URL.Query().Get("dry_run") == "true"
	a.refuseAs(w, err, reads)
}

func (a *apiServer) refuseAs(w http.ResponseWriter, err error, reads bool) {
	status, view := answerOf(err, reads, a.ops.Load().repeats())
	switch status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="delaybridge"`)
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
	}
	if _, known := errors.AsType[*problem](err); !known && status == http.StatusServiceUnavailable {
		a.log.Debug("an API request could not be carried out", zap.Error(err))
	}
	writeJSON(w, status, view)
}

// answerOf returns the status and the answer that an error of an operation is. reads
// says that the operation changes nothing, whatever becomes of it, and repeats that it
// may have been carried out before it was refused.
func answerOf(err error, reads, repeats bool) (int, errorView) {
	if p, ok := errors.AsType[*problem](err); ok {
		return p.status, errorView{Error: p.text, Field: p.field, ID: p.id, State: p.state}
	}
	fe, ok := errors.AsType[*delaybridge.FieldError](err)
	switch {
	case !ok && errors.Is(err, delaybridge.ErrInvalid):
		return http.StatusUnprocessableEntity, errorView{Error: err.Error()}
	case !ok:
		return http.StatusServiceUnavailable, errorView{Error: queueProblem(err, reads, repeats)}
	}
	fe = renamed(fe, requestField.asJSON)
	status := http.StatusUnprocessableEntity
	switch fe.Code {
	case ingest.CodeInvalidJSON, ingest.CodeUnknownField, ingest.CodeDuplicateField, ingest.CodeInvalidType:
		status = http.StatusBadRequest
	case ingest.CodePayloadTooLarge:
		status = http.StatusRequestEntityTooLarge
	}
	return status, errorView{Error: fe.Error(), Field: fe.Field}
}

// refusals begin what Redis answers before it has done anything of a script, or
// when its first write needs what it has not.
var refusals = []string{"BUSY ", "CLUSTERDOWN ", "LOADING ", "MASTERDOWN ", "MISCONF ", "NOREPLICAS ", "OOM ", "READONLY ", "TRYAGAIN "}

// queueProblem says why the queue could not be asked, and what may have come of it.
func queueProblem(err error, reads, repeats bool) string {
	_, answered := errors.AsType[redis.Error](err)
	switch {
	case reads && answered:
		return "Redis refuses to say: " + err.Error()
	case reads:
		return "the queue did not answer: " + err.Error()
	case errors.Is(err, luascripts.ErrReplicas):
		return "this was done, but may be lost: " + err.Error()
	case !repeats && slices.ContainsFunc(refusals, func(code string) bool { return redis.HasErrorPrefix(err, code) }):
		return "Redis refuses, so that this was not done: " + err.Error()
	}
	return "the queue did not answer as it should, so that nobody knows whether this was done: " + err.Error()
}

// replayedView answers a replay.
type replayedView struct {
	ID     string `json:"id"`
	DryRun bool   `json:"dry_run,omitempty"`
}

// replayAnswer is a replay's error as the API words it.
func replayAnswer(err error) error {
	switch {
	case errors.Is(err, luascripts.ErrPending):
		return &problem{status: http.StatusConflict, text: "a message of that id is pending; force=true replaces it"}
	case errors.Is(err, delaybridge.ErrInvalid), errors.Is(err, errCorruptLetter):
		p := &problem{status: http.StatusUnprocessableEntity, text: replayProblem(err)}
		if fe, ok := errors.AsType[*delaybridge.FieldError](err); ok {
			p.field = fe.Field
		}
		return p
	case errors.Is(err, luascripts.ErrUnknown):
		if _, ok := errors.AsType[*problem](err); !ok {
			return &problem{status: http.StatusNotFound, text: letterGone}
		}
	}
	return err
}

// describe serves the OpenAPI description.
func (a *apiServer) describe(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		a.refuse(w, &problem{status: http.StatusMethodNotAllowed, text: "takes GET, HEAD here"})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(apiDescription))
}

// writeJSON answers with one line of JSON, or with nothing where v is nil.
func writeJSON(w http.ResponseWriter, status int, v any) {
	if v == nil {
		w.WriteHeader(status)
		return
	}
	var b bytes.Buffer
	if err := printJSON(&b, v); err != nil {
		http.Error(w, `{"error":"the answer cannot be written"}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // who has gone away does not wait for it
}
