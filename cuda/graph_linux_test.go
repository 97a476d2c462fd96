//go:build cgo && linux

package cuda

import (
	"errors"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

// lister is what a stream of this package is besides.
type lister interface {
	device.Stream
	LaunchAll(ops []device.Op)
}

// names returns the names of the calls in a log, but those that Sync makes.
func names(log string) string {
	var all []string
	for line := range strings.Lines(log) {
		name, _, _ := strings.Cut(line, " ")
		if name != "cuCtxSetCurrent" && name != "cuEventSynchronize" && name != "cuEventRecord" {
			all = append(all, strings.TrimPrefix(name, "cu"))
		}
	}
	return strings.Join(all, " ")
}

func TestAListIsOneCallFromItsThirdLaunchOn(t *testing.T) {
	d, c := testDevice(t, Options{Graphs: true})
	s := d.NewStream("compute").(lister)
	op := swiGLU(t, d, 100)
	b := alloc(t, d, 1200, device.Local)
	product := &device.MatMul{A: b.In(device.F32, 0, 100), B: b.In(device.F32, 400, 100), C: b.In(device.F32, 800, 100), M: 10, N: 10, K: 10}
	own := &native{func() error { return nil }}
	ops := []device.Op{op, product, own, &device.Fill{Dst: op.Up, N: 100}}
	const (
		first   = "LaunchKernel CtxSynchronize MemsetD32Async" // the product's shape is new
		plain   = "LaunchKernel MemsetD32Async"
		capture = "StreamBeginCapture_v2 " + plain + " StreamEndCapture GraphInstantiateWithFlags GraphDestroy GraphLaunch"
		destroy = "GraphExecDestroy "
	)
	c.calls()
	for _, step := range []struct {
		name   string
		change func()
		want   string
	}{
		{"for the first time", func() {}, first},
		{"for the second time", func() {}, capture},
		{"for the third time", func() {}, "GraphLaunch"},
		{"an operation has changed", func() { op.Up = op.Gate }, destroy + capture},
		{"again", func() {}, "GraphLaunch"},
		{"a product has another shape", func() { product.M, product.A, product.C = 9, b.In(device.F32, 0, 90), b.In(device.F32, 800, 90) }, destroy + first},
		{"which is known now", func() {}, capture},
		{"another product has it", func() { product.C = b.In(device.F32, 816, 90) }, destroy + capture},
		{"a buffer was freed", func() {
			other := alloc(t, d, 10, device.Local)
			c.calls()
			if err := d.Free(other); err != nil {
				t.Fatal(err)
			}
		}, destroy + "MemFree_v2 " + plain},
		{"and then", func() {}, capture},
	} {
		step.change()
		s.LaunchAll(ops)
		s.LaunchAll(nil)
		if err := s.Sync(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := names(c.calls()); got != step.want {
			t.Errorf("%s: %s\nwant %s", step.name, got, step.want)
		}
	}
	c.Silent = 1
	if n := testing.AllocsPerRun(100, func() {
		s.LaunchAll(ops)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestWithoutGraphsAListIsItsOperations(t *testing.T) {
	d, c := testDevice(t, Options{})
	s := d.NewStream("compute").(lister)
	op := swiGLU(t, d, 100)
	ops := []device.Op{op, op}
	for range 3 {
		c.calls()
		s.LaunchAll(ops)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		if got := names(c.calls()); got != "LaunchKernel LaunchKernel" {
			t.Error(got)
		}
	}
}

func TestAListIsCapturedOnceWhereOneOfItLetsGoOfAllWorks(t *testing.T) {
	d, c := testDevice(t, Options{Graphs: true})
	s := d.NewStream("compute").(lister)
	op := swiGLU(t, d, 100)
	fill := func() device.Op { return &device.Fill{Dst: op.Up, N: 100} }
	ops := []device.Op{op, fill()}
	run := func() string {
		c.calls()
		s.LaunchAll(ops)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		return names(c.calls())
	}
	run()
	run()
	c.Silent = 1
	for range mostWorks - len(ops) {
		s.Launch(fill())
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
	c.Silent = 0
	ops[1] = fill()
	if got := run(); !strings.HasPrefix(got, "GraphExecDestroy StreamBeginCapture_v2 ") || !strings.HasSuffix(got, "GraphLaunch") {
		t.Error(got)
	}
	if got := run(); got != "GraphLaunch" {
		t.Errorf("the next time: %s", got)
	}
}

// TestAGraphThatCannotBeMadeIsAnErrorAndLeavesNothing lets each call of a capture fail in turn.
func TestAGraphThatCannotBeMadeIsAnErrorAndLeavesNothing(t *testing.T) {
	for call, where := range map[string]string{
		"cuStreamBeginCapture_v2": "1 operations, SwiGLU to SwiGLU", "cuStreamEndCapture": "1 operations, SwiGLU to SwiGLU",
		"cuGraphInstantiateWithFlags": "1 operations, SwiGLU to SwiGLU",
		"cuLaunchKernel":              "SwiGLU: cuLaunchKernel", "cuGraphLaunch": "this stream had started SwiGLU",
	} {
		d, c := testDevice(t, Options{Graphs: true})
		s := d.NewStream("compute").(lister)
		ops := []device.Op{swiGLU(t, d, 100)}
		s.LaunchAll(ops)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		c.fail(call, 2, 0)
		s.LaunchAll(ops)
		var e *Error
		if err := s.Sync(); !errors.As(err, &e) || !strings.HasPrefix(call, e.Call) || !strings.Contains(err.Error(), where) {
			t.Errorf("%s: %v", call, err)
		}
		c.fail("", 0, 0)
		s.LaunchAll(ops)
		if err := s.Sync(); err != nil {
			t.Errorf("after %s: %v", call, err)
		}
	}
}

// watched is a native that may fail later.
type watched struct{ native }

func (o *watched) Watch() Failure { return o }
func (o *watched) Err() error     { return nil }

func TestWhatIsWatchedIsRefusedInAListThatBecomesAGraph(t *testing.T) {
	ran := 0
	ops := []device.Op{&watched{native{func() error { ran++; return nil }}}}
	for _, graphs := range []bool{false, true} {
		d, _ := testDevice(t, Options{Graphs: graphs})
		s := d.NewStream("reduce").(lister)
		s.LaunchAll(ops)
		err := s.Sync()
		if graphs != (err != nil && strings.Contains(err.Error(), "stream reduce: watched cannot be in a list of operations that becomes a graph")) {
			t.Errorf("graphs %v: %v", graphs, err)
		}
	}
	if ran != 1 {
		t.Errorf("it ran %d times, and should have where nothing becomes a graph", ran)
	}
}
