package ingest

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"time"

	"github.com/segmentio/kafka-go/compress"

	"delaybridge"
)

// errCorruptBatch says that a batch is not as it was written, or of a form of long
// ago. It is never skipped: that would lose what is in it.
var errCorruptBatch = errors.New("kafka: corrupt record batch")

// The header of a record batch, by the offsets of its fields.
const (
	batchBaseOffset     = 0
	batchLength         = 8  // of what is behind this field
	batchEpoch          = 12 // of the leader that wrote it
	batchMagic          = 16
	batchCRC            = 17 // of what is behind this field
	batchAttributes     = 21
	batchLastDelta      = 23
	batchBaseTimestamp  = 27
	batchMaxTimestamp   = 35
	batchProducer       = 43
	batchRecordCount    = 57
	batchHeaderSize     = 61
	batchLengthOverhead = 12 // what is before and in the length field
)

// Bits of a batch's attributes.
const (
	attrCompression   = 0x07
	attrLogAppendTime = 0x08
	attrTransactional = 0x10
	attrControl       = 0x20
)

// controlAbort is the type of the control record that ends an aborted transaction.
const controlAbort = 0

// batchReader reads what a fetch returned.
type batchReader struct {
	// from is the offset that was asked for: a batch may begin before it.
	from int64
	// aborted are the transactions that the broker listed.
	aborted []abortedTransaction
	// floor leaves out batches of this leader epoch and of those before; -1
	// leaves out none.
	floor int32
	// room is how much may still be made of batches (see maxInflated), shared by the
	// partitions of one fetch; nil is maxInflated.
	room *int
	// maxRecord is the largest record of a compressed batch; 0 is maxInflatedRecord.
	maxRecord int64

	// next is the offset to go on from, epoch the leader epoch of the last batch
	// before it, -1 if there was none.
	next  int64
	epoch int32
}

// read returns the records at and behind from, without control records and
// without those of aborted transactions. A batch that is cut off at the end is
// left for the next fetch. On error it returns what was before the broken batch.
func (r *batchReader) read(batches []byte) (records []Record, err error) {
	r.next, r.epoch = r.from, -1
	if r.room == nil {
		room := maxInflated
		r.room = &room
	}
	aborting := abortFilter{waiting: slices.SortedFunc(slices.Values(r.aborted), func(a, b abortedTransaction) int {
		return cmp.Compare(a.firstOffset, b.firstOffset)
	})}
	for len(batches) > batchMagic {
		size := int64(binary.BigEndian.Uint32(batches[batchLength:])) + batchLengthOverhead
		if size > int64(len(batches)) {
			break // cut off
		}
		b := batches[:size:size]
		batches = batches[size:]
		if *r.room <= 0 {
			break // the next fetch brings it
		}
		got, last, err := r.readBatch(b, &aborting)
		if err != nil {
			return records, err
		}
		r.epoch = int32(binary.BigEndian.Uint32(b[batchEpoch:]))
		if r.epoch > r.floor {
			records = append(records, got...)
		}
		// The compactor may have taken the last records of a batch: its header
		// alone says where the next one begins.
		r.next = max(r.next, last+1)
		if last < lastOffset(b) {
			break // and the rest of this one
		}
	}
	return records, nil
}

// abortFilter knows which producers are inside of a transaction that was
// aborted, as batches go by in the order of the log.
type abortFilter struct {
	waiting []abortedTransaction // by first offset
	inside  map[int64]bool       // by producer
}

// aborted takes note of a batch and reports whether it belongs to an aborted transaction.
func (f *abortFilter) aborted(producer, last int64, attributes int16, control int16) bool {
	for len(f.waiting) > 0 && f.waiting[0].firstOffset <= last {
		if f.inside == nil {
			f.inside = make(map[int64]bool)
		}
		f.inside[f.waiting[0].producer] = true
		f.waiting = f.waiting[1:]
	}
	if attributes&attrControl != 0 {
		if control == controlAbort {
			delete(f.inside, producer)
		}
		return true
	}
	return attributes&attrTransactional != 0 && f.inside[producer]
}

// lastOffset returns the offset that ends a batch.
func lastOffset(b []byte) int64 {
	return int64(binary.BigEndian.Uint64(b[batchBaseOffset:])) + int64(int32(binary.BigEndian.Uint32(b[batchLastDelta:])))
}

// readBatch reads one batch of the current format. last is the offset that ends
// it, or up to which one was read that is too large to be read at once.
//
// A batch that is as it was written, but makes no sense, would hold up its partition
// for ever: brokers that do not look into batches take it from any producer. It is
// kept whole in a record that is refused, behind those that could be read of it.
func (r *batchReader) readBatch(b []byte, aborting *abortFilter) (records []Record, last int64, err error) {
	base, from := int64(binary.BigEndian.Uint64(b[batchBaseOffset:])), r.from
	corrupt := func(why string) ([]Record, int64, error) {
		return nil, 0, fmt.Errorf("%w at offset %d: %s", errCorruptBatch, base, why)
	}
	switch {
	case len(b) > batchMagic && b[batchMagic] != 2:
		return corrupt(fmt.Sprintf("message format %d, of before Kafka 0.11, is not read", b[batchMagic]))
	case len(b) < batchHeaderSize:
		return corrupt(fmt.Sprintf("it has %d bytes", len(b)))
	}
	last = lastOffset(b)
	attributes := int16(binary.BigEndian.Uint16(b[batchAttributes:]))
	producer := int64(binary.BigEndian.Uint64(b[batchProducer:]))
	count := int(int32(binary.BigEndian.Uint32(b[batchRecordCount:])))
	if crc := crc32.Checksum(b[batchCRC+4:], castagnoli); crc != binary.BigEndian.Uint32(b[batchCRC:]) {
		return corrupt("checksum does not match")
	}

	body := b[batchHeaderSize:]
	control := int16(-1)
	if attributes&attrControl != 0 {
		if count > 0 {
			if control, err = controlType(body); err != nil {
				return corrupt(err.Error())
			}
		}
	}
	if aborting.aborted(producer, last, attributes, control) || last < from || count == 0 {
		return nil, last, nil
	}

	baseTime := int64(binary.BigEndian.Uint64(b[batchBaseTimestamp:]))
	maxTime := int64(binary.BigEndian.Uint64(b[batchMaxTimestamp:]))
	before := max(from, base) - 1
	take := func(rec Record, delta, timeDelta int64) error {
		offset := base + delta
		if base <= offset && offset < from {
			return nil
		}
		// Others' records would be taken for repeats of it, or be passed over.
		if offset <= before || offset > last {
			return fmt.Errorf("a record of offset %d behind %d, in a batch up to %d", offset, before, last)
		}
		before = offset
		rec.Position.Offset = uint64(offset)
		if attributes&attrLogAppendTime != 0 {
			rec.Time = kafkaTime(maxTime)
		} else {
			rec.Time = kafkaTime(baseTime + timeDelta)
		}
		records = append(records, rec)
		return nil
	}
	senseless := func(why error) ([]Record, int64, error) {
		return append(records, Record{
			Position: delaybridge.Position{Offset: uint64(last)}, Time: kafkaTime(maxTime), Payload: b,
			Unreadable: &delaybridge.FieldError{
				Code: "invalid_batch", Field: "record batch", Value: fmt.Sprintf("offsets %d to %d", base, last),
				Reason: why.Error() + "; the records from there on are in the payload, which is the batch as its producer sent it",
			},
		}), last, nil
	}
	if codec := attributes & attrCompression; codec != 0 {
		in := inflation{compression: compress.Compression(codec), count: count, from: max(from-base, 0), room: r.room, maxRecord: cmp.Or(r.maxRecord, maxInflatedRecord)}
		upTo, err := in.read(body, take)
		switch {
		case err != nil:
			return senseless(err)
		case upTo >= 0:
			return records, base + upTo, nil
		}
		return records, last, nil
	}
	wire := &wireReader{b: body}
	for left := count - 1; left >= 0; left-- {
		rec, delta, timeDelta := readRecord(wire)
		if wire.err != nil {
			return senseless(wire.err)
		}
		taken := len(records)
		if err := take(rec, delta, timeDelta); err != nil {
			return senseless(err)
		}
		if len(records) == taken {
			continue // of an earlier fetch
		}
		if *r.room -= memoryOf(&rec); *r.room <= 0 && left > 0 {
			return records, base + delta, nil
		}
	}
	return records, last, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// readRecord reads one record of a batch, and what its offset and timestamp add
// to the batch's. Its slices alias the batch.
func readRecord(r *wireReader) (rec Record, offset, timestamp int64) {
	body := r.take(int(min(r.varint(), kafkaMaxResponse)))
	if r.err != nil {
		return rec, 0, 0
	}
	head := &wireReader{b: body}
	head.int8() // attributes, none of which is used
	timestamp, offset = head.varint(), head.varint()
	whole := &wireReader{b: body}
	rec = readRecordBody(whole)
	r.err = whole.err
	return rec, offset, timestamp
}

// maxRecordHeaders is how many headers of a record are read: each takes twenty times
// the two bytes that it has at least. One with more is refused without them.
const maxRecordHeaders = 100_000

// readRecordBody reads key, value and headers of a record behind its length.
func readRecordBody(r *wireReader) (rec Record) {
	nullable := func() []byte {
		n := r.varint()
		if n < 0 {
			return nil
		}
		return r.take(int(min(n, kafkaMaxResponse)))
	}
	r.int8()
	r.varint() // the time
	r.varint() // the offset
	rec.Key = nullable()
	rec.Payload = nullable()
	n := r.varint()
	switch {
	case n > int64(len(r.b))/2:
		r.err = errKafkaShort
	case n > maxRecordHeaders:
		rec.Unreadable = &delaybridge.FieldError{
			Code: codeTooManyHeaders, Field: "headers", Value: strconv.FormatInt(n, 10),
			Reason: fmt.Sprintf("more than %d are not read; they stay in the topic", maxRecordHeaders),
		}
		return rec
	}
	for ; n > 0 && r.err == nil; n-- {
		name := nullable()
		rec.Headers = append(rec.Headers, delaybridge.Header{Name: string(name), Value: nullable()})
	}
	return rec
}

// controlType reads the type out of a control batch's record.
func controlType(body []byte) (int16, error) {
	r := &wireReader{b: body}
	rec, _, _ := readRecord(r)
	if r.err != nil {
		return 0, r.err
	}
	key := &wireReader{b: rec.Key}
	key.int16() // version
	kind := key.int16()
	return kind, key.err
}

// kafkaTime returns the time of a timestamp, zero for a missing one.
func kafkaTime(ms int64) time.Time {
	if ms < 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
