package main

import (
	"context"
	_ "embed"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"delaybridge"
	"delaybridge/ingest"
)

// apiDescription describes the API in OpenAPI 3.1.
//
//go:embed openapi.json
var apiDescription []byte

// apiRoute is one operation of the API. A segment of its path in braces stands for
// any one.
type apiRoute struct {
	method, path string
	// query are the parameters that it takes.
	query  []string
	kind   routeKind
	answer func(ctx context.Context, a *apiServer, o *operations, r *apiRequest) (apiReply, error)
}

// routeKind tells routes apart by what a request holds while it is worked on.
type routeKind uint8

const (
	routeShort routeKind = iota
	routeBody            // it takes JSON
	routeLarge           // it reads what may be of many megabytes
	routeKinds
)

// apiRequest is a request to a route.
type apiRequest struct {
	*http.Request
	id    string     // what stands for the braces
	query url.Values // each has one value
	body  []byte
}

// apiReply is an answer that is a success; a nil body is none.
type apiReply struct {
	status   int
	body     any
	location string
}

var apiRoutes = []apiRoute{
	{http.MethodPost, "/v1/messages", nil, routeBody, answerSchedule},
	{http.MethodGet, "/v1/messages", []string{"sink", "limit", "after"}, routeLarge, answerList},
	{http.MethodGet, "/v1/messages/{id}", []string{"payload"}, routeLarge, answerGet},
	{http.MethodDelete, "/v1/messages/{id}", nil, routeShort, answerCancel},
	{http.MethodGet, "/v1/stats", nil, routeShort, answerStats},
	{http.MethodGet, "/v1/dead", []string{"reason", "target", "limit", "after"}, routeLarge, answerLetters},
	{http.MethodGet, "/v1/dead/{id}", nil, routeLarge, answerLetter},
	{http.MethodDelete, "/v1/dead/{id}", []string{"died_at"}, routeShort, answerPurge},
	{http.MethodPost, "/v1/dead/{id}/replay", []string{"force", "dry_run", "died_at"}, routeLarge, answerReplay},
}

// descriptionPath is where the description is; it holds no data and asks for no token.
const descriptionPath = "/v1/openapi.json"

// routeOf returns the route of an escaped path, and what stands for its braces.
// Where only the method is another, the methods that there are come back.
func routeOf(method, escaped string) (route *apiRoute, id string, allowed []string) {
	path := strings.Split(escaped, "/")
	for i := range apiRoutes {
		r := &apiRoutes[i]
		value, ok := matchPath(strings.Split(r.path, "/"), path)
		if !ok {
			continue
		}
		if r.method == method || r.method == http.MethodGet && method == http.MethodHead {
			return r, value, nil
		}
		allowed = append(allowed, r.method)
		if r.method == http.MethodGet {
			allowed = append(allowed, http.MethodHead)
		}
	}
	slices.Sort(allowed)
	return nil, "", allowed
}

func matchPath(pattern, path []string) (value string, ok bool) {
	if len(pattern) != len(path) {
		return "", false
	}
	for i, p := range pattern {
		segment, err := url.PathUnescape(path[i])
		switch {
		case err != nil:
			return "", false
		case strings.HasPrefix(p, "{"):
			if segment == "" {
				return "", false
			}
			value = segment
		case segment != p:
			return "", false
		}
	}
	return value, true
}

func answerSchedule(ctx context.Context, a *apiServer, o *operations, r *apiRequest) (apiReply, error) {
	if room := a.room.Load(); !room.Open(ctx) {
		return apiReply{}, errNoRoom
	}
	accepted, err := o.Schedule(ctx, ingest.Record{Payload: r.body, Envelope: true, Headers: bridgeHeaders(r.Header)})
	if err != nil {
		return apiReply{}, err
	}
	return apiReply{status: http.StatusAccepted, body: accepted, location: pathOf("messages", accepted.ID)}, nil
}

// errNoRoom says that the queue takes no more for now, as it does of brokers.
var errNoRoom = &problem{status: http.StatusServiceUnavailable, text: "the queue does not answer, or is full (BRIDGE_MAX_PENDING, or 90% of Redis's maxmemory): nothing is taken in until there is room"}

// bridgeHeaders are the headers of a request that steer the bridge, as they do on
// a broker: what JSON cannot say. Others are about the request, not the message.
func bridgeHeaders(h http.Header) (headers []delaybridge.Header) {
	for name, values := range h {
		if !delaybridge.HasPrefixFold(name, "Bridge-") {
			continue
		}
		for _, v := range values {
			headers = append(headers, delaybridge.Header{Name: name, Value: []byte(v)})
		}
	}
	return headers
}

func answerList(ctx context.Context, _ *apiServer, o *operations, r *apiRequest) (apiReply, error) {
	p, err := r.page()
	if err != nil {
		return apiReply{}, err
	}
	sink := r.query.Get("sink")
	if err := checkSink(sink); err != nil {
		return apiReply{}, err
	}
	view, err := o.List(ctx, sink, p)
	return apiReply{status: http.StatusOK, body: view}, err
}

func answerGet(ctx context.Context, _ *apiServer, o *operations, r *apiRequest) (apiReply, error) {
	full, err := r.flag("payload")
	if err != nil {
		return apiReply{}, err
	}
	if full {
		view, err := o.GetFull(ctx, r.id)
		return apiReply{status: http.StatusOK, body: view}, err
	}
	view, err := o.Get(ctx, r.id)
	return apiReply{status: http.StatusOK, body: view}, err
}

func answerCancel(ctx context.Context, _ *apiServer, o *operations, r *apiRequest) (apiReply, error) {
	state, err := o.Cancel(ctx, r.id)
	return apiReply{status: http.StatusOK, body: cancelView{r.id, state}}, err
}

func answerStats(ctx context.Context, a *apiServer, o *operations, _ *apiRequest) (apiReply, error) {
	view, err := o.Stats(ctx)
	view.Process = a.metrics.processView(a.started)
	return apiReply{status: http.StatusOK, body: view}, err
}

func answerLetters(ctx context.Context, _ *apiServer, o *operations, r *apiRequest) (apiReply, error) {
	p, err := r.page()
	if err != nil {
		return apiReply{}, err
	}
	f := letterFilter{reason: r.query.Get("reason"), target: r.query.Get("target")}
	if err := checkReason(f.reason); err != nil {
		return apiReply{}, err
	}
	view, err := o.Letters(ctx, f, p)
	return apiReply{status: http.StatusOK, body: view}, err
}

func answerLetter(ctx context.Context, _ *apiServer, o *operations, r *apiRequest) (apiReply, error) {
	view, err := o.Letter(ctx, r.id)
	return apiReply{status: http.StatusOK, body: view}, err
}

func answerPurge(ctx context.Context, _ *apiServer, o *operations, r *apiRequest) (apiReply, error) {
	l, err := r.letter()
	if err != nil {
		return apiReply{}, err
	}
	return apiReply{status: http.StatusNoContent}, o.Purge(ctx, []letterView{l})[0]
}

func answerReplay(ctx context.Context, _ *apiServer, o *operations, r *apiRequest) (apiReply, error) {
	l, err := r.letter()
	if err != nil {
		return apiReply{}, err
	}
	var how replayOptions
	if how.force, err = r.flag("force"); err != nil {
		return apiReply{}, err
	}
	if how.dryRun, err = r.flag("dry_run"); err != nil {
		return apiReply{}, err
	}
	if err := o.Replay(ctx, l, how); err != nil {
		return apiReply{}, replayAnswer(err)
	}
	return apiReply{status: http.StatusAccepted, body: replayedView{ID: r.id, DryRun: how.dryRun}}, nil
}

// letter names the letter of the path, that of a certain time if it says so.
func (r *apiRequest) letter() (letterView, error) {
	l := letterView{ID: r.id}
	text := r.query.Get("died_at")
	if text == "" {
		return l, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return l, badParameter("died_at", "takes the died_at of a dead letter")
	}
	l.DiedAt = stamp(at)
	return l, nil
}

// page reads limit and after.
func (r *apiRequest) page() (page, error) {
	p := page{limit: defaultLimit, after: r.query.Get("after")}
	if r.query.Has("limit") {
		p.limit, _ = strconv.Atoi(r.query.Get("limit")) // 0 is refused, too
	}
	return p, checkLimit(p.limit)
}

// flag reads a parameter that is true or false, false where it is not given.
func (r *apiRequest) flag(name string) (bool, error) {
	switch r.query.Get(name) {
	case "":
		if r.query.Has(name) {
			break
		}
		return false, nil
	case "false":
		return false, nil
	case "true":
		return true, nil
	}
	return false, badParameter(name, "takes true or false")
}
