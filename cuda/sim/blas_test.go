//go:build sim && cgo && linux

package sim_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/cuda/sim/calls"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// blasRig is a rig with a handle of cuBLAS's that is ready for products.
type blasRig struct {
	*rig
	calls.BLAS
	handle    uintptr
	workspace uint64
}

const workspaceSize = 64 << 10

// multiplying starts a machine with a handle in the rig's stream.
func multiplying(t testing.TB, c sim.Config) *blasRig {
	t.Helper()
	r := &blasRig{rig: ready(t, c)}
	r.BLAS = calls.UseBLAS(r.m.BLAS())
	r.workspace = r.alloc(workspaceSize)
	r.handle = r.prepared(r.stream, r.workspace)
	return r
}

// prepared returns a handle with stream, workspace and mode.
func (r *blasRig) prepared(stream uintptr, workspace uint64) (h uintptr) {
	r.Helper()
	r.ok(r.Create(&h))
	r.ok(r.SetStream(h, stream))
	r.ok(r.SetWorkspace(h, workspace, workspaceSize))
	r.ok(r.SetMathMode(h, 16))
	return h
}

// declines demands a status, and a reason that says something.
func (r *blasRig) declines(status int, want sim.Status, part string) {
	r.Helper()
	all := r.m.Refused()
	if got := sim.Status(status); got != want || len(all) == 0 || !strings.Contains(all[len(all)-1], part) {
		r.Errorf("got %v (%d), want %v (%d), with %q; refused: %q", got, got, want, want, part, all)
	}
}

// scalar is a number in memory that Go does not move.
func scalar(x float32) unsafe.Pointer { return unsafe.Pointer(&x) }

// gemm returns the product of matrices without gaps.
func gemm(m, n, k int, a, b, c uint64) calls.Gemm {
	return calls.Gemm{
		M: m, N: n, K: k, A: a, B: b, C: c, LdA: m, LdB: k, LdC: m,
		Alpha: scalar(1), Beta: scalar(0), Compute: 68, Algorithm: -1,
	}
}

// floats are fp32 numbers as bytes.
func floats(xs ...float32) []byte {
	b, err := binary.Append(nil, binary.LittleEndian, xs)
	if err != nil {
		panic(err)
	}
	return b
}

// Numbers of cudaDataType.
const (
	cudaF32  = 0
	cudaBF16 = 14
)

// operand is a matrix of a test, by columns, with gaps.
type operand struct {
	typ            int
	rows, cols, ld int
	bytes          []byte
}

func random(rng *rand.Rand, typ, rows, cols int) *operand {
	o := &operand{typ: typ, rows: rows, cols: cols, ld: rows + rng.IntN(2)*rng.IntN(5)}
	for range o.ld * cols {
		x := float32(rng.NormFloat64())
		if typ == cudaBF16 {
			o.bytes = binary.LittleEndian.AppendUint16(o.bytes, device.ToBF16(x))
		} else {
			o.bytes = binary.LittleEndian.AppendUint32(o.bytes, math.Float32bits(x))
		}
	}
	return o
}

// at returns an element, or that of the transpose.
func (o *operand) at(i, j, transposed int) float64 {
	if transposed != 0 {
		i, j = j, i
	}
	if at := j*o.ld + i; o.typ == cudaBF16 {
		return float64(device.FromBF16(binary.LittleEndian.Uint16(o.bytes[2*at:])))
	} else {
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(o.bytes[4*at:])))
	}
}

// TestAProductIsWhatItsDefinitionSays compares with C = alpha·op(A)·op(B) + beta·C in float64, element by
// element. An element may be off by as many roundings of fp32 as it has terms, and one of its own format.
func TestAProductIsWhatItsDefinitionSays(t *testing.T) {
	rng := optest.Rand(t)
	r := multiplying(t, sim.Config{Seed: rng.Uint64(), Pause: time.Millisecond})
	for _, types := range [][2]int{{cudaF32, cudaF32}, {cudaBF16, cudaBF16}, {cudaBF16, cudaF32}} {
		for trans := range 9 {
			for _, scale := range [][2]float32{{1, 0}, {1, 1}, {-0.5, 3}, {0, 2}} {
				g := gemm(1+rng.IntN(40), 1+rng.IntN(40), rng.IntN(40), 0, 0, 0)
				g.TransA, g.TransB, g.Compute = trans%3, trans/3, 68+rng.IntN(2)
				a, b, c := random(rng, types[0], g.M, g.K), random(rng, types[0], g.K, g.N), random(rng, types[1], g.M, g.N)
				if g.TransA != 0 {
					a = random(rng, types[0], g.K, g.M)
				}
				if g.TransB != 0 {
					b = random(rng, types[0], g.N, g.K)
				}
				g.TypeA, g.TypeB, g.TypeC, g.LdA, g.LdB, g.LdC = types[0], types[0], types[1], max(1, a.ld), max(1, b.ld), c.ld
				g.Alpha, g.Beta = scalar(scale[0]), scalar(scale[1])
				// What is not to be read is not there, or is no number.
				for o, to := range map[*operand]*uint64{a: &g.A, b: &g.B, c: &g.C} {
					switch {
					case o == c && scale[1] == 0:
						*to = r.upload(bytes.Repeat([]byte{0xff}, len(o.bytes)))
					case o != c && scale[0] == 0 || len(o.bytes) == 0:
						*to = 0
					default:
						*to = r.upload(o.bytes)
					}
				}
				before := r.download(g.C, len(c.bytes))
				r.ok(r.GemmEx(r.handle, g))
				got := &operand{types[1], c.rows, c.cols, c.ld, r.download(g.C, len(c.bytes))}
				name := fmt.Sprintf("%+v, alpha %v, beta %v", g, scale[0], scale[1])
				size := len(c.bytes) / (c.ld * c.cols)
				for j := range g.N {
					for i := range g.M {
						want := float64(scale[1]) * c.at(i, j, 0)
						terms := math.Abs(want)
						for l := range g.K {
							x := float64(scale[0]) * a.at(i, l, g.TransA) * b.at(l, j, g.TransB)
							want, terms = want+x, terms+math.Abs(x)
						}
						bound := terms * float64(g.K+2) * 0x1p-24
						if types[1] == cudaBF16 {
							bound += math.Abs(want) * 0x1p-8
						}
						if x := got.at(i, j, 0); !(math.Abs(x-want) <= bound) {
							t.Fatalf("%s: C[%d,%d] is %v, want %v, to %v", name, i, j, x, want, bound)
						}
					}
					if gap := got.bytes[(j*c.ld+c.rows)*size : (j+1)*c.ld*size]; !bytes.Equal(gap, before[(j*c.ld+c.rows)*size:(j+1)*c.ld*size]) {
						t.Fatalf("%s: what is behind column %d has changed", name, j)
					}
				}
				for _, at := range []uint64{g.A, g.B, g.C} {
					if at != 0 {
						r.ok(r.MemFree(at))
					}
				}
			}
		}
	}
	r.noFaults()
}

// TestAProductWithNothingToDoIsDone: "quick return" of BLAS.
func TestAProductWithNothingToDoIsDone(t *testing.T) {
	r := multiplying(t, sim.Config{})
	for _, sizes := range [][3]int{{0, 2, 2}, {2, 0, 2}, {2, 2, 0}} {
		g := gemm(sizes[0], sizes[1], sizes[2], 0, 0, 0)
		g.LdA, g.LdB, g.LdC, g.Beta = 2, 2, 2, scalar(1)
		r.ok(r.GemmEx(r.handle, g))
	}
	r.noFaults()
}

// TestAProductChecksItsArguments: cuBLAS library reference, "cublasGemmEx", parameters and statuses.
func TestAProductChecksItsArguments(t *testing.T) {
	r := multiplying(t, sim.Config{})
	a := r.alloc(4096)
	good := gemm(2, 3, 4, a, a+256, a+512)
	r.ok(r.MemsetD8Async(a, 0, 4096, r.stream))
	r.ok(r.GemmEx(r.handle, good))
	for name, c := range map[string]struct {
		change func(g *calls.Gemm)
		want   sim.Status
		why    string
	}{
		"an unknown operation on A":       {func(g *calls.Gemm) { g.TransA = 3 }, sim.BLASInvalidValue, "operation 3"},
		"an unknown operation on B":       {func(g *calls.Gemm) { g.TransB = -1 }, sim.BLASInvalidValue, "operation -1"},
		"m below 0":                       {func(g *calls.Gemm) { g.M = -1 }, sim.BLASInvalidValue, "-1 × 3 × 4"},
		"n below 0":                       {func(g *calls.Gemm) { g.N = -1 }, sim.BLASInvalidValue, "2 × -1 × 4"},
		"k below 0":                       {func(g *calls.Gemm) { g.K = -1 }, sim.BLASInvalidValue, "2 × 3 × -1"},
		"lda below m":                     {func(g *calls.Gemm) { g.LdA = 1 }, sim.BLASInvalidValue, "A: a leading dimension of 1 for columns of 2"},
		"lda below k, A transposed":       {func(g *calls.Gemm) { g.TransA, g.LdA = 1, 3 }, sim.BLASInvalidValue, "A: a leading dimension of 3 for columns of 4"},
		"ldb below k":                     {func(g *calls.Gemm) { g.LdB = 3 }, sim.BLASInvalidValue, "B: a leading dimension of 3 for columns of 4"},
		"ldb below n, B transposed":       {func(g *calls.Gemm) { g.TransB, g.LdB = 2, 2 }, sim.BLASInvalidValue, "B: a leading dimension of 2 for columns of 3"},
		"ldb of 0 where k is 0":           {func(g *calls.Gemm) { g.K, g.LdB = 0, 0 }, sim.BLASInvalidValue, "B: a leading dimension of 0 for columns of 1"},
		"ldc below m":                     {func(g *calls.Gemm) { g.LdC = 1 }, sim.BLASInvalidValue, "C: a leading dimension of 1"},
		"no alpha":                        {func(g *calls.Gemm) { g.Alpha = nil }, sim.BLASInvalidValue, "alpha or beta"},
		"no beta":                         {func(g *calls.Gemm) { g.Beta = nil }, sim.BLASInvalidValue, "alpha or beta"},
		"types that differ":               {func(g *calls.Gemm) { g.TypeB = cudaBF16 }, sim.BLASNotSupported, "[0 14 0]"},
		"a result of bf16 from fp32":      {func(g *calls.Gemm) { g.TypeC = cudaBF16 }, sim.BLASNotSupported, "[0 0 14]"},
		"fp64":                            {func(g *calls.Gemm) { g.TypeA, g.TypeB, g.TypeC = 1, 1, 1 }, sim.BLASNotSupported, "[1 1 1]"},
		"sums in fp16":                    {func(g *calls.Gemm) { g.Compute = 64 }, sim.BLASNotSupported, "compute type 64"},
		"fp32 by TF32":                    {func(g *calls.Gemm) { g.Compute = 77 }, sim.BLASNotSupported, "shorter format (compute type 77"},
		"fp32 by fp16":                    {func(g *calls.Gemm) { g.Compute = 74 }, sim.BLASNotSupported, "shorter format (compute type 74"},
		"an algorithm between the ranges": {func(g *calls.Gemm) { g.Algorithm = 24 }, sim.BLASNotSupported, "algorithm 24"},
		"an algorithm below them":         {func(g *calls.Gemm) { g.Algorithm = -2 }, sim.BLASNotSupported, "algorithm -2"},
		"an algorithm above them":         {func(g *calls.Gemm) { g.Algorithm = 116 }, sim.BLASNotSupported, "algorithm 116"},
	} {
		t.Run(name, func(t *testing.T) {
			g := good
			c.change(&g)
			was := r.rig.TB
			r.rig.TB = t
			defer func() { r.rig.TB = was }()
			r.declines(r.GemmEx(r.handle, g), c.want, c.why)
		})
	}
	device := good
	device.Alpha = *(*unsafe.Pointer)(unsafe.Pointer(&a))
	r.declines(r.GemmEx(r.handle, device), sim.BLASInvalidValue, "no address of the host's")
	for _, algorithm := range []int{0, 23, 99, 115} {
		g := good
		g.Algorithm = algorithm
		r.ok(r.GemmEx(r.handle, g))
	}
	r.ok(r.SetMathMode(r.handle, 3))
	r.declines(r.GemmEx(r.handle, good), sim.BLASNotSupported, "shorter format (compute type 68, mode 3)")
	good.Compute = 69
	r.ok(r.GemmEx(r.handle, good))
	r.noFaults()
}

// TestWhatAProductDoesWrongIsFoundWhenItRuns: a kernel's illegal address is the context's from then on, and
// what comes after it cannot be started.
func TestWhatAProductDoesWrongIsFoundWhenItRuns(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *blasRig, g *calls.Gemm)
		want   sim.Result
		why    string
	}{
		"A is too short":               {func(_ *blasRig, g *calls.Gemm) { g.LdA = 63 }, sim.IllegalAddress, "reach"},
		"B is too short":               {func(_ *blasRig, g *calls.Gemm) { g.LdB = 125 }, sim.IllegalAddress, "B, 4 × 3 elements of f32"},
		"C is too short":               {func(_ *blasRig, g *calls.Gemm) { g.LdC = math.MaxInt32 }, sim.IllegalAddress, "C, 2 × 3 elements of f32"},
		"A is nowhere":                 {func(_ *blasRig, g *calls.Gemm) { g.A = 0 }, sim.IllegalAddress, "nothing has been allocated at 0x0"},
		"C has been freed":             {func(r *blasRig, g *calls.Gemm) { g.C = r.alloc(64); r.ok(r.MemFree(g.C)) }, sim.IllegalAddress, "has been freed"},
		"C is another device's":        {func(r *blasRig, g *calls.Gemm) { g.C = r.others() }, sim.IllegalAddress, "which device 0 has no access to"},
		"B is between two elements":    {func(_ *blasRig, g *calls.Gemm) { g.B += 2 }, sim.MisalignedAddress, "no multiple of the 4 bytes"},
		"a column of A is not written": {func(r *blasRig, g *calls.Gemm) { g.A = r.partly() }, sim.LaunchFailed, "A[1,2], at byte 20 of"},
		"C is not written, and read":   {func(r *blasRig, g *calls.Gemm) { g.C, g.Beta = r.alloc(64), scalar(1) }, sim.LaunchFailed, "C[0,0], at byte 0 of"},
		"C is in B":                    {func(_ *blasRig, g *calls.Gemm) { g.C = g.B + 44 }, sim.LaunchFailed, "share bytes"},
		"C is over A":                  {func(_ *blasRig, g *calls.Gemm) { g.C = g.A - 20 }, sim.LaunchFailed, "share bytes"},
		"A is in the workspace":        {func(r *blasRig, g *calls.Gemm) { g.A = r.workspace + workspaceSize - 32 }, sim.LaunchFailed, "A at"},
		"C is in the workspace":        {func(r *blasRig, g *calls.Gemm) { g.C = r.workspace }, sim.LaunchFailed, "is in the workspace of 65536 bytes"},
		"the workspace has been freed": {func(r *blasRig, _ *calls.Gemm) { r.ok(r.MemFree(r.workspace)) }, sim.IllegalAddress, "the workspace in allocation"},
	} {
		t.Run(name, func(t *testing.T) {
			r := multiplying(t, sim.Config{Devices: []sim.Device{small(), small()}})
			a := r.alloc(1000)
			r.ok(r.MemsetD8Async(a, 0, 1000, r.stream))
			r.ok(r.MemsetD8Async(r.workspace, 0, workspaceSize, r.stream))
			g := gemm(2, 3, 4, a+256, a+512, a+768)
			r.ok(r.GemmEx(r.handle, g))
			r.ok(r.StreamSynchronize(r.stream))
			c.change(r, &g)
			r.noFaults()
			r.ok(r.GemmEx(r.handle, g))
			if f := r.fault(c.want, c.why); f.Call != "cublasGemmEx" {
				t.Errorf("the fault is of %s", f.Call)
			}
			r.declines(r.GemmEx(r.handle, g), sim.BLASExecutionFailed, "since device 0")
			var h uintptr
			r.declines(r.Create(&h), sim.BLASNotInitialized, "since device 0")
			r.ok(r.Destroy(r.handle))
		})
	}
}

// others returns memory of the second device.
func (r *blasRig) others() uint64 {
	var first uintptr
	r.ok(r.CtxGetCurrent(&first))
	r.enter(1)
	a := r.alloc(64)
	r.ok(r.CtxSetCurrent(first))
	return a
}

// partly returns 8 numbers, of which all but the sixth have been written.
func (r *blasRig) partly() uint64 {
	a := r.alloc(32)
	r.ok(r.MemsetD8Async(a, 0, 20, r.stream))
	r.ok(r.MemsetD8Async(a+24, 0, 8, r.stream))
	return a
}

// TestColumnsOfOneMatrixMayLieBetweenThoseOfAnother multiplies parts of one buffer, as of fused weights.
func TestColumnsOfOneMatrixMayLieBetweenThoseOfAnother(t *testing.T) {
	r := multiplying(t, sim.Config{})
	// Three columns of 2 + 2 + 2: A above, C below, and between them what nobody has written.
	x := r.alloc(72)
	for j := range uint64(3) {
		r.ok(r.MemcpyHtoDAsync(x+24*j, unsafe.Pointer(&floats(1, 2)[0]), 8, r.stream))
	}
	b := r.upload(floats(1, 10, 100, 2, 20, 200, 3, 30, 300))
	g := gemm(2, 3, 3, x, b, x+16)
	g.LdA, g.LdC = 6, 6
	r.ok(r.GemmEx(r.handle, g))
	for j, want := range [][]byte{floats(111, 222), floats(222, 444), floats(333, 666)} {
		r.expect(x+24*uint64(j)+16, want)
	}
	r.noFaults()
	r.download(x+8, 1) // still not written
	r.fault(sim.Success, "nobody has written it")
}

func TestAProductHasItsPlaceInTheStream(t *testing.T) {
	r := multiplying(t, sim.Config{Seed: 3, Pause: 3 * time.Millisecond})
	p, host := r.pinned(8) // one address space
	var at uint64
	r.ok(r.MemHostGetDevicePointer(&at, p, 0))
	copy(host, floats(3, 4))
	a, c := r.alloc(4), r.alloc(8)
	other, e := r.newStream(), r.newEvent()
	release := r.hold()
	r.ok(r.MemsetD32Async(a, math.Float32bits(2), 1, r.stream))
	g := gemm(1, 2, 1, a, at, c)
	r.ok(r.GemmEx(r.handle, g))
	*(*float32)(g.Alpha), *(*float32)(g.Beta) = 9, 9 // they have been read
	r.ok(r.EventRecord(e, r.stream))
	r.ok(r.StreamWaitEvent(other, e, 0))
	r.ok(r.MemsetD32Async(a, 0, 1, other))
	d := r.alloc(8)
	r.ok(r.MemcpyDtoDAsync(d, c, 8, other))
	r.want(r.StreamQuery(r.stream), sim.NotReady)
	release()
	r.ok(r.StreamSynchronize(other))
	r.expect(d, floats(6, 8))
	r.noFaults()
}

func TestAGraphMakesItsProductsEachTime(t *testing.T) {
	r := multiplying(t, sim.Config{Seed: 3, Pause: time.Millisecond})
	a, b, c := r.upload(floats(1, 2)), r.upload(floats(10)), r.upload(floats(0, 0))
	g := gemm(2, 1, 1, a, b, c)
	g.Beta = scalar(1)
	x := r.captured(func() {
		r.ok(r.GemmEx(r.handle, g))
		r.ok(r.MemcpyDtoDAsync(a, c, 4, r.stream))
	})
	r.expect(c, floats(0, 0))
	r.ok(r.Destroy(r.handle)) // the graph has what it needs
	for _, want := range [][]byte{floats(10, 20), floats(110, 40), floats(1210, 60)} {
		r.ok(r.GraphLaunch(x, r.stream))
		r.expect(c, want)
	}
	r.noFaults()
	r.ok(r.MemFree(r.workspace))
	r.ok(r.GraphLaunch(x, r.stream))
	r.fault(sim.IllegalAddress, "the workspace in allocation")
}

// TestTwoGraphsOfOneHandleMayNotRunAtOnce launches small products beside a large one until two have met.
func TestTwoGraphsOfOneHandleMayNotRunAtOnce(t *testing.T) {
	r := multiplying(t, sim.Config{})
	const n = 400
	x := r.alloc(3 * 4 * n * n)
	r.ok(r.MemsetD8Async(x, 0, 3*4*n*n, r.stream))
	y := r.upload(floats(1, 2, 3))
	large := r.captured(func() { r.ok(r.GemmEx(r.handle, gemm(n, n, n, x, x+4*n*n, x+8*n*n))) })
	little := r.captured(func() { r.ok(r.GemmEx(r.handle, gemm(1, 1, 1, y, y+4, y+8))) })
	r.ok(r.StreamSynchronize(r.stream))
	other := r.newStream()
	for range 1000 {
		if len(r.m.Faults()) > 0 {
			break
		}
		if r.GraphLaunch(large, r.stream) != 0 {
			break
		}
		for r.StreamQuery(r.stream) == int(sim.NotReady) {
			r.GraphLaunch(little, other)
			r.StreamSynchronize(other)
		}
	}
	r.fault(sim.LaunchFailed, "another product of the same handle is under way")
}

// TestHandlesCannotBeMadeOrDestroyedWhileCapturing: the status is that of pytorch/pytorch, issue 99397.
func TestHandlesCannotBeMadeOrDestroyedWhileCapturing(t *testing.T) {
	r := multiplying(t, sim.Config{})
	var graph, h uintptr
	r.ok(r.StreamBeginCapture(r.stream, 1))
	r.declines(r.Create(&h), sim.BLASNotInitialized, "cublasCreate may be unsafe while stream")
	r.declines(r.GemmEx(r.handle, gemm(1, 1, 1, 0, 0, 0)), sim.BLASExecutionFailed, "was invalidated before")
	r.want(r.StreamEndCapture(r.stream, &graph), sim.StreamCaptureInvalidated)
	r.ok(r.StreamBeginCapture(r.stream, 2))
	r.declines(r.Destroy(r.handle), sim.BLASInternalError, "waits for the device")
	r.want(r.StreamEndCapture(r.stream, &graph), sim.StreamCaptureInvalidated)
	r.ok(r.Destroy(r.handle))
}

func TestAHandleIsOfItsContext(t *testing.T) {
	r := multiplying(t, sim.Config{Devices: []sim.Device{small(), small()}})
	a := r.upload(floats(1, 2, 3))
	g := gemm(1, 1, 1, a, a+4, a+8)
	var first, h uintptr
	r.ok(r.CtxGetCurrent(&first))
	r.ok(r.CtxSetCurrent(0))
	r.declines(r.Create(&h), sim.BLASNotInitialized, "no current context")
	r.declines(r.GemmEx(r.handle, g), sim.BLASExecutionFailed, "is not current on thread")
	r.enter(1)
	r.declines(r.GemmEx(r.handle, g), sim.BLASExecutionFailed, "is of device 0, whose context is not current")
	other := r.newStream()
	r.ok(r.CtxSetCurrent(first))
	r.ok(r.SetStream(r.handle, other))
	r.declines(r.GemmEx(r.handle, g), sim.BLASExecutionFailed, "of device 0 in stream")
	r.ok(r.SetStream(r.handle, 0))
	r.declines(r.GemmEx(r.handle, g), sim.BLASExecutionFailed, "the legacy default stream")
	gone := r.newStream()
	r.ok(r.SetStream(r.handle, gone))
	r.ok(r.StreamDestroy(gone))
	r.declines(r.GemmEx(r.handle, g), sim.BLASExecutionFailed, "has been destroyed")
	r.ok(r.DevicePrimaryCtxRelease(0))
	r.declines(r.GemmEx(r.handle, g), sim.BLASNotInitialized, "has been destroyed")
	r.noFaults()
}

// TestHandlesAreChecked calls every function with what is no handle, and after the machine's end.
func TestHandlesAreChecked(t *testing.T) {
	r := multiplying(t, sim.Config{})
	all := map[string]func(h uintptr) int{
		"cublasDestroy":      r.Destroy,
		"cublasSetStream":    func(h uintptr) int { return r.SetStream(h, r.stream) },
		"cublasSetWorkspace": func(h uintptr) int { return r.SetWorkspace(h, r.workspace, workspaceSize) },
		"cublasSetMathMode":  func(h uintptr) int { return r.SetMathMode(h, 16) },
		"cublasGemmEx":       func(h uintptr) int { return r.GemmEx(h, gemm(0, 0, 0, 0, 0, 0)) },
		"cublasLtMatmul":     func(h uintptr) int { return r.LtMatmul(h, calls.Described{}, calls.LtGemm{}) },
		"cublasLtMatmulAlgoGetHeuristic": func(h uintptr) int {
			return r.LtMatmulAlgoGetHeuristic(h, calls.Described{}, 0, 1, nil, nil)
		},
	}
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(calls.BLASCounts())), describing)
	if want := slices.Sorted(maps.Keys(all)); !slices.Equal(names, slices.Insert(want, 0, "cublasCreate")) {
		t.Fatalf("the table has\n%q, tried are\n%q", names, want)
	}
	r.declines(r.Create(nil), sim.BLASInvalidValue, "a null pointer")
	gone := uintptr(0)
	r.ok(r.Create(&gone))
	r.ok(r.Destroy(gone))
	for wrong, why := range map[uintptr]string{0: "is null", 0x7777: "is of no kind", r.stream: "is that of a stream", gone: "has been destroyed"} {
		for name, call := range all {
			if got := sim.Status(call(wrong)); got != sim.BLASNotInitialized {
				t.Errorf("%s with handle %#x: %v", name, wrong, got)
			}
			r.why(why)
		}
	}
	r.want(r.StreamQuery(r.handle), sim.InvalidHandle)
	r.why("is that of a cuBLAS handle")
	r.m.Close()
	all["cublasCreate"] = func(uintptr) int { return r.Create(&gone) }
	for name, call := range all {
		if got := sim.Status(call(r.handle)); got != sim.BLASNotInitialized {
			t.Errorf("without a machine, %s: %v", name, got)
		}
	}
}

func TestAWorkspaceIsAlignedDeviceMemoryOfOneHandle(t *testing.T) {
	r := multiplying(t, sim.Config{Devices: []sim.Device{small(), small()}})
	other := r.others()
	p, _ := r.pinned(1 << 20)
	own := r.alloc(1 << 20)
	for _, c := range []struct {
		at, n uint64
		why   string
	}{
		{own + 128, 4096, "no multiple of 256"},
		{own, 1<<20 + 1, "past the end"},
		{own + 256, 1 << 63, "past the end"},
		{0, 4096, "nothing has been allocated"},
		{other - other%256, 64, "device 0 has no access to"},
		{uint64(uintptr(p)), 4096, "pinned memory"},
	} {
		r.declines(r.SetWorkspace(r.handle, c.at, c.n), sim.BLASInvalidValue, c.why)
	}
	a := r.upload(floats(1, 2, 3))
	g := gemm(1, 1, 1, a, a+4, a+8)
	r.ok(r.GemmEx(r.handle, g)) // with what it had
	second := r.prepared(r.newStream(), own)
	r.declines(r.SetWorkspace(second, r.workspace+256, 4096), sim.BLASInvalidValue, "are in the workspace of cuBLAS handle")
	r.ok(r.SetWorkspace(second, own+4096, 4096)) // part of what it has
	r.declines(r.GemmEx(second, g), sim.BLASAllocFailed, "a workspace of 4096 bytes")
	r.ok(r.SetWorkspace(second, own, 0))
	r.declines(r.GemmEx(second, g), sim.BLASAllocFailed, "a workspace of 0 bytes")
	r.ok(r.Destroy(r.handle))
	r.ok(r.SetWorkspace(second, r.workspace, workspaceSize))
	r.ok(r.GemmEx(second, g))
	r.noFaults()
}

// TestWhatLeavesSumsOpenIsReported: no status tells of it, and the numbers would differ now and then.
func TestWhatLeavesSumsOpenIsReported(t *testing.T) {
	r := multiplying(t, sim.Config{})
	a := r.upload(floats(1, 2, 3))
	g := gemm(1, 1, 1, a, a+4, a+8)
	r.ok(r.SetStream(r.handle, r.stream))
	r.ok(r.GemmEx(r.handle, g))
	r.fault(sim.Success, "has no workspace of its own")
	r.ok(r.SetWorkspace(r.handle, r.workspace, workspaceSize))
	for _, wrong := range []int{-1, 4, 15, 32, 48, 20} {
		r.declines(r.SetMathMode(r.handle, wrong), sim.BLASInvalidValue, "of cublasMath_t")
	}
	for i, mode := range []int{16, 17, 18, 19, 2, 0, 1, 3} {
		before := len(r.m.Faults())
		r.ok(r.SetMathMode(r.handle, mode))
		half := g
		half.TypeA, half.TypeB = cudaBF16, cudaBF16
		r.ok(r.GemmEx(r.handle, half))
		half.Compute = 69
		r.ok(r.GemmEx(r.handle, half))
		r.m.Wait()
		if found, want := len(r.m.Faults())-before, max(0, min(1, i-4)); found != want {
			t.Errorf("mode %d: %d reports, want %d", mode, found, want)
		}
	}
	r.fault(sim.Success, "may be rounded to bf16")
	r.ok(r.StreamSynchronize(r.stream))
}

func TestAHandleTakesMemoryAndIsMissedWhereItIsLeft(t *testing.T) {
	d := small()
	d.BLAS = 40 << 20
	r := multiplying(t, sim.Config{Devices: []sim.Device{d}})
	var free, before, total uint64
	var h uintptr
	r.ok(r.MemGetInfo(&before, &total))
	r.declines(r.Create(&h), sim.BLASAllocFailed, "a handle takes 41943040 bytes of the device")
	if !slices.ContainsFunc(r.m.Leaks(), func(s string) bool { return strings.Contains(s, "cuBLAS handle") }) {
		t.Errorf("leaks: %q", r.m.Leaks())
	}
	r.ok(r.Destroy(r.handle))
	r.ok(r.MemGetInfo(&free, &total))
	if free != before+d.BLAS || strings.Contains(strings.Join(r.m.Leaks(), ""), "cuBLAS handle") {
		t.Errorf("%d bytes are free, want %d; leaks: %q", free, before+d.BLAS, r.m.Leaks())
	}
}

// TestDestroyingAHandleWaitsForItsProducts: "will implicitly call cudaDeviceSynchronize".
func TestDestroyingAHandleWaitsForItsProducts(t *testing.T) {
	r := multiplying(t, sim.Config{})
	a := r.upload(floats(1, 2, 3))
	r.ok(r.StreamSynchronize(r.stream))
	release := r.hold()
	r.ok(r.GemmEx(r.handle, gemm(1, 1, 1, a, a+4, a+8)))
	time.AfterFunc(20*time.Millisecond, release)
	r.ok(r.Destroy(r.handle))
	r.ok(r.StreamQuery(r.stream))
	r.expect(a, floats(1, 2, 2))
}
