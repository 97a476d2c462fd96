package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/train"
)

type trainCommand struct {
	configured
	spread
	Trace traceFlag `placeholder:"STEPS" help:"Leave a trace of all operations of these steps, trace.json, to be opened in Perfetto: FIRST-LAST, or a number of steps from the third on; 3-5 where nothing is said (run.trace)."`
}

// How long the machine's peak is measured, and a GPU's, whose clock follows its
// load.
const (
	peakTime    = 100 * time.Millisecond
	gpuPeakTime = 400 * time.Millisecond
)

// slowISA is what a device without kernels says that it computes by.
const slowISA = "go"

// peaker is a device that can measure its own limit.
type peaker interface {
	PeakFLOPS(typ device.DType, d time.Duration) float64
}

// Run trains. All that can be wrong is found before the run's directory is
// made, and the directory before the first step.
func (c *trainCommand) Run(a *app) (err error) {
	began := time.Now()
	// Who reads the output may leave before the run ends. Then writing fails,
	// which ends the run with all its files; the signal would end it without.
	signal.Ignore(syscall.SIGPIPE)
	cfg, binding, err := c.load(a, append(c.assignments(), c.Trace.assignments()...)...)
	if err != nil {
		return err
	}
	if err := errors.Join(free(cfg.Run), canLaunch(cfg.Scaling)); err != nil {
		return asUser(err)
	}
	notes := a.out
	if cfg.Scaling.Workers > 1 {
		notes = io.Discard // the ranks will say it
	}
	on, err := choose(cfg.Scaling, notes)
	if err != nil {
		return err
	}
	// Several ranks open their devices in processes of their own.
	var dev device.Device
	info, err := on.info(cfg.Scaling)
	if err == nil && cfg.Scaling.Workers == 1 {
		if dev, err = on.open(cfg.Scaling); err == nil {
			defer func() { err = errors.Join(err, dev.Close()) }()
		}
	}
	if err != nil {
		return err
	}
	if info.ISA == slowISA {
		a.printf("this program was built without C and computes by its Go reference, which is for tests: hundreds of times slower\n")
	}
	// Several ranks open the run in processes of their own, where all is well.
	work, log := train.Work{Model: cfg.Model, Data: cfg.Data, Train: cfg.Train}, func(format string, args ...any) { a.printf(format+"\n", args...) }
	recorder := &flight{Flight: fsdp.NewFlight(), app: a, world: 1}
	if on.gpus != nil {
		recorder.blind()
	}
	var r *train.Run
	if cfg.Scaling.Workers > 1 {
		r, err = train.Check(a.ctx, work, on.place(cfg.Scaling), info, log)
	} else {
		r, err = train.Open(a.ctx, work, train.Place{Flight: recorder.Flight, Apart: on.apart(cfg.Scaling, fsdp.Mesh{})}, dev, log)
	}
	if interrupted := a.ctx.Err(); interrupted != nil {
		// Whatever else Open says then is of what it was doing.
		if err == nil {
			err = r.Close()
		}
		return errors.Join(interrupted, err)
	}
	if err != nil {
		return asUser(err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if err := r.CheckTrace(window(cfg.Run)); err != nil {
		return asUser(err)
	}
	if err := record.CheckSpace(cfg.Run.StoragePath, r.DiskBytes()); err != nil {
		return asUser(err)
	}
	j := &job{app: a, cfg: cfg, run: r, on: on, dev: dev, rec: record.NewRun(), began: began, flight: recorder}
	if cfg.Scaling.Workers == 1 {
		if err := j.alone(); err != nil {
			return err
		}
	}
	if err := j.create(c.File, binding); err != nil {
		return asUser(err)
	}
	if cfg.Scaling.Workers > 1 {
		return j.launch(binding)
	}
	recorder.dir = j.dir
	defer recorder.watch()()
	defer recorder.panicked()
	if j.recorder, err = train.NewRecorder(j.dir, j.began, j.cfg.Tree()); err != nil {
		return err
	}
	return j.train()
}

// free refuses a place for the run's directory that cannot be written or is
// taken, before any work is done for it.
func free(r config.Run) error {
	at := filepath.Clean(r.StoragePath)
	info, err := os.Stat(at)
	for errors.Is(err, fs.ErrNotExist) && at != filepath.Dir(at) {
		at = filepath.Dir(at)
		info, err = os.Stat(at)
	}
	switch {
	case errors.Is(err, syscall.ENOTDIR), err == nil && !info.IsDir():
		return fmt.Errorf("run.storage_path: no directory can be made at %s, where a file is in the way; choose another place", r.StoragePath)
	case err != nil:
		return fmt.Errorf("run.storage_path: %w", err)
	case unix.Access(at, unix.W_OK|unix.X_OK) != nil:
		return fmt.Errorf("run.storage_path: %s cannot be written; choose another place", at)
	case r.Name == "":
		return nil
	}
	path := filepath.Join(r.StoragePath, r.Name)
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		return fmt.Errorf("run.name: %s is a file; choose another name", path)
	}
	return record.Vacant(path)
}

// job is a run with its directory.
type job struct {
	*app
	cfg    *config.Config
	run    *train.Run
	on     choice
	dev    device.Device // nil in a process that starts ranks
	dir    *record.Dir
	rec    *record.Run
	began  time.Time
	flight *flight

	peak     float64 // FLOP/s of the device, 0 where it is not known
	recorder *train.Recorder
}

// create makes the run's directory, by its name or a new numbered one named
// after the configuration, with all files in it. Where that fails nothing
// stays.
func (j *job) create(file string, binding *config.Binding) (err error) {
	made := missing(j.cfg.Run.StoragePath)
	path := filepath.Join(j.cfg.Run.StoragePath, j.cfg.Run.Name)
	defer func() {
		if err == nil {
			return
		}
		if j.dir != nil {
			os.RemoveAll(path)
		} else if path != "" {
			_ = unix.Rmdir(path) // what is in it is another run's, which took the name meanwhile
		}
		for _, dir := range made { // unless another run is there by now
			os.Remove(dir)
		}
	}()
	if j.cfg.Run.Name == "" {
		if path, err = record.NextNumbered(j.cfg.Run.StoragePath, runName(file)); err != nil {
			return err
		}
	}
	if j.dir, err = record.Create(path); err != nil {
		return err
	}
	hash, err := j.dir.WriteConfig(binding.MarshalSources())
	if err != nil {
		return err
	}
	if err := record.WriteFileAtomic(j.reserve(), make([]byte, reserved), 0o600); err != nil {
		return err
	}
	j.rec.ConfigHash = record.Known(hash)
	j.describe()
	return j.dir.WriteRun(j.rec)
}

// reserved is the room that is kept for the record of how the run ended, for
// when the disk is full by then.
const reserved = 64 << 10

// reserve is the file that keeps it while the run goes on.
func (j *job) reserve() string { return filepath.Join(j.dir.Path(), ".reserve") }

// missing returns the directories on the way to path that are not there, the
// deepest first.
func missing(path string) []string {
	var dirs []string
	for path = filepath.Clean(path); ; path = filepath.Dir(path) {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return dirs
		}
		dirs = append(dirs, path)
	}
}

// runName is what numbered runs of a configuration are called.
func runName(file string) string {
	base := filepath.Base(file)
	if name := strings.TrimSuffix(base, filepath.Ext(base)); name != "" {
		return name
	}
	return "run"
}

// train runs what was prepared and leaves its record, however it ends.
func (j *job) train() (err error) {
	var sum train.Summary
	flops := j.run.Model.Config.FLOPsPerToken(j.cfg.Data.SequenceLength)
	defer func() {
		if p := recover(); p != nil {
			defer panic(p)
			err = fmt.Errorf("panic: %v", p)
		}
		j.flight.note(err, true)
		err = errors.Join(err, os.Remove(j.reserve()), j.recorder.Close())
		sum.Figures(j.rec, flops, j.peak)
		j.rec.Figures.PeakMemory = peakMemory()
		code, reason := j.codeOf(err), ""
		if code != 0 {
			reason = strings.Join(j.statements(err), "; ")
		}
		j.rec.End(record.OutcomeOf(code, reason))
		err = errors.Join(err, j.dir.WriteRun(j.rec))
	}()
	j.measurePeak()
	console := &train.Console{Out: j.out, Terminal: j.terminal, FLOPsPerToken: flops, PeakFLOPS: j.peak}
	ranks := j.run.Plan.Mesh.Size()
	if ranks == 1 {
		j.printf("%s: %s; results in %s\n", j.run.Model.Name, j.run.Outline(), j.dir.Path())
	}

	j.flight.trace(j.run, j.cfg.Run)
	sum, err = j.run.Train(j.ctx, train.Reporters{j.recorder, console})
	err = errors.Join(err, console.End())
	j.flight.note(err, sum.Finite()) // before anything else runs
	if ranks == 1 {
		j.traced()
	}
	where := "there are no weights to keep"
	if sum.Steps > 0 && sum.Finite() && (ranks == 1 || ofAll(err)) {
		exported := j.run.Export(j.dir.ModelDir())
		err = errors.Join(err, exported)
		if where = "the weights could not be written"; exported == nil {
			where = "the weights are in " + j.dir.ModelDir()
		}
	}
	switch {
	case err != nil && sum.Steps > 0:
		j.printf("failed after step %d; %s\n", sum.Steps, where)
	case err != nil:
	case sum.Interrupted:
		j.printf("stopped after step %d; %s\n", sum.Steps, where)
		err = j.interrupted(context.Canceled)
	default:
		j.printf("%s\n", where)
		err = j.finish(&sum)
	}
	return err
}

// measurePeak finds what all devices together can do, by that of this rank, which
// the others are taken to equal.
func (j *job) measurePeak() {
	p, ok := j.dev.(peaker)
	if !ok {
		j.rec.Figures.PeakFLOPS = record.Unknown[float64]("the device cannot measure its own")
		return
	}
	ranks, d := float64(j.run.Plan.Mesh.Size()), gpuPeakTime
	if threads := j.dev.Info().Threads; threads > 0 {
		// As far as there are cores: all are on this machine.
		ranks, d = min(ranks, max(float64(runtime.NumCPU())/float64(threads), 1)), peakTime
	}
	if j.peak = p.PeakFLOPS(j.cfg.Train.Type(), d) * ranks; j.peak > 0 {
		j.rec.Figures.PeakFLOPS = record.Known(j.peak)
	}
}

// finish shows samples, for which all ranks work together, and then compares
// with the baseline.
func (j *job) finish(sum *train.Summary) error {
	for _, prompt := range j.cfg.Train.Sample.Prompts {
		j.printf("\n--- %q continued:\n%s", prompt, prompt)
		err := j.run.Generate(j.ctx, prompt, func(text []byte) { j.printf("%s", text) })
		j.printf("\n")
		if err != nil { // where ctx has ended, too, but then on all ranks
			return j.interrupted(err)
		}
	}
	if j.cfg.Train.Baseline == "none" {
		return nil
	}
	base, err := j.run.Data.TrigramBitsPerByte(j.ctx)
	if err != nil {
		return err
	}
	j.rec.Figures.BaselineBitsPerByte = record.Known(base)
	j.printf("held-out: %.3f bits per byte; a model of each byte given the two before it: %.3f\n", sum.HeldOut.BitsPerByte, base)
	if j.cfg.Train.Baseline == "beat" && !(sum.HeldOut.BitsPerByte < base) {
		return fmt.Errorf("the model needs %.3f bits per byte of held-out text, no fewer than the %.3f of a model of three bytes (train.baseline: beat)", sum.HeldOut.BitsPerByte, base)
	}
	return nil
}

// peakMemory is the most memory that this process has had.
func peakMemory() record.Value[int64] {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return record.Unknown[int64](err.Error())
	}
	if runtime.GOOS == "darwin" { // which counts bytes; Linux counts KiB
		return record.Known(usage.Maxrss)
	}
	return record.Known(usage.Maxrss << 10)
}
