package ingest

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/segmentio/kafka-go/compress"
)

// checkCompressed refuses compressed data for which its codec would ask for more
// memory than honest data needs: what it says of its size is in a few bytes, and is
// believed before anything is read. Data that is broken in another way is left for
// the codec to find.
func checkCompressed(c compress.Compression, b []byte) error {
	switch c {
	case compress.Snappy:
		return checkSnappy(b)
	case compress.Zstd:
		return checkZstd(b)
	}
	return nil
}

// snappyRatio is above what Snappy can make of a byte: at most 64 of three.
const snappyRatio = 22

// checkSnappy looks at one block, or at those of the framing that Java uses.
func checkSnappy(b []byte) error {
	const head = 16 // of the framing: a magic number and two versions
	check := func(block []byte) error {
		n, size := binary.Uvarint(block)
		if size > 0 && n > snappyRatio*uint64(len(block)) {
			return fmt.Errorf("snappy: a block of %d bytes cannot hold %d", len(block), n)
		}
		return nil
	}
	if !bytes.HasPrefix(b, []byte("\x82SNAPPY\x00")) {
		return check(b)
	}
	for b = b[min(head, len(b)):]; len(b) >= 4; {
		size := int64(binary.BigEndian.Uint32(b))
		if b = b[4:]; size > int64(len(b)) {
			return fmt.Errorf("snappy: a block of %d bytes where %d are left", size, len(b))
		}
		if err := check(b[:size]); err != nil {
			return err
		}
		b = b[size:]
	}
	return nil
}

// maxZstdWindow is how far back zstd may refer to: the most that other decoders
// take, and of which level 22 makes use.
const maxZstdWindow = 128 << 20

// checkZstd looks at the windows of all frames.
func checkZstd(b []byte) error {
	for len(b) >= 4 {
		magic := binary.LittleEndian.Uint32(b)
		b = b[4:]
		if magic&^0xf == 0x184d2a50 { // a frame to be passed over
			if len(b) < 4 {
				return nil
			}
			b = b[min(4+int64(binary.LittleEndian.Uint32(b)), int64(len(b))):]
			continue
		}
		if magic != 0xfd2fb528 || len(b) == 0 {
			return nil
		}
		var window uint64
		if window, b = zstdHeader(b); window > maxZstdWindow {
			return fmt.Errorf("zstd: a window of %d bytes, at most %d are read", window, maxZstdWindow)
		}
	}
	return nil
}

// zstdHeader reads a frame behind its magic number: its window, and what is behind
// the frame, nil if it ends too early.
func zstdHeader(b []byte) (window uint64, rest []byte) {
	flags := b[0]
	single, checksum := flags&0x20 != 0, flags&0x04 != 0
	idBytes := [4]int{0, 1, 2, 4}[flags&3]
	sizeBytes := [4]int{0, 2, 4, 8}[flags>>6]
	b = b[1:]
	if single {
		sizeBytes = max(sizeBytes, 1)
	} else {
		if len(b) == 0 {
			return 0, nil
		}
		base := uint64(1) << (10 + b[0]>>3)
		window = base + base/8*uint64(b[0]&7)
		b = b[1:]
	}
	if len(b) < idBytes+sizeBytes {
		return window, nil
	}
	if single { // the window is the whole content
		var field [8]byte
		copy(field[:], b[idBytes:idBytes+sizeBytes])
		if window = binary.LittleEndian.Uint64(field[:]); sizeBytes == 2 {
			window += 256
		}
	}
	b = b[idBytes+sizeBytes:]
	for last := false; !last; {
		if len(b) < 3 {
			return window, nil
		}
		head := int(b[0]) | int(b[1])<<8 | int(b[2])<<16
		b = b[3:]
		last = head&1 != 0
		size := head >> 3
		if head>>1&3 == 1 { // one byte, repeated
			size = 1
		}
		if size > len(b) {
			return window, nil
		}
		b = b[size:]
	}
	if checksum {
		b = b[min(4, len(b)):]
	}
	return window, b
}
