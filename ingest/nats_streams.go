package ingest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

// jsAPI is where the JetStream API of the connection's own account is.
const jsAPI = "$JS.API."

// plan finds out what to read from which stream: for each stream that holds
// some of the subjects, the filters of its consumer. With Create, what no stream
// holds is added to the bridge's own first.
func (n *NATS) plan(ctx context.Context) (map[string][]string, error) {
	filters := make(map[string][]string)
	infos := make(map[string]*jetstream.StreamInfo)
	own, err := n.streamInfo(ctx, n.cfg.Stream)
	if err != nil {
		return nil, err
	}
	infos[n.cfg.Stream] = own
	var missing, partly []string
	for _, subject := range withoutCovered(n.cfg.Subjects) {
		names, err := n.streamsWith(ctx, subject)
		if err != nil {
			return nil, err
		}
		found, covered := false, false
		for _, name := range names {
			info := infos[name]
			if info == nil {
				if info, err = n.streamInfo(ctx, name); err != nil {
					return nil, err
				}
				infos[name] = info
			}
			if info == nil {
				continue // deleted in between
			}
			for _, s := range info.Config.Subjects {
				if both, ok := intersectSubjects(subject, s); ok {
					filters[name] = append(filters[name], both)
					found, covered = true, covered || both == subject
				}
			}
		}
		switch {
		case found && !covered:
			partly = append(partly, subject)
		case !found && own != nil && (own.Config.Mirror != nil || len(own.Config.Sources) > 0):
			// It holds the subjects of other streams, which it does not name.
			filters[n.cfg.Stream] = append(filters[n.cfg.Stream], subject)
		case !found:
			missing = append(missing, subject)
		}
	}
	if len(missing) > 0 && n.cfg.Create {
		if err := n.addSubjects(ctx, own, missing); err != nil {
			return nil, err
		}
		filters[n.cfg.Stream] = append(filters[n.cfg.Stream], missing...)
		missing = nil
	}
	n.warn("missing", missing, "no stream holds these subjects, so what is published to them is lost; looking for one again and again (BRIDGE_NATS_INGEST_CREATE=true would add them to the bridge's own)")
	n.warn("partly", partly, "streams hold only a part of these subjects; what is published to the others of them is lost")
	for name := range filters {
		filters[name] = withoutCovered(filters[name])
	}
	return filters, nil
}

func (n *NATS) warn(topic string, subjects []string, text string) {
	if len(subjects) == 0 {
		n.sayOnce(topic, "")
		return
	}
	n.sayOnce(topic, text+": "+strings.Join(subjects, ", "))
}

// streamInfo returns what is known of a stream, nil if there is none.
func (n *NATS) streamInfo(ctx context.Context, name string) (*jetstream.StreamInfo, error) {
	ctx, cancel := n.api(ctx)
	defer cancel()
	stream, err := n.js.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up stream %s: %w", name, err)
	}
	return stream.CachedInfo(), nil
}

// streamsWith returns the streams that hold any of the subjects of a pattern.
func (n *NATS) streamsWith(ctx context.Context, subject string) ([]string, error) {
	ctx, cancel := n.api(ctx)
	defer cancel()
	var names []string
	lister := n.js.StreamNames(ctx, jetstream.WithStreamListSubject(subject))
	for name := range lister.Name() {
		names = append(names, name)
	}
	if err := lister.Err(); err != nil {
		return nil, fmt.Errorf("look for streams with %s: %w", subject, err)
	}
	return names, nil
}

// addSubjects makes the bridge's own stream hold subjects. It creates the stream
// if there is none, and changes nothing else in one that is there.
func (n *NATS) addSubjects(ctx context.Context, own *jetstream.StreamInfo, subjects []string) error {
	ctx, cancel := n.api(ctx)
	defer cancel()
	if own != nil {
		if err := n.extendStream(ctx, subjects); err != nil {
			return fmt.Errorf("add %s to stream %s: %w", strings.Join(subjects, ", "), n.cfg.Stream, err)
		}
		n.log.Info("subjects were added to the stream", zap.String("stream", n.cfg.Stream), zap.Strings("subjects", subjects))
		return nil
	}
	_, err := n.js.CreateStream(ctx, jetstream.StreamConfig{
		Name:        n.cfg.Stream,
		Description: "Requests to deliver a message later; each is removed once Delaybridge has it.",
		Subjects:    subjects,
		Storage:     jetstream.FileStorage,
		// A work queue: what is in the stream is what the bridge does not have
		// yet, so its size is the backlog, and it needs no limits to stay small.
		// A consumer that is deleted and made anew finds just what was never
		// acknowledged, where a stream that keeps everything would deliver all
		// of its history again. What is published while there is no consumer
		// waits, which it would not with interest retention. The price is that
		// no second consumer can read the stream; `nats stream view` can.
		Retention: jetstream.WorkQueuePolicy,
		// Should limits be set later, producers are told when they are reached,
		// instead of the oldest requests being dropped.
		Discard: jetstream.DiscardNew,
	})
	if err != nil {
		return fmt.Errorf("create stream %s: %w", n.cfg.Stream, err)
	}
	n.log.Info("the stream was created", zap.String("stream", n.cfg.Stream), zap.Strings("subjects", subjects))
	return nil
}

// extendStream adds subjects to the configuration as the server tells it, so
// that settings which this client does not know are left as they are.
func (n *NATS) extendStream(ctx context.Context, subjects []string) error {
	var info struct {
		Config map[string]json.RawMessage `json:"config"`
		apiReply
	}
	if err := n.call(ctx, "STREAM.INFO."+n.cfg.Stream, nil, &info); err != nil {
		return err
	}
	if err := info.err(); err != nil {
		return err
	}
	var held []string
	if err := json.Unmarshal(info.Config["subjects"], &held); err != nil {
		return fmt.Errorf("its subjects: %w", err)
	}
	all, err := json.Marshal(withoutCovered(append(held, subjects...)))
	if err != nil {
		return err
	}
	info.Config["subjects"] = all
	request, err := json.Marshal(info.Config)
	if err != nil {
		return err
	}
	var reply apiReply
	if err := n.call(ctx, "STREAM.UPDATE."+n.cfg.Stream, request, &reply); err != nil {
		return err
	}
	return reply.err()
}

type apiReply struct {
	Error *jetstream.APIError `json:"error"`
}

func (r *apiReply) err() error {
	if r.Error == nil {
		return nil
	}
	return r.Error
}

func (n *NATS) call(ctx context.Context, subject string, request []byte, reply any) error {
	msg, err := n.conn.RequestWithContext(ctx, jsAPI+subject, request)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(msg.Data, reply); err != nil {
		return fmt.Errorf("reply of %s: %w", subject, err)
	}
	return nil
}
