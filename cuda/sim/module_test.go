//go:build sim && cgo && linux

package sim_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/cuda/sim/ptx"
)

// kernels is what the tests load. fill(out, n, value) writes a word a thread;
// move(to, from) copies one word; wide(out, offset) passes a word through dynamic
// shared memory, beside 1 KB of static; spin() never ends.
const kernels = `
.version 8.2
.target sm_80
.address_size 64

.extern .shared .align 16 .b8 dynamic[];

.visible .entry fill(
	.param .u64 fill_param_0,
	.param .u32 fill_param_1,
	.param .u32 fill_param_2
)
.maxntid 256, 1, 1
{
	.reg .pred %p<2>;
	.reg .b32 %r<7>;
	.reg .b64 %rd<5>;
	ld.param.u64 %rd1, [fill_param_0];
	ld.param.u32 %r1, [fill_param_1];
	ld.param.u32 %r2, [fill_param_2];
	mov.u32 %r3, %ctaid.x;
	mov.u32 %r4, %ntid.x;
	mov.u32 %r5, %tid.x;
	mad.lo.s32 %r6, %r3, %r4, %r5;
	setp.ge.u32 %p1, %r6, %r1;
	@%p1 bra DONE;
	cvta.to.global.u64 %rd2, %rd1;
	mul.wide.u32 %rd3, %r6, 4;
	add.s64 %rd4, %rd2, %rd3;
	st.global.u32 [%rd4], %r2;
DONE:
	ret;
}

.visible .entry move(
	.param .u64 move_param_0,
	.param .u64 move_param_1
)
{
	.reg .b32 %r<2>;
	.reg .b64 %rd<5>;
	ld.param.u64 %rd1, [move_param_0];
	ld.param.u64 %rd2, [move_param_1];
	cvta.to.global.u64 %rd3, %rd1;
	cvta.to.global.u64 %rd4, %rd2;
	ld.global.u32 %r1, [%rd4];
	st.global.u32 [%rd3], %r1;
	ret;
}

.visible .entry wide(
	.param .u64 wide_param_0,
	.param .u32 wide_param_1
)
{
	.reg .b32 %r<5>;
	.reg .b64 %rd<3>;
	.shared .align 4 .b8 own[1024];
	ld.param.u64 %rd1, [wide_param_0];
	ld.param.u32 %r1, [wide_param_1];
	cvta.to.global.u64 %rd2, %rd1;
	mov.u32 %r2, dynamic;
	add.s32 %r3, %r2, %r1;
	st.shared.u32 [%r3], %r1;
	ld.shared.u32 %r4, [%r3];
	mov.u32 %r2, own;
	st.shared.u32 [%r2], %r4;
	ld.shared.u32 %r4, [%r2];
	st.global.u32 [%rd2], %r4;
	ret;
}

.visible .entry spin()
{
LOOP:
	bra LOOP;
}
`

// word and address are parameters as bytes.
func word(v uint32) []byte    { return binary.LittleEndian.AppendUint32(nil, v) }
func address(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

// load returns functions of the test's kernels.
func (r *rig) load(names ...string) []uintptr {
	r.Helper()
	var module uintptr
	r.ok(r.ModuleLoadDataEx(&module, kernels, nil, 0))
	all := make([]uintptr, len(names))
	for i, name := range names {
		r.ok(r.ModuleGetFunction(&all[i], module, name))
	}
	return all
}

// run launches a kernel of one dimension.
func (r *rig) run(function uintptr, blocks, threads, shared uint32, parameters ...[]byte) int {
	return r.LaunchKernel(function, [3]uint32{blocks, 1, 1}, [3]uint32{threads, 1, 1}, shared, r.stream, false, parameters...)
}

func TestAKernelRunsInItsStream(t *testing.T) {
	for _, order := range []ptx.Order{ptx.Forward, ptx.Reverse, ptx.Random} {
		r := ready(t, sim.Config{Order: order, Seed: 4, Pause: time.Millisecond, Workers: 2})
		fill := r.load("fill")[0]
		a := r.alloc(1000 * 4)
		r.ok(r.run(fill, 4, 256, 0, address(a), word(1000), word(0x01020304)))
		r.expect(a, bytes.Repeat([]byte{4, 3, 2, 1}, 1000))
		r.noFaults()
		r.m.Close()
	}
}

func TestAGraphOfKernelsKeepsTheirParameters(t *testing.T) {
	r := ready(t, sim.Config{Seed: 4, Pause: time.Millisecond})
	f := r.load("fill", "move")
	a, b := r.alloc(4), r.alloc(4)
	x := r.captured(func() {
		r.ok(r.run(f[0], 1, 32, 0, address(a), word(1), word(7)))
		r.ok(r.run(f[1], 1, 1, 0, address(b), address(a)))
	})
	for range 3 {
		r.ok(r.MemsetD32Async(b, 0, 1, r.stream))
		r.ok(r.GraphLaunch(x, r.stream))
		r.expect(b, word(7))
	}
	r.noFaults()
}

func TestLaunchesCheckTheirArguments(t *testing.T) {
	r := ready(t, sim.Config{})
	f := r.load("fill", "spin", "wide")
	a := address(r.alloc(64))
	one := [3]uint32{1, 1, 1}
	launch := func(f uintptr, grid, block [3]uint32, shared uint32, parameters ...[]byte) int {
		return r.LaunchKernel(f, grid, block, shared, r.stream, false, parameters...)
	}
	for name, result := range map[string]int{
		"no block":                        launch(f[0], [3]uint32{1, 0, 1}, one, 0, a, word(1), word(1)),
		"a grid that is too high":         launch(f[0], [3]uint32{1, 65536, 1}, one, 0, a, word(1), word(1)),
		"a grid that is too deep":         launch(f[0], [3]uint32{1, 1, 65536}, one, 0, a, word(1), word(1)),
		"a grid that is too wide":         launch(f[0], [3]uint32{1 << 31, 1, 1}, one, 0, a, word(1), word(1)),
		"no thread":                       launch(f[0], one, [3]uint32{1, 1, 0}, 0, a, word(1), word(1)),
		"a block that is too wide":        launch(f[1], one, [3]uint32{1025, 1, 1}, 0, word(0)),
		"a block that is too deep":        launch(f[1], one, [3]uint32{1, 1, 65}, 0, word(0)),
		"a block of too many threads":     launch(f[1], one, [3]uint32{64, 32, 1}, 0, word(0)),
		"more threads than launch bounds": launch(f[0], one, [3]uint32{257, 1, 1}, 0, a, word(1), word(1)),
		"too much shared memory":          launch(f[2], one, one, 48<<10, a, word(0)),
		"no parameters":                   launch(f[0], one, one, 0),
		"a parameter at a null pointer":   launch(f[0], one, one, 0, a, nil, word(1)),
		"parameters twice":                r.LaunchKernel(f[0], one, one, 0, r.stream, true, a, word(1), word(1)),
	} {
		if result != int(sim.InvalidValue) {
			t.Errorf("%s: %v", name, sim.Result(result))
		}
	}
	r.want(r.LaunchKernel(f[0], one, one, 0, r.stream, true), sim.NotSupported)
	r.noFaults()
}

func TestMoreSharedMemoryMustBeAskedFor(t *testing.T) {
	for _, c := range []struct {
		device sim.Device
		most   int
	}{{sim.L4(), 99 << 10}, {sim.H200(), 227 << 10}} {
		c.device.Memory = 1 << 20
		r := ready(t, sim.Config{Devices: []sim.Device{c.device}})
		wide := r.load("wide")[0]
		out := r.alloc(4)
		dynamic := uint32(c.most - 1024)
		var value int32
		r.ok(r.FuncGetAttribute(&value, 8, wide))
		if value != 47<<10 {
			t.Errorf("%d bytes before", value)
		}
		r.ok(r.run(wide, 1, 1, 47<<10, address(out), word(47<<10-4)))
		r.want(r.run(wide, 1, 1, 47<<10+1, address(out), word(0)), sim.InvalidValue)
		r.why("after cuFuncSetAttribute")
		r.want(r.FuncSetAttribute(wide, 8, c.most-1024+1), sim.InvalidValue)
		r.want(r.FuncSetAttribute(wide, 8, -1), sim.InvalidValue)
		r.ok(r.FuncSetAttribute(wide, 8, c.most-1024))
		r.ok(r.FuncGetAttribute(&value, 8, wide))
		r.ok(r.run(wide, 1, 1, dynamic, address(out), word(dynamic-4)))
		r.expect(out, word(dynamic-4))
		r.want(r.run(wide, 1, 1, dynamic+1, address(out), word(0)), sim.InvalidValue)
		r.noFaults()
		// Past what was asked for is past the end.
		r.ok(r.run(wide, 1, 1, 64, address(out), word(64)))
		r.fault(sim.IllegalAddress, "kernel wide")
		r.m.Close()
	}
}

func TestFunctionsHaveAttributes(t *testing.T) {
	r := ready(t, sim.Config{})
	f := r.load("fill", "wide")
	for _, c := range []struct {
		f     uintptr
		which int
		want  int32
	}{
		{f[0], 0, 256},  // threads a block, by launch bounds
		{f[1], 0, 1024}, // and by the device
		{f[0], 1, 0},
		{f[1], 1, 1024}, // static shared memory
		{f[0], 3, 0},    // local memory
		{f[0], 4, 255},  // registers, as many as launch bounds allow
		{f[1], 4, 64},   //
		{f[0], 5, 82},   // PTX
		{f[0], 6, 89},   // device
		{f[0], 8, 48 << 10},
	} {
		var value int32
		r.ok(r.FuncGetAttribute(&value, c.which, c.f))
		if value != c.want {
			t.Errorf("attribute %d: %d, want %d", c.which, value, c.want)
		}
	}
	var value int32
	r.want(r.FuncGetAttribute(&value, 2, f[0]), sim.NotSupported) // constants
	r.want(r.FuncGetAttribute(&value, 99, f[0]), sim.InvalidValue)
	r.want(r.FuncGetAttribute(nil, 0, f[0]), sim.InvalidValue)
	r.ok(r.FuncSetAttribute(f[0], 9, 100))
	r.want(r.FuncSetAttribute(f[0], 9, 101), sim.InvalidValue)
	r.want(r.FuncSetAttribute(f[0], 1, 10), sim.InvalidValue)
}

func TestModulesAreRefusedWithTheReason(t *testing.T) {
	old := small()
	old.Attributes = map[int]int{75: 7, 76: 5, 8: 48 << 10}
	for name, c := range map[string]struct {
		config sim.Config
		image  string
		want   sim.Result
		log    string
	}{
		"no PTX":                     {sim.Config{}, "\x7fELF", sim.InvalidImage, "no PTX text"},
		"nothing but a version":      {sim.Config{}, ".version 8.2\n", sim.InvalidPTX, ".target"},
		"an instruction nobody has":  {sim.Config{}, strings.Replace(kernels, "add.s64", "frobnicate.s64", 1), sim.InvalidPTX, "frobnicate"},
		"PTX newer than the driver":  {sim.Config{Driver: 12010}, kernels, sim.UnsupportedPTXVersion, "CUDA 12.1"},
		"PTX of no toolkit":          {sim.Config{}, strings.Replace(kernels, "8.2", "99.1", 1), sim.UnsupportedPTXVersion, "99.1"},
		"PTX for a newer device":     {sim.Config{Devices: []sim.Device{old}}, kernels, sim.NoBinaryForGPU, "sm_75"},
		"PTX for another device":     {sim.Config{}, strings.Replace(kernels, "sm_80", "sm_80a", 1), sim.NoBinaryForGPU, "sm_80a"},
		"too much of shared memory":  {sim.Config{}, strings.Replace(kernels, "own[1024]", "own[49156]", 1), sim.InvalidPTX, "49152 is the most"},
		"nothing, which is the last": {sim.Config{}, "", sim.InvalidImage, "no PTX text"},
	} {
		t.Run(name, func(t *testing.T) {
			r := ready(t, c.config)
			var module uintptr
			log := ""
			r.want(r.ModuleLoadDataEx(&module, c.image, &log, 1000), c.want)
			if !strings.Contains(log, c.log) || module != 0 {
				t.Errorf("module %#x, log %q, which should name %q", module, log, c.log)
			}
			r.want(r.ModuleLoadDataEx(&module, c.image, &log, 8), c.want)
			if len(log) != 7 {
				t.Errorf("a log of 8 bytes with its zero: %q", log)
			}
		})
	}
	r := ready(t, sim.Config{})
	var module uintptr
	log := "?"
	r.ok(r.ModuleLoadDataEx(&module, kernels, &log, 100))
	if log != "" {
		t.Errorf("log %q", log)
	}
	r.want(r.ModuleLoadDataEx(nil, kernels, nil, 0), sim.InvalidValue)
	r.want(r.ModuleLoadOption(&module, 1000), sim.InvalidValue)
	r.want(r.ModuleLoadOption(&module, -1), sim.InvalidValue)
}

func TestAModuleHasItsKernels(t *testing.T) {
	r := ready(t, sim.Config{})
	var module, f, again uintptr
	r.ok(r.ModuleLoadDataEx(&module, kernels, nil, 0))
	r.ok(r.ModuleGetFunction(&f, module, "fill"))
	r.ok(r.ModuleGetFunction(&again, module, "fill"))
	if f != again {
		t.Errorf("one kernel has the handles %#x and %#x", f, again)
	}
	r.want(r.ModuleGetFunction(&f, module, "Fill"), sim.NotFound)
	r.want(r.ModuleGetFunction(nil, module, "fill"), sim.InvalidValue)
	r.ok(r.ModuleUnload(module))
	r.want(r.ModuleUnload(module), sim.InvalidHandle)
	r.want(r.ModuleGetFunction(&f, module, "fill"), sim.InvalidHandle)
	r.want(r.run(again, 1, 1, 0, address(0), word(0), word(0)), sim.InvalidHandle)
}

func TestAModuleUnloadedTooEarlyBreaksTheContext(t *testing.T) {
	r := ready(t, sim.Config{})
	var module, fill uintptr
	r.ok(r.ModuleLoadDataEx(&module, kernels, nil, 0))
	r.ok(r.ModuleGetFunction(&fill, module, "fill"))
	a := r.alloc(4)
	release := r.hold()
	r.ok(r.run(fill, 1, 1, 0, address(a), word(1), word(1)))
	r.ok(r.ModuleUnload(module))
	release()
	r.fault(sim.LaunchFailed, "unloaded while fill was queued")
	r.want(r.CtxSynchronize(), sim.LaunchFailed)
}

// TestWhatAKernelDoesWrongBreaksItsContext shows each result that stays, and its report.
func TestWhatAKernelDoesWrongBreaksItsContext(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(r *rig, f map[string]uintptr, a uint64) int
		want sim.Result
		kind ptx.Kind
		says string
	}{
		"past the end": {func(r *rig, f map[string]uintptr, a uint64) int {
			return r.run(f["fill"], 1, 32, 0, address(a), word(17), word(1))
		}, sim.IllegalAddress, ptx.OutOfBounds, "allocation 1 of 64 bytes"},
		"through a null pointer": {func(r *rig, f map[string]uintptr, _ uint64) int {
			return r.run(f["fill"], 1, 32, 0, address(0), word(1), word(1))
		}, sim.IllegalAddress, ptx.OutOfBounds, "nothing has been allocated"},
		"an address of the host's": {func(r *rig, f map[string]uintptr, _ uint64) int {
			return r.run(f["fill"], 1, 32, 0, address(0x7fff_0000_0000), word(1), word(1))
		}, sim.IllegalAddress, ptx.OutOfBounds, "not pinned"},
		"freed memory": {func(r *rig, f map[string]uintptr, a uint64) int {
			r.ok(r.MemFree(a))
			return r.run(f["fill"], 1, 32, 0, address(a), word(1), word(1))
		}, sim.IllegalAddress, ptx.OutOfBounds, "freed"},
		"memory of another device": {func(r *rig, f map[string]uintptr, a uint64) int {
			var mine uintptr
			r.ok(r.CtxGetCurrent(&mine))
			r.enter(1)
			other := r.alloc(64)
			r.ok(r.CtxSetCurrent(mine))
			return r.run(f["fill"], 1, 32, 0, address(other), word(1), word(1))
		}, sim.IllegalAddress, ptx.OutOfBounds, "no access"},
		"an address that is not aligned": {func(r *rig, f map[string]uintptr, a uint64) int {
			return r.run(f["fill"], 1, 32, 0, address(a+2), word(1), word(1))
		}, sim.MisalignedAddress, ptx.Misaligned, ""},
		"what nobody has written": {func(r *rig, f map[string]uintptr, a uint64) int {
			return r.run(f["move"], 1, 1, 0, address(a), address(a+4))
		}, sim.LaunchFailed, ptx.NeverWritten, ""},
		"a loop that never ends": {func(r *rig, f map[string]uintptr, _ uint64) int {
			return r.run(f["spin"], 1, 1, 0)
		}, sim.LaunchFailed, ptx.Endless, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := ready(t, sim.Config{Devices: []sim.Device{small(), small()}, Limit: 100000})
			names := []string{"fill", "move", "spin"}
			f := map[string]uintptr{}
			for i, h := range r.load(names...) {
				f[names[i]] = h
			}
			a := r.alloc(64)
			r.ok(c.do(r, f, a))
			r.want(r.StreamSynchronize(r.stream), c.want)
			fault := r.fault(c.want, c.says)
			var kernel *ptx.Fault
			if !errors.As(fault, &kernel) || kernel.Kind != c.kind || kernel.Line == 0 {
				t.Errorf("report: %v", fault)
			}
			r.want(r.MemFree(a), c.want)
			r.want(r.run(f["fill"], 1, 1, 0, address(a), word(1), word(1)), c.want)
		})
	}
}

func TestAKernelReadsAndWritesPinnedMemory(t *testing.T) {
	r := ready(t, sim.Config{})
	move := r.load("move")[0]
	p, b := r.pinned(8)
	var at uint64
	r.ok(r.MemHostGetDevicePointer(&at, p, 0))
	copy(b, "fromto??")
	r.ok(r.run(move, 1, 1, 0, address(at+4), address(at)))
	r.ok(r.StreamSynchronize(r.stream))
	if string(b) != "fromfrom" {
		t.Errorf("%q", b)
	}
	r.noFaults()
}
