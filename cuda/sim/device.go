//go:build sim && cgo && linux

package sim

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
)

// Device describes one simulated GPU.
type Device struct {
	Name   string
	Memory uint64 // bytes in all
	Taken  uint64 // bytes that a context takes of them
	BLAS   uint64 // bytes that a handle of cuBLAS takes of them

	// Attributes by number: CUDA driver API reference, enum CUdevice_attribute.
	// Those that are missing are refused.
	Attributes map[int]int
}

// Numbers of the attributes that the simulator itself looks at.
const (
	attributeThreadsPerBlock = 1
	attributeBlockX          = 2 // Y and Z follow
	attributeGridX           = 5 // Y and Z follow
	attributeSharedPerBlock  = 8
	attributePCIBus          = 33
	attributePCIDevice       = 34
	attributePCIDomain       = 50
	attributeMajor           = 75
	attributeMinor           = 76
	attributeSharedOptIn     = 97
)

// common are the attributes that L4 and H200 share: CUDA C++ programming guide,
// table "Technical specifications per compute capability".
var common = map[int]int{
	attributeThreadsPerBlock: 1024,
	attributeBlockX:          1024,
	attributeBlockX + 1:      1024,
	attributeBlockX + 2:      64,
	attributeGridX:           1<<31 - 1,
	attributeGridX + 1:       65535,
	attributeGridX + 2:       65535,
	attributeSharedPerBlock:  48 << 10,
	attributePCIDomain:       0,
	attributePCIDevice:       0,
	9:                        64 << 10,  // constant memory
	10:                       32,        // lanes of a warp
	11:                       1<<31 - 1, // pitch of a copy
	12:                       64 << 10,  // registers a block
	14:                       512,       // alignment of textures
	15:                       1,         // copies overlap with kernels
	17:                       0,         // no time limit of kernels
	18:                       0,         // not integrated
	19:                       1,         // host memory can be mapped
	20:                       0,         // any number of contexts
	31:                       1,         // kernels run at the same time
	32:                       1,         // ECC
	35:                       0,         // no TCC driver
	41:                       1,         // one address space
	78:                       1,         // priorities of streams
	79:                       1,         // caches global memory in L1
	80:                       1,         // caches local memory in L1
	82:                       64 << 10,  // registers a multiprocessor
	83:                       1,         // managed memory
	84:                       0,         // no board of several
	86:                       0,         // no atomics on host memory
	88:                       0,         // no access to pageable memory
	89:                       1,         // managed memory at the same time as the host
	90:                       1,         // preemption
	91:                       1,         // registered host memory by its own pointer
	95:                       1,         // cooperative launch
	99:                       1,         // host memory can be registered
	111:                      1 << 10,   // shared memory a block that the system takes
	115:                      1,         // memory pools
}

// with returns the common attributes and more.
func with(more map[int]int) map[int]int {
	all := maps.Clone(common)
	maps.Copy(all, more)
	return all
}

// L4 returns NVIDIA's L4: compute capability 8.9. Sources: its data sheet, and
// the programming guide's table of compute capabilities; memory as
// g6.12xlarge's label gives it.
func L4() Device {
	return Device{Name: "NVIDIA L4", Memory: 22888 << 20, Attributes: with(map[int]int{
		attributeMajor:       8,
		attributeMinor:       9,
		attributeSharedOptIn: 99 << 10,
		13:                   2040000,   // kHz of the multiprocessors
		16:                   58,        // multiprocessors
		36:                   6251000,   // kHz of the memory
		37:                   192,       // bits of its bus
		38:                   48 << 20,  // bytes of L2
		39:                   1536,      // threads a multiprocessor
		40:                   2,         // copy engines
		81:                   100 << 10, // shared memory a multiprocessor
		106:                  24,        // blocks a multiprocessor
	})}
}

// H200 returns NVIDIA's H200: compute capability 9.0. Sources as of L4; memory
// as nvidia-smi shows it, multiprocessors and L2 as PyTorch reports them.
func H200() Device {
	return Device{Name: "NVIDIA H200", Memory: 143771 << 20, Attributes: with(map[int]int{
		attributeMajor:       9,
		attributeMinor:       0,
		attributeSharedOptIn: 227 << 10,
		13:                   1980000,
		16:                   132,
		36:                   3201000,
		37:                   6144,
		38:                   60 << 20,
		39:                   2048,
		40:                   3,
		81:                   228 << 10,
		106:                  32,
	})}
}

// capability returns major*10 + minor.
func (d *Device) capability() int {
	return 10*d.Attributes[attributeMajor] + d.Attributes[attributeMinor]
}

// bus returns the place on the PCI bus of the device that is n-th of a machine.
func (d *Device) bus(n int) string {
	return fmt.Sprintf("%04x:%02x:%02x.0", d.Attributes[attributePCIDomain], d.attribute(attributePCIBus, n), d.Attributes[attributePCIDevice])
}

// busID is that place as NCCL has it: the digits of bus as one number.
func (d *device) busID() uint64 {
	n, _ := strconv.ParseUint(strings.NewReplacer(":", "", ".", "").Replace(d.bus(d.number)), 16, 64) // digits are all there is
	return n
}

// attribute returns one attribute of the n-th device; each stands on a bus of its own unless it says where.
func (d *Device) attribute(which, n int) int {
	v, ok := d.Attributes[which]
	if !ok && which == attributePCIBus {
		return 0x31 + 2*n
	}
	return v
}

// has tells whether an attribute is known.
func (d *Device) has(which int) bool {
	_, ok := d.Attributes[which]
	return ok || which == attributePCIBus
}

// uuid returns the n-th device's own 16 bytes.
func (d *Device) uuid(n int) (id [16]byte) {
	copy(id[:], fmt.Sprintf("sim %s", d.Name))
	id[15] = byte(n)
	return id
}
