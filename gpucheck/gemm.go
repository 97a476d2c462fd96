package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
)

// samples is how many elements of a product are computed again on the host.
const samples = 64

// fusing is a device that tells how biases are added, as cuda's do.
type fusing interface {
	Epilogues() (fused, apart int, err error)
}

// gemm checks and times the products of the models' training steps, and what their biases cost.
func gemm(ctx context.Context, c *check) (err error) {
	g, err := c.onGPU(cuda.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	l, err := g.limits(c.Sizes)
	if err != nil {
		return err
	}
	l.add(c)
	picked, err := g.Pinned(device.F32, samples)
	if err != nil {
		return err
	}
	for _, m := range c.Models {
		products, err := m.products(c)
		if err != nil {
			return err
		}
		t := c.table("Products of "+m.Model, Column{"product", Text}, Column{"type", Text}, Column{"worst of its bound", Share}, Column{"time", Second}, Column{"speed", FLOPS}, Column{"share of the large product", Share})
		t.Note = fmt.Sprintf("The bound of an element is that of summing in f32, of bf16 as tensor cores do: TF32 would be far beyond it. %d elements of each product are computed again in float64.", samples)
		var biases [][]any
		for _, o := range products {
			if err := ctx.Err(); err != nil {
				return err
			}
			for _, typ := range []device.DType{device.F32, device.BF16} {
				worst, seconds, err := g.product(c, o, typ, picked)
				if err != nil {
					return errors.Join(err, g.Release())
				}
				speed, peak := float64(o.Cost().FLOPs)/seconds, l.f32
				if typ == device.BF16 {
					peak = l.bf16
				}
				t.add(shapeText(o), typ.String(), worst, seconds, speed, speed/peak)
				if worst > 1 || worst != worst {
					c.fail("%s in %s: an element is %.3g times as far from its value in float64 as rounding explains", shapeText(o), typ, worst)
				}
				if o.Bias.Absent() {
					continue
				}
				plain := *o
				plain.Bias = device.Tensor{}
				_, without, err := g.product(c, &plain, typ, picked)
				if err != nil {
					return errors.Join(err, g.Release())
				}
				biases = append(biases, []any{shapeText(o), typ.String(), seconds, without, seconds / without})
			}
		}
		if len(biases) > 0 {
			t := c.table("Biases of "+m.Model, Column{"product", Text}, Column{"type", Text}, Column{"time", Second}, Column{"without the bias", Second}, Column{"ratio", Times})
			if t.Note, err = g.epilogues(); err != nil {
				return err
			}
			for _, row := range biases {
				t.add(row...)
			}
		}
	}
	return nil
}

// epilogues says how the biases were added that there have been so far.
func (g *gpu) epilogues() (string, error) {
	d, ok := g.Device.(fusing)
	if !ok {
		return "", nil
	}
	fused, apart, err := d.Epilogues()
	return fmt.Sprintf("Of the products with a bias so far, by shape and type, cuBLASLt has added it to %d itself, and had no algorithm for %d, to which it is added in two steps.", fused, apart), err
}

// products returns the products of a model's training step, each shape once. Their tensors have no memory.
func (s Shape) products(c *check) (list []*device.MatMul, err error) {
	plan, err := s.small(c)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	for _, prog := range plan.Programs() {
		for _, step := range prog.Steps {
			if o, ok := step.Op.(*device.MatMul); ok && !seen[shapeText(o)] {
				seen[shapeText(o)] = true
				list = append(list, o)
			}
		}
	}
	return list, nil
}

// small returns a plan of few layers with all other shapes of the model's training on the first GPU: of as many
// sequences as are trained there, or of the fewest where not even they fit.
func (s Shape) small(c *check) (*fsdp.Plan, error) {
	src, err := model.Resolve(s.Model)
	if err != nil {
		return nil, err
	}
	sequences, _, err := s.fit(c.first().Memory)
	if errors.As(err, &lacking{}) {
		sequences, err = s.Sequences[len(s.Sequences)-1], nil
	}
	if err != nil {
		return nil, err
	}
	config := src.Config
	config.Layers = min(config.Layers, c.Layers)
	return fsdp.NewPlan(s.options(config, sequences))
}

// shapeText names a product, such as "1024 × 896 × 4864, B transposed".
func shapeText(o *device.MatMul) string {
	text := fmt.Sprintf("%d × %d × %d", o.M, o.N, o.K)
	switch {
	case o.TransA:
		text += ", A transposed"
	case o.TransB:
		text += ", B transposed"
	}
	if !o.Bias.Absent() {
		text += ", bias"
	}
	if o.Accumulate {
		text += ", added"
	}
	return text
}

// product makes a product of random numbers of typ and returns how far the worst of some elements is off, as a
// share of its bound, and the time that it takes.
func (g *gpu) product(c *check, shape *device.MatMul, typ device.DType, picked device.Tensor) (worst, seconds float64, err error) {
	defer func() { err = errors.Join(err, g.Release()) }()
	o := *shape
	result := typ
	if shape.C.Type == device.F32 {
		result = device.F32 // as gradients are
	}
	for _, x := range []struct {
		t   *device.Tensor
		typ device.DType
	}{{&o.A, typ}, {&o.B, typ}, {&o.Bias, typ}, {&o.C, result}} {
		if x.t.Absent() {
			continue
		}
		if *x.t, err = g.Local(x.typ, int(x.t.Len)); err != nil {
			return 0, 0, err
		}
		if err := g.Random(*x.t); err != nil {
			return 0, 0, err
		}
	}
	g.Stream.Launch(&o)
	if worst, err = g.compare(&o, picked); err != nil {
		return 0, 0, err
	}
	seconds, err = g.Seconds(&o, c.Reading/4)
	return worst, seconds, err
}

// compare computes some elements of a product of random numbers again. A sum of K products of numbers of
// deviation 1 has a deviation of √K; in f32 it is off by up to about √(K/2)·2⁻²⁴ of that, eight times which is
// the bound (internal/optest has the reasoning), and half a unit in the last place where it is stored. Tensor
// cores add 16 products of bf16 to a sum at once and cut off what its last place does not hold, always towards
// zero: up to K/16 times 2⁻²³ of about √K more.
func (g *gpu) compare(o *device.MatMul, picked device.Tensor) (worst float64, err error) {
	rng := rand.New(rand.NewPCG(3, uint64(o.M)))
	var places [samples]int
	one := picked
	one.Type = o.C.Type // the same memory, whose elements are not larger
	size := one.Type.Size()
	for i := range places {
		places[i] = rng.IntN(o.M * o.N)
		to := one
		to.Addr, to.Off, to.Len = one.Addr+device.Addr(int64(i)*size), one.Off+int64(i)*size, 1
		g.Stream.Launch(&device.Copy{Src: o.C.Slice(int64(places[i]), 1), Dst: to, N: 1})
	}
	if err := g.Stream.Sync(); err != nil {
		return 0, err
	}
	k := float64(o.K)
	for i, place := range places {
		m, n := place/o.N, place%o.N
		var sum float64
		switch {
		case o.Accumulate:
			sum = at(place)
		case !o.Bias.Absent():
			sum = at(n)
		}
		for k := range o.K {
			a, b := m*o.K+k, k*o.N+n
			if o.TransA {
				a = k*o.M + m
			}
			if o.TransB {
				b = n*o.K + k
			}
			sum += at(a) * at(b)
		}
		bound := 8 * math.Sqrt(k+8) * 0x1p-24 * math.Sqrt(k+2)
		if o.A.Type == device.BF16 {
			bound += k / 16 * 0x1p-23 * math.Sqrt(k+2)
		}
		bound += math.Abs(sum) * map[device.DType]float64{device.F32: 0x1p-21, device.BF16: 0x1p-7}[o.C.Type]
		if off := math.Abs(float64(get(one, i))-sum) / bound; !(off <= worst) {
			worst = off
		}
	}
	return worst, nil
}

// at is element i of a tensor that random has filled.
func at(i int) float64 { return bench.At(i) }
