package device_test

import (
	"errors"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	. "github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// closing closes d when the test ends.
func closing(t *testing.T, d Device) Device {
	t.Helper()
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func mustAlloc(t *testing.T, d Device, typ DType, n int64) Tensor {
	t.Helper()
	b, err := d.Alloc(n*typ.Size(), Local)
	if err != nil {
		t.Fatal(err)
	}
	return b.In(typ, 0, n)
}

func TestTheRecorderWritesWhatStreamsAreTold(t *testing.T) {
	var transcript strings.Builder
	d := closing(t, NewRecorder(NewReference(), &transcript))
	compute, move := d.NewStream("compute"), d.NewStream("move")
	x, y := mustAlloc(t, d, F32, 3), mustAlloc(t, d, BF16, 3)
	y.Buf, y.Off = 2, 64
	_, e := d.NewEvent(), d.NewEvent()
	compute.Launch(&Fill{Dst: x, N: 3, Value: 1.5})
	compute.Record(e)
	move.Wait(e)
	move.Launch(&Cast{Src: x, Dst: y, N: 3})
	if err := move.Sync(); err != nil {
		t.Fatal(err)
	}
	want := `compute: launch Fill N=3 Value=1.5: Dst f32[3]
compute: record e2
move: wait e2
move: launch Cast N=3: Src f32[3], Dst bf16[3]@2+64
move: sync
`
	if got := transcript.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if y.BF16()[2] != ToBF16(1.5) || !e.Done() {
		t.Error("the recorder changed what is computed")
	}
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("no space") }

func TestATranscriptThatCannotBeWrittenIsReportedAtClose(t *testing.T) {
	d := NewRecorder(NewReference(), brokenWriter{})
	if err := d.NewStream("a").Sync(); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err == nil || !strings.Contains(err.Error(), "transcript: no space") {
		t.Fatal(err)
	}
}

// handOver lets two streams each add to and double one number in turn. With
// events the result is one; without, it depends on who is faster.
func handOver(t *testing.T, d Device, ordered bool) float32 {
	x, two := mustAlloc(t, d, F32, 1), mustAlloc(t, d, F32, 1)
	one := mustAlloc(t, d, F32, 1)
	one.F32()[0], two.F32()[0] = 1, 2
	a, b := d.NewStream("a"), d.NewStream("b")
	ab, ba := d.NewEvent(), d.NewEvent()
	for range 5 {
		a.Launch(&ReduceSum{Srcs: []Tensor{x, one}, Dst: x, N: 1})
		if ordered {
			a.Record(ab)
			b.Wait(ab)
		}
		b.Launch(&ReduceSum{Srcs: []Tensor{x, x}, Dst: x, N: 1})
		if ordered {
			b.Record(ba)
			a.Wait(ba)
		}
	}
	if err := errors.Join(a.Sync(), b.Sync()); err != nil {
		t.Fatal(err)
	}
	return x.F32()[0]
}

func TestTheDelayerKeepsTheOrderOfEvents(t *testing.T) {
	for seed := range uint64(5) {
		if got := handOver(t, closing(t, NewDelayer(NewReference(), seed, 300*time.Microsecond)), true); got != 62 {
			t.Fatalf("seed %d: %v, want 62", seed, got)
		}
	}
}

// order is the order in which the operations of two streams ran.
type order struct {
	next   atomic.Int64
	places [2][]int64 // of each stream's operations
}

type noting struct {
	o      *order
	stream int
}

func (n noting) Run(Op) error {
	n.o.places[n.stream] = append(n.o.places[n.stream], n.o.next.Add(1))
	return nil
}
func (noting) Close() error { return nil }

func TestTheDelayerMakesStreamsDiverge(t *testing.T) {
	orders := map[string]bool{}
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) { // in which nothing but rests takes time
			o := &order{}
			d := NewDelayer(NewHost(Info{}, func(name string) (Executor, error) {
				return noting{o, int(name[0] - 'a')}, nil
			}), seed, 2*time.Millisecond)
			a, b := d.NewStream("a"), d.NewStream("b")
			for range 4 {
				a.Launch(&Fill{})
				b.Launch(&Fill{})
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			who := []byte("--------")
			for stream, places := range o.places {
				for _, place := range places {
					who[place-1] = "ab"[stream]
				}
			}
			orders[string(who)] = true
		})
	}
	if len(orders) < 3 {
		t.Fatalf("8 seeds, only these orders: %v", orders)
	}
}

func TestTheNaNFinderNamesTheFirstOperationAndElement(t *testing.T) {
	for name, make := range map[string]func() Device{
		"memory that the host sees": NewReference,
		"memory that it cannot see": func() Device { return optest.Hidden(NewReference()) },
		"under a delayer":           func() Device { return NewDelayer(NewReference(), 1, time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			lookup := func(op Op, operand string) string {
				if operand == "Out" {
					return "block 3, mlp"
				}
				return ""
			}
			d := closing(t, NewNaNFinder(make(), lookup))
			for _, typ := range []DType{F32, BF16, F64} {
				gate, up, out := mustAlloc(t, d, typ, 5), mustAlloc(t, d, typ, 5), mustAlloc(t, d, typ, 5)
				s := d.NewStream("compute")
				glu := &SwiGLU{Gate: gate, Up: up, Out: out, N: 5}
				s.Launch(glu)
				if err := s.Sync(); err != nil {
					t.Fatal(err)
				}
				optest.Set(optest.Revealed(up), 3, math.Inf(1)) // times a gate of 0
				s.Launch(glu)
				s.Launch(&Fill{Dst: out, N: 5, Value: 7})
				want := "stream compute: SwiGLU: Out[3] (block 3, mlp) is NaN\nand of its inputs: SwiGLU: Up[3] is +Inf"
				err := s.Sync()
				if err == nil || err.Error() != want {
					t.Errorf("%s: %v", typ, err)
				}
				var found *NotFiniteError
				if !errors.As(err, &found) || found.Op != "SwiGLU" || len(found.Wrote) != 1 || found.Wrote[0].Operand != "Out" || found.Wrote[0].Known != "block 3, mlp" ||
					found.Wrote[0].Index != 3 || len(found.Read) != 1 || found.Read[0] != (NotFinite{Operand: "Up", Index: 3, Value: math.Inf(1)}) {
					t.Errorf("%s: %+v", typ, found)
				}
				if optest.At(optest.Revealed(out), 0) == 7 {
					t.Errorf("%s: an operation ran after the failure", typ)
				}
			}
		})
	}
}

func TestTheNaNFinderFindsTheOnlyOneInAMillion(t *testing.T) {
	d := closing(t, NewNaNFinder(optest.Hidden(NewReference()), nil))
	const n = 1<<20 + 3
	x, y := mustAlloc(t, d, BF16, n), mustAlloc(t, d, BF16, n)
	s := d.NewStream("compute")
	for _, at := range []int64{n - 1, 1 << 19, 0} { // the first of them counts
		optest.Set(optest.Revealed(x), int(at), math.Inf(-1))
		s.Launch(&Copy{Src: x, Dst: y, N: n})
		var found *NotFiniteError
		if err := s.Sync(); !errors.As(err, &found) || found.Wrote[0].Index != at || !math.IsInf(found.Wrote[0].Value, -1) {
			t.Errorf("element %d is found as %v", at, err)
		}
	}
}

func TestTheNaNFinderPassesOnOtherErrorsAsTheyAre(t *testing.T) {
	d := closing(t, NewNaNFinder(NewReference(), nil))
	op := &Embed{Table: mustAlloc(t, d, F32, 2), IDs: mustAlloc(t, d, I32, 1), Out: mustAlloc(t, d, F32, 2), Rows: 1, Dim: 2, Vocab: 1}
	op.IDs.I32()[0] = 9
	s := d.NewStream("compute")
	s.Launch(op)
	if err := s.Sync(); err == nil || err.Error() != "stream compute: Embed: IDs[0] is 9, want 0 to 0" {
		t.Fatal(err)
	}
}

func TestScratchMayHoldAnything(t *testing.T) {
	rng := optest.Rand(t)
	var op *AttentionBackward
	for op == nil {
		for _, c := range optest.Cases(t, rng, F32) {
			if b, ok := c.Op.(*AttentionBackward); ok {
				op = b
			}
		}
	}
	d := closing(t, NewNaNFinder(NewHost(Info{}, func(string) (Executor, error) { return leavesScratch{}, nil }), nil))
	s := d.NewStream("compute")
	s.Launch(op)
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
}

// leavesScratch computes and then writes NaNs to scratch.
type leavesScratch struct{}

func (leavesScratch) Run(op Op) error {
	op.Reference()
	optest.Set(op.(*AttentionBackward).D, 0, math.NaN())
	return nil
}
func (leavesScratch) Close() error { return nil }
