package ingest

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/segmentio/kafka-go/protocol"
)

// Versions of the fetch request: the first one that names topics by id, and the
// highest before it that names them by name.
const (
	fetchByID   = 13
	fetchByName = 11
)

// fetchRequest asks the leader of some partitions for what is behind their
// offsets. Where the broker can, it names topics by id, so that a topic of the
// same name which was made anew answers with an error and never with records.
//
// kafka-go's own fetch is not used because it drops what a batch's header says
// of time (LogAppendTime) and of its last offset (compaction).
type fetchRequest struct {
	brokerCall
	ctx        context.Context // whose end cuts the exchange short
	highest    int16           // the broker's highest version; 0 is not known yet
	negotiated int16           // kafka-go's

	maxWaitMillis, maxBytes, partitionBytes int32

	partitions []fetchPartition
}

// fetchPartition is one partition of a request.
type fetchPartition struct {
	topic     string
	id        [16]byte
	partition int32
	epoch     int32 // of the leader, -1 if not known
	offset    int64
}

// fetchResponse answers a fetchRequest.
type fetchResponse struct {
	highest int16 // the broker's highest version
	err     error // of all partitions
	// parts are in no order; partitions that are not asked for are left out.
	parts []fetchedPartition
}

// fetchedPartition is the answer for one partition.
type fetchedPartition struct {
	fetchPartition
	err           error
	highWatermark int64
	aborted       []abortedTransaction
	batches       []byte // record batches, the last of which may be cut off
}

// abortedTransaction is a transaction that ends with an abort marker.
type abortedTransaction struct {
	producer, firstOffset int64
}

func (*fetchRequest) ApiKey() protocol.ApiKey  { return protocol.Fetch }
func (*fetchResponse) ApiKey() protocol.ApiKey { return protocol.Fetch }

// Prepare learns the version that kafka-go has negotiated.
func (q *fetchRequest) Prepare(version int16) { q.negotiated = version }

// RawExchange sends the request and reads the response.
func (q *fetchRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	// kafka-go would leave the connection waiting for what nobody asks for any
	// more. Once cut short, it is closed, since we return an error.
	if conn, ok := rw.(net.Conn); ok {
		stop := context.AfterFunc(q.ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
		res, err := q.roundTrip(rw)
		if !stop() && err == nil {
			return nil, q.ctx.Err()
		}
		return res, err
	}
	return q.roundTrip(rw)
}

func (q *fetchRequest) roundTrip(rw io.ReadWriter) (protocol.Message, error) {
	if q.highest == 0 {
		highest, err := maxVersion(rw, protocol.Fetch, q.clientID)
		if err != nil {
			return nil, err
		}
		q.highest = highest
	}
	version := min(q.negotiated, fetchByName)
	if q.highest >= fetchByID && q.haveIDs() {
		version = fetchByID
	}
	r, err := exchange(rw, protocol.Fetch, version, version >= fetchByID, q.clientID, func(w *wireWriter) { q.write(w, version) })
	if err != nil {
		return nil, err
	}
	return q.read(r, version)
}

func (q *fetchRequest) haveIDs() bool {
	for i := range q.partitions {
		if q.partitions[i].id == [16]byte{} {
			return false
		}
	}
	return true
}

func (q *fetchRequest) write(w *wireWriter, version int16) {
	w.int32(-1) // we are no replica
	w.int32(q.maxWaitMillis)
	w.int32(1) // min bytes: a single record is answered at once
	w.int32(q.maxBytes)
	w.int8(1) // read committed
	if version >= 7 {
		w.int32(0)  // no fetch session
		w.int32(-1) // and no wish for one
	}
	w.array(len(q.partitions))
	for _, p := range q.partitions {
		if version >= fetchByID {
			w.id(p.id)
		} else {
			w.string(p.topic)
		}
		w.array(1)
		w.int32(p.partition)
		if version >= 9 {
			w.int32(p.epoch)
		}
		w.int64(p.offset)
		if version >= 12 {
			w.int32(-1) // last fetched epoch: for replicas
		}
		if version >= 5 {
			w.int64(-1) // log start offset: for replicas
		}
		w.int32(q.partitionBytes)
		w.tags()
		w.tags()
	}
	if version >= 7 {
		w.array(0) // forgotten topics
	}
	if version >= 11 {
		w.string("") // rack
	}
	w.tags()
}

func (q *fetchRequest) read(r *wireReader, version int16) (*fetchResponse, error) {
	res := &fetchResponse{highest: q.highest}
	r.int32() // throttle time: the broker holds back the answer itself
	if version >= 7 {
		res.err = kafkaError(r.int16())
		r.int32() // session
	}
	for n := r.array(6); n > 0; n-- {
		var topic string
		var id [16]byte
		if version >= fetchByID {
			id = r.id()
		} else {
			topic = r.string()
		}
		for n := r.array(30); n > 0; n-- {
			partition := r.int32()
			p := fetchedPartition{err: kafkaError(r.int16()), highWatermark: r.int64()}
			r.int64() // last stable offset: the broker itself goes no further
			if version >= 5 {
				r.int64() // log start offset
			}
			for n := r.array(16); n > 0; n-- {
				p.aborted = append(p.aborted, abortedTransaction{producer: r.int64(), firstOffset: r.int64()})
				r.tags()
			}
			if version >= 11 {
				r.int32() // preferred replica: we name no rack, so there is none
			}
			p.batches = r.bytes()
			r.tags()
			for _, asked := range q.partitions {
				if asked.partition == partition && (version >= fetchByID && asked.id == id || version < fetchByID && asked.topic == topic) {
					p.fetchPartition = asked
					res.parts = append(res.parts, p)
				}
			}
		}
		r.tags()
	}
	r.tags()
	if r.err != nil {
		return nil, fmt.Errorf("kafka fetch: %w", r.err)
	}
	return res, nil
}
