package ptx

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"
)

// The forms of an address: a constant, or that with a register added to it.
const (
	addressConstant int32 = iota
	address32
	address64
)

// decodeAddress makes an instruction compute the addresses of an operand.
func (d *decoder) decodeAddress(form, field *int32, off *uint64, o operand) error {
	if o.kind != operandAddress {
		return errNoAddress
	}
	*off = uint64(o.off)
	if o.sym != nil {
		*off += o.sym.addr
	}
	*form = addressConstant
	if o.reg != nil {
		*form = address32
		if o.reg.class == wide {
			*form = address64
		}
		d.refer(field, o.reg, false)
	}
	return nil
}

// compute fills in the addresses that an instruction accesses.
func (w *warp) compute(a *[32]uint64, form, field int32, off uint64) {
	switch form {
	case address64:
		r := &w.r64[field]
		for i := range a {
			a[i] = r[i] + off
		}
	case address32:
		r := &w.r32[field]
		for i := range a {
			a[i] = uint64(r[i] + uint32(off))
		}
	default:
		for i := range a {
			a[i] = off
		}
	}
}

// resolve finds the bytes of w.aside64's addresses for the lanes of m, checks the
// access, and sets w.address. It reports whether there was no fault.
func (w *warp) resolve(s space, m uint32, size uint64, how touch) bool {
	a := &w.aside64
	var odd uint64
	if m == allLanes {
		for _, v := range a {
			odd |= v
		}
	} else {
		for i, v := range a {
			odd |= v & -uint64(m>>i&1)
		}
	}
	if odd&(size-1) != 0 {
		for i, v := range a {
			if m>>i&1 != 0 && v&(size-1) != 0 {
				w.fail(Misaligned, i, "lane %d accesses %d bytes at %#x", i, size, v)
				w.fault.Address = v
				return false
			}
		}
	}
	switch s {
	case shared:
		return w.resolveShared(m, size, how)
	case global, constant:
		return w.resolveGlobal(m, size, how)
	case local:
		return w.resolveLocal(m, size)
	case param:
		return w.resolveParam(m, size, how)
	}
	var of [5]uint32
	for i := range a {
		if m>>i&1 == 0 {
			continue
		}
		switch a[i] & windowMask {
		case sharedWindow:
			of[shared] |= 1 << i
		case localWindow:
			of[local] |= 1 << i
		case paramWindow:
			of[param] |= 1 << i
		default:
			of[global] |= 1 << i
			continue
		}
		a[i] &^= windowMask
	}
	return (of[global] == 0 || w.resolveGlobal(of[global], size, how)) &&
		(of[shared] == 0 || w.resolveShared(of[shared], size, how)) &&
		(of[local] == 0 || w.resolveLocal(of[local], size)) &&
		(of[param] == 0 || w.resolveParam(of[param], size, how))
}

func (w *warp) resolveShared(m uint32, size uint64, how touch) bool {
	b := w.block
	last := b.addresses - sharedStart - size // may wrap below zero, to a size that the next check catches
	if b.addresses-sharedStart < size {
		w.fail(OutOfBounds, bits.TrailingZeros32(m), "the block has %d bytes of shared memory", b.addresses-sharedStart)
		return false
	}
	base := unsafe.Pointer(unsafe.SliceData(b.memoryOf))
	ones := uint64(1)<<size - 1
	for i := range w.aside64 {
		if m>>i&1 == 0 {
			continue
		}
		o := w.aside64[i] - sharedStart
		if o > last {
			w.fail(OutOfBounds, i, "lane %d accesses %d bytes of shared memory at offset %d of %d", i, size, int64(o), b.addresses-sharedStart)
			w.fault.Address = w.aside64[i]
			return false
		}
		mask := ones << (o % 64)
		word := &b.written[o/64]
		if how == writes || how == copies {
			*word |= mask
		} else if *word&mask != mask {
			w.fail(NeverWritten, i, "lane %d reads %d bytes of shared memory at offset %d that %s", i, size, o, b.whyUnwritten(o, size))
			w.fault.Address = w.aside64[i]
			return false
		}
		w.address[i] = (*byte)(unsafe.Add(base, o))
	}
	return b.races == nil || b.races.sharedAccess(w, m, size, how)
}

// whyUnwritten says why bytes of shared memory count as never written.
func (b *block) whyUnwritten(o, size uint64) string {
	for _, w := range b.warps {
		for i := range w.async.copies {
			if c := &w.async.copies[i]; uint64(c.at) < o+size && o < uint64(c.at)+uint64(c.size) {
				return fmt.Sprintf("a cp.async of warp %d lane %d will write, which has not waited for it", w.index, c.lane)
			}
		}
	}
	return "nothing has written"
}

func (w *warp) resolveGlobal(m uint32, size uint64, how touch) bool {
	if n := int64(size) * int64(bits.OnesCount32(m)); how == reads {
		w.read += n
	} else {
		w.written += n
	}
	ones := uint64(1)<<size - 1
	r := w.recent[0]
	for i := range w.aside64 {
		if m>>i&1 == 0 {
			continue
		}
		v := w.aside64[i]
		if r == nil || v-r.Base > uint64(len(r.Bytes))-size || uint64(len(r.Bytes)) < size {
			if r = w.region(i, v, size, how != reads); r == nil {
				return false
			}
		}
		o := v - r.Base
		if r.Written != nil {
			mask := ones << (o % 64)
			word := &r.Written[o/64]
			if have := atomic.LoadUint64(word); have&mask != mask {
				if how != writes {
					w.fail(NeverWritten, i, "lane %d reads %d bytes at %#x, offset %d of %s, that nothing has written", i, size, v, o, r.Name)
					w.fault.Address = v
					return false
				}
				atomic.OrUint64(word, mask)
			}
		}
		w.address[i] = &r.Bytes[o]
	}
	return w.block.races == nil || w.block.races.globalAccess(w, m, size, how)
}

// region returns the region that holds an access, nil after a fault.
func (w *warp) region(lane int, v, size uint64, write bool) *Region {
	for i, r := range w.recent {
		if r != nil && v-r.Base < uint64(len(r.Bytes)) && uint64(len(r.Bytes))-(v-r.Base) >= size {
			copy(w.recent[1:i+1], w.recent[:i])
			w.recent[0] = r
			return r
		}
	}
	var r *Region
	var err error
	if v&windowMask == dataWindow {
		r, err = w.block.kernel.module.data.Find(v)
		if err != nil {
			r, err = w.block.kernel.module.constants.Find(v)
			if err == nil && write {
				w.fail(ReadOnly, lane, "lane %d writes to the constant %s", lane, r.Name)
				return nil
			}
		}
	} else {
		r, err = w.block.memory.Find(v)
	}
	if err != nil {
		w.fail(OutOfBounds, lane, "lane %d accesses %d bytes at %#x: %v", lane, size, v, err)
		w.fault.Address = v
		return nil
	}
	if v-r.Base > uint64(len(r.Bytes)) || uint64(len(r.Bytes))-(v-r.Base) < size {
		w.fail(OutOfBounds, lane, "lane %d accesses %d bytes at %#x, offset %d of %s, which has %d", lane, size, v, v-r.Base, r.Name, len(r.Bytes))
		w.fault.Address = v
		return nil
	}
	if v&windowMask == dataWindow {
		return r // not kept among the recent ones: a write to a constant must be seen
	}
	copy(w.recent[1:], w.recent[:])
	w.recent[0] = r
	return r
}

func (w *warp) resolveLocal(m uint32, size uint64) bool {
	n := uint64(w.block.kernel.Local)
	for i := range w.aside64 {
		if m>>i&1 == 0 {
			continue
		}
		o := w.aside64[i]
		if o >= n || n-o < size {
			w.fail(OutOfBounds, i, "lane %d accesses %d bytes of local memory at offset %d of %d", i, size, o, n)
			w.fault.Address = o
			return false
		}
		w.address[i] = &w.local[uint64(i)*n+o]
	}
	return true
}

func (w *warp) resolveParam(m uint32, size uint64, how touch) bool {
	args := w.block.launch.Args
	n := uint64(w.block.kernel.ArgsSize)
	for i := range w.aside64 {
		if m>>i&1 == 0 {
			continue
		}
		o := w.aside64[i]
		if how != reads {
			w.fail(ReadOnly, i, "lane %d writes to a parameter", i)
			return false
		}
		if o >= n || n-o < size {
			w.fail(OutOfBounds, i, "lane %d reads %d bytes of parameters at offset %d of %d", i, size, o, n)
			w.fault.Address = o
			return false
		}
		w.address[i] = &args[o]
	}
	return true
}

// load reads elements into the registers in.vec.
func load(w *warp, in *inst, m uint32) {
	w.compute(&w.aside64, in.form, in.a, in.off)
	if !w.resolve(in.space, m, uint64(int(in.size)*len(in.vec)), reads) {
		return
	}
	for j, r := range in.vec {
		off := uintptr(j) * uintptr(in.size)
		w.loadElement(in, r, off, m)
	}
}

func (w *warp) loadElement(in *inst, r int32, off uintptr, m uint32) {
	if in.wide { // 64-bit registers
		d := &w.r64[r]
		for i := range d {
			if m>>i&1 == 0 {
				continue
			}
			p := unsafe.Add(unsafe.Pointer(w.address[i]), off)
			switch in.size {
			case 8:
				d[i] = *(*uint64)(p)
			case 4:
				d[i] = uint64(*(*uint32)(p))
				if in.signed {
					d[i] = uint64(int64(*(*int32)(p)))
				}
			case 2:
				d[i] = uint64(*(*uint16)(p))
				if in.signed {
					d[i] = uint64(int64(*(*int16)(p)))
				}
			case 1:
				d[i] = uint64(*(*uint8)(p))
				if in.signed {
					d[i] = uint64(int64(*(*int8)(p)))
				}
			}
		}
		return
	}
	d := &w.r32[r]
	switch {
	case in.size == 4 && m == allLanes:
		for i := range d {
			d[i] = *(*uint32)(unsafe.Add(unsafe.Pointer(w.address[i]), off))
		}
	case in.size == 4:
		for i := range d {
			if m>>i&1 != 0 {
				d[i] = *(*uint32)(unsafe.Add(unsafe.Pointer(w.address[i]), off))
			}
		}
	case in.size == 2:
		for i := range d {
			if m>>i&1 != 0 {
				p := unsafe.Add(unsafe.Pointer(w.address[i]), off)
				d[i] = uint32(*(*uint16)(p))
				if in.signed {
					d[i] = uint32(int32(*(*int16)(p))) & in.cut
				}
			}
		}
	default:
		for i := range d {
			if m>>i&1 != 0 {
				p := unsafe.Add(unsafe.Pointer(w.address[i]), off)
				d[i] = uint32(*(*uint8)(p))
				if in.signed {
					d[i] = uint32(int32(*(*int8)(p))) & in.cut
				}
			}
		}
	}
}

// store writes the registers in.vec.
func store(w *warp, in *inst, m uint32) {
	w.compute(&w.aside64, in.form, in.a, in.off)
	if !w.resolve(in.space, m, uint64(int(in.size)*len(in.vec)), writes) {
		return
	}
	for j, r := range in.vec {
		off := uintptr(j) * uintptr(in.size)
		if in.wide {
			s := &w.r64[r]
			for i, v := range s {
				if m>>i&1 == 0 {
					continue
				}
				p := unsafe.Add(unsafe.Pointer(w.address[i]), off)
				switch in.size {
				case 8:
					*(*uint64)(p) = v
				case 4:
					*(*uint32)(p) = uint32(v)
				case 2:
					*(*uint16)(p) = uint16(v)
				case 1:
					*(*uint8)(p) = uint8(v)
				}
			}
			continue
		}
		s := &w.r32[r]
		for i, v := range s {
			if m>>i&1 == 0 {
				continue
			}
			p := unsafe.Add(unsafe.Pointer(w.address[i]), off)
			switch in.size {
			case 4:
				*(*uint32)(p) = v
			case 2:
				*(*uint16)(p) = uint16(v)
			case 1:
				*(*uint8)(p) = uint8(v)
			}
		}
	}
}
