//go:build !(cgo && amd64)

package cpu

import "github.com/gofsdp/gofsdp/device"

// newDevice returns a device that runs the operations' references: this build has no kernels. Its
// level says so, and that its bits are not those of any level.
func newDevice(info device.Info, _ ISA, w *device.Window) device.Device {
	info.ISA = "go"
	info.Threads = 1
	return host(w, info, func(string) (device.Executor, error) { return plain{}, nil })
}

// plain runs references.
type plain struct{}

func (plain) Run(op device.Op) error { op.Reference(); return nil }
func (plain) Close() error           { return nil }
