//go:build sim && cgo && linux

package cuda_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// simulated returns the GPUs of a simulated machine. At the end they are closed, and nothing may be left
// or have gone wrong.
func simulated(t *testing.T, gpus int, c sim.Config) (devices []device.Device) {
	t.Helper()
	for range gpus {
		c.Devices = append(c.Devices, sim.L4())
	}
	m, err := sim.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Wait()
		for _, f := range m.Faults() {
			t.Error(f)
		}
		for _, what := range append(m.Leaks(), m.Refused()...) {
			t.Error(what)
		}
		m.Close()
	})
	driver, err := cuda.OpenTable(m.Table(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for n := range gpus {
		d, err := cuda.New(driver, cuda.Options{Ordinal: n})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		devices = append(devices, d)
	}
	return devices
}

// moved gives an operation memory on the device and returns it, with what brings its operands there and
// back. Operands that were one stay one. Some are aligned to their elements alone.
func moved(t *testing.T, d device.Device, rng *rand.Rand, op device.Op) (there device.Op, to, from func(device.Stream)) {
	t.Helper()
	there = device.Clone(op)
	type pair struct {
		host   device.Tensor
		staged device.Buffer
		dev    device.Tensor
	}
	pairs := map[device.Addr]pair{}
	alloc := func(size int64, in device.Memory) device.Buffer {
		b, err := d.Alloc(size, in)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Free(b); err != nil {
				t.Error(err)
			}
		})
		return b
	}
	for _, o := range device.Operands(there) {
		host := *o.T
		p, ok := pairs[host.Addr]
		if !ok {
			off := host.Type.Size() * int64(rng.IntN(2))
			size := max(1, host.Bytes())
			p = pair{host, alloc(size, device.Pinned), alloc(size+off, device.Local).In(host.Type, off, host.Len)}
			pairs[host.Addr] = p
		}
		o.T.Addr = p.dev.Addr
	}
	to = func(s device.Stream) {
		for _, p := range pairs {
			copy(p.staged.Host, optest.Bytes(p.host))
			s.Launch(&device.Copy{Src: p.staged.In(p.host.Type, 0, p.host.Len), Dst: p.dev, N: int(p.host.Len)})
		}
	}
	from = func(s device.Stream) {
		for _, p := range pairs {
			s.Launch(&device.Copy{Src: p.dev, Dst: p.staged.In(p.host.Type, 0, p.host.Len), N: int(p.host.Len)})
		}
		if err := s.Sync(); err != nil {
			t.Error(err)
			return
		}
		for _, p := range pairs {
			copy(optest.Bytes(p.host), p.staged.Host)
		}
	}
	return there, to, from
}

func TestEveryOperationIsItsReferenceOnTheSimulatedGPU(t *testing.T) {
	rng := optest.Rand(t)
	d := simulated(t, 1, sim.Config{Seed: rng.Uint64(), Pause: 100 * time.Microsecond})[0]
	s := d.NewStream("compute")
	ran := map[string]int{}
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for _, c := range optest.Cases(t, rng, typ) {
			t.Run(fmt.Sprintf("%v/%s", typ, c.Name), func(t *testing.T) {
				memory := optest.NewMemory(t, rng)
				want := memory.Clone(c.Op)
				bounds := memory.Bounds(want)
				want.Reference()
				got := memory.Clone(c.Op)
				there, to, from := moved(t, d, rng, got)
				to(s)
				s.Launch(there)
				if err := s.Sync(); err != nil {
					// What is refused is refused by name.
					if name := device.Name(c.Op); !strings.HasPrefix(err.Error(), "stream compute: cuda: "+name+": ") {
						t.Fatal(err)
					}
					return
				}
				from(s)
				if err := optest.Compare(got, want, bounds); err != nil {
					t.Error(err)
				}
				ran[device.Name(c.Op)]++
			})
		}
	}
	for _, op := range device.Ops() {
		switch name := device.Name(op); {
		case name == "MatMul" || strings.HasPrefix(name, "Attention"): // products, and head sizes that it takes
		case ran[name] == 0:
			t.Errorf("no %s ran", name)
		}
	}
}

func TestStreamsAreOrderedByEventsOnSimulatedGPUs(t *testing.T) {
	rng := optest.Rand(t)
	var all sync.WaitGroup
	for n, d := range simulated(t, 2, sim.Config{Seed: rng.Uint64(), Pause: time.Millisecond}) {
		all.Go(func() {
			if err := relay(d); err != nil {
				t.Errorf("device %d: %v", n, err)
			}
		})
	}
	all.Wait()
}

// relay hands a number from stream to stream, and checks each time that the newest comes back.
func relay(d device.Device) error {
	a, b, e := d.NewStream("a"), d.NewStream("b"), d.NewEvent()
	const n = 1000
	buffer, err := d.Alloc(8*n, device.Local)
	if err != nil {
		return err
	}
	host, err := d.Alloc(4*n, device.Pinned)
	if err != nil {
		return err
	}
	first, second, back := buffer.In(device.F32, 0, n), buffer.In(device.F32, 4*n, n), host.In(device.F32, 0, n)
	for i := range 20 {
		b.Record(e)
		a.Wait(e)
		a.Launch(&device.Fill{Dst: first, N: n, Value: float32(i)})
		a.Record(e)
		b.Wait(e)
		b.Launch(&device.Copy{Src: first, Dst: second, N: n})
		b.Launch(&device.Copy{Src: second, Dst: back, N: n})
		if err := errors.Join(b.Sync(), a.Sync()); err != nil {
			return err
		}
		if !e.Done() || back.F32()[0] != float32(i) || back.F32()[n-1] != float32(i) {
			return fmt.Errorf("turn %d: %v", i, back.F32()[n-1])
		}
	}
	return nil
}

func TestAFaultOnTheSimulatedGPUIsToldAndLeavesNothingHanging(t *testing.T) {
	m, err := sim.Start(sim.Config{Devices: []sim.Device{sim.L4()}})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	driver, err := cuda.OpenTable(m.Table(), nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := cuda.New(driver, cuda.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const n = 1000
	b, err := d.Alloc(12*n, device.Local)
	if err != nil {
		t.Fatal(err)
	}
	x := func(i int64) device.Tensor { return b.In(device.F32, 4*n*i, n) }
	other, s, e := d.NewStream("other"), d.NewStream("compute"), d.NewEvent()
	release := m.Hold()
	s.Launch(&device.Fill{Dst: x(0), N: n})
	s.Launch(&device.SwiGLU{Gate: x(0), Up: x(1), Out: x(2), N: n})
	s.Record(e)
	other.Wait(e)
	if err := d.Free(b); err != nil { // a mistake: the stream uses it
		t.Fatal(err)
	}
	release()
	err = s.Sync()
	var told *cuda.Error
	if !errors.As(err, &told) || told.Code != 700 || !strings.HasPrefix(err.Error(), "stream compute: cu") ||
		!strings.Contains(err.Error(), "this stream had started 2 operations, Fill to SwiGLU; ") {
		t.Error(err)
	}
	if err := other.Sync(); err == nil {
		t.Error("another stream of a device that is lost has no error")
	}
	s.Launch(&device.Fill{Dst: x(0), N: n})
	s.Record(e)
	if err := s.Sync(); err == nil || !e.Done() {
		t.Errorf("%v, done %v", err, e.Done())
	}
	if err := d.Close(); err == nil {
		t.Error("a device that is lost closes without an error")
	}
	if len(m.Faults()) == 0 {
		t.Error("the simulator found no fault")
	}
}

func TestAGraphDoesWhatItsOperationsDoOnTheSimulatedGPU(t *testing.T) {
	m, err := sim.Start(sim.Config{Devices: []sim.Device{sim.L4()}, Pause: 100 * time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	driver, err := cuda.OpenTable(m.Table(), nil)
	if err != nil {
		t.Fatal(err)
	}
	d, err := cuda.New(driver, cuda.Options{Graphs: true})
	if err != nil {
		t.Fatal(err)
	}
	const n = 1000
	b, err := d.Alloc(12*n, device.Local)
	if err != nil {
		t.Fatal(err)
	}
	host, err := d.Alloc(4*n, device.Pinned)
	if err != nil {
		t.Fatal(err)
	}
	x := func(i int64) device.Tensor { return b.In(device.F32, 4*n*i, n) }
	back := host.In(device.F32, 0, n)
	s := d.NewStream("compute")
	// Each run adds 1 to what was there.
	s.Launch(&device.Fill{Dst: x(1), N: n, Value: 1})
	ops := []device.Op{
		&device.ReduceSum{Srcs: []device.Tensor{x(0), x(1)}, Dst: x(2), N: n},
		&device.Copy{Src: x(2), Dst: x(0), N: n},
		&device.Copy{Src: x(0), Dst: back, N: n},
	}
	for turn := range 5 {
		s.(interface{ LaunchAll([]device.Op) }).LaunchAll(ops)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if got := back.F32(); got[0] != float32(turn+1) || got[n-1] != float32(turn+1) {
			t.Fatalf("turn %d: %v and %v", turn, got[0], got[n-1])
		}
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	m.Wait()
	for _, what := range append(m.Leaks(), m.Refused()...) {
		t.Error(what)
	}
	for _, f := range m.Faults() {
		t.Error(f)
	}
}
