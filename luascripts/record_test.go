package luascripts

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"

	"delaybridge"
)

// recordOf is the record that schedule.lua makes of a message.
func recordOf(t testing.TB, m delaybridge.Message) string {
	t.Helper()
	b, err := encodeMessage(&m)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("1 %s %d\n%s", m.Position.Source, m.Position.Offset, b)
}

func TestRecordKeepsEverything(t *testing.T) {
	base := message("a", "hi", "nats:S 7")
	change := func(f func(*delaybridge.Message)) delaybridge.Message {
		m := base
		f(&m)
		return m
	}
	for name, m := range map[string]delaybridge.Message{
		"a plain message": base,
		"null key":        change(func(m *delaybridge.Message) { m.Key = nil }),
		"empty key":       change(func(m *delaybridge.Message) { m.Key = []byte{} }),
		"a key of any bytes": change(func(m *delaybridge.Message) {
			m.Key = []byte("\x00\n\xff\xc0")
		}),
		"null payload":  change(func(m *delaybridge.Message) { m.Payload = nil }),
		"empty payload": change(func(m *delaybridge.Message) { m.Payload = []byte{} }),
		"a payload of several MiB": change(func(m *delaybridge.Message) {
			m.Payload = bytes.Repeat([]byte("0123456789abcdef"), 3<<16+1)
		}),
		"headers in order, repeated, null, empty, odd": change(func(m *delaybridge.Message) {
			m.Headers = []delaybridge.Header{
				{Name: "b", Value: []byte("1")}, {Name: "a", Value: nil}, {Name: "b", Value: []byte{}},
				{Name: "", Value: []byte("\xff\x00\r\n")}, {Name: "é\xff", Value: []byte("x")},
			}
		}),
		"it expires": change(func(m *delaybridge.Message) { m.ExpiresAfter = 292 * 365 * 24 * time.Hour }),
		"times before 1970": change(func(m *delaybridge.Message) {
			m.Due, m.Scheduled = time.UnixMilli(-5).UTC(), time.UnixMilli(-1<<40).UTC()
		}),
		"due before it was scheduled": change(func(m *delaybridge.Message) { m.Due = m.Scheduled.Add(-time.Hour) }),
		"no times at all":             change(func(m *delaybridge.Message) { m.Due, m.Scheduled = time.Time{}, time.Time{} }),
		"a rejected one, without a target": change(func(m *delaybridge.Message) {
			m.Target = delaybridge.Target{}
		}),
		"a target with everything in it": change(func(m *delaybridge.Message) { m.Target.Name = "a://b c\n\xff" }),
		"the last position":              change(func(m *delaybridge.Message) { m.Position.Offset = math.MaxUint64 }),
	} {
		t.Run(name, func(t *testing.T) {
			got, marks, err := decodeRecord(m.ID, recordOf(t, m))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, m) {
				t.Errorf("got  %#v\nwant %#v", got, m)
			}
			if want := fmt.Sprintf("%s %d", m.Position.Source, m.Position.Offset); marks != want {
				t.Errorf("marks %q, want %q", marks, want)
			}
		})
	}
}

func TestRecordOfALaterVersion(t *testing.T) {
	m := message("a", "hi", "nats:S 7")
	text := recordOf(t, m)
	// Two more fields in the list, of kinds that are not known yet.
	head, list, _ := strings.Cut(text, "\n")
	more, err := msgpack.Marshal(map[string]any{"trace": []int{1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	if list[0] != 0x90|recordFields {
		t.Fatalf("the list begins with %x", list[0])
	}
	got, _, err := decodeRecord("a", head+"\n\x99"+list[1:]+"\xc3"+string(more))
	if err != nil || !reflect.DeepEqual(got, m) {
		t.Errorf("got %+v %v", got, err)
	}
	if _, _, err := decodeRecord("a", "2"+text[1:]); !errors.Is(err, errCorrupt) {
		t.Errorf("format 2 was read as this one: %v", err)
	}
}

func TestCorruptRecords(t *testing.T) {
	good := recordOf(t, delaybridge.Message{
		ID: "a", Position: delaybridge.Position{Source: "nats:S", Offset: 7}, Target: delaybridge.Target{Sink: "nats", Name: "x"},
		Key: []byte("key"), Headers: []delaybridge.Header{{Name: "n", Value: []byte("v")}}, Payload: []byte("payload"),
	})
	// Cut short anywhere, it is corrupt and says so.
	for n := range len(good) {
		if _, _, err := decodeRecord("a", good[:n]); !errors.Is(err, errCorrupt) {
			t.Fatalf("the first %d bytes of a record were read: %v", n, err)
		}
	}
	for name, record := range map[string]string{
		"no marks":              "1 \n" + good[strings.Index(good, "\n")+1:],
		"a mark that is none":   "1 nats:S -7\n\x97",
		"an offset beyond":      "1 nats:S 18446744073709551616\n\x97",
		"no list":               "1 nats:S 7\n\xc0",
		"a map":                 "1 nats:S 7\n\x87",
		"a target without sink": "1 nats:S 7\n\x97\xa1x",
		"a time that is text":   "1 nats:S 7\n\x97\xa8nats://x\xa1x",
		"no time to deliver in": "1 nats:S 7\n\x97\xa8nats://x\x00\x00\xff\xc0\x90\xc0",
		"an odd header list":    "1 nats:S 7\n\x97\xa8nats://x\x00\x00\x00\xc0\x93\xa1n\xc4\x01v\xa1m\xc0",
	} {
		if m, _, err := decodeRecord("a", record); !errors.Is(err, errCorrupt) {
			t.Errorf("%s: %+v %v", name, m, err)
		} else if m.ID != "a" {
			t.Errorf("%s: the id is lost", name)
		}
	}
}

// TestHugeLengthsAreNotBelieved: a length of 4 GiB in a record of a few bytes
// must not make room for it.
func TestHugeLengthsAreNotBelieved(t *testing.T) {
	huge := func(code byte, n uint32) string { return string(binary.BigEndian.AppendUint32([]byte{code}, n)) }
	const begin = "1 nats:S 7\n\x97\xa8nats://x\x00\x00\x00"
	for name, record := range map[string]string{
		"list":         "1 nats:S 7\n" + huge(0xdd, math.MaxUint32),
		"target":       "1 nats:S 7\n\x97" + huge(0xdb, math.MaxUint32),
		"key":          begin + huge(0xc6, math.MaxUint32),
		"headers":      begin + "\xc0" + huge(0xdd, math.MaxUint32-1),
		"header name":  begin + "\xc0\x92" + huge(0xdb, math.MaxUint32),
		"header value": begin + "\xc0\x92\xa1n" + huge(0xc6, math.MaxUint32),
		"payload":      begin + "\xc0\x90" + huge(0xc6, math.MaxUint32),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := decodeRecord("a", record)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, errCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		if grown := after.TotalAlloc - before.TotalAlloc; grown > 4<<20 {
			t.Errorf("%s: %d bytes were allocated", name, grown)
		}
	}
}

func TestLetters(t *testing.T) {
	died := time.UnixMilli(epoch)
	record := recordOf(t, message("a", "hi", "nats:S 7"))
	d, marks := decodeLetter("a", "1 attempts 12 2 6\nno\n1 x"+record, died)
	if d.Corrupt || d.Reason != "attempts" || d.Attempts != 12 || d.LostLeases != 2 || d.Error != "no\n1 x" ||
		!d.Died.Equal(died) || d.ID != "a" || string(d.Payload) != "hi" || d.Raw != nil || marks != "nats:S 7" {
		t.Errorf("letter %+v, marks %q", d, marks)
	}
	for text, raw := range map[string]string{
		"":                                  "",
		"1 permanent 1 0 2\nno":             "",
		"1 permanent 1 0 2\nno?":            "?",
		"1 permanent 1 0 99\nno":            "1 permanent 1 0 99\nno",
		"1 permanent 1 0 -1\nno":            "1 permanent 1 0 -1\nno",
		"2 permanent 1 0 2\nno" + record:    "2 permanent 1 0 2\nno" + record,
		"1 permanent 1 2\nno" + record:      "1 permanent 1 2\nno" + record,
		"1 permanent 1 0 2 no" + record[:1]: "1 permanent 1 0 2 no" + record[:1],
	} {
		d, _ := decodeLetter("a", text, died)
		if !d.Corrupt || string(d.Raw) != raw || d.ID != "a" || !d.Died.Equal(died) {
			t.Errorf("letter %q: %+v", text, d)
		}
	}
}

func TestStoredErrorsAreCut(t *testing.T) {
	for name, text := range map[string]string{
		"short":                      "no",
		"as long as it may be":       strings.Repeat("x", delaybridge.MaxErrorBytes),
		"longer":                     strings.Repeat("x", delaybridge.MaxErrorBytes+1),
		"a character at the cut":     strings.Repeat("x", delaybridge.MaxErrorBytes-2) + "€€",
		"only characters":            strings.Repeat("€", delaybridge.MaxErrorBytes),
		"bytes that are no text":     strings.Repeat("\x80", 2*delaybridge.MaxErrorBytes),
		"four bytes, cut at the end": strings.Repeat("x", delaybridge.MaxErrorBytes-3) + "\U0001f600",
	} {
		got := cutError(text)
		if len(got) > delaybridge.MaxErrorBytes || len(got) < min(len(text), delaybridge.MaxErrorBytes-4) || !strings.HasPrefix(text, got) {
			t.Errorf("%s: %d bytes of %d", name, len(got), len(text))
		}
		if utf8.ValidString(text) && !utf8.ValidString(got) {
			t.Errorf("%s: cut through a character", name)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	for name := range bodies {
		m := message("a", name, "nats:S 7")
		m.Key, m.Headers = []byte{}, []delaybridge.Header{{Name: "n"}, {Name: "n", Value: []byte("v")}}
		f.Add(recordOf(f, m))
	}
	f.Add("1 nats:S 7\n")
	f.Add("1 nats:S 7\n\x97\xa8nats://x\x00\x00\xd3\x3f\xff\xff\xff\xff\xff\xff\xff\xc0\x90\xc0")
	f.Add("1 nats:S 7 kafka:t:0 1\n\x97")
	f.Fuzz(func(t *testing.T, record string) {
		m, marks, err := decodeRecord("a", record)
		if err != nil {
			if !errors.Is(err, errCorrupt) {
				t.Fatalf("error %v", err)
			}
			return
		}
		// What can be read can be written, and read again as the same.
		b, err := encodeMessage(&m)
		if err != nil {
			t.Fatal(err)
		}
		again, marks2, err := decodeRecord("a", "1 "+marks+"\n"+string(b))
		if err != nil || marks2 != marks || !reflect.DeepEqual(again, m) {
			t.Fatalf("read %+v, again %+v %v", m, again, err)
		}
	})
}

func FuzzDecodeLetter(f *testing.F) {
	f.Add("1 attempts 12 2 2\nno" + recordOf(f, message("a", "hi", "nats:S 7")))
	f.Add("1 corrupt 0 0 0\n")
	f.Add("1 x 99999999999999999999 -1 0\n1 a 1\n\x97")
	f.Fuzz(func(t *testing.T, text string) {
		d, _ := decodeLetter("a", text, time.UnixMilli(epoch))
		if d.ID != "a" || d.Corrupt && d.Payload != nil || !d.Corrupt && d.Raw != nil {
			t.Fatalf("letter %+v", d)
		}
		if d.Corrupt && !strings.HasSuffix(text, string(d.Raw)) {
			t.Fatalf("the bytes of %q are lost: %q", text, d.Raw)
		}
	})
}
