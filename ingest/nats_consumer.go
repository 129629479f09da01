package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

// errNewLife says that the consumer is not the one that was attached to: it, or
// its stream with it, was deleted and made again, so that the numbers of its
// messages mean something else now.
var errNewLife = errors.New("the consumer was deleted and made again")

// errNarrowed says that another process, of another configuration, took subjects
// of this one away from the consumer.
var errNarrowed = errors.New("the consumer does not read all subjects any more")

// life is one consumer from its creation to its deletion, of one stream's.
type life struct {
	stream, consumer time.Time // when they were created
	source           string    // the name under which the stream's positions are kept
	reconnects       uint64    // of the connection, when it was last seen to be the same
}

// attach makes sure of the durable consumer and notes its life.
func (r *streamReader) attach(ctx context.Context) error {
	reconnects := r.conn.Stats().Reconnects
	api, cancel := r.api(ctx)
	defer cancel()
	stream, err := r.js.Stream(api, r.stream)
	if err != nil {
		return fmt.Errorf("look up stream %s: %w", r.stream, err)
	}
	info := stream.CachedInfo()
	if !info.Created.Equal(r.life.stream) {
		r.ackFloor.Store(0)
	}
	consumer, err := r.ensureConsumer(api, stream)
	if err != nil {
		return err
	}
	source, err := r.handler.Incarnation(ctx, "nats:"+r.stream, strconv.FormatInt(info.Created.UnixNano(), 10))
	if err != nil {
		return err
	}
	if r.life.source != "" && r.life.source != source {
		r.log.Warn("the stream was deleted and made again; its messages are taken as new ones", zap.String("source", source))
	}
	r.life = life{stream: info.Created, consumer: consumer.Created, source: source, reconnects: reconnects}
	r.lastDelivery = 0
	r.note(consumer)
	return nil
}

// ensureConsumer creates the durable consumer, or brings one that is there to
// our settings.
func (r *streamReader) ensureConsumer(ctx context.Context, stream jetstream.Stream) (*jetstream.ConsumerInfo, error) {
	want := jetstream.ConsumerConfig{
		Durable:       r.cfg.Durable,
		Description:   "Delaybridge takes requests in; all of its processes share this consumer.",
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       r.cfg.AckWait,
		MaxAckPending: r.cfg.MaxAckPending,
		// A limit would leave messages behind for good, unseen, when the queue is
		// away for longer. What cannot be understood is stored as rejected.
		MaxDeliver:    -1,
		DeliverPolicy: jetstream.DeliverAllPolicy,
		ReplayPolicy:  jetstream.ReplayInstantPolicy,
	}
	want.FilterSubject, want.FilterSubjects = asFilters(r.filters)
	consumer, err := stream.Consumer(ctx, r.cfg.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		if floor := r.ackFloor.Load(); floor > 0 && stream.CachedInfo().Config.Retention != jetstream.WorkQueuePolicy {
			// It was deleted under us. The stream still holds all that was
			// acknowledged, which need not be delivered again.
			want.DeliverPolicy, want.OptStartSeq = jetstream.DeliverByStartSequencePolicy, floor+1
		}
		consumer, err = stream.CreateConsumer(ctx, want)
		if err != nil {
			return nil, fmt.Errorf("create consumer %s on stream %s: %w", r.cfg.Durable, r.stream, err)
		}
		r.log.Info("the consumer was created", zap.String("durable", r.cfg.Durable), zap.Strings("filters", r.filters))
		return consumer.CachedInfo(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up consumer %s on stream %s: %w", r.cfg.Durable, r.stream, err)
	}
	have := consumer.CachedInfo().Config
	if have.AckPolicy != jetstream.AckExplicitPolicy {
		return nil, fmt.Errorf("consumer %s on stream %s does not take explicit acknowledgements: delete it, or set another durable name (BRIDGE_NATS_INGEST_DURABLE)", r.cfg.Durable, r.stream)
	}
	passedOver := !coversAll(filtersOf(have), r.filters)
	if r.life.source != "" {
		// Other processes, of another configuration, may need what this one does
		// not: only one that starts takes subjects away, or two would quarrel.
		want.FilterSubject, want.FilterSubjects = asFilters(withoutCovered(append(filtersOf(have), r.filters...)))
	}
	if have.AckWait == want.AckWait && have.MaxAckPending == want.MaxAckPending && have.MaxDeliver == want.MaxDeliver &&
		have.FilterSubject == want.FilterSubject && slices.Equal(have.FilterSubjects, want.FilterSubjects) && len(have.BackOff) == 0 {
		return consumer.CachedInfo(), nil
	}
	update := have // where it starts cannot be changed, and the rest is left alone
	update.AckWait, update.MaxAckPending, update.MaxDeliver, update.BackOff = want.AckWait, want.MaxAckPending, want.MaxDeliver, nil
	update.FilterSubject, update.FilterSubjects = want.FilterSubject, want.FilterSubjects
	if passedOver && stream.CachedInfo().Config.Retention == jetstream.WorkQueuePolicy {
		// A consumer never goes back to what it has passed over, and nobody else
		// reads it. A new one does, and what others hold comes again with it,
		// which the queue knows by its position.
		if err := stream.DeleteConsumer(ctx, r.cfg.Durable); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			return nil, fmt.Errorf("delete consumer %s on stream %s: %w", r.cfg.Durable, r.stream, err)
		}
		update.DeliverPolicy, update.OptStartSeq, update.OptStartTime = jetstream.DeliverAllPolicy, 0, nil
		if consumer, err = stream.CreateConsumer(ctx, update); err != nil {
			return nil, fmt.Errorf("create consumer %s on stream %s: %w", r.cfg.Durable, r.stream, err)
		}
		r.log.Info("the consumer was made anew, to read what it has passed over", zap.String("durable", r.cfg.Durable), zap.Strings("filters", filtersOf(update)))
		return consumer.CachedInfo(), nil
	}
	if consumer, err = stream.UpdateConsumer(ctx, update); err != nil {
		return nil, fmt.Errorf("update consumer %s on stream %s: %w", r.cfg.Durable, r.stream, err)
	}
	r.log.Info("the consumer was brought to our settings", zap.String("durable", r.cfg.Durable), zap.Strings("filters", filtersOf(update)))
	return consumer.CachedInfo(), nil
}

// asFilters returns a consumer's filters as its configuration has them.
func asFilters(subjects []string) (one string, several []string) {
	if len(subjects) == 1 {
		return subjects[0], nil // servers before 2.10 know only this
	}
	return "", subjects
}

// filtersOf returns the subjects that a consumer delivers.
func filtersOf(c jetstream.ConsumerConfig) []string {
	switch {
	case c.FilterSubject != "":
		return []string{c.FilterSubject}
	case len(c.FilterSubjects) > 0:
		return slices.Clone(c.FilterSubjects)
	}
	return []string{">"}
}

// coversAll reports whether each of the patterns is covered by one of those.
func coversAll(by, patterns []string) bool {
	return !slices.ContainsFunc(patterns, func(p string) bool {
		return !slices.ContainsFunc(by, func(b string) bool { return coversSubjects(b, p) })
	})
}

// verify makes sure that the consumer is still the one that was attached to, so
// that everything received before the call comes from it. It asks until there
// is an answer, and fails if it is another one, or gone, or ctx has ended.
func (r *streamReader) verify(ctx context.Context) error {
	retry := backoff{min: 100 * time.Millisecond, max: 2 * time.Second}
	for {
		reconnects := r.conn.Stats().Reconnects
		api, cancel := r.api(ctx)
		consumer, err := r.js.Consumer(api, r.stream, r.cfg.Durable)
		cancel()
		switch {
		case err == nil && !consumer.CachedInfo().Created.Equal(r.life.consumer):
			return errNewLife
		case err == nil && !coversAll(filtersOf(consumer.CachedInfo().Config), r.filters):
			return errNarrowed
		case err == nil:
			if retry.tries >= loggedTry {
				r.log.Info("the stream answers again")
			}
			r.life.reconnects, r.lastDelivery = reconnects, 0
			r.note(consumer.CachedInfo())
			return nil
		case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrStreamNotFound), r.conn.IsClosed():
			return fmt.Errorf("look up consumer %s on stream %s: %w", r.cfg.Durable, r.stream, err)
		}
		if retry.tries++; retry.tries == loggedTry {
			r.log.Warn("the stream does not answer; trying again until it does", zap.Error(err))
		}
		if !retry.wait(ctx) {
			return ctx.Err()
		}
	}
}

// note keeps what the server says of the consumer's progress.
func (r *streamReader) note(info *jetstream.ConsumerInfo) {
	r.ackFloor.Store(info.AckFloor.Stream)
	r.lag.Store(int64(info.NumPending) + int64(info.NumAckPending))
}
