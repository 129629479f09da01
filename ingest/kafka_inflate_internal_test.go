package ingest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"runtime"
	"slices"
	"testing"
	"unsafe"

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

// What is compressed and broken is kept whole, and those behind it come.
func TestBatchReaderBrokenCompression(t *testing.T) {
	b := testBatch{lastDelta: 1, records: []testRecord{value(0, "a"), value(1, "b")}}
	behind := testBatch{base: 2, records: []testRecord{value(0, "behind")}}.bytes()
	for _, codec := range []compress.Compression{compress.Gzip, compress.Zstd, compress.Lz4, compress.Snappy} {
		whole := compressed(t, b, codec)
		for what, raw := range map[string][]byte{
			"cut off":                       sealed(codec, 2, whole[batchHeaderSize:(len(whole)+batchHeaderSize)/2]),
			"fewer records than it says":    sealed(codec, 1000, whole[batchHeaderSize:]),
			"of no codec":                   sealed(7, 2, whole[batchHeaderSize:]),
			"a record beyond the batch":     compressed(t, testBatch{lastDelta: 1, records: []testRecord{value(0, "a"), value(9, "b")}}, codec),
			"a record before the batch":     compressed(t, testBatch{lastDelta: 1, records: []testRecord{value(-1, "a"), value(1, "b")}}, codec),
			"nothing, where records follow": sealed(codec, 2, nil),
		} {
			binary.BigEndian.PutUint32(raw[batchLastDelta:], 1)
			binary.BigEndian.PutUint32(raw[batchCRC:], crc32.Checksum(raw[batchAttributes:], castagnoli))
			r := batchReader{floor: -1}
			records, err := r.read(append(bytes.Clone(raw), behind...))
			if err != nil || r.next != 3 || len(records) < 2 {
				t.Errorf("%v, %s: %d records up to %d, %v", codec, what, len(records), r.next, err)
				continue
			}
			kept, last := records[len(records)-2], records[len(records)-1]
			if kept.Unreadable == nil || kept.Unreadable.Code != "invalid_batch" || !bytes.Equal(kept.Payload, raw) || kept.Position.Offset != 1 || string(last.Payload) != "behind" {
				t.Errorf("%v, %s: kept %+v, then %q", codec, what, kept, last.Payload)
			}
		}
	}
}

// sealed returns a batch of one record's offset whose body is as it is given.
func sealed(codec compress.Compression, count int, body []byte) []byte {
	head := testBatch{}.bytes()
	out := append(head[:batchHeaderSize:batchHeaderSize], body...)
	binary.BigEndian.PutUint16(out[batchAttributes:], uint16(codec))
	binary.BigEndian.PutUint32(out[batchRecordCount:], uint32(count))
	binary.BigEndian.PutUint32(out[batchLength:], uint32(len(out)-batchLengthOverhead))
	binary.BigEndian.PutUint32(out[batchCRC:], crc32.Checksum(out[batchAttributes:], castagnoli))
	return out
}

// A few bytes that promise gigabytes take no such memory.
func TestBatchReaderBelievesNoSizes(t *testing.T) {
	const most = 256 << 20
	zeros := make([]byte, 200)
	xerial := []byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
	zstd := []byte{0x28, 0xb5, 0x2f, 0xfd}
	small := slices.Concat(zstd, []byte{0x00, 0x00, 0x03, 0x00, 0x00, 'x'}) // one frame of "x" and what is behind it
	for what, c := range map[string]struct {
		codec compress.Compression
		body  []byte
	}{
		"a block of Snappy that says it holds 4 GiB": {compress.Snappy, append([]byte{0xf0, 0xff, 0xff, 0xff, 0x0e}, zeros...)},
		"a framed one":                                {compress.Snappy, slices.Concat(xerial, []byte{0, 0, 0, 205}, []byte{0xf0, 0xff, 0xff, 0xff, 0x0e}, zeros)},
		"a frame of 4 GiB":                            {compress.Snappy, slices.Concat(xerial, []byte{0xff, 0xff, 0xff, 0xf0}, zeros)},
		"a second frame of 4 GiB":                     {compress.Snappy, slices.Concat(xerial, []byte{0, 0, 0, 3, 1, 0, 0}, []byte{0xff, 0xff, 0xff, 0xf0}, zeros)},
		"a window of 512 MiB in zstd":                 {compress.Zstd, slices.Concat(zstd, []byte{0x00, 19 << 3, 0x01, 0x00, 0x00}, zeros)},
		"the same in a second frame":                  {compress.Zstd, slices.Concat(small, zstd, []byte{0x00, 19 << 3, 0x01, 0x00, 0x00}, zeros)},
		"the same behind a frame that is passed over": {compress.Zstd, slices.Concat([]byte{0x5f, 0x2a, 0x4d, 0x18, 2, 0, 0, 0, 1, 1}, zstd, []byte{0x00, 19 << 3, 0x01, 0x00, 0x00}, zeros)},
		"content of 512 MiB in one segment":           {compress.Zstd, slices.Concat(zstd, []byte{0xa0, 0, 0, 0, 0x20}, zeros)},
		"content of 2^60 bytes in one segment":        {compress.Zstd, slices.Concat(zstd, []byte{0xe0, 0, 0, 0, 0, 0, 0, 0, 0x10}, zeros)},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := batchReader{floor: -1}
		records, err := r.read(sealed(c.codec, 1, c.body))
		runtime.ReadMemStats(&after)
		if taken := after.TotalAlloc - before.TotalAlloc; taken > most {
			t.Errorf("%s: it took %d MiB", what, taken>>20)
		}
		if err != nil || len(records) != 1 || records[0].Unreadable == nil || r.next != 1 {
			t.Errorf("%s: %d records up to %d, %v", what, len(records), r.next, err)
		}
	}
}

// What is honest is read, however well it is compressed.
func TestBatchReaderReadsWhatCompressesWell(t *testing.T) {
	b := testBatch{records: []testRecord{{value: make([]byte, 20<<20)}}}
	for _, codec := range []compress.Compression{compress.Gzip, compress.Zstd, compress.Lz4, compress.Snappy} {
		r := batchReader{floor: -1}
		records, err := r.read(compressed(t, b, codec))
		if err != nil || len(records) != 1 || records[0].Unreadable != nil || len(records[0].Payload) != 20<<20 {
			t.Errorf("%v: %d records, %v", codec, len(records), err)
		}
	}
}

// Records of nothing cost memory too: a batch of very many is read in pieces.
func TestBatchReaderCountsRecordsOfNothing(t *testing.T) {
	const count = 300_000
	b := testBatch{lastDelta: count - 1}
	for i := range count {
		b.records = append(b.records, testRecord{delta: int64(i)})
	}
	for what, raw := range map[string][]byte{"plain": b.bytes(), "compressed": compressed(t, b, compress.Zstd)} {
		read, pieces := 0, 0
		for from := int64(0); from < count && pieces < count; pieces++ {
			r := batchReader{from: from, floor: -1}
			records, err := r.read(raw)
			if err != nil || len(records) == 0 {
				t.Fatalf("%s: %d records from %d, %v", what, len(records), from, err)
			}
			if size := len(records) * int(unsafe.Sizeof(Record{})); size > maxInflated+1<<20 {
				t.Errorf("%s: %d MiB of records at once", what, size>>20)
			}
			for _, rec := range records {
				if int(rec.Position.Offset) != read {
					t.Fatalf("%s: offset %d, want %d", what, rec.Position.Offset, read)
				}
				read++
			}
			from = r.next
		}
		if read != count || pieces < 2 {
			t.Errorf("%s: %d records in %d pieces", what, read, pieces)
		}
	}
}

// A record of nothing but headers takes many times its size: it is refused without
// them, and those behind it come.
func TestBatchReaderPassesOverFloodsOfHeaders(t *testing.T) {
	record := func(delta int64, headers int) []byte {
		rec := binary.AppendVarint(binary.AppendVarint([]byte{0}, 0), delta)
		rec = append(binary.AppendVarint(rec, 1), 'k')
		rec = append(binary.AppendVarint(rec, 1), 'v')
		rec = append(binary.AppendVarint(rec, int64(headers)), make([]byte, 2*headers)...)
		return append(binary.AppendVarint(nil, int64(len(rec))), rec...)
	}
	body := slices.Concat(record(0, 5_000_000), record(1, 2))
	for _, codec := range []compress.Compression{0, compress.Gzip} {
		packed := body
		if codec != 0 {
			var b bytes.Buffer
			w := codec.Codec().NewWriter(&b)
			_, err1 := w.Write(body)
			if err := errors.Join(err1, w.Close()); err != nil {
				t.Fatal(err)
			}
			packed = b.Bytes()
		}
		raw := sealed(codec, 2, packed)
		binary.BigEndian.PutUint32(raw[batchLastDelta:], 1)
		binary.BigEndian.PutUint32(raw[batchCRC:], crc32.Checksum(raw[batchAttributes:], castagnoli))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		r := batchReader{floor: -1}
		records, err := r.read(raw)
		runtime.ReadMemStats(&after)
		if taken := after.TotalAlloc - before.TotalAlloc; taken > 100<<20 {
			t.Errorf("%v: it took %d MiB", codec, taken>>20)
		}
		if err != nil || len(records) != 2 || records[0].Unreadable == nil || records[0].Unreadable.Code != codeTooManyHeaders ||
			string(records[0].Key)+string(records[0].Payload) != "kv" || records[1].Unreadable != nil || len(records[1].Headers) != 2 {
			t.Errorf("%v: %d records, %v", codec, len(records), err)
		}
	}
}
