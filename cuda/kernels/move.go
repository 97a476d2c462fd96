package kernels

import (
	"fmt"
	"math"
	"slices"

	"github.com/gofsdp/gofsdp/device"
)

// Bound by memory: they want as many threads as a multiprocessor has.
var moveKernels = slices.Concat(
	kernelsOf[castArgs]("move", "cast", 256, 6), // by the type of Dst
	kernelsOf[copyArgs]("move", "copy", 256, 6), // by the elements' size
	kernelsOf[fillArgs]("move", "fill", 256, 6),
	kernelsOf[embedArgs]("move", "embed", 256, 6),
)

type castArgs struct {
	src, dst uint64
	n        int64
	vector   uint32
}

type copyArgs struct {
	src, dst uint64
	n        int64
	vector   uint32
}

type fillArgs struct {
	dst    uint64
	n      int64
	bits   uint32
	vector uint32
}

type embedArgs struct {
	table, ids, out uint64
	rows, dim       int64
	vocab           int32
	vector          uint32
}

func cast(o *device.Cast) ([]Launch, error) {
	if o.Src.Type == o.Dst.Type {
		return copyBits(o.Src, o.Dst, o.N)
	}
	if _, err := named("cast", o.Src.Type); err != nil {
		return nil, err
	}
	kernel, err := named("cast", o.Dst.Type)
	if err != nil {
		return nil, err
	}
	return []Launch{line(kernel, packs(o.N, device.F32), 256, pack(castArgs{
		at(o.Src), at(o.Dst), int64(o.N), aligned(o.Src, o.Dst),
	}))}, nil
}

// copyBits copies n elements of one type.
func copyBits(src, dst device.Tensor, n int) ([]Launch, error) {
	kernel, typ := "copy_f32", device.F32
	switch src.Type {
	case device.BF16:
		kernel, typ = "copy_bf16", device.BF16
	case device.F64:
		n *= 2
	}
	return []Launch{line(kernel, packs(n, typ), 256, pack(copyArgs{at(src), at(dst), int64(n), aligned(src, dst)}))}, nil
}

func fill(o *device.Fill) ([]Launch, error) {
	kernel, bits, typ := "fill_f32", math.Float32bits(o.Value), device.F32
	switch o.Dst.Type {
	case device.F32:
	case device.BF16:
		kernel, bits, typ = "fill_bf16", uint32(device.ToBF16(o.Value)), device.BF16
	case device.I32:
		bits = uint32(int32(o.Value))
	default:
		return nil, fmt.Errorf("elements of %s: there are kernels for f32, bf16 and i32", o.Dst.Type)
	}
	return []Launch{line(kernel, packs(o.N, typ), 256, pack(fillArgs{at(o.Dst), int64(o.N), bits, aligned(o.Dst)}))}, nil
}

func embedRows(o *device.Embed) ([]Launch, error) {
	kernel, err := named("embed", o.Table.Type)
	if err != nil {
		return nil, err
	}
	vector := aligned(o.Table, o.Out) & wholePacks(o.Dim, o.Table.Type)
	return []Launch{line(kernel, cover(o.Rows, 8), 256, pack(embedArgs{
		at(o.Table), at(o.IDs), at(o.Out), int64(o.Rows), int64(o.Dim), int32(o.Vocab), vector,
	}))}, nil
}
