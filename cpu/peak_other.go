//go:build !(cgo && amd64)

package cpu

import (
	"errors"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

var errNoKernels = errors.New("cpu: this build has no C kernels whose limits could be measured; build with cgo on amd64")

// PeakFLOPS fails: it measures what C kernels could reach.
func PeakFLOPS(threads int, isa ISA, typ device.DType, d time.Duration) (float64, error) {
	return 0, errNoKernels
}

// PeakBandwidth fails: it is measured in C.
func PeakBandwidth(threads int, d time.Duration) (float64, error) { return 0, errNoKernels }
