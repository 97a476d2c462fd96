package ptx

import (
	"math"
	"slices"
	"sync"
	"unsafe"
)

// device is held while atomic operations change device memory: blocks that run
// at the same time, also of other kernels, may change the same place.
var device sync.Mutex

// decodeAtomic decodes atom, and red, which does not return the old value.
func decodeAtomic(d *decoder, in *inst) error {
	s := d.s
	n, kind := typeBits(d.typ())
	if n < 32 {
		return d.unknown()
	}
	op := ""
	for _, m := range s.mods[:len(s.mods)-1] {
		sp, ok := spaces[m]
		switch {
		case ok && (m == "global" || m == "shared"):
			in.space = sp
		case slices.Contains([]string{"relaxed", "acquire", "release", "acq_rel", "cta", "gpu", "sys"}, m):
		case op == "":
			op = m
		default:
			return d.unknown()
		}
	}
	args := s.args
	if s.op == "atom" {
		if len(args) == 0 {
			return d.count(3)
		}
		if err := d.dest(&in.d, args[0], n); err != nil {
			return err
		}
		in.kind = 1 // the old value is wanted
		args = args[1:]
	}
	want := 2
	if op == "cas" {
		want = 3
	}
	if len(args) != want {
		return d.count(want + len(s.args) - len(args))
	}
	f := atomicOp(op, n, kind)
	if f == nil {
		return d.unknown()
	}
	if err := d.decodeAddress(&in.form, &in.a, &in.off, args[0]); err != nil {
		return err
	}
	if err := d.source(&in.b, args[1], n); err != nil {
		return err
	}
	in.c = in.b
	if want == 3 {
		if err := d.source(&in.c, args[2], n); err != nil {
			return err
		}
	} else if err := d.source(&in.c, args[1], n); err != nil {
		return err
	}
	in.run = func(w *warp, in *inst, m uint32) { w.atomics(in, m, n, f) }
	return nil
}

// atomics changes memory lane by lane, in the order of the launch.
func (w *warp) atomics(in *inst, m uint32, n int, f func(old, b, c uint64) uint64) {
	w.compute(&w.aside64, in.form, in.a, in.off)
	if !w.resolve(in.space, m, uint64(n/8), changes) {
		return
	}
	if in.space != shared {
		device.Lock()
		defer device.Unlock()
	}
	for j := range 32 {
		i := j
		if w.block.launch.Order == Reverse {
			i = 31 - j
		}
		if m>>i&1 == 0 {
			continue
		}
		p := unsafe.Pointer(w.address[i])
		if n == 64 {
			old := *(*uint64)(p)
			*(*uint64)(p) = f(old, w.r64[in.b][i], w.r64[in.c][i])
			if in.kind != 0 {
				w.r64[in.d][i] = old
			}
			continue
		}
		old := *(*uint32)(p)
		*(*uint32)(p) = uint32(f(uint64(old), uint64(w.r32[in.b][i]), uint64(w.r32[in.c][i])))
		if in.kind != 0 {
			w.r32[in.d][i] = old
		}
	}
}

// atomicOp returns what an atomic operation makes of the old value.
func atomicOp(op string, n int, kind byte) func(old, b, c uint64) uint64 {
	signed := func(v uint64) int64 { return int64(v<<(64-n)) >> (64 - n) }
	switch op {
	case "exch":
		return func(_, b, _ uint64) uint64 { return b }
	case "cas":
		return func(old, b, c uint64) uint64 {
			if old == b {
				return c
			}
			return old
		}
	case "and":
		return func(old, b, _ uint64) uint64 { return old & b }
	case "or":
		return func(old, b, _ uint64) uint64 { return old | b }
	case "xor":
		return func(old, b, _ uint64) uint64 { return old ^ b }
	case "inc":
		return func(old, b, _ uint64) uint64 {
			if old >= b {
				return 0
			}
			return old + 1
		}
	case "dec":
		return func(old, b, _ uint64) uint64 {
			if old == 0 || old > b {
				return b
			}
			return old - 1
		}
	case "add":
		switch {
		case kind != 'f':
			return func(old, b, _ uint64) uint64 { return old + b }
		case n == 64:
			return func(old, b, _ uint64) uint64 {
				return math.Float64bits(math.Float64frombits(old) + math.Float64frombits(b))
			}
		}
		return func(old, b, _ uint64) uint64 {
			return uint64(math.Float32bits(math.Float32frombits(uint32(old)) + math.Float32frombits(uint32(b))))
		}
	case "min", "max":
		if kind == 'f' {
			return nil
		}
		largest := op == "max"
		return func(old, b, _ uint64) uint64 {
			less := old < b
			if kind == 's' {
				less = signed(old) < signed(b)
			}
			if less == largest {
				return b
			}
			return old
		}
	}
	return nil
}
