package ingest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
)

// The requests that kafka-go's own types cannot express (topic ids, raw record
// batches) are written and read here, and travel over its connections.

// kafkaMaxResponse bounds the length that a response may claim to have.
const kafkaMaxResponse = 1 << 30

var errKafkaShort = errors.New("kafka: response ends too early")

// wireWriter builds a request. Flexible requests have compact lengths and tags.
type wireWriter struct {
	b        []byte
	flexible bool
}

func (w *wireWriter) int8(v int8)   { w.b = append(w.b, byte(v)) }
func (w *wireWriter) int16(v int16) { w.b = binary.BigEndian.AppendUint16(w.b, uint16(v)) }
func (w *wireWriter) int32(v int32) { w.b = binary.BigEndian.AppendUint32(w.b, uint32(v)) }
func (w *wireWriter) int64(v int64) { w.b = binary.BigEndian.AppendUint64(w.b, uint64(v)) }
func (w *wireWriter) id(v [16]byte) { w.b = append(w.b, v[:]...) }

func (w *wireWriter) string(s string) {
	if w.flexible {
		w.b = binary.AppendUvarint(w.b, uint64(len(s))+1)
	} else {
		w.int16(int16(len(s)))
	}
	w.b = append(w.b, s...)
}

// array begins an array of n items.
func (w *wireWriter) array(n int) {
	if w.flexible {
		w.b = binary.AppendUvarint(w.b, uint64(n)+1)
	} else {
		w.int32(int32(n))
	}
}

// tags ends a structure, without any tagged field.
func (w *wireWriter) tags() {
	if w.flexible {
		w.b = append(w.b, 0)
	}
}

// wireReader takes a response apart. After its end, and after an error, it
// returns zeros; err tells.
type wireReader struct {
	b        []byte
	flexible bool
	err      error
}

// take returns the next n bytes, which alias the response.
func (r *wireReader) take(n int) []byte {
	if r.err == nil && (n < 0 || n > len(r.b)) {
		r.err = errKafkaShort
	}
	if r.err != nil {
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *wireReader) int8() int8 {
	if v := r.take(1); v != nil {
		return int8(v[0])
	}
	return 0
}

func (r *wireReader) int16() int16 {
	if v := r.take(2); v != nil {
		return int16(binary.BigEndian.Uint16(v))
	}
	return 0
}

func (r *wireReader) int32() int32 {
	if v := r.take(4); v != nil {
		return int32(binary.BigEndian.Uint32(v))
	}
	return 0
}

func (r *wireReader) int64() int64 {
	if v := r.take(8); v != nil {
		return int64(binary.BigEndian.Uint64(v))
	}
	return 0
}

func (r *wireReader) id() (id [16]byte) {
	copy(id[:], r.take(16))
	return id
}

func (r *wireReader) uvarint() int {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > kafkaMaxResponse {
		r.err = errKafkaShort
		return 0
	}
	r.b = r.b[n:]
	return int(v)
}

func (r *wireReader) varint() int64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.err = errKafkaShort
		return 0
	}
	r.b = r.b[n:]
	return v
}

// string reads a string; a null one is empty.
func (r *wireReader) string() string {
	n := 0
	if r.flexible {
		n = r.uvarint() - 1
	} else {
		n = int(r.int16())
	}
	if n < 0 {
		return ""
	}
	return string(r.take(n))
}

// bytes reads bytes; null ones are nil.
func (r *wireReader) bytes() []byte {
	n := 0
	if r.flexible {
		n = r.uvarint() - 1
	} else {
		n = int(r.int32())
	}
	if n < 0 {
		return nil
	}
	return r.take(n)
}

// array reads the number of an array's items, each of which has at least size
// bytes; a null array has none.
func (r *wireReader) array(size int) int {
	n := 0
	if r.flexible {
		n = r.uvarint() - 1
	} else {
		n = int(r.int32())
	}
	if n > 0 && n > len(r.b)/size {
		r.err = errKafkaShort
	}
	if r.err != nil {
		return 0
	}
	return max(n, 0)
}

// tags reads the end of a structure; we ask for nothing that comes in a tag.
func (r *wireReader) tags() {
	if !r.flexible {
		return
	}
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		r.uvarint()
		r.take(r.uvarint())
	}
}

// exchange sends one request over a connection that nobody else uses meanwhile,
// and returns the response behind its header.
func exchange(rw io.ReadWriter, key protocol.ApiKey, version int16, flexible bool, clientID string, body func(*wireWriter)) (*wireReader, error) {
	const correlation = 1 // there is never more than one request under way
	w := &wireWriter{}
	w.int32(0) // length, below
	w.int16(int16(key))
	w.int16(version)
	w.int32(correlation)
	w.string(clientID)
	w.flexible = flexible
	w.tags()
	body(w)
	binary.BigEndian.PutUint32(w.b, uint32(len(w.b)-4))
	if _, err := rw.Write(w.b); err != nil {
		return nil, err
	}

	var head [4]byte
	if _, err := io.ReadFull(rw, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < 4 || n > kafkaMaxResponse {
		return nil, fmt.Errorf("kafka: response of %d bytes", n)
	}
	// As it comes: what a length says is not believed.
	var b bytes.Buffer
	b.Grow(int(min(n, 16<<20)))
	if _, err := io.CopyN(&b, rw, int64(n)); err != nil {
		return nil, errShort(err)
	}
	r := &wireReader{b: b.Bytes(), flexible: flexible}
	if got := r.int32(); got != correlation {
		return nil, fmt.Errorf("kafka: response to request %d, expected to %d", got, correlation)
	}
	r.tags()
	return r, nil
}

// maxVersion asks a broker for the highest version of an API that it knows.
// What kafka-go has negotiated is no higher than what kafka-go knows itself.
func maxVersion(rw io.ReadWriter, key protocol.ApiKey, clientID string) (int16, error) {
	m, err := protocol.RoundTrip(rw, 0, 1, clientID, &apiversions.Request{})
	if err != nil {
		return 0, err
	}
	res, ok := m.(*apiversions.Response)
	if !ok {
		return 0, fmt.Errorf("kafka: %T answers a question for versions", m)
	}
	for _, k := range res.ApiKeys {
		if protocol.ApiKey(k.ApiKey) == key {
			return k.MaxVersion, nil
		}
	}
	return 0, fmt.Errorf("kafka: the broker does not know %v requests", key)
}

// brokerCall is the part of a request that has kafka-go send it to one broker,
// over a connection of its own, and leave the exchange to us.
type brokerCall struct {
	broker   int32 // -1: any
	clientID string
}

// Broker picks the broker from those that the transport knows.
func (c *brokerCall) Broker(cluster protocol.Cluster) (protocol.Broker, error) {
	if c.broker < 0 {
		return protocol.Broker{ID: -1}, nil
	}
	b, ok := cluster.Brokers[c.broker]
	if !ok {
		return b, fmt.Errorf("kafka: broker %d is not known yet", c.broker)
	}
	return b, nil
}

// Required says that the exchange is ours.
func (*brokerCall) Required(map[protocol.ApiKey]int16) bool { return true }

// onBroker sends one of kafka-go's own requests to a broker of our choice.
type onBroker struct {
	brokerCall
	protocol.Message
	version int16
}

// Prepare learns the version that kafka-go has negotiated.
func (c *onBroker) Prepare(version int16) { c.version = version }

// RawExchange sends the request in kafka-go's own way.
func (c *onBroker) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	return protocol.RoundTrip(rw, c.version, 1, c.clientID, c.Message)
}
