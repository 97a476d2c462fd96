//go:build sim && cgo && linux

package sim_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/cuda/sim"
)

func TestOneMachineRunsAtATime(t *testing.T) {
	r := start(t, sim.Config{})
	if _, err := sim.Start(sim.Config{}); err == nil || !strings.Contains(err.Error(), "running already") {
		t.Fatalf("a second machine: %v", err)
	}
	r.m.Close()
	var count int32
	r.want(r.DeviceGetCount(&count), sim.NotInitialized)
	if again, err := sim.Start(sim.Config{}); err != nil {
		t.Fatal(err)
	} else {
		again.Close()
	}
}

func TestNothingWorksBeforeInit(t *testing.T) {
	r := start(t, sim.Config{Devices: []sim.Device{sim.L4()}})
	var n int32
	var h uintptr
	var u uint64
	for name, result := range map[string]int{
		"count":   r.DeviceGetCount(&n),
		"device":  r.DeviceGet(&n, 0),
		"memory":  r.DeviceTotalMem(&u, 0),
		"retain":  r.DevicePrimaryCtxRetain(&h, 0),
		"current": r.CtxGetCurrent(&h),
		"alloc":   r.MemAlloc(&u, 16),
		"stream":  r.StreamCreateWithPriority(&h, 1, 0),
		"sync":    r.CtxSynchronize(),
	} {
		if result != int(sim.NotInitialized) {
			t.Errorf("%s: %v", name, sim.Result(result))
		}
	}
	r.want(r.Init(1), sim.InvalidValue)
	r.want(r.DeviceGetCount(&n), sim.NotInitialized)
	r.ok(r.Init(0))
	r.ok(r.DeviceGetCount(&n))
	if n != 1 {
		t.Errorf("%d devices", n)
	}
	r.want(r.DeviceGetCount(nil), sim.InvalidValue)
}

func TestAMachineWithoutADeviceSaysSo(t *testing.T) {
	r := start(t, sim.Config{})
	var n, version int32
	r.want(r.Init(0), sim.NoDevice)
	r.want(r.DeviceGetCount(&n), sim.NotInitialized)
	r.ok(r.DriverGetVersion(&version))
	r.want(r.DriverGetVersion(nil), sim.InvalidValue)
	if version != 12020 {
		t.Errorf("version %d", version)
	}
}

func TestADriverCanBeOfAnyVersionAndFailToStart(t *testing.T) {
	r := start(t, sim.Config{Devices: []sim.Device{sim.H200()}, Driver: 11040, Init: sim.SystemDriverMismatch})
	var version, n int32
	r.want(r.Init(0), sim.SystemDriverMismatch)
	r.want(r.DeviceGetCount(&n), sim.NotInitialized)
	r.ok(r.DriverGetVersion(&version))
	if version != 11040 {
		t.Errorf("version %d", version)
	}
}

func TestDevicesDescribeThemselves(t *testing.T) {
	r := start(t, sim.Config{Devices: []sim.Device{sim.L4(), sim.H200()}})
	r.ok(r.Init(0))
	var device int32
	r.ok(r.DeviceGet(&device, 1))
	r.want(r.DeviceGet(&device, 2), sim.InvalidDevice)
	r.want(r.DeviceGet(&device, -1), sim.InvalidDevice)
	r.want(r.DeviceGet(nil, 0), sim.InvalidValue)

	name := make([]byte, 64)
	r.ok(r.DeviceGetName(name, device))
	if got, _, _ := strings.Cut(string(name), "\x00"); got != "NVIDIA H200" {
		t.Errorf("name %q", got)
	}
	short := []byte("????????")
	r.ok(r.DeviceGetName(short[:7], 1))
	if string(short) != "NVIDIA\x00?" {
		t.Errorf("the name cut to 7 bytes: %q", short)
	}
	r.want(r.DeviceGetName(nil, 1), sim.InvalidValue)
	r.want(r.DeviceGetName(name, 7), sim.InvalidDevice)

	var ids [2][16]byte
	buses := [2][]byte{make([]byte, 13), make([]byte, 13)}
	for n := range ids {
		r.ok(r.DeviceGetUuid(&ids[n], int32(n)))
		r.ok(r.DeviceGetPCIBusId(buses[n], int32(n)))
	}
	if ids[0] == ids[1] || string(buses[0]) == string(buses[1]) || !strings.HasSuffix(string(buses[0]), ":00.0\x00") {
		t.Errorf("ids %x, buses %q", ids, buses)
	}
	r.want(r.DeviceGetUuid(nil, 0), sim.InvalidValue)
	r.want(r.DeviceGetUuid(&ids[0], 2), sim.InvalidDevice)
	r.want(r.DeviceGetPCIBusId(make([]byte, 12), 0), sim.InvalidValue)
	r.want(r.DeviceGetPCIBusId(buses[0], 2), sim.InvalidDevice)

	var bytes uint64
	r.ok(r.DeviceTotalMem(&bytes, 0))
	if bytes != 22888<<20 {
		t.Errorf("memory %d", bytes)
	}
	r.want(r.DeviceTotalMem(nil, 0), sim.InvalidValue)
	r.want(r.DeviceTotalMem(&bytes, 2), sim.InvalidDevice)

	for which, want := range map[int][2]int32{
		1:  {1024, 1024},           // threads a block
		10: {32, 32},               // warp
		16: {58, 132},              // multiprocessors
		33: {0x31, 0x33},           // PCI bus
		75: {8, 9},                 // major
		76: {9, 0},                 // minor
		97: {101376, 232448},       // shared memory a block, by choice
		5:  {1<<31 - 1, 1<<31 - 1}, // blocks of a grid
		81: {100 << 10, 228 << 10}, // shared memory a multiprocessor
		38: {48 << 20, 60 << 20},   // L2
	} {
		for n := range want {
			var value int32
			r.ok(r.DeviceGetAttribute(&value, which, int32(n)))
			if value != want[n] {
				t.Errorf("attribute %d of device %d: %d, want %d", which, n, value, want[n])
			}
		}
	}
	r.want(r.DeviceGetAttribute(&device, 9999, 0), sim.InvalidValue)
	r.want(r.DeviceGetAttribute(&device, 1, 2), sim.InvalidDevice)
	r.want(r.DeviceGetAttribute(nil, 1, 0), sim.InvalidValue)
}

func TestErrorsHaveNamesAndTexts(t *testing.T) {
	r := start(t, sim.Config{})
	var name, text string
	for _, e := range []sim.Result{sim.Success, sim.OutOfMemory, sim.IllegalAddress, sim.StreamCaptureWrongThread} {
		r.ok(r.GetErrorName(int(e), &name))
		r.ok(r.GetErrorString(int(e), &text))
		if name != e.String() || !strings.HasPrefix(name, "CUDA_") || text == "" {
			t.Errorf("%d: %q, %q", e, name, text)
		}
	}
	r.want(r.GetErrorName(12345, &name), sim.InvalidValue)
	r.want(r.GetErrorString(12345, &text), sim.InvalidValue)
	r.want(r.GetErrorName(1, nil), sim.InvalidValue)
	if name != "" || text != "" {
		t.Errorf("an unknown number is %q, %q", name, text)
	}
}

func TestAContextIsCurrentToAThread(t *testing.T) {
	r := start(t, sim.Config{Devices: []sim.Device{small(), small()}})
	r.ok(r.Init(0))
	var first, second, got uintptr
	var address uint64
	r.want(r.MemAlloc(&address, 16), sim.InvalidContext)
	r.why("no current context")
	r.want(r.CtxSynchronize(), sim.InvalidContext)
	r.ok(r.CtxGetCurrent(&got))
	if got != 0 {
		t.Errorf("a context is current before any was set: %#x", got)
	}
	r.want(r.CtxGetCurrent(nil), sim.InvalidValue)
	r.want(r.DevicePrimaryCtxRetain(&first, 2), sim.InvalidDevice)
	r.want(r.DevicePrimaryCtxRetain(nil, 0), sim.InvalidValue)
	r.ok(r.DevicePrimaryCtxRetain(&first, 0))
	r.ok(r.DevicePrimaryCtxRetain(&second, 1))
	r.ok(r.CtxSetCurrent(first))
	r.ok(r.CtxGetCurrent(&got))
	if got != first || first == second {
		t.Errorf("contexts %#x, %#x; current %#x", first, second, got)
	}
	r.ok(r.MemAlloc(&address, 16))
	r.ok(r.MemFree(address))

	elsewhere := make(chan [2]int)
	go func() {
		// The thread ends with the goroutine, and nobody gets it with a context.
		runtime.LockOSThread()
		var address uint64
		before := r.MemAlloc(&address, 16)
		r.CtxSetCurrent(first)
		elsewhere <- [2]int{before, r.MemAlloc(&address, 16)}
	}()
	if got := <-elsewhere; got != [2]int{int(sim.InvalidContext), 0} {
		t.Errorf("another thread, without and with a context: %v", got)
	}

	r.want(r.CtxSetCurrent(first+1), sim.InvalidContext)
	r.ok(r.CtxSetCurrent(0))
	r.want(r.CtxSynchronize(), sim.InvalidContext)
	r.ok(r.CtxSetCurrent(second))
	r.ok(r.CtxSynchronize())
}

func TestAContextGoesWithItsLastRelease(t *testing.T) {
	r := start(t, sim.Config{Devices: []sim.Device{small()}})
	r.ok(r.Init(0))
	r.want(r.DevicePrimaryCtxRelease(0), sim.InvalidContext)
	r.want(r.DevicePrimaryCtxRelease(1), sim.InvalidDevice)
	r.enter(0)
	r.enter(0)
	r.ok(r.DevicePrimaryCtxRelease(0))
	r.ok(r.CtxSynchronize())
	r.ok(r.DevicePrimaryCtxRelease(0))
	r.want(r.CtxSynchronize(), sim.ContextIsDestroyed)
	var context uintptr
	r.ok(r.CtxGetCurrent(&context))
	r.want(r.CtxSetCurrent(context), sim.InvalidContext)
	r.want(r.DevicePrimaryCtxRelease(0), sim.InvalidContext)
	r.enter(0)
	r.ok(r.CtxSynchronize())
	r.ok(r.DevicePrimaryCtxRelease(0))
	if leaks := r.m.Leaks(); len(leaks) != 0 {
		t.Errorf("leaks: %q", leaks)
	}
}

func TestARenewedContextKnowsNothingOfTheOneBefore(t *testing.T) {
	r := ready(t, sim.Config{})
	var free, total uint64
	var graph, exec, module uintptr
	event, address := r.newEvent(), r.alloc(1<<20)
	function := r.load("fill")[0]
	r.ok(r.StreamBeginCapture(r.stream, 0))
	r.ok(r.StreamEndCapture(r.stream, &graph))
	r.ok(r.GraphInstantiate(&exec, graph, 0))
	r.ok(r.ModuleLoadDataEx(&module, kernels, nil, 0))

	// What is queued ends first: nothing uses memory that is gone.
	time.AfterFunc(20*time.Millisecond, r.hold())
	r.ok(r.MemsetD8Async(address, 0, 1<<20, r.stream))
	r.ok(r.DevicePrimaryCtxRelease(0))
	r.noFaults()

	r.enter(0)
	r.ok(r.MemGetInfo(&free, &total))
	if free != total {
		t.Errorf("%d bytes are free of %d", free, total)
	}
	r.want(r.MemFree(address), sim.InvalidValue)
	for name, result := range map[string]int{
		"stream":     r.StreamQuery(r.stream),
		"event":      r.EventQuery(event),
		"graph":      r.GraphDestroy(graph),
		"executable": r.GraphExecDestroy(exec),
		"module":     r.ModuleUnload(module),
		"function":   r.FuncSetAttribute(function, 9, 0),
	} {
		if result != int(sim.InvalidHandle) {
			t.Errorf("%s: %v", name, sim.Result(result))
		}
	}
}

func TestWhatIsNotGivenBackIsNamed(t *testing.T) {
	for _, released := range []bool{false, true} {
		r := ready(t, sim.Config{})
		event := r.newEvent()
		r.alloc(100)
		r.pinned(200)
		kept := r.alloc(300)
		r.ok(r.MemFree(kept))
		gone := r.newEvent()
		r.ok(r.EventDestroy(gone))
		var graph, exec, module uintptr
		r.ok(r.StreamBeginCapture(r.stream, 0))
		r.ok(r.StreamEndCapture(r.stream, &graph))
		r.ok(r.GraphInstantiate(&exec, graph, 0))
		r.ok(r.ModuleLoadDataEx(&module, kernels, nil, 0))
		if released {
			r.ok(r.DevicePrimaryCtxRelease(0))
			r.want(r.EventQuery(event), sim.ContextIsDestroyed)
		}
		leaks := r.m.Leaks()
		all := strings.Join(leaks, "\n")
		for _, part := range []string{"allocation 1 of 100", "pinned memory 1 of 200", "stream", "event", "graph", "executable", "module"} {
			if !strings.Contains(all, part) {
				t.Errorf("%s is not among the leaks (released: %v): %q", part, released, leaks)
			}
		}
		want := 8 // the context itself, too
		if released {
			want = 7
		}
		if len(leaks) != want || strings.Contains(all, " 300 bytes") {
			t.Errorf("%d leaks, want %d: %q", len(leaks), want, leaks)
		}
		r.m.Close()
	}
}

func TestPrioritiesHaveARange(t *testing.T) {
	r := ready(t, sim.Config{})
	var least, greatest int32
	r.ok(r.CtxGetStreamPriorityRange(&least, &greatest))
	r.ok(r.CtxGetStreamPriorityRange(nil, nil))
	if least != 0 || greatest != -5 {
		t.Errorf("priorities from %d to %d", least, greatest)
	}
	var s uintptr
	r.ok(r.StreamCreateWithPriority(&s, 0, -100))
	r.want(r.StreamCreateWithPriority(&s, 2, 0), sim.InvalidValue)
	r.want(r.StreamCreateWithPriority(nil, 1, 0), sim.InvalidValue)
	r.ok(r.CtxSetCurrent(0))
	r.want(r.CtxGetStreamPriorityRange(&least, &greatest), sim.InvalidContext)
}
