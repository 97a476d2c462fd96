package cuda

import (
	"github.com/gofsdp/gofsdp/cuda/kernels"
	"github.com/gofsdp/gofsdp/device"
)

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
