package cpu

import (
	"errors"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

func TestADeviceComputesWhatTheReferenceDoes(t *testing.T) {
	d, err := New(Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	rng := optest.Rand(t)
	memory := optest.NewMemory(t, rng)
	streams := []device.Stream{d.NewStream("one"), d.NewStream("two")}
	var got, want []device.Op
	var bounds []optest.Bounds
	for _, typ := range []device.DType{device.F32, device.F64} {
		for i, c := range optest.Cases(t, rng, typ) {
			switch c.Op.(type) {
			case *device.MatMul, *device.HeadLoss, *device.Embed, *device.SwiGLU, *device.SumSquares:
				op := memory.Clone(c.Op)
				got, want, bounds = append(got, op), append(want, c.Op), append(bounds, memory.Bounds(c.Op))
				streams[i%2].Launch(op)
				c.Op.Reference()
			}
		}
	}
	for _, s := range streams {
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	for i := range got {
		if err := optest.Compare(got[i], want[i], bounds[i]); err != nil {
			t.Error(err)
		}
	}
}

func TestADeviceSaysWhatItIs(t *testing.T) {
	d, err := New(Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	info := d.Info()
	if info.Name == "" || info.Kind != "cpu" || info.ISA == "" || info.Threads != 1 {
		t.Errorf("Info = %+v", info)
	}
}

func TestOptionsThatCannotBeHadAreRefused(t *testing.T) {
	for want, o := range map[string]Options{
		`unknown instruction set "mmx"`: {ISA: "mmx"},
		"-1 threads":                    {Threads: -1},
	} {
		if d, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v) = %v, %v; want an error with %q", o, d, err, want)
		}
	}
}

func TestAnIndexOutsideOfItsRangeBecomesTheStreamsError(t *testing.T) {
	d, err := New(Options{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	rng := optest.Rand(t)
	for _, c := range optest.Cases(t, rng, device.F32) {
		for _, o := range device.Operands(c.Op) {
			if o.T.Type != device.I32 || o.Access&device.Write != 0 || device.Name(c.Op) == "Copy" {
				continue
			}
			at := rng.IntN(int(o.T.Len))
			right := o.T.I32()[at]
			for _, wrong := range []int32{-2, 1<<31 - 1} {
				if wrong > 0 && o.Name == "Cached" {
					continue // a full cache may be any length
				}
				o.T.I32()[at] = wrong
				s := d.NewStream("wrong")
				s.Launch(c.Op)
				var index *device.IndexError
				if err := s.Sync(); !errors.As(err, &index) || index.Op != device.Name(c.Op) || index.Operand != o.Name ||
					index.Index != at || index.Value != wrong {
					t.Errorf("%s with %s[%d] = %d: %v", c.Name, o.Name, at, wrong, err)
				}
			}
			o.T.I32()[at] = right
		}
	}
}

func TestADeviceWithAWindowKeepsItsSharedMemoryThere(t *testing.T) {
	f, err := device.NewWindowFile("test")
	if err != nil {
		t.Skip(err) // not on Linux
	}
	defer f.Close()
	w, err := device.NewWindow(f)
	if err != nil {
		t.Fatal(err)
	}
	d, err := New(Options{Threads: 1, Window: w})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	b, err := d.Alloc(1000, device.Shared)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := w.Offset(b.Addr, b.Size); !ok {
		t.Error("the buffer lies elsewhere")
	}
	s := d.NewStream("test")
	s.Launch(&device.Fill{Dst: b.In(device.F32, 0, 250), N: 250, Value: 3})
	if err := s.Sync(); err != nil || b.In(device.F32, 0, 250).F32()[249] != 3 {
		t.Errorf("a kernel does not compute there: %v", err)
	}
}
