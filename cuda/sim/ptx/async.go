package ptx

import "unsafe"

// asyncCopy is what one lane's cp.async will write.
type asyncCopy struct {
	lane  uint8
	size  uint8
	at    uint32 // offset in shared memory
	group int32  // of those that its lane has committed
	there bool   // the bytes are, as the launch is eager: only races are looked for
	data  [16]byte
}

// asyncQueue holds the copies of a warp that nobody has waited for.
type asyncQueue struct {
	copies []asyncCopy
	groups [32]int32    // how many each lane has committed
	short  [32][16]byte // what lanes copy that copy fewer bytes than they write
}

func (q *asyncQueue) reset() {
	q.copies = q.copies[:0]
	q.groups = [32]int32{}
}

// copyAsync reads global memory, and writes shared memory now or when it is
// waited for. Until then the bytes that it will write count as never written:
// whoever reads them has not waited.
func copyAsync(w *warp, in *inst, m uint32) {
	size := uint64(in.size)
	length := &w.r32[in.c]
	w.compute(&w.aside64, in.form, in.a, in.off)
	if !w.resolve(shared, m, size, copies) {
		return
	}
	to := w.address
	base := uintptr(unsafe.Pointer(unsafe.SliceData(w.block.memoryOf)))
	w.compute(&w.aside64, in.form2, in.b, in.off2)
	var whole, part uint32
	for i := range 32 {
		if m>>i&1 == 0 {
			continue
		}
		switch n := length[i]; {
		case n == uint32(size):
			whole |= 1 << i
		case n > uint32(size):
			w.fail(Undefined, i, "lane %d copies %d bytes into %d", i, n, size)
			return
		case n > 0:
			part |= 1 << i
		}
	}
	if whole != 0 && !w.resolve(global, whole, size, reads) {
		return
	}
	if part != 0 && !w.readParts(part, size, length) {
		return
	}
	for i := range 32 {
		if m>>i&1 == 0 {
			continue
		}
		var data [16]byte
		switch {
		case whole>>i&1 != 0:
			copy(data[:size], unsafe.Slice(w.address[i], size))
		case part>>i&1 != 0:
			data = w.async.short[i]
		}
		at := uint32(uintptr(unsafe.Pointer(to[i])) - base)
		eager := w.block.launch.Eager
		if eager {
			copy(unsafe.Slice(to[i], size), data[:size])
		} else {
			w.block.written[at/64] &^= (1<<size - 1) << (at % 64)
		}
		if !eager || w.block.races != nil {
			w.async.copies = append(w.async.copies, asyncCopy{uint8(i), uint8(size), at, w.async.groups[i], eager, data})
		}
	}
}

// readParts reads for the lanes that copy fewer bytes than they write, byte by byte; the rest stays zero.
func (w *warp) readParts(part uint32, size uint64, length *slot32) bool {
	from := w.aside64
	for i := range 32 {
		if part>>i&1 == 0 {
			continue
		}
		if from[i]&(size-1) != 0 {
			w.fail(Misaligned, i, "lane %d copies %d bytes from %#x", i, size, from[i])
			return false
		}
		w.async.short[i] = [16]byte{}
		for j := range length[i] {
			w.aside64[i] = from[i] + uint64(j)
			if !w.resolve(global, 1<<i, 1, reads) {
				return false
			}
			w.async.short[i][j] = *w.address[i]
		}
	}
	return true
}

func commitGroup(w *warp, _ *inst, m uint32) {
	for i := range w.async.groups {
		w.async.groups[i] += int32(m >> i & 1)
	}
}

// waitGroup lets the copies arrive of all but the latest in.off groups that each lane committed.
func waitGroup(w *warp, in *inst, m uint32) {
	w.arriveAsync(m, func(c *asyncCopy) bool { return c.group < w.async.groups[c.lane]-int32(in.off) })
}

func waitAll(w *warp, _ *inst, m uint32) {
	w.arriveAsync(m, func(*asyncCopy) bool { return true })
}

func (w *warp) arriveAsync(m uint32, arrives func(c *asyncCopy) bool) {
	kept := w.async.copies[:0]
	for i := range w.async.copies {
		c := &w.async.copies[i]
		if m>>c.lane&1 == 0 || !arrives(c) {
			kept = append(kept, *c)
			continue
		}
		if w.block.races != nil {
			w.block.races.landed(w, c)
		}
		if c.there {
			continue
		}
		copy(w.block.memoryOf[c.at:], c.data[:c.size])
		w.block.written[c.at/64] |= (1<<c.size - 1) << (c.at % 64)
	}
	w.async.copies = kept
}
