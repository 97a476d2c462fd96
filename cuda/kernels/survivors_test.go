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
	file  string // of CUDA source, or of the header
	line  string // a part of the lines
	kinds []mutate.Kind
	why   string
}

// arithmetic are the kinds that code which is never executed may have.
var arithmetic = []mutate.Kind{
	mutate.IndexShifted, mutate.ImmediateChanged, mutate.ShiftChanged, mutate.OperandsSwapped, mutate.ComparisonMoved,
	mutate.OperatorChanged, mutate.PredicateLost, mutate.PredicateNegated, mutate.RoundingChanged, mutate.StoreDropped,
}

var survivors = []survivor{
	{
		"attention_f32.cu", "for (int i = at; i < a.seq_len; i++)",
		[]mutate.Kind{mutate.ComparisonMoved, mutate.PredicateLost},
		"a row is in its sequence, so the loop begins: what asks before the first turn is never equal",
	},
	{
		"adamw.cu", "return from_float<bf16>(x);",
		[]mutate.Kind{mutate.RoundingChanged},
		"it rounds what is not finite",
	},
	{
		"attention.cuh", "bool hides(int i, int key)",
		[]mutate.Kind{mutate.ComparisonMoved},
		"a row is its own key in one of four or eight places of a tile only, in others it never is",
	},
	{
		"norm.cu", "if (a.wide)",
		[]mutate.Kind{mutate.ComparisonMoved, mutate.PredicateLost, mutate.PredicateNegated},
		"in fp32 both ways are the same",
	},
	{
		"common.cuh", "if (vector && first + i64(blockDim.x) * N <= n) {",
		[]mutate.Kind{mutate.ComparisonMoved, mutate.PredicateLost, mutate.OperatorChanged},
		"a block that is full, and goes element by element, is slower and the same",
	},
	{
		"decode.cu", "if (score[u] > most) {",
		[]mutate.Kind{mutate.ComparisonMoved},
		"a score that is the largest so far is the same in both branches: the power of nothing is 1",
	},
	{
		"embed_backward.cu", "for (int from = row; from < int(a.rows); from += TURN) {",
		[]mutate.Kind{mutate.ComparisonMoved},
		"a turn behind the last row finds no row",
	},
	{
		"headloss.cu", "for (; i < packs; i += THREADS) observe<1", arithmetic,
		"the compiler writes this loop out by four, and it has three turns at most",
	},
	{
		"headloss.cu", "for (; i >= 0; i -= THREADS) differentiate<1", arithmetic,
		"the compiler writes this loop out by four, and it has three turns at most",
	},
	{
		"norm.cu", "if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;",
		[]mutate.Kind{mutate.ImmediateChanged},
		"all lanes have the sum that one of them stores",
	},
	{
		"rope.cu", "if (head.active && lane == 0)",
		[]mutate.Kind{mutate.ImmediateChanged},
		"all lanes have the number that one of them stores",
	},
	{
		"reduce.cu", "to[k] = i * N + k < n ? to_float(p[i * N + k]) : 0.0f;", arithmetic,
		"the compiler has a copy of it for the last pack of aligned numbers, which is not whole: its last element is never there",
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
// whose exponents add up wherever they are parted, and its last constant is less than a bound; logf looks for
// what no sum of powers is: zero, infinity and subnormal numbers.
func (s sources) library(x mutate.Mutant) bool {
	if len(x.Source) == 0 || !regexp.MustCompile(`\b(expf|logf|log2f)\(`).MatchString(s.at(x.Source[0])) {
		return false
	}
	switch x.Kind {
	case mutate.ImmediateChanged, mutate.OperandsSwapped, mutate.ComparisonMoved, mutate.PredicateLost:
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
				return s.file == p.File && strings.Contains(sources.at(p), s.line)
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
			t.Logf("%d not found in %s, %s: %s", used[i], s.file, s.line, s.why)
		case all:
			t.Errorf("%s: %q: all mutants are found now: what explains that they are not can go", s.file, s.line)
		}
	}
}

// A survivor whose line is gone explains nothing any more.
func TestExplainedSurvivorsAreLinesOfTheirSource(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range survivors {
		found := false
		for line := range strings.Lines(readFile(t, s.file)) {
			found = found || strings.Contains(line, s.line)
		}
		if !found {
			t.Errorf("%s has no line %q any more: explain its mutants anew", s.file, s.line)
		}
		for _, kind := range s.kinds {
			key := fmt.Sprint(s.file, s.line, kind)
			if seen[key] || s.why == "" {
				t.Errorf("%s: %s: %s: there twice, or without a reason", s.file, s.line, kind)
			}
			seen[key] = true
		}
	}
}
