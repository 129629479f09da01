package ingest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"unsafe"

	"github.com/segmentio/kafka-go/compress"

	"delaybridge"
)

// What a broker limits is a batch as it is compressed: a small one may hold more
// than there is memory for.
const (
	// maxInflated is how much is made of the batches of one fetch, beside the keys and
	// payloads of those that are not compressed, passed by at most one record. The rest
	// is fetched again.
	maxInflated = 16 << 20
	// maxInflatedRecord is the largest record of a compressed batch that is read,
	// where payloads may not be larger. One above it is refused without its key,
	// headers and payload.
	maxInflatedRecord = 64 << 20
)

// inflation reads the records of one compressed batch. Offsets count from the
// batch's own.
type inflation struct {
	compression compress.Compression
	count       int
	from        int64 // records below it are passed over
	room        *int  // see batchReader
	maxRecord   int64
}

// read hands the records to take, one after the other, each in memory of its own.
// upTo is the offset that it stopped at for want of room, -1 if it came to the end.
func (n *inflation) read(b []byte, take func(rec Record, offset, timestamp int64) error) (upTo int64, err error) {
	codec := n.compression.Codec()
	if codec == nil {
		return -1, fmt.Errorf("compression %d is not known", n.compression)
	}
	if err := checkCompressed(n.compression, b); err != nil {
		return -1, err
	}
	inflater := codec.NewReader(bytes.NewReader(b))
	defer func() {
		if cerr := inflater.Close(); err == nil && cerr != nil {
			err = fmt.Errorf("%v: %w", n.compression, cerr)
		}
	}()
	in := bufio.NewReader(inflater)
	for left := n.count - 1; left >= 0; left-- {
		rec, offset, timestamp, err := n.record(in)
		if err != nil {
			return -1, fmt.Errorf("%v: %w", n.compression, err)
		}
		if 0 <= offset && offset < n.from {
			continue
		}
		if err := take(rec, offset, timestamp); err != nil {
			return -1, err
		}
		*n.room -= memoryOf(&rec) + len(rec.Key) + len(rec.Payload)
		if *n.room <= 0 && left > 0 {
			return offset, nil
		}
	}
	return -1, nil
}

// record reads one record. One that is to be passed over, or is too large, is
// never in memory as a whole.
func (n *inflation) record(in *bufio.Reader) (rec Record, offset, timestamp int64, err error) {
	size, err := binary.ReadVarint(in)
	if err != nil {
		return rec, 0, 0, errShort(err)
	}
	// Attributes, the time and the offset, of at most ten bytes each.
	head, err := in.Peek(int(min(max(size, 0), 1+2*binary.MaxVarintLen64)))
	if err != nil {
		return rec, 0, 0, errShort(err)
	}
	r := &wireReader{b: head}
	r.int8()
	timestamp, offset = r.varint(), r.varint()
	if r.err != nil {
		return rec, 0, 0, r.err
	}
	if tooLarge := size > n.maxRecord; tooLarge || 0 <= offset && offset < n.from {
		if tooLarge {
			rec.Unreadable = &delaybridge.FieldError{
				Code: CodePayloadTooLarge, Field: "record", Value: fmt.Sprintf("%d bytes", size),
				Reason: fmt.Sprintf("more than %d bytes are not read out of a compressed batch; key, headers and payload stay in the topic", n.maxRecord),
			}
		}
		_, err := io.CopyN(io.Discard, in, size)
		return rec, offset, timestamp, errShort(err)
	}
	// As it comes: what a record says of its length is not believed.
	var body bytes.Buffer
	body.Grow(int(min(size, 1<<20)))
	if _, err := io.CopyN(&body, in, size); err != nil {
		return rec, 0, 0, errShort(err)
	}
	whole := &wireReader{b: body.Bytes()}
	rec = readRecordBody(whole)
	return rec, offset, timestamp, whole.err
}

// memoryOf is about what a record takes up beside its key and payload: many records
// of no length do, and many headers.
func memoryOf(rec *Record) int {
	size := int(unsafe.Sizeof(Record{})) + len(rec.Headers)*int(unsafe.Sizeof(delaybridge.Header{}))
	for i := range rec.Headers {
		size += len(rec.Headers[i].Name) + len(rec.Headers[i].Value)
	}
	return size
}

func errShort(err error) error {
	if err == io.EOF {
		return errKafkaShort
	}
	return err
}
