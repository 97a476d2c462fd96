//go:build sim && cgo && linux

package sim_test

import (
	"bytes"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/gofsdp/gofsdp/cuda/sim"
)

// captured returns an executable of what record does, and gives the graph back.
func (r *rig) captured(record func()) (executable uintptr) {
	r.Helper()
	var graph uintptr
	r.ok(r.StreamBeginCapture(r.stream, 1))
	record()
	r.ok(r.StreamEndCapture(r.stream, &graph))
	r.ok(r.GraphInstantiate(&executable, graph, 0))
	r.ok(r.GraphDestroy(graph))
	return executable
}

func TestACaptureRunsNothingAndAGraphRunsItEachTime(t *testing.T) {
	r := ready(t, sim.Config{Seed: 1, Pause: time.Millisecond})
	a, b := r.upload([]byte{1, 1, 1, 1}), r.alloc(4)
	r.ok(r.MemsetD8Async(b, 0, 4, r.stream))
	x := r.captured(func() {
		r.ok(r.MemcpyDtoDAsync(b, a, 4, r.stream))
		r.ok(r.MemsetD8Async(a, 9, 2, r.stream))
	})
	r.expect(b, []byte{0, 0, 0, 0})
	r.ok(r.GraphLaunch(x, r.stream))
	r.expect(b, []byte{1, 1, 1, 1})
	r.ok(r.GraphLaunch(x, r.stream))
	r.expect(b, []byte{9, 9, 1, 1})
	r.ok(r.GraphLaunch(x, r.stream))
	r.ok(r.GraphExecDestroy(x)) // what was launched still runs
	r.ok(r.CtxSynchronize())
	r.want(r.GraphLaunch(x, r.stream), sim.InvalidHandle)
	r.noFaults()
}

// TestForksAndJoinsAreKept captures two chains over two streams, of which the
// second needs the first half of the first, and the end needs both.
func TestForksAndJoinsAreKept(t *testing.T) {
	r := ready(t, sim.Config{Seed: 11, Pause: 3 * time.Millisecond})
	other := r.newStream()
	fork, join := r.newEvent(), r.newEvent()
	a := r.alloc(4)
	x := r.captured(func() {
		r.ok(r.MemsetD8Async(a, 1, 4, r.stream))
		r.ok(r.EventRecord(fork, r.stream))
		r.ok(r.StreamWaitEvent(other, fork, 0))
		r.ok(r.MemcpyDtoDAsync(a+2, a, 1, other))
		r.ok(r.MemsetD8Async(a, 2, 1, other))
		r.ok(r.MemsetD8Async(a+1, 3, 1, r.stream))
		r.ok(r.EventRecord(join, other))
		r.ok(r.StreamWaitEvent(r.stream, join, 0))
		r.ok(r.StreamWaitEvent(r.stream, join, 0))
		r.ok(r.MemcpyDtoDAsync(a+3, a, 1, r.stream))
	})
	for range 20 {
		r.ok(r.MemsetD8Async(a, 0, 4, r.stream))
		r.ok(r.GraphLaunch(x, r.stream))
		r.expect(a, []byte{2, 3, 1, 2})
	}
	// Both streams are out of the capture.
	r.ok(r.StreamQuery(other))
	r.ok(r.StreamQuery(r.stream))
	r.noFaults()
}

// TestLaunchesOfOneExecutableFollowEachOther would see the other launch's value in b if they did not.
func TestLaunchesOfOneExecutableFollowEachOther(t *testing.T) {
	r := ready(t, sim.Config{Seed: 2, Pause: 2 * time.Millisecond})
	other := r.newStream()
	a, b := r.alloc(1), r.alloc(16)
	x := r.captured(func() {
		r.ok(r.MemsetD8Async(a, 5, 1, r.stream))
		for i := range uint64(16) {
			r.ok(r.MemcpyDtoDAsync(b+i, a, 1, r.stream))
		}
		r.ok(r.MemsetD8Async(a, 6, 1, r.stream))
	})
	for range 20 {
		r.ok(r.GraphLaunch(x, r.stream))
		r.ok(r.GraphLaunch(x, other))
		r.ok(r.CtxSynchronize())
		r.expect(b, bytes.Repeat([]byte{5}, 16))
	}
	r.noFaults()
}

func TestAGraphLaunchedWhileCapturingIsPartOfTheGraph(t *testing.T) {
	r := ready(t, sim.Config{})
	a := r.alloc(2)
	inner := r.captured(func() { r.ok(r.MemsetD8Async(a, 5, 1, r.stream)) })
	outer := r.captured(func() {
		r.ok(r.GraphLaunch(inner, r.stream))
		r.ok(r.MemcpyDtoDAsync(a+1, a, 1, r.stream))
	})
	r.ok(r.GraphLaunch(outer, r.stream))
	r.expect(a, []byte{5, 5})
	r.noFaults()
}

func TestPinnedMemoryIsReadWhenAGraphRuns(t *testing.T) {
	r := ready(t, sim.Config{})
	p, b := r.pinned(4)
	a := r.alloc(4)
	x := r.captured(func() { r.ok(r.MemcpyHtoDAsync(a, p, 4, r.stream)) })
	for _, text := range []string{"once", "more"} {
		copy(b, text)
		r.ok(r.GraphLaunch(x, r.stream))
		r.expect(a, []byte(text))
	}
}

func TestAGraphThatUsesFreedMemoryBreaksTheContext(t *testing.T) {
	r := ready(t, sim.Config{})
	a := r.alloc(4)
	x := r.captured(func() { r.ok(r.MemsetD8Async(a, 0, 4, r.stream)) })
	r.ok(r.MemFree(a))
	r.ok(r.GraphLaunch(x, r.stream))
	f := r.fault(sim.IllegalAddress, "was freed")
	if f.Call != "cuMemsetD8Async" {
		t.Errorf("fault: %+v", f)
	}
	r.want(r.GraphLaunch(x, r.stream), sim.IllegalAddress)
}

func TestGraphsCheckTheirArguments(t *testing.T) {
	r := ready(t, sim.Config{Devices: []sim.Device{small(), small()}})
	var graph, x uintptr
	r.want(r.StreamBeginCapture(r.stream, 3), sim.InvalidValue)
	r.want(r.StreamBeginCapture(r.stream, -1), sim.InvalidValue)
	r.want(r.StreamEndCapture(r.stream, &graph), sim.IllegalState)
	r.ok(r.StreamBeginCapture(r.stream, 0))
	r.want(r.StreamBeginCapture(r.stream, 0), sim.IllegalState)
	r.want(r.StreamEndCapture(r.stream, nil), sim.InvalidValue)
	r.ok(r.StreamEndCapture(r.stream, &graph))
	r.want(r.GraphInstantiate(&x, graph, 4), sim.InvalidValue)
	r.want(r.GraphInstantiate(nil, graph, 0), sim.InvalidValue)
	r.ok(r.GraphInstantiate(&x, graph, 9))
	r.ok(r.GraphLaunch(x, r.stream)) // of no nodes
	r.ok(r.StreamSynchronize(r.stream))
	r.enter(1)
	r.want(r.GraphLaunch(x, r.newStream()), sim.InvalidHandle)
	r.ok(r.GraphDestroy(graph))
	r.want(r.GraphDestroy(graph), sim.InvalidHandle)
	r.ok(r.GraphExecDestroy(x))
	r.want(r.GraphExecDestroy(x), sim.InvalidHandle)
}

// TestWhatCannotBeCapturedInvalidatesTheCapture: CUDA C++ programming guide,
// "Prohibited and unhandled operations" and "Invalidation" of stream capture.
func TestWhatCannotBeCapturedInvalidatesTheCapture(t *testing.T) {
	for name, c := range map[string]struct {
		mode int
		do   func(r *rig, a uint64, e uintptr) int
		want sim.Result
	}{
		"waiting for the stream":        {2, func(r *rig, _ uint64, _ uintptr) int { return r.StreamSynchronize(r.stream) }, sim.StreamCaptureUnsupported},
		"asking the stream":             {2, func(r *rig, _ uint64, _ uintptr) int { return r.StreamQuery(r.stream) }, sim.StreamCaptureUnsupported},
		"destroying the stream":         {2, func(r *rig, _ uint64, _ uintptr) int { return r.StreamDestroy(r.stream) }, sim.StreamCaptureUnsupported},
		"waiting for the context":       {2, func(r *rig, _ uint64, _ uintptr) int { return r.CtxSynchronize() }, sim.StreamCaptureUnsupported},
		"allocating":                    {0, func(r *rig, a uint64, _ uintptr) int { return r.MemAlloc(&a, 16) }, sim.StreamCaptureUnsupported},
		"allocating on the same thread": {1, func(r *rig, a uint64, _ uintptr) int { return r.MemAlloc(&a, 16) }, sim.StreamCaptureUnsupported},
		"freeing":                       {1, func(r *rig, a uint64, _ uintptr) int { return r.MemFree(a) }, sim.StreamCaptureUnsupported},
		"pinning": {1, func(r *rig, _ uint64, _ uintptr) int {
			var p unsafe.Pointer
			return r.MemHostAlloc(&p, 16, 0)
		}, sim.StreamCaptureUnsupported},
		"unpinning": {1, func(r *rig, _ uint64, _ uintptr) int { return r.MemFreeHost(nil) }, sim.StreamCaptureUnsupported},
		"loading a module": {1, func(r *rig, _ uint64, _ uintptr) int {
			var h uintptr
			return r.ModuleLoadDataEx(&h, kernels, nil, 0)
		}, sim.StreamCaptureUnsupported},
		"asking an event from before": {1, func(r *rig, _ uint64, e uintptr) int { return r.EventQuery(e) }, sim.StreamCaptureUnsupported},
		"copying from pageable memory": {2, func(r *rig, a uint64, _ uintptr) int {
			var b [4]byte
			return r.MemcpyHtoDAsync(a, unsafe.Pointer(&b), 4, r.stream)
		}, sim.StreamCaptureUnsupported},
		"copying to pageable memory": {2, func(r *rig, a uint64, _ uintptr) int {
			var b [4]byte
			return r.MemcpyDtoHAsync(unsafe.Pointer(&b), a, 4, r.stream)
		}, sim.StreamCaptureUnsupported},
		"waiting for an event from before": {2, func(r *rig, _ uint64, e uintptr) int { return r.StreamWaitEvent(r.stream, e, 0) }, sim.StreamCaptureIsolation},
		"asking an event of the capture": {2, func(r *rig, _ uint64, e uintptr) int {
			r.ok(r.EventRecord(e, r.stream))
			return r.EventQuery(e)
		}, sim.CapturedEvent},
		"waiting on the host for an event of the capture": {2, func(r *rig, _ uint64, e uintptr) int {
			r.ok(r.EventRecord(e, r.stream))
			return r.EventSynchronize(e)
		}, sim.CapturedEvent},
	} {
		t.Run(name, func(t *testing.T) {
			r := ready(t, sim.Config{})
			a, e := r.alloc(4), r.newEvent()
			r.ok(r.EventRecord(e, r.stream))
			r.ok(r.StreamBeginCapture(r.stream, c.mode))
			r.ok(r.MemsetD8Async(a, 1, 4, r.stream))
			r.want(c.do(r, a, e), c.want)
			r.want(r.MemsetD8Async(a, 1, 4, r.stream), sim.StreamCaptureInvalidated)
			r.want(r.EventRecord(e, r.stream), sim.StreamCaptureInvalidated)
			graph := uintptr(1)
			r.want(r.StreamEndCapture(r.stream, &graph), sim.StreamCaptureInvalidated)
			if graph != 0 {
				t.Errorf("the graph is %#x", graph)
			}
			// The stream is itself again.
			r.ok(r.MemsetD8Async(a, 1, 4, r.stream))
			r.ok(r.StreamSynchronize(r.stream))
		})
	}
}

func TestARelaxedCaptureLetsUnsafeCallsPass(t *testing.T) {
	r := ready(t, sim.Config{})
	other := r.newStream()
	var graph uintptr
	r.ok(r.StreamBeginCapture(r.stream, 2))
	a := r.alloc(4)
	r.ok(r.StreamSynchronize(other))
	r.ok(r.MemFree(a))
	r.ok(r.StreamEndCapture(r.stream, &graph))
}

// TestACaptureForbidsByItsModeWhatOtherThreadsMayDo also ends captures on the wrong thread.
func TestACaptureForbidsByItsModeWhatOtherThreadsMayDo(t *testing.T) {
	for mode, want := range []struct{ alloc, end, own sim.Result }{
		{sim.StreamCaptureUnsupported, sim.StreamCaptureWrongThread, sim.StreamCaptureInvalidated},
		{sim.Success, sim.StreamCaptureWrongThread, sim.Success},
		{sim.Success, sim.Success, sim.IllegalState},
	} {
		r := ready(t, sim.Config{})
		var context, graph uintptr
		r.ok(r.CtxGetCurrent(&context))
		r.ok(r.StreamBeginCapture(r.stream, mode))
		results := make(chan [2]int)
		go func() {
			runtime.LockOSThread() // and the thread ends with the goroutine
			var address uint64
			var graph uintptr
			r.CtxSetCurrent(context)
			results <- [2]int{r.MemAlloc(&address, 16), r.StreamEndCapture(r.stream, &graph)}
		}()
		if got := <-results; got != [2]int{int(want.alloc), int(want.end)} {
			t.Errorf("mode %d, on another thread: %v, want %v", mode, got, want)
		}
		r.want(r.StreamEndCapture(r.stream, &graph), want.own)
		r.m.Close()
	}
}

func TestCapturesAreSeparateAndMustBeJoined(t *testing.T) {
	r := ready(t, sim.Config{})
	second, third := r.newStream(), r.newStream()
	e, f := r.newEvent(), r.newEvent()
	a := r.alloc(4)
	var graph uintptr

	// A fork that is not joined.
	fork := func() {
		t.Helper()
		r.ok(r.StreamBeginCapture(r.stream, 0))
		r.ok(r.MemsetD8Async(a, 0, 4, r.stream))
		r.ok(r.EventRecord(e, r.stream))
		r.ok(r.StreamWaitEvent(second, e, 0))
		r.ok(r.MemsetD8Async(a, 0, 4, second))
	}
	fork()
	r.want(r.StreamEndCapture(second, &graph), sim.StreamCaptureUnmatched)
	r.want(r.StreamEndCapture(r.stream, &graph), sim.StreamCaptureUnjoined)
	r.ok(r.StreamQuery(second))

	// Waiting for an event of a capture that has ended.
	r.want(r.StreamWaitEvent(third, e, 0), sim.StreamCaptureIsolation)
	r.want(r.EventQuery(e), sim.CapturedEvent)
	var ms float32
	r.want(r.EventElapsedTime(&ms, e, e), sim.CapturedEvent)

	// An event that is recorded outside again is an ordinary one.
	r.ok(r.EventRecord(e, third))
	r.ok(r.EventSynchronize(e))
	r.ok(r.StreamWaitEvent(second, e, 0))
	r.ok(r.EventElapsedTime(&ms, e, e))

	// A merge of two captures invalidates both.
	fork()
	r.ok(r.StreamBeginCapture(third, 0))
	r.ok(r.EventRecord(f, second))
	r.want(r.StreamWaitEvent(third, f, 0), sim.StreamCaptureMerge)
	r.want(r.MemsetD8Async(a, 0, 4, second), sim.StreamCaptureInvalidated)
	r.want(r.StreamWaitEvent(r.stream, f, 0), sim.StreamCaptureInvalidated)
	r.want(r.StreamEndCapture(third, &graph), sim.StreamCaptureInvalidated)
	r.want(r.StreamEndCapture(r.stream, &graph), sim.StreamCaptureInvalidated)

	// An external node.
	r.ok(r.EventRecord(e, r.stream))
	r.ok(r.StreamBeginCapture(r.stream, 0))
	r.want(r.StreamWaitEvent(r.stream, e, 1), sim.NotSupported)
	r.ok(r.StreamEndCapture(r.stream, &graph))
	r.noFaults()
}
