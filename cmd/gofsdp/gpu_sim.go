//go:build sim && cgo && linux

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/nccl"
)

// simVariable says in JSON how the simulated machine differs from one of L4s, as
// many as there are ranks on it.
const simVariable = "GOFSDP_SIM"

// simulation is what simVariable says.
type simulation struct {
	Devices *int        `json:"devices"` // GPUs; nil: one a rank
	Memory  uint64      `json:"memory"`  // bytes of each; 0: an L4's
	NCCL    map[int]int `json:"nccl"`    // what ncclGetVersion says to ranks, by their place on the node
}

// simulated starts the simulated machine of this process, of so many ranks; of
// them it is for the local-th. It lives as long as the process.
func simulated(ranks, local int) (*gpus, error) {
	var s simulation
	if text := os.Getenv(simVariable); text != "" {
		d := json.NewDecoder(bytes.NewReader([]byte(text)))
		d.DisallowUnknownFields()
		if err := d.Decode(&s); err != nil {
			return nil, fmt.Errorf("%s: %w", simVariable, err)
		}
	}
	if s.Devices != nil {
		ranks = *s.Devices
	}
	c := sim.Config{NCCL: sim.NCCL{Version: s.NCCL[local]}}
	for range ranks {
		d := sim.L4()
		if s.Memory > 0 {
			d.Memory = s.Memory
		}
		c.Devices = append(c.Devices, d)
	}
	m, err := sim.Start(c)
	if err != nil {
		return nil, err
	}
	g := &gpus{kind: simDevice, sizes: bench.GPUSizes{Edge: 64, Copy: 64 << 10}, nccl: sync.OnceValues(func() (*nccl.Library, error) { return nccl.OpenTable(m.NCCLTable()) })}
	driver, err := cuda.OpenTable(m.Table(), m.BLAS())
	if err != nil {
		g.report = cuda.Report{State: cuda.NoDevice, Problem: err.Error()}
		return g, nil
	}
	g.report = cuda.Report{State: cuda.Ready, Driver: cuda.Library{Name: "the simulator", Path: "in memory", Version: driver.Version()}}
	for i := range c.Devices {
		p, err := driver.Properties(i)
		if err != nil {
			return nil, err
		}
		g.report.Devices = append(g.report.Devices, p)
	}
	g.report.NCCL = cuda.Library{Name: "the simulator"}
	if l, err := g.nccl(); err == nil {
		g.report.NCCL = l.Found()
	} else {
		g.report.NCCL.Problem = err.Error()
	}
	var open atomic.Int32
	g.open = func(o cuda.Options) (device.Device, error) {
		dev, err := cuda.New(driver, o)
		if err != nil {
			return nil, err
		}
		open.Add(1)
		return simulatedDevice{dev.(nccl.Device), m, &open}, nil
	}
	return g, nil
}

// simulatedDevice ends with what the simulator has seen go wrong, which a real
// device would have let pass.
type simulatedDevice struct {
	nccl.Device
	m    *sim.Machine
	open *atomic.Int32 // devices of the machine
}

// Room passes on what the GPU tells of its memory.
func (d simulatedDevice) Room() (cuda.Room, error) {
	return d.Device.(interface{ Room() (cuda.Room, error) }).Room()
}

// Close closes the device. Its error is also of work that did wrong, and of what
// was never given back.
func (d simulatedDevice) Close() error {
	errs := []error{d.Device.Close()}
	d.m.Wait()
	for _, f := range d.m.Faults() {
		errs = append(errs, f)
	}
	if d.open.Add(-1) > 0 {
		return errors.Join(errs...) // what there is may be the others'
	}
	for _, leak := range d.m.Leaks() {
		errs = append(errs, errors.New("left on the simulated machine: "+leak))
	}
	return errors.Join(errs...)
}
