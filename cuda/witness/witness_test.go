//go:build cu && sim && cgo && linux && amd64

package witness_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"gorgonia.org/cu"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/kernels"
	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/cuda/witness"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// gpu says what the tests stand before: they are the same for both.
var gpu = flag.Bool("gpu", false, "take this machine's driver and its first GPU instead of the simulated ones")

// stand is a GPU as both layers see it: ours, and the binding.
type stand struct {
	driver  *cuda.Driver
	ours    device.Device
	theirs  *witness.Device
	machine *sim.Machine // nil: the GPU is real

	mistakes int // of calls that the test makes on purpose
}

// newStand gives the test a GPU. It belongs to the test's thread, and at the end nothing may be left of it
// or have gone wrong.
func newStand(t *testing.T, c sim.Config) *stand {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	t.Cleanup(func() {
		if name := witness.Missed(); t.Failed() && name != "" {
			t.Logf("the binding has called %s, of which there is none here", name)
		}
	})
	s := &stand{}
	var err error
	if *gpu {
		s.driver, err = cuda.Open(cuda.Sources{})
		if err == nil {
			err = witness.Open(cuda.Sources{}.Find().Driver.Path)
		}
	} else {
		c.Devices = []sim.Device{sim.L4()}
		if s.machine, err = sim.Start(c); err == nil {
			t.Cleanup(func() { s.end(t) })
			err = witness.Simulate(s.machine.Table())
		}
		if err == nil {
			s.driver, err = cuda.OpenTable(s.machine.Table(), s.machine.BLAS())
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	if s.ours, err = cuda.New(s.driver, cuda.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.ours.Close(); err != nil {
			t.Error(err)
		}
	})
	if s.theirs, err = witness.New(0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.theirs.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *stand) end(t *testing.T) {
	s.machine.Wait()
	for _, f := range s.machine.Faults() {
		t.Error(f)
	}
	for _, what := range s.machine.Leaks() {
		t.Error(what)
	}
	if refused := s.machine.Refused(); len(refused) != s.mistakes {
		t.Errorf("%d calls were refused, want %d: %q", len(refused), s.mistakes, refused)
	}
	s.machine.Close()
}

// stream returns one of the binding's.
func stream(t *testing.T) cu.Stream {
	t.Helper()
	s, err := cu.MakeStreamWithPriority(0, cu.NonBlocking)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Destroy(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestTheBindingSeesTheSameDevice(t *testing.T) {
	s := newStand(t, sim.Config{})
	ours, err := s.driver.Properties(0)
	if err != nil {
		t.Fatal(err)
	}
	devices, err := cu.NumDevices()
	if n, e := s.driver.Count(); e != nil || err != nil || n != devices {
		t.Errorf("%d devices by us (%v), %d by the binding (%v)", n, e, devices, err)
	}
	d := cu.Device(0)
	name, err := d.Name()
	if err != nil {
		t.Fatal(err)
	}
	memory, err := d.TotalMem()
	if err != nil {
		t.Fatal(err)
	}
	attributes, err := d.Attributes(cu.ComputeCapabilityMajor, cu.ComputeCapabilityMinor, cu.MultiprocessorCount, cu.UnifiedAddressing)
	if err != nil {
		t.Fatal(err)
	}
	const text = "%s with %d bytes, compute capability %d.%d, %d multiprocessors, one address space: %v"
	want := fmt.Sprintf(text, ours.Name, ours.Memory, ours.Major, ours.Minor, ours.SMs, ours.Unified)
	got := fmt.Sprintf(text, name, memory, attributes[0], attributes[1], attributes[2], attributes[3] != 0)
	if got != want {
		t.Errorf("the binding sees %s, and we see %s", got, want)
	}
	t.Logf("%s, driver of CUDA %d", got, cu.Version())
}

// What one of them allocates, both see: the GPU's primary context is one.
func TestMemoryIsOneForBoth(t *testing.T) {
	s := newStand(t, sim.Config{})
	const n = 1 << 20
	theirs := stream(t)
	compute := s.ours.NewStream("compute")
	local, err := s.ours.Alloc(4*n, device.Local)
	if err != nil {
		t.Fatal(err)
	}
	compute.Launch(&device.Fill{Dst: local.In(device.F32, 0, n), N: n, Value: 1.5})
	if err := compute.Sync(); err != nil {
		t.Fatal(err)
	}
	memory := optest.NewMemory(t, optest.Rand(t))
	seen := memory.Blank(device.F32, n)
	if err := errors.Join(cu.MemcpyDtoHAsync(seen.Pointer(), cu.DevicePtr(local.Addr), 4*n, theirs), theirs.Synchronize()); err != nil {
		t.Fatal(err)
	}
	for i, x := range seen.F32() {
		if x != 1.5 {
			t.Fatalf("element %d of what we filled is %v to the binding", i, x)
		}
	}

	// The other way: the binding writes, and we read.
	other := memory.Normal(device.F32, n, 0, 1)
	pinned, err := s.ours.Alloc(4*n, device.Pinned)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(cu.MemcpyHtoDAsync(cu.DevicePtr(local.Addr), other.Pointer(), 4*n, theirs), theirs.Synchronize()); err != nil {
		t.Fatal(err)
	}
	compute.Launch(&device.Copy{Src: local.In(device.F32, 0, n), Dst: pinned.In(device.F32, 0, n), N: n})
	if err := compute.Sync(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(pinned.Host, optest.Bytes(other)) {
		t.Error("what the binding has written is something else to us")
	}
	if err := errors.Join(s.ours.Free(local), s.ours.Free(pinned)); err != nil {
		t.Fatal(err)
	}
}

func TestAllocationsTakeWhatTheySay(t *testing.T) {
	s := newStand(t, sim.Config{})
	s.mistakes = 2
	const n = 256 << 20
	before, total, err := cu.MemInfo()
	if err != nil {
		t.Fatal(err)
	}
	p, err := cu.MemAlloc(n)
	if err != nil {
		t.Fatal(err)
	}
	during, _, err := cu.MemInfo()
	if err != nil {
		t.Fatal(err)
	}
	if took := before - during; took < n || took > n+4<<20 {
		t.Errorf("%d bytes took %d of %d", n, took, total)
	}
	if err := cu.MemFree(p); err != nil {
		t.Fatal(err)
	}
	if after, _, err := cu.MemInfo(); err != nil || after < before {
		t.Errorf("%d bytes were free before, %d are after (%v)", before, after, err)
	}
	if _, err := cu.MemAlloc(total + 1); !errors.Is(err, cu.OutOfMemory) {
		t.Errorf("more than there is: %v", err)
	}
	if err := cu.MemFree(cu.DevicePtr(8)); !errors.Is(err, cu.InvalidValue) {
		t.Errorf("freeing what nobody has allocated: %v", err)
	}
}

func TestFillsAndCopiesWithinTheDeviceAreWhatTheySay(t *testing.T) {
	newStand(t, sim.Config{Pause: time.Millisecond})
	s := stream(t)
	const n = 1000
	a, err := cu.MemAlloc(4 * n)
	if err != nil {
		t.Fatal(err)
	}
	b, err := cu.MemAlloc(4 * n)
	if err != nil {
		t.Fatal(err)
	}
	back := optest.NewMemory(t, optest.Rand(t)).Blank(device.F32, n)
	err = errors.Join(
		cu.MemsetD32Async(a, 0x01020304, n, s), cu.MemsetD16Async(a, 0x0506, n, s), cu.MemsetD8Async(a, 7, n, s),
		cu.MemcpyDtoDAsync(b, a, 4*n, s), cu.MemcpyDtoHAsync(back.Pointer(), b, 4*n, s), s.Synchronize(),
		cu.MemFree(a), cu.MemFree(b))
	if err != nil {
		t.Fatal(err)
	}
	want := bytes.Repeat([]byte{4, 3, 2, 1}, n)
	copy(want, bytes.Repeat([]byte{6, 5}, n))
	copy(want, bytes.Repeat([]byte{7}, n))
	if !bytes.Equal(optest.Bytes(back), want) {
		t.Errorf("% x... instead of % x...", optest.Bytes(back)[:8], want[:8])
	}
}

// TestEventsOrderStreams hands a number from stream to stream; each time the newest comes back.
func TestEventsOrderStreams(t *testing.T) {
	at := newStand(t, sim.Config{Seed: 1, Pause: time.Millisecond})
	a, b := stream(t), stream(t)
	var events []cu.Event
	for range 3 {
		e, err := cu.MakeEvent(cu.DefaultEvent)
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, e)
	}
	const n = 1000
	first, err := cu.MemAlloc(4 * n)
	if err != nil {
		t.Fatal(err)
	}
	second, err := cu.MemAlloc(4 * n)
	if err != nil {
		t.Fatal(err)
	}
	back := optest.NewMemory(t, optest.Rand(t)).Blank(device.I32, n)
	begin, there, done := events[0], events[1], events[2]
	if err := begin.Record(a); err != nil {
		t.Fatal(err)
	}
	for turn := range 20 {
		err := errors.Join(
			done.Record(b), a.Wait(done, 0),
			cu.MemsetD32Async(first, uint(turn), n, a), there.Record(a), b.Wait(there, 0),
			cu.MemcpyDtoDAsync(second, first, 4*n, b), cu.MemcpyDtoHAsync(back.Pointer(), second, 4*n, b), b.Synchronize())
		if err != nil {
			t.Fatal(err)
		}
		if got := back.I32(); got[0] != int32(turn) || got[n-1] != int32(turn) {
			t.Fatalf("turn %d: %d and %d", turn, got[0], got[n-1])
		}
	}
	if err := errors.Join(there.Synchronize(), there.Query()); err != nil {
		t.Error(err)
	}
	if ms, err := begin.Elapsed(there); err != nil || ms <= 0 {
		t.Errorf("%v ms (%v)", ms, err)
	}
	if at.machine != nil { // of a real GPU nobody knows what it has not done yet
		release := at.machine.Hold()
		err := errors.Join(cu.MemsetD32Async(first, 1, n, a), there.Record(a))
		if e, q := there.Query(), a.Query(); !errors.Is(e, cu.NotReady) || !errors.Is(q, cu.NotReady) {
			t.Errorf("work is queued, and the event says %v, the stream %v (%v)", e, q, err)
		}
		release()
		if err := errors.Join(there.Synchronize(), a.Synchronize()); err != nil {
			t.Error(err)
		}
	}
	for _, e := range events {
		if err := cu.DestroyEvent(&e); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(cu.MemFree(first), cu.MemFree(second)); err != nil {
		t.Error(err)
	}
}

// TestKernelsGiveTheSameBytesThroughTheBinding runs each operation through both layers, until the binding has
// started every kernel.
func TestKernelsGiveTheSameBytesThroughTheBinding(t *testing.T) {
	rng := optest.Rand(t)
	s := newStand(t, sim.Config{Seed: rng.Uint64(), Pause: 100 * time.Microsecond})
	compute, theirs := s.ours.NewStream("compute"), stream(t)
	memory := optest.NewMemory(t, rng)
	// Not every random case needs every kernel of its operation.
	for round := 0; round < 10 && len(s.unwitnessed()) > 0; round++ {
		for _, typ := range []device.DType{device.F32, device.BF16} {
			for _, c := range append(optest.Cases(t, rng, typ), attentions(memory, typ)...) {
				if kind := device.Name(c.Op); kind != "MatMul" { // it is cuBLAS's
					s.compare(t, fmt.Sprintf("%v/%s", typ, c.Name), memory, c.Op, compute, theirs)
				}
			}
		}
	}
	for _, name := range s.unwitnessed() {
		t.Errorf("the binding has not started %s", name)
	}
	t.Logf("%d kernels give the same bytes", len(s.theirs.Started))
}

// unwitnessed names the kernels that the binding has not started.
func (s *stand) unwitnessed() (names []string) {
	for _, k := range kernels.All() {
		if s.theirs.Started[k.Name] == 0 {
			names = append(names, k.Name)
		}
	}
	return names
}

// compare runs an operation through both layers.
func (s *stand) compare(t *testing.T, name string, memory optest.Memory, op device.Op, compute device.Stream, theirs cu.Stream) {
	t.Helper()
	ours, witnessed := memory.Clone(op), memory.Clone(op)
	err := s.theirs.Run(witnessed, theirs)
	if kind := device.Name(op); strings.HasPrefix(kind, "Attention") && err != nil && strings.HasPrefix(err.Error(), "cuda: "+kind+": ") {
		return // random heads have sizes that there is no kernel for
	}
	if err == nil {
		err = run(s.ours, compute, ours)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	other := device.Operands(witnessed)
	for i, o := range device.Operands(ours) {
		a, b := optest.Bytes(*o.T), optest.Bytes(*other[i].T)
		for j := range a {
			if a[j] != b[j] {
				t.Errorf("%s: byte %d of %s is %#x to us and %#x to the binding", name, j, o.Name, a[j], b[j])
				break
			}
		}
	}
}

// attentions are those of the head sizes that there are kernels for, with whole and divided tiles, a document's
// boundary and query heads that share one.
func attentions(m optest.Memory, typ device.DType) (list []optest.Case) {
	const seqs, seqLen, heads, kvHeads, cached = 2, 70, 4, 2, 50
	for _, size := range []int{64, 128} {
		scale := float32(1 / math.Sqrt(float64(size)))
		normal := func(n int) device.Tensor { return m.Normal(typ, n*size, 0, 1) }
		start := m.Ints(seqs*seqLen, func(i int) int { return i % seqLen / 33 * 33 })
		forward := &device.Attention{
			Q: normal(seqs * seqLen * heads), K: normal(seqs * seqLen * kvHeads), V: normal(seqs * seqLen * kvHeads), Start: start,
			Out: m.Blank(typ, seqs*seqLen*heads*size), LSE: m.Blank(device.F32, seqs*seqLen*heads),
			Seqs: seqs, SeqLen: seqLen, Heads: heads, KVHeads: kvHeads, HeadSize: size, Scale: scale,
		}
		done := m.Clone(forward).(*device.Attention)
		done.Reference()
		backward := &device.AttentionBackward{
			Q: done.Q, K: done.K, V: done.V, Start: done.Start, Out: done.Out, LSE: done.LSE, DOut: normal(seqs * seqLen * heads),
			D: m.Blank(device.F32, seqs*seqLen*heads), Parts: m.Parts(done),
			DQ: m.Blank(typ, int(done.Q.Len)), DK: m.Blank(typ, int(done.K.Len)), DV: m.Blank(typ, int(done.V.Len)),
			Seqs: seqs, SeqLen: seqLen, Heads: heads, KVHeads: kvHeads, HeadSize: size, Scale: scale,
		}
		decode := &device.AttentionDecode{
			Q: normal(seqs * heads), K: normal(seqs * kvHeads), V: normal(seqs * kvHeads), Out: m.Blank(typ, seqs*heads*size),
			KCache: normal(seqs * cached * kvHeads), VCache: normal(seqs * cached * kvHeads), Cached: m.Ints(seqs, func(i int) int { return 20 * i }),
			Seqs: seqs, SeqLen: 1, CacheLen: cached, Heads: heads, KVHeads: kvHeads, HeadSize: size, Scale: scale,
		}
		for _, op := range []device.Op{forward, backward, decode} {
			list = append(list, optest.Case{Name: device.Format(op), Op: op})
		}
	}
	return list
}

// run computes an operation of the host's memory on our device.
func run(d device.Device, s device.Stream, op device.Op) (err error) {
	type pair struct{ staged, there device.Buffer }
	pairs := map[device.Addr]pair{}
	there := device.Clone(op)
	defer func() {
		for _, p := range pairs {
			err = errors.Join(err, d.Free(p.staged), d.Free(p.there))
		}
	}()
	operands, moved := device.Operands(op), device.Operands(there)
	for i, o := range operands {
		p, ok := pairs[o.T.Addr]
		if !ok {
			size := max(1, o.T.Bytes())
			if p.staged, err = d.Alloc(size, device.Pinned); err != nil {
				return err
			}
			if p.there, err = d.Alloc(size, device.Local); err != nil {
				return errors.Join(err, d.Free(p.staged))
			}
			pairs[o.T.Addr] = p
			copy(p.staged.Host, optest.Bytes(*o.T))
			s.Launch(&device.Copy{Src: p.staged.In(o.T.Type, 0, o.T.Len), Dst: p.there.In(o.T.Type, 0, o.T.Len), N: int(o.T.Len)})
		}
		moved[i].T.Addr = p.there.Addr
	}
	s.Launch(there)
	for _, o := range operands {
		p := pairs[o.T.Addr]
		s.Launch(&device.Copy{Src: p.there.In(o.T.Type, 0, o.T.Len), Dst: p.staged.In(o.T.Type, 0, o.T.Len), N: int(o.T.Len)})
	}
	if err := s.Sync(); err != nil {
		return err
	}
	for _, o := range operands {
		copy(optest.Bytes(*o.T), pairs[o.T.Addr].staged.Host)
	}
	return nil
}

// A test of the test: another argument is another result.
func TestAWrongArgumentShows(t *testing.T) {
	s := newStand(t, sim.Config{})
	compute, theirs := s.ours.NewStream("compute"), stream(t)
	memory := optest.NewMemory(t, optest.Rand(t))
	op := &device.SwiGLU{Gate: memory.Normal(device.F32, 100, 0, 1), Up: memory.Normal(device.F32, 100, 0, 1), Out: memory.Blank(device.F32, 100), N: 100}
	ours, witnessed := memory.Clone(op), memory.Clone(op).(*device.SwiGLU)
	witnessed.Gate, witnessed.Up = witnessed.Up, witnessed.Gate
	if err := errors.Join(s.theirs.Run(witnessed, theirs), run(s.ours, compute, ours)); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(optest.Bytes(ours.(*device.SwiGLU).Out), optest.Bytes(witnessed.Out)) {
		t.Error("gate and value the other way round give the same")
	}
}

// TestWhatAKernelDoesWrongTheBindingIsTold is for the simulator alone: a real GPU's context is lost by it.
func TestWhatAKernelDoesWrongTheBindingIsTold(t *testing.T) {
	if *gpu {
		t.Skip("the context would be lost to the tests that follow")
	}
	m, err := sim.Start(sim.Config{Devices: []sim.Device{sim.L4()}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := witness.Simulate(m.Table()); err != nil {
		t.Fatal(err)
	}
	d, err := witness.New(0)
	if err != nil {
		t.Fatal(err)
	}
	s, err := cu.MakeStreamWithPriority(0, cu.NonBlocking)
	if err != nil {
		t.Fatal(err)
	}
	p, err := cu.MemAlloc(4000)
	if err != nil {
		t.Fatal(err)
	}
	x := func(i int64) device.Tensor {
		return device.Tensor{Addr: device.Addr(p) + device.Addr(4*i), Len: 1000, Type: device.F32}
	}
	launches, err := kernels.Lower(&device.SwiGLU{Gate: x(0), Up: x(0), Out: x(8), N: 1000}) // past the end
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(cu.MemsetD8Async(p, 0, 4000, s), d.Launch(launches[0], s))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Synchronize(); !errors.Is(err, cu.IllegalAddress) {
		t.Errorf("a kernel wrote past the end of memory, and the binding is told %v", err)
	}
	if len(m.Faults()) != 1 {
		t.Errorf("%v", m.Faults())
	}
	_ = d.Close() // its context is lost
}

// TestADriversFileIsCalled opens a driver as that of a GPU is opened: the one of package cuda's tests. What it
// has not is named.
func TestADriversFileIsCalled(t *testing.T) {
	if *gpu {
		t.Skip("the tests stand before a real one")
	}
	file := filepath.Join(t.TempDir(), "libcuda.so.1")
	cc := strings.Fields(os.Getenv("CC"))
	if len(cc) == 0 {
		cc = []string{"cc"}
	}
	args := append(cc[1:], "-shared", "-fPIC", "-pthread", "-I..", "-o", file, "../testdata/driver/driver.c")
	if text, err := exec.Command(cc[0], args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	// What the driver is told stands in a file beside it: its version, what cuInit says, devices, compute capability.
	control := make([]byte, 2<<20)
	for i, n := range []uint32{12040, 0, 3, 8} {
		binary.NativeEndian.PutUint32(control[4*i:], n)
	}
	if err := os.WriteFile(file+".control", control, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := witness.Open(file); err != nil {
		t.Fatal(err)
	}
	if n, err := cu.NumDevices(); err != nil || n != 3 || cu.Version() != 12040 {
		t.Errorf("%d devices, version %d (%v)", n, cu.Version(), err)
	}
	if _, err := cu.CurrentDevice(); !errors.Is(err, cu.NotSupported) || witness.Missed() != "cuCtxGetDevice" {
		t.Errorf("a function that the driver has not: %v, and missed is %q", err, witness.Missed())
	}
	if err := witness.Open(filepath.Join(t.TempDir(), "libcuda.so.1")); err == nil || !strings.Contains(err.Error(), "No such file") {
		t.Errorf("no file: %v", err)
	}
}

func TestMain(m *testing.M) {
	flag.Parse()
	if *gpu {
		if _, err := cuda.Open(cuda.Sources{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}
