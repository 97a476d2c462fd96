//go:build sim && cgo && linux

package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unsafe"
)

// alloc is cuMemAlloc.
func (c *context) alloc(n uint64) (*allocation, error) {
	if err := c.m.safe("cuMemAlloc"); err != nil {
		return nil, err
	}
	d := c.device
	if n == 0 {
		return nil, refuse(InvalidValue, "an allocation of 0 bytes")
	}
	if free := d.Memory - d.used; n > free || d.counted(n) > free {
		return nil, refuse(OutOfMemory, "%d bytes of the %d that are free, of %d", n, free, d.Memory)
	}
	d.take(d.counted(n))
	return d.space.alloc(c, n), nil
}

// counted is what an allocation takes of a device's memory.
func (d *device) counted(n uint64) uint64 {
	return (n + granularity - 1) / granularity * granularity
}

// free is cuMemFree.
func (c *context) free(addr uint64) error {
	if err := c.m.safe("cuMemFree"); err != nil {
		return err
	}
	a, err := c.m.at(addr)
	switch {
	case err != nil:
		return refuse(InvalidValue, "%v", err)
	case a.host || a.Base != addr:
		return refuse(InvalidValue, "%#x is no address that cuMemAlloc returned, but in %v", addr, a)
	}
	d := a.ctx.device
	d.used -= d.counted(uint64(len(a.Bytes)))
	a.free()
	return nil
}

// Flags of pinned memory, CU_MEMHOSTALLOC_*.
const (
	hostPortable      = 1
	hostDeviceMap     = 2
	hostWriteCombined = 4
)

// pin is cuMemHostAlloc.
func (c *context) pin(n uint64, flags uint32) (*allocation, error) {
	if err := c.m.safe("cuMemHostAlloc"); err != nil {
		return nil, err
	}
	switch limit := c.m.config.HostMemory; {
	case n == 0 || flags&^(hostPortable|hostDeviceMap|hostWriteCombined) != 0:
		return nil, refuse(InvalidValue, "%d bytes of pinned memory with flags %#x", n, flags)
	case n > 1<<46 || limit != 0 && n > limit-c.m.pinned:
		return nil, refuse(OutOfMemory, "%d bytes of pinned memory beside %d, of %d", n, c.m.pinned, limit)
	}
	a, err := c.m.host.pin(c, n)
	if err == nil {
		c.m.pinned += n
	}
	return a, err
}

// pinnedAt returns the pinned memory that holds an address of the host's, nil for none.
func (m *Machine) pinnedAt(host uintptr) *allocation {
	if a := m.host.before(uint64(host)); a != nil && uint64(host)-a.Base < uint64(len(a.Bytes)) {
		return a
	}
	return nil
}

// unpin is cuMemFreeHost. It waits for the device, as drivers do.
func (c *context) unpin(host uintptr) error {
	if err := c.m.safe("cuMemFreeHost"); err != nil {
		return err
	}
	a := c.m.pinnedAt(host)
	if a == nil || uint64(host) != a.Base {
		return refuse(InvalidValue, "%#x is no address that cuMemHostAlloc returned", host)
	}
	if err := a.ctx.drain(); err != nil {
		return err
	}
	if a.freed.Load() {
		return refuse(InvalidValue, "%v was freed on another thread meanwhile", a)
	}
	c.m.pinned -= uint64(len(a.Bytes))
	c.m.host.unpin(a)
	return nil
}

// hostSide returns the pinned bytes that a copy uses, or false where they are
// pageable; those are the caller's for the time of the call.
func (m *Machine) hostSide(host uintptr, n uint64) (span, bool, error) {
	if host == 0 || uint64(host) >= deviceBase || uint64(host)+n >= deviceBase {
		return span{}, false, refuse(InvalidValue, "%d bytes at %#x are none of the host's", n, host)
	}
	if m.pinnedAt(host) == nil {
		return span{}, false, nil
	}
	s, err := m.span(uint64(host), n)
	if err != nil {
		return span{}, false, refuse(InvalidValue, "%v", err)
	}
	return s, true, nil
}

// toDevice is cuMemcpyHtoDAsync. Pageable memory has been read when the call
// returns: CUDA driver API reference, "API synchronization behavior".
func (c *context) toDevice(to uint64, host unsafe.Pointer, n uint64, s *stream) error {
	if n == 0 {
		return nil
	}
	dst, err := c.m.span(to, n)
	if err != nil {
		return refuse(InvalidValue, "to: %v", err)
	}
	src, pinned, err := c.m.hostSide(uintptr(host), n)
	if err != nil {
		return err
	}
	if pinned {
		return s.submit("cuMemcpyHtoDAsync", func() error { return move(dst, src) })
	}
	if s.capture != nil {
		return s.capture.violated("a copy from pageable memory")
	}
	staged := bytes.Clone(unsafe.Slice((*byte)(host), n))
	return s.submit("cuMemcpyHtoDAsync", func() error {
		b, err := dst.bytes()
		if err != nil {
			return err
		}
		copy(b, staged)
		dst.mark()
		return nil
	})
}

// toHost is cuMemcpyDtoHAsync. A copy to pageable memory has ended when the call
// returns (source as of toDevice).
func (c *context) toHost(host unsafe.Pointer, from, n uint64, s *stream) error {
	if n == 0 {
		return nil
	}
	src, err := c.m.span(from, n)
	if err != nil {
		return refuse(InvalidValue, "from: %v", err)
	}
	dst, pinned, err := c.m.hostSide(uintptr(host), n)
	if err != nil {
		return err
	}
	if pinned {
		return s.submit("cuMemcpyDtoHAsync", func() error { return firstError(move(dst, src), src.complete()) })
	}
	if s.capture != nil {
		return s.capture.violated("a copy to pageable memory")
	}
	s.enqueue("cuMemcpyDtoHAsync", func() error {
		b, err := src.bytes()
		if err != nil {
			return err
		}
		copy(unsafe.Slice((*byte)(host), n), b)
		return src.complete()
	})
	c.wait(s.tail)
	return s.ctx.broken()
}

// onDevice is cuMemcpyDtoDAsync.
func (c *context) onDevice(to, from, n uint64, s *stream) error {
	if n == 0 {
		return nil
	}
	dst, err := c.m.span(to, n)
	if err != nil {
		return refuse(InvalidValue, "to: %v", err)
	}
	src, err := c.m.span(from, n)
	if err != nil {
		return refuse(InvalidValue, "from: %v", err)
	}
	return s.submit("cuMemcpyDtoDAsync", func() error {
		if err := move(dst, src); err != nil {
			return err
		}
		if dst.allocation == src.allocation && dst.off < src.off+n && src.off < dst.off+n {
			return &unnoticed{fmt.Sprintf("%d bytes at %#x are copied to %#x, which they overlap", n, from, to)}
		}
		return nil
	})
}

// move copies bytes, and whether they have been written.
func move(dst, src span) error {
	to, err := dst.bytes()
	if err != nil {
		return err
	}
	from, err := src.bytes()
	if err != nil {
		return err
	}
	copy(to, from)
	dst.inherit(src)
	return nil
}

// complete reports bytes for the host that nobody has written.
func (s span) complete() error {
	if at := s.unwritten(); at >= 0 {
		return &unnoticed{fmt.Sprintf("byte %d of %v goes to the host, and nobody has written it", at, s.allocation)}
	}
	return nil
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// fill is cuMemsetD8Async, D16 and D32: count values of width bytes.
func (c *context) fill(to uint64, value uint32, width, count uint64, s *stream) error {
	switch {
	case count == 0:
		return nil
	case to%width != 0:
		return refuse(InvalidValue, "%#x is no multiple of the %d bytes of a value", to, width)
	case count > 1<<48:
		return refuse(InvalidValue, "%d values of %d bytes", count, width)
	}
	dst, err := c.m.span(to, width*count)
	if err != nil {
		return refuse(InvalidValue, "%v", err)
	}
	pattern := binary.LittleEndian.AppendUint32(nil, value)[:width]
	return s.submit(fmt.Sprintf("cuMemsetD%dAsync", 8*width), func() error {
		b, err := dst.bytes()
		if err != nil {
			return err
		}
		for done := copy(b, pattern); done < len(b); done *= 2 {
			copy(b[done:], b[:done])
		}
		dst.mark()
		return nil
	})
}
