package main

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/train"
)

// gpus are a machine's GPUs and what they are reached by: NVIDIA's libraries, or
// the simulator's.
type gpus struct {
	kind   string      // as scaling.device names it
	report cuda.Report // what is there
	open   func(cuda.Options) (device.Device, error)
	sizes  bench.GPUSizes // that package bench measures them by
	nccl   func() (*nccl.Library, error)
}

// nvidia looks for GPUs by NVIDIA's driver, and where that is there for what else
// they need.
func nvidia() *gpus {
	g := &gpus{kind: cudaDevice, sizes: bench.WholeGPU, nccl: sync.OnceValues(func() (*nccl.Library, error) { return nccl.Open(cuda.Sources{}) })}
	driver, err := cuda.Open(cuda.Sources{})
	switch {
	case err == nil:
		g.look()
		g.open = func(o cuda.Options) (device.Device, error) { return cuda.New(driver, o) }
	case errors.Is(err, cuda.ErrNoLibrary):
		g.report = cuda.Report{State: cuda.NoLibrary, Problem: err.Error()}
	case errors.Is(err, cuda.ErrNoDevice):
		g.report = cuda.Report{State: cuda.NoDevice, Problem: err.Error()}
	default:
		g.look() // who tells what is wrong tells of what is there, too
	}
	return g
}

// look finds what GPUs need.
func (g *gpus) look() {
	g.report = cuda.Sources{}.Find()
	judgeNCCL(&g.report, cuda.Sources{})
}

// judgeNCCL adds to what was found what package nccl has to say of its library: a
// version that is not supported, functions that are not there.
func judgeNCCL(r *cuda.Report, s cuda.Sources) {
	if r.NCCL.Path == "" {
		return // why stands there
	}
	if _, err := nccl.Open(s); err != nil {
		r.NCCL.Problem = err.Error()
	}
}

// gpusOf returns the GPUs that a setting of scaling.device may mean for a machine
// with so many ranks, of which this process is the local-th, or -1 for none of
// them; nil for the CPU alone.
func gpusOf(kind string, ranks, local int) (*gpus, error) {
	switch kind {
	case cpuDevice:
		return nil, nil
	case simDevice:
		g, err := simulated(ranks, local)
		return g, asUser(err)
	}
	return nvidia(), nil
}

// lacks says why the local-th of the machine's ranks cannot compute on a GPU, and
// what to do; "" where it can. Of several ranks each needs NCCL, too.
func (g *gpus) lacks(local, ranks int, several bool) string {
	r := g.report
	switch {
	case r.State != cuda.Ready:
		return r.Problem
	case local >= len(r.Devices):
		return fmt.Sprintf("%s for %s that take one each: start as many as there are, by scaling.num_workers, or look at CUDA_VISIBLE_DEVICES",
			train.Number(len(r.Devices), "GPU"), train.Number(ranks, "rank"))
	case r.Devices[local].Problem != "":
		return r.Devices[local].Problem
	case r.BLAS.Problem != "":
		return "matrix products need cuBLAS: " + plain(r.BLAS.Problem)
	case several:
		if _, err := g.nccl(); err != nil {
			return err.Error()
		}
	}
	return ""
}

// of describes the GPU of the local-th of the machine's ranks, for the others to
// know. Of no GPUs there is none.
func (g *gpus) of(local, ranks int, several bool) gpu {
	if g == nil {
		return gpu{}
	}
	r := g.report
	if why := g.lacks(local, ranks, several); why != "" {
		return gpu{Lacks: why, Broken: r.State == cuda.Ready || r.State == cuda.Unusable}
	}
	p := r.Devices[local]
	own := gpu{Name: p.Name, Capability: p.Capability(), Driver: driverOf(r)}
	if several {
		own.NCCL = fmt.Sprintf("%s (%s)", r.NCCL.Version, r.NCCL.Path)
	}
	return own
}

// driverOf names a driver by its release, or else by the CUDA that it offers.
func driverOf(r cuda.Report) string {
	if r.Driver.Release != "" {
		return r.Driver.Release
	}
	return "of CUDA " + r.Driver.Version
}

// The streams whose work goes before all other, by their names in package fsdp:
// who waits for it is other ranks.
var urgentStreams = []string{"gather", "reduce"}

// device opens the GPU of the local-th of the machine's ranks.
func (g *gpus) device(s config.Scaling, local int) (device.Device, error) {
	dev, err := g.open(cuda.Options{Ordinal: local, Urgent: urgentStreams, Graphs: s.Graphs != "off"})
	if e := (*cuda.Error)(nil); err != nil && !errors.As(err, &e) {
		return nil, asUser(err) // the driver is well: it is what was asked
	}
	return dev, err
}

// record describes them for a run's record. Of no GPUs it says that nobody has
// looked for them.
func (g *gpus) record() record.Value[record.GPUs] {
	if g == nil {
		return record.Unknown[record.GPUs]("the CPU computes")
	}
	r := g.report
	if len(r.Devices) == 0 {
		return record.Unknown[record.GPUs](plain(r.Problem))
	}
	all := record.GPUs{Driver: fileOf(r.Driver), CUDA: known(r.Driver.Version, "the driver does not tell"), BLASLt: fileOf(r.BLASLt), BLAS: fileOf(r.BLAS), NCCL: fileOf(r.NCCL)}
	all.Driver.Version = known(r.Driver.Release, "the driver's file does not say")
	for _, p := range r.Devices {
		all.Devices = append(all.Devices, record.GPU{Name: p.Name, UUID: p.UUID, PCI: p.PCI, Capability: p.Capability(), SMs: p.SMs, Memory: p.Memory})
	}
	return record.Known(all)
}

func fileOf(l cuda.Library) record.LibraryFile {
	why := plain(l.Problem)
	if why == "" {
		why = "it does not tell"
	}
	return record.LibraryFile{Path: known(l.Path, why), Version: known(l.Version, why)}
}

// known is a text that is not known where it is empty.
func known(text, why string) record.Value[string] {
	if text == "" {
		return record.Unknown[string](why)
	}
	return record.Known(text)
}
