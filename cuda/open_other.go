//go:build !(cgo && linux)

package cuda

import (
	"fmt"
	"runtime"

	"github.com/gofsdp/gofsdp/device"
)

// Driver is the driver's functions; this build cannot call them.
type Driver struct{}

// Open says that this build has no CUDA.
func Open(Sources) (*Driver, error) {
	return nil, fmt.Errorf("%w: CUDA needs a build with cgo for Linux, and this is one of %s without; build with CGO_ENABLED=1 and a C compiler", ErrNoLibrary, runtime.GOOS)
}

// Find says that this build has no CUDA.
func (s Sources) Find() Report {
	_, err := Open(s)
	return Report{State: NoLibrary, Problem: err.Error()}
}

// New cannot be reached: there is no Driver.
func New(*Driver, Options) (device.Device, error) { return nil, ErrNoLibrary }

// CompiledKernels has none to tell of.
func CompiledKernels(device.Device) []Compiled { return nil }
