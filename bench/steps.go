package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/train"
)

// StepCase is one way to do the training step.
type StepCase struct {
	Name         string
	Mesh         fsdp.Mesh
	Strategy     fsdp.Strategy
	MicroBatches int // of a rank in a step
	Recompute    fsdp.Recompute
}

// StepSettings say which training steps to measure, and how often. Cases take
// turns, in rounds. The losses are those of training.
type StepSettings struct {
	Cases     []StepCase
	Model     string // a name that model.Resolve knows; its weights are not read
	Start     string // directory with the weights to begin with; empty: fresh ones
	Length    int    // tokens of a sequence
	Sequences int    // of a rank's micro-batch
	Precision device.DType
	Threads   int // of each rank, whose device has them; of GPUs it says nothing

	// Tokens is a file of rows of Length+1 int32, little-endian, each a document:
	// in the order of steps, in a step of micro-batches, of these by ranks, and
	// again from the first when all are used. Empty: random ones.
	Tokens    string
	Optimizer fsdp.Optimizer
	LR        float64 // of every step
	Clip      float64 // greatest norm of the gradient; 0: any

	Rounds  int           // in which all cases take turns
	Warm    int           // steps of a turn that come before those that are timed
	Steps   int           // that are timed in a turn
	Reading time.Duration // of the peaks, before and after each timed step
}

// Meshes returns the meshes of the cases, each once.
func (s *StepSettings) Meshes() (all Meshes) {
	for _, c := range s.Cases {
		if !slices.Contains(all, c.Mesh) {
			all = append(all, c.Mesh)
		}
	}
	return all
}

// options returns a rank's plan's.
func (s *StepSettings) options(c model.Config, x StepCase, rank int) fsdp.Options {
	o := trainOptions(c, s.Precision, s.Sequences, s.Length, x.Recompute)
	o.Mesh, o.Rank, o.Strategy, o.Prefetch, o.Optimizer = x.Mesh, rank, x.Strategy, 1, s.Optimizer
	o.MicroBatches = x.MicroBatches
	return o
}

// Check returns all that keeps cases from being planned, or from fitting a
// device like that.
func (s *StepSettings) Check(info device.Info) error {
	src, err := model.Resolve(s.Model)
	if err != nil {
		return err
	}
	if err := train.CheckRows(s.Sequences, s.Length); err != nil {
		return err
	}
	var errs []error
	for _, c := range s.Cases {
		plan, err := fsdp.NewPlan(s.options(src.Config, c, 0))
		switch {
		case err != nil:
		case onGPU(info): // each rank has a memory of its own
			err = errors.Join(train.CheckMemory(plan, info, 1), plan.Limits(cuda.Runs))
		default:
			err = train.CheckMemory(plan, info, c.Mesh.Size())
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.Name, err))
		}
	}
	_, err = s.rows(src.Config)
	errs = append(errs, err)
	if w, err := s.weights(src.Config); err != nil {
		errs = append(errs, err)
	} else if w != nil {
		errs = append(errs, w.Close())
	}
	return errors.Join(errs...)
}

// rows returns what is learnt.
func (s *StepSettings) rows(c model.Config) (rows, error) {
	if s.Tokens == "" {
		return randomRows(s.Sequences, s.Length, c.Vocab), nil
	}
	r, err := readRows(s.Tokens, s.Length, c.Vocab)
	if err != nil {
		err = fmt.Errorf("tokens: %w", err)
	}
	return r, err
}

// weights opens those to begin with; nil: fresh ones.
func (s *StepSettings) weights(c model.Config) (*checkpoint.Weights, error) {
	if s.Start == "" {
		return nil, nil
	}
	w, err := checkpoint.OpenWeights(s.Start, c)
	if err != nil {
		err = fmt.Errorf("start: %w", err)
	}
	return w, err
}

// Measure takes this rank's part in all cases, turn by turn. Each turn makes an
// engine of its own, since those of all cases would not fit.
func (s *StepSettings) Measure(ctx context.Context, m *Member) error {
	limits, err := LimitsOf(m.Device)
	if err != nil {
		return err
	}
	src, err := model.Resolve(s.Model)
	if err != nil {
		return err
	}
	rows, err := s.rows(src.Config)
	if err != nil {
		return err
	}
	meshes := s.Meshes()
	g := gauge{limits, s.Precision, s.Reading}
	for round := range s.Rounds {
		for i, c := range s.Cases {
			if err := m.Meet(ctx); err != nil {
				return err
			}
			if m.Rank >= c.Mesh.Size() {
				continue
			}
			if m.Rank == 0 {
				m.Log("round %d of %d: %s", round+1, s.Rounds, c.Name)
			}
			sample, err := s.turn(m, src.Config, rows, c, meshes.comms(slices.Index(meshes, c.Mesh), m.Ends), g)
			if err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
			sample.Case = i
			if round > 0 {
				sample.Losses = nil // they would be the same
			}
			if err := m.Report(*sample); err != nil {
				return err
			}
		}
	}
	return nil
}

// turn times steps of one case. Ranks read the peaks all at once, as they
// compute.
func (s *StepSettings) turn(m *Member, config model.Config, r rows, c StepCase, comms fsdp.Comms, g gauge) (sample *Sample, err error) {
	memory, err := residentOn(m.Device)
	if err != nil {
		return nil, err
	}
	plan, err := fsdp.NewPlan(s.options(config, c, m.Rank))
	if err != nil {
		return nil, err
	}
	e, err := fsdp.NewEngine(plan, m.Device, comms)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := s.setWeights(e); err != nil {
		return nil, err
	}
	t := newTraineeOn(e, r, c.MicroBatches, s.LR, s.Clip)
	meet := func() error { _, err := e.Total(0); return err }
	// Of a core for each thread: where there are fewer, a rank has its share.
	gpu, cores := onGPU(m.Device.Info()), 1.0
	if !gpu {
		cores = min(1, float64(runtime.NumCPU())/float64(c.Mesh.Size()*s.Threads))
	}
	peak := func() (float64, error) {
		if err := meet(); err != nil {
			return 0, err
		}
		return cores * g.peaks(rates{}).peak(g.typ), nil
	}
	sample = &Sample{Bytes: plan.Bytes()}
	var before float64
	for i := range s.Warm + s.Steps {
		if i == s.Warm {
			if before, err = peak(); err != nil {
				return nil, err
			}
		}
		if i > 0 { // reading the peaks takes memory, too
			memory.begin()
		}
		if err := meet(); err != nil {
			return nil, err
		}
		used := cpuSeconds()
		seconds, err := t.step()
		if err != nil {
			return nil, err
		}
		used = cpuSeconds() - used
		sample.Losses = append(sample.Losses, t.loss)
		if i == 0 {
			memory.begin()
		}
		if err := memory.end(); err != nil {
			return nil, err
		}
		if i < s.Warm {
			continue
		}
		after, err := peak()
		if err != nil {
			return nil, err
		}
		reading := Reading{Seconds: seconds, Limit: (before + after) / 2}
		if !gpu {
			reading.Cores = max(used, 1e-6) / float64(s.Threads) / seconds // the clock may be coarse
		}
		sample.Readings = append(sample.Readings, reading)
		before = after
	}
	sample.Memory = memory.peak
	return sample, nil
}

// StepTimes is what the ranks measured of a case together. Lists are by timed
// step, unless it says otherwise.
type StepTimes struct {
	StepCase
	Tokens  int64     // of a step, over all ranks
	FLOPs   float64   // of a step, by the model; what is computed again does not count
	Seconds []float64 // of the slowest rank
	Peaks   []float64 // FLOP/s, summed over ranks
	Cores   []float64 // mean part of the time on cores; 0 where GPUs compute
	Losses  []float64 // of all steps of the first turn
	Memory  []int64   // by rank: the greatest memory (Sample.Memory) in a turn's steps after the first, or at the first one's end; 0: not known
	Arenas  int64     // of the first rank's plan
}

// setWeights fills an engine. Files are closed at once: while they are mapped,
// their pages count as this process's.
func (s *StepSettings) setWeights(e *fsdp.Engine) error {
	w, err := s.weights(e.Plan.Model)
	if err != nil {
		return err
	}
	err = train.SetWeights(e, w, 0)
	if w != nil {
		err = errors.Join(err, w.Close())
	}
	return err
}

// Times puts together what the ranks reported, by rank.
func (s *StepSettings) Times(reported [][]Sample) ([]StepTimes, error) {
	src, err := model.Resolve(s.Model)
	if err != nil {
		return nil, err
	}
	flops := src.Config.FLOPsPerToken(s.Length)
	var all []StepTimes
	for i, c := range s.Cases {
		byRank, err := readings(reported, c.Mesh.Size(), i, s.Rounds*s.Steps)
		if err != nil {
			return nil, err
		}
		t := StepTimes{StepCase: c, Tokens: int64(s.Sequences * s.Length * c.MicroBatches * c.Mesh.Size()), Memory: make([]int64, len(byRank))}
		t.FLOPs = float64(t.Tokens) * flops
		for r := range byRank {
			for _, one := range reported[r] {
				if one.Case != i {
					continue
				}
				t.Memory[r] = max(t.Memory[r], one.Memory)
				if r == 0 && t.Losses == nil {
					t.Losses, t.Arenas = one.Losses, one.Bytes
				}
			}
		}
		t.add(byRank)
		all = append(all, t)
	}
	return all, nil
}

// add puts the readings of ranks together.
func (t *StepTimes) add(byRank [][]Reading) {
	for i := range byRank[0] {
		var seconds, peak, cores float64
		for _, list := range byRank {
			seconds = max(seconds, list[i].Seconds)
		}
		for _, list := range byRank {
			peak += list[i].Limit
			cores += list[i].Cores * list[i].Seconds / seconds / float64(len(byRank))
		}
		t.Seconds, t.Peaks, t.Cores = append(t.Seconds, seconds), append(t.Peaks, peak), append(t.Cores, cores)
	}
}

// Limit returns the least seconds that each timed step could have been at the
// ranks' peaks.
func (t *StepTimes) Limit() (list []float64) {
	for _, peak := range t.Peaks {
		list = append(list, t.FLOPs/peak)
	}
	return list
}

// step returns the figures of the steps.
func (t *StepTimes) step() Step {
	var tokens, shares, cores, onCores []float64
	best := slices.Max(t.Peaks)
	for i, seconds := range t.Seconds {
		rate := t.FLOPs / seconds
		tokens, shares = append(tokens, float64(t.Tokens)/seconds), append(shares, rate/t.Peaks[i])
		if t.Cores[i] > 0 {
			cores, onCores = append(cores, t.Cores[i]), append(onCores, rate/t.Cores[i]/best)
		}
	}
	return Step{
		Seconds: SpreadOf(t.Seconds), Tokens: SpreadOf(tokens), Peak: SpreadOf(t.Peaks),
		Share: SpreadOf(shares), Cores: SpreadOf(cores), OnCores: SpreadOf(onCores),
	}
}
