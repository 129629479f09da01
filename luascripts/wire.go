package luascripts

import (
	"errors"
	"fmt"
	"strings"
)

// wire reads what a record is made of: the kinds of msgpack that encodeMessage
// writes, in all their sizes. It is the library's decoder without its generality,
// which took several times as long, for each message. What it returns are copies:
// to keep a part of a record must not keep all of it.
type wire struct {
	text string
	at   int
}

var errShort = errors.New("it ends too early")

// next takes n bytes.
func (w *wire) next(n int) (from int, err error) {
	if n < 0 || n > len(w.text)-w.at {
		return 0, errShort
	}
	from = w.at
	w.at += n
	return from, nil
}

// number takes n bytes as a number without a sign.
func (w *wire) number(n int) (uint64, error) {
	from, err := w.next(n)
	if err != nil {
		return 0, err
	}
	var v uint64
	for i := from; i < w.at; i++ {
		v = v<<8 | uint64(w.text[i])
	}
	return v, nil
}

// code takes the byte that says what follows.
func (w *wire) code() (byte, error) {
	from, err := w.next(1)
	if err != nil {
		return 0, err
	}
	return w.text[from], nil
}

// list takes the head of a list and returns how many items follow.
func (w *wire) list() (int, error) {
	c, err := w.code()
	switch {
	case err != nil:
		return 0, err
	case c&0xf0 == 0x90:
		return int(c & 0x0f), nil
	case c == 0xdc, c == 0xdd:
		n, err := w.number(2 << (c - 0xdc))
		return int(n), err
	}
	return 0, fmt.Errorf("code %#x is no list", c)
}

// int takes a whole number.
func (w *wire) int() (int64, error) {
	c, err := w.code()
	switch {
	case err != nil:
		return 0, err
	case c <= 0x7f, c >= 0xe0:
		return int64(int8(c)), nil
	case c >= 0xcc && c <= 0xcf: // without a sign: 1, 2, 4 or 8 bytes
		n, err := w.number(1 << (c - 0xcc))
		return int64(n), err
	case c >= 0xd0 && c <= 0xd3:
		size := 1 << (c - 0xd0)
		n, err := w.number(size)
		shift := 64 - 8*size
		return int64(n<<shift) >> shift, err
	}
	return 0, fmt.Errorf("code %#x is no number", c)
}

// span takes a text, or bytes, or nothing at all, which null says.
func (w *wire) span() (from int, null bool, err error) {
	c, err := w.code()
	var n uint64
	switch {
	case err != nil:
		return 0, false, err
	case c == 0xc0:
		return 0, true, nil
	case c&0xe0 == 0xa0:
		n = uint64(c & 0x1f)
	case c >= 0xc4 && c <= 0xc6: // bytes
		n, err = w.number(1 << (c - 0xc4))
	case c >= 0xd9 && c <= 0xdb: // text
		n, err = w.number(1 << (c - 0xd9))
	default:
		return 0, false, fmt.Errorf("code %#x is neither text nor bytes", c)
	}
	if err == nil {
		from, err = w.next(int(n)) // at most 32 bits
	}
	return from, false, err
}

// string takes a text; what is null is empty.
func (w *wire) string() (string, error) {
	from, null, err := w.span()
	if err != nil || null {
		return "", err
	}
	return strings.Clone(w.text[from:w.at]), nil
}

// bytes takes bytes, nil where they are null.
func (w *wire) bytes() ([]byte, error) {
	from, null, err := w.span()
	if err != nil || null {
		return nil, err
	}
	return append(make([]byte, 0, w.at-from), w.text[from:w.at]...), nil
}
