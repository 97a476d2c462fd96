package bench

import (
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
)

// resident follows the greatest memory of this process, from each begin to the end
// that follows it: what is resident, or on a GPU what is taken of the GPU's.
type resident struct {
	gpu    roomy // nil: it computes on the CPU
	unused int64 // of the GPU's memory, at the beginning
	known  bool  // the system lets this process begin again
	peak   int64 // bytes; 0: not known
}

// roomy is a device that tells of its memory.
type roomy interface{ Room() (cuda.Room, error) }

// residentOn follows the memory of a process that computes on dev: of a GPU's what
// is taken from now on.
func residentOn(dev device.Device) (*resident, error) {
	r := &resident{}
	if gpu, ok := dev.(roomy); ok && onGPU(dev.Info()) {
		now, err := gpu.Room()
		if err != nil {
			return nil, err
		}
		r.gpu, r.unused = gpu, now.Unused
	}
	return r, nil
}

func (r *resident) begin() { r.known = r.gpu != nil || forgetPeak() == nil }

func (r *resident) end() error {
	if !r.known {
		return nil
	}
	now, err := r.taken()
	r.peak = max(r.peak, now)
	return err
}

// taken is the greatest memory since begin; of a GPU it is that of now, since a
// step takes none that it gives back. As the driver counts it, so what cuBLAS and
// NCCL take for a step is in it, too.
func (r *resident) taken() (int64, error) {
	if r.gpu == nil {
		return peakMemory()
	}
	now, err := r.gpu.Room()
	return r.unused - now.Unused, err
}
