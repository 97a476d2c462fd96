//go:build cgo && amd64

package cpu

import "github.com/gofsdp/gofsdp/device"

// newDevice completes info and returns a device whose streams run C kernels of the level, and which can
// measure its limits.
func newDevice(info device.Info, level ISA, w *device.Window) device.Device {
	info.ISA = level.String()
	info.BF16Native = level == AVX512BF16
	d := host(w, info, func(string) (device.Executor, error) {
		k, err := newPool(info.Threads, level)
		if err != nil {
			return nil, err
		}
		return k, nil
	})
	return limited{d, level}
}
