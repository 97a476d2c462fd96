package record

import "golang.org/x/sys/unix"

// describe fills what macOS tells by sysctl(3).
func (h *Host) describe() {
	version, err := unix.Sysctl("kern.osproductversion")
	h.OS = ValueOf("macOS "+version, err)
	h.CPU = ValueOf(unix.Sysctl("machdep.cpu.brand_string"))
	cores, err := unix.SysctlUint32("hw.physicalcpu")
	h.Cores = ValueOf(int(cores), err)
	memory, err := unix.SysctlUint64("hw.memsize")
	h.Memory = ValueOf(int64(memory), err)
}
