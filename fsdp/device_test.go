package fsdp

import (
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

// onDevices runs a test on the reference device. The kernels of package cpu are
// held to the same reference by their own tests.
func onDevices(t *testing.T, f func(*testing.T, device.Device)) {
	t.Run("reference", func(t *testing.T) {
		dev := device.NewReference()
		t.Cleanup(func() {
			if err := dev.Close(); err != nil {
				t.Error(err)
			}
		})
		f(t, dev)
	})
}
