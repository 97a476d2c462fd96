//go:build sim && cgo && linux

package sim_test

import (
	"bytes"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/cuda/sim/calls"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// Attributes of cublasLt.h: of an operation, and of a preference.
const (
	opTransA, opTransB, opEpilogue, opBias       = 3, 4, 7, 8
	preferWorkspace, preferSchemes, preferAlignA = 1, 3, 5
)

// describing tells the functions that make, change and destroy descriptions.
func describing(name string) bool {
	return regexp.MustCompile(`^cublasLt.*(Desc|Layout|Preference)`).MatchString(name)
}

// fused is a product with a bias, as cuBLASLt is called for it.
type fused struct {
	calls.LtGemm
	of         calls.Described
	preference uintptr
	result     *calls.Heuristic
}

// operation, layout and likings make descriptions.
func (r *blasRig) operation(compute, scale int) (h uintptr) {
	r.Helper()
	r.ok(r.LtMatmulDescCreate(&h, compute, scale))
	return h
}

func (r *blasRig) layout(typ int, rows, cols uint64, ld int64) (h uintptr) {
	r.Helper()
	r.ok(r.LtMatrixLayoutCreate(&h, typ, rows, cols, ld))
	return h
}

func (r *blasRig) likings() (h uintptr) {
	r.Helper()
	r.ok(r.LtMatmulPreferenceCreate(&h))
	return h
}

// biased describes a product with a bias, of the matrices of g, and asks for its algorithm as package cuda does.
func (r *blasRig) biased(g calls.Gemm, bias uint64) *fused {
	r.Helper()
	x := &fused{LtGemm: calls.LtGemm{
		Alpha: g.Alpha, Beta: g.Beta, A: g.A, B: g.B, C: g.C, D: g.C, Workspace: r.workspace, Bytes: workspaceSize, Stream: r.stream,
	}}
	x.of.Operation, x.preference = r.operation(g.Compute, cudaF32), r.likings()
	set(r, x.of.Operation, opTransA, int32(g.TransA))
	set(r, x.of.Operation, opTransB, int32(g.TransB))
	set(r, x.of.Operation, opEpilogue, uint32(4))
	set(r, x.of.Operation, opBias, bias)
	layout := func(typ, trans, rows, cols, ld int) uintptr {
		if trans != 0 {
			rows, cols = cols, rows
		}
		return r.layout(typ, uint64(rows), uint64(cols), int64(ld))
	}
	x.of.A, x.of.B = layout(g.TypeA, g.TransA, g.M, g.K, g.LdA), layout(g.TypeB, g.TransB, g.K, g.N, g.LdB)
	x.of.C = layout(g.TypeC, 0, g.M, g.N, g.LdC)
	x.of.D = x.of.C
	prefer(r, x.preference, preferWorkspace, uint64(workspaceSize))
	prefer(r, x.preference, preferSchemes, uint32(2))
	r.ok(r.ask(x))
	return x
}

// ask asks for the algorithm.
func (r *blasRig) ask(x *fused) int {
	r.Helper()
	found := int32(-1)
	x.result = new(calls.Heuristic)
	status := r.LtMatmulAlgoGetHeuristic(r.handle, x.of, x.preference, 1, x.result, &found)
	if want := map[sim.Status]int32{sim.BLASSuccess: 1, sim.BLASNotSupported: 0}[sim.Status(status)]; found != want {
		r.Errorf("%d algorithms with %v", found, sim.Status(status))
	}
	x.Algorithm = &x.result.Algorithm
	return status
}

func (r *blasRig) fuse(x *fused) int { return r.LtMatmul(r.handle, x.of, x.LtGemm) }

// forget destroys the descriptions; those that are none may be destroyed.
func (r *blasRig) forget(x *fused) {
	r.Helper()
	r.ok(r.LtMatmulDescDestroy(x.of.Operation))
	r.ok(r.LtMatmulDescDestroy(0))
	for _, l := range []uintptr{x.of.A, x.of.B, x.of.C, 0} {
		r.ok(r.LtMatrixLayoutDestroy(l))
	}
	r.ok(r.LtMatmulPreferenceDestroy(x.preference))
	r.ok(r.LtMatmulPreferenceDestroy(0))
}

func set[T any](r *blasRig, operation uintptr, attribute int, x T) {
	r.Helper()
	r.ok(r.LtMatmulDescSetAttribute(operation, attribute, unsafe.Pointer(&x), uint64(unsafe.Sizeof(x))))
}

func prefer[T any](r *blasRig, preference uintptr, attribute int, x T) {
	r.Helper()
	r.ok(r.LtMatmulPreferenceSetAttribute(preference, attribute, unsafe.Pointer(&x), uint64(unsafe.Sizeof(x))))
}

// TestABiasOfAnEpilogueIsOneThatWasThereBefore compares with cublasGemmEx bit by bit, which has been compared with the
// definition: each column of C holds the bias there, and is added to. Either rounds once.
func TestABiasOfAnEpilogueIsOneThatWasThereBefore(t *testing.T) {
	rng := optest.Rand(t)
	r := multiplying(t, sim.Config{Seed: rng.Uint64(), Pause: time.Millisecond})
	for _, types := range [][2]int{{cudaF32, cudaF32}, {cudaBF16, cudaBF16}, {cudaBF16, cudaF32}} {
		for trans := range 9 {
			g := gemm(1+rng.IntN(40), 1+rng.IntN(40), 1+rng.IntN(40), 0, 0, 0)
			g.TransA, g.TransB, g.Compute, g.Alpha = trans%3, trans/3, 68+rng.IntN(2), scalar([]float32{1, -0.5}[trans%2])
			a, b, c := random(rng, types[0], g.M, g.K), random(rng, types[0], g.K, g.N), random(rng, types[1], g.M, g.N)
			if g.TransA != 0 {
				a = random(rng, types[0], g.K, g.M)
			}
			if g.TransB != 0 {
				b = random(rng, types[0], g.N, g.K)
			}
			size := len(c.bytes) / (c.ld * c.cols)
			bias, nothing := bytes.Clone(c.bytes[:g.M*size]), bytes.Repeat([]byte{0xff}, g.M*size)
			each := func(column []byte) uint64 {
				for j := range c.cols {
					copy(c.bytes[j*c.ld*size:], column)
				}
				return r.upload(c.bytes)
			}
			g.TypeA, g.TypeB, g.TypeC, g.LdA, g.LdB, g.LdC = types[0], types[0], types[1], a.ld, b.ld, c.ld
			g.A, g.B, g.C, g.Beta = r.upload(a.bytes), r.upload(b.bytes), each(bias), scalar(1)
			r.ok(r.GemmEx(r.handle, g))
			want := r.download(g.C, len(c.bytes))

			own := g
			own.C, own.Beta = each(nothing), scalar(0) // what is not to be read is no number
			at := r.upload(bias)
			x := r.biased(own, at)
			r.ok(r.fuse(x))
			if got := r.download(own.C, len(want)); !bytes.Equal(got, want) {
				t.Errorf("%+v: %x, want %x", g, got, want)
			}
			r.forget(x)
			for _, at := range []uint64{g.A, g.B, g.C, own.C, at} {
				r.ok(r.MemFree(at))
			}
		}
	}
	r.noFaults()
	if leaks := strings.Join(r.m.Leaks(), "; "); strings.Contains(leaks, "description") || strings.Contains(leaks, "layout") || strings.Contains(leaks, "preference") {
		t.Error(leaks)
	}
}

// TestDescriptionsAreChecked calls every function that has to do with them with what is none, with values of another
// size, and after the machine's end. Values themselves are looked at when a product is asked for. Seen of libcublasLt
// 13.1.1.
func TestDescriptionsAreChecked(t *testing.T) {
	r := multiplying(t, sim.Config{})
	x := r.biased(gemm(1, 1, 1, 0, 0, 0), 16)
	if leaks := r.m.Leaks(); !slices.ContainsFunc(leaks, func(s string) bool { return strings.HasPrefix(s, "preference ") }) ||
		!slices.ContainsFunc(leaks, func(s string) bool { return strings.HasPrefix(s, "layout of a matrix ") }) ||
		!slices.ContainsFunc(leaks, func(s string) bool { return strings.HasPrefix(s, "description of a product ") }) {
		t.Errorf("leaks: %q", leaks)
	}
	four := uint32(4)
	at := unsafe.Pointer(&four)
	r.declines(r.LtMatmulDescCreate(nil, 68, 0), sim.BLASInvalidValue, "a null pointer for the description of a product")
	r.declines(r.LtMatrixLayoutCreate(nil, 0, 1, 1, 1), sim.BLASInvalidValue, "a null pointer for the layout of a matrix")
	r.declines(r.LtMatmulPreferenceCreate(nil), sim.BLASInvalidValue, "a null pointer for the preference")
	for _, c := range []struct {
		attribute int
		value     unsafe.Pointer
		bytes     uint64
		why       string
	}{
		{opEpilogue, nil, 4, "a null pointer for attribute 7"},
		{opEpilogue, at, 8, "8 bytes for attribute 7, which has 4"},
		{opBias, at, 4, "4 bytes for attribute 8, which has 8"},
		{999, at, 4, "attribute 999"},
	} {
		r.declines(r.LtMatmulDescSetAttribute(x.of.Operation, c.attribute, c.value, c.bytes), sim.BLASInvalidValue, c.why)
	}
	r.declines(r.LtMatmulPreferenceSetAttribute(x.preference, preferWorkspace, at, 4), sim.BLASInvalidValue, "4 bytes for attribute 1, which has 8")
	r.declines(r.LtMatmulPreferenceSetAttribute(x.preference, preferSchemes, nil, 4), sim.BLASInvalidValue, "a null pointer for attribute 3")
	r.declines(r.LtMatmulPreferenceSetAttribute(x.preference, 4, at, 4), sim.BLASInvalidValue, "attribute 4")

	set := func(o uintptr) int { return r.LtMatmulDescSetAttribute(o, opEpilogue, at, 4) }
	prefer := func(p uintptr) int { return r.LtMatmulPreferenceSetAttribute(p, preferSchemes, at, 4) }
	with := func(change func(x *fused, to uintptr)) func(uintptr) int {
		return func(to uintptr) int {
			y := *x
			change(&y, to)
			return r.LtMatmulAlgoGetHeuristic(r.handle, y.of, y.preference, 1, y.result, new(int32))
		}
	}
	null := map[string]func(uintptr) int{
		"cublasLtMatmulDescSetAttribute": set, "cublasLtMatmulPreferenceSetAttribute": prefer,
		"asked for an operation": with(func(x *fused, to uintptr) { x.of.Operation = to }),
		"asked for A":            with(func(x *fused, to uintptr) { x.of.A = to }),
		"asked for B":            with(func(x *fused, to uintptr) { x.of.B = to }),
		"asked for C":            with(func(x *fused, to uintptr) { x.of.C = to }),
		"asked for D":            with(func(x *fused, to uintptr) { x.of.D = to }),
		"asked with preferences": with(func(x *fused, to uintptr) { x.preference = to }),
	}
	all := maps.Clone(null)
	all["cublasLtMatmulDescDestroy"] = r.LtMatmulDescDestroy
	all["cublasLtMatrixLayoutDestroy"] = r.LtMatrixLayoutDestroy
	all["cublasLtMatmulPreferenceDestroy"] = r.LtMatmulPreferenceDestroy
	for wrong, why := range map[uintptr]string{0x7777: "is of no kind", r.stream: "is that of a stream"} {
		for name, call := range all {
			if got := sim.Status(call(wrong)); got != sim.BLASInvalidValue {
				t.Errorf("%s with handle %#x: %v", name, wrong, got)
			}
			r.why(why)
		}
	}
	for name, call := range null {
		if got := sim.Status(call(0)); got != sim.BLASInvalidValue {
			t.Errorf("%s of null: %v", name, got)
		}
	}
	r.forget(x)
	r.declines(set(x.of.Operation), sim.BLASInvalidValue, "has been destroyed")
	r.declines(r.LtMatmulDescDestroy(x.of.Operation), sim.BLASInvalidValue, "has been destroyed")

	var h uintptr
	all["cublasLtMatmulDescCreate"] = func(uintptr) int { return r.LtMatmulDescCreate(&h, 68, 0) }
	all["cublasLtMatrixLayoutCreate"] = func(uintptr) int { return r.LtMatrixLayoutCreate(&h, 0, 1, 1, 1) }
	all["cublasLtMatmulPreferenceCreate"] = func(uintptr) int { return r.LtMatmulPreferenceCreate(&h) }
	for name := range calls.BLASCounts() {
		if describing(name) && all[name] == nil {
			t.Errorf("%s is not tried", name)
		}
	}
	r.m.Close()
	for name, call := range all {
		if got := sim.Status(call(1)); got != sim.BLASNotInitialized {
			t.Errorf("without a machine, %s: %v", name, got)
		}
	}
}

// TestAnAlgorithmIsOneThatIsPreferred: the quickest way that is allowed, by the workspace that it takes.
func TestAnAlgorithmIsOneThatIsPreferred(t *testing.T) {
	r := multiplying(t, sim.Config{})
	g := gemm(30, 20, 4, 0, 0, 0)
	g.TypeA, g.TypeB, g.TypeC = cudaBF16, cudaBF16, cudaBF16
	x := r.biased(g, 16)
	for _, c := range []struct {
		schemes   uint32
		most      uint64
		workspace uint64
	}{
		{7, 1 << 20, 2 * 600 * 2}, {7, 2399, 0}, {3, 1 << 20, 4096}, {2, 1 << 20, 2 * 600 * 4}, {2, 4799, 0}, {0, 1 << 20, 0},
	} {
		prefer(r, x.preference, preferSchemes, c.schemes)
		prefer(r, x.preference, preferWorkspace, c.most)
		r.ok(r.ask(x))
		if x.result.Workspace != c.workspace || x.result.State != 0 {
			t.Errorf("schemes %d with %d bytes: %d bytes are taken, want %d; state %d", c.schemes, c.most, x.result.Workspace, c.workspace, x.result.State)
		}
	}
	before := len(r.m.Refused())
	for _, i := range []int{0, 1, 3} { // C itself is only read where it is added to
		for alignment, want := range map[uint32]sim.Status{8: sim.BLASNotSupported, 16: sim.BLASSuccess, 256: sim.BLASSuccess} {
			prefer(r, x.preference, preferAlignA+i, alignment)
			if got := sim.Status(r.ask(x)); got != want {
				t.Errorf("matrix %d at a multiple of %d: %v, want %v", i, alignment, got, want)
			}
			prefer(r, x.preference, preferAlignA+i, uint32(256))
		}
	}
	set(r, x.of.Operation, opBias, uint64(24))
	if got := sim.Status(r.ask(x)); got != sim.BLASNotSupported {
		t.Errorf("a bias at a multiple of 8: %v", got)
	}
	if all := r.m.Refused(); len(all) != before {
		t.Errorf("an answer is no refusal: %q", all[before:])
	}
	var found int32
	r.declines(r.LtMatmulAlgoGetHeuristic(r.handle, x.of, x.preference, 0, x.result, &found), sim.BLASInvalidValue, "0 algorithms")
	r.declines(r.LtMatmulAlgoGetHeuristic(r.handle, x.of, x.preference, 1, nil, &found), sim.BLASInvalidValue, "1 algorithms")
	r.declines(r.LtMatmulAlgoGetHeuristic(r.handle, x.of, x.preference, 1, x.result, nil), sim.BLASInvalidValue, "their number to")
}

// TestAFusedProductChecksItsArguments: cublasLt.h, cublasLtMatmul, and the reference.
func TestAFusedProductChecksItsArguments(t *testing.T) {
	for name, c := range map[string]struct {
		change func(r *blasRig, x *fused)
		want   sim.Status
		why    string
	}{
		"an unknown operation on A": {func(r *blasRig, x *fused) { set(r, x.of.Operation, opTransA, int32(3)) }, sim.BLASInvalidValue, "operation 3"},
		"another operation on B":    {func(r *blasRig, x *fused) { set(r, x.of.Operation, opTransB, int32(1)) }, sim.BLASInvalidValue, "B: a leading dimension of 4"},
		"A of other rows":           {func(r *blasRig, x *fused) { x.of.A = r.layout(0, 3, 4, 3) }, sim.BLASInvalidValue, "A is described as 3 × 4, and the product needs 2 × 4"},
		"B of other columns":        {func(r *blasRig, x *fused) { x.of.B = r.layout(0, 4, 2, 4) }, sim.BLASInvalidValue, "B is described as 4 × 2, and the product needs 4 × 5"},
		"B of other rows":           {func(r *blasRig, x *fused) { x.of.B = r.layout(0, 5, 5, 5) }, sim.BLASInvalidValue, "B is described as 5 × 5"},
		"a result that is not C's":  {func(r *blasRig, x *fused) { x.of.D = r.layout(0, 2, 4, 2) }, sim.BLASNotSupported, "C is described as"},
		"a result elsewhere":        {func(_ *blasRig, x *fused) { x.D += 256 }, sim.BLASNotSupported, "lie where C does"},
		"lda below m":               {func(r *blasRig, x *fused) { x.of.A = r.layout(0, 2, 4, 1) }, sim.BLASInvalidValue, "A: a leading dimension of 1"},
		"no rows": {func(r *blasRig, x *fused) {
			x.of.A = r.layout(0, 0, 4, 1)
			x.of.C = r.layout(0, 0, 5, 1)
			x.of.D = x.of.C
		}, sim.BLASInvalidValue, "a product of 0 × 5 × 4"},
		"types that differ":            {func(r *blasRig, x *fused) { x.of.A = r.layout(14, 2, 4, 2) }, sim.BLASNotSupported, "[14 0 0]"},
		"fp32 by TF32":                 {func(r *blasRig, x *fused) { x.of.Operation = r.operation(77, 0) }, sim.BLASNotSupported, "shorter format (compute type 77"},
		"alpha in fp16":                {func(r *blasRig, x *fused) { x.of.Operation = r.operation(68, 2) }, sim.BLASNotSupported, "alpha and beta of type 2"},
		"no alpha":                     {func(_ *blasRig, x *fused) { x.Alpha = nil }, sim.BLASInvalidValue, "alpha or beta"},
		"no beta":                      {func(_ *blasRig, x *fused) { x.Beta = nil }, sim.BLASInvalidValue, "alpha or beta"},
		"no bias":                      {func(r *blasRig, x *fused) { set(r, x.of.Operation, opBias, uint64(0)) }, sim.BLASInvalidValue, "and no bias"},
		"another epilogue":             {func(r *blasRig, x *fused) { set(r, x.of.Operation, opEpilogue, uint32(6)) }, sim.BLASNotSupported, "epilogue 6"},
		"no algorithm":                 {func(_ *blasRig, x *fused) { x.Algorithm = nil }, sim.BLASNotSupported, "no choice of its own"},
		"an algorithm of nobody's":     {func(_ *blasRig, x *fused) { x.Algorithm = new([8]uint64) }, sim.BLASInvalidValue, "has not returned"},
		"an algorithm without a bias":  {func(r *blasRig, x *fused) { set(r, x.of.Operation, opEpilogue, uint32(1)) }, sim.BLASInvalidValue, "chosen for another product"},
		"an algorithm of another type": {func(r *blasRig, x *fused) { x.of.Operation = r.operation(69, 0) }, sim.BLASInvalidValue, "chosen for another product"},
		"too small a workspace":        {func(_ *blasRig, x *fused) { x.Bytes = 79 }, sim.BLASInvalidValue, "a workspace of 79 bytes for an algorithm that takes 80"},
		"a workspace that is not":      {func(_ *blasRig, x *fused) { x.Workspace = 0 }, sim.BLASInvalidValue, "the workspace: "},
		"a workspace between":          {func(_ *blasRig, x *fused) { x.Workspace += 16 }, sim.BLASInvalidValue, "no multiple of 256"},
		"A between two multiples":      {func(_ *blasRig, x *fused) { x.A += 8 }, sim.BLASInvalidValue, "A at"},
		"a bias between two multiples": {func(r *blasRig, x *fused) { set(r, x.of.Operation, opBias, x.A+776) }, sim.BLASInvalidValue, "the bias at"},
		"a stream that is none":        {func(_ *blasRig, x *fused) { x.Stream = 0x7777 }, sim.BLASExecutionFailed, "is of no kind"},
		"an operation that is none":    {func(_ *blasRig, x *fused) { x.of.Operation = 0 }, sim.BLASInvalidValue, "is null"},
		"a layout that is none":        {func(_ *blasRig, x *fused) { x.of.B = 0 }, sim.BLASInvalidValue, "is null"},
	} {
		t.Run(name, func(t *testing.T) {
			r := multiplying(t, sim.Config{})
			a := r.alloc(4096)
			r.ok(r.MemsetD8Async(a, 0, 4096, r.stream))
			g := gemm(2, 5, 4, a, a+256, a+512)
			x := r.biased(g, a+768)
			r.ok(r.fuse(x))
			c.change(r, x)
			r.declines(r.fuse(x), c.want, c.why)
			r.noFaults()
		})
	}
}

// TestWhatAFusedProductDoesWrongIsFoundWhenItRuns: a bias is read as the matrices are.
func TestWhatAFusedProductDoesWrongIsFoundWhenItRuns(t *testing.T) {
	for name, c := range map[string]struct {
		bias func(r *blasRig, x *fused) uint64
		want sim.Result
		why  string
	}{
		"A is nowhere":        {func(_ *blasRig, x *fused) uint64 { x.A = 1 << 20; return x.C + 256 }, sim.IllegalAddress, "nothing has been allocated at 0x100000"},
		"it is nowhere":       {func(*blasRig, *fused) uint64 { return 1 << 20 }, sim.IllegalAddress, "the bias, 8 × 1 elements of f32 at 0x100000"},
		"it is too short":     {func(r *blasRig, _ *fused) uint64 { return r.alloc(28) }, sim.IllegalAddress, "the bias, 8 × 1"},
		"it has been freed":   {func(r *blasRig, _ *fused) uint64 { b := r.alloc(32); r.ok(r.MemFree(b)); return b }, sim.IllegalAddress, "has been freed"},
		"it is not written":   {func(r *blasRig, _ *fused) uint64 { return r.partly() }, sim.LaunchFailed, "the bias[5,0], at byte 20 of"},
		"it is in the result": {func(_ *blasRig, x *fused) uint64 { return x.C + 16 }, sim.LaunchFailed, "share bytes"},
		"it is in the workspace": {
			func(_ *blasRig, x *fused) uint64 { return x.Workspace + 32 }, sim.LaunchFailed, "is in the workspace of 65536 bytes",
		},
		"it is another device's": {func(r *blasRig, _ *fused) uint64 { return r.others() }, sim.IllegalAddress, "which device 0 has no access to"},
	} {
		t.Run(name, func(t *testing.T) {
			r := multiplying(t, sim.Config{Devices: []sim.Device{small(), small()}})
			a := r.alloc(2000)
			r.ok(r.MemsetD8Async(a, 0, 2000, r.stream))
			r.ok(r.MemsetD8Async(r.workspace, 0, workspaceSize, r.stream))
			x := r.biased(gemm(8, 3, 4, a+256, a+512, a+768), a+1280)
			r.ok(r.fuse(x))
			r.noFaults()
			set(r, x.of.Operation, opBias, c.bias(r, x))
			r.ok(r.fuse(x))
			if f := r.fault(c.want, c.why); f.Call != "cublasLtMatmul" {
				t.Errorf("the fault is of %s", f.Call)
			}
			r.declines(r.fuse(x), sim.BLASExecutionFailed, "since device 0")
		})
	}
}

// TestASumWhosePartsAreRoundedIsReported: no status tells of it, and it would be less exact than one of cublasGemmEx.
func TestASumWhosePartsAreRoundedIsReported(t *testing.T) {
	r := multiplying(t, sim.Config{})
	a := r.alloc(2000)
	r.ok(r.MemsetD8Async(a, 0, 2000, r.stream))
	for _, typ := range []int{cudaF32, cudaBF16} {
		g := gemm(2, 3, 4, a, a+256, a+512)
		g.TypeA, g.TypeB, g.TypeC = typ, typ, typ
		x := r.biased(g, a+768)
		for schemes, reported := range map[uint32]bool{0: false, 1: true, 2: false, 4: true, 7: true} {
			before := len(r.m.Faults())
			prefer(r, x.preference, preferSchemes, schemes)
			r.ok(r.ask(x))
			r.ok(r.fuse(x))
			r.m.Wait()
			if found, want := len(r.m.Faults()) > before, reported && typ == cudaBF16; found != want {
				t.Errorf("schemes %d of type %d: reported %v, want %v", schemes, typ, found, want)
			}
		}
	}
	r.fault(sim.Success, "parts of a sum are rounded to bf16")
}

func TestAGraphMakesItsFusedProductsEachTime(t *testing.T) {
	r := multiplying(t, sim.Config{Seed: 3, Pause: time.Millisecond})
	a, b, c, bias := r.upload(floats(1, 2)), r.upload(floats(10)), r.upload(floats(0, 0)), r.upload(floats(5, 7))
	p := r.biased(gemm(2, 1, 1, a, b, c), bias)
	x := r.captured(func() {
		r.ok(r.fuse(p))
		r.ok(r.MemcpyDtoDAsync(b, c, 4, r.stream))
	})
	r.forget(p) // the graph has what it needs
	r.expect(c, floats(0, 0))
	for _, want := range [][]byte{floats(15, 27), floats(20, 37), floats(25, 47)} {
		r.ok(r.GraphLaunch(x, r.stream))
		r.expect(c, want)
	}
	r.noFaults()
}
