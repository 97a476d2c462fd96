package main

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"time"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/train"
)

type trainCommand struct {
	configured
}

// peakTime is how long the machine's peak is measured.
const peakTime = 100 * time.Millisecond

// peaker is a device that can measure its own limit.
type peaker interface {
	PeakFLOPS(typ device.DType, d time.Duration) float64
}

// Run trains. All that can be wrong is found before the run's directory is
// made, and the directory before the first step.
func (c *trainCommand) Run(a *app) (err error) {
	began := time.Now()
	cfg, binding, err := c.load()
	if err != nil {
		return err
	}
	if err := c.free(cfg); err != nil {
		return err
	}
	dev, err := openDevice(cfg.Scaling)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	r, err := train.Open(a.ctx, train.Work{Model: cfg.Model, Data: cfg.Data, Train: cfg.Train}, dev, func(format string, args ...any) {
		a.printf(format+"\n", args...)
	})
	if err != nil {
		return asUser(err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := record.CheckSpace(cfg.Run.StoragePath, r.DiskBytes()); err != nil {
		return asUser(err)
	}
	dir, err := createRun(c.File, cfg)
	if err != nil {
		return asUser(err)
	}
	return a.train(cfg, binding, r, dir, dev, began)
}

// free refuses a run whose directory exists, before any work is done for it.
func (c *trainCommand) free(cfg *config.Config) error {
	if cfg.Run.Name == "" {
		return nil
	}
	return asUser(record.Vacant(filepath.Join(cfg.Run.StoragePath, cfg.Run.Name)))
}

// createRun makes the run's directory: by its name, or a new numbered one
// named after the configuration.
func createRun(file string, cfg *config.Config) (*record.Dir, error) {
	path := filepath.Join(cfg.Run.StoragePath, cfg.Run.Name)
	if cfg.Run.Name == "" {
		base := filepath.Base(file)
		base = base[:len(base)-len(filepath.Ext(base))]
		var err error
		if path, err = record.NextNumbered(cfg.Run.StoragePath, base); err != nil {
			return nil, err
		}
	}
	return record.Create(path)
}

// train runs what was prepared and leaves its record, however it ends.
func (a *app) train(cfg *config.Config, binding *config.Binding, r *train.Run, dir *record.Dir, dev device.Device, began time.Time) (err error) {
	hash, err := dir.WriteConfig(binding.MarshalSources())
	if err != nil {
		return err
	}
	rec := record.NewRun()
	rec.ConfigHash = record.Known(hash)
	r.Describe(rec)
	if err := dir.WriteRun(rec); err != nil {
		return err
	}
	var peak float64
	if p, ok := dev.(peaker); ok {
		peak = p.PeakFLOPS(cfg.Train.Type(), peakTime)
		rec.Figures.PeakFLOPS = record.Known(peak)
	}
	recorder, err := train.NewRecorder(dir, began, map[string]string{"config_hash": hash})
	if err != nil {
		return err
	}
	flops := r.Model.Config.FLOPsPerToken(cfg.Data.SequenceLength)
	console := &train.Console{Out: a.out, Terminal: a.terminal, FLOPsPerToken: flops, PeakFLOPS: peak}
	a.printf("%s: %s; results in %s\n", r.Model.Name, r.Outline(), dir.Path())

	sum, err := r.Train(a.ctx, train.Reporters{recorder, console})
	if sum.Steps > 0 && finite(sum.Loss) {
		err = errors.Join(err, r.Export(dir.ModelDir()))
	}
	if err == nil && !sum.Interrupted {
		err = a.finish(cfg, r, rec, &sum)
	}
	if sum.Interrupted {
		a.printf("stopped after step %d; the weights are in %s\n", sum.Steps, dir.ModelDir())
		err = errors.Join(err, a.ctx.Err())
	}
	sum.Figures(rec, flops, peak)
	code, reason := a.codeOf(err), ""
	if err != nil {
		reason = err.Error()
	}
	rec.End(record.OutcomeOf(code, reason))
	return errors.Join(err, recorder.Close(), dir.WriteRun(rec))
}

// finish compares with the baseline and shows samples.
func (a *app) finish(cfg *config.Config, r *train.Run, rec *record.Run, sum *train.Summary) error {
	var base float64
	if cfg.Train.Baseline != "none" {
		var err error
		if base, err = r.Data.TrigramBitsPerByte(a.ctx); err != nil {
			return err
		}
		rec.Figures.BaselineBitsPerByte = record.Known(base)
		a.printf("held-out: loss %.4f, %.3f bits per byte; a model of each byte given the two before it: %.3f\n", sum.HeldOut.Loss, sum.HeldOut.BitsPerByte, base)
	} else {
		a.printf("held-out: loss %.4f, %.3f bits per byte\n", sum.HeldOut.Loss, sum.HeldOut.BitsPerByte)
	}
	for _, prompt := range cfg.Train.Sample.Prompts {
		a.printf("\n--- %q continued:\n%s", prompt, prompt)
		err := r.Generate(a.ctx, prompt, func(text []byte) { a.printf("%s", text) })
		a.printf("\n")
		if err != nil {
			return err
		}
	}
	if cfg.Train.Baseline == "beat" && !(sum.HeldOut.BitsPerByte < base) {
		return fmt.Errorf("the model needs %.3f bits per byte of held-out text, no fewer than the %.3f of a model of three bytes (train.baseline: beat)", sum.HeldOut.BitsPerByte, base)
	}
	return nil
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
