package fsdp

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
)

// TestTheVerifierMissesNoCollectiveThatIsMissing drops every collective, and
// every operation that feeds or finishes one, in turn.
func TestTheVerifierMissesNoCollectiveThatIsMissing(t *testing.T) {
	faults := 0
	for _, s := range Strategies() {
		for _, mesh := range []Mesh{{1, 4}, {2, 2}} {
			for i, late := range []bool{false, true, true, false} {
				for rank := range mesh.Size() {
					o := Options{Model: twoBlocks(true), Type: device.F32, Train: true, Eval: true, Seqs: 1, SeqLen: 8, Mesh: mesh, Rank: rank, Strategy: s, LateReduce: late, MicroBatches: rank % 2}
					if i > 1 {
						o.Offload = offloads[rank%len(offloads)]
					}
					p, err := NewPlan(o)
					if err != nil {
						t.Fatal(err)
					}
					for _, prog := range p.Programs() {
						all := prog.Steps
						for i, step := range all {
							if !slices.Contains([]string{"gather", "reduce", "agree", "fetch", "store"}, step.Cut) {
								continue
							}
							faults++
							prog.Steps = slices.Delete(slices.Clone(all), i, i+1)
							if p.verify(prog) == nil {
								t.Errorf("%s on %v, rank %d, late %v, offload %s: %s without step %d (%s %s of %s) is not found wrong", s, mesh, rank, late, o.Offload, prog.Name, i, device.Name(step.Op), step.Axis, p.Units[step.Unit].Name)
							}
						}
						prog.Steps = all
					}
				}
			}
		}
	}
	if faults < 1000 {
		t.Errorf("only %d faults were planted", faults)
	}
}

// TestTheVerifierMissesNoWaitThatIsMissing drops every wait in turn.
func TestTheVerifierMissesNoWaitThatIsMissing(t *testing.T) {
	faults := 0
	for _, s := range Strategies() {
		for prefetch, offload := range slices.Concat(offloads, []Offload{OffloadNone, OffloadNone, OffloadNone}) {
			micros := prefetch % 2
			prefetch %= 3
			p, err := NewPlan(Options{Model: twoBlocks(true), Type: device.F32, Train: true, Eval: true, Seqs: 1, SeqLen: 8, Mesh: Mesh{2, 2}, Strategy: s, Prefetch: prefetch, Offload: offload, MicroBatches: micros})
			if err != nil {
				t.Fatal(err)
			}
			for _, prog := range p.Programs() {
				for i := range prog.Steps {
					all := prog.Steps[i].Waits
					for w := range all {
						faults++
						prog.Steps[i].Waits = slices.Delete(slices.Clone(all), w, w+1)
						if p.verify(prog) == nil {
							t.Errorf("%s, prefetch %d, offload %s: %s without the wait of step %d for step %d is not found wrong", s, prefetch, offload, prog.Name, i, all[w])
						}
					}
					prog.Steps[i].Waits = all
				}
			}
		}
	}
	if faults < 200 {
		t.Errorf("only %d waits were dropped", faults)
	}
}

func TestGathersComeAsManyUnitsAheadAsAskedFor(t *testing.T) {
	for _, prefetch := range []int{0, 1, 2} {
		cfg := small(false)
		p, err := NewPlan(Options{Model: cfg, Type: device.F32, Train: true, Seqs: 1, SeqLen: 8, Mesh: Mesh{1, 2}, Strategy: FullShard, Prefetch: prefetch})
		if err != nil {
			t.Fatal(err)
		}
		// The units in the order in which they begin to gather and to compute in
		// the forward; the backward begins with a unit that needs no gather. What is
		// uploaded needs no weights.
		var gathers, computes []string
		for _, s := range p.Micro[0].Steps {
			name := p.Units[s.Unit].Name
			if _, ok := s.Op.(*collective.AllGather); ok {
				if gathers = append(gathers, name); len(gathers) > len(p.Units) {
					break
				}
				// Launched before the computation of how many units that are yet to come?
				if ahead := len(gathers) - 1 - len(computes); ahead != min(prefetch, len(gathers)-1) && len(computes) > 0 {
					t.Errorf("prefetch %d: the gather of %s comes %d units ahead", prefetch, name, ahead)
				}
			} else if s.Stream == Computing && s.Cut != "upload" && (len(computes) == 0 || computes[len(computes)-1] != name) {
				computes = append(computes, name)
			}
		}
	}
}

// TestRankTranscripts shows where each strategy gathers, reduces and releases:
// go test ./fsdp -run RankTranscripts -rewrite writes the file anew.
func TestRankTranscripts(t *testing.T) {
	datadriven.RunTest(t, "testdata/ranks.txt", func(t *testing.T, d *datadriven.TestData) string {
		var across, within int
		d.ScanArgs(t, "mesh", &across, &within)
		o := Options{
			Model: twoBlocks(d.HasArg("tied")), Type: device.F32, Train: true, Seqs: 1, SeqLen: 8, Mesh: Mesh{across, within}, Rank: 1,
			Strategy: Strategy(d.Cmd), KeepWeights: d.HasArg("keep"), LateReduce: d.HasArg("late"),
		}
		if d.HasArg("bf16") {
			o.Type = device.BF16
		}
		if d.HasArg("offload") {
			o.Offload, o.Prefetch = OffloadAll, 1
		}
		if d.HasArg("once") {
			o.MicroBatches = 1
		}
		p, err := NewPlan(o)
		if err != nil {
			return err.Error() + "\n"
		}
		var b strings.Builder
		for _, prog := range []*Program{&p.Micro[0], &p.Micro[1], &p.Reduce, &p.Update} {
			fmt.Fprintf(&b, "%s\n", prog.Name)
			computes, unit := 0, ""
			flush := func() {
				if computes > 0 {
					fmt.Fprintf(&b, "  %-10s %d operations\n", unit, computes)
				}
				computes = 0
			}
			for _, s := range prog.Steps {
				if name := p.Units[s.Unit].Name; name != unit {
					flush()
					unit = name
				}
				if s.Cut != "gather" && s.Cut != "reduce" && s.Cut != "fetch" && s.Cut != "store" {
					computes++
					continue
				}
				flush()
				fmt.Fprintf(&b, "  %-10s %s", unit, device.Name(s.Op))
				if _, ok := s.Op.(collective.Op); ok {
					fmt.Fprintf(&b, " %s", s.Axis)
				}
				for _, op := range device.Operands(s.Op) {
					from := op.T.Off / op.T.Type.Size()
					fmt.Fprintf(&b, " %s=%s[%d:%d]", op.Name, strings.TrimPrefix(p.Buffers[op.T.Buf-1].Name, unit+" "), from, from+op.T.Len)
				}
				fmt.Fprintln(&b)
			}
			flush()
		}
		return b.String()
	})
}
