package fsdp

import (
	"fmt"
	"testing"

	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/device"
)

// onDevices runs a test on the reference device and on the host's kernels at
// every level that this machine has, with one thread and with two.
func onDevices(t *testing.T, f func(*testing.T, device.Device)) {
	on := func(name string, dev device.Device, err error) {
		t.Run(name, func(t *testing.T) {
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := dev.Close(); err != nil {
					t.Error(err)
				}
			})
			f(t, dev)
		})
	}
	on("reference", device.NewReference(), nil)
	for isa := cpu.Generic; isa <= cpu.Detect(); isa++ {
		dev, err := cpu.New(cpu.Options{Threads: 1 + int(isa)%2, ISA: isa.String()})
		on(fmt.Sprintf("cpu %s", isa), dev, err)
	}
}
