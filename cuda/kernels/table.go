package kernels

import (
	"embed"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// Kernel is an entry point of a module, and what is asked of its compiled form.
type Kernel struct {
	Name   string       // entry point
	Module string       // the family whose PTX has it
	Args   reflect.Type // struct of its one parameter
	// Threads is the most a block may have: its __launch_bounds__.
	Threads int
	// Blocks of so many threads have to fit into one multiprocessor at a time,
	// by their registers and shared memory: the wanted occupancy, and the second
	// of its __launch_bounds__. No multiprocessor has fewer than 1,536 threads.
	Blocks int
	// Shared is the most dynamic shared memory that it is launched with.
	Shared int
	// Spills is how many bytes of registers may be spilled; why is said where
	// it is not 0.
	Spills int
}

// registers are those of 32 bits in a multiprocessor.
const registers = 65536

// Fits says what is wrong with how a compiler made k: so many registers a
// thread and so many bytes of them in memory. Registers are given to warps, in
// units of 256.
func (k Kernel) Fits(used, spilled int) error {
	perBlock := (k.Threads + 31) / 32 * 32 * ((used + 7) / 8 * 8)
	switch {
	case spilled > k.Spills:
		return fmt.Errorf("%s: %d bytes of registers are spilled, %d are allowed", k.Name, spilled, k.Spills)
	case k.Blocks*perBlock > registers:
		return fmt.Errorf("%s: %d registers: %d blocks of %d threads do not fit", k.Name, used, k.Blocks, k.Threads)
	}
	return nil
}

// All lists the kernels of all families.
func All() []Kernel {
	return slices.Concat(
		adamWKernels,
		attentionKernels,
		biasKernels,
		decodeKernels,
		embedBackwardKernels,
		headLossKernels,
		moveKernels,
		normKernels,
		ropeKernels,
		pointwiseKernels,
		reduceKernels,
	)
}

// kernelsOf returns the kernels called name_f32 and name_bf16 of a family.
func kernelsOf[A any](module, name string, threads, blocks int) []Kernel {
	k := Kernel{Module: module, Args: reflect.TypeFor[A](), Threads: threads, Blocks: blocks}
	f32, bf16 := k, k
	f32.Name, bf16.Name = name+"_f32", name+"_bf16"
	return []Kernel{f32, bf16}
}

//go:embed *.ptx
var compiled embed.FS

// Modules returns the names of the families, in order.
func Modules() []string {
	entries, err := compiled.ReadDir(".")
	if err != nil {
		panic(fmt.Sprintf("kernels: %v", err)) // it is part of the program
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".ptx"))
	}
	return names
}

// PTX returns the text of a family's module. It panics where there is none.
func PTX(module string) string {
	text, err := compiled.ReadFile(module + ".ptx")
	if err != nil {
		panic(fmt.Sprintf("kernels: %v", err))
	}
	return string(text)
}
