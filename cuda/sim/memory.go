//go:build sim && cgo && linux

package sim

import (
	"fmt"
	"slices"
	"sort"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/gofsdp/gofsdp/cuda/sim/ptx"
)

// Device addresses begin where no host address can be, on x86-64 and on arm64,
// so that one taken for the other is found at once.
const (
	deviceBase = uint64(1) << 52
	deviceBits = 44 // of addresses that each device has

	alignment   = 256      // of allocations, and no more than that by luck
	guard       = 64 << 10 // bytes at least between two allocations
	granularity = 512      // in which memory is counted as used
	poisoned    = 4 << 20  // bytes of an allocation that are poisoned at most; more would cost the host's memory
	poison      = 0xff     // makes NaN in fp32 and bf16
	mapped      = 1 << 20  // bytes from which memory is mapped, and touched only where it is used
)

// allocation is device memory, or pinned memory of the host.
type allocation struct {
	ptx.Region
	number int
	host   bool
	ctx    *context
	freed  atomic.Bool
	maps   [][]byte // what has to be unmapped
}

// String names it for reports.
func (a *allocation) String() string {
	if a.host {
		return fmt.Sprintf("pinned memory %d of %d bytes at %#x", a.number, len(a.Bytes), a.Base)
	}
	return fmt.Sprintf("allocation %d of %d bytes at %#x", a.number, len(a.Bytes), a.Base)
}

// space holds allocations in the order of their addresses. Kernels look
// addresses up while others are made, so readers see a list that only grows.
type space struct {
	list  atomic.Pointer[[]*allocation]
	next  uint64 // from where the next one may be
	count int
}

// all returns every allocation, freed device memory too.
func (s *space) all() []*allocation {
	if l := s.list.Load(); l != nil {
		return *l
	}
	return nil
}

// before returns the last allocation that begins at addr or before it, nil for none.
func (s *space) before(addr uint64) *allocation {
	l := s.all()
	i := sort.Search(len(l), func(i int) bool { return l[i].Base > addr })
	if i == 0 {
		return nil
	}
	return l[i-1]
}

// alloc makes an allocation of n bytes of device memory, poisoned and with no byte written.
func (s *space) alloc(c *context, n uint64) *allocation {
	s.count++
	a := &allocation{number: s.count, ctx: c}
	// 256 past a multiple of 512: what relies on a better alignment than is promised is found.
	a.Base = (s.next+guard+2*alignment-1)/(2*alignment)*(2*alignment) + alignment
	s.next = a.Base + n
	a.Bytes = a.backing(int(n))
	first := a.Bytes[:min(n, poisoned)]
	for i := range first {
		first[i] = poison
	}
	words := a.backing((int(n) + 63) / 64 * 8)
	a.Written = unsafe.Slice((*uint64)(unsafe.Pointer(&words[0])), len(words)/8)
	a.Name = a.String()
	grown := append(s.all(), a)
	s.list.Store(&grown)
	return a
}

// backing returns n bytes of zeros, at a multiple of 8.
func (a *allocation) backing(n int) []byte {
	if n >= mapped {
		b, err := syscall.Mmap(-1, 0, n, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
		if err != nil {
			panic(fmt.Sprintf("sim: %d bytes for %v: %v", n, a, err))
		}
		a.maps = append(a.maps, b)
		return b
	}
	words := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}

// free marks device memory as freed. Work that still uses it harms nobody else:
// the host's pages stay mapped until the machine is closed, though empty.
func (a *allocation) free() {
	a.freed.Store(true)
	for _, b := range a.maps {
		_ = syscall.Madvise(b, syscall.MADV_DONTNEED) // the pages are a matter of economy
	}
}

// pin makes n bytes of pinned memory, with a page after it that nobody may touch.
func (s *space) pin(c *context, n uint64) (*allocation, error) {
	page := uint64(syscall.Getpagesize())
	size := (n + page - 1) / page * page
	b, err := syscall.Mmap(-1, 0, int(size+page), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		return nil, refuse(OutOfMemory, "%d bytes of pinned memory: %v", n, err)
	}
	if err := syscall.Mprotect(b[size:], syscall.PROT_NONE); err != nil {
		panic(fmt.Sprintf("sim: the page after pinned memory: %v", err))
	}
	s.count++
	a := &allocation{number: s.count, ctx: c, host: true, maps: [][]byte{b}}
	a.Bytes = b[:n:n]
	a.Base = uint64(uintptr(unsafe.Pointer(&b[0])))
	a.Name = a.String()
	grown := append(slices.Clone(s.all()), a)
	slices.SortFunc(grown, func(a, b *allocation) int { return int(int64(a.Base) - int64(b.Base)) })
	s.list.Store(&grown)
	return a, nil
}

// unpin gives pinned memory back; nothing may be using it.
func (s *space) unpin(a *allocation) {
	a.freed.Store(true)
	left := slices.DeleteFunc(slices.Clone(s.all()), func(o *allocation) bool { return o == a })
	s.list.Store(&left)
	a.unmap()
}

// unmap gives the host its pages back.
func (a *allocation) unmap() {
	for _, b := range a.maps {
		_ = syscall.Munmap(b)
	}
	a.maps = nil
}

func (s *space) unmap() {
	for _, a := range s.all() {
		a.unmap()
	}
	s.list.Store(nil)
}

// at returns the live allocation that holds the byte at a device address or,
// since there is one address space, of pinned memory.
func (m *Machine) at(addr uint64) (*allocation, error) {
	s := &m.host
	if addr >= deviceBase {
		n := (addr - deviceBase) >> deviceBits
		if n >= uint64(len(m.devices)) {
			return nil, fmt.Errorf("nothing has been allocated at %#x", addr)
		}
		s = &m.devices[n].space
	}
	a := s.before(addr)
	switch {
	case a == nil && s == &m.host:
		return nil, fmt.Errorf("nothing has been allocated at %#x, which could be an address of the host's that is not pinned", addr)
	case a == nil:
		return nil, fmt.Errorf("nothing has been allocated at %#x", addr)
	case addr-a.Base >= uint64(len(a.Bytes)):
		return nil, fmt.Errorf("%#x is %d bytes past the end of %v", addr, addr-a.Base-uint64(len(a.Bytes)), a)
	case a.freed.Load():
		return nil, fmt.Errorf("%#x is in %v, which has been freed", addr, a)
	}
	return a, nil
}

// span is a range of bytes of an allocation.
type span struct {
	*allocation
	off, n uint64
}

// span returns n bytes from a device address, all of one live allocation.
func (m *Machine) span(addr, n uint64) (span, error) {
	a, err := m.at(addr)
	if err != nil {
		return span{}, err
	}
	off := addr - a.Base
	if n > uint64(len(a.Bytes))-off {
		return span{}, fmt.Errorf("%d bytes at %#x reach %d bytes past the end of %v", n, addr, off+n-uint64(len(a.Bytes)), a)
	}
	return span{a, off, n}, nil
}

// bytes returns the bytes, or what is wrong with them by now.
func (s span) bytes() ([]byte, error) {
	if s.freed.Load() {
		return nil, refuse(IllegalAddress, "%v was freed while work that uses it was queued", s.allocation)
	}
	return s.Bytes[s.off : s.off+s.n], nil
}

// mark notes that the bytes have been written. Others may mark their
// neighbours at the same time.
func (s span) mark() {
	if s.Written == nil {
		return
	}
	for i, end := s.off, s.off+s.n; i < end; {
		bits := ^uint64(0) << (i % 64)
		next := i/64*64 + 64
		if next > end {
			bits &= 1<<(end%64) - 1
		}
		atomic.OrUint64(&s.Written[i/64], bits)
		i = next
	}
}

// unwritten returns the offset of the first byte that nobody has written, -1 for none.
func (s span) unwritten() int64 {
	if s.Written == nil {
		return -1
	}
	for i := s.off; i < s.off+s.n; i++ {
		if i%64 == 0 && i+64 <= s.off+s.n && atomic.LoadUint64(&s.Written[i/64]) == ^uint64(0) {
			i += 63
			continue
		}
		if !s.written(i) {
			return int64(i)
		}
	}
	return -1
}

// written tells whether the byte at an offset of the allocation has been written.
func (s span) written(i uint64) bool {
	return s.Written == nil || atomic.LoadUint64(&s.Written[i/64])>>(i%64)&1 == 1
}

// inherit gives the bytes the bits of those that were copied to them.
func (s span) inherit(from span) {
	if s.Written == nil {
		return
	}
	if from.unwritten() < 0 {
		s.mark()
		return
	}
	for i := uint64(0); i < s.n; i++ {
		bit := uint64(1) << ((s.off + i) % 64)
		if word := &s.Written[(s.off+i)/64]; from.written(from.off + i) {
			atomic.OrUint64(word, bit)
		} else {
			atomic.AndUint64(word, ^bit)
		}
	}
}

// memory is what the kernels of a context reach: its device's memory, and what is pinned.
type memory struct{ *context }

// Find implements ptx.Memory.
func (v memory) Find(addr uint64) (*ptx.Region, error) {
	a, err := v.m.at(addr)
	if err != nil {
		return nil, err
	}
	if !a.host && a.ctx.device != v.device {
		return nil, fmt.Errorf("%#x is memory of device %d, which device %d has no access to", addr, a.ctx.device.number, v.device.number)
	}
	return &a.Region, nil
}
