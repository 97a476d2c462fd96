package bench

import (
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
)

// FullStrategies is what strategies are judged by, at so many ranks each. The
// cases are those of one rank, then of each mesh those strategies that differ on
// it.
func FullStrategies(recompute fsdp.Recompute, ranks ...int) (StepSettings, error) {
	meshes, err := MeshesOf(slices.Insert(ranks, 0, 1)...)
	full := Full()
	s := StepSettings{
		Model: full.Model, Length: full.Length, Sequences: full.Sequences, Precision: device.F32, Threads: 1,
		Optimizer: usual, LR: 1e-4, Clip: 1, Rounds: 5, Warm: 1, Steps: 2, Reading: 2 * full.Reading,
	}
	for _, m := range meshes {
		for _, strategy := range strategiesOn(m) {
			s.Cases = append(s.Cases, StepCase{Name: fmt.Sprintf("%s over %s", strategy, m), Mesh: m, Strategy: strategy, MicroBatches: 1, Recompute: recompute})
		}
	}
	return s, err
}

// ShortStrategies shows in seconds that all runs.
func ShortStrategies(recompute fsdp.Recompute, ranks ...int) (StepSettings, error) {
	s, err := FullStrategies(recompute, ranks...)
	short := Short()
	s.Model, s.Length, s.Rounds, s.Steps, s.Reading = short.Model, short.Length, 2, 1, 2*short.Reading
	return s, err
}

// strategiesOn returns those that differ on a mesh. Along one axis a hybrid is
// one of the others.
func strategiesOn(m fsdp.Mesh) []fsdp.Strategy {
	switch {
	case m.Size() == 1:
		return []fsdp.Strategy{fsdp.NoShard}
	case m.Along(fsdp.Across) == 1 || m.Along(fsdp.Within) == 1:
		return []fsdp.Strategy{fsdp.NoShard, fsdp.ShardOptimizer, fsdp.ShardGradOp, fsdp.FullShard}
	}
	return fsdp.Strategies()
}

// Results sums up what the ranks reported, by rank, of cases as FullStrategies
// has them.
func (s *StepSettings) Results(reported [][]Sample) (*RankedWorkload, error) {
	src, err := model.Resolve(s.Model)
	if err != nil {
		return nil, err
	}
	c := src.Config
	w := &RankedWorkload{
		Model: s.Model, Parameters: c.NumParams(), Sequences: s.Sequences, Length: s.Length,
		Precision: s.Precision.String(), Recompute: string(s.Cases[0].Recompute), Threads: s.Threads, FLOPsPerToken: c.FLOPsPerToken(s.Length),
	}
	all, err := s.Times(reported)
	if err != nil {
		return nil, err
	}
	one, plain := &all[0], &all[0]
	for i := range all {
		t := &all[i]
		if t.Strategy == fsdp.NoShard {
			plain = t
		}
		var speedups, ratios []float64
		for k, seconds := range t.Seconds {
			speedups = append(speedups, float64(t.Tokens)/seconds/(float64(one.Tokens)/one.Seconds[k]))
			ratios = append(ratios, seconds/plain.Seconds[k])
		}
		w.Steps = append(w.Steps, RankedStep{
			Ranks: t.Mesh.Size(), Mesh: t.Mesh.String(), Strategy: string(t.Strategy), ArenaBytes: t.Arenas,
			Step: t.step(), Speedup: SpreadOf(speedups), OverNoShard: SpreadOf(ratios),
		})
	}
	return w, nil
}
