package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/cuda"
)

// compiles lets the driver compile all kernels, and tells what it has made of them.
func compiles(_ context.Context, c *check) (err error) {
	began := time.Now()
	d, err := c.open(cuda.Options{})
	if err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	defer func() { err = errors.Join(err, d.Close()) }()
	made := cuda.CompiledKernels(d)
	if len(made) == 0 {
		return lacks("device %s does not tell what was made of its kernels", d.Info().Name)
	}
	compiled(c, made).Note += fmt.Sprintf(" Opening the GPU took %.1f seconds: compiling, unless the driver still had the kernels from before.", took)
	return nil
}

// compiled lists kernels. One of which another compiler has made something larger than is wanted, with more
// registers or with spilled ones, is right and may be slow: that fails nothing.
func compiled(c *check, list []cuda.Compiled) *Table {
	t := c.table("Kernels as the driver's compiler has made them", Column{"kernel", Text}, Column{"threads of a block", Count}, Column{"blocks wanted at once", Count},
		Column{"registers of a thread", Count}, Column{"spilled", Byte}, Column{"shared memory of a block", Byte}, Column{"larger than it is meant to be", Text})
	t.Note = "Registers decide how many blocks a multiprocessor has at a time, which hide each other's waiting for memory."
	for _, k := range list {
		wrong := ""
		if err := k.Kernel.Fits(k.Registers, k.Spilled); err != nil {
			wrong = err.Error()
		}
		t.add(k.Kernel.Name, float64(k.Kernel.Threads), float64(k.Kernel.Blocks), float64(k.Registers), float64(k.Spilled), float64(k.Shared), wrong)
	}
	return t
}
