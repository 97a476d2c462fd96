//go:build sim && cgo && linux

package gpucheck_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/bench/scenario"
	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/nvml"
	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/gpucheck"
	"github.com/gofsdp/gofsdp/internal/optest"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/record"
)

// What processes that this binary starts as others are told by their environment.
const (
	gpusVariable  = "GOFSDP_TEST_GPUS"  // how many there are
	modelVariable = "GOFSDP_TEST_MODEL" // the folder of the small model
	plantVariable = "GOFSDP_TEST_PLANT" // what is to be wrong
)

// TestMain lets the binary be the programs that a check starts: gofsdp, and a Python with its peer.
func TestMain(m *testing.M) {
	code := 0
	switch args := os.Args[1:]; {
	case len(args) > 1 && args[0] == "gpu-check":
		code = program(args[1:])
	case len(args) > 1 && args[0] == "-c":
		code = python()
	case len(args) > 1 && strings.HasSuffix(args[0], "fsdp2.py"):
		code = peer(args)
	default:
		code = m.Run()
	}
	os.Exit(code)
}

// program is gofsdp gpu-check: a part, or a side of a comparison.
func program(args []string) int {
	m, end, err := simulate(2, os.Getenv("GOFSDP_TEST_TOOLS"))
	if err == nil {
		switch s := small(os.Getenv(modelVariable)); args[0] {
		case "part":
			for _, p := range gpucheck.Parts(s) {
				if p.Name == args[1] {
					o := p.Run(context.Background(), m, s)
					err = o.WriteFile(args[2])
				}
			}
		case "side":
			err = gpucheck.Side(context.Background(), m, s, args[2])
		}
		err = errors.Join(err, end())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// python says what it has.
func python() int {
	if os.Getenv(plantVariable) == "no torch" {
		fmt.Fprintln(os.Stderr, "ModuleNotFoundError: No module named 'torch'")
		return 1
	}
	fmt.Println("PyTorch of a test")
	return 0
}

// peer is the other side of a comparison. It trains as gofsdp does, on the CPU.
func peer(args []string) int {
	err := func() error {
		if os.Getenv(plantVariable) == "the peer ends" {
			return errors.New("RuntimeError: the peer has ended")
		}
		task, err := scenario.ReadTask(args[len(args)-1])
		if err != nil {
			return err
		}
		mine := *task
		mine.Out += ".ours"
		text, err := json.Marshal(mine)
		if err == nil {
			err = os.WriteFile(task.Out+".task", text, 0o600)
		}
		if err != nil {
			return err
		}
		if code := program([]string{"side", "--task", task.Out + ".task"}); code != 0 {
			return errors.New("the peer cannot train")
		}
		text, err = os.ReadFile(mine.Out)
		if err != nil {
			return err
		}
		if os.Getenv(plantVariable) == "other losses" {
			var s scenario.Sample
			if err := json.Unmarshal(text, &s); err != nil {
				return err
			}
			s.Cases[0].Losses[0] *= 1.01
			if text, err = json.Marshal(s); err != nil {
				return err
			}
		}
		return os.WriteFile(task.Out, text, 0o600)
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// simulate returns a machine with simulated GPUs. At its end nothing may be left or have gone wrong.
func simulate(gpus int, tools string) (*gpucheck.Machine, func() error, error) {
	c := sim.Config{Seed: 1}
	for range gpus {
		d := sim.L4()
		d.Taken, d.BLAS = 300<<20, 10<<20
		c.Devices = append(c.Devices, d)
	}
	s, err := sim.Start(c)
	if err != nil {
		return nil, nil, err
	}
	driver, err := cuda.OpenTable(s.Table(), s.BLAS())
	if err != nil {
		return nil, nil, err
	}
	library, err := nccl.OpenTable(s.NCCLTable())
	if err != nil {
		return nil, nil, err
	}
	there := func(version string) cuda.Library {
		return cuda.Library{Name: "simulated", Path: "in memory", Version: version}
	}
	r := cuda.Report{State: cuda.Ready, Driver: there(driver.Version()), BLASLt: there("0"), BLAS: there("0"), NCCL: there(library.Version())}
	for n := range gpus {
		p, err := driver.Properties(n)
		if err != nil {
			return nil, nil, err
		}
		r.Devices = append(r.Devices, p)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	var last device.Device // that NVML is asked about
	m := &gpucheck.Machine{
		Report: r,
		Open: func(o cuda.Options) (device.Device, error) {
			d, err := cuda.New(driver, o)
			last = d
			return d, err
		},
		State: func(uuid string) (nvml.Device, bool) {
			d := nvml.Device{
				SMClock: record.Known(nvml.Clock{Now: 2040, Max: 2040}), Power: record.Known(nvml.Power{Now: 71, Limit: 72}),
				Temperature: record.Known(60), Slowed: record.Known([]string{"power limit"}),
			}
			r, err := last.(interface{ Room() (cuda.Room, error) }).Room()
			d.Memory = record.ValueOf(nvml.Memory{Total: r.Total, Used: r.Total - r.Unused + 64<<20}, err)
			return d, uuid == "GPU-73696d20-4e56-4944-4941-204c34000000"
		},
		CPU:    func() (device.Device, error) { return cpu.New(cpu.Options{Threads: 1}) },
		NCCL:   func() (*nccl.Library, error) { return library, nil },
		Gofsdp: self, Side: []string{"gpu-check", "side"}, Pythons: []string{self}, Tools: tools, Log: io.Discard,
	}
	end := func() error {
		s.Wait()
		var errs []error
		for _, f := range s.Faults() {
			errs = append(errs, f)
		}
		for _, what := range append(s.Leaks(), s.Refused()...) {
			errs = append(errs, errors.New(what))
		}
		s.Close()
		return errors.Join(errs...)
	}
	return m, end, nil
}

// small is a check in a few seconds, of a model in a folder.
func small(model string) gpucheck.Sizes {
	s := gpucheck.Short()
	s.Models[0].Model, s.Engine.Model = model, model
	return s
}

func init() {
	openGPU = func() (device.Device, error) {
		m, _, err := simulate(1, "")
		if err != nil {
			return nil, err
		}
		return m.Open(cuda.Options{})
	}
	plant := os.Getenv(plantVariable)
	operation, planted := strings.CutPrefix(plant, "wrong ")
	if !planted {
		return
	}
	tamper = func(got, want device.Op, bounds optest.Bounds) {
		if device.Name(got) != operation {
			return
		}
		for i, o := range device.Operands(got) {
			if bound := bounds[o.Name]; bound != nil && o.T.Type == device.F32 {
				w := float64(device.Operands(want)[i].T.F32()[0])
				edge := w + bound[0] + 0x1p-21*math.Abs(w)
				x := float32(edge)
				for float64(x) <= edge { // the next number beyond what is allowed
					x = math.Nextafter32(x, float32(math.Inf(1)))
				}
				o.T.F32()[0] = x
				return
			}
		}
	}
}
