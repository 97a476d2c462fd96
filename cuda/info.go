package cuda

import (
	"fmt"

	"github.com/gofsdp/gofsdp/cuda/kernels"
	"github.com/gofsdp/gofsdp/device"
)

// Info returns what New's device says of itself, without one being made.
func (p Properties) Info() device.Info {
	return device.Info{Name: p.Name, Kind: "cuda", ISA: fmt.Sprintf("sm_%d%d", p.Major, p.Minor), Memory: p.Memory, BF16Native: true}
}

// Capability is the compute capability, such as "8.9".
func (p Properties) Capability() string { return fmt.Sprintf("%d.%d", p.Major, p.Minor) }

// Workspace is what cuBLAS may use beside the operands of a stream's products, in bytes, on a GPU of a compute
// capability from major on; each stream has one. The table of cublasSetWorkspace advises 32 MiB from Hopper on,
// 4 MiB before.
func Workspace(major int) int64 {
	if major >= 9 {
		return 32 << 20
	}
	return 4 << 20
}

// Runs says what of an operation no GPU can do here, such as heads of a size that there are no kernels for, and
// nil where there is nothing. It asks no GPU, and the operands need no address: a plan is checked before it is
// run, and on a machine without GPUs.
func Runs(op device.Op) error {
	if _, product := op.(*device.MatMul); product {
		return nil // it is cuBLAS's
	}
	_, err := kernels.Lower(op)
	return err
}

// Room is a GPU's memory as the driver counts it, in bytes: of all processes.
type Room struct {
	Total, Unused int64 // now
	// Context is what was in use when the device's context had been made, what others have included, and
	// Kernels what loading all modules took, before anything else had memory.
	Context, Kernels int64
}
