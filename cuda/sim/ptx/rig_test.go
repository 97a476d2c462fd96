package ptx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// seedVariable is the one that other random tests of this module use.
const seedVariable = "GOFSDP_SEED"

// random returns random numbers; a failing test prints the command that repeats them.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv(seedVariable); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedVariable, err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("again: %s=%d go test -count=1 -run '^%s$' .", seedVariable, seed, strings.Split(t.Name(), "/")[0])
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// Where the regions of tests are.
const (
	inBase  = 1 << 20
	outBase = 1 << 24
)

// module wraps the body of a kernel k(in, out) with registers of all classes.
// The body begins on line 19 where before is one line.
func module(before, body string) string {
	return `.version 8.2
.target sm_80
.address_size 64
` + before + `
.visible .entry k(
.param .u64 in,
.param .u64 out)
{
.reg .pred %p<20>;
.reg .b16 %h<20>;
.reg .b32 %r<40>;
.reg .f32 %f<20>;
.reg .b64 %rd<20>;
.reg .f64 %fd<20>;
ld.param.u64 %rd1, [in];
ld.param.u64 %rd2, [out];
mov.u32 %r1, %tid.x;
` + body + `
ret;
}
`
}

// kernel compiles a body.
func kernel(t testing.TB, before, body string) *Kernel {
	t.Helper()
	m, err := Parse("test.ptx", module(before, body))
	if err != nil {
		t.Fatal(err)
	}
	return m.Kernels["k"]
}

// launch runs k on in, and returns what it wrote to out, of n bytes.
func launch(k *Kernel, l Launch, in []byte, n int) ([]byte, error) {
	if l.Grid == ([3]uint32{}) {
		l.Grid = [3]uint32{1, 1, 1}
	}
	if l.Block == ([3]uint32{}) {
		l.Block = [3]uint32{32, 1, 1}
	}
	l.Args = binary.LittleEndian.AppendUint64(nil, inBase)
	l.Args = binary.LittleEndian.AppendUint64(l.Args, outBase)
	out := &Region{Base: outBase, Bytes: make([]byte, n), Written: NewWritten(n + 64), Name: "out"}
	err := k.Run(l, heap{
		Regions: Regions{{Base: inBase, Bytes: in, Name: "in"}, out},
		freed:   &Region{Base: outBase << 4, Bytes: make([]byte, 4096), Name: "old"},
	})
	return out.Bytes, err
}

// heap is a Memory that knows what was freed.
type heap struct {
	Regions
	freed *Region
}

func (h heap) Find(addr uint64) (*Region, error) {
	if addr-h.freed.Base < uint64(len(h.freed.Bytes)) {
		return nil, fmt.Errorf("%s was freed", h.freed.Name)
	}
	return h.Regions.Find(addr)
}

// words lays 32-bit numbers out as memory.
func words(v ...uint32) []byte {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, x)
	}
	return b
}

// word reads 32-bit number i.
func word(b []byte, i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }

// mustFail returns the fault of a launch.
func mustFail(t *testing.T, err error) *Fault {
	t.Helper()
	var f *Fault
	if !errors.As(err, &f) {
		t.Fatalf("no fault, but %v", err)
	}
	return f
}

// perThread runs a body in a warp that leaves a 32-bit result in %r9, and returns the 32 results.
func perThread(t *testing.T, body string, l Launch) []uint32 {
	t.Helper()
	k := kernel(t, "", body+`
mul.wide.u32 %rd9, %r1, 4;
add.s64 %rd9, %rd9, %rd2;
st.global.u32 [%rd9], %r9;`)
	n := 32
	if l.Block[0] > 0 {
		n = int(l.Block[0])
	}
	out, err := launch(k, l, make([]byte, 4096), 4*n)
	if err != nil {
		t.Fatal(err)
	}
	r := make([]uint32, n)
	for i := range r {
		r[i] = word(out, i)
	}
	return r
}
