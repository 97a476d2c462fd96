package kernels

import (
	"math"
	"unsafe"

	"github.com/gofsdp/gofsdp/device"
)

// Launch is one kernel's start.
type Launch struct {
	Kernel      string    // entry point, such as "add_rms_norm_bf16"
	Grid, Block [3]uint32 // blocks, and threads in a block
	Shared      uint32    // bytes of dynamic shared memory
	Args        []byte    // the kernel's one parameter, a packed struct
}

// maxGrid is the most blocks in a grid's first dimension.
const maxGrid = math.MaxInt32

// line is a launch of blocks in a row.
func line(kernel string, blocks, threads uint32, args []byte) Launch {
	return Launch{Kernel: kernel, Grid: [3]uint32{blocks, 1, 1}, Block: [3]uint32{threads, 1, 1}, Args: args}
}

// cover returns how many blocks of per it takes for n. What is more than any
// grid may have, Lower refuses.
func cover(n, per int) uint32 { return uint32(min((int64(n)+int64(per)-1)/int64(per), math.MaxUint32)) }

// pack returns the bytes of a kernel's arguments: a struct of numbers, as the
// kernel's source has it.
func pack[A any](args A) []byte {
	return append([]byte(nil), unsafe.Slice((*byte)(unsafe.Pointer(&args)), unsafe.Sizeof(args))...)
}

// at is an operand's address; 0: it is left out.
func at(t device.Tensor) uint64 { return uint64(t.Addr) }

// aligned says, as a kernel's argument, whether 16 bytes may be moved at once
// anywhere where they are a whole multiple of 16 from the start of a tensor.
// Operands that are left out do not matter.
func aligned(ts ...device.Tensor) uint32 {
	for _, t := range ts {
		if t.Addr%16 != 0 {
			return 0
		}
	}
	return 1
}

// flag is a condition as a kernel's argument.
func flag(yes bool) uint32 {
	if yes {
		return 1
	}
	return 0
}
