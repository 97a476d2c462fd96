//go:build sim && cgo && linux

package sim

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/gofsdp/gofsdp/cuda/sim/ptx"
)

// module is a loaded PTX text.
type module struct {
	ctx       *context
	handle    uintptr
	name      string
	code      *ptx.Module
	functions map[string]*function
	unloaded  atomic.Bool
}

// function is a kernel of a module, with the limit that was set.
type function struct {
	module  *module
	handle  uintptr
	kernel  *ptx.Kernel
	dynamic int // bytes of dynamic shared memory that a launch may ask for
}

// toolkits are the driver versions that brought each PTX version: PTX ISA,
// "Release notes", as 1000*major + 10*minor of CUDA.
var toolkits = map[string]int{
	"7.0": 11000, "7.1": 11010, "7.2": 11020, "7.3": 11030, "7.4": 11040, "7.5": 11050, "7.6": 11060, "7.7": 11070, "7.8": 11080,
	"8.0": 12000, "8.1": 12010, "8.2": 12020, "8.3": 12030, "8.4": 12040, "8.5": 12050, "8.6": 12070, "8.7": 12080, "8.8": 12090, "9.0": 13000,
}

var (
	versionLine = regexp.MustCompile(`(?m)^\s*\.version\s+(\d+\.\d+)`)
	targetLine  = regexp.MustCompile(`(?m)^\s*\.target\s+sm_(\d+)(a?)`)
)

// load is cuModuleLoadDataEx of a PTX text.
func (c *context) load(image string) (*module, error) {
	m := c.m
	if err := m.safe("cuModuleLoadDataEx"); err != nil {
		return nil, err
	}
	if !strings.Contains(image, ".version") {
		return nil, refuse(InvalidImage, "an image that is no PTX text; the simulator has no use for machine code")
	}
	version, target := versionLine.FindStringSubmatch(image), targetLine.FindStringSubmatch(image)
	if version == nil || target == nil {
		return nil, refuse(InvalidPTX, "a text without .version or .target")
	}
	if needs, known := toolkits[version[1]]; !known || needs > m.config.Driver {
		return nil, refuse(UnsupportedPTXVersion, "PTX %s with a driver of CUDA %d.%d", version[1], m.config.Driver/1000, m.config.Driver%1000/10)
	}
	have := c.device.capability()
	if sm, _ := strconv.Atoi(target[1]); sm > have || target[2] != "" && sm != have {
		return nil, refuse(NoBinaryForGPU, "PTX for sm_%s%s on a device of sm_%d", target[1], target[2], have)
	}
	handle := m.handle(kindModule)
	o := &module{ctx: c, handle: handle, name: fmt.Sprintf("module %d", number(handle)), functions: map[string]*function{}}
	code, err := ptx.Parse(o.name, image)
	if err != nil {
		return nil, refuse(InvalidPTX, "%v", err)
	}
	static := c.device.Attributes[attributeSharedPerBlock]
	for name, k := range code.Kernels {
		if k.Shared > static {
			return nil, refuse(InvalidPTX, "%s has %d bytes of static shared memory, and %d is the most", name, k.Shared, static)
		}
	}
	o.code = code
	m.modules[handle] = o
	return o, nil
}

// unload is cuModuleUnload.
func (o *module) unload() error {
	m := o.ctx.m
	if err := m.safe("cuModuleUnload"); err != nil {
		return err
	}
	o.unloaded.Store(true)
	delete(m.modules, o.handle)
	drop(m.functions, func(f *function) bool { return f.module == o })
	return nil
}

// function is cuModuleGetFunction: one handle a kernel.
func (o *module) function(name string) (*function, error) {
	if f, ok := o.functions[name]; ok {
		return f, nil
	}
	k, ok := o.code.Kernels[name]
	if !ok {
		return nil, refuse(NotFound, "%s has no kernel %q", o.name, name)
	}
	m := o.ctx.m
	f := &function{module: o, handle: m.handle(kindFunction), kernel: k}
	f.dynamic = o.ctx.device.Attributes[attributeSharedPerBlock] - k.Shared
	o.functions[name] = f
	m.functions[f.handle] = f
	return f, nil
}

// Attributes of functions: enum CUfunction_attribute.
const (
	functionThreads   = 0
	functionShared    = 1
	functionLocal     = 3
	functionRegisters = 4
	functionPTX       = 5
	functionBinary    = 6
	functionDynamic   = 8
	functionCarveout  = 9
	functionCount     = 16
)

// attribute is cuFuncGetAttribute.
func (f *function) attribute(which int) (int, error) {
	switch d := f.module.ctx.device; which {
	case functionThreads:
		return f.threads(), nil
	case functionShared:
		return f.kernel.Shared, nil
	case functionLocal:
		return f.kernel.Local, nil
	case functionRegisters:
		return f.registers(), nil
	case functionPTX:
		v, _ := strconv.Atoi(strings.ReplaceAll(f.module.code.Version, ".", ""))
		return v, nil
	case functionBinary:
		return d.capability(), nil
	case functionDynamic:
		return f.dynamic, nil
	}
	if which < 0 || which >= functionCount {
		return 0, refuse(InvalidValue, "attribute %d of a function", which)
	}
	return 0, refuse(NotSupported, "attribute %d of a function is known to a compiler alone", which)
}

// registers is as many as a compiler may give to each thread, by the launch bounds: there is none here that
// would say how many it takes. Of 65,536 in a multiprocessor a thread has 255 at most, in units of 8.
func (f *function) registers() int {
	return min(255, 65536/(f.threads()*max(1, int(f.kernel.MinBlocks)))&^7)
}

// setAttribute is cuFuncSetAttribute.
func (f *function) setAttribute(which, value int) error {
	switch most := f.module.ctx.device.Attributes[attributeSharedOptIn] - f.kernel.Shared; {
	case which == functionCarveout && value >= -1 && value <= 100:
		return nil
	case which != functionDynamic:
		return refuse(InvalidValue, "attribute %d of a function set to %d", which, value)
	case value < 0 || value > most:
		return refuse(InvalidValue, "%s: %d bytes of dynamic shared memory a block, and %d is the most beside %d static ones", f.kernel.Name, value, most, f.kernel.Shared)
	}
	f.dynamic = value
	return nil
}

// threads is the most of a block.
func (f *function) threads() int {
	most := f.module.ctx.device.Attributes[attributeThreadsPerBlock]
	if k := int(f.kernel.MaxThreads); k != 0 {
		return min(most, k)
	}
	return most
}

// launch is cuLaunchKernel with the parameters copied. Limits: CUDA C++
// programming guide, "Technical specifications per compute capability".
func (f *function) launch(grid, block [3]uint32, shared uint32, s *stream, args []byte) error {
	c, attributes := f.module.ctx, f.module.ctx.device.Attributes
	if s.ctx != c {
		return refuse(InvalidHandle, "%s of device %d in %s of device %d", f.kernel.Name, c.device.number, s.name, s.ctx.device.number)
	}
	threads := uint64(1)
	for i := range grid {
		if most := uint32(attributes[attributeGridX+i]); grid[i] == 0 || grid[i] > most {
			return refuse(InvalidValue, "%s: a grid of %v blocks; %d is the most in direction %d, and 1 the least", f.kernel.Name, grid, most, i)
		}
		if most := uint32(attributes[attributeBlockX+i]); block[i] == 0 || block[i] > most {
			return refuse(InvalidValue, "%s: a block of %v threads; %d is the most in direction %d, and 1 the least", f.kernel.Name, block, most, i)
		}
		threads *= uint64(block[i])
	}
	if threads > uint64(f.threads()) {
		return refuse(InvalidValue, "%s: a block of %d threads; %d is the most, by the device or the kernel's launch bounds", f.kernel.Name, threads, f.threads())
	}
	if int64(shared) > int64(f.dynamic) {
		return refuse(InvalidValue, "%s: %d bytes of dynamic shared memory; %d are allowed, up to %d after cuFuncSetAttribute", f.kernel.Name, shared, f.dynamic, attributes[attributeSharedOptIn]-f.kernel.Shared)
	}
	config := &c.m.config
	l := ptx.Launch{
		Grid: grid, Block: block, Shared: int(shared), Args: args,
		Order: config.Order, Seed: c.m.random.Uint64(), Eager: config.Eager, Workers: config.Workers, Limit: config.Limit,
	}
	return s.submit("cuLaunchKernel of "+f.kernel.Name, func() error {
		if f.module.unloaded.Load() {
			return refuse(LaunchFailed, "%s was unloaded while %s was queued", f.module.name, f.kernel.Name)
		}
		return f.kernel.Run(l, memory{c})
	})
}
