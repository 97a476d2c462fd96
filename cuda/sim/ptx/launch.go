package ptx

import (
	"fmt"
	"slices"
)

// Region is one live allocation of device memory.
type Region struct {
	Base  uint64 // device address of Bytes[0], a multiple of 256
	Bytes []byte // what is stored; kernels write into it

	// Written holds one bit a byte, the byte i's in word i/64: whether
	// something has been written to it. Reading a byte whose bit is not set is a
	// fault. Kernels set bits as they store. Nil: all of it counts as written.
	Written []uint64

	Name string // what it is, for reports
}

// NewWritten returns the bits of n bytes of which none has been written.
func NewWritten(n int) []uint64 { return make([]uint64, (n+63)/64) }

// MarkWritten notes that n bytes from offset off have been written, by a copy
// or a fill from outside a kernel. It must not run beside a kernel that uses the region.
func (r *Region) MarkWritten(off, n int) {
	if r.Written == nil {
		return
	}
	for i := off; i < off+n; {
		if i%64 == 0 && i+64 <= off+n {
			r.Written[i/64] = ^uint64(0)
			i += 64
			continue
		}
		r.Written[i/64] |= 1 << (i % 64)
		i++
	}
}

// Memory is the device memory that kernels load from and store to.
type Memory interface {
	// Find returns the live allocation that holds the byte at addr. The error
	// says what is there instead: nothing, or an allocation that has been freed.
	// It is called by several goroutines at once.
	Find(addr uint64) (*Region, error)
}

// Regions is a Memory of fixed regions, enough for a test of one kernel.
type Regions []*Region

// Find implements Memory.
func (rs Regions) Find(addr uint64) (*Region, error) {
	i := slices.IndexFunc(rs, func(r *Region) bool {
		return addr >= r.Base && addr-r.Base < uint64(len(r.Bytes))
	})
	if i >= 0 {
		return rs[i], nil
	}
	return nil, fmt.Errorf("no allocation holds address %#x", addr)
}

// Order is the order in which blocks, and the warps of a block, take turns.
// A kernel that is right gives the same bytes in each.
type Order uint8

const (
	Forward Order = iota // from the first
	Reverse              // from the last
	Random               // by Seed; warps are also interrupted between instructions
)

// String names the order as a flag would.
func (o Order) String() string { return [...]string{"forward", "reverse", "random"}[o] }

// Launch is one start of a kernel.
type Launch struct {
	Grid, Block [3]uint32
	Shared      int    // bytes of dynamic shared memory a block
	Args        []byte // the parameters, laid out as Kernel.Params says

	Order Order
	Seed  uint64 // of Random

	// Eager lets cp.async write at once. Otherwise its bytes arrive when the
	// lane that issued it waits for them, and until then count as never written.
	Eager bool

	// Races finds accesses of two threads to the same bytes, one of them at least a
	// store, that no barrier puts in order: faults of kind Race, whatever order the
	// accesses had here. That takes a few times as long, and Workers is then 1.
	Races bool

	Workers int   // goroutines that run blocks; 0: as many as Go runs at once
	Limit   int64 // the most instructions a warp may execute, against loops that never end; 0: no limit

	Stats *Stats // what is executed is added to it, if it is there

	// Covered, if it is there, has an element for each line of the PTX: of line n that a warp
	// executes, n-1 is set. Workers is then 1.
	Covered []bool
}

// Stats counts what launches executed.
type Stats struct {
	Instructions     int64 // by warps
	LaneInstructions int64 // by lanes: each instruction times the lanes that executed it
	Mma              int64 // matrix products, by warps
	Read, Written    int64 // bytes of global memory, by all lanes; atomic operations count as writes
}

// Fault is an error of a kernel, found while it ran.
type Fault struct {
	Kernel  string
	Module  string    // name given to Parse
	Line    int       // of the PTX
	Text    string    // the instruction
	Source  string    // file:line of the CUDA source, where the PTX tells it
	Block   [3]uint32 // of the grid
	Warp    int
	Lane    int    // the first lane concerned
	Address uint64 // of a memory fault
	Kind    Kind
	What    string // one sentence, lanes and addresses included
}

// Error names all of it in one line.
func (f *Fault) Error() string {
	src := ""
	if f.Source != "" {
		src = " (" + f.Source + ")"
	}
	return fmt.Sprintf("kernel %s, %s:%d%s, block (%d,%d,%d) warp %d lane %d: %s: %s: %s",
		f.Kernel, f.Module, f.Line, src, f.Block[0], f.Block[1], f.Block[2], f.Warp, f.Lane, f.Text, f.Kind, f.What)
}

// Kind classes faults.
type Kind uint8

const (
	OutOfBounds  Kind = iota + 1 // of an allocation, of shared memory, or where there is none (freed memory, too)
	Misaligned                   // address not a multiple of the access' size
	NeverWritten                 // reads what nobody has written, or what a cp.async has yet to write
	ReadOnly                     // writes to constants or parameters
	Divergent                    // barrier, shuffle, vote or matrix instruction that not all of its lanes reach
	Deadlock                     // warps wait for each other
	Endless                      // Launch.Limit is reached
	Race                         // two accesses without an order, where Launch.Races looks for them
	Undefined                    // anything else that PTX leaves undefined
)

// String names the kind.
func (k Kind) String() string {
	return [...]string{"", "out of bounds", "misaligned", "never written", "read-only", "divergent", "deadlock", "endless", "race", "undefined"}[k]
}
