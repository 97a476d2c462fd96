package cuda

import (
	"fmt"

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

// Lost says whether the device is lost with the error: nothing more can be done on it, by nobody's mistake that
// could be named.
func (e *Error) Lost() bool { return late(e.Code) }
