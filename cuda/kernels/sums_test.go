package kernels

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/cuda/sim/ptx"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

func reduceSumOf(m optest.Memory, typ, to device.DType, n, count, in int) *device.ReduceSum {
	o := &device.ReduceSum{N: n, Dst: m.Blank(to, n)}
	for range count {
		o.Srcs = append(o.Srcs, m.Normal(typ, n, 0, 1))
	}
	if in >= 0 {
		o.Dst = o.Srcs[in]
	}
	return o
}

func sumSquaresOf(m optest.Memory, typ device.DType, n int) *device.SumSquares {
	return &device.SumSquares{X: m.Normal(typ, n, 0, 1), Parts: m.Blank(device.F64, device.NormBlocks(n)), Out: m.Blank(device.F64, 1), N: n}
}

// checkFiniteOf looks at large numbers of which one is x.
func checkFiniteOf(m optest.Memory, typ device.DType, n, at int, x float64) *device.CheckFinite {
	o := &device.CheckFinite{X: m.Floats(typ, n, func(int) float64 { return 0x1.fep127 }), Flag: m.Blank(device.I32, 1), N: n}
	optest.Set(o.X, at, x)
	return o
}

func biasBackwardOf(m optest.Memory, typ, to device.DType, rows, width int, accumulate bool) *device.BiasBackward {
	return &device.BiasBackward{
		DOut: m.Normal(typ, rows*width, 0, 1), DBias: m.Normal(to, width, 0, 1), M: rows, N: width, Accumulate: accumulate,
	}
}

func embedBackwardOf(m optest.Memory, typ, to device.DType, rows, dim, vocab int, id func(row int) int) *device.EmbedBackward {
	return &device.EmbedBackward{
		DOut: m.Normal(typ, rows*dim, 0, 1), IDs: m.Ints(rows, id), DTable: m.Normal(to, vocab*dim, 0, 1),
		Rows: rows, Dim: dim, Vocab: vocab,
	}
}

func headLossOf(m optest.Memory, typ device.DType, vocab int, targets []int, backward bool, logit func(i int) float64) *device.HeadLoss {
	rows := len(targets)
	o := &device.HeadLoss{
		Logits: m.Floats(typ, rows*vocab, logit), Targets: m.Ints(rows, func(i int) int { return targets[i] }),
		Loss: m.Blank(device.F32, rows), Rows: rows, Vocab: vocab, Backward: backward,
	}
	if backward {
		o.Scale = m.Floats(device.F32, 1, func(int) float64 { return 1.0 / 777 })
	}
	return o
}

func adamWOf(m optest.Memory, typ device.DType, n int, index int64, param func(i int) float64) *device.AdamW {
	hyper := [device.HyperLen]float64{
		device.HyperLR: 1e-3, device.HyperGradScale: 0.5, device.HyperStep: 1<<24 - 1, device.HyperBias1: 1.5, device.HyperBias2: 1.25,
	}
	return &device.AdamW{
		Param: m.Floats(device.F32, n, param), M: m.Normal(device.F32, n, 0, 0.1), Grad: m.Normal(typ, n, 0, 1),
		V:     m.Floats(device.F32, n, func(i int) float64 { return 1e-3 * float64(i%7) }),
		Hyper: m.Floats(device.F32, device.HyperLen, func(i int) float64 { return hyper[i] }), Copy: m.Blank(device.BF16, n),
		N: n, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.1, Stochastic: true, Seed: math.MaxUint64 - 1, Index: index,
	}
}

// edges are where blocks, warps, packs and turns of these kernels end, begin,
// or are left out.
func edges(m optest.Memory, seed func(i int) float64) map[string]device.Op {
	wide := func(i int) float64 { return 3 * seed(i) }
	every := func(n int) func(int) int { return func(i int) int { return i % n } }
	ops := map[string]device.Op{
		"ReduceSum of 1 element":                     reduceSumOf(m, device.BF16, device.F32, 1, 3, -1),
		"ReduceSum of whole blocks":                  reduceSumOf(m, device.BF16, device.BF16, 2*2048, 2, 1),
		"ReduceSum of 64 sources into the last":      reduceSumOf(m, device.F32, device.F32, 1025, 64, 63),
		"SumSquares of 1 element":                    sumSquaresOf(m, device.F32, 1),
		"SumSquares of a block less 1":               sumSquaresOf(m, device.BF16, 1023),
		"SumSquares of a block and 1":                sumSquaresOf(m, device.F32, 1025),
		"SumSquares of more than a tile":             sumSquaresOf(m, device.F32, 257*1024+33),
		"SumSquares of more than a tile in bf16":     sumSquaresOf(m, device.BF16, 512*1024+5),
		"CheckFinite of what is large":               checkFiniteOf(m, device.F32, 1500, 0, -0x1.fffffep127),
		"CheckFinite of what is large in bf16":       checkFiniteOf(m, device.BF16, 3000, 0, -0x1.fep127),
		"CheckFinite with a NaN at the end":          checkFiniteOf(m, device.F32, 1027, 1026, math.NaN()),
		"CheckFinite with −∞ at the start":           checkFiniteOf(m, device.BF16, 2048, 0, math.Inf(-1)),
		"CheckFinite with ∞ in an upper half":        checkFiniteOf(m, device.BF16, 4096, 2049, math.Inf(1)),
		"CheckFinite of 1 element":                   checkFiniteOf(m, device.F32, 1, 0, math.Inf(1)),
		"BiasBackward of 1 element":                  biasBackwardOf(m, device.BF16, device.F32, 1, 1, false),
		"BiasBackward of whole blocks":               biasBackwardOf(m, device.BF16, device.BF16, 64, 128, true),
		"BiasBackward of packs and a row":            biasBackwardOf(m, device.BF16, device.F32, 33, 72, true),
		"EmbedBackward of 1 element":                 embedBackwardOf(m, device.F32, device.F32, 1, 1, 1, every(1)),
		"EmbedBackward of three tokens":              embedBackwardOf(m, device.BF16, device.BF16, 1500, 16, 4, every(3)),
		"EmbedBackward of tokens of their own":       embedBackwardOf(m, device.F32, device.F32, 70, 12, 70, every(70)),
		"EmbedBackward of a row for several blocks":  embedBackwardOf(m, device.BF16, device.F32, 9, 1032, 5, every(4)),
		"EmbedBackward of an odd row for two blocks": embedBackwardOf(m, device.F32, device.F32, 9, 257, 5, every(4)),
		"HeadLoss of 1 element":                      headLossOf(m, device.F32, 1, []int{0, -1}, true, wide),
		"HeadLoss of packs":                          headLossOf(m, device.BF16, 512*8*4+8, []int{512 * 8 * 4, -1}, true, wide),
		"HeadLoss of packs without gradient":         headLossOf(m, device.F32, 512*4*4-4, []int{-1, 3}, false, wide),
		"HeadLoss of an odd row":                     headLossOf(m, device.BF16, 2051, []int{2050, 0}, true, wide),
		"HeadLoss of Qwen's vocabulary":              headLossOf(m, device.BF16, 151936, []int{151935}, true, wide),
		"HeadLoss of large logits":                   headLossOf(m, device.F32, 600, []int{1, 5}, true, func(i int) float64 { return 1e4 + seed(i) }),
		"HeadLoss of what is never predicted": headLossOf(m, device.F32, 520, []int{9}, true, func(i int) float64 {
			if i%4 == 2 {
				return math.Inf(-1)
			}
			return wide(i)
		}),
		"AdamW of 1 element":     adamWOf(m, device.F32, 1, 1<<40, seed),
		"AdamW of a block and 1": adamWOf(m, device.F32, 1025, 7, seed),
	}
	for _, types := range [][2]device.DType{{device.F32, device.F32}, {device.BF16, device.BF16}, {device.BF16, device.F32}} {
		typ, to := types[0], types[1]
		pack := int(16 / typ.Size())
		add := func(name string, op device.Op) { ops[fmt.Sprintf("%s, %s to %s", name, typ, to)] = op }
		add("EmbedBackward of one token, turns and a row", embedBackwardOf(m, typ, to, 2049, pack, 3, func(int) int { return 2 }))
		add("EmbedBackward of two tokens far from each other", embedBackwardOf(m, typ, to, 1100, 3*pack, 1100, func(i int) int {
			return min(i, 1026) % 1025
		}))
		for _, n := range []int{257, 513, 769} { // a thread of a block looks back at rows that are 256 from each other
			add(fmt.Sprintf("EmbedBackward of a token that comes back after %d rows", n), embedBackwardOf(m, typ, to, n+1, pack, n, every(n)))
		}
		add("EmbedBackward of one token, three rows more than at once", embedBackwardOf(m, typ, to, 7, 2*pack, 3, func(int) int { return 1 }))
		for n := 1; n < 10; n++ { // rows are added four at a time
			for _, dim := range []int{pack, 3} {
				add(fmt.Sprintf("EmbedBackward of %d rows of one token, %d wide", n, dim), embedBackwardOf(m, typ, to, n, dim, 3, func(int) int { return 1 }))
			}
		}
		for _, dim := range []int{258 * int(16/to.Size()), 257} {
			add(fmt.Sprintf("EmbedBackward of rows for two blocks, %d wide", dim), embedBackwardOf(m, typ, to, 5, dim, 3, every(3)))
		}
		for _, dim := range []int{pack, 3} {
			add(fmt.Sprintf("EmbedBackward of more rows than a turn, %d wide", dim), embedBackwardOf(m, typ, to, 1026, dim, 1026, every(1026)))
		}
		add("EmbedBackward of tokens that come twice", embedBackwardOf(m, typ, to, 1300, pack, 650, func(i int) int {
			if i >= 650 {
				i = i * 7 % 650
			}
			return i
		}))
		add("BiasBackward of more rows than a turn", biasBackwardOf(m, typ, to, 2101, pack, true))
		add("BiasBackward of more odd rows than a turn", biasBackwardOf(m, typ, to, 2101, 3, false))
		for turns := 1; turns <= 8; turns++ { // without a rest, and with the rest of one thread
			add(fmt.Sprintf("BiasBackward of %d turns", turns), biasBackwardOf(m, typ, to, 512*turns, 3*pack, true))
			add(fmt.Sprintf("BiasBackward of %d turns and a row", turns), biasBackwardOf(m, typ, to, 512*turns+1, 3, true))
		}
		add("BiasBackward of many rows", biasBackwardOf(m, typ, to, 1001, 9*pack, true))
		add("ReduceSum of one source", reduceSumOf(m, typ, to, 256*pack*2+pack+1, 1, -1))
		add("ReduceSum of blocks and some", reduceSumOf(m, typ, to, 256*pack*2+pack+1, 6, -1))
		for count := 2; count <= 9; count++ { // the first, and turns of four
			add(fmt.Sprintf("ReduceSum of whole blocks of %d sources", count), reduceSumOf(m, typ, to, 256*int(16/to.Size()), count, -1))
			add(fmt.Sprintf("ReduceSum of %d sources of 5", count), reduceSumOf(m, typ, to, 5, count, -1))
		}
		if to != typ {
			continue
		}
		add("ReduceSum of a single source", reduceSumOf(m, typ, to, 256*pack+3, 1, -1))
		uneven := sumSquaresOf(m, typ, 300*1024+7)
		for i := range uneven.N {
			optest.Set(uneven.X, i, optest.At(uneven.X, i)*math.Exp2(20*math.Sin(float64(i/1024))))
		}
		add("SumSquares of blocks of all sizes", uneven)
		for k := range pack {
			add(fmt.Sprintf("CheckFinite with ∞ at %d of a pack", k), checkFiniteOf(m, typ, 256*pack, 7*pack+k, math.Inf(1)))
		}
		for _, n := range []int{15, 50, 117, 1076, 1500, 2047, 7000} {
			add(fmt.Sprintf("SumSquares of %d elements", n), sumSquaresOf(m, typ, n))
		}
		for _, width := range []int{2048 * pack, 4096 * pack, (512*3 + 100) * pack, 2048 + 1601, 1701, 4001, 5901, 4096 + 1601, 4000 * pack, 5, pack} {
			add(fmt.Sprintf("HeadLoss of %d logits", width), headLossOf(m, typ, width, []int{-1, 2, -1, width - 1}, true, wide))
		}
		add("HeadLoss of the lowest logits", headLossOf(m, typ, 512*pack*5, []int{17}, false, func(int) float64 {
			return -math.MaxFloat32 * (1 - 0x1p-8) // which bf16 has
		}))
		add("AdamW of whole blocks", adamWOf(m, typ, 2*1024, 12345, seed))
		add("HeadLoss of long odd rows", headLossOf(m, typ, 512*9+3, []int{-1, 512*7 + 2, 512 * 4}, true, func(i int) float64 { return 60 * seed(i) }))
		// Targets all over rows, of packs by fours, one by one, and not at all.
		long := 512*pack*4 + 512*pack + pack
		targets := []int{-1, 0, long - 1, 512*pack*4 - 1, 512 * pack * 4, 512*pack*3 + 2, 512*pack + 1, long / 2}
		add("HeadLoss of long rows", headLossOf(m, typ, long, targets, true, func(i int) float64 { return 60 * seed(i) }))
		// In each place of a thread, from the end of the row, of packs and of single elements where packs do not fit.
		for _, width := range []int{512*pack*9 + 3*pack, 512*13 + 1, 512*17 + 1} {
			places, n := 1, width // of which the compiler takes eight turns at once
			if width%pack == 0 {
				places, n = pack, width/pack
			}
			var targets []int
			for u := range 18 {
				for k := range places {
					targets = append(targets, max(0, n-1-u*512-k*61)*places+k)
				}
			}
			add(fmt.Sprintf("HeadLoss of %d logits and a target in each place", width), headLossOf(m, typ, width, targets, true, wide))
		}
		// Powers relative to another largest would be infinite, or others.
		for _, width := range []int{512 * pack, 512*2 + 1} {
			for _, height := range []float64{4, 500} {
				op := headLossOf(m, typ, width, make([]int, 17), false, func(i int) float64 {
					thread := i % width / pack
					if width%pack != 0 {
						thread = i % width % 512
					}
					if thread/32 == i/width {
						return height
					}
					return 0
				})
				add(fmt.Sprintf("HeadLoss of %d logits, of one warp each larger by %v", width, height), op)
			}
		}
		for k := range 16 { // 256 sums are taken at once, and the next 256 asked for before
			add(fmt.Sprintf("SumSquares of %d blocks", 32*k+32), sumSquaresOf(m, typ, (32*k+32)*device.NormBlock))
		}
		plain := adamWOf(m, typ, 1030, 3, seed)
		plain.Stochastic = false
		add("AdamW with a plain copy", plain)
		alone := adamWOf(m, typ, 1030, 3, seed)
		alone.Copy, alone.Stochastic = device.Tensor{}, false
		add("AdamW without a copy", alone)
	}
	return ops
}

func TestSumsLossAndUpdateHoldAtTheirEdges(t *testing.T) {
	rng := optest.Rand(t)
	memory := optest.NewMemory(t, rng)
	ops := edges(memory, func(int) float64 { return rng.NormFloat64() })
	for _, name := range slices.Sorted(maps.Keys(ops)) {
		op := ops[name]
		if err := op.Check(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		tries := schedules
		if op.Cost().Bytes > 1<<18 {
			tries = []schedule{schedules[0], schedules[2]}
		}
		if err := verify(memory, rng, op, tries...); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if op.Cost().Bytes > 1<<18 {
			continue
		}
		shift := func(op device.Op) device.Op { return shifted(memory, op) }
		if err := verifyCopies(memory, rng, op, shift, schedules[0], schedules[1]); err != nil {
			t.Errorf("%s, from addresses of no alignment: %v", name, err)
		}
	}
}

// A chain of additions is taken together where that gives the same bits: not where the sum passes a power of two, nor
// where a number is halfway between two steps of the sum, nor where it is not finite.
func TestSumsOfSquaresHaveTheBitsOfAChain(t *testing.T) {
	rng := optest.Rand(t)
	memory := optest.NewMemory(t, rng)
	// A block's sum is that of up to four squares.
	sums := func(blocks int, squares func(block int) []float64) *device.SumSquares {
		o := sumSquaresOf(memory, device.F32, blocks*device.NormBlock)
		clear(o.X.F32())
		for b := range blocks {
			for i, x := range squares(b) {
				o.X.F32()[b*device.NormBlock+rng.IntN(60)*16+i] = float32(x)
			}
		}
		return o
	}
	first := func(x float64, then func() []float64) func(int) []float64 {
		return func(block int) []float64 {
			if block == 0 {
				return []float64{x}
			}
			return then()
		}
	}
	halves := [][]float64{{8, 8}, {16, 8, 8}, {16}, {16, 1}, {8, 8, 1}, {}, {16, 16, 8, 8}, {8}}
	chains := map[string]*device.SumSquares{
		"ones":                      sums(600, func(int) []float64 { return []float64{1} }),
		"zeros, then ones":          sums(600, func(b int) []float64 { return []float64{float64(b / 500)} }),
		"halves of a step":          sums(700, first(0x1p30, func() []float64 { return halves[rng.IntN(len(halves))] })), // a step is 256
		"nothing but halves":        sums(300, first(0x1p30, func() []float64 { return halves[0] })),
		"halves that are rare":      sums(900, first(0x1p30, func() []float64 { return halves[max(0, rng.IntN(200)-192)] })),
		"less than half a step":     sums(300, first(0x1p30, func() []float64 { return []float64{1, 3} })),
		"half of the least":         sums(300, first(0x1p30, func() []float64 { return []float64{0x1p-80} })),
		"powers of two are passed":  sums(900, func(b int) []float64 { return []float64{math.Exp2(float64(b) / 40), 1} }),
		"larger and smaller by far": sums(400, func(int) []float64 { return []float64{math.Exp2(float64(rng.IntN(60) - 30))} }),
		"random":                    sums(900, func(int) []float64 { return []float64{rng.NormFloat64(), rng.NormFloat64()} }),
		"the least numbers":         sums(300, func(int) []float64 { return []float64{0x1p-149} }),
		"infinities whose bits add up to nothing beside 1": sums(600, func(b int) []float64 {
			switch {
			case b == 0:
				return []float64{1}
			case b >= 300 && b < 304:
				return []float64{math.Inf(1)}
			}
			return nil
		}),
		"an infinity late": sums(600, func(b int) []float64 {
			if b == 400 {
				return []float64{math.Inf(1)}
			}
			return []float64{1}
		}),
	}
	// One half in 256 sums that are taken at once, each time among other numbers of the lanes; each after an odd number of steps.
	chains["a half in each place"] = sums(9*256, func(b int) []float64 {
		switch {
		case b == 0:
			return []float64{0x1p30}
		case b >= 256 && b%256/32 == b/256-1 && b%32 == b/256*2-1:
			return halves[0]
		}
		return halves[2]
	})
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		if err := verify(memory, rng, chains[name], schedules[0]); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The sums of a column or a token are added in the order of rows by any number
// of blocks, so they do not depend on what stands beside them.
func TestAColumnsSumDoesNotDependOnItsNeighbours(t *testing.T) {
	rng := optest.Rand(t)
	memory := optest.NewMemory(t, rng)
	wide := biasBackwardOf(memory, device.BF16, device.F32, 203, 200, false)
	narrow := biasBackwardOf(memory, device.BF16, device.F32, 203, 1, false)
	for row := range narrow.M {
		narrow.DOut.BF16()[row] = wide.DOut.BF16()[row*wide.N+77]
	}
	for _, op := range []device.Op{wide, narrow} {
		if err := run(op, schedules[0], 0); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := narrow.DBias.F32()[0], wide.DBias.F32()[77]; got != want {
		t.Errorf("the sum is %v alone, %v among others", got, want)
	}
}

// With a learning rate of 0, parameters stay and their copies have known bits.
func TestAParameterAtTheEndOfItsRangeIsCopiedAsTheReferenceDoes(t *testing.T) {
	memory := optest.NewMemory(t, optest.Rand(t))
	ends := []float64{math.Inf(1), math.Inf(-1), math.MaxFloat32, -math.MaxFloat32, 0, math.Copysign(0, -1), 0x1p-149, -0x1.8p-130, 1, math.NaN(), poisons[1]}
	for _, stochastic := range []bool{false, true} {
		got := adamWOf(memory, device.BF16, 330, math.MaxInt64-100, func(i int) float64 { return ends[i%len(ends)] })
		got.Stochastic = stochastic
		optest.Set(got.Hyper, device.HyperLR, 0)
		if recorder != nil {
			recorder(got, optest.KeepsPoison)
			continue
		}
		want := memory.Clone(got).(*device.AdamW)
		want.Reference()
		if err := run(got, schedules[0], 0); err != nil {
			t.Fatal(err)
		}
		for i := range got.N {
			g, w := got.Copy.BF16()[i], want.Copy.BF16()[i]
			if x := device.FromBF16(w); g != w && !(x != x && device.FromBF16(g) != device.FromBF16(g)) {
				t.Errorf("stochastic %v: the copy of %v is %v, want %v", stochastic, ends[i%len(ends)], device.FromBF16(g), x)
			}
		}
	}
}

func TestATargetOutsideOfTheVocabularyStopsTheKernel(t *testing.T) {
	memory := optest.NewMemory(t, optest.Rand(t))
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for _, vocab := range []int{33, 64} {
			for _, wrong := range []int{-2, vocab, math.MaxInt32, math.MinInt32} {
				op := headLossOf(memory, typ, vocab, []int{0, wrong, 1}, false, func(int) float64 { return 1 })
				if err := stops(op); err != nil {
					t.Errorf("%s, target %d: %v", typ, wrong, err)
				}
				var fault *ptx.Fault
				if err := run(op, schedules[0], 0); !errors.As(err, &fault) || fault.Kind != ptx.Undefined || fault.Block[0] != 1 {
					t.Errorf("%s, target %d: %v, want a trap in block 1", typ, wrong, err)
				}
			}
		}
	}
}

func TestSumsRefuseByNameWhatTheirKernelsCannotDo(t *testing.T) {
	memory := optest.NewMemory(t, optest.Rand(t))
	for want, op := range map[string]device.Op{
		"cuda: ReduceSum: 65 sources: its kernel adds up to 64": reduceSumOf(memory, device.F32, device.F32, 1, 65, -1),
		"cuda: ReduceSum: operands of f64":                      reduceSumOf(memory, device.F64, device.F64, 1, 2, -1),
		"cuda: SumSquares: operands of f64":                     sumSquaresOf(memory, device.F64, 1),
		"cuda: AdamW: operands of f64":                          &device.AdamW{Param: memory.Blank(device.F64, 1), Grad: memory.Blank(device.BF16, 1), N: 1},
	} {
		if l, err := Lower(op); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("Lower: %v, %v; want an error with %q", l, err, want)
		}
	}
}

// The lanes that share a norm block take its elements in turns of 64, which are written out.
func TestSumsOfSquaresEndAtAnyElement(t *testing.T) {
	rng := optest.Rand(t)
	memory := optest.NewMemory(t, rng)
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for n := 64; n < 128; n++ {
			op := sumSquaresOf(memory, typ, n)
			for _, copyOf := range []func(device.Op) device.Op{memory.Clone, func(op device.Op) device.Op { return shifted(memory, op) }} {
				if err := verifyCopies(memory, rng, op, copyOf, schedules[0]); err != nil {
					t.Errorf("%s: %v", device.Format(op), err)
				}
			}
		}
	}
}
