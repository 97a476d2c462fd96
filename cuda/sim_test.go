//go:build sim && cgo && linux

package cuda_test

import (
	"bytes"
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
func simulated(t *testing.T, gpus int, c sim.Config, o cuda.Options) []device.Device {
	t.Helper()
	_, devices := simulatedMachine(t, gpus, c, o)
	return devices
}

// simulatedMachine also returns the machine.
func simulatedMachine(t *testing.T, gpus int, c sim.Config, o cuda.Options) (m *sim.Machine, devices []device.Device) {
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
	driver, err := cuda.OpenTable(m.Table(), m.BLAS())
	if err != nil {
		t.Fatal(err)
	}
	for n := range gpus {
		o.Ordinal = n
		d, err := cuda.New(driver, o)
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
	return m, devices
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
			if strings.HasPrefix(device.Name(op), "Attention") {
				off = 0 // its kernels take aligned operands alone
			}
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
	d := simulated(t, 1, sim.Config{Seed: rng.Uint64(), Pause: 100 * time.Microsecond}, cuda.Options{})[0]
	s := d.NewStream("compute")
	ran, refused := map[string]int{}, map[string]int{}
	types := []device.DType{device.F32, device.BF16}
	for i := range 20 { // until each has had a shape that there are kernels for
		typ := types[i%2]
		for _, c := range optest.Cases(t, rng, typ) {
			if i > 1 && ran[device.Name(c.Op)] > 0 {
				continue
			}
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
					if name := device.Name(c.Op); name == "MatMul" || !strings.HasPrefix(err.Error(), "stream compute: cuda: "+name+": ") {
						t.Fatal(err)
					}
					refused[device.Name(c.Op)]++
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
		case ran[name] == 0:
			t.Errorf("no %s ran, and %d were refused", name, refused[name])
		case refused[name] > 0:
			t.Logf("%d of %d %s were refused by name", refused[name], refused[name]+ran[name], name)
		}
	}
}

func TestStreamsAreOrderedByEventsOnSimulatedGPUs(t *testing.T) {
	rng := optest.Rand(t)
	var all sync.WaitGroup
	for n, d := range simulated(t, 2, sim.Config{Seed: rng.Uint64(), Pause: time.Millisecond}, cuda.Options{}) {
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
	driver, err := cuda.OpenTable(m.Table(), m.BLAS())
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
	d := simulated(t, 1, sim.Config{Pause: 100 * time.Microsecond}, cuda.Options{Graphs: true})[0]
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
		launchAll(s, ops)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if got := back.F32(); got[0] != float32(turn+1) || got[n-1] != float32(turn+1) {
			t.Fatalf("turn %d: %v and %v", turn, got[0], got[n-1])
		}
	}
}

// TestAGraphIsLetGoOfWhileTheGPUIsBusy frees a buffer, with which all graphs go, while one of them cannot begin, as
// behind a collective that hangs. What is under way still ends.
func TestAGraphIsLetGoOfWhileTheGPUIsBusy(t *testing.T) {
	machine, devices := simulatedMachine(t, 1, sim.Config{}, cuda.Options{Graphs: true})
	d := devices[0]
	const n = 1000
	b, err := d.Alloc(8*n, device.Local)
	if err != nil {
		t.Fatal(err)
	}
	other, err := d.Alloc(8, device.Local)
	if err != nil {
		t.Fatal(err)
	}
	host, err := d.Alloc(4*n, device.Pinned)
	if err != nil {
		t.Fatal(err)
	}
	x := func(i int64) device.Tensor { return b.In(device.F32, 4*n*i, n) }
	s := d.NewStream("compute")
	s.Launch(&device.Fill{Dst: x(1), N: n, Value: 1})
	ops := []device.Op{
		&device.ReduceSum{Srcs: []device.Tensor{x(0), x(1)}, Dst: x(0), N: n},
		&device.Copy{Src: x(0), Dst: host.In(device.F32, 0, n), N: n},
	}
	for range 3 {
		launchAll(s, ops)
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	release := machine.Hold()
	launchAll(s, ops)
	if err := d.Free(other); err != nil {
		t.Error(err)
	}
	release()
	launchAll(s, ops)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	if got := host.In(device.F32, 0, n).F32(); got[0] != 5 || got[n-1] != 5 {
		t.Errorf("%v and %v after five runs", got[0], got[n-1])
	}
}

// launchAll launches a list of operations, as one where the stream takes lists.
func launchAll(s device.Stream, ops []device.Op) {
	if l, ok := s.(interface{ LaunchAll([]device.Op) }); ok {
		l.LaunchAll(ops)
		return
	}
	for _, op := range ops {
		s.Launch(op)
	}
}

// products returns matrix products of every form that a linear layer has. One has more rows than are given
// their bias at once.
func products(memory optest.Memory, rng *rand.Rand, operands, result device.DType) map[string]*device.MatMul {
	size := func() int { return 1 + rng.IntN(150) }
	out, in := size(), size()
	forms := map[string]*device.MatMul{
		"forward":                          {M: size(), N: out, K: in, TransB: true},
		"forward with a bias":              {M: size(), N: out, K: in, TransB: true},
		"forward of many rows with a bias": {M: 8192 + size(), N: 3, K: 2, TransB: true},
		"a bias and no transpose":          {M: size(), N: out, K: in},
		"a bias and A transposed":          {M: size(), N: out, K: in, TransA: true},
		"gradient of the input":            {M: size(), N: in, K: out},
		"gradient of the input, added":     {M: size(), N: in, K: out, Accumulate: true},
		"gradient of the weights":          {M: out, N: in, K: size(), TransA: true},
		"gradient of the weights, added":   {M: out, N: in, K: size(), TransA: true, Accumulate: true},
		"forward, added":                   {M: size(), N: out, K: in, TransB: true, Accumulate: true},
		"of one element":                   {M: 1, N: 1, K: 1},
	}
	for name, o := range forms {
		o.A, o.B = memory.Normal(operands, o.M*o.K, 0, 1), memory.Normal(operands, o.K*o.N, 0, 1)
		if o.C = memory.Blank(result, o.M*o.N); o.Accumulate {
			o.C = memory.Normal(result, o.M*o.N, 0, 1)
		}
		if strings.Contains(name, "bias") {
			o.Bias = memory.Normal(operands, o.N, 0, 1)
		}
	}
	return forms
}

// TestProductsAreTheirReferenceOnTheSimulatedGPU runs them one by one, then as a list, which is a graph
// when it runs for the second and third time. The bits are the same each time.
func TestProductsAreTheirReferenceOnTheSimulatedGPU(t *testing.T) {
	rng := optest.Rand(t)
	d := simulated(t, 1, sim.Config{Seed: rng.Uint64(), Pause: 100 * time.Microsecond}, cuda.Options{Graphs: true})[0]
	s := d.NewStream("compute")
	for _, types := range [][2]device.DType{{device.F32, device.F32}, {device.BF16, device.BF16}, {device.BF16, device.F32}} {
		t.Run(fmt.Sprintf("%v to %v", types[0], types[1]), func(t *testing.T) {
			memory := optest.NewMemory(t, rng)
			var list []device.Op
			var compare []func(turn string)
			var uploads, downloads []func(device.Stream)
			for name, op := range products(memory, rng, types[0], types[1]) {
				want, got := memory.Clone(op), memory.Clone(op)
				bounds := memory.Bounds(want)
				want.Reference()
				there, to, from := moved(t, d, rng, got)
				var first []byte
				list, uploads, downloads = append(list, there), append(uploads, to), append(downloads, from)
				compare = append(compare, func(turn string) {
					if err := optest.Compare(got, want, bounds); err != nil {
						t.Errorf("%s, %s: %v", name, turn, err)
					}
					bits := optest.Bytes(got.(*device.MatMul).C)
					if first == nil {
						first = bytes.Clone(bits)
					} else if !bytes.Equal(first, bits) {
						t.Errorf("%s, %s: other bits than the first time", name, turn)
					}
					// What accumulates begins again from the same.
					copy(bits, optest.Bytes(op.C))
				})
			}
			for _, turn := range []string{"one by one", "as a list", "as a graph", "as a graph again"} {
				for _, to := range uploads {
					to(s)
				}
				if turn == "one by one" {
					for _, op := range list {
						s.Launch(op)
					}
				} else {
					launchAll(s, list)
				}
				for i, from := range downloads {
					from(s)
					compare[i](turn)
				}
			}
		})
	}
}
