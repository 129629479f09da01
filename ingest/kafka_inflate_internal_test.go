package ingest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/segmentio/kafka-go/compress"
)

// compressed returns the batch with its records compressed by codec.
func compressed(t testing.TB, b testBatch, codec compress.Compression) []byte {
	t.Helper()
	plain := b.bytes()
	var packed bytes.Buffer
	w := codec.Codec().NewWriter(&packed)
	if _, err := w.Write(plain[batchHeaderSize:]); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	out := append(plain[:batchHeaderSize:batchHeaderSize], packed.Bytes()...)
	binary.BigEndian.PutUint16(out[batchAttributes:], uint16(codec))
	binary.BigEndian.PutUint32(out[batchLength:], uint32(len(out)-batchLengthOverhead))
	binary.BigEndian.PutUint32(out[batchCRC:], crc32.Checksum(out[batchAttributes:], castagnoli))
	return out
}

// A small batch that holds a lot is read in pieces, and none of it is left out.
func TestBatchReaderInflatesInPieces(t *testing.T) {
	const count, size = 40, 1 << 20
	b := testBatch{base: 100, lastDelta: count - 1}
	zeros := make([]byte, size)
	for i := range count {
		b.records = append(b.records, testRecord{delta: int64(i), value: zeros})
	}
	for _, codec := range []compress.Compression{compress.Gzip, compress.Zstd, compress.Lz4, compress.Snappy} {
		t.Run(codec.String(), func(t *testing.T) {
			packed := compressed(t, b, codec)
			var offsets []int64
			reads := 0
			for from := int64(100); from < 100+count; reads++ {
				if reads > count {
					t.Fatal("it makes no way")
				}
				r := batchReader{from: from, floor: -1}
				records, err := r.read(packed)
				if err != nil {
					t.Fatal(err)
				}
				if len(records) > maxInflated/size+1 {
					t.Errorf("%d records at once", len(records))
				}
				for _, rec := range records {
					offsets = append(offsets, int64(rec.Position.Offset))
				}
				from = r.next
			}
			if reads < 2 {
				t.Errorf("read at once")
			}
			for i, got := range offsets {
				if got != int64(100+i) {
					t.Fatalf("offsets %v", offsets)
				}
			}
			if len(offsets) != count {
				t.Errorf("%d records, want %d", len(offsets), count)
			}
		})
	}
}

// The partitions of one fetch share what may be inflated, but each batch that is
// begun brings one record at least.
func TestBatchReaderSharesRoom(t *testing.T) {
	packed := compressed(t, testBatch{base: 0, lastDelta: 1, records: []testRecord{value(0, "a"), value(1, "b")}}, compress.Gzip)
	room := 1
	first, second := batchReader{floor: -1, room: &room}, batchReader{floor: -1, room: &room}
	one, err1 := first.read(packed)
	two, err2 := second.read(packed)
	if err1 != nil || err2 != nil || len(one) != 1 || first.next != 1 || len(two) != 0 || second.next != 0 {
		t.Errorf("%d up to %d, %d up to %d, %v, %v", len(one), first.next, len(two), second.next, err1, err2)
	}
}

// A record that is too large to be read is told of, and the ones behind it come.
func TestBatchReaderPassesOverGiants(t *testing.T) {
	b := testBatch{base: 5, lastDelta: 2, records: []testRecord{value(0, "a"), {delta: 1, key: []byte("k"), value: make([]byte, 5000)}, value(2, "c")}}
	r := batchReader{from: 5, floor: -1, maxRecord: 1000}
	records, err := r.read(compressed(t, b, compress.Zstd))
	if err != nil || len(records) != 3 || r.next != 8 {
		t.Fatalf("%d records up to %d, %v", len(records), r.next, err)
	}
	giant := records[1]
	if giant.Unreadable == nil || giant.Unreadable.Code != CodePayloadTooLarge || giant.Payload != nil || giant.Key != nil || giant.Position.Offset != 6 {
		t.Errorf("got %+v", giant)
	}
	if got := fmt.Sprintf("%s %s", records[0].Payload, records[2].Payload); got != "a c" {
		t.Errorf("around it: %s", got)
	}
}

// What is compressed and broken is an error, as what is plain and broken is.
func TestBatchReaderBrokenCompression(t *testing.T) {
	b := testBatch{lastDelta: 1, records: []testRecord{value(0, "a"), value(1, "b")}}
	fix := func(raw []byte) []byte {
		binary.BigEndian.PutUint32(raw[batchLength:], uint32(len(raw)-batchLengthOverhead))
		binary.BigEndian.PutUint32(raw[batchCRC:], crc32.Checksum(raw[batchAttributes:], castagnoli))
		return raw
	}
	for _, codec := range []compress.Compression{compress.Gzip, compress.Zstd, compress.Lz4, compress.Snappy} {
		whole := compressed(t, b, codec)
		short := fix(bytes.Clone(whole[:(len(whole)+batchHeaderSize)/2]))
		more := bytes.Clone(whole)
		binary.BigEndian.PutUint32(more[batchRecordCount:], 1000)
		for what, raw := range map[string][]byte{"cut off": short, "fewer records than it says": fix(more)} {
			r := batchReader{floor: -1}
			if _, err := r.read(raw); err == nil {
				t.Errorf("%v, %s: no error", codec, what)
			}
		}
	}
}
