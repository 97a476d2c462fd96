//go:build sim && cgo && linux

package sim_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/cuda/sim"
)

func TestRanksThatDoNotDoTheSameAreTold(t *testing.T) {
	for name, second := range map[string]func(r *apart, at uint64) int{
		"counts": func(r *apart, at uint64) int {
			return r.AllReduce(at, at, 2, f32, 0, r.comms[1], r.streams[1])
		},
		"collectives": func(r *apart, at uint64) int {
			return r.Broadcast(at, at, 1, f32, 0, r.comms[1], r.streams[1])
		},
		"types": func(r *apart, at uint64) int {
			return r.AllReduce(at, at, 1, i32, 0, r.comms[1], r.streams[1])
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := ranks(t, 2, sim.Config{})
			r.on(0)
			a := r.upload(make([]byte, 8))
			r.started(0, r.AllReduce(a, a, 1, f32, 0, r.comms[0], r.streams[0]))
			r.on(1)
			r.says(second(r, r.upload(make([]byte, 8))), sim.NCCLInProgress)
			for _, k := range []int{1, 0} { // asking moves the second one's call on
				state := int32(0)
				for tries := 0; sim.NCCLResult(state) != sim.NCCLInvalidUsage && tries < 10000; tries++ {
					time.Sleep(time.Millisecond)
					r.does(r.CommGetAsyncError(r.comms[k], &state))
				}
				r.says(int(state), sim.NCCLInvalidUsage)
				r.want(r.StreamQuery(r.streams[0]), sim.NotReady) // nothing ends by itself
			}
			r.does(r.CommAbort(r.comms[1]))
			r.on(0)
			r.does(r.CommAbort(r.comms[0]))
			r.m.Wait()
			if all := r.m.Faults(); len(all) != 2 || !strings.Contains(all[0].Error(), "message truncated: collective 0 is ncclAllReduce of 1 of type 7") {
				t.Errorf("%v", all)
			}
			r.on(0)
			r.ok(r.StreamSynchronize(r.streams[0]))
		})
	}
}

func TestAnAbortEndsTheWaitsOfItsRankAlone(t *testing.T) {
	r := ranks(t, 2, sim.Config{})
	var at [2]uint64
	for k := range 2 {
		r.on(k)
		at[k] = r.upload(encode(f32, 1))
	}
	r.on(0)
	r.started(0, r.AllReduce(at[0], at[0], 1, f32, 0, r.comms[0], r.streams[0]))
	r.started(0, r.AllReduce(at[0], at[0], 1, f32, 0, r.comms[0], r.streams[0]))
	r.does(r.CommAbort(r.comms[0]))
	r.ok(r.StreamSynchronize(r.streams[0]))
	r.expect(at[0], encode(f32, 1))
	r.says(r.AllReduce(at[0], at[0], 1, f32, 0, r.comms[0], r.streams[0]), sim.NCCLInvalidArgument)
	r.says(r.CommGetAsyncError(r.comms[0], new(int32)), sim.NCCLInvalidArgument)
	r.on(1)
	r.started(1, r.AllReduce(at[1], at[1], 1, f32, 0, r.comms[1], r.streams[1]))
	r.want(r.StreamQuery(r.streams[1]), sim.NotReady) // what the other had brought is gone
	r.m.Disconnect(0)
	var state int32
	r.does(r.CommGetAsyncError(r.comms[1], &state))
	r.says(int(state), sim.NCCLRemoteError)
	r.want(r.StreamQuery(r.streams[1]), sim.NotReady)
	r.says(r.AllReduce(at[1], at[1], 1, f32, 0, r.comms[1], r.streams[1]), sim.NCCLRemoteError)
	r.does(r.CommAbort(r.comms[1]))
	r.ok(r.StreamSynchronize(r.streams[1]))
	r.noFaults()
}

func TestAnEndOfACommunicatorOnAnotherDevicesThreadIsReported(t *testing.T) {
	r := ranks(t, 2, sim.Config{})
	r.on(1)
	r.says(r.CommFinalize(r.comms[0]), sim.NCCLInProgress)
	r.settled(0, sim.NCCLSuccess)
	r.does(r.CommDestroy(r.comms[0]))
	r.ok(r.CtxSetCurrent(0))
	r.does(r.CommAbort(r.comms[1]))
	all := r.m.Faults()
	if len(all) != 3 {
		t.Fatalf("%v", all)
	}
	for i, call := range []string{"ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort"} {
		if all[i].Call != call || !strings.Contains(all[i].Error(), "would make a context on device 0") {
			t.Error(all[i])
		}
	}
}

func TestAGroupStartsItsCollectivesAtItsEnd(t *testing.T) {
	r := ranks(t, 2, sim.Config{})
	var at [2]uint64
	for k := range 2 {
		r.on(k)
		at[k] = r.upload(encode(i32, float64(10*k+1), float64(10*k+2)))
		r.ok(r.StreamSynchronize(r.streams[k]))
		r.does(r.GroupStart())
		r.does(r.GroupStart())
		r.does(r.Broadcast(at[k], at[k], 1, i32, 0, r.comms[k], r.streams[k]))
		r.does(r.Broadcast(at[k]+4, at[k]+4, 1, i32, 1, r.comms[k], r.streams[k]))
		r.does(r.GroupEnd())
		r.ok(r.StreamQuery(r.streams[k]))
		r.started(k, r.GroupEnd())
	}
	for k := range 2 {
		r.on(k)
		r.expect(at[k], encode(i32, 1, 12))
	}
	// Where one is refused none is started.
	r.does(r.GroupStart())
	r.does(r.AllReduce(at[1], at[1], 1, i32, 0, r.comms[1], r.streams[1]))
	r.says(r.AllReduce(at[1], at[1], 1, 99, 0, r.comms[1], r.streams[1]), sim.NCCLInvalidArgument)
	r.says(r.AllReduce(at[1], at[1], 1000, i32, 0, r.comms[1], r.streams[1]), sim.NCCLInvalidArgument)
	r.says(r.GroupEnd(), sim.NCCLInvalidArgument)
	r.ok(r.StreamQuery(r.streams[1]))
	r.noFaults()
}

func TestACollectiveIsReportedThatIsNotInPlaceOrOfNothingWritten(t *testing.T) {
	r := ranks(t, 2, sim.Config{})
	for name, do := range map[string]func(k int, at uint64) int{
		"what is sent (4 bytes at": func(k int, at uint64) int { // in place would be at 4k
			return r.AllGather(at+uint64(4-4*k), at, 1, i32, r.comms[k], r.streams[k])
		},
		"and nobody has written it": func(k int, at uint64) int {
			return r.AllReduce(at+8, at+8, 1, i32, 0, r.comms[k], r.streams[k])
		},
	} {
		before := len(r.m.Faults())
		for k := range 2 {
			r.on(k)
			at := r.alloc(16)
			r.ok(r.MemsetD8Async(at, 0, 8, r.streams[k]))
			r.started(k, do(k, at))
		}
		r.m.Wait()
		all := r.m.Faults()[before:]
		if len(all) == 0 || !strings.Contains(all[0].Error(), name) {
			t.Errorf("%s: %v", name, all)
		}
		for _, f := range all {
			if f.Result != sim.Success { // a device would not notice
				t.Error(f)
			}
		}
	}
	// Memory that has gone breaks the context of who finds it.
	var at [2]uint64
	for k := range 2 {
		r.on(k)
		at[k] = r.upload(make([]byte, 8))
		r.ok(r.StreamSynchronize(r.streams[k]))
	}
	release := r.hold()
	for k := range 2 {
		r.on(k)
		r.started(k, r.AllReduce(at[k], at[k], 1, i32, 0, r.comms[k], r.streams[k]))
	}
	r.ok(r.MemFree(at[1]))
	before := len(r.m.Faults())
	release()
	for tries := 0; len(r.m.Faults()) == before && tries < 10000; tries++ {
		time.Sleep(time.Millisecond)
	}
	r.on(0)
	r.want(r.StreamQuery(r.streams[0]), sim.NotReady) // who does not come leaves the others waiting
	r.does(r.CommAbort(r.comms[0]))
	r.fault(sim.IllegalAddress, "was freed while work that uses it was queued")
}

func TestAGraphHasCollectives(t *testing.T) {
	r := ranks(t, 2, sim.Config{})
	var at [2]uint64
	var exec [2]uintptr
	for k := range 2 {
		r.on(k)
		at[k] = r.upload(encode(i32, 1))
		var g uintptr
		r.ok(r.StreamBeginCapture(r.streams[k], 1))
		r.started(k, r.AllReduce(at[k], at[k], 1, i32, 0, r.comms[k], r.streams[k]))
		r.ok(r.StreamEndCapture(r.streams[k], &g))
		r.ok(r.GraphInstantiate(&exec[k], g, 0))
	}
	for range 3 {
		for k := range 2 {
			r.on(k)
			r.ok(r.GraphLaunch(exec[k], r.streams[k]))
		}
	}
	for k := range 2 {
		r.on(k)
		if b := r.download(at[k], 4); !bytes.Equal(b, encode(i32, 8)) {
			t.Errorf("rank %d: %x", k, b)
		}
	}
	r.noFaults()
}

func TestWithoutAMachineNCCLRefuses(t *testing.T) {
	r := ranks(t, 1, sim.Config{})
	r.m.Close()
	r.says(r.GroupStart(), sim.NCCLUnhandledCudaError)
	r.says(r.GetVersion(new(int32)), sim.NCCLUnhandledCudaError)
	r.says(r.CommAbort(r.comms[0]), sim.NCCLUnhandledCudaError)
}
