package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
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
	"unicode/utf8"

	"delaybridge"
	"delaybridge/ingest"
	"delaybridge/luascripts"
)

// apiFlag is the flag that has a command ask the API.
const apiFlag = "api"

// apiClient asks the HTTP API of a process what operations asks the queue.
type apiClient struct {
	base, token string
	http        *http.Client
	answerMax   int64 // bytes
}

// apiAnswerMax is more than a message takes in JSON, however large its broker lets
// it be, and less than what a server that is no API may go on sending.
const apiAnswerMax = 512 << 20

// newAPIClient returns a client of the API at a URL, which may have a path where
// a proxy puts the API under one. Close it afterwards.
func newAPIClient(base, token string) (*apiClient, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, usagef("--%s: takes the URL of an API such as http://127.0.0.1:8080; its token is taken from BRIDGE_API_TOKEN", apiFlag)
	}
	return &apiClient{
		base: strings.TrimRight(u.String(), "/"), token: token, answerMax: apiAnswerMax,
		http: &http.Client{
			Timeout:   time.Minute,
			Transport: http.DefaultTransport.(*http.Transport).Clone(),
			// A request that changes something would become a GET.
			CheckRedirect: func(r *http.Request, _ []*http.Request) error {
				return fmt.Errorf("it sends to %s: give that as --%s", r.URL.Redacted(), apiFlag)
			},
		},
	}, nil
}

func (c *apiClient) close() { c.http.CloseIdleConnections() }

// pathOf escapes the segments of a path of the API.
func pathOf(segments ...string) string {
	var b strings.Builder
	b.WriteString("/v1")
	for _, s := range segments {
		b.WriteByte('/')
		if s == "." || s == ".." { // would be taken for steps in the path
			b.WriteString(strings.ReplaceAll(s, ".", "%2E"))
			continue
		}
		b.WriteString(url.PathEscape(s))
	}
	return b.String()
}

// ask sends a request and reads its answer into to, or wants an empty one where that
// is nil. An answer that is no success is a *problem. Whatever else answers at the
// URL must not have a command say that something was done: answers tells whether
// what was read is an answer to what was asked.
func (c *apiClient) ask(ctx context.Context, method, path string, query url.Values, header http.Header, body []byte, to any, answers func() bool) error {
	target := c.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("api: %w", err)
	}
	for name, values := range header {
		r.Header[name] = values
	}
	r.Header.Set("Accept", "application/json")
	if len(body) > 0 {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(r)
	if err != nil {
		return fmt.Errorf("api at %s: %w", c.base, errors.Unwrap(err)) // a *url.Error repeats the URL
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode == http.StatusNoContent && to == nil {
		return nil
	}
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != "application/json" {
		return fmt.Errorf("api at %s: it answers %s with no JSON: is that the API of a bridge?", c.base, res.Status)
	}
	content, err := io.ReadAll(io.LimitReader(res.Body, c.answerMax+1))
	if err != nil {
		return fmt.Errorf("api at %s: read the answer: %w", c.base, err)
	}
	if int64(len(content)) > c.answerMax {
		return fmt.Errorf("api at %s: its answer has more than %d MiB: is that the API of a bridge?", c.base, c.answerMax>>20)
	}
	if res.StatusCode >= 300 {
		return c.problem(res, content)
	}
	if to != nil {
		if err := json.Unmarshal(content, to); err != nil {
			return fmt.Errorf("api at %s: the answer cannot be read: %w", c.base, err)
		}
	}
	if to == nil || !answers() {
		return fmt.Errorf("api at %s: it answers %s, and not what was asked: is that the API of a bridge?", c.base, res.Status)
	}
	return nil
}

// sameID reports whether an answer is about the id that was asked for. One that is
// no text comes back as another.
func sameID(asked, told string) bool { return asked == told || told != "" && !utf8.ValidString(asked) }

// problem reads an answer that is no success.
func (c *apiClient) problem(res *http.Response, content []byte) error {
	var e errorView
	if err := json.Unmarshal(content, &e); err != nil || e.Error == "" {
		return fmt.Errorf("api at %s: it answers %s", c.base, res.Status)
	}
	p := &problem{status: res.StatusCode, text: e.Error, field: e.Field, state: e.State}
	switch res.StatusCode {
	case http.StatusUnauthorized:
		p.text = fmt.Sprintf("api at %s: %s (BRIDGE_API_TOKEN, or BRIDGE_API_TOKEN_FILE, has to be that of the API)", c.base, e.Error)
	case http.StatusNotFound:
		p.err = luascripts.ErrUnknown
	case http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnprocessableEntity:
		p.err = delaybridge.ErrInvalid
		if e.Field == "after" {
			p.err = luascripts.ErrCursor
		}
	case http.StatusConflict, http.StatusForbidden:
	default:
		p.text = fmt.Sprintf("api at %s: %s", c.base, e.Error)
	}
	return p
}

// Schedule sends a record as an envelope. What JSON cannot hold goes into the
// headers that say the same on a broker.
func (c *apiClient) Schedule(ctx context.Context, record ingest.Record) (acceptedView, error) {
	if isEnvelope(record.Headers) {
		return c.scheduleEnvelope(ctx, record)
	}
	envelope := map[string]any{"payload_base64": base64.StdEncoding.EncodeToString(record.Payload)}
	header := http.Header{}
	if utf8.Valid(record.Key) {
		if record.Key != nil {
			envelope["key"] = string(record.Key)
		}
	} else {
		header.Set("Bridge-Key-Base64", base64.StdEncoding.EncodeToString(record.Key))
	}
	given := map[string]int{}
	for _, h := range record.Headers {
		given[strings.ToLower(h.Name)]++
	}
	var passed []delaybridge.Header
next:
	for _, h := range record.Headers {
		for _, f := range requestFields {
			// What is given twice is for the API to see twice.
			if strings.EqualFold(h.Name, f.header) && given[strings.ToLower(h.Name)] == 1 && utf8.Valid(h.Value) {
				envelope[f.json] = string(h.Value)
				continue next
			}
		}
		if delaybridge.HasPrefixFold(strings.TrimSpace(h.Name), "Bridge-") {
			header.Add(h.Name, string(h.Value))
			continue
		}
		passed = append(passed, h)
	}
	if fields, ok := headerFields(passed); ok {
		envelope["headers"] = fields
	} else {
		header.Add("Bridge-Raw-Headers", rawHeaders(passed))
	}
	body, err := json.Marshal(envelope)
	if err != nil {
		return acceptedView{}, err
	}
	var v acceptedView
	err = c.ask(ctx, http.MethodPost, pathOf("messages"), nil, header, body, &v, func() bool { return v.ID != "" && v.Outcome != "" })
	return v, err
}

// isEnvelope reports whether headers say that the payload is an envelope.
func isEnvelope(headers []delaybridge.Header) bool {
	return slices.ContainsFunc(headers, func(h delaybridge.Header) bool {
		return strings.EqualFold(h.Name, "Content-Type") && ingest.IsEnvelopeType(string(h.Value))
	})
}

// scheduleEnvelope sends a payload that is an envelope, and what is beside it in
// headers.
func (c *apiClient) scheduleEnvelope(ctx context.Context, record ingest.Record) (acceptedView, error) {
	header := http.Header{"Content-Type": {ingest.EnvelopeType}}
	if record.Key != nil {
		header.Set("Bridge-Key-Base64", base64.StdEncoding.EncodeToString(record.Key))
	}
	var passed []delaybridge.Header
	for _, h := range record.Headers {
		switch {
		case strings.EqualFold(h.Name, "Content-Type"):
		case delaybridge.HasPrefixFold(strings.TrimSpace(h.Name), "Bridge-"):
			header.Add(h.Name, string(h.Value))
		default:
			passed = append(passed, h)
		}
	}
	if len(passed) > 0 {
		header.Add("Bridge-Raw-Headers", rawHeaders(passed))
	}
	var v acceptedView
	err := c.ask(ctx, http.MethodPost, pathOf("messages"), nil, header, record.Payload, &v, func() bool { return v.ID != "" && v.Outcome != "" })
	return v, err
}

// headerFields returns headers as the object that an envelope has, in their order.
// ok is false where that cannot say it: what is no text, and a name that comes
// again behind others.
func headerFields(headers []delaybridge.Header) (object json.RawMessage, ok bool) {
	var names []string
	values := map[string][]string{}
	for _, h := range headers {
		again := len(values[h.Name]) > 0
		if !utf8.ValidString(h.Name) || !utf8.Valid(h.Value) || again && names[len(names)-1] != h.Name {
			return nil, false
		}
		if !again {
			names = append(names, h.Name)
		}
		values[h.Name] = append(values[h.Name], string(h.Value))
	}
	object = append(object, '{')
	for i, name := range names {
		if i > 0 {
			object = append(object, ',')
		}
		key, _ := json.Marshal(name)
		list, _ := json.Marshal(values[name])
		object = append(append(append(object, key...), ':'), list...)
	}
	return append(object, '}'), true
}

// rawHeaders returns headers as Bridge-Raw-Headers has them, in their order.
func rawHeaders(headers []delaybridge.Header) string {
	pairs := make([][2][]byte, len(headers))
	for i, h := range headers {
		pairs[i] = [2][]byte{[]byte(h.Name), h.Value}
	}
	text, _ := json.Marshal(pairs) // bytes become base64
	return string(text)
}

// Cancel is operations.Cancel.
func (c *apiClient) Cancel(ctx context.Context, id string) (delaybridge.State, error) {
	var v cancelView
	err := c.ask(ctx, http.MethodDelete, pathOf("messages", id), nil, nil, nil, &v, func() bool { return sameID(id, v.ID) && v.State == delaybridge.StateCancelled })
	if p, ok := errors.AsType[*problem](err); ok && p.state != "" {
		return p.state, err
	}
	return v.State, err
}

// Get is operations.Get.
func (c *apiClient) Get(ctx context.Context, id string) (messageView, error) {
	if id == "" {
		return messageView{}, nothingKnown(id)
	}
	var v messageView
	err := c.ask(ctx, http.MethodGet, pathOf("messages", id), nil, nil, nil, &v, func() bool { return sameID(id, v.ID) && v.State != "" })
	return v, err
}

// GetFull is operations.GetFull.
func (c *apiClient) GetFull(ctx context.Context, id string) (fullMessageView, error) {
	if id == "" {
		return fullMessageView{}, nothingKnown(id)
	}
	var v fullMessageView
	err := c.ask(ctx, http.MethodGet, pathOf("messages", id), url.Values{"payload": {"true"}}, nil, nil, &v, func() bool { return sameID(id, v.ID) && v.State != "" })
	return v, err
}

// List is operations.List.
func (c *apiClient) List(ctx context.Context, sink string, p page) (listView[messageView], error) {
	query := p.query()
	if sink != "" {
		query.Set("sink", sink)
	}
	var v listView[messageView]
	err := c.ask(ctx, http.MethodGet, pathOf("messages"), query, nil, nil, &v, func() bool { return v.goesOn(p) })
	return v, err
}

// goesOn reports whether a list is one, and is not the same for ever.
func (v listView[T]) goesOn(p page) bool {
	return v.Items != nil && (v.Next == "" || v.Next != p.after)
}

func (p page) query() url.Values {
	query := url.Values{"limit": {strconv.Itoa(p.limit)}}
	if p.after != "" {
		query.Set("after", p.after)
	}
	return query
}

// Stats is operations.Stats.
func (c *apiClient) Stats(ctx context.Context) (statsView, error) {
	var v statsView
	err := c.ask(ctx, http.MethodGet, pathOf("stats"), nil, nil, nil, &v, func() bool { return len(v.Lanes) > 0 })
	v.Process = nil // another process may answer the next time
	return v, err
}

// Letters is operations.Letters.
func (c *apiClient) Letters(ctx context.Context, f letterFilter, p page) (listView[letterView], error) {
	query := p.query()
	if f.reason != "" {
		query.Set("reason", f.reason)
	}
	if f.target != "" {
		query.Set("target", f.target)
	}
	var v listView[letterView]
	err := c.ask(ctx, http.MethodGet, pathOf("dead"), query, nil, nil, &v, func() bool { return v.goesOn(p) })
	return v, err
}

// Letter is operations.Letter.
func (c *apiClient) Letter(ctx context.Context, id string) (fullLetterView, error) {
	var v fullLetterView
	if id == "" {
		return v, &problem{status: http.StatusNotFound, text: "there is no dead letter ", err: luascripts.ErrUnknown}
	}
	err := c.ask(ctx, http.MethodGet, pathOf("dead", id), nil, nil, nil, &v, func() bool { return sameID(id, v.ID) && v.Reason != "" })
	return v, err
}

// Replay is operations.Replay.
func (c *apiClient) Replay(ctx context.Context, l letterView, how replayOptions) error {
	query := l.still()
	if how.force {
		query.Set("force", "true")
	}
	if how.dryRun {
		query.Set("dry_run", "true")
	}
	var v replayedView
	err := c.ask(ctx, http.MethodPost, pathOf("dead", l.ID, "replay"), query, nil, nil, &v, func() bool { return sameID(l.ID, v.ID) && v.DryRun == how.dryRun })
	if p, ok := errors.AsType[*problem](err); ok && p.status == http.StatusConflict {
		return luascripts.ErrPending
	}
	return err
}

// still asks for the letter of a view, and for no later one of its id.
func (v letterView) still() url.Values {
	query := url.Values{}
	if t := time.Time(v.DiedAt); !t.IsZero() {
		query.Set("died_at", formatTime(t))
	}
	return query
}

// Purge is operations.Purge.
func (c *apiClient) Purge(ctx context.Context, letters []letterView) []error {
	errs := make([]error, len(letters))
	for i, l := range letters {
		errs[i] = c.ask(ctx, http.MethodDelete, pathOf("dead", l.ID), l.still(), nil, nil, nil, nil)
	}
	return errs
}
