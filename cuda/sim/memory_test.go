//go:build sim && cgo && linux

package sim_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/gofsdp/gofsdp/cuda/sim"
)

func TestMemoryRunsOut(t *testing.T) {
	d := small()
	d.Taken = 4 << 20
	r := ready(t, sim.Config{Devices: []sim.Device{d, d}})
	var free, total, address uint64
	info := func(want uint64) {
		t.Helper()
		r.ok(r.MemGetInfo(&free, &total))
		if free != want || total != 64<<20 {
			t.Fatalf("%d bytes are free of %d, want %d", free, total, want)
		}
	}
	info(60 << 20)
	r.want(r.MemAlloc(&address, 60<<20+1), sim.OutOfMemory)
	r.want(r.MemAlloc(&address, 1<<63), sim.OutOfMemory)
	r.want(r.MemAlloc(&address, ^uint64(0)), sim.OutOfMemory)
	r.want(r.MemAlloc(&address, 0), sim.InvalidValue)
	r.want(r.MemAlloc(nil, 16), sim.InvalidValue)
	r.ok(r.MemAlloc(&address, 60<<20))
	info(0)
	r.enter(1)
	info(60 << 20)
	var other uint64
	r.ok(r.MemAlloc(&other, 60<<20))
	r.want(r.MemAlloc(&other, 1), sim.OutOfMemory)
	r.enter(0)
	r.want(r.MemAlloc(&other, 1), sim.OutOfMemory)
	r.ok(r.MemFree(address))
	info(60 << 20)
	r.want(r.MemGetInfo(nil, &total), sim.InvalidValue)
	r.want(r.MemGetInfo(&free, nil), sim.InvalidValue)
}

func TestMemoryAndCallsOfEachDeviceAreCounted(t *testing.T) {
	d := small()
	d.Taken = 4 << 20
	r := ready(t, sim.Config{Devices: []sim.Device{d, d}})
	a := r.alloc(1000)
	r.enter(1)
	r.ok(r.MemFree(r.alloc(1 << 20)))
	r.enter(0)
	r.alloc(1)
	r.want(r.MemAlloc(nil, 1), sim.InvalidValue)
	r.ok(r.MemFree(a))
	for n, want := range [][2]uint64{{4<<20 + 512, 4<<20 + 1536}, {4 << 20, 5 << 20}} {
		if used, most := r.m.Memory(n); used != want[0] || most != want[1] {
			t.Errorf("device %d: %d bytes are used, %d at the most, want %d", n, used, most, want)
		}
	}
	for n, want := range []map[string]int{{"cuMemAlloc": 3, "cuMemFree": 1}, {"cuMemAlloc": 1, "cuMemFree": 1}} {
		got := r.m.Calls(n)
		for call, times := range want {
			if got[call] != times {
				t.Errorf("device %d: %s was called %d times, want %d", n, call, got[call], times)
			}
		}
	}
}

func TestAllocationsStandApart(t *testing.T) {
	r := ready(t, sim.Config{})
	var all []uint64
	for n := range uint64(20) {
		a := r.alloc(n + 1)
		if a%256 != 0 || a%512 == 0 {
			t.Errorf("%#x is aligned to less than 256, or to more", a)
		}
		if len(all) > 0 && a-all[len(all)-1] < 64<<10 {
			t.Errorf("%#x is next to %#x", a, all[len(all)-1])
		}
		if slices.Contains(all, a) {
			t.Errorf("%#x comes again", a)
		}
		all = append(all, a)
		if n%2 == 0 {
			r.ok(r.MemFree(a))
		}
	}
}

// TestLargeMemoryCostsNothingUntilItIsUsed allocates more than the machine of
// the test is asked to have.
func TestLargeMemoryCostsNothingUntilItIsUsed(t *testing.T) {
	r := ready(t, sim.Config{Devices: []sim.Device{sim.H200()}})
	const size = 16 << 30
	var all []uint64
	for range 3 {
		all = append(all, r.alloc(size))
	}
	for _, a := range all {
		r.ok(r.MemsetD8Async(a+size-1000, 3, 1000, r.stream))
		r.expect(a+size-1000, bytes.Repeat([]byte{3}, 1000))
		r.ok(r.MemFree(a))
	}
	r.want(r.MemsetD8Async(all[0], 3, 1, r.stream), sim.InvalidValue)
	r.noFaults()
}

func TestOnlyAnAllocationIsFreed(t *testing.T) {
	r := ready(t, sim.Config{})
	a := r.alloc(1000)
	host, _ := r.pinned(1000)
	for _, c := range []struct {
		address uint64
		why     string
	}{
		{0, "nothing has been allocated"},
		{a + 1, "no address that cuMemAlloc returned"},
		{a + 1000, "0 bytes past the end"},
		{a - 1, "nothing has been allocated"},
		{1<<52 + 1<<44*9, "nothing has been allocated"},
		{uint64(uintptr(host)), "no address that cuMemAlloc returned"},
	} {
		r.want(r.MemFree(c.address), sim.InvalidValue)
		r.why(c.why)
	}
	r.ok(r.MemFree(a))
	r.want(r.MemFree(a), sim.InvalidValue)
	r.why("has been freed")
}

func TestPinnedMemoryIsTheHostsAndTheDevices(t *testing.T) {
	r := ready(t, sim.Config{HostMemory: 1 << 20})
	var p unsafe.Pointer
	r.want(r.MemHostAlloc(&p, 0, 0), sim.InvalidValue)
	r.want(r.MemHostAlloc(&p, 16, 8), sim.InvalidValue)
	r.want(r.MemHostAlloc(nil, 16, 0), sim.InvalidValue)
	r.want(r.MemHostAlloc(&p, 1<<20+1, 0), sim.OutOfMemory)
	r.want(r.MemHostAlloc(&p, 1<<62, 0), sim.OutOfMemory)
	r.ok(r.MemHostAlloc(&p, 1<<20, 7))
	r.want(r.MemHostAlloc(new(unsafe.Pointer), 1, 0), sim.OutOfMemory)

	b := unsafe.Slice((*byte)(p), 1<<20)
	copy(b, "from the host")
	var address uint64
	r.want(r.MemHostGetDevicePointer(&address, p, 1), sim.InvalidValue)
	r.want(r.MemHostGetDevicePointer(&address, unsafe.Pointer(&address), 0), sim.InvalidValue)
	r.want(r.MemHostGetDevicePointer(nil, p, 0), sim.InvalidValue)
	r.ok(r.MemHostGetDevicePointer(&address, p, 0))
	device := r.alloc(13)
	r.ok(r.MemcpyDtoDAsync(device, address, 13, r.stream))
	r.expect(device, []byte("from the host"))
	r.ok(r.MemsetD8Async(address, 'x', 4, r.stream))
	r.ok(r.StreamSynchronize(r.stream))
	if string(b[:13]) != "xxxx the host" {
		t.Errorf("pinned memory after a device's fill: %q", b[:13])
	}

	r.want(r.MemFreeHost(unsafe.Add(p, 1)), sim.InvalidValue)
	r.want(r.MemFreeHost(nil), sim.InvalidValue)
	r.ok(r.MemFreeHost(p))
	r.want(r.MemFreeHost(p), sim.InvalidValue)
	r.want(r.MemHostGetDevicePointer(&address, p, 0), sim.InvalidValue)
	r.ok(r.MemHostAlloc(&p, 1<<20, 0))
	r.noFaults()
}

func TestPinnedMemoryIsFreedAfterTheWorkThatUsesIt(t *testing.T) {
	r := ready(t, sim.Config{})
	p, b := r.pinned(64)
	copy(b, bytes.Repeat([]byte{5}, 64))
	device := r.alloc(64)
	time.AfterFunc(20*time.Millisecond, r.hold())
	r.ok(r.MemcpyHtoDAsync(device, p, 64, r.stream))
	r.ok(r.MemFreeHost(p))
	r.expect(device, bytes.Repeat([]byte{5}, 64))
	r.noFaults()
}

func TestCopiesCheckTheRangesOfBothSides(t *testing.T) {
	r := ready(t, sim.Config{})
	a, b := r.alloc(100), r.alloc(100)
	gone := r.alloc(100)
	r.ok(r.MemFree(gone))
	p, _ := r.pinned(100)
	own := make([]byte, 200)
	pageable := unsafe.Pointer(&own[0])
	for name, result := range map[string]int{
		"to the device, past its end":        r.MemcpyHtoDAsync(a, pageable, 101, r.stream),
		"to the device, from inside":         r.MemcpyHtoDAsync(a+60, pageable, 41, r.stream),
		"to freed memory":                    r.MemcpyHtoDAsync(gone, pageable, 8, r.stream),
		"to nothing":                         r.MemcpyHtoDAsync(0, pageable, 8, r.stream),
		"to a pageable address":              r.MemcpyHtoDAsync(uint64(uintptr(pageable)), pageable, 8, r.stream),
		"from pinned memory, past its end":   r.MemcpyHtoDAsync(a, unsafe.Add(p, 50), 51, r.stream),
		"from a null pointer":                r.MemcpyHtoDAsync(a, nil, 8, r.stream),
		"from the device, past its end":      r.MemcpyDtoHAsync(pageable, a, 101, r.stream),
		"from freed memory":                  r.MemcpyDtoHAsync(pageable, gone, 8, r.stream),
		"to pinned memory, past its end":     r.MemcpyDtoHAsync(unsafe.Add(p, 99), a, 2, r.stream),
		"to a null pointer":                  r.MemcpyDtoHAsync(nil, a, 8, r.stream),
		"on the device, to past its end":     r.MemcpyDtoDAsync(a+1, b, 100, r.stream),
		"on the device, from past its end":   r.MemcpyDtoDAsync(a, b+1, 100, r.stream),
		"on the device, over a huge range":   r.MemcpyDtoDAsync(a, b, 1<<63, r.stream),
		"a fill past the end":                r.MemsetD8Async(a, 0, 101, r.stream),
		"a fill of freed memory":             r.MemsetD8Async(gone, 0, 1, r.stream),
		"a fill of 16 bits, not aligned":     r.MemsetD16Async(a+1, 0, 1, r.stream),
		"a fill of 16 bits, past the end":    r.MemsetD16Async(a, 0, 51, r.stream),
		"a fill of 32 bits, not aligned":     r.MemsetD32Async(a+2, 0, 1, r.stream),
		"a fill of 32 bits, past the end":    r.MemsetD32Async(a, 0, 26, r.stream),
		"a fill whose bytes are beyond 2^64": r.MemsetD32Async(a, 0, 1<<62, r.stream),
	} {
		if result != int(sim.InvalidValue) {
			t.Errorf("%s: %v", name, sim.Result(result))
		}
	}
	// No bytes are none too many, wherever they are.
	r.ok(r.MemcpyHtoDAsync(0, nil, 0, r.stream))
	r.ok(r.MemcpyDtoHAsync(nil, 0, 0, r.stream))
	r.ok(r.MemcpyDtoDAsync(0, 0, 0, r.stream))
	r.ok(r.MemsetD8Async(0, 0, 0, r.stream))
	r.noFaults()
}

// TestADeviceAddressIsNoneOfTheHosts passes one as a pointer, as a mistake would.
func TestADeviceAddressIsNoneOfTheHosts(t *testing.T) {
	r := ready(t, sim.Config{})
	a := r.alloc(100)
	asPointer := *(*unsafe.Pointer)(unsafe.Pointer(&a))
	r.want(r.MemcpyHtoDAsync(a, asPointer, 8, r.stream), sim.InvalidValue)
	r.why("none of the host's")
	r.want(r.MemcpyDtoHAsync(asPointer, a, 8, r.stream), sim.InvalidValue)
}

func TestFillsRepeatAValue(t *testing.T) {
	r := ready(t, sim.Config{})
	a := r.alloc(24)
	r.ok(r.MemsetD8Async(a, 0x11, 24, r.stream))
	r.ok(r.MemsetD16Async(a+2, 0x2233, 3, r.stream))
	r.ok(r.MemsetD32Async(a+12, 0x44556677, 2, r.stream))
	r.expect(a, []byte{
		0x11, 0x11, 0x33, 0x22, 0x33, 0x22, 0x33, 0x22, 0x11, 0x11, 0x11, 0x11,
		0x77, 0x66, 0x55, 0x44, 0x77, 0x66, 0x55, 0x44, 0x11, 0x11, 0x11, 0x11,
	})
	r.noFaults()
}

func TestACopyFromPageableMemoryHasReadItWhenItReturns(t *testing.T) {
	r := ready(t, sim.Config{})
	a := r.alloc(8)
	own := []byte("previous")
	release := r.hold()
	r.ok(r.MemcpyHtoDAsync(a, unsafe.Pointer(&own[0]), 8, r.stream))
	copy(own, "tampered")
	release()
	r.expect(a, []byte("previous"))
}

func TestACopyToPageableMemoryHasEndedWhenItReturns(t *testing.T) {
	r := ready(t, sim.Config{})
	a := r.upload([]byte("contents"))
	r.ok(r.StreamSynchronize(r.stream))
	time.AfterFunc(20*time.Millisecond, r.hold())
	own := make([]byte, 8)
	r.ok(r.MemcpyDtoHAsync(unsafe.Pointer(&own[0]), a, 8, r.stream))
	if string(own) != "contents" {
		t.Errorf("%q", own)
	}
	r.ok(r.StreamQuery(r.stream))
}

func TestACopyOfPinnedMemoryHappensInTheStream(t *testing.T) {
	r := ready(t, sim.Config{})
	p, b := r.pinned(8)
	a := r.alloc(8)
	copy(b, "previous")
	release := r.hold()
	r.ok(r.MemcpyHtoDAsync(a, p, 8, r.stream))
	r.want(r.StreamQuery(r.stream), sim.NotReady)
	copy(b, "tampered")
	release()
	r.expect(a, []byte("tampered"))
	q, c := r.pinned(8)
	copy(c, "untouched")
	release = r.hold()
	r.ok(r.MemcpyDtoHAsync(q, a, 8, r.stream))
	if string(c) != "untouche" {
		t.Errorf("%q before the copy", c)
	}
	release()
	r.ok(r.StreamSynchronize(r.stream))
	if string(c) != "tampered" {
		t.Errorf("%q", c)
	}
}

func TestNewMemoryIsPoisonedAndWhatNobodyWroteIsReported(t *testing.T) {
	r := ready(t, sim.Config{})
	a, b := r.alloc(300), r.alloc(300)
	if got := r.download(a, 300); !bytes.Equal(got, bytes.Repeat([]byte{0xff}, 300)) {
		t.Errorf("new memory: %x", got)
	}
	r.fault(sim.Success, "byte 0 of allocation 1 of 300 bytes")
	r.ok(r.MemsetD8Async(a, 1, 130, r.stream))
	r.download(a, 130)
	if n := len(r.m.Faults()); n != 1 {
		t.Errorf("%d faults, want the one before", n)
	}
	r.download(a+100, 200)
	r.fault(sim.Success, "byte 130 of allocation 1")

	// A copy carries along what has been written.
	r.ok(r.MemsetD8Async(b, 2, 300, r.stream))
	r.ok(r.MemcpyDtoDAsync(b+3, a+120, 64, r.stream))
	r.download(b, 13)
	if n := len(r.m.Faults()); n != 2 {
		t.Errorf("%d faults, want the two before", n)
	}
	r.download(b, 300)
	r.fault(sim.Success, "byte 13 of allocation 2")
	r.ok(r.StreamSynchronize(r.stream))
}

func TestCopiesThatOverlapAreReported(t *testing.T) {
	r := ready(t, sim.Config{})
	a := r.upload([]byte("0123456789"))
	r.ok(r.MemcpyDtoDAsync(a, a+5, 5, r.stream))
	r.noFaults()
	r.ok(r.MemcpyDtoDAsync(a, a+4, 5, r.stream))
	r.fault(sim.Success, "overlap")
}

func TestMemoryThatIsFreedTooEarlyBreaksTheContext(t *testing.T) {
	r := ready(t, sim.Config{})
	a, other := r.alloc(8), r.upload([]byte("contents"))
	p, b := r.pinned(8)
	copy(b, "previous")
	release := r.hold()
	r.ok(r.MemsetD8Async(a, 0, 8, r.stream))
	r.ok(r.MemcpyDtoHAsync(p, other, 8, r.stream))
	r.ok(r.MemFree(a))
	release()
	r.m.Wait()
	if string(b) != "previous" {
		t.Errorf("%q: work was done after the fault", b)
	}
	f := r.fault(sim.IllegalAddress, "was freed while work that uses it was queued")
	if f.Call != "cuMemsetD8Async" || f.Device != 0 || f.Stream == "" {
		t.Errorf("fault: %+v", f)
	}
	// Every later call says so, and nothing is a leak that nobody can give back.
	var h uintptr
	var u uint64
	for name, result := range map[string]int{
		"alloc":       r.MemAlloc(&u, 8),
		"fill":        r.MemsetD8Async(a, 0, 1, r.stream),
		"synchronize": r.StreamSynchronize(r.stream),
		"query":       r.StreamQuery(r.stream),
		"context":     r.CtxSynchronize(),
		"event":       r.EventCreate(&h, 0),
		"module":      r.ModuleLoadDataEx(&h, kernels, nil, 0),
	} {
		if result != int(sim.IllegalAddress) {
			t.Errorf("%s: %v", name, sim.Result(result))
		}
	}
	if leaks := r.m.Leaks(); len(leaks) > 0 {
		t.Errorf("leaks: %q", leaks)
	}
	// A new context is whole.
	r.ok(r.DevicePrimaryCtxRelease(0))
	r.enter(0)
	r.ok(r.CtxSynchronize())
}

func TestMemoryOfAnotherDeviceIsCopiedThroughItsAddress(t *testing.T) {
	r := ready(t, sim.Config{Devices: []sim.Device{small(), small()}})
	a := r.upload([]byte("contents"))
	r.ok(r.StreamSynchronize(r.stream))
	r.enter(1)
	r.stream = r.newStream()
	b := r.alloc(8)
	r.ok(r.MemcpyDtoDAsync(b, a, 8, r.stream))
	r.expect(b, []byte("contents"))
	r.ok(r.MemFree(a))
	r.noFaults()
}

// TestRandomCopiesEqualAModel compares memory with slices of Go's after random
// copies and fills, by one stream a thread.
func TestRandomCopiesEqualAModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := ready(t, sim.Config{Seed: seed, Pause: 100 * time.Microsecond})
	var context uintptr
	r.ok(r.CtxGetCurrent(&context))
	const threads = 4
	errs := make(chan error, threads)
	for n := range threads {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			r.CtxSetCurrent(context)
			errs <- r.random(rand.New(rand.NewPCG(seed, uint64(n))))
		}()
	}
	for range threads {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	r.noFaults()
}

// random does random copies and fills, and says where memory differs from what it should be.
func (r *rig) random(rnd *rand.Rand) error {
	const size = 1000
	var stream uintptr
	results := r.StreamCreateWithPriority(&stream, 1, 0)
	var memory [3]uint64
	var model [3][]byte
	for i := range memory {
		results |= r.MemAlloc(&memory[i], size)
		results |= r.MemsetD8Async(memory[i], byte(i), size, stream)
		model[i] = bytes.Repeat([]byte{byte(i)}, size)
	}
	for range 300 {
		i, j := rnd.IntN(3), rnd.IntN(3)
		n := rnd.IntN(size / 2)
		from, to := rnd.IntN(size-n), rnd.IntN(size-n)
		switch rnd.IntN(4) {
		case 0:
			if i != j {
				results |= r.MemcpyDtoDAsync(memory[i]+uint64(to), memory[j]+uint64(from), uint64(n), stream)
				copy(model[i][to:to+n], model[j][from:])
			}
		case 1:
			results |= r.MemsetD8Async(memory[i]+uint64(to), byte(n), uint64(n), stream)
			copy(model[i][to:], bytes.Repeat([]byte{byte(n)}, n))
		case 2:
			own := make([]byte, n+1)
			for k := range own {
				own[k] = byte(rnd.Uint32())
			}
			results |= r.MemcpyHtoDAsync(memory[i]+uint64(to), unsafe.Pointer(&own[0]), uint64(n), stream)
			copy(model[i][to:to+n], own)
		case 3:
			own := make([]byte, n+1)
			results |= r.MemcpyDtoHAsync(unsafe.Pointer(&own[0]), memory[i]+uint64(from), uint64(n), stream)
			if !bytes.Equal(own[:n], model[i][from:from+n]) {
				return fmt.Errorf("%d bytes from %d of buffer %d differ", n, from, i)
			}
		}
	}
	for i := range memory {
		own := make([]byte, size)
		results |= r.MemcpyDtoHAsync(unsafe.Pointer(&own[0]), memory[i], size, stream)
		if !bytes.Equal(own, model[i]) {
			return fmt.Errorf("buffer %d differs at the end", i)
		}
	}
	if results != 0 {
		return fmt.Errorf("a call was refused: %q", r.m.Refused())
	}
	return nil
}
