//go:build sim && cgo && linux

package sim_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/cuda/sim/calls"
)

// apart is a rank that each device of a machine is, all called on one thread.
type apart struct {
	*rig
	calls.NCCL
	contexts, streams, comms []uintptr
}

// plain is the configuration of a communicator that waits for nothing.
func plain() *calls.Config {
	return &calls.Config{Size: 72, Magic: 0xcafebeef, Version: 22700, Name: "test"}
}

// devices starts a machine of n small devices, each with a stream.
func devices(t testing.TB, n int, c sim.Config) *apart {
	t.Helper()
	for range n {
		c.Devices = append(c.Devices, small())
	}
	r := &apart{rig: start(t, c), comms: make([]uintptr, n)}
	r.NCCL = calls.UseNCCL(r.m.NCCLTable())
	r.ok(r.Init(0))
	for i := range n {
		r.enter(int32(i))
		var context uintptr
		r.ok(r.CtxGetCurrent(&context))
		r.contexts, r.streams = append(r.contexts, context), append(r.streams, r.newStream())
	}
	return r
}

// ranks is devices that have joined a communicator.
func ranks(t testing.TB, n int, c sim.Config) *apart {
	t.Helper()
	r := devices(t, n, c)
	var id [128]byte
	r.does(r.GetUniqueId(&id))
	for i := range n {
		r.on(i)
		r.says(r.CommInitRankConfig(&r.comms[i], n, id, i, plain()), sim.NCCLInProgress)
	}
	for i := range n {
		r.settled(i, sim.NCCLSuccess)
	}
	return r
}

// on makes a rank's context current.
func (r *apart) on(rank int) {
	r.Helper()
	r.ok(r.CtxSetCurrent(r.contexts[rank]))
	r.stream = r.streams[rank]
}

// does demands success of NCCL.
func (r *apart) does(result int) {
	r.Helper()
	r.says(result, sim.NCCLSuccess)
}

// says demands a result of NCCL.
func (r *apart) says(result int, want sim.NCCLResult) {
	r.Helper()
	if got := sim.NCCLResult(result); got != want {
		r.Fatalf("%v, want %v; the last refusal: %s", got, want, r.GetLastError(0))
	}
}

// settled asks a communicator until it has no call under way, and demands how it is then.
func (r *apart) settled(rank int, want sim.NCCLResult) {
	r.Helper()
	state := int32(sim.NCCLInProgress)
	for tries := 0; sim.NCCLResult(state) == sim.NCCLInProgress && tries < 10000; tries++ {
		if tries > 10 {
			time.Sleep(time.Millisecond)
		}
		r.does(r.CommGetAsyncError(r.comms[rank], &state))
	}
	r.says(int(state), want)
}

// started demands that a collective is under way, and then has been taken.
func (r *apart) started(rank, result int) {
	r.Helper()
	r.says(result, sim.NCCLInProgress)
	r.settled(rank, sim.NCCLSuccess)
}

// Types, by their numbers.
const i32, f32, f64, bf16 = 2, 7, 8, 9

// encode writes numbers as a type has them.
func encode(typ int, numbers ...float64) (b []byte) {
	le := binary.LittleEndian
	for _, x := range numbers {
		switch typ {
		case i32:
			b = le.AppendUint32(b, uint32(int32(x)))
		case f32:
			b = le.AppendUint32(b, math.Float32bits(float32(x)))
		case f64:
			b = le.AppendUint64(b, math.Float64bits(x))
		case bf16:
			b = le.AppendUint16(b, uint16(math.Float32bits(float32(x))>>16))
		}
	}
	return b
}

func TestNCCLsCollectivesDoWhatTheyAreFor(t *testing.T) {
	for _, n := range []int{1, 2, 4} {
		for _, typ := range []int{i32, f32, f64, bf16} {
			t.Run(fmt.Sprintf("%d ranks, type %d", n, typ), func(t *testing.T) {
				r := ranks(t, n, sim.Config{Seed: uint64(n), Pause: 50 * time.Microsecond})
				const each = 3
				size := len(encode(typ, 0))
				// Rank k holds k+1, k+2, ...: the sum over ranks at i is n·i + n(n+1)/2.
				var mine [4][]byte
				var sums, all []float64
				for i := range n * each {
					sums = append(sums, float64(n*i+n*(n+1)/2))
				}
				for k := range n {
					var own []float64
					for i := range n * each {
						own = append(own, float64(k+1+i))
					}
					mine[k] = encode(typ, own...)
					all = append(all, own[k*each:(k+1)*each]...)
				}
				at := func(place []uint64, k int) uint64 { return place[k] + uint64(k*each*size) }
				whole, other := make([]uint64, n), make([]uint64, n)
				fill := func() {
					for k := range n {
						r.on(k)
						whole[k] = r.upload(mine[k])
						other[k] = r.upload(make([]byte, n*each*size))
					}
				}
				expect := func(place []uint64, want []byte) {
					t.Helper()
					for k := range n {
						r.on(k)
						r.expect(place[k], want)
					}
				}
				run := func(call func(k int) int) {
					t.Helper()
					for k := range n {
						r.on(k)
						r.started(k, call(k))
					}
				}
				fill()
				run(func(k int) int { // in place
					return r.AllGather(at(whole, k), whole[k], each, typ, r.comms[k], r.streams[k])
				})
				expect(whole, encode(typ, all...))
				fill()
				run(func(k int) int {
					return r.AllGather(at(whole, k), other[k], each, typ, r.comms[k], r.streams[k])
				})
				expect(other, encode(typ, all...))
				fill()
				run(func(k int) int {
					return r.AllReduce(whole[k], whole[k], uint64(n*each), typ, 0, r.comms[k], r.streams[k])
				})
				expect(whole, encode(typ, sums...))
				fill()
				run(func(k int) int { // in place
					return r.ReduceScatter(whole[k], at(whole, k), each, typ, 0, r.comms[k], r.streams[k])
				})
				for k := range n {
					r.on(k)
					r.expect(at(whole, k), encode(typ, sums[k*each:(k+1)*each]...))
				}
				fill()
				run(func(k int) int {
					return r.Reduce(whole[k], other[k], uint64(n*each), typ, 0, n-1, r.comms[k], r.streams[k])
				})
				r.on(n - 1)
				r.expect(other[n-1], encode(typ, sums...))
				if n > 1 {
					r.on(0)
					r.expect(other[0], make([]byte, n*each*size))
				}
				fill()
				run(func(k int) int {
					return r.Broadcast(whole[k], whole[k], uint64(n*each), typ, n-1, r.comms[k], r.streams[k])
				})
				expect(whole, mine[n-1])
				for k := range n {
					r.on(k)
					r.does(r.AllReduce(1, 1, 0, typ, 0, r.comms[k], r.streams[k])) // nothing, from nowhere
				}
				r.noFaults()
			})
		}
	}
}

func TestSumsOfNCCLAreInTheOrderOfRanks(t *testing.T) {
	r := ranks(t, 4, sim.Config{})
	for _, c := range []struct {
		typ    int
		values [4]float64
		want   float64
	}{
		{f32, [4]float64{1e8, 1, -1e8, 1}, 1}, // ((1e8 + 1) - 1e8) + 1, where 1e8 + 1 is 1e8
		{bf16, [4]float64{256, 1, 1, 0}, 258}, // rounded once: 256 + 1 is 256 in bf16
		{bf16, [4]float64{256, 1, 0, 0}, 256}, // a tie goes to the even one
		{f64, [4]float64{1e16, 1, -1e16, 1}, 1},
	} {
		var at [4]uint64
		for k := range 4 {
			r.on(k)
			at[k] = r.upload(encode(c.typ, c.values[k]))
			r.started(k, r.AllReduce(at[k], at[k], 1, c.typ, 0, r.comms[k], r.streams[k]))
		}
		for k := range 4 {
			r.on(k)
			r.expect(at[k], encode(c.typ, c.want))
		}
	}
	r.on(0)
	nan, b := encode(bf16, math.NaN()), []byte(nil)
	at := r.upload(nan)
	r.started(0, r.AllReduce(at, at, 1, bf16, 0, r.comms[0], r.streams[0]))
	for k := range 3 {
		r.on(k + 1)
		one := r.upload(encode(bf16, 1))
		r.started(k+1, r.AllReduce(one, one, 1, bf16, 0, r.comms[k+1], r.streams[k+1]))
	}
	r.on(0)
	if b = r.download(at, 2); math.Float32frombits(uint32(binary.LittleEndian.Uint16(b))<<16) == 0 || b[1]&0x7f != 0x7f {
		t.Errorf("the sum with a NaN is %x", b)
	}
}

func TestWrongArgumentsOfNCCLAreRefused(t *testing.T) {
	r := ranks(t, 2, sim.Config{})
	if last := r.GetLastError(r.comms[0]); last != "" {
		t.Errorf("before any error, the last one is %q", last)
	}
	r.on(1)
	theirs := r.alloc(64)
	foreign := r.streams[1]
	r.on(0)
	a, c, s := r.alloc(64), r.comms[0], r.streams[0]
	for name, x := range map[string]struct {
		got  int
		want sim.NCCLResult
		why  string
	}{
		"no communicator":                 {r.AllReduce(a, a, 1, f32, 0, 0, s), sim.NCCLInvalidArgument, "null communicator"},
		"a stream as communicator":        {r.AllReduce(a, a, 1, f32, 0, s, s), sim.NCCLInvalidArgument, "corrupted comm"},
		"a type that is none":             {r.AllReduce(a, a, 1, 12, 0, c, s), sim.NCCLInvalidArgument, "type 12"},
		"a type that is not simulated":    {r.AllReduce(a, a, 1, 6, 0, c, s), sim.NCCLInvalidUsage, "not simulated"},
		"a reduction that is none":        {r.AllReduce(a, a, 1, f32, 5, c, s), sim.NCCLInvalidArgument, "reduction 5"},
		"a reduction that is not a sum":   {r.AllReduce(a, a, 1, f32, 4, c, s), sim.NCCLInvalidUsage, "not simulated"},
		"too many elements":               {r.AllReduce(a, a, 17, f32, 0, c, s), sim.NCCLInvalidArgument, "past the end"},
		"far too many":                    {r.AllReduce(a, a, 1<<60, f32, 0, c, s), sim.NCCLInvalidArgument, "elements"},
		"memory of another device":        {r.AllReduce(theirs, theirs, 1, f32, 0, c, s), sim.NCCLInvalidArgument, "memory of device 1"},
		"an address of nothing":           {r.AllReduce(a, 4096, 1, f32, 0, c, s), sim.NCCLInvalidArgument, "receive: nothing"},
		"an address between elements":     {r.AllReduce(a+2, a+2, 1, f32, 0, c, s), sim.NCCLInvalidArgument, "no multiple"},
		"a stream of another device":      {r.AllReduce(a, a, 1, f32, 0, c, foreign), sim.NCCLUnhandledCudaError, "none of device 0"},
		"no stream":                       {r.AllReduce(a, a, 1, f32, 0, c, 0), sim.NCCLUnhandledCudaError, "none of device 0"},
		"a root beyond the ranks":         {r.Broadcast(a, a, 1, f32, 2, c, s), sim.NCCLInvalidArgument, "of 2 ranks"},
		"a root below the ranks":          {r.Reduce(a, a, 1, f32, 0, -1, c, s), sim.NCCLInvalidArgument, "of 2 ranks"},
		"a gather without room":           {r.AllGather(a, a, 9, f32, c, s), sim.NCCLInvalidArgument, "receive"},
		"a scatter of too little":         {r.ReduceScatter(a, a, 9, f32, 0, c, s), sim.NCCLInvalidArgument, "send"},
		"no place for a version":          {r.GetVersion(nil), sim.NCCLInvalidArgument, "null pointer"},
		"no place for an id":              {r.GetUniqueId(nil), sim.NCCLInvalidArgument, "null pointer"},
		"no place for an error":           {r.CommGetAsyncError(c, nil), sim.NCCLInvalidArgument, "null pointer"},
		"an error of no communicator":     {r.CommGetAsyncError(0, new(int32)), sim.NCCLInvalidArgument, "null communicator"},
		"the end of no communicator":      {r.CommFinalize(1 << 40), sim.NCCLInvalidArgument, "corrupted comm"},
		"nothing to destroy":              {r.CommDestroy(0), sim.NCCLInvalidArgument, "null communicator"},
		"nothing to abort":                {r.CommAbort(0), sim.NCCLInvalidArgument, "null communicator"},
		"the end of a group that is none": {r.GroupEnd(), sim.NCCLInvalidUsage, "not in a group"},
	} {
		if got := sim.NCCLResult(x.got); got != x.want {
			t.Errorf("%s: %v, want %v", name, got, x.want)
		}
		if all := strings.Join(r.m.Refused(), "\n"); !strings.Contains(all, x.why) {
			t.Errorf("%s: no refusal says %q", name, x.why)
		}
	}
	r.on(1)
	r.says(r.AllReduce(a, a, 1, f32, 0, c, s), sim.NCCLUnhandledCudaError)
	r.ok(r.CtxSetCurrent(0))
	r.says(r.AllReduce(a, a, 1, f32, 0, c, s), sim.NCCLUnhandledCudaError)
	if last := r.GetLastError(c); !strings.Contains(last, "thread whose device is not its own") {
		t.Errorf("the last error: %q", last)
	}
	for result, want := range map[int]string{0: "no error", 6: "remote process exited or there was a network error", 99: "unknown result code"} {
		if got := r.GetErrorString(result); got != want {
			t.Errorf("%d: %q", result, got)
		}
	}
	var v int32
	if r.does(r.GetVersion(&v)); v != 22907 {
		t.Errorf("version %d", v)
	}
}

func TestACommunicatorIsRefusedByWhatIsWrongWithIt(t *testing.T) {
	r := devices(t, 2, sim.Config{})
	var id, never [128]byte
	r.does(r.GetUniqueId(&id))
	init := func(n int, id [128]byte, rank int, change func(*calls.Config)) int {
		c := plain()
		if change != nil {
			change(c)
		}
		return r.CommInitRankConfig(&r.comms[0], n, id, rank, c)
	}
	r.says(r.CommInitRankConfig(nil, 2, id, 0, plain()), sim.NCCLInvalidArgument)
	r.says(init(0, id, 0, nil), sim.NCCLInvalidArgument)
	r.says(init(2, id, 2, nil), sim.NCCLInvalidArgument)
	r.says(init(2, id, -1, nil), sim.NCCLInvalidArgument)
	r.says(init(2, never, 0, nil), sim.NCCLSystemError)
	r.says(init(2, id, 0, func(c *calls.Config) { c.Magic = 1 }), sim.NCCLInvalidArgument)
	r.says(init(2, id, 0, func(c *calls.Config) { c.Size = 88 }), sim.NCCLInvalidArgument)
	r.says(init(2, id, 0, func(c *calls.Config) { c.Blocking = 2 }), sim.NCCLInvalidArgument)
	r.says(init(2, id, 0, func(c *calls.Config) { c.Net = "Libfabric" }), sim.NCCLInvalidUsage)
	r.why("Failed to initialize any NET plugin")
	r.does(r.GroupStart())
	r.says(init(2, id, 0, nil), sim.NCCLInvalidUsage)
	r.does(r.GroupEnd())
	r.ok(r.CtxSetCurrent(0))
	r.says(init(2, id, 0, nil), sim.NCCLUnhandledCudaError)
	r.on(0)
	r.says(init(2, id, 0, nil), sim.NCCLInProgress)
	first := r.comms[0]
	r.says(init(2, id, 0, nil), sim.NCCLInternalError)
	r.why("already checked in")
	// The second rank is on the same device: both are told.
	r.says(init(2, id, 1, nil), sim.NCCLInProgress)
	r.settled(0, sim.NCCLInvalidUsage)
	r.says(r.AllReduce(0, 0, 1, f32, 0, r.comms[0], r.stream), sim.NCCLInvalidUsage)
	r.why("Duplicate GPU detected: rank 0 and rank 1 both on CUDA device 31000")
	r.does(r.CommAbort(first))
	r.does(r.CommAbort(r.comms[0]))
	// Ranks that do not agree on their number wait for ever.
	r.does(r.GetUniqueId(&id))
	r.says(init(2, id, 0, nil), sim.NCCLInProgress)
	r.says(init(3, id, 1, nil), sim.NCCLInProgress)
	r.m.Wait()
	if all := r.m.Faults(); len(all) != 1 || !strings.Contains(all[0].Error(), "mismatch in rank count from procs 2 : 3") {
		t.Errorf("%v", all)
	}
}

func TestACommunicatorMayWaitForItsRanks(t *testing.T) {
	r := devices(t, 2, sim.Config{NCCL: sim.NCCL{Version: 23007, Nets: []string{"Libfabric", "Socket"}}})
	var id [128]byte
	r.does(r.GetUniqueId(&id))
	var all sync.WaitGroup
	result := make([]int, 2)
	for i := range 2 {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if i == 0 {
				result[i] = r.CtxSetCurrent(r.contexts[0]) | r.CommInitRankConfig(&r.comms[0], 2, id, 0, nil)
				return
			}
			c := plain()
			c.Blocking, c.Net = 1, "Libfabric"
			result[i] = r.CtxSetCurrent(r.contexts[1]) | r.CommInitRankConfig(&r.comms[1], 2, id, 1, c)
		})
	}
	all.Wait()
	r.does(result[0])
	r.does(result[1])
	var at [2]uint64
	for k := range 2 {
		r.on(k)
		at[k] = r.upload(encode(i32, float64(k+1)))
		r.does(r.AllReduce(at[k], at[k], 1, i32, 0, r.comms[k], r.streams[k]))
	}
	for k := range 2 {
		r.on(k)
		r.does(r.CommFinalize(r.comms[k])) // waits
		r.expect(at[k], encode(i32, 3))
		r.says(r.CommFinalize(r.comms[k]), sim.NCCLInvalidArgument)
		r.says(r.AllReduce(at[k], at[k], 1, i32, 0, r.comms[k], r.streams[k]), sim.NCCLInvalidUsage)
		r.does(r.CommDestroy(r.comms[k]))
		r.says(r.CommDestroy(r.comms[k]), sim.NCCLInvalidArgument)
	}
	var v int32
	if r.does(r.GetVersion(&v)); v != 23007 {
		t.Errorf("version %d", v)
	}
	r.m.SetNCCLVersion(22800)
	if r.does(r.GetVersion(&v)); v != 22800 {
		t.Errorf("version %d", v)
	}
	r.noFaults()
}

func TestACommunicatorIsUsedWhenItsLastCallIsThrough(t *testing.T) {
	r := devices(t, 2, sim.Config{NCCL: sim.NCCL{Polls: 1}})
	var id [128]byte
	var state int32
	r.does(r.GetUniqueId(&id))
	r.on(0)
	r.says(r.CommInitRankConfig(&r.comms[0], 2, id, 0, plain()), sim.NCCLInProgress)
	a := r.upload(encode(f32, 1))
	for range 5 { // the other has not come
		r.does(r.CommGetAsyncError(r.comms[0], &state))
		r.says(int(state), sim.NCCLInProgress)
	}
	r.says(r.AllReduce(a, a, 1, f32, 0, r.comms[0], r.streams[0]), sim.NCCLInvalidArgument)
	r.why("before the previous operation returned ncclSuccess")
	r.says(r.CommFinalize(r.comms[0]), sim.NCCLInvalidArgument)
	r.says(r.CommDestroy(r.comms[0]), sim.NCCLInvalidArgument)
	r.on(1)
	r.says(r.CommInitRankConfig(&r.comms[1], 2, id, 1, plain()), sim.NCCLInProgress)
	r.settled(0, sim.NCCLSuccess)
	r.settled(1, sim.NCCLSuccess)
	// A collective is in the stream when NCCL has taken it, and not before.
	r.on(0)
	r.says(r.AllReduce(a, a, 1, f32, 0, r.comms[0], r.streams[0]), sim.NCCLInProgress)
	r.ok(r.StreamSynchronize(r.streams[0]))
	r.settled(0, sim.NCCLSuccess)
	r.want(r.StreamQuery(r.streams[0]), sim.NotReady)
	r.says(r.CommFinalize(r.comms[0]), sim.NCCLInProgress)
	for range 5 {
		r.does(r.CommGetAsyncError(r.comms[0], &state))
		r.says(int(state), sim.NCCLInProgress)
	}
	r.on(1)
	b := r.upload(encode(f32, 2))
	r.started(1, r.AllReduce(b, b, 1, f32, 0, r.comms[1], r.streams[1]))
	r.on(0)
	r.settled(0, sim.NCCLSuccess)
	r.does(r.CommDestroy(r.comms[0]))
	r.on(1)
	r.does(r.CommDestroy(r.comms[1])) // without Finalize: it waits itself
	r.noFaults()
	for k := range 2 {
		r.on(k)
		r.ok(r.StreamDestroy(r.streams[k]))
		r.ok(r.MemFree([]uint64{a, b}[k]))
		r.ok(r.DevicePrimaryCtxRelease(int32(k)))
	}
	if left := r.m.Leaks(); len(left) > 0 {
		t.Errorf("%q", left)
	}
}
