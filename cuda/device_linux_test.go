//go:build cgo && linux

package cuda

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/gofsdp/gofsdp/cuda/kernels"
	"github.com/gofsdp/gofsdp/device"
)

// testDevice returns a device of the test's driver, which is closed at the end and must have given
// everything back then.
func testDevice(t testing.TB, o Options) (device.Device, *control) {
	t.Helper()
	s, c := testDriver(t)
	d, err := Open(s)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := New(d, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.fail("", 0, 0)
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		if c.Live != 0 {
			t.Errorf("%d things were not given back", c.Live)
		}
	})
	c.calls()
	return dev, c
}

func alloc(t testing.TB, d device.Device, size int64, in device.Memory) device.Buffer {
	t.Helper()
	b, err := d.Alloc(size, in)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// swiGLU returns an operation of one kernel, its operands in a buffer of their own.
func swiGLU(t testing.TB, d device.Device, n int64) *device.SwiGLU {
	b := alloc(t, d, 3*4*n, device.Local)
	return &device.SwiGLU{Gate: b.In(device.F32, 0, n), Up: b.In(device.F32, 4*n, n), Out: b.In(device.F32, 8*n, n), N: int(n)}
}

// native is an operation that starts itself.
type native struct{ start func() error }

func (o *native) Check() error                 { return nil }
func (o *native) Cost() device.Cost            { return device.Cost{} }
func (o *native) Reference()                   {}
func (o *native) Start(_ unsafe.Pointer) error { return o.start() }

func TestADeviceSaysWhatItIs(t *testing.T) {
	d, _ := testDevice(t, Options{})
	if want := (device.Info{Name: "Test GPU 0", Kind: "cuda", ISA: "sm_89", Memory: 24 << 30, BF16Native: true}); d.Info() != want {
		t.Errorf("%+v", d.Info())
	}
}

func TestMemoryIsZeroedAlignedAndFreedOnce(t *testing.T) {
	d, c := testDevice(t, Options{})
	for _, in := range []device.Memory{device.Local, device.Shared, device.Pinned} {
		b := alloc(t, d, 1001, in)
		if b.Memory != in || b.Size != 1001 || b.Addr%256 != 0 || (b.Host != nil) != (in == device.Pinned) {
			t.Fatalf("%+v", b)
		}
		// The test's device has the host's memory.
		for i, x := range unsafe.Slice((*byte)(b.In(device.F32, 0, 1).Pointer()), b.Size) {
			if x != 0 {
				t.Fatalf("byte %d of %v memory is %d", i, in, x)
			}
		}
		if err := d.Free(b); err != nil {
			t.Fatal(err)
		}
		if err := d.Free(b); err == nil || !strings.Contains(err.Error(), "cuda: device 0 has no buffer at address 0x") {
			t.Fatal(err)
		}
	}
	if log := c.calls(); strings.Count(log, "cuMemAlloc_v2 1001") != 2 || !strings.Contains(log, "cuMemHostAlloc 1001 3") {
		t.Error(log)
	}
	if _, err := d.Alloc(0, device.Local); err == nil {
		t.Error("a buffer of 0 bytes")
	}
	c.fail("cuMemAlloc_v2", 2, 0)
	_, err := d.Alloc(5<<30, device.Local)
	const want = "device 0: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory: 5368709120 bytes of local memory, of which the device has 1048576 free of 25769803776; another process may hold the memory; nvidia-smi shows which"
	if err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

func TestOperationsBecomeCallsInTheOrderInWhichTheyAreLaunched(t *testing.T) {
	d, c := testDevice(t, Options{Urgent: []string{"gather"}})
	a, b, e := d.NewStream("compute"), d.NewStream("gather"), d.NewEvent()
	op := swiGLU(t, d, 100)
	host, local := alloc(t, d, 400, device.Pinned), alloc(t, d, 400, device.Local)
	streams := regexp.MustCompile(`cuStreamCreateWithPriority 1 (-?\d)\n`).FindAllStringSubmatch(c.calls(), -1)
	if len(streams) != 2 || streams[0][1] != "0" || streams[1][1] != "-5" {
		t.Errorf("priorities %q", streams)
	}
	host.In(device.F32, 0, 100).F32()[99] = 7
	b.Wait(e) // never recorded: nothing
	b.Launch(&device.Copy{Src: host.In(device.F32, 0, 100), Dst: local.In(device.F32, 0, 100), N: 100})
	b.Record(e)
	a.Wait(e)
	a.Launch(&device.Copy{Src: local.In(device.F32, 0, 100), Dst: op.Gate, N: 100})
	a.Launch(op)
	a.Launch(&device.Fill{Dst: op.Up, N: 100, Value: 2})
	a.Launch(&device.Fill{Dst: op.Out.Slice(0, 50), N: 50, Value: -1})
	a.Launch(&device.Fill{Dst: local.In(device.BF16, 0, 10), N: 10, Value: 1})
	a.Launch(&device.Copy{Src: op.Gate, Dst: host.In(device.F32, 0, 100), N: 100})
	a.Launch(&device.Copy{Src: host.In(device.F32, 0, 10), Dst: host.In(device.F32, 200, 10), N: 10})
	if err := errors.Join(a.Sync(), b.Sync()); err != nil {
		t.Fatal(err)
	}
	if got := op.Gate.F32()[99]; got != 7 || op.Up.F32()[3] != 2 || op.Out.F32()[49] != -1 || local.In(device.BF16, 18, 1).BF16()[0] != 0x3f80 {
		t.Errorf("%v, %v, %v", got, op.Up.F32()[3], op.Out.F32()[49])
	}
	var kernels []string
	log := regexp.MustCompile(`first argument (0x[0-9a-f]+)`).ReplaceAllStringFunc(c.calls(), func(s string) string {
		kernels = append(kernels, s)
		return "first argument"
	})
	want := `cuMemcpyHtoDAsync_v2 s3 400
cuEventRecord s3
cuStreamWaitEvent s2 0
cuMemcpyDtoDAsync_v2 s2 400
cuLaunchKernel s2 swiglu_f32 1x1x1 of 256x1x1, 0, first argument
cuMemsetD32Async s2 0x40000000 100
cuMemsetD32Async s2 0xbf800000 50
cuMemsetD16Async s2 0x3f80 10
cuMemcpyDtoHAsync_v2 s2 400
cuLaunchKernel s2 copy_f32 1x1x1 of 256x1x1, 0, first argument
cuEventRecord s2
cuCtxSetCurrent context
cuEventSynchronize 
cuCtxSetCurrent none
`
	if !strings.HasPrefix(strings.ReplaceAll(log, "swi_glu", "swiglu"), want) {
		t.Errorf("got\n%s\nwant\n%s", log, want)
	}
	if len(kernels) != 2 || kernels[0] != fmt.Sprintf("first argument %#x", op.Gate.Addr) {
		t.Errorf("%q", kernels)
	}
}

func TestTheStepLoopAllocatesNothing(t *testing.T) {
	d, c := testDevice(t, Options{})
	c.Silent = 1
	s, e := d.NewStream("a"), d.NewEvent()
	kernel := swiGLU(t, d, 100)
	host := alloc(t, d, 400, device.Pinned)
	b := alloc(t, d, 4*300, device.Local)
	product := &device.MatMul{A: b.In(device.F32, 0, 100), B: b.In(device.F32, 400, 100), Bias: b.In(device.F32, 0, 10), C: b.In(device.F32, 800, 100), M: 10, N: 10, K: 10}
	ops := []device.Op{
		kernel, product, &device.Copy{Src: host.In(device.F32, 0, 100), Dst: kernel.Up, N: 100}, &device.Fill{Dst: kernel.Out, N: 100},
		&device.ReduceSum{Srcs: []device.Tensor{kernel.Gate, kernel.Up}, Dst: kernel.Out, N: 100},
		&native{func() error { return nil }},
	}
	n := testing.AllocsPerRun(200, func() {
		for _, op := range ops {
			s.Launch(op)
		}
		s.Record(e)
		s.Wait(e)
		if err := s.Sync(); err != nil || !e.Done() {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestAnOperationThatHasChangedIsLoweredAnew(t *testing.T) {
	d, c := testDevice(t, Options{})
	s := d.NewStream("a")
	b := alloc(t, d, 4000, device.Local)
	part := func(i int64) device.Tensor { return b.In(device.F32, 400*i, 100) }
	op := &device.ReduceSum{Srcs: []device.Tensor{part(0), part(1)}, Dst: part(2), N: 100}
	run := func(change func()) string {
		change()
		s.Launch(op)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		return c.calls()
	}
	works := d.(*gpu).works
	run(func() {})
	first := works[op]
	if run(func() {}); works[op] != first {
		t.Error("an operation that is the same is lowered anew")
	}
	if run(func() { op.Dst = part(3) }); works[op] == first {
		t.Error("an operand has changed")
	}
	second := works[op]
	if run(func() { op.Srcs[1] = part(4) }); works[op] == second {
		t.Error("a list has changed")
	}
}

func TestAFailedStreamSkipsUntilSyncButStillRecords(t *testing.T) {
	d, c := testDevice(t, Options{})
	a, b, e := d.NewStream("a"), d.NewStream("b"), d.NewEvent()
	op := swiGLU(t, d, 100)
	c.fail("cuLaunchKernel", 2, 1)
	ran := 0
	count := &native{func() error { ran++; return nil }}
	a.Launch(op)
	a.Launch(op) // fails
	a.Launch(count)
	a.Record(e)
	b.Wait(e)
	b.Launch(count)
	if err := b.Sync(); err != nil || ran != 1 {
		t.Fatal(err, ran)
	}
	err := a.Sync()
	const want = "stream a: SwiGLU: cuLaunchKernel: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory: kernel "
	var e1 *Error
	if !errors.As(err, &e1) || !strings.HasPrefix(err.Error(), want) || !strings.Contains(err.Error(), "grid [1 1 1], block [256 1 1], 0 bytes") ||
		e1.Operation() != device.Op(op) || e1.Call != "cuLaunchKernel" || ran != 1 || !e.Done() {
		t.Fatalf("%v; ran %d, done %v", err, ran, e.Done())
	}
	c.fail("", 0, 0)
	a.Launch(count)
	if err := a.Sync(); err != nil || ran != 2 {
		t.Fatal(err, ran)
	}
}

func TestWhatTheGPUFindsLaterIsToldBySync(t *testing.T) {
	for _, c := range []struct {
		ops  int
		want string
	}{
		{1, "this stream had started SwiGLU; cuda.Options.Synchronous finds which operation it was"},
		{3, "this stream had started 3 operations, SwiGLU to Fill; cuda.Options.Synchronous finds which it was"},
	} {
		d, control := testDevice(t, Options{})
		s := d.NewStream("a")
		op := swiGLU(t, d, 100)
		for range max(1, c.ops-1) {
			s.Launch(op)
		}
		if c.ops > 1 {
			s.Launch(&device.Fill{Dst: op.Out, N: 100})
		}
		control.fail("cuEventSynchronize", 700, 0)
		want := "stream a: cuEventSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered: " + c.want + "; work that was started earlier on this device did it, and nothing more can be done on it"
		if err := s.Sync(); err == nil || err.Error() != want {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
}

func TestAnOperationIsNotBlamedForAnEarlierOne(t *testing.T) {
	d, c := testDevice(t, Options{})
	s := d.NewStream("a")
	op := swiGLU(t, d, 100)
	s.Launch(&device.Fill{Dst: op.Up, N: 100})
	c.fail("cuLaunchKernel", 700, 0)
	s.Launch(op)
	var e *Error
	if err := s.Sync(); !errors.As(err, &e) || e.Operation() != nil || !strings.Contains(err.Error(), "had started 2 operations, Fill to SwiGLU") {
		t.Error(err)
	}
}

func TestSynchronousFindsTheOperation(t *testing.T) {
	d, c := testDevice(t, Options{Synchronous: true})
	s := d.NewStream("a")
	op := swiGLU(t, d, 100)
	fill := &device.Fill{Dst: op.Out, N: 100}
	c.fail("cuStreamSynchronize", 700, 1)
	s.Launch(fill)
	s.Launch(op)
	s.Launch(fill)
	var e *Error
	if err := s.Sync(); !errors.As(err, &e) || e.Op != device.Op(op) || !strings.Contains(err.Error(), device.Format(op)) {
		t.Fatal(err)
	}
	if n := strings.Count(c.calls(), "cuMemsetD32Async"); n != 1 {
		t.Errorf("%d fills", n)
	}
}

func TestWhatNoKernelCanDoIsTheStreamsError(t *testing.T) {
	d, _ := testDevice(t, Options{})
	s := d.NewStream("a")
	good := swiGLU(t, d, 100)
	b := alloc(t, d, 8000, device.Local)
	f64 := func(i int64) device.Tensor { return b.In(device.F64, 800*i, 100) }
	beyond := *good
	beyond.Out.Addr += 4
	unbound := *good
	unbound.Up.Addr = 0
	wrong := *good
	wrong.N = 99
	for want, op := range map[string]device.Op{
		"stream a: cuda: SwiGLU: operand Out (400 bytes at 0x":                                       &beyond,
		"stream a: cuda: SwiGLU: operand Up (400 bytes at 0x0) does not lie in a buffer of device 0": &unbound,
		"stream a: cuda: SwiGLU: Gate has 100 elements, want 99":                                     &wrong,
		"stream a: cuda: SwiGLU: operands of f64: ":                                                  &device.SwiGLU{Gate: f64(0), Up: f64(1), Out: f64(2), N: 100},
		"stream a: no link":               &native{func() error { return errors.New("no link") }},
		"stream a: native: of somebody\n": &native{func() error { panic("of somebody") }},
	} {
		s.Launch(op)
		if err := s.Sync(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	s.Launch(good)
	if err := s.Sync(); err != nil {
		t.Error(err)
	}
}

func TestNobodyWaitsButWhoSyncs(t *testing.T) {
	d, c := testDevice(t, Options{})
	a, b, e := d.NewStream("a"), d.NewStream("b"), d.NewEvent()
	if !e.Done() {
		t.Fatal("a new event is not done")
	}
	c.Held = 1 // no event fires
	a.Record(e)
	synced := make(chan error)
	go func() { synced <- a.Sync() }()
	ran := make(chan bool)
	b.Launch(&native{func() error { close(ran); return nil }})
	<-ran
	if e.Done() {
		t.Error("the event is held")
	}
	select {
	case err := <-synced:
		t.Fatalf("a held stream is done: %v", err)
	case <-time.After(10 * time.Millisecond):
	}
	c.Held = 0
	if err := <-synced; err != nil || !e.Done() {
		t.Error(err)
	}
}

func TestAnEventIsNotDoneBeforeItsRecordHasReachedTheDriver(t *testing.T) {
	d, _ := testDevice(t, Options{})
	s, e := d.NewStream("a"), d.NewEvent()
	gate := make(chan bool)
	s.Launch(&native{func() error { <-gate; return nil }})
	s.Record(e)
	if e.Done() {
		t.Error("done while it is queued")
	}
	close(gate)
	if err := s.Sync(); err != nil || !e.Done() {
		t.Error(err)
	}
}

func TestAnEventIsDoneWhenItsRecordIsLost(t *testing.T) {
	d, c := testDevice(t, Options{})
	a, b, e := d.NewStream("a"), d.NewStream("b"), d.NewEvent()
	c.fail("cuEventRecord", 700, 0)
	a.Record(e)
	d.NewEvent() // the thread has come so far
	c.fail("", 0, 0)
	c.calls()
	b.Wait(e)
	if err := b.Sync(); err != nil || strings.Contains(c.calls(), "cuStreamWaitEvent") {
		t.Error("a stream waits for a record that is lost", err)
	}
	err := a.Sync()
	if err == nil || !strings.Contains(err.Error(), "stream a: cuEventRecord: CUDA_ERROR_ILLEGAL_ADDRESS") || !e.Done() {
		t.Error(err, e.Done())
	}
}

func TestAnEventOfAnotherDeviceIsAMistake(t *testing.T) {
	d, _ := testDevice(t, Options{})
	other, _ := testDevice(t, Options{})
	defer func() {
		if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), "stream a of device 0 is given an event of another device") {
			t.Error(p)
		}
	}()
	d.NewStream("a").Wait(other.NewEvent())
}

func TestAStreamThatCannotBeMadeSaysWhyAtEverySync(t *testing.T) {
	d, c := testDevice(t, Options{})
	c.fail("cuStreamCreateWithPriority", 2, 0)
	s, e := d.NewStream("a"), d.NewEvent()
	for range 2 {
		s.Launch(swiGLU(t, d, 10))
		s.Record(e)
		s.Wait(e)
		if err := s.Sync(); err == nil || !strings.HasPrefix(err.Error(), "stream a: device 0: cuStreamCreateWithPriority: CUDA_ERROR_OUT_OF_MEMORY") || !e.Done() {
			t.Error(err)
		}
	}
}

func TestAfterCloseEverythingIsAnErrorOrDone(t *testing.T) {
	d, c := testDevice(t, Options{})
	s, e := d.NewStream("a"), d.NewEvent()
	alloc(t, d, 10, device.Local)
	alloc(t, d, 10, device.Pinned)
	ran := false
	c.Held = 1
	s.Launch(&native{func() error { ran = true; return nil }})
	s.Record(e)
	d.NewEvent() // the thread has come so far
	c.calls()
	if err := errors.Join(d.Close(), d.Close()); err != nil || !ran || c.Live != 0 {
		t.Fatal(err, ran, c.Live)
	}
	if log := c.calls(); !strings.HasPrefix(log, "cuCtxSynchronize ") {
		t.Errorf("Close does not wait for the GPU first:\n%s", log)
	}
	if err := s.Sync(); err == nil || err.Error() != "stream a: its device is closed" {
		t.Error(err)
	}
	if _, err := d.Alloc(1, device.Local); err == nil || err.Error() != "cuda: device 0 is closed" {
		t.Error(err)
	}
	if !e.Done() {
		t.Error("an event of a closed device is not done")
	}
}

// TestWhateverFailsAtTheStartIsNamedAndTheRestGivenBack lets each call that New makes fail in turn.
func TestWhateverFailsAtTheStartIsNamedAndTheRestGivenBack(t *testing.T) {
	s, c := testDriver(t)
	d, err := Open(s)
	if err != nil {
		t.Fatal(err)
	}
	c.calls()
	dev, err := New(d, Options{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	log := c.calls()
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(log) {
		call, _, _ := strings.Cut(line, " ")
		if seen[call] {
			continue
		}
		seen[call] = true
		c.fail(call, 700, 0)
		_, err := New(d, Options{})
		var e *Error
		if !errors.As(err, &e) || e.Code != 700 || !strings.HasPrefix(call, e.Call) {
			t.Errorf("%s fails: %v", call, err)
		}
		if c.Live != 0 {
			t.Errorf("%s fails: %d things were not given back", call, c.Live)
		}
		if call == "cuModuleLoadDataEx" && !strings.Contains(err.Error(), " of kernels: cuModuleLoadDataEx: CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered: ptxas fatal : line 7 of ") {
			t.Error(err)
		}
	}
	for _, k := range kernels.All() {
		if asks := strings.Contains(log, fmt.Sprintf("cuFuncSetAttribute %s 8 %d\n", k.Name, k.Shared)); asks != (k.Shared > 48<<10) {
			t.Errorf("kernel %s of %d bytes of shared memory: asked for %v", k.Name, k.Shared, asks)
		}
	}
	for _, call := range []string{"cuDevicePrimaryCtxRetain", "cuCtxSetCurrent", "cuModuleLoadDataEx", "cuModuleGetFunction", "cuFuncGetAttribute"} {
		if !seen[call] {
			t.Errorf("New does not call %s; it calls %v", call, reflect.ValueOf(seen).MapKeys())
		}
	}
}

func TestWhatTheCompilerMadeOfEachKernelIsAskedAtTheStart(t *testing.T) {
	d, c := testDevice(t, Options{})
	if d := device.NewReference(); CompiledKernels(d) != nil || d.Close() != nil {
		t.Error("the reference device has kernels")
	}
	all := kernels.All()
	compiled := CompiledKernels(d)
	if len(compiled) != len(all) {
		t.Fatalf("%d kernels, want %d", len(compiled), len(all))
	}
	for i, k := range all { // as the test's driver says
		if got, want := compiled[i], (Compiled{Kernel: k, Registers: 104, Spilled: 103, Shared: 101 + k.Shared}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	s := d.NewStream("compute")
	c.calls()
	s.Launch(swiGLU(t, d, 100))
	if err := s.Sync(); err != nil || strings.Contains(c.calls(), "cuFunc") {
		t.Error(err, "or a launch asks again")
	}
}

func TestWhatTheGPUTakesIsMeasuredByEventsAroundIt(t *testing.T) {
	d, c := testDevice(t, Options{})
	s := d.NewStream("a")
	op := swiGLU(t, d, 100)
	c.calls()
	took, err := s.(interface {
		Time(f func()) (time.Duration, error)
	}).Time(func() { s.Launch(op) })
	if err != nil || took != time.Millisecond { // as the test's driver says
		t.Fatal(took, err)
	}
	log := regexp.MustCompile(` .*\n`).ReplaceAllString(c.calls(), " ")
	if !strings.HasPrefix(log, "cuEventCreate cuEventRecord cuLaunchKernel cuEventCreate cuEventRecord ") ||
		!strings.HasSuffix(log, " cuEventElapsedTime cuEventDestroy_v2 cuEventDestroy_v2 ") {
		t.Error(log)
	}
	c.fail("cuLaunchKernel", 2, 0)
	if _, err := s.(interface {
		Time(f func()) (time.Duration, error)
	}).Time(func() { s.Launch(op) }); err == nil || !strings.Contains(err.Error(), "SwiGLU: cuLaunchKernel: ") {
		t.Error(err)
	}
}

// BenchmarkLaunch is what a launch costs the host, to the driver and back, without the driver's own work.
func BenchmarkLaunch(b *testing.B) {
	d, c := testDevice(b, Options{})
	c.Silent = 1
	s, op := d.NewStream("a"), swiGLU(b, d, 100)
	for b.Loop() {
		s.Launch(op)
	}
	if err := s.Sync(); err != nil {
		b.Fatal(err)
	}
}

func TestWithinTheContextIsCurrentForThatTimeAlone(t *testing.T) {
	d, c := testDevice(t, Options{})
	g := d.(*gpu)
	mine := errors.New("mine")
	gate := make(chan struct{})
	go func() { _ = g.Do(func() error { <-gate; return nil }) }() // the device's thread is needed for nothing
	c.calls()
	var inside string
	if err := g.Within(func() error { inside = c.calls(); return mine }); !errors.Is(err, mine) {
		t.Error(err)
	}
	if after := c.calls(); inside != "cuCtxSetCurrent context\n" || after != "cuCtxSetCurrent none\n" {
		t.Errorf("before: %safter: %s", inside, after)
	}
	close(gate)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	c.calls()
	if err := g.Within(func() error { return mine }); !errors.Is(err, mine) || c.calls() != "" {
		t.Errorf("of a closed device: %v", err)
	}
}
