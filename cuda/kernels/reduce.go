package kernels

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/gofsdp/gofsdp/device"
)

var reduceKernels = slices.Concat(
	kernelsOf[reduceSumArgs]("reduce", "reduce_sum", 256, 6),
	mixed[reduceSumArgs]("reduce", "reduce_sum", 256, 6),
	kernelsOf[sumSquaresArgs]("reduce", "sum_squares", 128, 6),
	[]Kernel{{Name: "sum_squares_end", Module: "reduce", Args: reflect.TypeFor[sumSquaresArgs](), Threads: 32, Blocks: 1}},
	kernelsOf[checkFiniteArgs]("reduce", "check_finite", 256, 6),
	[]Kernel{{Name: "check_finite_begin", Module: "reduce", Args: reflect.TypeFor[checkFiniteArgs](), Threads: 1, Blocks: 1}},
)

// mixed returns the kernel of a family that reads bf16 and writes fp32.
func mixed[A any](module, name string, threads, blocks int) []Kernel {
	return []Kernel{{Name: name + "_bf16_f32", Module: module, Args: reflect.TypeFor[A](), Threads: threads, Blocks: blocks}}
}

// namedMixed returns the entry point of a kernel that reads one type and may
// write fp32 where that is bf16.
func namedMixed(kernel string, from, to device.DType) (string, error) {
	name, err := named(kernel, from)
	if err == nil && to != from {
		name += "_" + to.String()
	}
	return name, err
}

type reduceSumArgs struct {
	srcs          [64]uint64
	dst           uint64
	n             int64
	count, vector uint32
}

type sumSquaresArgs struct {
	x, parts, out uint64
	n             int64
	vector        uint32
}

type checkFiniteArgs struct {
	x, flag uint64
	n       int64
	vector  uint32
}

func reduceSum(o *device.ReduceSum) ([]Launch, error) {
	kernel, err := namedMixed("reduce_sum", o.Srcs[0].Type, o.Dst.Type)
	if err != nil {
		return nil, err
	}
	args := reduceSumArgs{dst: at(o.Dst), n: int64(o.N), count: uint32(len(o.Srcs)), vector: aligned(o.Srcs...) & aligned(o.Dst)}
	if len(o.Srcs) > len(args.srcs) {
		return nil, fmt.Errorf("%d sources: its kernel adds up to %d", len(o.Srcs), len(args.srcs))
	}
	for i, s := range o.Srcs {
		args.srcs[i] = at(s)
	}
	return []Launch{line(kernel, packs(o.N, o.Dst.Type), 256, pack(args))}, nil
}

func sumSquares(o *device.SumSquares) ([]Launch, error) {
	kernel, err := named("sum_squares", o.X.Type)
	if err != nil {
		return nil, err
	}
	// A norm block is 16 partial sums', of which a thread has as many as elements in 16 bytes.
	threads := device.NormBlocks(o.N) * int(o.X.Type.Size())
	args := pack(sumSquaresArgs{at(o.X), at(o.Parts), at(o.Out), int64(o.N), aligned(o.X)})
	return []Launch{line(kernel, cover(threads, 128), 128, args), line("sum_squares_end", 1, 32, args)}, nil
}

func checkFinite(o *device.CheckFinite) ([]Launch, error) {
	kernel, err := named("check_finite", o.X.Type)
	if err != nil {
		return nil, err
	}
	args := pack(checkFiniteArgs{at(o.X), at(o.Flag), int64(o.N), aligned(o.X)})
	return []Launch{line("check_finite_begin", 1, 1, args), line(kernel, packs(o.N, o.X.Type), 256, args)}, nil
}
