package luascripts

import (
	"bytes"
	"math"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

// What the library writes, in every size, is read as it was.
func TestWireReadsWhatTheLibraryWrites(t *testing.T) {
	var buf bytes.Buffer
	enc := msgpack.NewEncoder(&buf)
	written := func(err error) wire {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		w := wire{text: buf.String()}
		buf.Reset()
		return w
	}
	var numbers []int64
	for _, near := range []int64{0, 127, -32, -128, 255, math.MaxInt16, math.MinInt16, math.MaxUint16, math.MaxInt32, math.MinInt32, math.MaxUint32, 1_790_000_000_123} {
		numbers = append(numbers, near-1, near, near+1)
	}
	for _, n := range append(numbers, math.MaxInt64, math.MinInt64) {
		for name, err := range map[string]func() error{
			"as short as can be": func() error { return enc.EncodeInt(n) },
			"in eight bytes":     func() error { return enc.EncodeInt64(n) },
		} {
			w := written(err())
			if got, err := w.int(); err != nil || got != n || w.at != len(w.text) {
				t.Errorf("%d %s is read as %d: %v", n, name, got, err)
			}
		}
	}
	for _, n := range []int{0, 1, 15, 16, 31, 32, 255, 256, math.MaxUint16, math.MaxUint16 + 1} {
		text := strings.Repeat("x", n)
		w := written(enc.EncodeString(text))
		if got, err := w.string(); err != nil || got != text || w.at != len(w.text) {
			t.Errorf("a text of %d bytes is read as one of %d: %v", n, len(got), err)
		}
		w = written(enc.EncodeBytes([]byte(text)))
		if got, err := w.bytes(); err != nil || got == nil || string(got) != text || w.at != len(w.text) {
			t.Errorf("%d bytes are read as %d: %v", n, len(got), err)
		}
		w = written(enc.EncodeArrayLen(n))
		if got, err := w.list(); err != nil || got != n || w.at != len(w.text) {
			t.Errorf("a list of %d is read as one of %d: %v", n, got, err)
		}
	}
	w := written(enc.EncodeNil())
	if got, err := w.bytes(); err != nil || got != nil {
		t.Errorf("null is read as %q: %v", got, err)
	}
	for name, text := range map[string]string{
		"nothing": "", "a text that is cut": "\xa3ab", "bytes of 4 GiB": "\xc6\xff\xff\xff\xff", "a length that is cut": "\xda\x01",
		"a number where a text is due": "\x07", "a map": "\x81",
	} {
		w := wire{text: text}
		if got, err := w.bytes(); err == nil {
			t.Errorf("%s is read as %q", name, got)
		}
	}
}
