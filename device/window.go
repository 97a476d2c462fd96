package device

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// windowAlign is where allocations of a Window begin, in the file and in memory:
// the size of a large page, so that the kernel may use one.
const windowAlign = 2 << 20

// Window is the Shared memory of a host Device: it lies in a file, so that other
// processes of the host can read it through a View. The file is one of
// NewWindowFile's; it goes to peers as an inherited descriptor. A Window belongs
// to the Device of NewHostIn and ends with it; the file stays its caller's.
type Window struct {
	file *os.File

	mu   sync.Mutex
	size int64            // of the file; it only grows
	maps map[Addr]stretch // by address
}

// stretch is a range of a window's file that is mapped.
type stretch struct {
	off   int64
	bytes []byte
}

// NewWindow returns a Window over an empty file of NewWindowFile.
func NewWindow(f *os.File) (*Window, error) {
	size, err := windowSize(f)
	if err != nil {
		return nil, err
	}
	if size != 0 {
		return nil, fmt.Errorf("device: window %s holds %d bytes already; a device needs a window of its own", f.Name(), size)
	}
	return &Window{file: f, maps: map[Addr]stretch{}}, nil
}

// NewHostIn is NewHost with the device's Shared memory in a window, which the
// device closes. No other device may have the same window.
func NewHostIn(w *Window, info Info, open func(stream string) (Executor, error)) Device {
	return &host{info: info, memory: &windowedMemory{window: w}, open: open}
}

// windowedMemory is the memory of a host, of which one kind lies in a window.
type windowedMemory struct {
	hostMemory
	window *Window
}

func (m *windowedMemory) Alloc(size int64, in Memory) (Buffer, error) {
	if in == Shared {
		return m.window.Alloc(size)
	}
	return m.hostMemory.Alloc(size, in)
}

func (m *windowedMemory) Free(b Buffer) error {
	if b.Memory == Shared {
		return m.window.Free(b)
	}
	return m.hostMemory.Free(b)
}

func (m *windowedMemory) Close() error { return errors.Join(m.hostMemory.Close(), m.window.Close()) }

// Alloc reserves zeroed memory at the end of the file; a file that the kernel
// cannot grow is an error.
func (w *Window) Alloc(size int64) (Buffer, error) {
	if size < 1 {
		return Buffer{}, fmt.Errorf("device: a buffer of %d bytes, want at least 1", size)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	off, long := w.size, aligned(size)
	if err := w.file.Truncate(off + long); err != nil {
		return Buffer{}, fmt.Errorf("device: %d bytes more for window %s: %w", long, w.file.Name(), err)
	}
	w.size += long
	bytes, err := mapWindow(w.file, off, long, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return Buffer{}, err
	}
	addr := addrOf(bytes)
	w.maps[addr] = stretch{off, bytes}
	return Buffer{Memory: Shared, Addr: addr, Size: size, Host: bytes[:size:size]}, nil
}

// Free gives the memory back to the system. Peers that still map it see zeros.
func (w *Window) Free(b Buffer) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	s, ok := w.maps[b.Addr]
	if !ok {
		return fmt.Errorf("device: no buffer at address %#x to free", b.Addr)
	}
	delete(w.maps, b.Addr)
	return errors.Join(unmapWindow(s.bytes), punch(w.file, s.off, int64(len(s.bytes))))
}

// Close frees all memory. The file stays open.
func (w *Window) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for addr, s := range w.maps {
		errs = append(errs, unmapWindow(s.bytes), punch(w.file, s.off, int64(len(s.bytes))))
		delete(w.maps, addr)
	}
	return errors.Join(errs...)
}

// Offset returns where in the file size bytes from addr on lie, and false where
// they are not all in one allocation of the window.
func (w *Window) Offset(addr Addr, size int64) (off int64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for start, s := range w.maps {
		if in := int64(addr) - int64(start); in >= 0 && size >= 0 && in+size <= int64(len(s.bytes)) {
			return s.off + in, true
		}
	}
	return 0, false
}

// View is a peer's Window as this process reads it. It follows the window as it
// grows; what it has mapped stays where it is until Close.
type View struct {
	file *os.File

	mu   sync.Mutex
	maps []stretch // side by side, from 0
}

// NewView returns a View of the window in f, which stays its caller's and must
// stay open as long as the View.
func NewView(f *os.File) (*View, error) {
	if _, err := windowSize(f); err != nil {
		return nil, err
	}
	return &View{file: f}, nil
}

// At returns the address of size bytes at off of the window. They can only be
// read. It refuses ranges that the window does not have.
func (v *View) At(off, size int64) (Addr, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	end := int64(0)
	if n := len(v.maps); n > 0 {
		end = v.maps[n-1].off + int64(len(v.maps[n-1].bytes))
	}
	if off >= end {
		grown, err := windowSize(v.file)
		if err != nil {
			return 0, err
		}
		if grown = grown / windowAlign * windowAlign; grown > end {
			bytes, err := mapWindow(v.file, end, grown-end, unix.PROT_READ)
			if err != nil {
				return 0, err
			}
			v.maps = append(v.maps, stretch{end, bytes})
			end = grown
		}
	}
	for _, s := range v.maps {
		if in := off - s.off; off >= 0 && size >= 0 && in >= 0 && in <= int64(len(s.bytes)) && size <= int64(len(s.bytes))-in {
			return addrOf(s.bytes) + Addr(in), nil
		}
	}
	return 0, fmt.Errorf("device: window %s of %d bytes has no %d bytes at %d in one piece", v.file.Name(), end, size, off)
}

// Mapped returns the bytes that the View maps.
func (v *View) Mapped() (n int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range v.maps {
		n += int64(len(s.bytes))
	}
	return n
}

// Close ends all mappings. Nothing may be reading them.
func (v *View) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var errs []error
	for _, s := range v.maps {
		errs = append(errs, unmapWindow(s.bytes))
	}
	v.maps = nil
	return errors.Join(errs...)
}

func aligned(n int64) int64 { return (n + windowAlign - 1) / windowAlign * windowAlign }

// mapWindow maps a range of f, both ends aligned, at an aligned address: it takes
// a larger range of addresses and keeps the part that fits.
func mapWindow(f *os.File, off, size int64, prot int) ([]byte, error) {
	fail := func(err error) ([]byte, error) {
		return nil, fmt.Errorf("device: mapping %d bytes at %d of window %s: %w", size, off, f.Name(), err)
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return fail(err)
	}
	reserved, err := unix.MmapPtr(-1, 0, nil, uintptr(size+windowAlign), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fail(err)
	}
	before := uintptr(-int64(uintptr(reserved)) & (windowAlign - 1))
	at := unsafe.Add(reserved, before)
	var mapErr error
	err = conn.Control(func(fd uintptr) {
		_, mapErr = unix.MmapPtr(int(fd), off, at, uintptr(size), prot, unix.MAP_SHARED|unix.MAP_FIXED)
	})
	if err = errors.Join(err, mapErr); err != nil {
		return fail(errors.Join(err, unix.MunmapPtr(reserved, uintptr(size+windowAlign))))
	}
	if before > 0 {
		err = unix.MunmapPtr(reserved, before)
	}
	if after := windowAlign - before; after > 0 {
		err = errors.Join(err, unix.MunmapPtr(unsafe.Add(at, size), after))
	}
	if err != nil {
		return fail(err)
	}
	bytes := unsafe.Slice((*byte)(at), size)
	adviseHugePages(bytes)
	return bytes, nil
}

func unmapWindow(b []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b)))
}
