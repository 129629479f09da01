package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"delaybridge"
	"delaybridge/ingest"
)

// natsDoctor looks at NATS and JetStream.
type natsDoctor struct {
	*report
	s     *Settings
	limit time.Duration

	nc      *nats.Conn
	js      jetstream.JetStream
	refused refusedRequests
	streams map[string]*jetstream.StreamInfo // those that were looked at; nil: there is none
}

// step runs one check within the limit.
func (d *natsDoctor) step(ctx context.Context, check func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	check(ctx)
}

func (d *natsDoctor) run(ctx context.Context) {
	if d.s.NATS.URL == "" {
		d.note("settings", "BRIDGE_NATS_URL is empty: NATS is not used", "")
		return
	}
	d.streams = map[string]*jetstream.StreamInfo{}
	if !d.connect() {
		return
	}
	defer d.nc.Close()
	d.maxPayload()
	d.step(ctx, d.permissions)
	jetStream := false
	d.step(ctx, func(ctx context.Context) { jetStream = d.jetStream(ctx) })
	if jetStream && slices.Contains(d.s.Roles, roleIngest) {
		d.step(ctx, d.sources)
	}
	for _, t := range d.s.settingTargets(delaybridge.SinkNATS, delaybridge.SinkNATSCore) {
		switch {
		case t.Sink == delaybridge.SinkNATSCore:
			d.note("target", t.String()+" is confirmed by the server's flush only: who does not listen then does not get it", "use nats://"+t.Name+" where that matters")
		case jetStream:
			d.step(ctx, func(ctx context.Context) { d.target(ctx, t) })
		}
	}
}

// connect connects once, and reports whether it could.
func (d *natsDoctor) connect() bool {
	auth, err := d.s.natsAuth()
	if err != nil {
		d.problem("settings", err.Error(), "correct the setting that it names")
		return false
	}
	// What is refused is looked at where it is asked for.
	quiet := nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { d.refused.hear(err) })
	began := time.Now()
	d.nc, err = nats.Connect(string(d.s.NATS.URL), append(auth, nats.Name("delaybridge doctor"), nats.Timeout(d.limit/2), nats.NoReconnect(), quiet)...)
	what := d.s.NATS.URL.String()
	switch {
	case err == nil:
		d.ok("reachable", "%s answers in %v: nats-server %s", what, time.Since(began).Round(100*time.Microsecond), d.nc.ConnectedServerVersion())
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked), errors.Is(err, nats.ErrAccountAuthExpired):
		d.problem("reachable", what+" refuses the user: "+err.Error(), "set the user in BRIDGE_NATS_URL, BRIDGE_NATS_CREDS or BRIDGE_NATS_NKEY")
		return false
	default:
		d.problem("reachable", what+" does not answer: "+strings.ReplaceAll(maskURLs(err.Error()), string(d.s.NATS.URL), what)+": nothing is taken in from it or delivered to it", "start nats-server, or correct BRIDGE_NATS_URL and the BRIDGE_NATS_TLS_ settings")
		return false
	}
	d.js, err = jetstream.New(d.nc)
	if err != nil {
		d.problem("reachable", err.Error(), "")
	}
	return err == nil
}

// headersRoom is about what the headers of a message take up beside its payload.
const headersRoom = 4 << 10

func (d *natsDoctor) maxPayload() {
	most, payload := d.nc.MaxPayload(), int64(d.s.MaxPayload)
	text := fmt.Sprintf("max_payload is %s and BRIDGE_MAX_PAYLOAD %s", byteSize(most), d.s.MaxPayload)
	do := fmt.Sprintf("set max_payload: %d in the server's configuration, or BRIDGE_MAX_PAYLOAD to less", payload+64<<10)
	switch {
	case most < payload:
		d.problem("max_payload", text+": larger messages are taken in, from Kafka or by HTTP, and can never be delivered to NATS (dead letters, reason permanent)", do)
	case most < payload+headersRoom:
		d.note("max_payload", text+": headers count, so the very largest messages cannot be delivered to NATS", do)
	default:
		d.ok("max_payload", "%s", text)
	}
}

// jetStream reports whether there is JetStream.
func (d *natsDoctor) jetStream(ctx context.Context) bool {
	var info *jetstream.AccountInfo
	err := d.refused.ask(ctx, "$JS.API.INFO", func(ctx context.Context) (err error) {
		info, err = d.js.AccountInfo(ctx)
		return err
	})
	switch {
	case errors.Is(err, errMayNotAsk):
		// Who works with streams only needs no such right.
		d.note("jetstream", "the user may not ask how full its account is", "allow it to publish to $JS.API.INFO, for bridge doctor only")
		return true
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled):
		d.problem("jetstream", "it is not enabled on this server: nothing is taken in, and only nats-core:// targets work", "start nats-server with -js, or with a jetstream {} block")
		return false
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		d.problem("jetstream", "it is not enabled for the account of this user", "add jetstream: enabled to the account, or sign in to another")
		return false
	case err != nil:
		d.problem("jetstream", "it does not answer: "+shortCause(err), "see that JetStream has a leader (nats server report jetstream), and that the user may publish to $JS.API.> and subscribe to _INBOX.>")
		return false
	}
	l := info.Limits
	switch {
	case l.MaxStore > 0 && int64(info.Store) > l.MaxStore/10*9:
		d.warning("jetstream", fmt.Sprintf("%s of the account's %s storage are used: a full one refuses messages, which are tried again", byteSize(int64(info.Store)), byteSize(l.MaxStore)), "raise the account's limit, or shrink a stream: nats stream report")
	default:
		d.ok("jetstream", "enabled, %s, %s stored", plural(info.Streams, "stream"), byteSize(int64(info.Store)))
	}
	return true
}

// info returns what is known of a stream, nil if there is none.
func (d *natsDoctor) info(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	if info, known := d.streams[name]; known {
		return info, nil
	}
	var stream jetstream.Stream
	err := d.refused.ask(ctx, "$JS.API.STREAM.INFO."+name, func(ctx context.Context) (err error) {
		stream, err = d.js.Stream(ctx, name)
		return err
	})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		d.streams[name] = nil
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	info := stream.CachedInfo()
	d.streams[name] = info
	return info, nil
}

// holding returns the streams that hold any of a subject pattern.
func (d *natsDoctor) holding(ctx context.Context, subject string) ([]string, error) {
	var names []string
	lister := d.js.StreamNames(ctx, jetstream.WithStreamListSubject(subject))
	for name := range lister.Name() {
		names = append(names, name)
	}
	return names, lister.Err()
}

// sources reports the streams that are read, and their consumers.
func (d *natsDoctor) sources(ctx context.Context) {
	in := &d.s.NATS.Ingest
	began := time.Now()
	own, err := d.info(ctx, string(in.Stream))
	if err != nil {
		d.problem("stream", fmt.Sprintf("%s cannot be looked up: %s", in.Stream, shortCause(err)), "allow the user $JS.API.STREAM.INFO."+string(in.Stream))
		return
	}
	if own != nil && !own.TimeStamp.IsZero() {
		half := time.Since(began) / 2
		d.checkClock("the NATS server", own.TimeStamp.Sub(began.Add(half)), half, time.Duration(d.s.ClockTolerance))
	}
	read := map[string][]string{} // by stream: the subjects that are read from it
	var missing []string
	for _, subject := range slices.Concat([]string(in.Subjects), d.s.routeSources(delaybridge.SinkNATS)) {
		names, err := d.holding(ctx, subject)
		if err != nil {
			d.problem("subjects", "the stream of "+subject+" cannot be looked for: "+shortCause(err), "allow the user $JS.API.STREAM.NAMES")
			return
		}
		for _, name := range names {
			read[name] = append(read[name], subject)
		}
		switch {
		case len(names) > 0:
			d.covered(ctx, subject, names)
		case own != nil && (own.Config.Mirror != nil || len(own.Config.Sources) > 0):
			read[own.Config.Name] = append(read[own.Config.Name], subject)
		default:
			missing = append(missing, subject)
		}
	}
	if len(missing) > 0 {
		list := strings.Join(missing, ", ")
		do := "nats stream add " + string(in.Stream) + " --subjects " + strings.Join(missing, ",") + " --retention work --discard new --storage file"
		if own != nil {
			do = fmt.Sprintf("nats stream edit %s --subjects %s", in.Stream, strings.Join(slices.Concat(own.Config.Subjects, missing), ","))
		}
		if in.Create {
			d.note("subjects", fmt.Sprintf("no stream holds %s yet: bridge serve puts them into %s (BRIDGE_NATS_INGEST_CREATE=true); what is published before that is lost", list, in.Stream), "run bridge serve, or "+do)
		} else {
			d.problem("subjects", "no stream holds "+list+": what is published to them is lost, and nothing is taken in", do+", or BRIDGE_NATS_INGEST_CREATE=true")
		}
	}
	names := make([]string, 0, len(read))
	for name := range read {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		info, err := d.info(ctx, name)
		if err != nil || info == nil {
			d.problem("stream", fmt.Sprintf("%s cannot be looked up: %v", name, err), "allow the user $JS.API.STREAM.INFO."+name)
			continue
		}
		d.sourceStream(info, read[name])
		d.consumer(ctx, info, read[name])
	}
}

// covered reports a pattern of which streams hold a part only.
func (d *natsDoctor) covered(ctx context.Context, subject string, names []string) {
	for _, name := range names {
		info, err := d.info(ctx, name)
		if err != nil || info == nil {
			return
		}
		for _, held := range info.Config.Subjects {
			if server.SubjectsCollide(held, subject) && coversPattern(held, subject) {
				return
			}
		}
	}
	d.problem("subjects", fmt.Sprintf("%s hold only a part of %s: what is published to the rest of it is lost", strings.Join(names, ", "), subject),
		"nats stream edit "+names[0]+" --subjects "+subject)
}

// coversPattern reports whether all subjects of a pattern are subjects of another.
func coversPattern(by, pattern string) bool {
	b, p := strings.Split(by, "."), strings.Split(pattern, ".")
	for i, token := range b {
		switch {
		case token == ">":
			return len(p) > i
		case i >= len(p) || p[i] == ">":
			return false
		case token != "*" && token != p[i]:
			return false
		}
	}
	return len(b) == len(p)
}

// sourceStream reports whether a stream keeps requests until they are taken in.
func (d *natsDoctor) sourceStream(info *jetstream.StreamInfo, subjects []string) {
	const check = "stream"
	c := &info.Config
	edit := "nats stream edit " + c.Name
	before := len(d.all())
	limits := limitsOf(c)
	switch {
	case c.Sealed:
		d.problem(check, c.Name+" is sealed: nothing can be published to it", "make another stream")
	case c.Retention == jetstream.InterestPolicy:
		d.warning(check, c.Name+" has interest retention: what is published while it has no consumer is dropped at once", "make it anew with --retention work")
	case c.Retention == jetstream.LimitsPolicy:
		d.note(check, c.Name+" has limits retention: requests that were taken in stay in it until a limit removes them", "--retention work for a stream of its own; leave it where others read it too")
	}
	if limits != "" && c.Discard == jetstream.DiscardOld {
		d.warning(check, fmt.Sprintf("%s has %s and drops its oldest messages when that is reached: requests that the bridge has not taken in yet, while it is away, are lost", c.Name, limits), edit+" --discard new")
	}
	if c.MaxAge > 0 {
		d.warning(check, fmt.Sprintf("%s has a maximum age of %v: requests that are not taken in by then are lost", c.Name, c.MaxAge), edit+" --max-age 0")
	}
	if c.Storage == jetstream.MemoryStorage {
		d.warning(check, c.Name+" is in memory: a restart of the server loses what was not taken in", "make it anew with --storage file")
	}
	if c.NoAck {
		d.warning(check, c.Name+" does not acknowledge: producers cannot know that it has a request", edit+" --ack")
	}
	if c.MaxMsgSize > 0 && int64(c.MaxMsgSize) < int64(d.s.MaxPayload) {
		d.note(check, fmt.Sprintf("%s takes messages up to %s, less than BRIDGE_MAX_PAYLOAD (%s)", c.Name, byteSize(int64(c.MaxMsgSize)), d.s.MaxPayload), "")
	}
	d.cluster(info)
	if len(d.all()) == before {
		d.ok(check, "%s holds %s: %s, %s retention, %s", c.Name, strings.Join(subjects, ", "), plural(int(info.State.Msgs), "message"), strings.ToLower(c.Retention.String()), plural(max(c.Replicas, 1), "replica"))
	}
}

// cluster reports how a stream is replicated.
func (d *natsDoctor) cluster(info *jetstream.StreamInfo) {
	cl := info.Cluster
	if cl == nil || cl.Name == "" {
		return
	}
	c := &info.Config
	if cl.Leader == "" {
		d.problem("stream", c.Name+" has no leader: nothing can be published or read", "see that most of its servers run: nats stream cluster")
	}
	if c.Replicas <= 1 {
		d.warning("stream", fmt.Sprintf("%s has one replica in the cluster %s: while its server is away it can neither be published to nor read", c.Name, cl.Name), "nats stream edit "+c.Name+" --replicas 3")
	}
	for _, peer := range cl.Replicas {
		if peer.Offline || !peer.Current {
			d.warning("stream", fmt.Sprintf("%s: its replica on %s is behind or away", c.Name, peer.Name), "nats server report jetstream")
		}
	}
}

// limitsOf names a stream's limits, "" for none.
func limitsOf(c *jetstream.StreamConfig) string {
	var limits []string
	if c.MaxMsgs > 0 {
		limits = append(limits, fmt.Sprintf("a limit of %d messages", c.MaxMsgs))
	}
	if c.MaxBytes > 0 {
		limits = append(limits, "a limit of "+byteSize(c.MaxBytes))
	}
	if c.MaxMsgsPerSubject > 0 {
		limits = append(limits, fmt.Sprintf("a limit of %d messages a subject", c.MaxMsgsPerSubject))
	}
	return strings.Join(limits, " and ")
}

// consumer reports the durable consumer of one stream.
func (d *natsDoctor) consumer(ctx context.Context, stream *jetstream.StreamInfo, subjects []string) {
	const check = "consumer"
	name, durable := stream.Config.Name, string(d.s.NATS.Ingest.Durable)
	of := durable + " on " + name
	consumer, err := d.js.Consumer(ctx, name, durable)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		text := "there is no " + of + " yet: bridge serve makes it"
		if stream.State.Msgs > 0 {
			d.warning(check, fmt.Sprintf("%s, and %d messages wait in the stream", text, stream.State.Msgs), "run bridge serve with the role ingest")
		} else {
			d.note(check, text, "run bridge serve with the role ingest")
		}
		return
	case err != nil:
		d.problem(check, of+" cannot be looked up: "+shortCause(err), "allow the user $JS.API.CONSUMER.INFO."+name+"."+durable)
		return
	}
	info := consumer.CachedInfo()
	have, want := info.Config, ingest.DefaultNATSConfig()
	before := len(d.all())
	remake := fmt.Sprintf("nats consumer rm %s %s, and restart bridge serve, which makes it anew", name, durable)
	if have.AckPolicy != jetstream.AckExplicitPolicy {
		d.problem(check, of+" does not take explicit acknowledgements: it cannot be used", remake+"; or set another BRIDGE_NATS_INGEST_DURABLE")
	}
	var drift []string
	differs := func(what string, has, wants any) {
		drift = append(drift, fmt.Sprintf("%s is %v and not %v", what, has, wants))
	}
	if have.MaxDeliver != -1 {
		differs("max deliver", have.MaxDeliver, "unlimited: messages are left behind after it")
	}
	if have.AckWait != want.AckWait {
		differs("ack wait", have.AckWait, want.AckWait)
	}
	if have.MaxAckPending != want.MaxAckPending {
		differs("max ack pending", have.MaxAckPending, want.MaxAckPending)
	}
	if len(have.BackOff) > 0 {
		differs("back-off", have.BackOff, "none")
	}
	filters := slices.Clone(have.FilterSubjects)
	if have.FilterSubject != "" {
		filters = append(filters, have.FilterSubject)
	}
	if len(filters) > 0 {
		for _, subject := range subjects {
			if !slices.ContainsFunc(filters, func(f string) bool { return server.SubjectsCollide(f, subject) }) {
				differs("its filter", strings.Join(filters, ", "), "with "+subject)
			}
		}
	}
	if len(drift) > 0 {
		d.warning(check, of+" was changed: "+strings.Join(drift, "; "), "restart bridge serve, which brings it to its settings")
	}
	if info.Paused {
		d.problem(check, fmt.Sprintf("%s is paused for %v: nothing is taken in", of, info.PauseRemaining.Round(time.Second)), "nats consumer resume "+name+" "+durable)
	}
	most := have.MaxAckPending
	switch {
	case most > 0 && info.NumAckPending >= most:
		d.problem(check, fmt.Sprintf("%s: all %d places for messages in hand are taken: nothing more is delivered", of, most), "see that bridge serve can write to Redis, and that the user may publish to $JS.ACK.>; places are free again after the ack wait")
	case info.NumPending > 0 && info.NumWaiting == 0:
		d.warning(check, fmt.Sprintf("%s: %d messages wait, and nobody asks for them", of, info.NumPending), "run bridge serve with the role ingest; if one runs, it is held back: see what is said of redis and the queue")
	case info.NumWaiting == 0:
		d.note(check, of+": nobody reads it now", "run bridge serve with the role ingest")
	}
	if len(d.all()) == before {
		d.ok(check, "%s: %d wait, %d in hand, %d pulls are open", of, info.NumPending, info.NumAckPending, info.NumWaiting)
	}
}

// target reports the stream behind one target.
func (d *natsDoctor) target(ctx context.Context, t settingTarget) {
	const check = "target"
	names, err := d.holding(ctx, t.Name)
	if err != nil {
		d.problem(check, "the stream of "+t.String()+" cannot be looked for: "+shortCause(err), "allow the user $JS.API.STREAM.NAMES")
		return
	}
	if len(names) == 0 {
		d.problem(check, fmt.Sprintf("no stream holds %s (%s): its messages are tried again until they are dead letters", t.Name, t.setting), "nats stream add <name> --subjects "+t.Name)
		return
	}
	info, err := d.info(ctx, names[0])
	if errors.Is(err, errMayNotAsk) {
		d.note(check, fmt.Sprintf("stream %s holds %s; the user may not ask how it is set", names[0], t), "allow it to publish to $JS.API.STREAM.INFO."+names[0]+", for bridge doctor only")
		return
	}
	if err != nil || info == nil {
		d.problem(check, fmt.Sprintf("stream %s behind %s cannot be looked up: %v", names[0], t, err), "allow the user $JS.API.STREAM.INFO."+names[0])
		return
	}
	c := &info.Config
	before := len(d.all())
	edit := "nats stream edit " + c.Name
	switch {
	case c.Sealed:
		d.problem(check, fmt.Sprintf("%s: its stream %s is sealed: its messages are dead letters, reason permanent", t, c.Name), "deliver to another subject")
	case c.NoAck:
		d.problem(check, fmt.Sprintf("%s: its stream %s does not acknowledge: no delivery is ever confirmed", t, c.Name), edit+" --ack")
	}
	if limits := limitsOf(c); limits != "" && c.Discard == jetstream.DiscardOld {
		d.note(check, fmt.Sprintf("%s: its stream %s has %s and drops its oldest messages then, delivered and perhaps not read", t, c.Name, limits), edit+" --discard new, so that they are tried again instead")
	}
	if c.MaxMsgSize > 0 && int64(c.MaxMsgSize) < int64(d.s.MaxPayload) {
		d.warning(check, fmt.Sprintf("%s: its stream %s takes messages up to %s, and BRIDGE_MAX_PAYLOAD is %s: larger ones are dead letters", t, c.Name, byteSize(int64(c.MaxMsgSize)), d.s.MaxPayload), edit+" --max-msg-size -1")
	}
	d.duplicates(t, c)
	d.cluster(info)
	if len(d.all()) == before {
		d.ok(check, "%s goes to stream %s", t, c.Name)
	}
}

// duplicates compares the time in which a stream drops a repeated publish with the
// time after which one is repeated: an attempt without an answer may have arrived.
func (d *natsDoctor) duplicates(t settingTarget, c *jetstream.StreamConfig) {
	first := max(time.Duration(d.s.Lease), time.Duration(d.s.RetryBase)*3/2)
	last := max(time.Duration(d.s.Lease), time.Duration(d.s.RetryMax)*3/2)
	edit := fmt.Sprintf("nats stream edit %s --dupe-window %v", c.Name, duration(last.Round(time.Second)))
	switch {
	case c.Duplicates < first:
		d.warning("duplicates", fmt.Sprintf("%s: its stream %s knows repeats for %v, and an attempt without an answer is repeated after %v: it may be stored twice", t, c.Name, c.Duplicates, first), edit)
	case c.Duplicates < last:
		d.note("duplicates", fmt.Sprintf("%s: its stream %s knows repeats for %v, and late attempts are up to %v apart: one without an answer may be stored twice", t, c.Name, c.Duplicates, last), edit)
	}
}

// permissions asks the server what the user may do, and compares: nothing is
// published to find out.
func (d *natsDoctor) permissions(ctx context.Context) {
	const check = "permissions"
	const subject = "$SYS.REQ.USER.INFO"
	var reply *nats.Msg
	err := d.refused.ask(ctx, subject, func(ctx context.Context) (err error) {
		reply, err = d.nc.RequestWithContext(ctx, subject, nil)
		return err
	})
	if errors.Is(err, errMayNotAsk) {
		d.note(check, "the user may not ask what it may do", "allow it to publish to "+subject+", for bridge doctor only")
		return
	}
	if err != nil {
		d.note(check, "the server does not say what the user may do: "+shortCause(err), "")
		return
	}
	type rules struct{ Allow, Deny []string }
	var answer struct {
		Data struct {
			User        string
			Permissions *struct{ Publish, Subscribe *rules }
		}
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		d.note(check, "the server's word on what the user may do cannot be read: "+err.Error(), "")
		return
	}
	if answer.Data.Permissions == nil {
		d.ok(check, "the user may do everything in its account")
		return
	}
	may := func(r *rules, subject string) bool {
		if r == nil {
			return true
		}
		covered := func(patterns []string) bool {
			return slices.ContainsFunc(patterns, func(p string) bool {
				p, _, _ = strings.Cut(p, " ") // a queue group's name follows
				return coversPattern(p, subject)
			})
		}
		return !slices.ContainsFunc(r.Deny, func(p string) bool { return server.SubjectsCollide(p, subject) }) &&
			(len(r.Allow) == 0 || covered(r.Allow))
	}
	in := &d.s.NATS.Ingest
	stream, durable := string(in.Stream), string(in.Durable)
	var publish []string
	if slices.Contains(d.s.Roles, roleIngest) {
		publish = append(publish, "$JS.API.STREAM.NAMES", "$JS.API.STREAM.INFO."+stream, "$JS.API.CONSUMER.INFO."+stream+"."+durable,
			"$JS.API.CONSUMER.CREATE."+stream+"."+durable, "$JS.API.CONSUMER.MSG.NEXT."+stream+"."+durable, "$JS.ACK."+stream+"."+durable+".>")
		if in.Create {
			publish = append(publish, "$JS.API.STREAM.CREATE."+stream, "$JS.API.STREAM.UPDATE."+stream)
		}
	}
	if slices.Contains(d.s.Roles, roleScheduler) {
		for _, t := range d.s.settingTargets(delaybridge.SinkNATS, delaybridge.SinkNATSCore) {
			publish = append(publish, t.Name)
		}
	}
	var denied []string
	for _, subject := range publish {
		if !may(answer.Data.Permissions.Publish, subject) {
			denied = append(denied, "publish to "+subject)
		}
	}
	if !may(answer.Data.Permissions.Subscribe, "_INBOX.>") {
		denied = append(denied, "subscribe to _INBOX.>")
	}
	if len(denied) > 0 {
		d.problem(check, "the user may not "+strings.Join(denied, ", "), "allow these in the server's configuration, or with nsc edit user --allow-pub/--allow-sub")
		return
	}
	d.ok(check, "the user may do all that the settings need (targets that only messages name are not known here)")
}
