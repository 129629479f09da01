package ingest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"testing"

	"github.com/segmentio/kafka-go/compress"
)

// testBatch is a record batch as a broker keeps it.
type testBatch struct {
	base       int64
	lastDelta  int32
	epoch      int32
	attributes int16
	baseTime   int64
	maxTime    int64
	producer   int64
	records    []testRecord
}

type testRecord struct {
	delta      int64
	key, value []byte
}

func (b testBatch) bytes() []byte {
	var body []byte
	for _, r := range b.records {
		var rec []byte
		rec = append(rec, 0)                    // attributes
		rec = binary.AppendVarint(rec, r.delta) // timestamp
		rec = binary.AppendVarint(rec, r.delta) // offset
		for _, v := range [][]byte{r.key, r.value} {
			if v == nil {
				rec = binary.AppendVarint(rec, -1)
				continue
			}
			rec = append(binary.AppendVarint(rec, int64(len(v))), v...)
		}
		rec = binary.AppendVarint(rec, 0) // headers
		body = append(binary.AppendVarint(body, int64(len(rec))), rec...)
	}
	h := make([]byte, batchHeaderSize)
	binary.BigEndian.PutUint64(h[batchBaseOffset:], uint64(b.base))
	binary.BigEndian.PutUint32(h[batchLength:], uint32(len(h)+len(body)-batchLengthOverhead))
	binary.BigEndian.PutUint32(h[batchEpoch:], uint32(b.epoch))
	h[batchMagic] = 2
	binary.BigEndian.PutUint16(h[batchAttributes:], uint16(b.attributes))
	binary.BigEndian.PutUint32(h[batchLastDelta:], uint32(b.lastDelta))
	binary.BigEndian.PutUint64(h[batchBaseTimestamp:], uint64(b.baseTime))
	binary.BigEndian.PutUint64(h[batchMaxTimestamp:], uint64(b.maxTime))
	binary.BigEndian.PutUint64(h[batchProducer:], uint64(b.producer))
	binary.BigEndian.PutUint32(h[batchRecordCount:], uint32(len(b.records)))
	all := append(h, body...)
	binary.BigEndian.PutUint32(all[batchCRC:], crc32.Checksum(all[batchAttributes:], castagnoli))
	return all
}

func value(delta int64, v string) testRecord { return testRecord{delta: delta, value: []byte(v)} }

func marker(base, producer int64, kind byte) testBatch {
	return testBatch{base: base, producer: producer, attributes: attrControl | attrTransactional,
		records: []testRecord{{key: []byte{0, 0, 0, kind}, value: make([]byte, 6)}}}
}

func transactional(base, producer int64, v string) testBatch {
	return testBatch{base: base, producer: producer, attributes: attrTransactional, records: []testRecord{value(0, v)}}
}

func TestBatchReader(t *testing.T) {
	plain := func(base int64) testBatch {
		return testBatch{base: base, lastDelta: 2, baseTime: 1000, maxTime: 2000, records: []testRecord{value(0, "a"), value(1, "b"), value(2, "c")}}
	}
	beyond := testBatch{base: 10, lastDelta: 1, records: []testRecord{value(0, "a"), value(7, "b")}}.bytes()
	twice := testBatch{base: 10, lastDelta: 1, records: []testRecord{value(0, "a"), value(0, "b")}}.bytes()
	back := testBatch{base: 10, lastDelta: 1, records: []testRecord{value(-2, "a"), value(1, "b")}}.bytes()
	damaged := plain(10).bytes()
	damaged[len(damaged)-1]++
	old := plain(10).bytes()
	old[batchMagic] = 1
	short := testBatch{base: 13, lastDelta: 1, records: []testRecord{value(0, "d")}}
	lying := short.bytes()
	binary.BigEndian.PutUint32(lying[batchRecordCount:], 1000)
	binary.BigEndian.PutUint32(lying[batchCRC:], crc32.Checksum(lying[batchAttributes:], castagnoli))

	for _, c := range []struct {
		what    string
		reader  batchReader
		batches [][]byte
		want    []string // "<offset> <value>"
		next    int64
		corrupt bool
	}{
		{"nothing", batchReader{from: 10}, nil, nil, 10, false},
		{"a whole batch", batchReader{from: 10}, [][]byte{plain(10).bytes()}, []string{"10 a", "11 b", "12 c"}, 13, false},
		{"from its middle on", batchReader{from: 12}, [][]byte{plain(10).bytes()}, []string{"12 c"}, 13, false},
		{"a batch that is wholly before", batchReader{from: 13}, [][]byte{plain(10).bytes()}, nil, 13, false},
		{"a batch that is cut off is left", batchReader{from: 10}, [][]byte{plain(10).bytes(), plain(10).bytes()[:40]}, []string{"10 a", "11 b", "12 c"}, 13, false},
		{"a header that is cut off is left", batchReader{from: 10}, [][]byte{plain(10).bytes()[:10]}, nil, 10, false},
		{"the last records were compacted away", batchReader{from: 10},
			[][]byte{testBatch{base: 10, lastDelta: 9, records: []testRecord{value(0, "a"), value(3, "b")}}.bytes()}, []string{"10 a", "13 b"}, 20, false},
		{"all records were compacted away", batchReader{from: 10}, [][]byte{testBatch{base: 10, lastDelta: 9}.bytes()}, nil, 20, false},
		{"a damaged batch is an error, behind what is whole", batchReader{from: 10},
			[][]byte{testBatch{base: 9, lastDelta: 1, records: []testRecord{value(1, "x")}}.bytes(), damaged}, []string{"10 x"}, 11, true},
		{"the format of before 0.11 is an error", batchReader{from: 10}, [][]byte{old}, nil, 10, true},
		{"fewer records than the header says: the batch is kept whole behind them", batchReader{from: 10}, [][]byte{lying, plain(15).bytes()},
			[]string{"13 d", "14 " + string(lying), "15 a", "16 b", "17 c"}, 18, false},
		{"a record beyond its batch: others have that offset", batchReader{from: 10}, [][]byte{beyond, plain(12).bytes()},
			[]string{"10 a", "11 " + string(beyond), "12 a", "13 b", "14 c"}, 15, false},
		{"two records of one offset", batchReader{from: 10}, [][]byte{twice}, []string{"10 a", "11 " + string(twice)}, 12, false},
		{"a record before its batch", batchReader{from: 5}, [][]byte{back}, []string{"11 " + string(back)}, 12, false},
		{"batches up to the floor are left out", batchReader{from: 0, floor: 4},
			[][]byte{testBatch{epoch: 3, records: []testRecord{value(0, "3")}}.bytes(), testBatch{base: 1, epoch: 4, records: []testRecord{value(0, "4")}}.bytes(),
				testBatch{base: 2, epoch: 5, records: []testRecord{value(0, "5")}}.bytes()}, []string{"2 5"}, 3, false},
		{"markers are left out, whatever they end", batchReader{from: 0}, [][]byte{marker(0, 7, 0).bytes(), marker(1, 7, 1).bytes()}, nil, 2, false},
		{"a transaction that is not listed counts", batchReader{from: 0}, [][]byte{transactional(0, 7, "a").bytes(), marker(1, 7, 1).bytes()}, []string{"0 a"}, 2, false},
		{"an aborted one does not, up to its own marker", batchReader{from: 0, aborted: []abortedTransaction{{7, 0}}},
			[][]byte{transactional(0, 7, "a").bytes(), transactional(1, 8, "b").bytes(), testBatch{base: 2, producer: 7, records: []testRecord{value(0, "plain")}}.bytes(),
				marker(3, 8, 1).bytes(), transactional(4, 7, "c").bytes(), marker(5, 7, 0).bytes(), transactional(6, 7, "d").bytes()},
			[]string{"1 b", "2 plain", "6 d"}, 7, false},
		{"aborted ones are listed in any order, and begin where they begin",
			batchReader{from: 0, aborted: []abortedTransaction{{7, 3}, {8, 1}}},
			[][]byte{transactional(0, 7, "a").bytes(), transactional(1, 8, "b").bytes(), marker(2, 7, 1).bytes(), transactional(3, 7, "c").bytes(), marker(4, 8, 0).bytes(), marker(5, 7, 0).bytes()},
			[]string{"0 a"}, 6, false},
		{"one that began before the fetch", batchReader{from: 5, aborted: []abortedTransaction{{7, 2}}},
			[][]byte{transactional(5, 7, "a").bytes(), marker(6, 7, 0).bytes(), transactional(7, 7, "b").bytes()}, []string{"7 b"}, 8, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			if c.reader.floor == 0 {
				c.reader.floor = -1
			}
			records, err := c.reader.read(slices.Concat(c.batches...))
			if errors.Is(err, errCorruptBatch) != c.corrupt || err != nil != c.corrupt {
				t.Errorf("error %v", err)
			}
			var got []string
			for _, r := range records {
				got = append(got, fmt.Sprintf("%d %s", r.Position.Offset, r.Payload))
			}
			if !slices.Equal(got, c.want) || c.reader.next != c.next {
				t.Errorf("read %q, next %d, want %q, next %d", got, c.reader.next, c.want, c.next)
			}
		})
	}
}

func TestBatchReaderTimes(t *testing.T) {
	b := testBatch{lastDelta: 1, baseTime: 1000, maxTime: 5000, records: []testRecord{value(0, "a"), value(1, "b")}}
	times := func() [2]int64 {
		r := batchReader{floor: -1}
		records, err := r.read(b.bytes())
		if err != nil {
			t.Fatal(err)
		}
		return [2]int64{records[0].Time.UnixMilli(), records[1].Time.UnixMilli()}
	}
	if got := times(); got != [2]int64{1000, 1001} {
		t.Errorf("CreateTime: %v", got)
	}
	b.attributes = attrLogAppendTime
	if got := times(); got != [2]int64{5000, 5000} {
		t.Errorf("LogAppendTime: %v", got)
	}
	b.attributes, b.baseTime = 0, -1
	r := batchReader{floor: -1}
	if records, _ := r.read(b.bytes()); !records[0].Time.IsZero() {
		t.Errorf("a missing time is %v", records[0].Time)
	}
}

// What a broker sends is never a reason to panic, nor to go back.
func FuzzBatchReader(f *testing.F) {
	f.Add(transactional(5, 7, "a").bytes(), int64(3))
	for _, codec := range []compress.Compression{compress.Gzip, compress.Zstd, compress.Lz4, compress.Snappy} {
		f.Add(compressed(f, testBatch{base: 1, lastDelta: 1, records: []testRecord{value(0, "a"), value(1, "b")}}, codec), int64(2))
	}
	f.Add(slices.Concat(marker(0, 7, 0).bytes(), testBatch{base: 1, attributes: 4, records: []testRecord{value(0, "z")}}.bytes()), int64(0))
	f.Fuzz(func(t *testing.T, b []byte, from int64) {
		if len(b) > batchHeaderSize { // so that more than the checksum is tried
			binary.BigEndian.PutUint32(b[batchCRC:], crc32.Checksum(b[batchAttributes:], castagnoli))
			binary.BigEndian.PutUint32(b[batchLength:], uint32(len(b)-batchLengthOverhead))
		}
		r := batchReader{from: from, floor: -1}
		records, _ := r.read(b)
		if r.next < from {
			t.Errorf("from %d on to %d", from, r.next)
		}
		for _, rec := range records {
			if int64(rec.Position.Offset) < from {
				t.Errorf("offset %d, asked from %d", rec.Position.Offset, from)
			}
		}
	})
}

// Neither is the rest of a response.
func FuzzFetchResponse(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2}, true)
	f.Fuzz(func(_ *testing.T, b []byte, byID bool) {
		q := &fetchRequest{partitions: []fetchPartition{{topic: "t"}}}
		version := int16(fetchByName)
		if byID {
			version = fetchByID
		}
		_, _ = q.read(&wireReader{b: b, flexible: byID}, version)
	})
}
