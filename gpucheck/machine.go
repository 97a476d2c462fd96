package gpucheck

import (
	"fmt"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/nvml"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/train"
)

// Machine is what is checked, as its user opens it. All fields but Pythons and the last must be set.
type Machine struct {
	Report cuda.Report
	// Open opens a GPU: a device of package cuda, or what stands in for one.
	Open func(cuda.Options) (device.Device, error)
	// CPU opens the device that GPUs are compared with.
	CPU func() (device.Device, error)
	// NCCL opens the library.
	NCCL func() (*nccl.Library, error)
	// Gofsdp is this program, which with the arguments Side does gofsdp's side of a comparison; and
	// Tools the folder of what else is needed: gpucheck.test, witness.test, bench/peers.
	Gofsdp, Tools string
	Side          []string
	// Pythons are asked for PyTorch, one after the other.
	Pythons []string
	// Log gets what programs write that are started.
	Log interface{ Write([]byte) (int, error) }
	// State tells how a GPU is just now, by its UUID, as NVML does; false where nobody tells.
	State func(uuid string) (nvml.Device, bool)
	// Environment is added to that of the test binaries that are started.
	Environment []string
}

// roomy is a device that tells of its memory, as cuda's do.
type roomy interface{ Room() (cuda.Room, error) }

// first is the first GPU that can be used, on which all parts work that need one.
func (m *Machine) first() cuda.Properties {
	for _, p := range m.Report.Devices {
		if p.Problem == "" {
			return p
		}
	}
	return cuda.Properties{}
}

// state is how the first GPU is just now.
func (m *Machine) state() (nvml.Device, bool) { return m.State(m.first().UUID) }

// open opens it.
func (m *Machine) open(o cuda.Options) (device.Device, error) {
	o.Ordinal = m.first().Ordinal
	return m.Open(o)
}

// gpu is an open device with a stream to measure on.
type gpu struct{ *bench.GPU }

// onGPU opens the first GPU with a stream. It is to be closed.
func (c *check) onGPU(o cuda.Options) (*gpu, error) {
	d, err := c.open(o)
	if err != nil {
		return nil, err
	}
	return onStream(d, c.Sizes)
}

// onStream takes an open device, which is closed with it.
func onStream(d device.Device, s Sizes) (*gpu, error) {
	g, err := bench.OnGPU(d, bench.GPUSizes{Edge: s.Edge, Copy: s.Copy})
	if err != nil {
		return nil, err
	}
	return &gpu{g}, nil
}

// set writes a number of f32 or bf16.
func set(t device.Tensor, i int, x float32) {
	if t.Type == device.BF16 {
		t.BF16()[i] = device.ToBF16(x)
	} else {
		t.F32()[i] = x
	}
}

// get reads one.
func get(t device.Tensor, i int) float32 {
	if t.Type == device.BF16 {
		return device.FromBF16(t.BF16()[i])
	}
	return t.F32()[i]
}

// mostLaunches is how often an operation is launched in a row: the queue of a device is not to be filled, since
// then launching is what is timed.
const mostLaunches = 500

// limits are what a GPU can do, a second.
type limits struct{ f32, bf16, copy float64 }

// limits measures them.
func (g *gpu) limits(s Sizes) (l limits, err error) {
	if l.copy, err = g.Copying(s.Reading); err != nil {
		return l, err
	}
	if l.bf16, err = g.Multiplying(device.BF16, s.Reading); err != nil {
		return l, err
	}
	l.f32, err = g.Multiplying(device.F32, s.Reading)
	return l, err
}

// least returns the least seconds that an operation could take, and what bounds it.
func (l limits) least(typ device.DType, c device.Cost) (seconds float64, by string) {
	peak := l.f32
	if typ == device.BF16 {
		peak = l.bf16
	}
	compute, memory := float64(c.FLOPs)/peak, float64(c.Bytes)/l.copy
	if compute >= memory {
		return compute, "compute"
	}
	return memory, "memory"
}

// add writes the limits into the table that shares are of.
func (l limits) add(c *check) {
	t := c.table("Limits that were measured", Column{"limit", Text}, Column{"products", FLOPS}, Column{"bytes", Rate})
	t.add(fmt.Sprintf("a copy of %s", train.Bytes(c.Copy)), nil, l.copy)
	t.add(fmt.Sprintf("cuBLAS, bf16, %d × %d × %d", c.Edge, c.Edge, c.Edge), l.bf16, nil)
	t.add(fmt.Sprintf("cuBLAS, f32, %d × %d × %d", c.Edge, c.Edge, c.Edge), l.f32, nil)
}

// ncclDevice returns a device as NCCL needs it.
func ncclDevice(d device.Device) (nccl.Device, error) {
	if n, ok := d.(nccl.Device); ok {
		return n, nil
	}
	return nil, fmt.Errorf("gpucheck: device %s is none that NCCL takes", d.Info().Name)
}
