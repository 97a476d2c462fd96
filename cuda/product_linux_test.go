//go:build cgo && linux

package cuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

func TestProductsAreAskedOfCuBLASAsItCounts(t *testing.T) {
	rng := optest.Rand(t)
	d, c := testDevice(t, Options{})
	s := d.NewStream("compute")
	if n := strings.Count(c.calls(), "cuMemAlloc_v2 4194304\n"); n != 1 {
		t.Errorf("%d workspaces for a stream", n)
	}
	ran := 0
	for _, typ := range []device.DType{device.F32, device.BF16} {
		for range 2 {
			for _, x := range optest.Cases(t, rng, typ) {
				if _, ok := x.Op.(*device.MatMul); !ok {
					continue
				}
				t.Run(fmt.Sprintf("%v/%s", typ, x.Name), func(t *testing.T) {
					memory := optest.NewMemory(t, rng)
					want := memory.Clone(x.Op)
					bounds := memory.Bounds(want)
					want.Reference()
					got := memory.Clone(x.Op)
					there := device.Clone(got)
					for _, o := range device.Operands(there) { // the test's device has the host's memory
						host := *o.T
						o.T.Addr = alloc(t, d, host.Bytes(), device.Local).Addr
						copy(optest.Bytes(*o.T), optest.Bytes(host))
					}
					s.Launch(there)
					if err := s.Sync(); err != nil {
						t.Fatal(err)
					}
					copy(optest.Bytes(got.(*device.MatMul).C), optest.Bytes(there.(*device.MatMul).C))
					if err := optest.Compare(got, want, bounds); err != nil {
						t.Error(err)
					}
				})
				ran++
			}
		}
	}
	if ran != 16 {
		t.Errorf("%d products", ran)
	}
}

func TestABiasIsAddedToEveryRow(t *testing.T) {
	d, _ := testDevice(t, Options{})
	s := d.NewStream("compute")
	for _, c := range []struct {
		operands, result device.DType
		off              int64 // of the result
		fused            bool
	}{
		{device.F32, device.F32, 0, true},
		{device.BF16, device.BF16, 0, true},
		{device.BF16, device.F32, 0, false},
		{device.F32, device.F32, 4, false},
		{device.BF16, device.BF16, 2, false},
	} {
		const m, n = 2*onesRows + 300, 3
		b, typ := alloc(t, d, 1<<19, device.Local), c.operands
		op := &device.MatMul{A: b.In(typ, 4096, m), B: b.In(typ, 0, n), Bias: b.In(typ, 2048, n), C: b.In(c.result, 1<<17+c.off, m*n), M: m, N: n, K: 1}
		for i := range n {
			optest.Set(op.Bias, i, float64(i+1))
		}
		s.Launch(op)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		for i := range m * n {
			if got := optest.At(op.C, i); got != float64(i%n+1) {
				t.Fatalf("%v: element %d is %v", c, i, got)
			}
		}
		parts := d.(*gpu).works[op].parts
		if _, fused := parts[0].(*biased); fused != c.fused || fused != (len(parts) == 1) {
			t.Errorf("%v: made by %d calls, the first a %T", c, len(parts), parts[0])
		}
	}
	if fused, apart, err := d.(*gpu).Epilogues(); fused != 2 || apart != 2 || err != nil {
		t.Error(fused, apart, err)
	}
}

// TestWhatCuBLASLtRefusesIsTheOperationsError lets each of its functions fail, again and again: nothing is left of any
// that has failed, or the test's cuBLAS, which has few objects, would say so.
func TestWhatCuBLASLtRefusesIsTheOperationsError(t *testing.T) {
	for call, where := range map[string]string{
		"cublasLtMatmulDescCreate": "device 0", "cublasLtMatmulDescSetAttribute": "device 0", "cublasLtMatrixLayoutCreate": "device 0",
		"cublasLtMatmulPreferenceCreate": "device 0", "cublasLtMatmulPreferenceSetAttribute": "device 0",
		"cublasLtMatmulAlgoGetHeuristic": "device 0", "cublasLtMatmulPreferenceDestroy": "device 0", "cublasLtMatmul": "stream compute",
	} {
		t.Run(call, func(t *testing.T) {
			s, _ := testDriver(t)
			library(t, s.env(OverrideBLAS), "libraries/cublas.c", "-DFAIL=\""+call+"\"")
			driver, err := Open(s)
			if err != nil {
				t.Fatal(err)
			}
			d, err := New(driver, Options{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = d.Close() })
			stream, b := d.NewStream("compute"), alloc(t, d, 1<<14, device.Local)
			for range 30 {
				op := &device.MatMul{A: b.In(device.BF16, 0, 30), B: b.In(device.BF16, 1024, 3), Bias: b.In(device.BF16, 2048, 3), C: b.In(device.BF16, 4096, 90), M: 30, N: 3, K: 1}
				stream.Launch(op)
				var e *Error
				if err := stream.Sync(); !errors.As(err, &e) || e.Call != call || e.Name != "CUBLAS_STATUS_ALLOC_FAILED" || e.Op != op ||
					!strings.Contains(err.Error(), where+": MatMul: "+call+": CUBLAS_STATUS_ALLOC_FAILED (3): ") || !strings.HasSuffix(err.Error(), "m 3, n 30, k 1, transposed 0 0, types 14 14") {
					t.Fatal(err)
				}
				if _, made := d.(*gpu).works[op]; made != (call == "cublasLtMatmul") {
					t.Fatal("what is left of it:", made)
				} else if made {
					break // it stays, to be started again
				}
			}
		})
	}
}

// TestDescriptionsEndWithTheirOperations makes more of them than the test's cuBLAS has at once, with an algorithm and
// without.
func TestDescriptionsEndWithTheirOperations(t *testing.T) {
	d, _ := testDevice(t, Options{})
	s := d.NewStream("compute")
	for i := range 60 {
		b, err := d.Alloc(1<<14, device.Local)
		if err != nil {
			t.Fatal(err)
		}
		s.Launch(&device.MatMul{A: b.In(device.BF16, int64(i%2)*2, 30), B: b.In(device.BF16, 1024, 3), Bias: b.In(device.BF16, 2048, 3), C: b.In(device.BF16, 4096, 90), M: 30, N: 3, K: 1})
		if err := errors.Join(s.Sync(), d.Free(b)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAProductThatCuBLASRefusesIsTheStreamsError(t *testing.T) {
	d, c := testDevice(t, Options{})
	s := d.NewStream("compute")
	b := alloc(t, d, 8*300, device.Local)
	op := &device.MatMul{A: b.In(device.F64, 0, 100), B: b.In(device.F64, 800, 100), C: b.In(device.F64, 1600, 100), M: 10, N: 10, K: 10}
	s.Launch(op)
	if err := s.Sync(); err == nil || !strings.HasPrefix(err.Error(), "stream compute: cuda: MatMul: operands of f64: ") {
		t.Error(err)
	}
	c.fail("cuMemAlloc_v2", 2, 0)
	s = d.NewStream("other")
	c.fail("", 0, 0)
	f32 := &device.MatMul{A: b.In(device.F32, 0, 100), B: b.In(device.F32, 400, 100), C: b.In(device.F32, 800, 100), M: 10, N: 10, K: 10}
	for range 2 {
		s.Launch(f32)
		if err := s.Sync(); err == nil || !strings.HasPrefix(err.Error(), "stream other: device 0: cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory: 4194304 bytes of workspace for cuBLAS") {
			t.Error(err)
		}
	}
}

func TestFromHopperOnTheWorkspaceIsLarger(t *testing.T) {
	for major, want := range map[int]int{8: 4 << 20, 9: 32 << 20, 10: 32 << 20} {
		if got := int(Workspace(major)); got != want {
			t.Errorf("%d.x: %d bytes", major, got)
		}
	}
}

// TestProductsTakeNoMemory finds all of it taken by the time that streams are there.
func TestProductsTakeNoMemory(t *testing.T) {
	d, c := testDevice(t, Options{})
	s := d.NewStream("compute")
	b := alloc(t, d, 1<<14, device.Local)
	c.calls()
	s.Launch(&device.MatMul{A: b.In(device.BF16, 0, 300), B: b.In(device.BF16, 1024, 3), Bias: b.In(device.BF16, 2048, 3), C: b.In(device.BF16, 4096, 900), M: 300, N: 3, K: 1})
	if err := s.Sync(); err != nil || strings.Contains(c.calls(), "Alloc") {
		t.Error(err, c.calls())
	}
}

// TestTheGPUIsWaitedForBeforeAShapeOfProductThatIsNew counts the waits: one a shape, whatever the operands are.
func TestTheGPUIsWaitedForBeforeAShapeOfProductThatIsNew(t *testing.T) {
	d, c := testDevice(t, Options{})
	s, other := d.NewStream("compute"), d.NewStream("other")
	b := alloc(t, d, 1<<14, device.Local)
	product := func(m, off int64, bias bool) *device.MatMul {
		o := &device.MatMul{A: b.In(device.BF16, off, m), B: b.In(device.BF16, 1024, 3), C: b.In(device.BF16, 4096, 3*m), M: int(m), N: 3, K: 1}
		if bias {
			o.Bias = b.In(device.BF16, 2048, 3)
		}
		return o
	}
	for _, step := range []struct {
		name  string
		s     device.Stream
		op    *device.MatMul
		waits int
	}{
		{"the first", s, product(10, 0, false), 1},
		{"the same shape", s, product(10, 16, false), 0},
		{"another stream", other, product(10, 32, false), 0},
		{"another alignment", s, product(10, 2, false), 1},
		{"other rows", s, product(11, 0, false), 1},
		{"a bias, for which an algorithm is asked", s, product(10, 0, true), 2},
		{"the same again", other, product(10, 32, true), 0},
		{"a bias for which there is none: it is a product too, and what adds to it", s, product(13, 2, true), 3},
		{"the same again", s, product(13, 2, true), 0},
	} {
		c.calls()
		step.s.Launch(step.op)
		if err := step.s.Sync(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := strings.Count(c.calls(), "cuCtxSynchronize"); got != step.waits {
			t.Errorf("%s: waited %d times, want %d", step.name, got, step.waits)
		}
	}
	c.fail("cuCtxSynchronize", 700, 0)
	s.Launch(product(12, 0, false))
	if err := s.Sync(); err == nil || !strings.Contains(err.Error(), "cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)") {
		t.Error(err)
	}
	c.fail("", 0, 0)
}

func TestADriverWithoutCuBLASIsNoDevice(t *testing.T) {
	s, _ := testDriver(t)
	none := filepath.Join(t.TempDir(), "libcublas.so.12")
	if err := os.WriteFile(none, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	d, err := Open(Sources{Root: s.Root, Env: func(name string) string {
		return map[string]string{OverrideDriver: s.env(OverrideDriver), OverrideBLAS: none}[name]
	}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = New(d, Options{})
	if !errors.Is(err, ErrNoLibrary) || !strings.HasPrefix(err.Error(), "cuda: matrix products need cuBLAS: no library: ") ||
		!strings.Contains(err.Error(), "GOFSDP_LIBCUBLAS: "+none+": file too short; let it name the library's file, or unset it") {
		t.Error(err)
	}
}

func TestACuBLASThatLacksWhatIsCalledIsNamed(t *testing.T) {
	s, _ := testDriver(t)
	old := filepath.Join(t.TempDir(), "libcublas.so.12")
	library(t, old, "libraries/version.c", "-DPROPERTY=cublasGetProperty", "-DMAJOR=12")
	d, err := Open(Sources{Root: s.Root, Env: func(name string) string {
		return map[string]string{OverrideDriver: s.env(OverrideDriver), OverrideBLAS: old}[name]
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := "cuda: libcublas.so.12 (" + old + ", version 12.1.2) has no cublasCreate_v2, cublasDestroy_v2, cublasSetStream_v2, cublasSetWorkspace_v2, 12 more; one of CUDA 12 or 13 is needed: install NVIDIA's wheel of it (pip install nvidia-cublas-cu12), or let GOFSDP_LIBCUBLAS name its file"
	if _, err := New(d, Options{}); err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

// TestTheRealCuBLASAnswersWithoutADevice takes the one that GOFSDP_LIBCUBLAS names, or that of the peers that
// the bench compares with, where it is installed.
func TestTheRealCuBLASAnswersWithoutADevice(t *testing.T) {
	const venv = "../.venv/peers"
	if found, _ := filepath.Glob(venv + "/lib/python3*/site-packages/nvidia/cu13/lib/libcublas.so.13"); len(found) == 0 && os.Getenv(OverrideBLAS) == "" {
		t.Skip("there is none; make bench-peers or make e2e-image installs it")
	}
	s, c := testDriver(t)
	c.Version = 13000
	d, err := Open(Sources{Root: s.Root, Env: func(name string) string {
		return map[string]string{OverrideDriver: s.env(OverrideDriver), OverrideBLAS: os.Getenv(OverrideBLAS), "VIRTUAL_ENV": venv}[name]
	}})
	if err != nil || d.noBLAS != nil {
		t.Fatal(err, d.noBLAS)
	}
	dev, err := New(d, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	b := alloc(t, dev, 4*300, device.Local)
	queue := dev.NewStream("compute")
	queue.Launch(&device.MatMul{A: b.In(device.F32, 0, 100), B: b.In(device.F32, 400, 100), C: b.In(device.F32, 800, 100), M: 10, N: 10, K: 10})
	var e *Error
	if err := queue.Sync(); !errors.As(err, &e) || e.Call != "cublasCreate" || e.Name != "CUBLAS_STATUS_NOT_INITIALIZED" {
		t.Error(err)
	}
	// What describes a product needs no device: cuBLASLt takes all of it, up to the question that needs a handle.
	bias := &device.MatMul{A: b.In(device.F32, 0, 100), B: b.In(device.F32, 400, 100), Bias: b.In(device.F32, 0, 10), C: b.In(device.F32, 800, 100), M: 10, N: 10, K: 10}
	g := dev.(*gpu)
	err = g.Do(func() error {
		_, err := g.products(bias, queue.(*stream))
		return err
	})
	if !errors.As(err, &e) || e.Call != "cublasLtMatmulAlgoGetHeuristic" || e.Name != "CUBLAS_STATUS_NOT_INITIALIZED" {
		t.Error(err)
	}
}
