package kernels

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/cuda/sim/mutate"
)

// survivor explains mutants that no test can find, or none needs to: those of some kinds, of what is compiled of
// some lines of source.
type survivor struct {
	why   string
	kinds []mutate.Kind
	lines []part
}

// part is a part of lines of a file of CUDA source, or of a header; without a file, of all.
type part struct{ file, line string }

// arithmetic are the kinds that code which is never executed may have.
var arithmetic = []mutate.Kind{
	mutate.IndexShifted, mutate.ImmediateChanged, mutate.ShiftChanged, mutate.OperandsSwapped, mutate.ComparisonMoved,
	mutate.OperatorChanged, mutate.PredicateLost, mutate.PredicateNegated, mutate.RoundingChanged, mutate.StoreDropped,
}

var survivors = []survivor{
	{
		"all lanes have the number, so any of them may store it",
		[]mutate.Kind{mutate.ImmediateChanged},
		[]part{
			{"", "threadIdx.x % 32 == 0"},
			{"", "threadIdx.x == 0"},
			{"", "lane == 0"},
			{"attention_backward.cu", "threadIdx.x % ACROSS == 0"},
			{"attention.cu", "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;"},
			{"attention_backward.cu", "half = threadIdx.x / HALF;"},
			{"embed_backward.cu", "lane = threadIdx.x % 32;"},
			{"norm.cu", "if (at.thread == 0) a.rstd[at.row] = rstd;"},
			{"decode.cu", "if (team == 0) store"},
			{"decode.cu", "if (team != 0) return;"},
			{"embed_backward.cu", "__ballot_sync(0xffffffffu, i < int(a.rows) && a.ids[i] == id)"},
			{"embed_backward.cu", "if (!__syncthreads_or(any)) continue;"},
			{"common.cuh", "if (threadIdx.x % 32 < ACROSS) partial"},
			{"rope.cu", "item += WEIGHT_WARPS * 32) {"},
		},
	},
	{
		"what a lane begins with that has no number, or whose first number takes its place",
		[]mutate.Kind{mutate.ImmediateChanged},
		[]part{
			{"attention.cu", "for (; tile <= last; tile++, stage ^= 1) {"},
			{"attention_backward.cu", "for (; tile <= last; tile++, stage ^= 1) {"},
			{"attention_backward.cu", "for (int j = 0; j < 8; j++) sum += x[j] * y[j];"},
			{"attention_backward.cu", "for (int part = 0; part < a.parts; part++) {"},
			{"attention_backward.cu", "if (++head == end_head) return false;"},
			{"common.cuh", "reinterpret_cast<Pack<float, N> *>(p)[i] = x;"},
			{"common.cuh", "reinterpret_cast<Pack<u32, N / 2> *>(p)[i] = x;"},
			{"common.cuh", "p[i * N + k] = from_float<bf16>(from[k]);"},
			{"common.cuh", "total += partial[w][threadIdx.x];"},
			{"common.cuh", "if (threadIdx.x < ACROSS * N) {"},
			{"common.cuh", "Pack<u32, N / 2> x = reinterpret_cast<const Pack<u32, N / 2> *>(p)[i];"},
			{"bias.cu", "if (threadIdx.x < ACROSS * N && column < a.width)"},
			{"decode.cu", "for (i64 j = team; j - team < rows; j += 2 * TEAMS) {"},
			{"decode.cu", "if (j + u * TEAMS >= rows"},
			{"decode.cu", "const int head = blockIdx.x % a.heads"},
			{"headloss.cu", "observe<U, T, N>(s, x, i);"},
			{"headloss.cu", "if (threadIdx.x == 0) a.loss[blockIdx.x] = 0;"},
			{"norm.cu", "if (i >= packs) continue;"},
			{"norm.cu", "put<float>(a.dweight, i, total, a.accumulate);"},
			{"reduce.cu", "bool there = block * NORM_BLOCK < a.n;"},
			{"rope.cu", "if (a.q_weight != nullptr) {"},
			{"rope.cu", "const T *weight = "},
			{"rope.cu", "total += a.sums[part * 2 * a.head_size + i];"},
		},
	},
	{
		"the power of nothing is 0 beside any number",
		[]mutate.Kind{mutate.ImmediateChanged},
		[]part{{"attention.cu", "const float less = now == nothing() ? 0.0f : now;"}},
	},
	{
		"a lane has to know what its own rows see, and four lanes have the same rows: what the others see saves work only",
		[]mutate.Kind{mutate.ShuffleChanged, mutate.OperatorChanged},
		[]part{{"attention.cuh", "x = min(x, __shfl_xor_sync(0xffffffffu, x, d));"}, {"attention.cuh", "most = max(most, start[i]);"}},
	},
	{
		"a row is its own key, or the first that it sees, in one of four or eight places of a tile only, in others never",
		[]mutate.Kind{mutate.ComparisonMoved},
		[]part{{"attention.cuh", "bool hides(int i, int key)"}, {"attention_backward.cu", "if (from <= key && key <= q) seen |= 1u << (8 * i + j);"}},
	},
	{
		"tiles, and the rows of warps, begin at multiples of 16, so these are never equal, or an element more is as good",
		[]mutate.Kind{mutate.ComparisonMoved, mutate.ImmediateChanged, mutate.IndexShifted},
		[]part{
			{"attention.cuh", "return any && key <= first + 16 * M - 1 && key + n > least;"},
			{"attention.cuh", "bool sees_all(int key, int n)"},
			{"attention.cuh", "any = first < seq_len;"},
			{"attention_backward.cu", "const int key = tile * TILE + half;"},
			{"attention_backward.cu", "const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;"},
			{"attention_backward.cu", "if (query < a.seq_len && query + 31 >= block + row) {"},
			{"attention_backward.cu", "const int row = warp % (HALF / 32) * (16 * M);"},
			{"attention_backward.cu", "const u32 queries = tiles + lane_columns<D>(), query_rows = tiles + lane_rows<D>();"},
			{"attention_backward.cu", "const u32 keys = tiles + lane_columns<D>(), values = keys + tile_bytes<D>, key_rows = tiles + lane_rows<D>();"},
			{"attention.cuh", "u32 chunk(int r, int c) { return u32(r * (2 * D) + ((c ^ (r & 7)) << 4)); }"},
		},
	},
	{
		"the first tile that a block reads is whole, unless it is the block's own, which begins at a multiple of 128",
		[]mutate.Kind{mutate.ImmediateChanged},
		[]part{
			{"attention.cu", "copy_tile<D, TILE>(to, k + at, kv_stride, a.seq_len - tile * TILE);"},
			{"attention_backward.cu", "copy_tile<D, TILE>(to, k + at, kv_stride, a.seq_len - tile * TILE);"},
		},
	},
	{
		"any tile behind the last will do",
		[]mutate.Kind{mutate.IndexShifted},
		[]part{{"attention_backward.cu", "int head = first_head - 1, base = last_tile, tile = last_tile + 1;"}},
	},
	{
		"both factors of a product are read in the same other order",
		[]mutate.Kind{mutate.IndexShifted},
		[]part{{"attention.cuh", "load_matrices(to, (at ^ k * 32) + row * (2 * D));"}, {"attention_backward.cu", "multiply_add(ds[m][2 * n + 1], x[m], b[2], b[3]);"}},
	},
	{
		"a warp's place in shared memory may be anywhere, if it is its own",
		[]mutate.Kind{mutate.ShiftChanged},
		[]part{{"", "shared + (warp * M + m) * (16 * D / 8));"}},
	},
	{
		"a row is in its sequence and sees itself, and a group has a head, so what asks before the first turn is never equal",
		[]mutate.Kind{mutate.ComparisonMoved, mutate.PredicateLost, mutate.IndexShifted},
		[]part{
			{"attention_f32.cu", "for (int i = at; i < a.seq_len; i++)"},
			{"attention_f32.cu", "j <= at; j++) {"},
			{"attention_f32.cu", "for (int head = p.head * group; head < (p.head + 1) * group; head++) {"},
			{"attention_f32.cu", "const Row<D> k(a.k + here), v(a.v + here);"},
		},
	},
	{
		"there are two parts at least",
		[]mutate.Kind{mutate.ComparisonMoved, mutate.ImmediateChanged, mutate.PredicateLost, mutate.IndexShifted},
		[]part{{"attention_backward.cu", "for (int part = 0; part < a.parts; part++) {"}},
	},
	{
		"there is a row in the cache, the new one",
		[]mutate.Kind{mutate.ComparisonMoved, mutate.ImmediateChanged},
		[]part{{"decode.cu", "for (i64 j = team; j - team < rows; j += 2 * TEAMS) {"}, {"decode.cu", "w < TEAMS && w < rows; w++)"}},
	},
	{
		"an index that is out of its range stops another kernel of the operation as well, or before",
		[]mutate.Kind{mutate.ComparisonMoved, mutate.ImmediateChanged, mutate.PredicateLost},
		[]part{{"decode.cu", "return in_range(a.cached[s], 0x7fffffff);"}, {"rope.cu", "in_range(a.pos["}},
	},
	{
		"in fp32 the gradients of weights have one type",
		arithmetic,
		[]part{
			{"norm.cu", "if (a.wide)"},
			{"norm.cu", "put<T>(a.dweight, i, total, a.accumulate);"},
			{"rope.cu", "if (query ? a.q_wide : a.k_wide)"},
			{"rope.cu", "put<T>(dweight, column, total, a.accumulate);"},
		},
	},
	{
		"rows have 2, 4 or 8 warps here",
		[]mutate.Kind{mutate.ComparisonMoved, mutate.ImmediateChanged},
		[]part{{"norm.cu", "do x += partial[at.first + w];"}},
	},
	{
		"a row that is longer than what its threads keep has all of the block's warps, of which the first is 0",
		[]mutate.Kind{mutate.ShiftChanged},
		[]part{
			{"norm.cu", "for (int i = at.thread + KEEP * at.threads; i < packs; i += at.threads)"},
			{"norm.cu", "thread = threadIdx.x - first * 32;"},
			{"norm.cu", "if (a.residual == nullptr) return;"},
			{"norm.cu", "if (a.dsum != nullptr) {"},
		},
	},
	{
		"the compiler counts turns beside the addresses, four at once: a count that is a little ahead ends at the same turn, unless there are fifty",
		[]mutate.Kind{mutate.IndexShifted},
		[]part{
			{"bias.cu", "for (i64 row = down; row < a.rows; row += DOWN) {"},
			{"norm.cu", "r += COLUMN_WARPS * 32 / C) {"},
		},
	},
	{
		"the other bits of what is masked are zero",
		[]mutate.Kind{mutate.ImmediateChanged},
		[]part{
			{"bias.cu", "for (i64 row = down; row < a.rows; row += DOWN) {"},
			{"bias.cu", "int across = threadIdx.x % ACROSS"},
			{"norm.cu", "r += COLUMN_WARPS * 32 / C) {"},
		},
	},
	{
		"what is not zero is true",
		[]mutate.Kind{mutate.ImmediateChanged},
		[]part{{"reduce.cu", "return (word & E) == E ||"}, {"reduce.cu", "found |= not_finite<T>("}},
	},
	{
		"what is squared has no sign",
		[]mutate.Kind{mutate.ImmediateChanged},
		[]part{{"reduce.cu", "load(to, p, i);"}},
	},
	{
		"the compiler has a copy of it for the last pack of aligned numbers, which is not whole: its last element is never there",
		arithmetic,
		[]part{{"reduce.cu", "to[k] = i * N + k < n ? to_float(p[i * N + k]) : 0.0f;"}},
	},
	{
		"a number that is 54 places below has no half of a step, and one that is 53 below is taken alone in any case",
		[]mutate.Kind{mutate.ComparisonMoved, mutate.ImmediateChanged},
		[]part{{"reduce.cu", "good = good && !(lost > 0 && lost <= 53 && rest == one << (lost - 1));"}},
	},
	{
		"a turn behind the last row finds no row",
		[]mutate.Kind{mutate.ComparisonMoved},
		[]part{{"embed_backward.cu", "for (int from = row; from < int(a.rows); from += TURN) {"}},
	},
	{
		"the compiler takes turns in pairs, of which there is an even number here, so these are never equal",
		[]mutate.Kind{mutate.ImmediateChanged},
		[]part{{"headloss.cu", "differentiate<U, T, N>(row, x, i);"}},
	},
	{
		"a difference is odd if the opposite is",
		[]mutate.Kind{mutate.OperandsSwapped},
		[]part{{"attention_f32.cu", "const Row<D> k(a.k + other), v(a.v + other);"}},
	},
	{
		"the other lanes have the same sums, and store the same or in the same place",
		[]mutate.Kind{mutate.ComparisonMoved, mutate.PredicateNegated},
		[]part{{"common.cuh", "if (threadIdx.x % 32 < ACROSS) partial"}, {"reduce.cu", "if (there && lane == 0) a.parts[block] = sum;"}},
	},
	{
		"the compiler divides 32 bits where the numbers fit, and tests have no larger ones",
		[]mutate.Kind{mutate.OperandsSwapped, mutate.PredicateLost},
		[]part{{"attention_f32.cu", "row = i / heads;"}, {"attention_f32.cu", "first = row / seq_len * seq_len;"}},
	},
	{
		"it rounds what is not finite",
		[]mutate.Kind{mutate.RoundingChanged},
		[]part{{"adamw.cu", "return from_float<bf16>(x);"}},
	},
}

// sources are the lines of the CUDA sources.
type sources map[string][]string

func sourcesOf(t *testing.T) sources {
	s := sources{}
	for _, pattern := range []string{"*.cu", "*.cuh"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			s[f] = strings.Split(readFile(t, f), "\n")
		}
	}
	return s
}

func (s sources) at(p mutate.Place) string { return strings.TrimSpace(s[p.File][p.Line-1]) }

// library says whether a mutant changes how CUDA's own expf or logf go about it. expf multiplies two powers,
// whose exponents add up wherever they are parted, and its last constant is less than a bound; logf parts a number
// near 2/3, or a little above, and looks for what no sum of powers is: zero, infinity and subnormal numbers.
func (s sources) library(x mutate.Mutant) bool {
	if len(x.Source) == 0 || !regexp.MustCompile(`\b(expf|logf|log2f)\(`).MatchString(s.at(x.Source[0])) {
		return false
	}
	switch x.Kind {
	case mutate.ImmediateChanged, mutate.OperandsSwapped, mutate.ComparisonMoved, mutate.PredicateLost, mutate.IndexShifted:
		return true
	}
	return false
}

// explain fails for each survivor that is not explained, counts the others, and fails for each explanation that
// none of all mutants needs.
func explain(t *testing.T, sources sources, left []mutate.Mutant, all bool) {
	t.Helper()
	used := make([]int, len(survivors))
	for _, x := range left {
		i := slices.IndexFunc(survivors, func(s survivor) bool {
			return slices.Contains(s.kinds, x.Kind) && slices.ContainsFunc(x.Source, func(p mutate.Place) bool {
				return slices.ContainsFunc(s.lines, func(l part) bool {
					return (l.file == "" || l.file == p.File) && strings.Contains(sources.at(p), l.line)
				})
			})
		})
		if i < 0 {
			what := fmt.Sprintf("not found, and not explained: %v", x)
			for _, p := range x.Source {
				what += "\n\t" + sources.at(p)
			}
			t.Error(what)
			continue
		}
		used[i]++
	}
	for i, s := range survivors {
		switch {
		case used[i] > 0:
			t.Logf("%d not found: %s", used[i], s.why)
		case all:
			t.Errorf("%q: all mutants are found now: what explains that they are not can go", s.why)
		}
	}
}

// A survivor whose line is gone explains nothing any more.
func TestExplainedSurvivorsAreLinesOfTheirSource(t *testing.T) {
	sources := sourcesOf(t)
	for _, s := range survivors {
		if s.why == "" || len(s.kinds) == 0 || len(s.lines) == 0 {
			t.Errorf("%v lacks something", s)
		}
		for _, l := range s.lines {
			found := false
			for file, lines := range sources {
				found = found || (l.file == "" || l.file == file) && slices.ContainsFunc(lines, func(line string) bool { return strings.Contains(line, l.line) })
			}
			if !found {
				t.Errorf("%s has no line %q any more: explain its mutants anew", l.file, l.line)
			}
		}
	}
}
