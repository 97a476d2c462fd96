package bench

import (
	"context"
	"errors"
	"time"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/train"
)

// Settings say what to measure, and how often.
type Settings struct {
	Model      string // a name that model.Resolve knows; its weights are not read
	Length     int    // tokens of a sequence
	Sequences  int    // of a micro-batch
	Precisions []device.DType
	Recompute  fsdp.Recompute
	Threads    int // of the device; 0: all cores, or a GPU

	Short    bool
	Steps    int           // training steps to time
	Watched  int           // training steps and decoded tokens to time operation by operation
	Rounds   int           // measurements of each operation by itself
	Readings int           // measurements of the machine's limits
	Reading  time.Duration // of each
}

// Full is what speed is judged by.
func Full() Settings {
	return Settings{
		Model: "bench-98m", Length: 512, Sequences: 2, Precisions: []device.DType{device.F32, device.BF16}, Recompute: fsdp.RecomputeNone,
		Steps: 7, Watched: 3, Rounds: 5, Readings: 7, Reading: 50 * time.Millisecond,
	}
}

// Short shows in seconds that everything can be measured.
func Short() Settings {
	s := Full()
	s.Model, s.Length = "tiny", 128
	s.Short = true
	s.Steps, s.Watched, s.Rounds, s.Readings, s.Reading = 3, 2, 2, 2, 5*time.Millisecond
	return s
}

// Open opens a device with that many threads, 0: with all cores; or a GPU, whatever
// it is asked for. It must be one that has Limits.
type Open func(threads int) (device.Device, error)

// Run measures. It blocks until all is measured or ctx ends. log gets a line
// before each part.
func Run(ctx context.Context, s Settings, open Open, log func(format string, args ...any)) (*Results, error) {
	src, err := model.Resolve(s.Model)
	if err != nil {
		return nil, err
	}
	b := &bench{Settings: s, ctx: ctx, config: src.Config, open: open, log: log}
	for _, typ := range s.Precisions {
		if err := b.check(typ); err != nil {
			return nil, err
		}
	}
	r := NewResults(s.Short)
	if err := b.machine(r); err != nil {
		return nil, err
	}
	for _, typ := range s.Precisions {
		w, err := b.workload(typ)
		if err != nil {
			return nil, err
		}
		r.Workloads = append(r.Workloads, *w)
	}
	return r, nil
}

// bench is one Run.
type bench struct {
	Settings
	ctx    context.Context
	config model.Config
	open   Open
	log    func(string, ...any)
}

// check refuses what cannot be planned or does not fit, before anything is
// measured.
func (b *bench) check(typ device.DType) error {
	if err := train.CheckRows(b.Sequences, b.Length); err != nil {
		return err
	}
	return b.with(b.Threads, func(dev device.Device, _ Limits) error {
		plan, err := fsdp.NewPlan(b.options(typ, true))
		if err != nil {
			return err
		}
		if onGPU(dev.Info()) {
			err = plan.Limits(cuda.Runs)
		}
		return errors.Join(err, train.CheckMemory(plan, dev.Info(), 1))
	})
}

// with calls f with an open device and its limits, and closes it.
func (b *bench) with(threads int, f func(device.Device, Limits) error) error {
	dev, err := b.open(threads)
	if err != nil {
		return err
	}
	limits, err := LimitsOf(dev)
	if err == nil {
		err = f(dev, limits)
	}
	return errors.Join(err, dev.Close())
}

// machine measures the raw limits with one thread, all cores and the workload's
// threads, or of a GPU, and notes which device has those.
func (b *bench) machine(r *Results) error {
	done := map[int]bool{}
	for _, threads := range []int{1, 0, b.Threads} {
		err := b.with(threads, func(dev device.Device, l Limits) error {
			info := dev.Info()
			if threads == b.Threads {
				r.Device = DeviceOf(info)
			}
			if done[info.Threads] {
				return nil
			}
			done[info.Threads] = true
			b.log("limits of the machine, %s", computing(onGPU(info), info.Threads))
			m, err := b.limits(info.Threads, l)
			r.Machine = append(r.Machine, m)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// computing says what computes: a GPU, or threads.
func computing(gpu bool, threads int) string {
	if gpu {
		return "a GPU"
	}
	return train.Number(threads, "thread")
}

func (b *bench) limits(threads int, l Limits) (Machine, error) {
	var f32, bf16, copies, triads []float64
	for range b.Readings {
		if err := b.ctx.Err(); err != nil {
			return Machine{}, err
		}
		f32, bf16 = append(f32, l.PeakFLOPS(device.F32, b.Reading)), append(bf16, l.PeakFLOPS(device.BF16, b.Reading))
		copies, triads = append(copies, l.CopyBandwidth(b.Reading)), append(triads, l.TriadBandwidth(b.Reading))
	}
	return Machine{Threads: threads, F32: SpreadOf(f32), BF16: SpreadOf(bf16), Copy: SpreadOf(copies), Triad: SpreadOf(triads)}, nil
}

// options returns those of a training plan, with decoding beside it if asked.
func (b *bench) options(typ device.DType, decode bool) fsdp.Options {
	o := trainOptions(b.config, typ, b.Sequences, b.Length, b.Recompute)
	if decode {
		o.Decoding = train.Decoding(b.Length)
	}
	return o
}

// trainOptions returns those of a plan that trains on one rank, in steps of one
// micro-batch.
func trainOptions(c model.Config, typ device.DType, sequences, length int, r fsdp.Recompute) fsdp.Options {
	return fsdp.Options{
		Model: c, Type: typ, Train: true, Seqs: sequences, SeqLen: length, MicroBatches: 1, Recompute: r, Optimizer: usual,
	}
}

// usual is an optimizer as runs have it.
var usual = fsdp.Optimizer{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}

// workload measures training in one precision.
func (b *bench) workload(typ device.DType) (*Workload, error) {
	w := &Workload{
		Model: b.Model, Parameters: b.config.NumParams(), Sequences: b.Sequences, Length: b.Length,
		Precision: typ.String(), Recompute: string(b.Recompute), FLOPsPerToken: b.config.FLOPsPerToken(b.Length),
	}
	began := time.Now()
	err := b.with(b.Threads, func(dev device.Device, l Limits) error {
		w.Startup.Device = time.Since(began).Seconds()
		w.Threads = dev.Info().Threads
		if err := b.steps(w, typ, dev, l); err != nil {
			return err
		}
		return b.operations(w, typ, dev, l)
	})
	return w, err
}

// steps measures the start-up and the step as users have them.
func (b *bench) steps(w *Workload, typ device.DType, dev device.Device, l Limits) (err error) {
	b.log("training steps in %s, %s", typ, computing(onGPU(dev.Info()), w.Threads))
	e, err := b.engine(b.options(typ, false), dev, &w.Startup)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	w.ArenaBytes = e.Plan.Bytes()
	t := newTrainee(e)
	if w.Startup.FirstStep, err = t.step(); err != nil {
		return err
	}
	w.Step, err = measureSteps(b.ctx, t, gauge{l, typ, 2 * b.Reading}, w.Threads, b.Steps)
	return err
}

// engine makes one with fresh weights and notes how long its parts took.
func (b *bench) engine(o fsdp.Options, dev device.Device, s *Startup) (*fsdp.Engine, error) {
	last := time.Now()
	lap := func() float64 {
		now := time.Now()
		d := now.Sub(last)
		last = now
		return d.Seconds()
	}
	plan, err := fsdp.NewPlan(o)
	if err != nil {
		return nil, err
	}
	if err := train.CheckMemory(plan, dev.Info(), 1); err != nil {
		return nil, err
	}
	s.Plan = lap()
	e, err := fsdp.NewEngine(plan, dev, fsdp.Comms{})
	if err != nil {
		return nil, err
	}
	s.Allocate = lap()
	if err := train.SetWeights(e, nil, 0); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	s.Weights = lap()
	s.Target = targetOf(b.Model)
	if onGPU(dev.Info()) {
		s.Target = record.Unknown[float64]("targets are for CPUs")
	}
	return e, nil
}

// targetOf returns the longest start-up that the project allows itself, in
// seconds.
func targetOf(name string) record.Value[float64] {
	switch name {
	case "tiny": // the quickstart's
		return record.Known(0.5)
	case "bench-98m":
		return record.Known(1.5)
	}
	return record.Unknown[float64]("no target is set for this model")
}

// operations measures a step operation by operation, then each one alone.
func (b *bench) operations(w *Workload, typ device.DType, dev device.Device, l Limits) (err error) {
	b.log("operations in %s, %s", typ, computing(onGPU(dev.Info()), w.Threads))
	watch := &watcher{Device: dev, seen: ignore}
	e, err := b.engine(b.options(typ, true), watch, new(Startup))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	t, g := newTrainee(e), gauge{l, typ, b.Reading / 2}
	step, decode := newCollection(InStep), newCollection(InDecode)
	if _, err := t.step(); err != nil {
		return err
	}
	var stepTimes, outside, decodeTimes []float64
	before := g.all()
	for range b.Watched {
		if err := b.ctx.Err(); err != nil {
			return err
		}
		watch.seen = step.add
		s, err := t.step()
		if err != nil {
			return err
		}
		watch.seen = ignore
		after := g.all()
		stepTimes, outside = append(stepTimes, s), append(outside, s-step.endRun(between(before, after)))
		d, err := t.decode(func() { watch.seen = decode.add })
		if err != nil {
			return err
		}
		watch.seen = ignore
		before = g.all()
		decode.endRun(between(after, before))
		decodeTimes = append(decodeTimes, d)
	}
	none := others(step)
	stream := dev.NewStream("bench")
	for _, c := range []*collection{step, decode, none} {
		if err := measureAlone(b.ctx, dev, stream, e.Plan, c.list, g, b.Rounds); err != nil {
			return err
		}
	}
	w.Watched, w.Outside = SpreadOf(stepTimes), SpreadOf(outside)
	w.Kinds = step.kinds(w.Watched.Median)
	w.Operations = sorted(step, w.Watched.Median, before)
	w.Operations = append(w.Operations, sorted(decode, SpreadOf(decodeTimes).Median, before)...)
	w.Operations = append(w.Operations, sorted(none, 0, before)...)
	return nil
}

func ignore(device.Op, float64) {}
