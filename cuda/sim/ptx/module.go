package ptx

import "sync"

// Module is a parsed PTX text.
type Module struct {
	Name            string // given to Parse
	Version, Target string
	Kernels         map[string]*Kernel

	data, constants Regions // .global and .const variables with their values
}

// Param is one parameter of a kernel.
type Param struct {
	Name                string
	Size, Align, Offset int // bytes; the offset counts within Launch.Args
}

// Kernel is one entry point, ready to run. It may run several times at once.
type Kernel struct {
	Name       string
	Params     []Param
	ArgsSize   int    // bytes of Launch.Args
	Shared     int    // bytes of static shared memory a block
	Local      int    // bytes of local memory a thread
	MaxThreads uint32 // of a block, as __launch_bounds__ says; 0: not said
	MinBlocks  uint32 // of a multiprocessor at a time, as it says too; 0: not said

	module   *Module
	places   []place   // where each instruction was written, for reports
	idle     sync.Pool // blocks that have run
	files    map[int]string
	code     []inst
	specials []special
	truths   []int32  // pinned predicates that are true
	r32      []slot32 // initial contents of the pinned 32-bit registers
	r64      []slot64
	regs     [3]int // slots of each class that a warp needs
	dynamic  int    // where dynamic shared memory begins
}

// The address windows. Addresses of device memory lie below them.
const (
	windowBits   = 56
	sharedWindow = uint64(1) << windowBits
	localWindow  = uint64(2) << windowBits
	paramWindow  = uint64(3) << windowBits
	dataWindow   = uint64(4) << windowBits
	windowMask   = ^(uint64(1)<<windowBits - 1)

	// sharedStart is the first address of a block's shared memory within its
	// window. On devices of compute capability 9 the first KB is the system's; so
	// an address of zero is a mistake here too.
	sharedStart = 1024
)

// location is a place in the CUDA source.
type location struct {
	file, line int
}

// place is where an instruction was written.
type place struct {
	line int
	loc  location
	text string
}

// statement is an instruction as written.
type statement struct {
	place
	guard *register
	not   bool // the guard is negated
	op    string
	mods  []string // what follows the opcode's first dot, split at the dots
	args  []operand
	scope *scope
}

// operandKind classes operands.
type operandKind uint8

const (
	operandRegister operandKind = iota
	operandImmediate
	operandFloat   // an immediate with the bits of a float
	operandSymbol  // a variable, as its address; or a label
	operandAddress // [base + off]
	operandVector  // {a, b}
	operandPair    // p|q
	operandSink    // _
	operandSpecial // %tid.x
)

// operand is one operand of an instruction as written.
type operand struct {
	kind operandKind
	name string    // as written
	reg  *register // of a register, or of an address' base
	sym  *symbol   // of a symbol, or of an address' base
	bits uint64    // of an immediate
	wide bool      // of a float immediate
	off  int64     // of an address
	not  bool      // !p
	list []operand // of vectors and pairs
}

// class says where a register is kept.
type class uint8

const (
	predicate class = iota // one bit a lane
	narrow                 // up to 32 bits
	wide                   // 64 bits
)

// register is a virtual register, or a constant that is kept in one.
type register struct {
	name   string
	class  class
	bits   int // 1, 8, 16, 32, 64
	pinned bool
	slot   int32
}

// space is a state space.
type space uint8

const (
	generic space = iota
	global
	shared
	local
	param
	constant
)

// symbol is a variable: a name for an address.
type symbol struct {
	name  string
	space space
	addr  uint64 // within its space
}

// scope is a block in braces, with the names that it declares.
type scope struct {
	parent  *scope
	regs    map[string]*register
	symbols map[string]*symbol
	labels  map[string]int // to the index of the next instruction
}

func newScope(parent *scope) *scope {
	return &scope{parent, map[string]*register{}, map[string]*symbol{}, map[string]int{}}
}

func (s *scope) register(name string) *register {
	for ; s != nil; s = s.parent {
		if r := s.regs[name]; r != nil {
			return r
		}
	}
	return nil
}

func (s *scope) symbol(name string) *symbol {
	for ; s != nil; s = s.parent {
		if r := s.symbols[name]; r != nil {
			return r
		}
	}
	return nil
}

func (s *scope) label(name string) (int, bool) {
	for ; s != nil; s = s.parent {
		if i, ok := s.labels[name]; ok {
			return i, true
		}
	}
	return 0, false
}
