package kernels

import (
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// attentionShape is a forward and its backward to try.
type attentionShape struct {
	typ                                device.DType
	seqs, seqLen, heads, kvHeads, size int
	start                              func(row int) int
}

func one(int) int { return 0 }

func documentsOf(n int) func(int) int { return func(i int) int { return i / n * n } }

// farBack lets one row of three tiles of queries see all before it, in either half, and the others only themselves.
func farBack(i int) int {
	switch i {
	case 37, 67, 188:
		return 0
	}
	return i
}

// fartherBack is farBack for tiles that are more than 32 from the first.
func fartherBack(i int) int {
	switch i - 33*64 {
	case 5, 64 + 40, 128 + 3, 192 + 50, 256 + 9:
		return 0
	}
	return i / 63 * 63
}

// windowOf lets each row of a tile see from the beginning of the tile that is so many before it.
func windowOf(tiles int) func(int) int {
	return func(i int) int { return max(0, i/64-tiles) * 64 }
}

// anywhere lets each row see back to a place of its own.
func anywhere(i int) int { return int(uint32(i) * 2654435761 >> 8 % uint32(i+1)) }

// attentionShapes are where tiles of 64 and blocks of 128 rows end, begin, or
// are passed over.
var attentionShapes = map[string]attentionShape{
	"one token":                                  {device.BF16, 1, 1, 2, 1, 64, one},
	"one token of each sequence, head 128":       {device.BF16, 3, 1, 2, 2, 128, one},
	"a tile that is just full":                   {device.BF16, 1, 64, 2, 2, 128, one},
	"a tile and a row":                           {device.BF16, 1, 65, 2, 1, 64, one},
	"a block and a row, seven heads on one":      {device.BF16, 1, 129, 7, 1, 64, documentsOf(37)},
	"eight heads on one, head 128":               {device.BF16, 1, 70, 8, 1, 128, documentsOf(31)},
	"documents that rule whole tiles out":        {device.BF16, 1, 300, 2, 1, 64, documentsOf(130)},
	"documents that rule tiles out, head 128":    {device.BF16, 1, 259, 1, 1, 128, documentsOf(64)},
	"two sequences that end within a third tile": {device.BF16, 2, 180, 2, 2, 128, documentsOf(150)},
	"starts that go back":                        {device.BF16, 1, 150, 2, 1, 64, func(i int) int { return i % 3 * i / 3 }},
	"every token a document":                     {device.BF16, 1, 66, 1, 1, 64, func(i int) int { return i }},
	"more tiles than are looked at together":     {device.BF16, 1, 33*64 + 1, 1, 1, 64, documentsOf(63)},
	"rows that see farther than together":        {device.BF16, 1, 38*64 + 1, 1, 1, 64, fartherBack},
	"documents of nine":                          {device.BF16, 1, 300, 1, 1, 64, documentsOf(9)},
	"documents of 25, head 128":                  {device.BF16, 1, 300, 1, 1, 128, documentsOf(25)},
	"more tiles than together, head 128":         {device.BF16, 1, 38*64 + 1, 1, 1, 128, fartherBack},
	"rows that see far back":                     {device.BF16, 1, 200, 1, 1, 64, farBack},
	"rows that see far back, head 128":           {device.BF16, 1, 200, 1, 1, 128, farBack},
	"starts at all places of tiles":              {device.BF16, 1, 300, 1, 1, 64, anywhere},
	"starts at all places, head 128":             {device.BF16, 1, 300, 1, 1, 128, anywhere},
	"windows of a tile":                          {device.BF16, 1, 8 * 64, 1, 1, 64, windowOf(0)},
	"two groups in parts":                        {device.BF16, 1, 70, 4, 2, 64, documentsOf(33)},
	"windows of two tiles":                       {device.BF16, 1, 8 * 64, 1, 1, 64, windowOf(1)},
	"windows of three tiles, head 128":           {device.BF16, 1, 8 * 64, 1, 1, 128, windowOf(2)},
	"windows of four tiles":                      {device.BF16, 1, 8 * 64, 1, 1, 64, windowOf(3)},
	"windows of two tiles, head 128":             {device.BF16, 1, 8 * 64, 1, 1, 128, windowOf(1)},
	"windows of three tiles":                     {device.BF16, 1, 8 * 64, 1, 1, 64, windowOf(2)},
	"windows of four tiles, head 128":            {device.BF16, 1, 8 * 64, 1, 1, 128, windowOf(3)},
	"a group in two parts":                       {device.BF16, 1, 9, 2, 1, 64, one},
	"a group in three parts":                     {device.BF16, 1, 9, 3, 1, 128, one},
	"a group in four parts":                      {device.BF16, 1, 9, 4, 1, 64, one},
	"a group in four parts, head 128":            {device.BF16, 1, 9, 4, 1, 128, one},
	"a group in five parts":                      {device.BF16, 1, 9, 5, 1, 64, one},
	"a group in uneven parts":                    {device.BF16, 4, 70, 7, 1, 64, documentsOf(41)},
	"a group in parts, head 128":                 {device.BF16, 2, 66, 6, 1, 128, documentsOf(33)},
	"work enough without parts":                  {device.BF16, 64, 2, 4, 2, 64, one},
	"fp32, one token":                            {device.F32, 2, 1, 2, 1, 128, one},
	"fp32, seven heads on one":                   {device.F32, 1, 33, 7, 1, 64, documentsOf(10)},
	"fp32, heads of their own, starts that jump": {device.F32, 2, 19, 2, 2, 128, func(i int) int { return i % 3 * i / 3 }},
}

// operations returns the forward and the backward on fresh memory. Neither has
// run: what the backward reads of the forward is there after the forward.
func (s attentionShape) operations(m optest.Memory) (*device.Attention, *device.AttentionBackward) {
	rows := s.seqs * s.seqLen
	q, k := rows*s.heads*s.size, rows*s.kvHeads*s.size
	f := &device.Attention{
		Q: m.Normal(s.typ, q, 0, 1), K: m.Normal(s.typ, k, 0, 1), V: m.Normal(s.typ, k, 0, 1),
		Start: m.Ints(rows, func(i int) int { return s.start(i % s.seqLen) }),
		Out:   m.Blank(s.typ, q), LSE: m.Blank(device.F32, rows*s.heads),
		Seqs: s.seqs, SeqLen: s.seqLen, Heads: s.heads, KVHeads: s.kvHeads, HeadSize: s.size,
		Scale: float32(1 / math.Sqrt(float64(s.size))),
	}
	return f, &device.AttentionBackward{
		Q: f.Q, K: f.K, V: f.V, Start: f.Start, Out: f.Out, LSE: f.LSE,
		DOut: m.Normal(s.typ, q, 0, 1), D: m.Blank(device.F32, rows*s.heads), Parts: m.Parts(f),
		DQ: m.Blank(s.typ, q), DK: m.Blank(s.typ, k), DV: m.Blank(s.typ, k),
		Seqs: s.seqs, SeqLen: s.seqLen, Heads: s.heads, KVHeads: s.kvHeads, HeadSize: s.size, Scale: f.Scale,
	}
}

func TestAttentionIsRightWhereTilesEndAndDocumentsBegin(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(attentionShapes)) {
		s := attentionShapes[name]
		t.Run(name, func(t *testing.T) {
			rng := optest.Rand(t)
			memory := optest.NewMemory(t, rng)
			forward, back := s.operations(memory)
			if err := verify(memory, rng, forward, schedules...); err != nil {
				t.Error(err)
			}
			forward.Reference() // the backward reads Out and LSE
			if err := verify(memory, rng, back, schedules...); err != nil {
				t.Error(err)
			}
		})
	}
}

// Each warp, lane and register that has the last row or the first one that is not there.
func TestAttentionEndsAtAnyRow(t *testing.T) {
	rng := optest.Rand(t)
	for _, size := range []int{64, 128} {
		memory := optest.NewMemory(t, rng)
		for n := 8; n < 128; n++ {
			if n > 24 && n%8 != 5 && (n < 33 || n > 64) {
				continue
			}
			forward, back := attentionShape{device.BF16, 1, n, 1, 1, size, one}.operations(memory)
			if err := verify(memory, rng, forward, schedules[0]); err != nil {
				t.Errorf("%d rows, head %d: %v", n, size, err)
			}
			forward.Reference()
			if err := verify(memory, rng, back, schedules[0]); err != nil {
				t.Errorf("%d rows, head %d: %v", n, size, err)
			}
		}
	}
}

// A product and an addition that are not rounded by themselves may be fused by whoever compiles PTX for a device. Of
// a score that stays the greatest it would be the rest of a rounding that is left, instead of 0, and sums would be
// shrunk by a little more or less than 1 at each tile.
func TestNoCompilerMayFuseWhatAttentionComputes(t *testing.T) {
	product := regexp.MustCompile(`^\s*(?:@!?%p\d+ )?mul(?:\.ftz)?\.f32\s+(%f\d+),`)
	sum := regexp.MustCompile(`^\s*(?:@!?%p\d+ )?(?:add|sub)(?:\.ftz)?\.f32\s+%f\d+, (%f\d+), (%f\d+);`)
	fusible := func(text string) (found []string) {
		products := map[string]bool{}
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, ".visible .entry ") {
				clear(products)
			}
			if m := product.FindStringSubmatch(line); m != nil {
				products[m[1]] = true
			} else if m := sum.FindStringSubmatch(line); m != nil && (products[m[1]] || products[m[2]]) {
				found = append(found, strings.TrimSpace(line))
			}
		}
		return found
	}
	if found := fusible("mul.f32 \t%f3, %f1, %f2;\nadd.f32 \t%f4, %f1, %f2;\n@%p1 sub.f32 \t%f5, %f4, %f3;\nadd.rn.f32 \t%f6, %f3, %f1;\n"); len(found) != 1 {
		t.Errorf("found %q", found)
	}
	for _, module := range []string{"attention", "attention_backward"} {
		if found := fusible(PTX(module)); len(found) > 0 {
			t.Errorf("%s: %d sums, such as %q", module, len(found), found[0])
		}
	}
}

func TestARowThatSeesOneKeyHasNoScoreGradientInFP32(t *testing.T) {
	memory := optest.NewMemory(t, optest.Rand(t))
	forward, back := attentionShape{device.F32, 1, 20, 4, 2, 64, func(i int) int { return i }}.operations(memory)
	for _, op := range []device.Op{forward, back} {
		if err := run(op, schedules[0], 0); err != nil {
			t.Fatal(err)
		}
	}
	for i := range int(back.DQ.Len) {
		if x := optest.At(back.DQ, i); x != 0 {
			t.Fatalf("DQ[%d] of a row that sees only itself is %v, want 0", i, x)
		}
	}
}

// The product of the first key with any query is less than fp32 can hold.
func TestAScoreOfMinusInfinityCountsForNothing(t *testing.T) {
	const rows, size = 70, 64
	rng := optest.Rand(t)
	memory := optest.NewMemory(t, rng)
	for _, typ := range []device.DType{device.F32, device.BF16} {
		queries := func(n int) device.Tensor { return memory.Floats(typ, n*size, func(int) float64 { return 0x1p100 }) }
		keys := func(n int) device.Tensor {
			return memory.Floats(typ, n*size, func(i int) float64 {
				if i < size && n > 1 {
					return -0x1p100
				}
				return 0x1p-105 * rng.NormFloat64()
			})
		}
		forward, _ := attentionShape{typ, 1, rows, 1, 1, size, one}.operations(memory)
		forward.Q, forward.K = queries(rows), keys(rows)
		decode := &device.AttentionDecode{
			Q: queries(1), K: keys(1), V: memory.Normal(typ, size, 0, 1), KCache: keys(rows), VCache: memory.Normal(typ, rows*size, 0, 1),
			Cached: memory.Ints(1, func(int) int { return rows - 1 }), Out: memory.Blank(typ, size),
			Seqs: 1, SeqLen: 1, CacheLen: rows, Heads: 1, KVHeads: 1, HeadSize: size, Scale: forward.Scale,
		}
		for _, c := range []struct {
			op   device.Op
			out  *device.Tensor
			from int // the first query sees no other key
		}{{forward, &forward.Out, size}, {decode, &decode.Out, 0}} {
			want := memory.Clone(c.op)
			want.Reference()
			if err := run(c.op, schedules[0], 0); err != nil {
				t.Fatal(err)
			}
			for i, o := range device.Operands(want) {
				for j := c.from; device.Operands(c.op)[i].T == c.out && j < int(o.T.Len); j++ {
					if x, y := optest.At(*c.out, j), optest.At(*o.T, j); !(math.Abs(x-y) <= 0x1p-6) {
						t.Fatalf("%s, %v: Out[%d] is %v, want %v", device.Name(c.op), typ, j, x, y)
					}
				}
			}
		}
	}
}

func TestAStartBehindItsRowStopsAttention(t *testing.T) {
	for _, typ := range []device.DType{device.F32, device.BF16} {
		memory := optest.NewMemory(t, optest.Rand(t))
		for _, size := range []int{64, 128} {
			for _, row := range []int{5, 40, 70, 100, 129} { // each of those that a lane looks at
				for _, wrong := range []int{row + 1, -1} {
					forward, back := attentionShape{typ, 1, 130, 1, 1, size, one}.operations(memory)
					forward.Start.I32()[row] = int32(wrong)
					for _, op := range []device.Op{forward, back} {
						if err := stops(op); err != nil {
							t.Errorf("%v, %s, a start of %d in row %d: %v", typ, device.Name(op), wrong, row, err)
						}
					}
				}
			}
		}
	}
}

func TestAttentionRefusesByNameWhatItsKernelsCannotDo(t *testing.T) {
	memory := optest.NewMemory(t, optest.Rand(t))
	for want, change := range map[string]func(*attentionShape){
		"heads of 80 numbers: there are kernels for 64 and 128": func(s *attentionShape) { s.size = 80 },
		"operands of f64": func(s *attentionShape) { s.typ = device.F64 },
	} {
		s := attentionShape{device.BF16, 1, 3, 2, 1, 64, one}
		change(&s)
		forward, back := s.operations(memory)
		decode := &device.AttentionDecode{Q: forward.Q, Seqs: 1, SeqLen: 3, Heads: 2, KVHeads: 1, HeadSize: s.size, Scale: forward.Scale}
		for _, op := range []device.Op{forward, back, decode} {
			if _, err := Lower(op); err == nil || !strings.Contains(err.Error(), device.Name(op)+": ") || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", device.Name(op), err, want)
			}
		}
	}
	large := &device.AttentionBackward{Q: memory.Blank(device.BF16, 1), Seqs: 60000, SeqLen: 60000, Heads: 2, KVHeads: 1, HeadSize: 64, Scale: 1}
	if _, err := Lower(large); err == nil || !strings.Contains(err.Error(), "more than can be counted; make the micro-batch smaller") {
		t.Error(err)
	}
	forward, _ := attentionShape{device.BF16, 1, 3, 2, 1, 64, one}.operations(memory)
	forward.V.Addr += 2
	forward.Scale = -1
	_, err := Lower(forward)
	for _, want := range []string{"not aligned to 16 bytes", "a positive scale"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
