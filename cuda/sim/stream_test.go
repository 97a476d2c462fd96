//go:build sim && cgo && linux

package sim_test

import (
	"bytes"
	"testing"
	"time"
	"unsafe"

	"github.com/gofsdp/gofsdp/cuda/sim"
)

func TestAStreamKeepsItsOrder(t *testing.T) {
	r := ready(t, sim.Config{Seed: 3, Pause: 2 * time.Millisecond})
	a, b := r.alloc(64), r.alloc(64)
	for n := range byte(50) {
		r.ok(r.MemsetD8Async(a, n, 64, r.stream))
		r.ok(r.MemcpyDtoDAsync(b, a, 64, r.stream))
	}
	r.expect(b, bytes.Repeat([]byte{49}, 64))
	r.noFaults()
}

// TestEventsOrderStreams lets two streams take turns on one buffer.
func TestEventsOrderStreams(t *testing.T) {
	r := ready(t, sim.Config{Seed: 5, Pause: 2 * time.Millisecond})
	other := r.newStream()
	mine, its := r.newEvent(), r.newEvent()
	a := r.alloc(1)
	trace := r.alloc(100)
	for n := range byte(50) {
		r.ok(r.MemsetD8Async(a, 2*n, 1, r.stream))
		r.ok(r.EventRecord(mine, r.stream))
		r.ok(r.StreamWaitEvent(other, mine, 0))
		r.ok(r.MemcpyDtoDAsync(trace+uint64(2*n), a, 1, other))
		r.ok(r.MemsetD8Async(a, 2*n+1, 1, other))
		r.ok(r.MemcpyDtoDAsync(trace+uint64(2*n)+1, a, 1, other))
		r.ok(r.EventRecord(its, other))
		r.ok(r.StreamWaitEvent(r.stream, its, 0))
	}
	r.ok(r.StreamSynchronize(other))
	for i, v := range r.download(trace, 100) {
		if int(v) != i {
			t.Fatalf("turn %d saw %d", i, v)
		}
	}
	r.noFaults()
}

// TestStreamsRunAtTheSameTime shows that one stream gets ahead of another that is busy.
func TestStreamsRunAtTheSameTime(t *testing.T) {
	r := ready(t, slow)
	other := r.newStream()
	a := r.alloc(1)
	ahead := false
	for range 20 { // a machine that is busy itself may be late to look
		r.busy(r.stream)
		r.ok(r.MemsetD8Async(a, 1, 1, other))
		r.ok(r.StreamSynchronize(other))
		ahead = r.StreamQuery(r.stream) == int(sim.NotReady)
		r.ok(r.CtxSynchronize())
		r.ok(r.StreamQuery(r.stream))
		if ahead {
			return
		}
	}
	t.Error("the other stream was never ahead")
}

// TestAMissingWaitIsSeen reads in one stream what another has yet to write.
func TestAMissingWaitIsSeen(t *testing.T) {
	// faults tells how many there are after one such read.
	faults := func(waits bool) int {
		r := ready(t, slow)
		defer r.m.Close()
		other, e := r.newStream(), r.newEvent()
		a := r.alloc(4)
		p, _ := r.pinned(4)
		r.busy(r.stream)
		r.ok(r.MemsetD8Async(a, 1, 4, r.stream))
		r.ok(r.EventRecord(e, r.stream))
		if waits {
			r.ok(r.StreamWaitEvent(other, e, 0))
		}
		r.ok(r.MemcpyDtoHAsync(p, a, 4, other))
		r.ok(r.CtxSynchronize())
		return len(r.m.Faults())
	}
	if n := faults(true); n != 0 {
		t.Errorf("%d faults although the stream waits", n)
	}
	if raceDetector {
		t.Skip("the race detector would report the stream that does not wait")
	}
	for range 20 { // a machine that is busy itself may be late to read
		if faults(false) > 0 {
			return
		}
	}
	t.Error("a stream that does not wait was never seen")
}

// TestAWaitIsForWhatTheEventHeldThen would wait for ever if it were for a later record.
func TestAWaitIsForWhatTheEventHeldThen(t *testing.T) {
	r := ready(t, sim.Config{})
	other := r.newStream()
	e, f := r.newEvent(), r.newEvent()
	r.ok(r.StreamWaitEvent(other, e, 0)) // never recorded: nothing to wait for
	r.ok(r.EventRecord(e, r.stream))
	r.ok(r.StreamWaitEvent(other, e, 1))
	r.ok(r.EventRecord(f, other))
	r.ok(r.StreamWaitEvent(r.stream, f, 0))
	r.ok(r.EventRecord(e, r.stream))
	r.ok(r.StreamSynchronize(other))
	r.ok(r.EventSynchronize(e))
	r.ok(r.EventQuery(f))
	r.want(r.StreamWaitEvent(other, e, 2), sim.InvalidValue)
}

func TestAnEventIsReachedOnceTheWorkBeforeItHasEnded(t *testing.T) {
	r := ready(t, slow)
	from, to := r.newEvent(), r.newEvent()
	r.ok(r.EventQuery(from)) // never recorded: nothing is left to do
	r.ok(r.EventSynchronize(from))
	var ms float32
	r.want(r.EventElapsedTime(&ms, from, to), sim.InvalidHandle)
	release := r.hold()
	r.ok(r.EventRecord(from, r.stream))
	r.busy(r.stream)
	r.ok(r.EventRecord(to, r.stream))
	r.want(r.EventQuery(to), sim.NotReady)
	r.want(r.EventElapsedTime(&ms, from, to), sim.NotReady)
	release()
	r.ok(r.EventSynchronize(to))
	r.ok(r.EventQuery(to))
	r.ok(r.EventElapsedTime(&ms, from, to))
	if ms < 20 || ms > 60e3 {
		t.Errorf("%g ms for work of 200 ms or so", ms)
	}
	r.want(r.EventElapsedTime(nil, from, to), sim.InvalidValue)

	var plain, odd uintptr
	r.ok(r.EventCreate(&plain, 2))
	r.ok(r.EventRecord(plain, r.stream))
	r.ok(r.EventSynchronize(plain))
	r.want(r.EventElapsedTime(&ms, from, plain), sim.InvalidHandle)
	r.want(r.EventCreate(&odd, 8), sim.InvalidValue)
	r.want(r.EventCreate(&odd, 4), sim.InvalidValue)
	r.want(r.EventCreate(&odd, 6), sim.NotSupported)
	r.want(r.EventCreate(nil, 0), sim.InvalidValue)
}

func TestADestroyedStreamStillDoesItsWork(t *testing.T) {
	r := ready(t, slow)
	other := r.newStream()
	p, b := r.pinned(4)
	e := r.newEvent()
	copy(b, "----")
	a := r.upload([]byte("done"))
	r.ok(r.StreamSynchronize(r.stream))
	r.busy(other)
	r.ok(r.MemcpyDtoHAsync(p, a, 4, other))
	r.ok(r.EventRecord(e, other))
	r.ok(r.StreamDestroy(other))
	r.want(r.StreamQuery(other), sim.InvalidHandle)
	r.why("has been destroyed")
	r.ok(r.EventDestroy(e))
	r.ok(r.CtxSynchronize())
	if string(b) != "done" {
		t.Errorf("%q", b)
	}
}

func TestDefaultStreamsAreRefusedByName(t *testing.T) {
	r := ready(t, sim.Config{})
	a, e := r.alloc(8), r.newEvent()
	for _, s := range []uintptr{0, 1, 2} {
		for name, result := range map[string]int{
			"fill":        r.MemsetD8Async(a, 0, 8, s),
			"record":      r.EventRecord(e, s),
			"synchronize": r.StreamSynchronize(s),
			"capture":     r.StreamBeginCapture(s, 0),
			"destroy":     r.StreamDestroy(s),
		} {
			if result != int(sim.NotSupported) {
				t.Errorf("%s of stream %d: %v", name, s, sim.Result(result))
			}
		}
		r.why("default stream")
	}
}

// TestWrongHandlesAreRefused passes each call that takes a handle null, one that
// never was, and one of another kind.
func TestWrongHandlesAreRefused(t *testing.T) {
	r := ready(t, sim.Config{})
	a, e := r.alloc(8), r.newEvent()
	p, _ := r.pinned(8)
	var h, module, function uintptr
	var n int32
	var ms float32
	r.ok(r.ModuleLoadDataEx(&module, kernels, nil, 0))
	r.ok(r.ModuleGetFunction(&function, module, "fill"))
	one := [3]uint32{1, 1, 1}
	streams := map[string]func(s uintptr) int{
		"cuMemcpyHtoDAsync":    func(s uintptr) int { return r.MemcpyHtoDAsync(a, p, 8, s) },
		"cuMemcpyDtoHAsync":    func(s uintptr) int { return r.MemcpyDtoHAsync(p, a, 8, s) },
		"cuMemcpyDtoDAsync":    func(s uintptr) int { return r.MemcpyDtoDAsync(a, a, 0, s) },
		"cuMemsetD8Async":      func(s uintptr) int { return r.MemsetD8Async(a, 0, 8, s) },
		"cuMemsetD16Async":     func(s uintptr) int { return r.MemsetD16Async(a, 0, 4, s) },
		"cuMemsetD32Async":     func(s uintptr) int { return r.MemsetD32Async(a, 0, 2, s) },
		"cuStreamDestroy":      r.StreamDestroy,
		"cuStreamQuery":        r.StreamQuery,
		"cuStreamSynchronize":  r.StreamSynchronize,
		"cuStreamWaitEvent":    func(s uintptr) int { return r.StreamWaitEvent(s, e, 0) },
		"cuStreamBeginCapture": func(s uintptr) int { return r.StreamBeginCapture(s, 0) },
		"cuStreamEndCapture":   func(s uintptr) int { return r.StreamEndCapture(s, &h) },
		"cuEventRecord":        func(s uintptr) int { return r.EventRecord(e, s) },
		"cuLaunchKernel": func(s uintptr) int {
			return r.LaunchKernel(function, one, one, 0, s, false, make([]byte, 8), make([]byte, 4), make([]byte, 4))
		},
	}
	others := map[string]func(h uintptr) int{
		"cuStreamWaitEvent":   func(h uintptr) int { return r.StreamWaitEvent(r.stream, h, 0) },
		"cuEventRecord":       func(h uintptr) int { return r.EventRecord(h, r.stream) },
		"cuEventQuery":        r.EventQuery,
		"cuEventSynchronize":  r.EventSynchronize,
		"cuEventElapsedTime":  func(h uintptr) int { return r.EventElapsedTime(&ms, h, e) },
		"its end":             func(h uintptr) int { return r.EventElapsedTime(&ms, e, h) },
		"cuEventDestroy":      r.EventDestroy,
		"cuGraphInstantiate":  func(g uintptr) int { return r.GraphInstantiate(&h, g, 0) },
		"cuGraphLaunch":       func(h uintptr) int { return r.GraphLaunch(h, r.stream) },
		"cuGraphExecDestroy":  r.GraphExecDestroy,
		"cuGraphDestroy":      r.GraphDestroy,
		"cuModuleUnload":      r.ModuleUnload,
		"cuModuleGetFunction": func(m uintptr) int { return r.ModuleGetFunction(&h, m, "fill") },
		"cuFuncGetAttribute":  func(f uintptr) int { return r.FuncGetAttribute(&n, 0, f) },
		"cuFuncSetAttribute":  func(f uintptr) int { return r.FuncSetAttribute(f, 8, 0) },
		"cuLaunchKernel":      func(f uintptr) int { return r.LaunchKernel(f, one, one, 0, r.stream, false) },
	}
	var context uintptr
	r.ok(r.CtxGetCurrent(&context))
	for _, wrong := range []uintptr{context, 0x7777, 0x5177_0000_0000} {
		for name, call := range streams {
			if got := sim.Result(call(wrong)); got != sim.InvalidHandle {
				t.Errorf("%s with stream %#x: %v", name, wrong, got)
			}
		}
	}
	for _, wrong := range []uintptr{0, context, 0x7777} {
		for name, call := range others {
			if got := sim.Result(call(wrong)); got != sim.InvalidHandle {
				t.Errorf("%s with handle %#x: %v", name, wrong, got)
			}
		}
	}
	r.want(r.EventQuery(r.stream), sim.InvalidHandle)
	r.why("is that of a stream")
}

// TestDevicesAreKeptApart: CUDA C++ programming guide, "Multi-device system", on streams and events.
func TestDevicesAreKeptApart(t *testing.T) {
	r := ready(t, sim.Config{Devices: []sim.Device{small(), small()}, Seed: 7, Pause: 10 * time.Millisecond})
	first, e := r.stream, r.newEvent()
	mark := r.newEvent()
	p, b := r.pinned(8)
	copy(b, "before--")
	a := r.upload([]byte("contents"))
	r.busy(first)
	r.ok(r.MemcpyDtoHAsync(p, a, 8, first))
	r.ok(r.EventRecord(e, first))
	r.ok(r.EventRecord(mark, first))
	r.enter(1)
	second, f := r.newStream(), r.newEvent()
	r.want(r.EventRecord(e, second), sim.InvalidHandle)
	r.want(r.EventRecord(f, first), sim.InvalidHandle)
	r.ok(r.StreamWaitEvent(second, e, 0))
	c := r.alloc(8)
	r.ok(r.MemcpyHtoDAsync(c, p, 8, second))
	r.ok(r.EventRecord(f, second))
	r.ok(r.EventSynchronize(f))
	r.ok(r.EventQuery(e))
	r.ok(r.EventSynchronize(mark))
	var ms float32
	r.ok(r.EventElapsedTime(&ms, e, mark))
	r.want(r.EventElapsedTime(&ms, e, f), sim.InvalidHandle)
	got := make([]byte, 8)
	r.ok(r.MemcpyDtoHAsync(unsafe.Pointer(&got[0]), c, 8, second))
	if string(got) != "contents" {
		t.Errorf("%q", got)
	}
	r.noFaults()
}
