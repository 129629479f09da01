package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"go.uber.org/zap"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/luascripts"
)

const (
	// natsAPIName is what the service is called, natsAPIGroup begins its subjects.
	natsAPIName  = "bridge"
	natsAPIGroup = "bridge.api"
	// natsAPITimeout is for what is asked of Redis: less than clients wait.
	natsAPITimeout = 4 * time.Second

	useAPI = "api"
)

// natsAPI answers requests on bridge.api.>, as a NATS micro service: what the HTTP
// API does, in the same shapes. All processes that have it share the work.
//
// An endpoint answers one request after the other. Only who asks for a reply is
// served, and only to an inbox: the answer is published with the bridge's own
// permissions, so that any other subject would be one that the asker may not have.
type natsAPI struct {
	nc      *nats.Conn
	ops     *operations
	room    *ingest.Handler
	process func() *processView
	log     *zap.Logger

	refused atomic.Bool // a reply subject that is no inbox was logged
}

// newNATSAPI connects and begins to answer; run ends it.
func (s *Settings) newNATSAPI(queue *luascripts.Queue, lost func(error), mon *monitor, log *zap.Logger) (_ *natsAPI, err error) {
	n := &natsAPI{log: log.With(zap.String("use", useAPI))}
	decoder, err := s.newDecoder()
	if err != nil {
		return nil, err
	}
	if n.room, err = s.newRoom(queue, decoder, sourceNATSAPI, log); err != nil {
		return nil, err
	}
	n.ops = &operations{
		queue: queue, decoder: decoder, count: func(o delaybridge.Outcome) { mon.metrics.Ingested(sourceNATSAPI, o) },
		replayed: mon.metrics.Replayed, purged: mon.metrics.Purged,
	}
	started := time.Now()
	n.process = func() *processView { return mon.metrics.processView(started) }

	l := &link{broker: brokerNATS, use: useAPI}
	if n.nc, err = connectNATS(s, l, log, lost); err != nil {
		return nil, err
	}
	if err := n.serve(); err != nil {
		n.nc.Close()
		return nil, err
	}
	l.asks(isConnected(n.nc.IsConnected))
	mon.health.watch(l, nil)
	log.Info("serving the API on NATS", zap.String("service", natsAPIName), zap.String("subject", natsAPIGroup+".>"))
	return n, nil
}

// natsEndpoint is one operation of the service.
type natsEndpoint struct {
	subject string // behind the group's
	about   string
	reads   bool // it changes nothing
	answer  func(n *natsAPI, ctx context.Context, r micro.Request) (any, error)
}

var natsEndpoints = []natsEndpoint{
	{"schedule", "have a message delivered later: a JSON envelope, or headers and payload", false, (*natsAPI).schedule},
	{"cancel", `take back a pending message: {"id"}`, false, (*natsAPI).cancel},
	{"get", `what is known of a message: {"id","payload"}`, true, (*natsAPI).get},
	{"list", `pending messages: {"sink","limit","after"}`, true, (*natsAPI).list},
	{"stats", "count the queue", true, (*natsAPI).stats},
	{"dead.list", `dead letters: {"reason","target","limit","after"}`, true, (*natsAPI).letters},
	{"dead.show", `a dead letter: {"id"}`, true, (*natsAPI).letter},
	{"dead.replay", `make a dead letter pending again: {"id","force","dry_run","died_at"}`, false, (*natsAPI).replay},
	{"dead.purge", `drop a dead letter for good: {"id","died_at"}`, false, (*natsAPI).purge},
}

func (n *natsAPI) serve() error {
	version := currentVersion()
	service, err := micro.AddService(n.nc, micro.Config{
		Name: natsAPIName, Version: semanticVersion(version.Version),
		Description: "Delaybridge: messages that are delivered later",
		Metadata:    map[string]string{"version": version.Version, "revision": version.Revision},
	})
	if err != nil {
		return err
	}
	group := service.AddGroup(natsAPIGroup)
	for _, e := range natsEndpoints {
		name := strings.ReplaceAll(e.subject, ".", "-")
		if err := group.AddEndpoint(name, n.handler(e), micro.WithEndpointSubject(e.subject), micro.WithEndpointMetadata(map[string]string{"about": e.about})); err != nil {
			return err
		}
	}
	return nil
}

var semanticForm = regexp.MustCompile(`^\d+\.\d+\.\d+`)

// semanticVersion returns what a service may call its version: that of a release,
// 0.0.0 for what is none.
func semanticVersion(v string) string {
	if found := semanticForm.FindString(strings.TrimPrefix(v, "v")); found != "" {
		return found
	}
	return "0.0.0"
}

// run waits for ctx to end, and then takes no more requests, answers those that
// have come, and closes the connection, all within the given time.
func (n *natsAPI) run(ctx context.Context, most time.Duration) error {
	<-ctx.Done()
	closed := n.nc.StatusChanged(nats.CLOSED)
	if n.nc.IsClosed() || n.nc.Drain() != nil {
		n.nc.Close()
		return nil
	}
	select {
	case <-closed:
	case <-time.After(most):
		n.log.Warn("not every request on NATS was answered in time")
		n.nc.Close()
	}
	return nil
}

// handler answers the requests of an endpoint, its errors by the convention of
// NATS services: a code, which is an HTTP status, and a text in headers, and the
// HTTP API's answer as the payload.
func (n *natsAPI) handler(e natsEndpoint) micro.Handler {
	return micro.HandlerFunc(func(r micro.Request) {
		if !isInbox(r.Reply()) {
			if r.Reply() != "" && !n.refused.Swap(true) {
				n.log.Warn("a request asks for its reply on a subject that is no inbox: such requests are not carried out",
					zap.String("subject", r.Subject()), zap.String("reply", r.Reply()))
			}
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), natsAPITimeout)
		defer cancel()
		v, err := e.answer(n, ctx, r)
		if err == nil {
			err = r.Respond(jsonLine(v))
			if errors.Is(err, nats.ErrMaxPayload) || err != nil && strings.Contains(err.Error(), nats.ErrMaxPayload.Error()) {
				n.refuse(r, &problem{status: http.StatusRequestEntityTooLarge, text: "the answer is larger than the NATS server lets a message be: ask for less of it, or by HTTP"}, e.reads)
			}
			return
		}
		n.refuse(r, err, e.reads)
	})
}

func (n *natsAPI) refuse(r micro.Request, err error, reads bool) {
	status, view := answerOf(err, reads, n.ops.repeats())
	text := delaybridge.ErrorText(view.Error)
	if text == "" {
		text = http.StatusText(status)
	}
	_ = r.Error(strconv.Itoa(status), text, jsonLine(view)) // who asked, asks again
}

// isInbox reports whether a reply subject is what clients make up for one, or what
// a server puts in its place for a client of another account.
func isInbox(subject string) bool {
	return strings.HasPrefix(subject, "_INBOX") || strings.HasPrefix(subject, "_R_.")
}

func jsonLine(v any) []byte {
	var b bytes.Buffer
	_ = printJSON(&b, v) // the views are all JSON
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

func (n *natsAPI) schedule(ctx context.Context, r micro.Request) (any, error) {
	if !n.room.Open(ctx) {
		return nil, errNoRoom
	}
	record := ingest.Record{
		// The origin makes Nats-Msg-Id count as it does on the subject of ingest.
		Origin:  delaybridge.Target{Sink: delaybridge.SinkNATS, Name: r.Subject()},
		Payload: r.Data(), Envelope: true,
	}
	for name, values := range r.Headers() {
		if delaybridge.HasPrefixFold(strings.TrimSpace(name), "Bridge-") {
			record.Envelope = false // headers say it
		}
		for _, v := range values {
			record.Headers = append(record.Headers, delaybridge.Header{Name: name, Value: []byte(v)})
		}
	}
	return n.ops.Schedule(ctx, record)
}

// natsQuestion is what requests say. Each endpoint takes some of it.
type natsQuestion struct {
	ID      string `json:"id"`
	Payload bool   `json:"payload"`
	Sink    string `json:"sink"`
	Reason  string `json:"reason"`
	Target  string `json:"target"`
	Limit   *int   `json:"limit"`
	After   string `json:"after"`
	Force   bool   `json:"force"`
	DryRun  bool   `json:"dry_run"`
	DiedAt  stamp  `json:"died_at"`
}

// ask reads a question; an empty one is as good as {}. It takes only the fields
// that are named.
func ask(r micro.Request, fields ...string) (q natsQuestion, err error) {
	if len(r.Data()) == 0 {
		return q, nil
	}
	bad := func(field, text string) (natsQuestion, error) {
		return natsQuestion{}, &problem{status: http.StatusBadRequest, field: field, text: field + ": " + text}
	}
	const form = "takes a JSON object"
	// What is no character would be read as another: an id of a message that was not meant.
	if !utf8.Valid(r.Data()) {
		return bad("body", form+" in UTF-8")
	}
	if ingest.HasLoneSurrogate(r.Data()) {
		return bad("body", "holds half of a surrogate pair, which is no character")
	}
	dec := json.NewDecoder(bytes.NewReader(r.Data()))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return bad("body", form)
	}
	given := map[string]bool{}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return bad("body", form)
		}
		field := name.(string) // inside an object the decoder takes nothing else here
		switch {
		case given[field]:
			return bad(field, "is given twice")
		case !slices.Contains(fields, field) && len(fields) == 0:
			return bad(field, "there is no such field here")
		case !slices.Contains(fields, field):
			return bad(field, "there is no such field: there are "+strings.Join(fields, ", "))
		}
		given[field] = true
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return bad("body", form)
		}
	}
	// Once more as a whole, with what is behind it.
	if err := json.Unmarshal(r.Data(), &q); err != nil {
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
			return bad(wrong.Field, "is no "+wrong.Type.String())
		}
		return bad("body", form+", and its times as RFC 3339")
	}
	return q, nil
}

// askID reads a question about one id.
func askID(r micro.Request, fields ...string) (natsQuestion, error) {
	q, err := ask(r, append([]string{"id"}, fields...)...)
	if err == nil && q.ID == "" {
		err = &problem{status: http.StatusUnprocessableEntity, field: "id", text: "id: is required"}
	}
	return q, err
}

func (q natsQuestion) page() (page, error) {
	p := page{limit: defaultLimit, after: q.After}
	if q.Limit != nil {
		p.limit = *q.Limit
	}
	return p, checkLimit(p.limit)
}

func (n *natsAPI) cancel(ctx context.Context, r micro.Request) (any, error) {
	q, err := askID(r)
	if err != nil {
		return nil, err
	}
	state, err := n.ops.Cancel(ctx, q.ID)
	return cancelView{q.ID, state}, err
}

func (n *natsAPI) get(ctx context.Context, r micro.Request) (any, error) {
	q, err := askID(r, "payload")
	if err != nil {
		return nil, err
	}
	if q.Payload {
		return n.ops.GetFull(ctx, q.ID)
	}
	return n.ops.Get(ctx, q.ID)
}

func (n *natsAPI) list(ctx context.Context, r micro.Request) (any, error) {
	q, err := ask(r, "sink", "limit", "after")
	if err != nil {
		return nil, err
	}
	p, err := q.page()
	if err := errors.Join(err, checkSink(q.Sink)); err != nil {
		return nil, err
	}
	return n.ops.List(ctx, q.Sink, p)
}

func (n *natsAPI) stats(ctx context.Context, r micro.Request) (any, error) {
	if _, err := ask(r); err != nil {
		return nil, err
	}
	v, err := n.ops.Stats(ctx)
	v.Process = n.process()
	return v, err
}

func (n *natsAPI) letters(ctx context.Context, r micro.Request) (any, error) {
	q, err := ask(r, "reason", "target", "limit", "after")
	if err != nil {
		return nil, err
	}
	p, err := q.page()
	if err := errors.Join(err, checkReason(q.Reason)); err != nil {
		return nil, err
	}
	return n.ops.Letters(ctx, letterFilter{reason: q.Reason, target: q.Target}, p)
}

func (n *natsAPI) letter(ctx context.Context, r micro.Request) (any, error) {
	q, err := askID(r)
	if err != nil {
		return nil, err
	}
	return n.ops.Letter(ctx, q.ID)
}

func (n *natsAPI) replay(ctx context.Context, r micro.Request) (any, error) {
	q, err := askID(r, "force", "dry_run", "died_at")
	if err != nil {
		return nil, err
	}
	l := letterView{ID: q.ID, DiedAt: q.DiedAt}
	if err := n.ops.Replay(ctx, l, replayOptions{force: q.Force, dryRun: q.DryRun}); err != nil {
		return nil, replayAnswer(err)
	}
	return replayedView{ID: q.ID, DryRun: q.DryRun}, nil
}

func (n *natsAPI) purge(ctx context.Context, r micro.Request) (any, error) {
	q, err := askID(r, "died_at")
	if err != nil {
		return nil, err
	}
	return purgedView{ID: q.ID}, n.ops.Purge(ctx, []letterView{{ID: q.ID, DiedAt: q.DiedAt}})[0]
}

// purgedView answers a purge.
type purgedView struct {
	ID string `json:"id"`
}
