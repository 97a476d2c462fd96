package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/train"
)

// StrategySettings say for which strategies, on which meshes, to measure the
// training step, and how often. Cases are counted through the meshes, of each
// through the strategies that differ on it. The first mesh is the base of
// comparison: one rank.
type StrategySettings struct {
	Meshes    Meshes
	Model     string // a name that model.Resolve knows; its weights are not read
	Length    int    // tokens of a sequence
	Sequences int    // of a rank's micro-batch, of which a step has one
	Precision device.DType
	Recompute fsdp.Recompute
	Threads   int // of each rank, whose device has them
	Short     bool

	Rounds int // in which all cases take turns
	Steps  int // that are timed in a turn, after one that is not
}

// FullStrategies is what strategies are judged by, at so many ranks each.
func FullStrategies(ranks ...int) (StrategySettings, error) {
	meshes, err := MeshesOf(slices.Insert(ranks, 0, 1)...)
	full := Full()
	return StrategySettings{
		Meshes: meshes, Model: full.Model, Length: full.Length, Sequences: full.Sequences,
		Precision: device.F32, Recompute: full.Recompute, Threads: 1, Rounds: 5, Steps: 2,
	}, err
}

// ShortStrategies shows in seconds that all runs.
func ShortStrategies(ranks ...int) (StrategySettings, error) {
	s, err := FullStrategies(ranks...)
	short := Short()
	s.Model, s.Length, s.Short, s.Rounds, s.Steps = short.Model, short.Length, true, 2, 1
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

// cases calls f for each case in order.
func (s *StrategySettings) cases(f func(i, mesh int, strategy fsdp.Strategy) error) error {
	i := 0
	for m, mesh := range s.Meshes {
		for _, strategy := range strategiesOn(mesh) {
			if err := f(i, m, strategy); err != nil {
				return err
			}
			i++
		}
	}
	return nil
}

// options returns a rank's plan's.
func (s *StrategySettings) options(c model.Config, mesh fsdp.Mesh, strategy fsdp.Strategy, rank int) fsdp.Options {
	o := trainOptions(c, s.Precision, s.Sequences, s.Length, s.Recompute)
	o.Mesh, o.Rank, o.Strategy, o.Prefetch = mesh, rank, strategy, 1
	return o
}

// Check refuses what cannot be planned or does not fit, on a device like that.
func (s *StrategySettings) Check(info device.Info) error {
	src, err := model.Resolve(s.Model)
	if err != nil {
		return err
	}
	if err := train.CheckRows(s.Sequences, s.Length); err != nil {
		return err
	}
	return s.cases(func(_, mesh int, strategy fsdp.Strategy) error {
		m := s.Meshes[mesh]
		plan, err := fsdp.NewPlan(s.options(src.Config, m, strategy, 0))
		if err == nil {
			err = train.CheckMemory(plan, info, m.Size())
		}
		if err != nil {
			return fmt.Errorf("%s over %s: %w", strategy, train.Number(m.Size(), "rank"), err)
		}
		return nil
	})
}

// Measure takes this rank's part in all cases, turn by turn. Each turn makes an
// engine of its own, since those of all cases would not fit.
func (s *StrategySettings) Measure(ctx context.Context, m *Member) error {
	limits, err := LimitsOf(m.Device)
	if err != nil {
		return err
	}
	src, err := model.Resolve(s.Model)
	if err != nil {
		return err
	}
	g := gauge{limits, s.Precision, 2 * Full().Reading}
	if s.Short {
		g.d = 2 * Short().Reading
	}
	for round := range s.Rounds {
		err := s.cases(func(i, mesh int, strategy fsdp.Strategy) error {
			on := s.Meshes[mesh]
			if err := m.Meet(ctx); err != nil || m.Rank >= on.Size() {
				return err
			}
			if m.Rank == 0 {
				m.Log("round %d of %d: %s over %s", round+1, s.Rounds, strategy, on)
			}
			sample, err := s.turn(m, s.options(src.Config, on, strategy, m.Rank), s.Meshes.comms(mesh, m.Ends), g)
			if err != nil {
				return err
			}
			sample.Case = i
			return m.Report(*sample)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// turn times steps of one case. Ranks read the peaks all at once, as they
// compute.
func (s *StrategySettings) turn(m *Member, o fsdp.Options, comms fsdp.Comms, g gauge) (sample *Sample, err error) {
	plan, err := fsdp.NewPlan(o)
	if err != nil {
		return nil, err
	}
	e, err := fsdp.NewEngine(plan, m.Device, comms)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := train.SetWeights(e, nil, 0); err != nil {
		return nil, err
	}
	t := newTrainee(e)
	if _, err := t.step(); err != nil { // takes the memory's pages
		return nil, err
	}
	meet := func() error { _, err := e.Total(0); return err }
	// Of a core for each thread: where there are fewer, a rank has its share.
	cores := min(1, float64(runtime.NumCPU())/float64(o.Mesh.Size()*s.Threads))
	peak := func() (float64, error) {
		if err := meet(); err != nil {
			return 0, err
		}
		return cores * g.peaks(rates{}).peak(g.typ), nil
	}
	sample = &Sample{Bytes: plan.Bytes()}
	before, err := peak()
	if err != nil {
		return nil, err
	}
	for range s.Steps {
		if err := meet(); err != nil {
			return nil, err
		}
		used := cpuSeconds()
		seconds, err := t.step()
		if err != nil {
			return nil, err
		}
		used = cpuSeconds() - used
		after, err := peak()
		if err != nil {
			return nil, err
		}
		sample.Readings = append(sample.Readings, Reading{
			Seconds: seconds, Limit: (before + after) / 2,
			Cores: max(used, 1e-6) / float64(s.Threads) / seconds, // the clock may be coarse
		})
		before = after
	}
	return sample, nil
}

// Results sums up what the ranks reported, by rank.
func (s *StrategySettings) Results(reported [][]Sample) (*RankedWorkload, error) {
	src, err := model.Resolve(s.Model)
	if err != nil {
		return nil, err
	}
	c := src.Config
	w := &RankedWorkload{
		Model: s.Model, Parameters: c.NumParams(), Sequences: s.Sequences, Length: s.Length,
		Precision: s.Precision.String(), Recompute: string(s.Recompute), Threads: s.Threads, FLOPsPerToken: c.FLOPsPerToken(s.Length),
	}
	rows := float64(s.Sequences * s.Length)
	var base, plain []float64 // by step: tokens/s of one rank, seconds of no_shard on the same mesh
	err = s.cases(func(i, mesh int, strategy fsdp.Strategy) error {
		m := s.Meshes[mesh]
		byRank, err := readings(reported, m.Size(), i, s.Rounds*s.Steps)
		if err != nil {
			return err
		}
		t := timesOf(byRank)
		x := RankedStep{Ranks: m.Size(), Mesh: m.String(), Strategy: string(strategy), Step: t.step(rows*float64(m.Size()), w.FLOPsPerToken)}
		for _, one := range reported[0] {
			if one.Case == i {
				x.ArenaBytes = one.Bytes
			}
		}
		if strategy == fsdp.NoShard {
			plain = t.seconds
		}
		var tokens, speedups, ratios []float64
		for k, seconds := range t.seconds {
			tokens = append(tokens, rows*float64(m.Size())/seconds)
			if i == 0 {
				base = tokens
			}
			speedups, ratios = append(speedups, tokens[k]/base[k]), append(ratios, seconds/plain[k])
		}
		x.Speedup, x.OverNoShard = SpreadOf(speedups), SpreadOf(ratios)
		w.Steps = append(w.Steps, x)
		return nil
	})
	return w, err
}

// times are those of the steps of several ranks together: the slowest rank's
// seconds, the sum of the peaks, and the mean part of the time on cores.
type times struct{ seconds, peaks, cores []float64 }

func timesOf(byRank [][]Reading) (t times) {
	for i := range byRank[0] {
		var seconds, peak, cores float64
		for _, list := range byRank {
			seconds = max(seconds, list[i].Seconds)
		}
		for _, list := range byRank {
			peak += list[i].Limit
			cores += list[i].Cores * list[i].Seconds / seconds / float64(len(byRank))
		}
		t.seconds, t.peaks, t.cores = append(t.seconds, seconds), append(t.peaks, peak), append(t.cores, cores)
	}
	return t
}

// step returns the figures of steps of rows tokens.
func (t times) step(rows, flopsPerToken float64) Step {
	var tokens, shares, onCores []float64
	best := slices.Max(t.peaks)
	for i, seconds := range t.seconds {
		rate := rows * flopsPerToken / seconds
		tokens, shares = append(tokens, rows/seconds), append(shares, rate/t.peaks[i])
		onCores = append(onCores, rate/t.cores[i]/best)
	}
	return Step{
		Seconds: SpreadOf(t.seconds), Tokens: SpreadOf(tokens), Peak: SpreadOf(t.peaks),
		Share: SpreadOf(shares), Cores: SpreadOf(t.cores), OnCores: SpreadOf(onCores),
	}
}
