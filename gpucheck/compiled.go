package gpucheck

import (
	"github.com/gofsdp/gofsdp/cuda"
)

// compiled tells of kernels of which the driver's compiler has made something else than is wanted: one that takes
// more registers than another compiler did, or spills them, is right and may be slow. It fails nothing.
func compiled(c *check, list []cuda.Compiled) {
	var t *Table
	for _, k := range list {
		err := k.Kernel.Fits(k.Registers, k.Spilled)
		if err == nil {
			continue
		}
		if t == nil {
			t = c.table("Kernels that the driver's compiler has made larger than they are meant to be", Column{"kernel", Text}, Column{"registers of a thread", Count}, Column{"spilled", Byte},
				Column{"shared memory of a block", Byte}, Column{"what is wrong", Text})
			t.Note = "Registers decide how many blocks a multiprocessor has at a time, which hide each other's waiting for memory."
		}
		t.add(k.Kernel.Name, float64(k.Registers), float64(k.Spilled), float64(k.Shared), err.Error())
	}
}
