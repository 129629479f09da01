package ingest

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"delaybridge"
)

// Codes of refused requests that callers tell apart; the others name what was
// wrong with one field ("invalid_delay", "missing_target", …).
const (
	// CodeInvalidJSON, CodeUnknownField, CodeDuplicateField and CodeInvalidType
	// say that an envelope cannot be read.
	CodeInvalidJSON    = "invalid_json"
	CodeUnknownField   = "unknown_field"
	CodeDuplicateField = "duplicate_field"
	CodeInvalidType    = "invalid_type"
	codeTooManyHops    = "too_many_hops"
	codeTooManyHeaders = "too_many_headers"
	// CodePayloadTooLarge says that the payload is over the limit.
	CodePayloadTooLarge = "payload_too_large"
)

// DecoderConfig says which requests are taken.
type DecoderConfig struct {
	// Sources are the bridge's own: Kafka topics, and NATS subjects that may
	// hold wildcards. The sources of routes need not be repeated. No message
	// may have one of them as its target, since it would come back. Default: none.
	Sources []delaybridge.Target
	// Routes are the defaults of sources. Default: none.
	Routes []Route
	// AllowedTargets are patterns of the targets that a message may name, such
	// as "kafka://orders.*" (see targetPattern for the wildcards). Targets of
	// routes need not be repeated. Empty allows all. Default: none.
	AllowedTargets []string
	// SourceTargets are the targets that the messages of each source may name, on
	// top of AllowedTargets. If there are any, a source without an entry may name
	// none. Targets of routes need not be repeated. Default: none, which allows all.
	SourceTargets []SourceTargets
	// MaxDelay is how far ahead of a message's timestamp it may be due.
	// Default: 168h.
	MaxDelay time.Duration
	// MaxPayload is the longest payload in bytes. Default: 1 MiB.
	MaxPayload int
	// MaxHeaders is how many headers a message may have, those that steer the
	// bridge or are given in an envelope or as raw headers included. Default: 256.
	MaxHeaders int
	// MaxHeaderBytes is how long the names and values of all of these may be
	// together. Default: 64 KiB.
	MaxHeaderBytes int
	// ExpiresAfter is the default of Bridge-Expires-After; 0 means never.
	// Default: 0.
	ExpiresAfter time.Duration
	// ClockTolerance is how far in the future a record's timestamp may be
	// before it counts as now. Default: 5s.
	ClockTolerance time.Duration
	// RejectTarget is where refused messages are sent; zero makes them dead
	// letters. Default: zero.
	RejectTarget delaybridge.Target
	// DeadTarget is told of each refused message that becomes a dead letter by a
	// message of its own. Default: none.
	DeadTarget delaybridge.Target
	// Now is the clock. Default: time.Now.
	Now func() time.Time
}

// DefaultDecoderConfig returns the defaults.
func DefaultDecoderConfig() DecoderConfig {
	return DecoderConfig{
		MaxDelay:       168 * time.Hour,
		MaxPayload:     1 << 20,
		MaxHeaders:     256,
		MaxHeaderBytes: 64 << 10,
		ClockTolerance: 5 * time.Second,
		Now:            time.Now,
	}
}

// Validate checks the settings against each other. Errors are *FieldError.
func (c *DecoderConfig) Validate() error {
	_, err := NewDecoder(*c)
	return err
}

// Decoder turns records into requests. It is safe for concurrent use.
type Decoder struct {
	cfg     DecoderConfig
	sources []delaybridge.Target // those of the routes included
	folded  []delaybridge.Target // the same by FoldName
	allowed []targetPattern
	exact   map[delaybridge.Target]*Route // routes without wildcards
	wild    []*Route
}

// NewDecoder checks the configuration and returns its decoder. Errors are
// *FieldError that name the setting as it is in the environment.
func NewDecoder(cfg DecoderConfig) (*Decoder, error) {
	d := &Decoder{cfg: cfg, exact: make(map[delaybridge.Target]*Route)}
	if d.cfg.Now == nil {
		d.cfg.Now = time.Now
	}
	if cfg.MaxDelay <= 0 {
		return nil, &delaybridge.FieldError{Code: "invalid_setting", Field: "BRIDGE_MAX_DELAY", Value: cfg.MaxDelay.String(), Reason: "must be above 0"}
	}
	if cfg.MaxPayload <= 0 {
		return nil, &delaybridge.FieldError{Code: "invalid_setting", Field: "BRIDGE_MAX_PAYLOAD", Value: fmt.Sprint(cfg.MaxPayload), Reason: "must be above 0"}
	}
	if cfg.MaxHeaders <= 0 {
		return nil, &delaybridge.FieldError{Code: "invalid_setting", Field: "BRIDGE_MAX_HEADERS", Value: fmt.Sprint(cfg.MaxHeaders), Reason: "must be above 0"}
	}
	if cfg.MaxHeaderBytes <= 0 {
		return nil, &delaybridge.FieldError{Code: "invalid_setting", Field: "BRIDGE_MAX_HEADER_BYTES", Value: fmt.Sprint(cfg.MaxHeaderBytes), Reason: "must be above 0"}
	}
	if cfg.ExpiresAfter < 0 {
		return nil, &delaybridge.FieldError{Code: "invalid_setting", Field: "BRIDGE_EXPIRES_AFTER", Value: cfg.ExpiresAfter.String(), Reason: "cannot be negative"}
	}
	if cfg.ClockTolerance < 0 {
		return nil, &delaybridge.FieldError{Code: "invalid_setting", Field: "BRIDGE_CLOCK_TOLERANCE", Value: cfg.ClockTolerance.String(), Reason: "cannot be negative"}
	}
	for _, s := range cfg.AllowedTargets {
		p, err := parseTargetPattern(s)
		if err != nil {
			f := field{name: "BRIDGE_ALLOWED_TARGETS"}
			return nil, f.fill(err, "")
		}
		d.allowed = append(d.allowed, p)
	}
	if err := checkRoutes(cfg.Routes); err != nil {
		return nil, err
	}
	d.sources = append(d.sources, cfg.Sources...)
	for i := range cfg.Routes {
		r := &d.cfg.Routes[i]
		if !slices.Contains(d.sources, r.Source) {
			d.sources = append(d.sources, r.Source)
		}
		if _, err := delaybridge.ParseTarget(r.Source.String()); err != nil {
			d.wild = append(d.wild, r) // what is no target has wildcards
		} else {
			d.exact[r.Source] = r
		}
	}
	for _, s := range d.sources {
		d.folded = append(d.folded, delaybridge.Target{Sink: s.Sink, Name: delaybridge.FoldName(s.Name)})
	}
	if err := checkCrossing(d.sources, len(cfg.Sources)); err != nil {
		return nil, err
	}
	if err := checkSourceTargets(cfg.SourceTargets, d.sources); err != nil {
		return nil, err
	}
	for _, r := range cfg.Routes {
		if r.HasDelay && r.Delay > cfg.MaxDelay {
			return nil, &delaybridge.FieldError{Code: "invalid_route", Field: routesField, Value: r.Source.String(), Reason: fmt.Sprintf("its delay of %v is above the maximum of %v (BRIDGE_MAX_DELAY)", r.Delay, cfg.MaxDelay)}
		}
		if d.IsSource(r.Target) {
			return nil, &delaybridge.FieldError{Code: "invalid_route", Field: routesField, Value: r.Source.String() + " -> " + r.Target.String(), Reason: "the target is one of the bridge's own sources: its messages would come back"}
		}
	}
	if d.IsSource(cfg.DeadTarget) {
		return nil, &delaybridge.FieldError{Code: "invalid_target", Field: "BRIDGE_DEAD_TARGET", Value: cfg.DeadTarget.String(), Reason: "is one of the bridge's own sources: dead letters would come back"}
	}
	if d.IsSource(cfg.RejectTarget) {
		return nil, &delaybridge.FieldError{Code: "invalid_target", Field: "BRIDGE_REJECT_TARGET", Value: cfg.RejectTarget.String(), Reason: "is one of the bridge's own sources: refused messages would come back"}
	}
	return d, nil
}

// IsSource reports whether what is published to t comes back to the bridge, or
// looks as if it did, by letters of another case or an encoding that something on
// the way may undo.
func (d *Decoder) IsSource(t delaybridge.Target) bool {
	if _, ok := d.sourceOf(t); ok {
		return true
	}
	t.Name = delaybridge.FoldName(t.Name)
	for _, s := range d.folded {
		if sourceTakes(s, t) {
			return true
		}
	}
	return false
}

// Sources returns the bridge's own sources, those of the routes included, each
// once.
func (d *Decoder) Sources() []delaybridge.Target { return slices.Clone(d.sources) }

// sourceOf returns the source that a record published to origin came from.
func (d *Decoder) sourceOf(origin delaybridge.Target) (delaybridge.Target, bool) {
	for _, s := range d.sources {
		if sourceTakes(s, origin) {
			return s, true
		}
	}
	return delaybridge.Target{}, false
}

// Decode turns a record into a request. It never fails: a refused record
// becomes an OpReject, or an OpSchedule to the reject target, with its payload
// and headers kept. The request shares the record's bytes.
func (d *Decoder) Decode(rec Record) delaybridge.Request {
	req, err := d.Parse(rec)
	if err != nil {
		return d.Reject(rec, err)
	}
	return req
}

// Parse turns a record into a request, or says with a *FieldError why it is
// refused. The request shares the record's bytes.
func (d *Decoder) Parse(rec Record) (delaybridge.Request, error) {
	if rec.Unreadable != nil {
		return delaybridge.Request{}, rec.Unreadable
	}
	if err := d.checkHeaders(rec.Headers); err != nil {
		return delaybridge.Request{}, err
	}
	steer, headers := splitHeaders(rec.Headers)
	if steer.unknown != "" {
		// Passed over, a misspelt Bridge-Delay would let a route's delay hold.
		return delaybridge.Request{}, &delaybridge.FieldError{Code: "unknown_header", Field: steer.unknown, Reason: "is no header of the bridge's, misspelt perhaps"}
	}
	hops, err := parseHops(&steer.hops)
	if err != nil {
		return delaybridge.Request{}, err
	}
	route := d.route(rec.Origin)
	payload := rec.Payload
	if payload == nil && rec.Origin.Sink != delaybridge.SinkKafka {
		payload = []byte{} // only Kafka has a null value
	}
	rest, isEnvelope := takeContentType(headers)
	if (isEnvelope || rec.Envelope || route != nil && route.Envelope) && !bareCancel(&steer, payload) {
		e, err := parseEnvelope(payload, &steer)
		if err != nil {
			return delaybridge.Request{}, err
		}
		headers, payload = append(rest, e.headers...), e.payload
	}

	op, err := parseOp(&steer.op)
	if err != nil {
		return delaybridge.Request{}, err
	}
	req := delaybridge.Request{Op: op, FromAPI: rec.FromAPI}
	m := &req.Message
	m.Position = rec.Position
	if op == delaybridge.OpCancel {
		if m.ID, err = parseCancelID(&steer.id); err != nil {
			return delaybridge.Request{}, err
		}
		return req, nil
	}

	if m.ID, err = d.parseID(&steer, rec); err != nil {
		return delaybridge.Request{}, err
	}
	if m.Target, err = d.parseTarget(&steer.target, route, &rec); err != nil {
		return delaybridge.Request{}, err
	}
	m.Scheduled = d.scheduled(rec.Time)
	if m.Due, err = d.parseDue(&steer, route, m.Scheduled); err != nil {
		return delaybridge.Request{}, err
	}
	if m.ExpiresAfter, err = d.parseExpiresAfter(&steer.expiresAfter, route); err != nil {
		return delaybridge.Request{}, err
	}
	if m.Key, err = parseKey(&steer, rec.Key); err != nil {
		return delaybridge.Request{}, err
	}
	if steer.rawHeaders.given() {
		raw, err := parseRawHeaders(&steer.rawHeaders)
		if err != nil {
			return delaybridge.Request{}, err
		}
		headers = append(headers, raw...)
	}
	// Once more with those of the envelope and of Bridge-Raw-Headers.
	if err := d.checkHeaders(headers); err != nil {
		return delaybridge.Request{}, err
	}
	if hops > 0 {
		headers = append(headers, delaybridge.Header{Name: headerHops, Value: strconv.AppendInt(nil, int64(hops), 10)})
	}
	m.Headers = headers
	if m.Payload, err = d.parsePayload(&steer.tombstone, payload); err != nil {
		return delaybridge.Request{}, err
	}
	return req, nil
}

// checkHeaders refuses too many headers, or too long ones.
func (d *Decoder) checkHeaders(headers []delaybridge.Header) error {
	if len(headers) > d.cfg.MaxHeaders {
		return &delaybridge.FieldError{Code: codeTooManyHeaders, Field: "headers", Value: fmt.Sprint(len(headers)), Reason: fmt.Sprintf("at most %d are allowed (BRIDGE_MAX_HEADERS)", d.cfg.MaxHeaders)}
	}
	bytes := 0
	for i := range headers {
		bytes += len(headers[i].Name) + len(headers[i].Value)
	}
	if bytes > d.cfg.MaxHeaderBytes {
		return &delaybridge.FieldError{Code: "headers_too_large", Field: "headers", Value: fmt.Sprintf("%d bytes", bytes), Reason: fmt.Sprintf("at most %d bytes of names and values are allowed (BRIDGE_MAX_HEADER_BYTES)", d.cfg.MaxHeaderBytes)}
	}
	return nil
}

// parseHops returns how many bridges the record has passed, and refuses one that
// may pass no other. Who writes to the source can make it too large, which harms
// its own message only; in a loop it is the bridges that write it.
func parseHops(f *field) (int, error) {
	if !f.given() {
		return 0, nil
	}
	text, err := f.text()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 31)
	switch {
	case err != nil:
		return 0, f.refuse("invalid_hops", "want the number of bridges that it has passed, in decimal digits; producers leave it out")
	case n >= delaybridge.MaxHops:
		return 0, f.refuse(codeTooManyHops, fmt.Sprintf("it may pass at most %d bridges: is it led in a circle?", delaybridge.MaxHops))
	}
	return int(n), nil
}

// route returns the route of a source, nil if it has none.
func (d *Decoder) route(origin delaybridge.Target) *Route {
	if r := d.exact[origin]; r != nil {
		return r
	}
	if origin.Sink == delaybridge.SinkNATS {
		for _, r := range d.wild {
			if matchSubject(r.Source.Name, origin.Name) {
				return r
			}
		}
	}
	return nil
}

// scheduled returns the time from which a delay counts, to the millisecond.
func (d *Decoder) scheduled(t time.Time) time.Time {
	now := d.cfg.Now()
	if t.IsZero() || t.After(now.Add(d.cfg.ClockTolerance)) {
		t = now
	}
	return notBefore1970(delaybridge.CeilMilli(t).UTC())
}

// notBefore1970 keeps times from being negative Unix milliseconds. All of them
// are long past, so it changes no delivery.
func notBefore1970(t time.Time) time.Time {
	if t.UnixMilli() < 0 {
		return time.UnixMilli(0).UTC()
	}
	return t
}

// bareCancel reports whether the headers alone say what is to be cancelled, so
// that no envelope is needed.
func bareCancel(s *steering, payload []byte) bool {
	op, err := parseOp(&s.op)
	return err == nil && op == delaybridge.OpCancel && len(payload) == 0
}

func parseOp(f *field) (delaybridge.Op, error) {
	if !f.given() {
		return delaybridge.OpSchedule, nil
	}
	text, err := f.text()
	switch {
	case err != nil:
		return 0, err
	case text == "schedule":
		return delaybridge.OpSchedule, nil
	case text == "cancel":
		return delaybridge.OpCancel, nil
	}
	return 0, f.refuse("invalid_op", "want schedule or cancel")
}

func parseCancelID(f *field) (string, error) {
	if !f.given() {
		return "", &delaybridge.FieldError{Code: "missing_id", Field: headerID, Reason: "a cancel needs the id of what it cancels"}
	}
	return parseGivenID(f)
}

func parseGivenID(f *field) (string, error) {
	id, err := f.text()
	if err != nil {
		return "", err
	}
	if err := delaybridge.ValidateID(id); err != nil {
		return "", f.fill(err, "")
	}
	return id, nil
}

// parseID returns the id that was given, or the one that a redelivery has again.
func (d *Decoder) parseID(s *steering, rec Record) (string, error) {
	switch {
	case s.id.given():
		return parseGivenID(&s.id)
	case rec.Origin.Sink == delaybridge.SinkNATS && len(s.msgID.value) > 0:
		return parseGivenID(&s.msgID)
	}
	return positionID("", rec.Position), nil
}

func (d *Decoder) parseTarget(f *field, route *Route, rec *Record) (delaybridge.Target, error) {
	if !f.given() {
		if route != nil && route.Target != (delaybridge.Target{}) {
			return route.Target, nil
		}
		return delaybridge.Target{}, &delaybridge.FieldError{Code: "missing_target", Field: headerTarget, Reason: "is required, since the source has no default"}
	}
	text, err := f.text()
	if err != nil {
		return delaybridge.Target{}, err
	}
	t, err := delaybridge.ParseTarget(text)
	if err != nil {
		return delaybridge.Target{}, f.fill(err, "")
	}
	if d.IsSource(t) {
		return delaybridge.Target{}, f.refuse("forbidden_target", "is one of the bridge's own sources: the message would come back")
	}
	if len(d.allowed) > 0 && !matchesAny(d.allowed, t) && !(rec.Replayed && d.isOperators(t)) {
		return delaybridge.Target{}, f.refuse("forbidden_target", "is not among the allowed targets")
	}
	if reason := d.mayName(rec, t); reason != "" {
		return delaybridge.Target{}, f.refuse("forbidden_target", reason)
	}
	return t, nil
}

// isOperators reports whether t is the reject or the dead target, which need not
// be allowed: what was sent there may be replayed.
func (d *Decoder) isOperators(t delaybridge.Target) bool {
	return t == d.cfg.RejectTarget || t == d.cfg.DeadTarget
}

// parseDue returns the due time, by Bridge-Deliver-At, Bridge-Delay or the
// route, in whole milliseconds.
func (d *Decoder) parseDue(s *steering, route *Route, scheduled time.Time) (time.Time, error) {
	var (
		due time.Time
		f   *field
	)
	switch {
	case s.delay.given() && s.deliverAt.given():
		return due, s.deliverAt.refuse("conflicting_time", s.delay.name+" is given too: only one of them can count")
	case s.deliverAt.given():
		f = &s.deliverAt
		text, err := f.text()
		if err != nil {
			return due, err
		}
		if due, err = delaybridge.ParseTime(text); err != nil {
			return due, f.fill(err, "invalid_deliver_at")
		}
		due = notBefore1970(due)
	case s.delay.given():
		f = &s.delay
		text, err := f.text()
		if err != nil {
			return due, err
		}
		delay, err := delaybridge.ParseDuration(text)
		if err != nil {
			return due, f.fill(err, "invalid_delay")
		}
		if delay > d.cfg.MaxDelay {
			return due, d.tooFar(f) // before the longest ones leave the calendar
		}
		due = scheduled.Add(delay)
	case route != nil && route.HasDelay:
		return scheduled.Add(route.Delay), nil
	default:
		return due, &delaybridge.FieldError{Code: "missing_delay", Field: headerDelay, Reason: "this or " + headerDeliverAt + " is required, since the source has no default"}
	}
	if due.After(scheduled.Add(d.cfg.MaxDelay)) {
		return due, d.tooFar(f)
	}
	return due, nil
}

func (d *Decoder) tooFar(f *field) error {
	return f.refuse("delay_too_long", fmt.Sprintf("is more than %v ahead, the maximum (BRIDGE_MAX_DELAY)", d.cfg.MaxDelay))
}

func (d *Decoder) parseExpiresAfter(f *field, route *Route) (time.Duration, error) {
	if !f.given() {
		if route != nil && route.HasExpiresAfter {
			return route.ExpiresAfter, nil
		}
		return d.cfg.ExpiresAfter, nil
	}
	text, err := f.text()
	if err != nil {
		return 0, err
	}
	after, err := delaybridge.ParseDuration(text)
	if err != nil {
		return 0, f.fill(err, "invalid_expires_after")
	}
	return after, nil
}

// parseKey returns the key that was given, as its bytes are, or the source's.
func parseKey(s *steering, source []byte) ([]byte, error) {
	switch {
	case s.key.given() && s.keyBase64.given():
		return nil, s.keyBase64.refuse("invalid_key", s.key.name+" is given too: only one of them can count")
	case s.keyBase64.given():
		text, err := s.keyBase64.text()
		if err != nil {
			return nil, err
		}
		key, err := decodeBase64(text)
		if err != nil {
			return nil, s.keyBase64.refuse("invalid_key", "is not base64 of the standard alphabet with padding")
		}
		return key, nil
	case s.key.given():
		if _, err := s.key.text(); err != nil {
			return nil, err
		}
		return s.key.value, nil
	}
	return source, nil
}

func (d *Decoder) parsePayload(tombstone *field, payload []byte) ([]byte, error) {
	if tombstone.given() {
		text, err := tombstone.text()
		switch {
		case err != nil:
			return nil, err
		case text == "true":
			return nil, nil
		case text != "false":
			return nil, tombstone.refuse("invalid_tombstone", "want true or false")
		}
	}
	if len(payload) > d.cfg.MaxPayload {
		return nil, &delaybridge.FieldError{Code: CodePayloadTooLarge, Field: "payload", Value: fmt.Sprintf("%d bytes", len(payload)), Reason: fmt.Sprintf("at most %d bytes are allowed (BRIDGE_MAX_PAYLOAD)", d.cfg.MaxPayload)}
	}
	return payload, nil
}
