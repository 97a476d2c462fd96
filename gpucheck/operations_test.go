package gpucheck_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/gpucheck"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// openGPU opens the GPU that cases run on.
var openGPU = func() (device.Device, error) {
	ordinal, err := strconv.Atoi(os.Getenv(gpucheck.OrdinalVariable))
	if err != nil {
		return nil, err
	}
	driver, err := cuda.Open(cuda.Sources{})
	if err != nil {
		return nil, err
	}
	return cuda.New(driver, cuda.Options{Ordinal: ordinal})
}

// mostRounds is far more than it takes until each operation is of a head size that has a kernel.
const mostRounds = 1000

// tamper changes what came of an operation: a test of this test does.
var tamper = func(got, want device.Op, bounds optest.Bounds) {}

// TestEveryOperationIsItsReference is the part kernels, as its process. It writes what came of each case for
// that part to read.
func TestEveryOperationIsItsReference(t *testing.T) {
	path := os.Getenv(gpucheck.CasesVariable)
	if path == "" {
		t.Skipf("gofsdp gpu-check runs it, with %s", gpucheck.CasesVariable)
	}
	during, err := time.ParseDuration(os.Getenv(gpucheck.ForVariable))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	d, err := openGPU()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	rng, out, began := optest.Rand(t), json.NewEncoder(f), time.Now()
	s := d.NewStream("compute")
	ran := map[string]bool{} // by operation and type
	for round := 0; !t.Failed() && round < mostRounds && (len(ran) < 2*len(device.Ops()) || time.Since(began) < during); round++ {
		for _, typ := range []device.DType{device.F32, device.BF16} {
			t.Run(fmt.Sprintf("%d/%v", round, typ), func(t *testing.T) {
				for _, c := range optest.Cases(t, rng, typ) {
					key := fmt.Sprintf("%s %v", device.Name(c.Op), typ)
					if round > 0 && ran[key] && time.Since(began) >= during {
						continue // what is left is those that have been refused so far
					}
					t.Run(c.Name, func(t *testing.T) {
						r := gpucheck.CaseResult{Operation: device.Name(c.Op), Type: typ.String(), Case: c.Name}
						refused, wrong := compare(t, d, s, rng, c.Op)
						if refused != nil {
							r.Refused = refused.Error()
						} else {
							ran[key] = true
						}
						if wrong != nil {
							r.Wrong = wrong.Error()
							t.Error(wrong)
						}
						if err := out.Encode(r); err != nil {
							t.Error(err)
						}
					})
				}
			})
		}
	}
}

// compare runs an operation on the device and by its reference.
func compare(t *testing.T, d device.Device, s device.Stream, rng *rand.Rand, op device.Op) (refused, wrong error) {
	memory := optest.NewMemory(t, rng)
	want := memory.Clone(op)
	bounds := memory.Bounds(want)
	want.Reference()
	got := memory.Clone(op)
	there := device.Clone(got)
	var moved []pair
	defer func() {
		for _, p := range moved {
			wrong = errors.Join(wrong, d.Free(p.staged), d.Free(p.local))
		}
	}()
	for _, o := range device.Operands(there) {
		p, err := find(d, off(op, rng, *o.T), &moved, *o.T)
		if err != nil {
			return nil, err
		}
		o.T.Addr = p.there.Addr
	}
	for _, p := range moved {
		copy(p.staged.Host, optest.Bytes(p.host))
		s.Launch(&device.Copy{Src: p.back(), Dst: p.there, N: int(p.host.Len)})
	}
	s.Launch(there)
	if err := s.Sync(); err != nil {
		name := device.Name(op)
		if name != "MatMul" && strings.HasPrefix(err.Error(), "stream compute: cuda: "+name+": ") {
			return err, nil
		}
		return nil, err
	}
	for _, p := range moved {
		s.Launch(&device.Copy{Src: p.there, Dst: p.back(), N: int(p.host.Len)})
	}
	if err := s.Sync(); err != nil {
		return nil, err
	}
	for _, p := range moved {
		copy(optest.Bytes(p.host), p.staged.Host)
	}
	tamper(got, want, bounds)
	return nil, optest.Compare(got, want, bounds)
}

// pair is a tensor of the host's and its place on the device.
type pair struct {
	host, there   device.Tensor
	local, staged device.Buffer
}

// back is where it passes between both.
func (p pair) back() device.Tensor { return p.staged.In(p.host.Type, 0, p.host.Len) }

// off is how far an operand lies from where memory begins: some are aligned to their elements alone. Attention's
// kernels take none of these, and a real model gives cuBLAS none: an address that it could not take would end the device for
// all that comes after.
func off(op device.Op, rng *rand.Rand, t device.Tensor) int64 {
	if name := device.Name(op); strings.HasPrefix(name, "Attention") || name == "MatMul" {
		return 0
	}
	return t.Type.Size() * int64(rng.IntN(2))
}

// find returns the pair of a tensor: operands that are one stay one.
func find(d device.Device, off int64, moved *[]pair, host device.Tensor) (p pair, err error) {
	for _, p := range *moved {
		if p.host.Addr == host.Addr {
			return p, nil
		}
	}
	p.host = host
	size := max(1, host.Bytes())
	if p.local, err = d.Alloc(size+off, device.Local); err != nil {
		return p, err
	}
	if p.staged, err = d.Alloc(size, device.Pinned); err != nil {
		return p, errors.Join(err, d.Free(p.local))
	}
	p.there = p.local.In(host.Type, off, host.Len)
	*moved = append(*moved, p)
	return p, nil
}
