//go:build sim && cgo && linux

package cuda

import (
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// Peak is PeakFLOPS by matrices of a size.
func Peak(d device.Device, typ device.DType, n int, took time.Duration) (float64, error) {
	return d.(*gpu).peak(typ, n, took)
}
