// Package optest makes random operations of package device, over memory of
// their own, and compares what two implementations made of them. It knows the
// operations' contracts and nothing of any implementation.
//
// Memory that an operation must write holds NaNs before, and the bytes around
// every tensor are checked when the test ends.
package optest

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/device"
)

// SeedVariable names the environment variable that sets Rand's seed.
const SeedVariable = "GOFSDP_SEED"

// Rand returns random numbers of a new seed, or of that of SeedVariable. A test
// that fails logs the command that runs it again with the same numbers.
func Rand(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv(SeedVariable); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("%s: %v", SeedVariable, err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("again: %s=%d go test -count=1 -run '^%s$' .", SeedVariable, seed, t.Name())
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// Memory makes tensors outside of the Go heap, aligned as a device's buffers
// are, that live as long as the test.
type Memory struct {
	t   testing.TB
	rng *rand.Rand
}

// NewMemory returns Memory whose tensors are filled from rng.
func NewMemory(t testing.TB, rng *rand.Rand) Memory { return Memory{t, rng} }

const (
	margin = 256  // bytes before and behind a tensor
	guard  = 0xa5 // what they hold
)

// Blank returns a tensor of NaNs, or of large negative integers.
func (m Memory) Blank(typ device.DType, n int) device.Tensor {
	m.t.Helper()
	size := n * int(typ.Size())
	all, err := unix.Mmap(-1, 0, size+2*margin, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		m.t.Fatalf("optest: %d bytes of memory: %v", size, err)
	}
	front, body, back := all[:margin], all[margin:margin+size], all[margin+size:]
	for _, b := range [][]byte{front, back} {
		for i := range b {
			b[i] = guard
		}
	}
	for i := range body {
		body[i] = 0xff
	}
	intact := bytes.Repeat([]byte{guard}, margin)
	m.t.Cleanup(func() {
		if !bytes.Equal(front, intact) || !bytes.Equal(back[:margin], intact) {
			m.t.Errorf("optest: somebody wrote before or behind a tensor of %d × %s", n, typ)
		}
		if err := unix.Munmap(all); err != nil {
			m.t.Errorf("optest: %v", err)
		}
	})
	return device.Tensor{Type: typ, Len: int64(n), Addr: device.Addr(uintptr(unsafe.Pointer(unsafe.SliceData(all)))) + margin}
}

// Normal returns mean plus normally distributed numbers of the deviation.
func (m Memory) Normal(typ device.DType, n int, mean, deviation float64) device.Tensor {
	return m.Floats(typ, n, func(int) float64 { return mean + deviation*m.rng.NormFloat64() })
}

// Gains returns weights of norms: about 1 or about −1.
func (m Memory) Gains(typ device.DType, n int) device.Tensor {
	return m.Floats(typ, n, func(int) float64 { return (1 + 0.2*m.rng.NormFloat64()) * float64(1-2*m.rng.IntN(2)) })
}

// Floats returns f of each index, rounded to typ.
func (m Memory) Floats(typ device.DType, n int, f func(i int) float64) device.Tensor {
	t := m.Blank(typ, n)
	for i := range n {
		Set(t, i, f(i))
	}
	return t
}

// Ints returns f of each index.
func (m Memory) Ints(n int, f func(i int) int) device.Tensor {
	t := m.Blank(device.I32, n)
	for i := range n {
		t.I32()[i] = int32(f(i))
	}
	return t
}

// At returns element i of a tensor of any type.
func At(t device.Tensor, i int) float64 {
	switch t.Type {
	case device.F32:
		return float64(t.F32()[i])
	case device.BF16:
		return float64(device.FromBF16(t.BF16()[i]))
	case device.F64:
		return t.F64()[i]
	case device.I32:
		return float64(t.I32()[i])
	}
	panic(fmt.Sprintf("optest: element of %s", t.Type))
}

// Set sets element i of a tensor of real numbers; bf16 is rounded through
// float32, which is near enough for a test's input.
func Set(t device.Tensor, i int, x float64) {
	switch t.Type {
	case device.F32:
		t.F32()[i] = float32(x)
	case device.BF16:
		t.BF16()[i] = device.ToBF16(float32(x))
	case device.F64:
		t.F64()[i] = x
	default:
		panic(fmt.Sprintf("optest: real number in %s", t.Type))
	}
}

// Bytes returns a tensor's memory.
func Bytes(t device.Tensor) []byte { return unsafe.Slice((*byte)(t.Pointer()), t.Bytes()) }

// Clone copies an operation with its memory; operands that were one stay one.
func (m Memory) Clone(op device.Op) device.Op {
	c, copies := device.Clone(op), map[device.Addr]device.Addr{}
	for _, o := range device.Operands(c) {
		to, ok := copies[o.T.Addr]
		if !ok {
			t := m.Blank(o.T.Type, int(o.T.Len))
			copy(Bytes(t), Bytes(*o.T))
			to = t.Addr
			copies[o.T.Addr] = to
		}
		o.T.Addr = to
	}
	return c
}

// angle is RoPE's angle of a position for pair i of half pairs.
func angle(position, i, half int) float64 {
	return float64(position) * math.Pow(10000, -float64(i)/float64(half))
}
