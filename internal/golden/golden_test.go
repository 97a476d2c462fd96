package golden_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/internal/golden"
)

func load(t *testing.T, name string) *golden.Case {
	t.Helper()
	c, err := golden.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func names(t *testing.T) []string {
	t.Helper()
	all, err := golden.Names()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestTheCasesAreThoseTheScriptMakes(t *testing.T) {
	want := []string{"llama", "llama-scaled", "packed", "qwen2-tied", "qwen2-untied", "qwen3"}
	if got := names(t); !slices.Equal(got, want) {
		t.Fatalf("cases %q, want %q", got, want)
	}
}

func TestTheFormulaGivesTheSameBitsAsTheScript(t *testing.T) {
	for _, name := range names(t) {
		c := load(t, name)
		if len(c.Parameters) == 0 {
			t.Errorf("%s: no parameters", name)
		}
		weights := c.Weights()
		for _, p := range c.Parameters {
			values := weights[p.Name]
			if values[0] != p.First {
				t.Errorf("%s: %s begins with %v, want %v", name, p.Name, values[0], p.First)
			}
			hash := sha256.New()
			var word [4]byte
			for _, v := range values {
				binary.LittleEndian.PutUint32(word[:], math.Float32bits(v))
				hash.Write(word[:])
			}
			if got := hex.EncodeToString(hash.Sum(nil)); got != p.SHA256 {
				t.Errorf("%s: %s has hash %s, want %s", name, p.Name, got, p.SHA256)
			}
		}
	}
}

func TestTheIDsAreTheFormulas(t *testing.T) {
	for _, name := range names(t) {
		c := load(t, name)
		vocab := len(c.Logits) / len(c.IDs)
		if name == "packed" {
			for row := range c.Batch {
				got := c.IDs[row*c.Sequence : (row+1)*c.Sequence]
				if want := golden.IDs([]string{"ids.0", "ids.1"}[row], c.Sequence, vocab); !slices.Equal(got, want) {
					t.Errorf("packed, row %d: %v, want %v", row, got, want)
				}
			}
			continue
		}
		if want := golden.IDs("ids", len(c.IDs), vocab); !slices.Equal(c.IDs, want) {
			t.Errorf("%s: %v, want %v", name, c.IDs, want)
		}
	}
}

// The loss follows from the stored logits and targets, so the three belong together.
func TestLogitsTargetsAndLossAgree(t *testing.T) {
	for _, name := range names(t) {
		c := load(t, name)
		vocab := len(c.Logits) / len(c.IDs)
		if len(c.Logits) != c.Batch*c.Sequence*vocab || len(c.Targets) != len(c.IDs) || len(c.Start) != len(c.IDs) {
			t.Fatalf("%s: %d logits, %d targets and %d starts for %d ids", name, len(c.Logits), len(c.Targets), len(c.Start), len(c.IDs))
		}
		var sum float64
		var valid int
		for i, target := range c.Targets {
			if target < 0 {
				continue
			}
			var total float64
			row := c.Logits[i*vocab : (i+1)*vocab]
			for _, l := range row {
				total += math.Exp(float64(l - row[target]))
			}
			sum += math.Log(total)
			valid++
		}
		if got := sum / float64(valid); math.Abs(got-c.Loss) > 1e-6*c.Loss {
			t.Errorf("%s: the logits give loss %v, the case says %v", name, got, c.Loss)
		}
	}
}

func TestEveryParameterHasAGradientOfItsSize(t *testing.T) {
	for _, name := range names(t) {
		c := load(t, name)
		if len(c.Grads) != len(c.Parameters) {
			t.Errorf("%s: %d gradients of %d parameters", name, len(c.Grads), len(c.Parameters))
		}
		for _, p := range c.Parameters {
			n := 1
			for _, d := range p.Shape {
				n *= d
			}
			if len(c.Grads[p.Name]) != n {
				t.Errorf("%s: %s has %d gradients, want %d", name, p.Name, len(c.Grads[p.Name]), n)
			}
		}
	}
}

func TestTrainingHasTwentyStepsOfWhichSomeWereClipped(t *testing.T) {
	for _, name := range []string{"qwen2-tied", "qwen3"} {
		c := load(t, name)
		if c.Training == nil {
			t.Fatalf("%s: no training", name)
		}
		checkTraining(t, c, c.Training, 1)
		f, err := golden.LoadFSDP2(name)
		if err != nil {
			t.Fatal(err)
		}
		if f.Name != name || f.Ranks != 2 || f.MicroBatches != 2 {
			t.Errorf("%s: FSDP2 ran %s on %d ranks with %d micro-batches each", name, f.Name, f.Ranks, f.MicroBatches)
		}
		checkTraining(t, c, &f.Training, f.Ranks)
	}
}

// checkTraining requires twenty whole steps of a case's model, some of them clipped.
func checkTraining(t *testing.T, c *golden.Case, run *golden.Training, ranks int) {
	t.Helper()
	if len(run.Steps) != 20 || len(run.Final) != len(c.Parameters) {
		t.Fatalf("%s: no whole training", c.Name)
	}
	clipped := 0
	for i, s := range run.Steps {
		if s.Norm > run.Clip {
			clipped++
		}
		valid := 0
		for _, target := range s.Targets {
			if target >= 0 {
				valid++
			}
		}
		if n := ranks * run.MicroBatches * run.Sequences * run.Sequence; valid != s.Valid || len(s.IDs) != n || len(s.Targets) != n {
			t.Errorf("%s: step %d: %d valid targets and %d ids, want %d and %d", c.Name, i, valid, len(s.IDs), s.Valid, n)
		}
	}
	if clipped == 0 || clipped == len(run.Steps) {
		t.Errorf("%s: %d of %d steps clipped", c.Name, clipped, len(run.Steps))
	}
}

func TestGreedyContinuationsAreWellSeparated(t *testing.T) {
	for _, name := range names(t) {
		c := load(t, name)
		if name != "packed" && len(c.Greedy) != 4 {
			t.Errorf("%s: %d continuations, want 4", name, len(c.Greedy))
		}
		for _, g := range c.Greedy {
			if len(g.Tokens) != 24 || g.LeastGap < 1e-2 {
				t.Errorf("%s: prompt of %d: %d tokens, least gap %v", name, len(g.Prompt), len(g.Tokens), g.LeastGap)
			}
		}
	}
}

func TestAnUnknownCaseIsRefusedByName(t *testing.T) {
	if _, err := golden.Load("nothing"); err == nil {
		t.Error("loaded a case")
	}
	if _, err := golden.LoadFSDP2("nothing"); err == nil {
		t.Error("loaded a run of FSDP2")
	}
}
