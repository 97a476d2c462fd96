package kernels

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// ptxasVariable names the environment variable with the path of NVIDIA's
// assembler; make kernels-check sets it.
const ptxasVariable = "GOFSDP_PTXAS"

// multiprocessor is what one has, of a kind of GPU (CUDA programming guide,
// "Technical specifications per compute capability").
type multiprocessor struct {
	arch              string
	threads           int // at most
	shared, sharedMax int // bytes of all blocks, and of one
}

var multiprocessors = []multiprocessor{
	{"sm_80", 2048, 164 << 10, 163 << 10},
	{"sm_89", 1536, 100 << 10, 99 << 10}, // the least of all: what fits here fits anywhere
	{"sm_90", 2048, 228 << 10, 227 << 10},
}

// reserved are the bytes of shared memory that the system takes of each block.
const reserved = 1024

// compiledKernel is what ptxas says of one.
type compiledKernel struct{ registers, shared, spills, stack int }

var (
	compiling = regexp.MustCompile(`Compiling entry function '(\w+)'`)
	usage     = regexp.MustCompile(`Used (\d+) registers`)
	static    = regexp.MustCompile(`(\d+) bytes smem`)
	stack     = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
)

// readLog reads the log of ptxas -v.
func readLog(log string) map[string]compiledKernel {
	kernels := map[string]compiledKernel{}
	starts := compiling.FindAllStringSubmatchIndex(log, -1)
	for i, s := range starts {
		part := log[s[1]:]
		if i+1 < len(starts) {
			part = log[s[1]:starts[i+1][0]]
		}
		number := func(re *regexp.Regexp, group int) int {
			n := 0
			if m := re.FindStringSubmatch(part); m != nil {
				n, _ = strconv.Atoi(m[group])
			}
			return n
		}
		kernels[log[s[2]:s[3]]] = compiledKernel{
			registers: number(usage, 1), shared: number(static, 1),
			stack: number(stack, 1), spills: max(number(stack, 2), number(stack, 3)),
		}
	}
	return kernels
}

// check says what is wrong with how k was compiled for m.
func (m multiprocessor) check(k Kernel, got compiledKernel) error {
	shared := got.shared + k.Shared
	switch {
	case got.registers == 0:
		return fmt.Errorf("ptxas says nothing of it")
	case k.Blocks*k.Threads > m.threads:
		return fmt.Errorf("%d blocks of %d threads are more than a multiprocessor has", k.Blocks, k.Threads)
	case shared > m.sharedMax || shared > 99<<10:
		return fmt.Errorf("%d bytes of shared memory, more than a block may have everywhere", shared)
	case k.Blocks*(shared+reserved) > m.shared:
		return fmt.Errorf("%d blocks of %d bytes of shared memory do not fit", k.Blocks, shared)
	}
	return k.Fits(got.registers, got.spills)
}

func TestPtxasMakesKernelsThatFitAndSpillNothing(t *testing.T) {
	ptxas := os.Getenv(ptxasVariable)
	if ptxas == "" {
		t.Skip(ptxasVariable + " is not set; make kernels-check sets it")
	}
	for _, m := range multiprocessors {
		for _, module := range Modules() {
			log, err := exec.Command(ptxas, "-v", "-arch="+m.arch, "-o", filepath.Join(t.TempDir(), "cubin"), module+".ptx").CombinedOutput()
			if err != nil {
				t.Errorf("%s.ptx for %s: %v\n%s", module, m.arch, err, log)
				continue
			}
			got := readLog(string(log))
			for _, k := range All() {
				if k.Module != module {
					continue
				}
				if err := m.check(k, got[k.Name]); err != nil {
					t.Errorf("%s on %s: %v", k.Name, m.arch, err)
				}
				t.Logf("%-6s %-32s %3d registers, %5d bytes of shared memory, %d spilled", m.arch, k.Name,
					got[k.Name].registers, got[k.Name].shared+k.Shared, got[k.Name].spills)
			}
		}
	}
}

func TestAKernelThatDoesNotFitIsSeen(t *testing.T) {
	const log = `ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'one' for 'sm_89'
ptxas info    : Function properties for one
    64 bytes stack frame, 60 bytes spill stores, 72 bytes spill loads
ptxas info    : Used 130 registers, 4096 bytes smem, 416 bytes cmem[0]
ptxas info    : Compiling entry function 'two' for 'sm_89'
ptxas info    : Function properties for two
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers
`
	got := readLog(log)
	if one := (compiledKernel{130, 4096, 72, 64}); got["one"] != one {
		t.Errorf("one: %+v, want %+v", got["one"], one)
	}
	if two := (compiledKernel{registers: 40}); got["two"] != two {
		t.Errorf("two: %+v, want %+v", got["two"], two)
	}
	l4 := multiprocessors[1]
	for _, c := range []struct {
		name string
		k    Kernel
		fits bool
	}{
		{"two", Kernel{Threads: 256, Blocks: 6}, true},
		{"two", Kernel{Threads: 512, Blocks: 4}, false}, // more threads than there are
		{"two", Kernel{Threads: 256, Blocks: 7, Shared: 20 << 10}, false},
		{"two", Kernel{Threads: 1024, Blocks: 1, Shared: 100 << 10}, false},
		{"one", Kernel{Threads: 128, Blocks: 3, Spills: 72}, true},
		{"one", Kernel{Threads: 128, Blocks: 4, Spills: 72}, false},
		{"one", Kernel{Threads: 128, Blocks: 3}, false},
		{"none", Kernel{Threads: 128, Blocks: 1}, false},
	} {
		if err := l4.check(c.k, got[c.name]); (err == nil) != c.fits {
			t.Errorf("%s as %+v: %v", c.name, c.k, err)
		}
	}
}
