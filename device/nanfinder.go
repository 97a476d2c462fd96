package device

import (
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
// CheckFinite, and only what it finds is copied.
type nanFinder struct {
	device Device
	stream Stream
	name   string
	lookup func(op Op, operand string) string
	flag   Buffer     // on the device; made with the first operation
	host   hostMemory // where copies go
}

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
	if err != nil {
		return 0, 0, err
	}
	bad := seen.In(I32, 0, 1).I32()[0] != 0
	if err := f.host.Free(seen); err != nil || !bad {
		return -1, 0, err
	}
	all, err := f.fetch(t)
	if err != nil {
		return 0, 0, err
	}
	i, x := notFinite(all.In(t.Type, 0, t.Len))
	return i, x, f.host.Free(all)
}

// fetch copies a tensor to memory that the host sees.
func (f *nanFinder) fetch(t Tensor) (Buffer, error) {
	b, err := f.host.Alloc(t.Bytes(), Local)
	if err != nil {
		return Buffer{}, err
	}
	f.stream.Launch(&Copy{Src: t, Dst: b.In(t.Type, 0, t.Len), N: int(t.Len)})
	return b, f.stream.Sync()
}

func (f *nanFinder) Close() error { return f.host.Close() }

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
