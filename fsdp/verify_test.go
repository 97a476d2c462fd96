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
		micros       int
	}{
		{true, false, device.F32, RecomputeNone, OffloadNone, 0},
		{true, true, device.BF16, RecomputeSelective, OffloadOptimizer, 0},
		{false, false, device.BF16, RecomputeBlock, OffloadNone, 0},
		{false, true, device.F32, RecomputeSelective, OffloadAll, 0},
		{true, true, device.F32, RecomputeNone, OffloadAll, 1},
		{false, false, device.BF16, RecomputeBlock, OffloadNone, 1},
	} {
		cfg := small(c.tied)
		cfg.QKNorm, cfg.Layers = c.qkNorm, 2
		p, err := NewPlan(Options{
			Model: cfg, Type: c.typ, Train: true, Eval: true, Seqs: 2, SeqLen: 16, HeadRows: 20, Recompute: c.recompute, Offload: c.offload, MicroBatches: c.micros,
			Decoding: Decoding{Seqs: 2, CacheLen: 24, Prefill: 5},
		})
		if err != nil {
			t.Fatal(err)
		}
		m[fmt.Sprintf("tied %v, q/k norm %v, %s, recompute %s, offload %s, micro-batches %d", c.tied, c.qkNorm, c.typ, c.recompute, c.offload, c.micros)] = p
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
	fields, letters := 0, 0
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
					for _, f := range p.Buffers[o.T.Buf-1].fields {
						if f.at.Type == o.T.Type && f.at.Len == o.T.Len && f.at.Off != o.T.Off && readers(prog, *o.T) == 1 {
							wrong["in "+f.name] = func(t *device.Tensor) { t.Off = f.at.Off }
							fields++
						}
					}
					for _, l := range p.letters {
						if kind == Mailbox && l.off != o.T.Off && l.off+o.T.Bytes() <= p.Buffers[o.T.Buf-1].Bytes {
							wrong["where the mailbox has "+p.Buffers[l.buf-1].Name] = func(t *device.Tensor) { t.Off = l.off }
							letters++
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
	if fields < 50 || letters < 50 {
		t.Errorf("only %d fields and %d places in the mailbox were tried", fields, letters)
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

// lifeOf returns the steps in which a program uses the first bytes of a buffer, or
// holds it for the programs behind it.
func lifeOf(p *Plan, prog *Program, b device.Buf, bytes int64) life {
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
	if p.Buffers[b-1].Kind == Gradients {
		if prog == &p.Micro[0] {
			l.last = len(prog.Steps) - 1
		} else {
			l.first = 0
		}
	}
	return l
}

func TestTwoLivesAtOneAddressAreFound(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	planted, gradients := 0, 0
	for name, p := range shapes(t) {
		for k, prog := range p.Programs() {
			used := map[device.Buf]bool{}
			for _, s := range prog.Steps {
				for _, o := range device.Operands(s.Op) {
					used[o.T.Buf] = !p.Buffers[o.T.Buf-1].Lasts
				}
			}
			for a, placed := range used {
				for b, other := range used {
					// Of gathered weights, what lies first is done with before the rest.
					n := min(p.Buffers[a-1].Bytes, p.Buffers[b-1].Bytes)
					x, y := lifeOf(p, prog, a, n), lifeOf(p, prog, b, n)
					together := x.first <= y.last && y.first <= x.last
					// All pairs would take long; those that meet at one step are the
					// likeliest mistake.
					gradient := p.Buffers[a-1].Kind == Gradients || p.Buffers[b-1].Kind == Gradients
					if !placed || !other || a >= b || !together || x.last != y.first && y.last != x.first && !gradient && r.IntN(8) > 0 {
						continue
					}
					planted++
					if gradient {
						gradients++
					}
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
	if planted < 500 || gradients < 100 {
		t.Errorf("only %d faults were planted, %d of them with gradients", planted, gradients)
	}
}

// What the programs of a step do between the micro-batch and the update must leave
// its gradients as they are, and others need not.
func TestAGradientThatIsOverwrittenBeforeItsUpdateIsFound(t *testing.T) {
	planted := 0
	for _, s := range Strategies() {
		for rank := range 4 {
			p, err := NewPlan(Options{
				Model: twoBlocks(true), Type: device.F32, Train: true, Eval: true, Seqs: 1, SeqLen: 8, Mesh: Mesh{2, 2}, Rank: rank,
				Strategy: s, Offload: OffloadAll, MicroBatches: 1,
			})
			if err != nil {
				t.Fatal(err)
			}
			for k, prog := range p.Programs() {
				for u := range p.Units {
					// The end of this rank's part of the gradient, with nothing there that
					// anybody would miss.
					e := p.held(p.Units[u].Len, p.rows.end)
					spoil := func(at int) error {
						return verifyAfter(p, k, func(q *Plan, prog *Program) {
							r := q.span(q.gradient(u, extent{e.to - 64, e.to}))
							b := Buffer{Name: "a stranger", Kind: Activations, Bytes: 256, In: q.Buffers[q.grad[u]-1].In}
							b.Off = r.from - (Buffer{In: b.In}).span().from
							q.Buffers = append(q.Buffers, b)
							x := device.Tensor{Buf: device.Buf(len(q.Buffers)), Type: device.F32, Len: 64}
							write := Step{Op: &device.Fill{Dst: x, N: 64}, Cut: "gather"}
							prog.Steps = slices.Insert(prog.Steps, at, write)
							for i := range prog.Steps {
								prog.Steps[i].Waits = nil
							}
							q.order(prog)
						})
					}
					n := len(prog.Steps)
					switch prog {
					case &p.Micro[0], &p.Reduce, &p.Norm, &p.Agree:
						planted++
						if err := spoil(n); err == nil || !strings.Contains(err.Error(), "does not leave "+p.Units[u].Name+" gradient") && !strings.Contains(err.Error(), "which nothing has read") {
							t.Errorf("%s, rank %d: the gradient of %s is overwritten at the end of %s, and found is: %v", s, rank, p.Units[u].Name, prog.Name, err)
						}
					case &p.Update:
						planted++
						if err := spoil(0); err == nil || !strings.Contains(err.Error(), "was overwritten since") {
							t.Errorf("%s, rank %d: the gradient of %s is overwritten as the update begins, and found is: %v", s, rank, p.Units[u].Name, err)
						}
						if err := spoil(n); err != nil {
							t.Errorf("%s, rank %d: what lies where the gradient of %s was, after its update, is found wrong: %v", s, rank, p.Units[u].Name, err)
						}
					case &p.Evaluation:
						if err := spoil(n); err != nil {
							t.Errorf("%s, rank %d: an evaluation where the gradient of %s was is found wrong: %v", s, rank, p.Units[u].Name, err)
						}
					}
				}
			}
		}
	}
	if planted < 200 {
		t.Errorf("only %d faults were planted", planted)
	}
}

func TestWhatLastsAtOneAddressIsFound(t *testing.T) {
	for name, p := range shapes(t) {
		for i, b := range p.Buffers {
			if !b.Lasts {
				continue
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
