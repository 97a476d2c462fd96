package device

import (
	"errors"
	"fmt"
	"math"
	"strings"
)

// NewNaNFinder returns a Device that does what d does and, after each
// operation, looks for NaNs and infinities in what it wrote. The first fails the
// stream with a NotFiniteError. lookup adds what the caller knows of an
// operand (its unit, its tensor's name); it may be nil and may return "".
// Streams run one operation at a time. Closing it closes d.
func NewNaNFinder(d Device, lookup func(op Op, operand string) string) Device {
	if lookup == nil {
		lookup = func(Op, string) string { return "" }
	}
	return wrap(d, func(name string, s Stream) Executor {
		return &nanFinder{device: d, stream: s, name: name, lookup: lookup}
	})
}

// nanFinder is one stream's. Memory that the host cannot see is searched by
// CheckFinite, and what it finds is copied, a piece after the other, to memory
// that both see.
type nanFinder struct {
	device Device
	stream Stream
	name   string
	lookup func(op Op, operand string) string
	flag   Buffer // on the device; made with the first operation
	pinned Buffer // where copies go; made with flag, if it is needed
}

// pieceLen is the elements of a copy of a nanFinder's.
const pieceLen = 1 << 16

func (f *nanFinder) Run(op Op) error {
	f.stream.Launch(op)
	if err := f.stream.Sync(); err != nil {
		return err
	}
	if f.flag.Size == 0 {
		var err error
		if f.flag, err = f.device.Alloc(I32.Size(), Local); err != nil {
			return err
		}
		if f.flag.Host == nil {
			if f.pinned, err = f.device.Alloc(pieceLen*F64.Size(), Pinned); err != nil {
				return err
			}
		}
	}
	wrote, err := f.searchAll(op, func(o Operand) bool { return o.Access&Write != 0 })
	if err != nil || len(wrote) == 0 {
		return err
	}
	read, err := f.searchAll(op, func(o Operand) bool { return o.Access == Read })
	if err != nil {
		return err
	}
	return fmt.Errorf("stream %s: %w", f.name, &NotFiniteError{Op: Name(op), Wrote: wrote, Read: read})
}

// NotFiniteError says that an operation wrote a NaN or an infinity. It is what a
// NaN finder's stream fails with.
type NotFiniteError struct {
	Op    string      // the operation's name
	Wrote []NotFinite // one or more
	Read  []NotFinite // what was not finite among its inputs before
}

// NotFinite is the first element of an operand that is not finite.
type NotFinite struct {
	Operand string
	Known   string // what the finder's caller knows of the operand, or ""
	Index   int64
	Value   float64
}

// Error has a line for each operand.
func (e *NotFiniteError) Error() string {
	lines := func(all []NotFinite) string {
		var text []string
		for _, n := range all {
			known := ""
			if n.Known != "" {
				known = " (" + n.Known + ")"
			}
			text = append(text, fmt.Sprintf("%s: %s[%d]%s is %v", e.Op, n.Operand, n.Index, known, n.Value))
		}
		return strings.Join(text, "\n")
	}
	if len(e.Read) == 0 {
		return lines(e.Wrote)
	}
	return lines(e.Wrote) + "\nand of its inputs: " + lines(e.Read)
}

// searchAll says what is not finite in the chosen operands.
func (f *nanFinder) searchAll(op Op, chosen func(Operand) bool) ([]NotFinite, error) {
	var all []NotFinite
	for _, o := range Operands(op) {
		if o.Scratch || !o.T.Type.Float() || !chosen(o) {
			continue
		}
		i, x, err := f.search(*o.T)
		if err != nil {
			return nil, err
		}
		if i < 0 {
			continue
		}
		all = append(all, NotFinite{Operand: o.Name, Known: f.lookup(op, o.Name), Index: i, Value: x})
	}
	return all, nil
}

// search returns the first element that is not finite; index −1: none.
func (f *nanFinder) search(t Tensor) (int64, float64, error) {
	if f.flag.Host != nil {
		i, x := notFinite(t)
		return i, x, nil
	}
	flag := f.flag.In(I32, 0, 1)
	f.stream.Launch(&CheckFinite{X: t, Flag: flag, N: int(t.Len)})
	seen, err := f.fetch(flag)
	if err != nil || seen.I32()[0] == 0 {
		return -1, 0, err
	}
	for at := int64(0); at < t.Len; at += pieceLen {
		piece, err := f.fetch(t.Slice(at, min(pieceLen, t.Len-at)))
		if err != nil {
			return 0, 0, err
		}
		if i, x := notFinite(piece); i >= 0 {
			return at + i, x, nil
		}
	}
	return -1, 0, nil
}

// fetch copies a tensor to where the host sees it, until the next fetch.
func (f *nanFinder) fetch(t Tensor) (Tensor, error) {
	seen := f.pinned.In(t.Type, 0, t.Len)
	f.stream.Launch(&Copy{Src: t, Dst: seen, N: int(t.Len)})
	return seen, f.stream.Sync()
}

func (f *nanFinder) Close() error {
	var errs []error
	for _, b := range []Buffer{f.flag, f.pinned} {
		if b.Size > 0 {
			errs = append(errs, f.device.Free(b))
		}
	}
	return errors.Join(errs...)
}

func notFinite(t Tensor) (int64, float64) {
	for i := range t.Len {
		var x float64
		switch t.Type {
		case F32:
			x = float64(t.F32()[i])
		case BF16:
			x = float64(FromBF16(t.BF16()[i]))
		default:
			x = t.F64()[i]
		}
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return i, x
		}
	}
	return -1, 0
}
