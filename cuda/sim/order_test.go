//go:build sim && cgo && linux

package sim_test

import (
	"maps"
	"slices"
	"testing"
	"unsafe"

	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/cuda/sim/calls"
)

// entry is a function of the table: how far a program must have come to call it, and a call.
type entry struct {
	needs int
	call  func(r *rig) int
}

const (
	needsNothing = iota
	needsInit
	needsContext
)

// entries calls every function of the table, with arguments that are looked at only if the order is right.
var entries = map[string]entry{
	"cuInit":                      {needsNothing, func(r *rig) int { return r.Init(0) }},
	"cuDriverGetVersion":          {needsNothing, func(r *rig) int { return r.DriverGetVersion(new(int32)) }},
	"cuGetErrorName":              {needsNothing, func(r *rig) int { return r.GetErrorName(0, new(string)) }},
	"cuGetErrorString":            {needsNothing, func(r *rig) int { return r.GetErrorString(0, new(string)) }},
	"cuDeviceGetCount":            {needsInit, func(r *rig) int { return r.DeviceGetCount(new(int32)) }},
	"cuDeviceGet":                 {needsInit, func(r *rig) int { return r.DeviceGet(new(int32), 0) }},
	"cuDeviceGetName":             {needsInit, func(r *rig) int { return r.DeviceGetName(make([]byte, 99), 0) }},
	"cuDeviceGetUuid":             {needsInit, func(r *rig) int { return r.DeviceGetUuid(new([16]byte), 0) }},
	"cuDeviceGetPCIBusId":         {needsInit, func(r *rig) int { return r.DeviceGetPCIBusId(make([]byte, 99), 0) }},
	"cuDeviceGetAttribute":        {needsInit, func(r *rig) int { return r.DeviceGetAttribute(new(int32), 1, 0) }},
	"cuDeviceTotalMem":            {needsInit, func(r *rig) int { return r.DeviceTotalMem(new(uint64), 0) }},
	"cuDevicePrimaryCtxRetain":    {needsInit, func(r *rig) int { return r.DevicePrimaryCtxRetain(new(uintptr), 1) }},
	"cuDevicePrimaryCtxRelease":   {needsInit, func(r *rig) int { r.DevicePrimaryCtxRetain(new(uintptr), 1); return r.DevicePrimaryCtxRelease(1) }},
	"cuCtxSetCurrent":             {needsInit, func(r *rig) int { return r.CtxSetCurrent(0) }},
	"cuCtxGetCurrent":             {needsInit, func(r *rig) int { return r.CtxGetCurrent(new(uintptr)) }},
	"cuCtxSynchronize":            {needsContext, func(r *rig) int { return r.CtxSynchronize() }},
	"cuCtxGetStreamPriorityRange": {needsContext, func(r *rig) int { return r.CtxGetStreamPriorityRange(nil, nil) }},
	"cuMemGetInfo":                {needsContext, func(r *rig) int { return r.MemGetInfo(new(uint64), new(uint64)) }},
	"cuMemAlloc":                  {needsContext, func(r *rig) int { return r.MemAlloc(new(uint64), 8) }},
	"cuMemFree":                   {needsContext, func(r *rig) int { return r.MemFree(0) }},
	"cuMemHostAlloc":              {needsContext, func(r *rig) int { return r.MemHostAlloc(new(unsafe.Pointer), 8, 0) }},
	"cuMemHostGetDevicePointer":   {needsContext, func(r *rig) int { return r.MemHostGetDevicePointer(new(uint64), nil, 0) }},
	"cuMemFreeHost":               {needsContext, func(r *rig) int { return r.MemFreeHost(nil) }},
	"cuMemcpyHtoDAsync":           {needsContext, func(r *rig) int { return r.MemcpyHtoDAsync(0, nil, 8, 0) }},
	"cuMemcpyDtoHAsync":           {needsContext, func(r *rig) int { return r.MemcpyDtoHAsync(nil, 0, 8, 0) }},
	"cuMemcpyDtoDAsync":           {needsContext, func(r *rig) int { return r.MemcpyDtoDAsync(0, 0, 8, 0) }},
	"cuMemsetD8Async":             {needsContext, func(r *rig) int { return r.MemsetD8Async(0, 0, 8, 0) }},
	"cuMemsetD16Async":            {needsContext, func(r *rig) int { return r.MemsetD16Async(0, 0, 8, 0) }},
	"cuMemsetD32Async":            {needsContext, func(r *rig) int { return r.MemsetD32Async(0, 0, 8, 0) }},
	"cuStreamCreateWithPriority":  {needsContext, func(r *rig) int { return r.StreamCreateWithPriority(new(uintptr), 0, 0) }},
	"cuStreamDestroy":             {needsContext, func(r *rig) int { return r.StreamDestroy(0) }},
	"cuStreamQuery":               {needsContext, func(r *rig) int { return r.StreamQuery(0) }},
	"cuStreamSynchronize":         {needsContext, func(r *rig) int { return r.StreamSynchronize(0) }},
	"cuStreamWaitEvent":           {needsContext, func(r *rig) int { return r.StreamWaitEvent(0, 0, 0) }},
	"cuStreamBeginCapture":        {needsContext, func(r *rig) int { return r.StreamBeginCapture(0, 0) }},
	"cuStreamEndCapture":          {needsContext, func(r *rig) int { return r.StreamEndCapture(0, new(uintptr)) }},
	"cuGraphInstantiate":          {needsContext, func(r *rig) int { return r.GraphInstantiate(new(uintptr), 0, 0) }},
	"cuGraphLaunch":               {needsContext, func(r *rig) int { return r.GraphLaunch(0, 0) }},
	"cuGraphExecDestroy":          {needsContext, func(r *rig) int { return r.GraphExecDestroy(0) }},
	"cuGraphDestroy":              {needsContext, func(r *rig) int { return r.GraphDestroy(0) }},
	"cuEventCreate":               {needsContext, func(r *rig) int { return r.EventCreate(new(uintptr), 0) }},
	"cuEventRecord":               {needsContext, func(r *rig) int { return r.EventRecord(0, 0) }},
	"cuEventQuery":                {needsContext, func(r *rig) int { return r.EventQuery(0) }},
	"cuEventSynchronize":          {needsContext, func(r *rig) int { return r.EventSynchronize(0) }},
	"cuEventElapsedTime":          {needsContext, func(r *rig) int { return r.EventElapsedTime(new(float32), 0, 0) }},
	"cuEventDestroy":              {needsContext, func(r *rig) int { return r.EventDestroy(0) }},
	"cuModuleLoadDataEx":          {needsContext, func(r *rig) int { return r.ModuleLoadDataEx(new(uintptr), kernels, nil, 0) }},
	"cuModuleUnload":              {needsContext, func(r *rig) int { return r.ModuleUnload(0) }},
	"cuModuleGetFunction":         {needsContext, func(r *rig) int { return r.ModuleGetFunction(new(uintptr), 0, "fill") }},
	"cuFuncGetAttribute":          {needsContext, func(r *rig) int { return r.FuncGetAttribute(new(int32), 0, 0) }},
	"cuFuncSetAttribute":          {needsContext, func(r *rig) int { return r.FuncSetAttribute(0, 8, 0) }},
	"cuLaunchKernel": {needsContext, func(r *rig) int {
		return r.LaunchKernel(0, [3]uint32{1, 1, 1}, [3]uint32{1, 1, 1}, 0, 0, false)
	}},
}

// TestCallsInTheWrongOrderAreRefused calls every function before what it needs.
func TestCallsInTheWrongOrderAreRefused(t *testing.T) {
	names := slices.Sorted(maps.Keys(entries))
	if want := slices.Sorted(maps.Keys(calls.Counts())); !slices.Equal(names, want) {
		t.Fatalf("the table has\n%q, tried are\n%q", want, names)
	}
	r := start(t, sim.Config{Devices: []sim.Device{small(), small()}})
	// all calls what needs at least so much, and demands a result; what needs less must succeed.
	all := func(when string, least int, want sim.Result) {
		t.Helper()
		for _, name := range names {
			e := entries[name]
			if name == "cuInit" || name == "cuCtxSetCurrent" && least == needsContext {
				continue
			}
			got := sim.Result(e.call(r))
			if e.needs >= least && got != want {
				t.Errorf("%s, %s: %v, want %v", when, name, got, want)
			}
			if e.needs < least && got != sim.Success {
				t.Errorf("%s, %s: %v", when, name, got)
			}
		}
	}
	all("before cuInit", needsInit, sim.NotInitialized)
	r.ok(r.Init(0))
	all("without a context", needsContext, sim.InvalidContext)
	r.enter(0)
	r.stream = r.newStream()
	gone := r.alloc(4)
	release := r.hold()
	r.ok(r.MemsetD8Async(gone, 0, 4, r.stream))
	r.ok(r.MemFree(gone))
	release()
	r.m.Wait()
	all("after a fault", needsContext, sim.IllegalAddress)
	r.ok(r.DevicePrimaryCtxRelease(0))
	all("after the context's release", needsContext, sim.ContextIsDestroyed)
	r.ok(r.CtxSetCurrent(0))
	r.m.Close()
	for _, name := range names {
		if got := sim.Result(entries[name].call(r)); got != sim.NotInitialized {
			t.Errorf("without a machine, %s: %v", name, got)
		}
	}
}
