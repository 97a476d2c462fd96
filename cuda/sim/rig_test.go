//go:build sim && cgo && linux

package sim_test

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/cuda/sim/calls"
)

// TestMain fails when a function of a table has not been seen to succeed and
// to refuse, wherever all tests ran.
func TestMain(m *testing.M) {
	code := m.Run()
	all := true
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.fuzz"} {
		all = all && flag.Lookup(name).Value.String() == ""
	}
	if code == 0 && all {
		counts := calls.Counts()
		maps.Copy(counts, calls.BLASCounts())
		maps.Copy(counts, calls.NCCLCounts())
		if missing := untested(counts); len(missing) > 0 {
			fmt.Println("FAIL: functions of the tables that no test calls:", strings.Join(missing, ", "))
			code = 1
		}
	}
	os.Exit(code)
}

// untested names the functions that were never seen to succeed or never to refuse.
func untested(counts map[string]calls.Count) []string {
	var missing []string
	for name, c := range counts {
		if c.Succeeded == 0 {
			missing = append(missing, name+" (with success)")
		}
		if c.Refused == 0 {
			missing = append(missing, name+" (with an error)")
		}
	}
	slices.Sort(missing)
	return missing
}

func TestAFunctionWithoutATestIsNamed(t *testing.T) {
	if n, m := len(calls.Counts()), len(calls.BLASCounts()); n < 50 || m < 6 {
		t.Fatalf("%d functions of the driver and %d of cuBLAS are counted", n, m)
	}
	got := untested(map[string]calls.Count{"cuA": {Succeeded: 1, Refused: 1}, "cuB": {Succeeded: 1}, "cuC": {Refused: 2}})
	if want := []string{"cuB (with an error)", "cuC (with success)"}; !slices.Equal(got, want) {
		t.Errorf("untested: %q, want %q", got, want)
	}
}

// rig is a machine that a test calls on one thread.
type rig struct {
	testing.TB
	calls.Driver
	m      *sim.Machine
	stream uintptr
}

// start starts a machine for the time of the test.
func start(t testing.TB, c sim.Config) *rig {
	t.Helper()
	runtime.LockOSThread()
	m, err := sim.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Close()
		runtime.UnlockOSThread()
	})
	return &rig{TB: t, Driver: calls.Use(m.Table()), m: m}
}

// small is an L4 with little memory, so that mistakes cost little.
func small() sim.Device {
	d := sim.L4()
	d.Memory = 64 << 20
	return d
}

// ready starts a machine of some small devices with a current context on the
// first of them, and a stream.
func ready(t testing.TB, c sim.Config) *rig {
	t.Helper()
	if c.Devices == nil {
		c.Devices = []sim.Device{small()}
	}
	r := start(t, c)
	r.ok(r.Init(0))
	r.enter(0)
	r.stream = r.newStream()
	return r
}

// enter makes a device's context current.
func (r *rig) enter(device int32) {
	r.Helper()
	var context uintptr
	r.ok(r.DevicePrimaryCtxRetain(&context, device))
	r.ok(r.CtxSetCurrent(context))
}

// ok demands success.
func (r *rig) ok(result int) {
	r.Helper()
	r.want(result, sim.Success)
}

// want demands a result.
func (r *rig) want(result int, want sim.Result) {
	r.Helper()
	if got := sim.Result(result); got != want {
		why := "no call was refused"
		if all := r.m.Refused(); len(all) > 0 {
			why = "the last refusal: " + all[len(all)-1]
		}
		r.Fatalf("got %v (%d), want %v (%d); %s", got, got, want, want, why)
	}
}

// why demands that the last refusal says something.
func (r *rig) why(part string) {
	r.Helper()
	if all := r.m.Refused(); len(all) == 0 || !strings.Contains(all[len(all)-1], part) {
		r.Errorf("refused: %q; the last one should say %q", all, part)
	}
}

func (r *rig) newStream() (s uintptr) {
	r.Helper()
	r.ok(r.StreamCreateWithPriority(&s, 1, 0))
	return s
}

func (r *rig) newEvent() (e uintptr) {
	r.Helper()
	r.ok(r.EventCreate(&e, 0))
	return e
}

func (r *rig) alloc(bytes uint64) (address uint64) {
	r.Helper()
	r.ok(r.MemAlloc(&address, bytes))
	return address
}

// pinned returns pinned memory, as bytes too.
func (r *rig) pinned(n uint64) (unsafe.Pointer, []byte) {
	r.Helper()
	var p unsafe.Pointer
	r.ok(r.MemHostAlloc(&p, n, 0))
	return p, unsafe.Slice((*byte)(p), n)
}

// upload copies bytes to new device memory.
func (r *rig) upload(b []byte) uint64 {
	r.Helper()
	address := r.alloc(uint64(len(b)))
	r.ok(r.MemcpyHtoDAsync(address, unsafe.Pointer(&b[0]), uint64(len(b)), r.stream))
	return address
}

// download returns n bytes of device memory.
func (r *rig) download(address uint64, n int) []byte {
	r.Helper()
	b := make([]byte, n)
	r.ok(r.MemcpyDtoHAsync(unsafe.Pointer(&b[0]), address, uint64(n), r.stream))
	return b
}

// expect demands what is in device memory.
func (r *rig) expect(address uint64, want []byte) {
	r.Helper()
	if got := r.download(address, len(want)); !bytes.Equal(got, want) {
		r.Fatalf("at %#x: %x, want %x", address, got, want)
	}
}

// hold keeps work from beginning until release is called, or the test ends.
func (r *rig) hold() (release func()) {
	release = r.m.Hold()
	r.Cleanup(release)
	return release
}

// busy gives a stream work that takes a while, by the pauses of slow.
func (r *rig) busy(stream uintptr) {
	r.Helper()
	at := r.alloc(4)
	for range 40 {
		r.ok(r.MemsetD8Async(at, 0, 4, stream))
	}
}

// slow is a machine on which what busy does takes 200 ms or so.
var slow = sim.Config{Seed: 7, Pause: 40 * time.Millisecond}

// noFaults demands that no work has done anything wrong.
func (r *rig) noFaults() {
	r.Helper()
	r.m.Wait()
	for _, f := range r.m.Faults() {
		r.Error(f)
	}
}

// fault demands that the newest fault has a result and says something.
func (r *rig) fault(result sim.Result, part string) *sim.Fault {
	r.Helper()
	r.m.Wait()
	all := r.m.Faults()
	if len(all) == 0 {
		r.Fatalf("no fault; it should be %v, with %q", result, part)
	}
	f := all[len(all)-1]
	if f.Result != result || !strings.Contains(f.Error(), part) {
		r.Fatalf("fault %v; it should be %v, with %q", f, result, part)
	}
	return f
}
