package kernels

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/gofsdp/gofsdp/cuda/sim/ptx"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// interpreted finds a kernel as the interpreter has it; each module is read
// once.
func interpreted(name string) (*ptx.Kernel, error) {
	i := slices.IndexFunc(All(), func(k Kernel) bool { return k.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("no kernel is called %s", name)
	}
	module := All()[i].Module
	read, _ := modules.LoadOrStore(module, sync.OnceValues(func() (*ptx.Module, error) {
		return ptx.Parse(module+".ptx", PTX(module))
	}))
	m, err := read.(func() (*ptx.Module, error))()
	if err != nil {
		return nil, err
	}
	return m.Kernels[name], nil
}

var modules sync.Map // name → func() (*ptx.Module, error)

// schedule is one way in which a launch may go.
type schedule struct {
	order ptx.Order
	eager bool
	races bool // are looked for: accesses that no barrier puts in order
}

// schedules are those that must all give the same bytes.
var schedules = []schedule{{ptx.Forward, false, false}, {ptx.Reverse, true, false}, {ptx.Random, false, true}, {ptx.Random, true, false}}

// run executes op's launches on the interpreter, on op's own memory. What an
// operation only writes counts as never written before, and must be written
// whole.
func run(op device.Op, s schedule, seed uint64) error {
	how := ptx.Launch{Order: s.order, Eager: s.eager, Races: s.races, Seed: seed, Limit: 1 << 22}
	if err := execute(op, how, interpreted); err != nil {
		return fmt.Errorf("%v, eager %v, seed %d: %w", s.order, s.eager, seed, err)
	}
	return nil
}

// execute is run of the kernels that find returns.
func execute(op device.Op, how ptx.Launch, find func(name string) (*ptx.Kernel, error)) error {
	launches, err := Lower(op)
	if err != nil {
		return err
	}
	memory, outputs := regionsOf(op)
	for _, l := range launches {
		k, err := find(l.Kernel)
		if err != nil {
			return err
		}
		how.Grid, how.Block, how.Shared, how.Args = l.Grid, l.Block, int(l.Shared), l.Args
		if err := k.Run(how, memory); err != nil {
			return err
		}
		how.Seed++
	}
	for _, r := range outputs {
		for i := range r.Bytes {
			if r.Written[i/64]>>(i%64)&1 == 0 {
				return fmt.Errorf("byte %d of %s is never written", i, r.Name)
			}
		}
	}
	return nil
}

// regionsOf presents the memory of op's operands, and lists what has to be
// written.
func regionsOf(op device.Op) (memory ptx.Regions, outputs []*ptx.Region) {
	access, scratch := map[device.Addr]device.Access{}, map[device.Addr]bool{}
	for _, o := range device.Operands(op) {
		access[o.T.Addr] |= o.Access
		scratch[o.T.Addr] = o.Scratch
	}
	for _, o := range device.Operands(op) {
		if access[o.T.Addr] == 0 {
			continue // seen
		}
		// An operand of an odd address is in the middle of an allocation.
		from := o.T.Addr &^ 255
		before := int(o.T.Addr - from)
		first := device.Tensor{Addr: from}
		r := &ptx.Region{
			Base: uint64(from), Name: device.Name(op) + "." + o.Name,
			Bytes: unsafe.Slice((*byte)(first.Pointer()), before+int(o.T.Bytes())),
		}
		if access[o.T.Addr]&device.Read == 0 {
			r.Written = ptx.NewWritten(len(r.Bytes))
			r.MarkWritten(0, before)
			if !scratch[o.T.Addr] {
				outputs = append(outputs, r)
			}
		}
		access[o.T.Addr] = 0
		memory = append(memory, r)
	}
	return memory, outputs
}

// verify runs a copy of op in each schedule and requires of the first what the
// reference gives, within bounds, and of the others the same bytes.
func verify(memory optest.Memory, rng *rand.Rand, op device.Op, schedules ...schedule) error {
	return verifyCopies(memory, rng, op, memory.Clone, schedules...)
}

// verifyCopies runs the copies that copyOf makes: not all lie as op itself does.
func verifyCopies(memory optest.Memory, rng *rand.Rand, op device.Op, copyOf func(device.Op) device.Op, schedules ...schedule) error {
	if recorder != nil {
		recorder(copyOf(op), nil)
		return nil
	}
	bounds, want := memory.Bounds(op), memory.Clone(op)
	want.Reference()
	var first device.Op
	for _, s := range schedules {
		got := copyOf(op)
		if err := run(got, s, rng.Uint64()); err != nil {
			return err
		}
		if first == nil {
			first = got
			if err := optest.Compare(got, want, bounds); err != nil {
				return err
			}
		} else if err := optest.Compare(got, first, nil); err != nil {
			return fmt.Errorf("%v, eager %v, unlike %v: %w", s.order, s.eager, schedules[0].order, err)
		}
	}
	return nil
}

// stops requires that one of op's kernels traps.
func stops(op device.Op) error {
	if recorder != nil {
		recorder(op, trap)
		return nil
	}
	return trapped(run(op, schedules[0], 0))
}

// trapped returns an error unless err is a trap's.
func trapped(err error) error {
	var fault *ptx.Fault
	if !errors.As(err, &fault) || fault.Kind != ptx.Undefined || !strings.Contains(fault.Text, "trap") {
		return fmt.Errorf("%v, want a trap", err)
	}
	return nil
}

// recorder, where it is set, is given the operations that would be run, with what is asked of them: nil for
// what optest.Compare asks, trap for what trapped does.
var recorder func(op device.Op, asked func(got, want device.Op) error)

func trap(_, _ device.Op) error { return errors.New("it has not stopped") }

// shifted returns a copy of op whose operands begin one element after an
// address that 16 bytes may be moved at.
func shifted(memory optest.Memory, op device.Op) device.Op {
	c, copies := device.Clone(op), map[device.Addr]device.Addr{}
	for _, o := range device.Operands(c) {
		to, ok := copies[o.T.Addr]
		if !ok {
			t := memory.Blank(o.T.Type, int(o.T.Len)+1).Slice(1, o.T.Len)
			copy(optest.Bytes(t), optest.Bytes(*o.T))
			to = t.Addr
			copies[o.T.Addr] = to
		}
		o.T.Addr = to
	}
	return c
}

func TestKernelsComputeWhatTheReferenceDoes(t *testing.T) {
	rng := optest.Rand(t)
	for _, typ := range []device.DType{device.F32, device.BF16} {
		memory := optest.NewMemory(t, rng)
		for _, c := range optest.Cases(t, rng, typ) {
			if refused(c.Op) {
				continue
			}
			if err := verify(memory, rng, c.Op, schedules...); err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
		}
	}
}

func TestKernelsNeedNoAlignmentButThatOfAnElement(t *testing.T) {
	rng := optest.Rand(t)
	for _, typ := range []device.DType{device.F32, device.BF16} {
		memory := optest.NewMemory(t, rng)
		for _, c := range optest.Cases(t, rng, typ) {
			if refused(c.Op) || strings.HasPrefix(device.Name(c.Op), "Attention") {
				continue // attention's tiles are 16 bytes
			}
			shift := func(op device.Op) device.Op { return shifted(memory, op) }
			if err := verifyCopies(memory, rng, c.Op, shift, schedules[0]); err != nil {
				t.Errorf("%s: %v", c.Name, err)
			}
		}
	}
}

// poisons are what is not finite; the second is a NaN of ones, which a carry makes zero.
var poisons = []float64{math.NaN(), math.Float64frombits(math.MaxUint64), math.Inf(1), math.Inf(-1)}

func TestWhatIsNotFiniteIsNeverLost(t *testing.T) {
	rng := optest.Rand(t)
	for _, typ := range []device.DType{device.F32, device.BF16} {
		memory := optest.NewMemory(t, rng)
		for _, c := range optest.Cases(t, rng, typ) {
			if refused(c.Op) {
				continue
			}
			for i, o := range device.Operands(c.Op) {
				if o.Access&device.Read == 0 || !o.T.Type.Float() {
					continue
				}
				poison := poisons[rng.IntN(len(poisons))]
				poisoned := memory.Clone(c.Op)
				optest.Set(*device.Operands(poisoned)[i].T, rng.IntN(int(o.T.Len)), poison)
				if recorder != nil {
					recorder(poisoned, optest.KeepsPoison)
					continue
				}
				want := memory.Clone(poisoned)
				want.Reference()
				if err := run(poisoned, schedules[0], 0); err != nil {
					t.Errorf("%s: %v", c.Name, err)
				} else if err := optest.KeepsPoison(poisoned, want); err != nil {
					t.Errorf("%s: %v in %s: %v", c.Name, poison, o.Name, err)
				}
			}
		}
	}
}
