package fsdp

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

// shapes are plans of every kind, with small sizes and chunks that do not
// divide the rows.
func shapes(t testing.TB) map[string]*Plan {
	t.Helper()
	m := map[string]*Plan{}
	for _, c := range []struct {
		tied, qkNorm bool
		typ          device.DType
		recompute    Recompute
		offload      Offload
	}{
		{true, false, device.F32, RecomputeNone, OffloadNone},
		{true, true, device.BF16, RecomputeSelective, OffloadOptimizer},
		{false, false, device.BF16, RecomputeBlock, OffloadNone},
		{false, true, device.F32, RecomputeSelective, OffloadAll},
	} {
		cfg := small(c.tied)
		cfg.QKNorm, cfg.Layers = c.qkNorm, 2
		p, err := NewPlan(Options{
			Model: cfg, Type: c.typ, Train: true, Eval: true, Seqs: 2, SeqLen: 16, HeadRows: 20, Recompute: c.recompute, Offload: c.offload,
			Decoding: Decoding{Seqs: 2, CacheLen: 24, Prefill: 5},
		})
		if err != nil {
			t.Fatal(err)
		}
		m[fmt.Sprintf("tied %v, q/k norm %v, %s, recompute %s, offload %s", c.tied, c.qkNorm, c.typ, c.recompute, c.offload)] = p
	}
	return m
}

// verifyAfter returns what is found wrong with program k of a copy of p that
// change has spoilt.
func verifyAfter(p *Plan, k int, change func(*Plan, *Program)) error {
	q := *p
	q.Buffers = slices.Clone(p.Buffers)
	prog := q.Programs()[k]
	prog.Steps = slices.Clone(prog.Steps)
	for i := range prog.Steps {
		prog.Steps[i].Op = device.Clone(prog.Steps[i].Op)
	}
	change(&q, prog)
	return q.verify(prog)
}

// describe names a step in a test's message.
func describe(p *Plan, prog *Program, i int) string {
	s := prog.Steps[i]
	return fmt.Sprintf("program %s, step %d (%s, %s, %s)", prog.Name, i, p.Units[s.Unit].Name, s.Cut, device.Name(s.Op))
}

func TestADroppedOperationIsFound(t *testing.T) {
	for name, p := range shapes(t) {
		for k, prog := range p.Programs() {
			for i, s := range prog.Steps {
				err := verifyAfter(p, k, func(_ *Plan, q *Program) { q.Steps = slices.Delete(q.Steps, i, i+1) })
				if err == nil && !changesOnly(s.Op) {
					t.Errorf("%s: without %s, nothing is found wrong", name, describe(p, prog, i))
				}
			}
		}
	}
}

// inPlaceOf reports whether op reads the operand w that it writes, or what was
// there before.
func inPlaceOf(op device.Op, w device.Operand) bool {
	return w.Access == device.ReadWrite || slices.ContainsFunc(device.Operands(op), func(x device.Operand) bool { return x.Access == device.Read && *x.T == *w.T })
}

// changesOnly reports whether op only changes what was there before, so that no
// reader misses it: a further term of a sum, or a rotation in place. That such a
// one is missing shows in numbers alone; the golden data hold them.
func changesOnly(op device.Op) bool {
	if _, ok := op.(*device.EmbedBackward); ok {
		return false // nothing else reads the gradient that it is given
	}
	return !slices.ContainsFunc(device.Operands(op), func(o device.Operand) bool {
		return o.Access&device.Write != 0 && !o.Scratch && !inPlaceOf(op, o)
	})
}

func TestANormOrAnUpdateTwiceIsFound(t *testing.T) {
	for name, p := range shapes(t) {
		for k, prog := range p.Programs() {
			for i := range prog.Steps {
				if prog != &p.Norm && prog != &p.Update {
					continue
				}
				if err := verifyAfter(p, k, func(_ *Plan, q *Program) { q.Steps = slices.Insert(q.Steps, i, q.Steps[i]) }); err == nil {
					t.Errorf("%s: with %s twice, nothing is found wrong", name, describe(p, prog, i))
				}
			}
		}
	}
}

func TestAWrongAccumulateFlagIsFound(t *testing.T) {
	flags := 0
	for name, p := range shapes(t) {
		for k, prog := range p.Programs() {
			for i, s := range prog.Steps {
				if r, ok := s.Op.(*device.QKNormRoPEBackward); ok && r.QWeight.Absent() || !reflect.ValueOf(s.Op).Elem().FieldByName("Accumulate").IsValid() {
					continue
				}
				flags++
				err := verifyAfter(p, k, func(_ *Plan, q *Program) {
					f := reflect.ValueOf(q.Steps[i].Op).Elem().FieldByName("Accumulate")
					f.SetBool(!f.Bool())
				})
				if err == nil {
					t.Errorf("%s: with the flag of %s turned, nothing is found wrong", name, describe(p, prog, i))
				}
			}
		}
	}
	if flags < 300 {
		t.Errorf("only %d flags were turned", flags)
	}
}

func TestAnOperandAnywhereElseIsFound(t *testing.T) {
	for name, p := range shapes(t) {
		for k, prog := range p.Programs() {
			for i, s := range prog.Steps {
				for j, o := range device.Operands(s.Op) {
					kind := p.Buffers[o.T.Buf-1].Kind
					wrong := map[string]func(*device.Tensor){
						"no buffer":              func(t *device.Tensor) { t.Buf = device.Buf(len(p.Buffers) + 1) },
						"beyond its buffer":      func(t *device.Tensor) { t.Off = p.Buffers[t.Buf-1].Bytes },
						"in front of its buffer": func(t *device.Tensor) { t.Off = -t.Type.Size() },
					}
					if o.Access&device.Write != 0 && kind != Activations {
						wrong["in a batch's ids"] = func(t *device.Tensor) { t.Buf, t.Off, t.Len = p.in.IDs.Buf, 0, 1 }
					}
					if kind == Gradients && o.Access&device.Write != 0 && s.Cut != "update" {
						wrong["a gap further"] = func(t *device.Tensor) { t.Off += 4 * paramAlign }
					}
					if kind == Gradients && o.Access&device.Write != 0 && prog != &p.Update {
						for _, slot := range p.Units[s.Unit].Slots {
							if int64(slot.Len()) == o.T.Len && 4*int64(slot.Off) != o.T.Off {
								wrong["at "+slot.Name] = func(t *device.Tensor) { t.Off = 4 * int64(slot.Off) }
							}
						}
					}
					if kind == Inputs && readers(prog, *o.T) == 1 {
						for k, b := range p.Buffers {
							if b.Kind == kind && b.Bytes == p.Buffers[o.T.Buf-1].Bytes && o.T.Buf != device.Buf(k+1) {
								wrong["in "+b.Name] = func(t *device.Tensor) { t.Buf = device.Buf(k + 1) }
							}
						}
					}
					for what, change := range wrong {
						if err := verifyAfter(p, k, func(_ *Plan, q *Program) { change(device.Operands(q.Steps[i].Op)[j].T) }); err == nil {
							t.Errorf("%s: with %s of %s %s, nothing is found wrong", name, o.Name, describe(p, prog, i), what)
						}
					}
				}
			}
		}
	}
}

// readers counts the operands of a program that are t.
func readers(prog *Program, t device.Tensor) (n int) {
	for _, s := range prog.Steps {
		for _, o := range device.Operands(s.Op) {
			if *o.T == t {
				n++
			}
		}
	}
	return n
}

// lifeOf returns the steps in which a program uses the first bytes of a buffer.
func lifeOf(prog *Program, b device.Buf, bytes int64) life {
	l := life{buf: b, first: -1}
	for i, s := range prog.Steps {
		for _, o := range device.Operands(s.Op) {
			if o.T.Buf != b || o.T.Off >= bytes {
				continue
			}
			if l.first < 0 {
				l.first = i
			}
			l.last = i
		}
	}
	return l
}

func TestTwoLivesAtOneAddressAreFound(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	planted := 0
	for name, p := range shapes(t) {
		for k, prog := range p.Programs() {
			used := map[device.Buf]bool{}
			for _, s := range prog.Steps {
				for _, o := range device.Operands(s.Op) {
					used[o.T.Buf] = p.Buffers[o.T.Buf-1].Kind == Activations
				}
			}
			for a, activation := range used {
				for b, other := range used {
					// Of gathered weights, what lies first is done with before the rest.
					n := min(p.Buffers[a-1].Bytes, p.Buffers[b-1].Bytes)
					x, y := lifeOf(prog, a, n), lifeOf(prog, b, n)
					together := x.first <= y.last && y.first <= x.last
					// All pairs would take long; those that meet at one step are the
					// likeliest mistake.
					if !activation || !other || a >= b || !together || x.last != y.first && y.last != x.first && r.IntN(8) > 0 {
						continue
					}
					planted++
					if err := verifyAfter(p, k, func(q *Plan, _ *Program) { q.Buffers[b-1].Off = q.Buffers[a-1].Off }); err == nil {
						t.Errorf("%s: %s (steps %d to %d) and %s (%d to %d) of program %s share memory and nothing is found wrong", name,
							p.Buffers[a-1].Name, x.first, x.last, p.Buffers[b-1].Name, y.first, y.last, prog.Name)
					} else if !strings.Contains(err.Error(), "step") {
						t.Errorf("the message names no step: %v", err)
					}
				}
			}
		}
	}
	if planted < 500 {
		t.Errorf("only %d faults were planted", planted)
	}
}

func TestWhatLastsAtOneAddressIsFound(t *testing.T) {
	for name, p := range shapes(t) {
		for i, b := range p.Buffers {
			if b.Kind == Activations {
				break
			}
			for _, off := range []int64{p.Arenas[b.In].Scratch, b.Off - 4, b.Off - 256} {
				if i == 0 && off < 0 {
					continue
				}
				if err := verifyAfter(p, 0, func(q *Plan, _ *Program) { q.Buffers[i].Off = off }); err == nil {
					t.Errorf("%s: %s lies at %d, and nothing is found wrong", name, b.Name, off)
				}
			}
		}
	}
}

func TestAnOperationBeforeItsInputIsFound(t *testing.T) {
	for name, p := range shapes(t) {
		for k, prog := range p.Programs() {
			for i := range prog.Steps[1:] {
				now, then := prog.Steps[i].Op, prog.Steps[i+1].Op
				if !feeds(now, then) {
					continue
				}
				err := verifyAfter(p, k, func(_ *Plan, q *Program) { q.Steps[i], q.Steps[i+1] = q.Steps[i+1], q.Steps[i] })
				if err == nil {
					t.Errorf("%s: with %s after what it feeds, nothing is found wrong", name, describe(p, prog, i))
				}
			}
		}
	}
}

// feeds reports whether op reads what from writes, other than in place.
func feeds(from, op device.Op) bool {
	for _, w := range device.Operands(from) {
		for _, r := range device.Operands(op) {
			if w.Access == device.Write && !w.Scratch && !inPlaceOf(from, w) && r.Access&device.Read != 0 && w.T.Buf == r.T.Buf && w.T.Off < r.T.Off+r.T.Bytes() && r.T.Off < w.T.Off+w.T.Bytes() {
				return true
			}
		}
	}
	return false
}
