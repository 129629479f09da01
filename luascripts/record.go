package luascripts

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"delaybridge"
)

// A record is "1 <marks>\n" and then the message as a msgpack list: target, due
// (Unix ms), due minus scheduled (ms), expires after (ms, 0 never), key,
// headers as a flat list of names and values, payload. Key, values and payload
// are binary or nil. The id is the hash field that the record stands in, and
// the position is the first of the marks. See prelude.lua for marks.
const recordFields = 7

// errCorrupt is matched by every failure to read a record or a letter.
var errCorrupt = errors.New("corrupt record")

// encodeRecord writes the record of a message whose id is not known yet.
func encodeRecord(m *delaybridge.Message) ([]byte, error) {
	var buf bytes.Buffer
	buf.Grow(len(m.Payload) + len(m.Target.Name) + len(m.Position.Source) + 96)
	buf.WriteString("1 ")
	if m.ID == m.Position.String() {
		buf.WriteByte('=')
	} else {
		buf.WriteString(m.Position.Source)
		buf.WriteByte(' ')
		buf.Write(strconv.AppendUint(buf.AvailableBuffer(), m.Position.Offset, 10))
	}
	buf.WriteByte('\n')
	if err := writeMessage(&buf, m); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func encodeMessage(m *delaybridge.Message) ([]byte, error) {
	var buf bytes.Buffer
	buf.Grow(len(m.Payload) + len(m.Target.Name) + 64)
	if err := writeMessage(&buf, m); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func writeMessage(buf *bytes.Buffer, m *delaybridge.Message) error {
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(buf)

	due := m.Due.UnixMilli()
	err := errors.Join(
		enc.EncodeArrayLen(recordFields),
		enc.EncodeString(m.Target.String()),
		enc.EncodeInt(due),
		enc.EncodeInt(due-m.Scheduled.UnixMilli()),
		enc.EncodeInt(max(0, m.ExpiresAfter.Milliseconds())),
		enc.EncodeBytes(m.Key),
		enc.EncodeArrayLen(2*len(m.Headers)),
	)
	for _, h := range m.Headers {
		err = errors.Join(err, enc.EncodeString(h.Name), enc.EncodeBytes(h.Value))
	}
	if err = errors.Join(err, enc.EncodeBytes(m.Payload)); err != nil {
		return fmt.Errorf("encode message %q: %w", m.ID, err)
	}
	return nil
}

// decodeRecord reads the record of an id, and returns its marks too, also where
// the message behind them cannot be read.
func decodeRecord(id, record string) (m delaybridge.Message, marks string, err error) {
	m.ID = id
	head, body, ok := strings.Cut(record, "\n")
	marks, isV1 := strings.CutPrefix(head, "1 ")
	if !ok || !isV1 {
		return m, "", fmt.Errorf("%w: no known format", errCorrupt)
	}
	if m.Position, err = firstMark(id, marks); err != nil {
		return m, marks, err
	}
	if err := decodeMessage(&m, body); err != nil {
		return m, marks, fmt.Errorf("%w: %w", errCorrupt, err)
	}
	return m, marks, nil
}

// firstMark returns the position that marks "<source> <offset> ..." begin with,
// or that the id names as "<source>:<offset>" where they are "=".
func firstMark(id, marks string) (p delaybridge.Position, err error) {
	source, rest, _ := strings.Cut(marks, " ")
	offset, _, _ := strings.Cut(rest, " ")
	if colon := strings.LastIndex(id, ":"); marks == "=" && colon >= 0 {
		source, offset = id[:colon], id[colon+1:]
	}
	n, err := strconv.ParseUint(offset, 10, 64)
	if err != nil || source == "" {
		return p, fmt.Errorf("%w: no position in %.80q", errCorrupt, marks)
	}
	return delaybridge.Position{Source: source, Offset: n}, nil
}

func decodeMessage(m *delaybridge.Message, body string) error {
	w := wire{text: body}
	n, err := w.list()
	if err != nil {
		return err
	}
	// Fields that a later version may add stand behind those known here.
	if n < recordFields {
		return fmt.Errorf("%d fields, want %d", n, recordFields)
	}
	target, err := w.string()
	if err != nil {
		return fmt.Errorf("target: %w", err)
	}
	var ok bool
	if m.Target.Sink, m.Target.Name, ok = strings.Cut(target, "://"); !ok {
		return fmt.Errorf("target %.80q", target)
	}
	due, err := w.int()
	if err != nil {
		return fmt.Errorf("due: %w", err)
	}
	ago, err := w.int()
	if err != nil {
		return fmt.Errorf("scheduled: %w", err)
	}
	expires, err := w.int()
	if err != nil {
		return fmt.Errorf("expires after: %w", err)
	}
	if expires < 0 || expires > math.MaxInt64/int64(time.Millisecond) {
		return fmt.Errorf("expires after %d ms", expires)
	}
	m.Due, m.Scheduled = time.UnixMilli(due).UTC(), time.UnixMilli(due-ago).UTC()
	m.ExpiresAfter = time.Duration(expires) * time.Millisecond
	if m.Key, err = w.bytes(); err != nil {
		return fmt.Errorf("key: %w", err)
	}
	n, err = w.list()
	if err != nil {
		return fmt.Errorf("headers: %w", err)
	}
	if n%2 != 0 || n > len(body) {
		return fmt.Errorf("headers: %d items", n)
	}
	if n > 0 {
		m.Headers = make([]delaybridge.Header, n/2)
	}
	for i := range m.Headers {
		h := &m.Headers[i]
		if h.Name, err = w.string(); err != nil {
			return fmt.Errorf("header name: %w", err)
		}
		if h.Value, err = w.bytes(); err != nil {
			return fmt.Errorf("header value: %w", err)
		}
	}
	if m.Payload, err = w.bytes(); err != nil {
		return fmt.Errorf("payload: %w", err)
	}
	return nil
}

// decodeLetter reads "1 <reason> <failed> <lost> <error bytes>\n<error><record>".
func decodeLetter(id, letter string, died time.Time) (delaybridge.DeadLetter, string) {
	d := delaybridge.DeadLetter{Message: delaybridge.Message{ID: id}, Died: died, Corrupt: true, Raw: []byte(letter)}
	head, rest, ok := strings.Cut(letter, "\n")
	f := strings.Fields(head)
	if !ok || len(f) != 5 || f[0] != "1" {
		d.Reason = delaybridge.ReasonCorrupt
		return d, ""
	}
	size, err := strconv.Atoi(f[4])
	if err != nil || size < 0 || size > len(rest) {
		d.Reason = delaybridge.ReasonCorrupt
		return d, ""
	}
	d.Reason = delaybridge.Reason(f[1])
	d.Attempts, _ = strconv.Atoi(f[2])
	d.LostLeases, _ = strconv.Atoi(f[3])
	d.Error = rest[:size]
	record := rest[size:]
	m, marks, err := decodeRecord(id, record)
	if err != nil {
		d.Raw = []byte(record)
		return d, ""
	}
	d.Message, d.Corrupt, d.Raw = m, false, nil
	return d, marks
}
