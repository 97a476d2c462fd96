package kernels

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/device"
)

// attentionKernels are bound by the tensor cores in bf16, or by what shared
// memory can bring them, which 8 warps keep busy: two blocks of 4 that have 32
// rows each, or one of 8 where registers only allow 16.
var attentionKernels = func() (list []Kernel) {
	for _, size := range []int{64, 128} {
		stages := 2 * 2 * tileBytes(size) // two, of two tiles
		threads, blocks := attentionThreads(size), 128/size
		list = append(list,
			attentionKernel[attentionArgs]("attention", size, threads, blocks, stages),
			attentionKernel[attentionBackwardArgs]("attention_backward_d", size, 256, 6, 0),
			attentionKernel[attentionBackwardArgs]("attention_backward_q", size, threads, blocks, stages),
			attentionKernel[attentionBackwardArgs]("attention_backward_kv", size, threads, blocks, backwardKVShared(size)),
		)
		for _, k := range list[len(list)-4:] { // of fp32 no speed is asked
			k.Name = k.Name[:len(k.Name)-len("bf16")] + "f32"
			k.Module, k.Threads, k.Blocks, k.Shared = "attention_f32", 128, 4, 0
			list = append(list, k)
		}
		list = append(list, attentionKernel[attentionBackwardArgs]("attention_backward_sum", size, 256, 6, 0))
	}
	return list
}()

func attentionKernel[A any](name string, headSize, threads, blocks, shared int) Kernel {
	module := "attention"
	if strings.HasPrefix(name, "attention_backward") {
		module = "attention_backward"
	}
	k := kernelsOf[A](module, fmt.Sprintf("%s_h%d", name, headSize), threads, blocks)[1]
	k.Shared = shared
	return k
}

// As in attention.cuh.
const (
	attentionRows = 128 // queries of a block that goes over keys
	attentionTile = 64  // rows of a tile that passes, and keys of a block that goes over queries
)

// attentionThreads returns those of a block: warps of 32 rows for heads of 64 numbers, of 16 for heads of 128.
func attentionThreads(headSize int) int { return attentionRows / (16 * 128 / headSize) * 32 }

func tileBytes(headSize int) int { return attentionTile * headSize * 2 }

// backwardKVShared is six tiles and two numbers of each query of two of them.
func backwardKVShared(headSize int) int { return 6*tileBytes(headSize) + 2*2*4*attentionTile }

type attentionArgs struct {
	q, k, v, start, out, lse uint64
	rows                     int64
	seqLen, heads, kvHeads   int32
	scale                    float32
}

type attentionBackwardArgs struct {
	q, k, v, start, out, lse, dout, d, sums, dq, dk, dv uint64
	rows                                                int64
	seqLen, heads, kvHeads, parts, per                  int32
	scale                                               float32
}

// attentionName returns the entry point of a kernel of attention. It refuses
// what the kernels of all three operations cannot do, all of it at once.
func attentionName(kernel string, headSize int, scale float32, typ device.DType, aligned uint32) (string, error) {
	name, err := named(fmt.Sprintf("%s_h%d", kernel, headSize), typ)
	if headSize != 64 && headSize != 128 {
		err = errors.Join(err, fmt.Errorf("heads of %d numbers: there are kernels for 64 and 128", headSize))
	}
	if !(scale > 0) { // the greatest score is looked for before it is scaled
		err = errors.Join(err, fmt.Errorf("scores scaled by %v: the kernels need a positive scale", scale))
	}
	if aligned == 0 {
		err = errors.Join(err, errors.New("operands that are not aligned to 16 bytes: lay them out at multiples of it"))
	}
	return name, err
}

// attentionLaunch returns the launch of a kernel whose blocks have a head each,
// of so many, and so many rows of a sequence; in fp32 a warp has one row of one head.
func attentionLaunch(kernel string, typ device.DType, heads, seqs, seqLen, headSize, rows, shared int, args []byte) Launch {
	if typ == device.F32 {
		return line(kernel, cover(seqs*seqLen*heads, 4), 128, args)
	}
	l := line(kernel, uint32(heads), uint32(attentionThreads(headSize)), args)
	l.Grid[1], l.Grid[2], l.Shared = cover(seqs, 1), cover(seqLen, rows), uint32(shared)
	return l
}

func attention(o *device.Attention) ([]Launch, error) {
	typ := o.Q.Type
	kernel, err := attentionName("attention", o.HeadSize, o.Scale, typ, aligned(o.Q, o.K, o.V, o.Out))
	if err != nil {
		return nil, err
	}
	return []Launch{attentionLaunch(kernel, typ, o.Heads, o.Seqs, o.SeqLen, o.HeadSize, attentionRows, 4*tileBytes(o.HeadSize), pack(attentionArgs{
		at(o.Q), at(o.K), at(o.V), at(o.Start), at(o.Out), at(o.LSE),
		int64(o.Seqs) * int64(o.SeqLen), int32(o.SeqLen), int32(o.Heads), int32(o.KVHeads), o.Scale,
	}))}, nil
}

func attentionBackward(o *device.AttentionBackward) ([]Launch, error) {
	typ := o.Q.Type
	all := aligned(o.Q, o.K, o.V, o.Out, o.DOut, o.Parts, o.DQ, o.DK, o.DV)
	if _, err := attentionName("attention_backward", o.HeadSize, o.Scale, typ, all); err != nil {
		return nil, err
	}
	if err := countHeads(o.Seqs*o.SeqLen, o.Heads, o.KVHeads); err != nil {
		return nil, err
	}
	rows, parts := o.Seqs*o.SeqLen, device.AttentionParts(typ, o.Seqs, o.SeqLen, o.Heads, o.KVHeads)
	args := pack(attentionBackwardArgs{
		at(o.Q), at(o.K), at(o.V), at(o.Start), at(o.Out), at(o.LSE), at(o.DOut), at(o.D), at(o.Parts), at(o.DQ), at(o.DK), at(o.DV),
		int64(rows), int32(o.SeqLen), int32(o.Heads), int32(o.KVHeads), int32(parts), int32(cover(o.Heads/o.KVHeads, parts)), o.Scale,
	})
	name := func(part string) string {
		return fmt.Sprintf("attention_backward_%s_h%d_%s", part, o.HeadSize, typ)
	}
	d := attentionLaunch(name("d"), device.F32, o.Heads, o.Seqs, o.SeqLen, 0, 0, 0, args)
	if typ == device.BF16 { // of HeadSize/8 lanes a row and head
		d = line(name("d"), cover(rows*o.Heads, 256*8/o.HeadSize), 256, args)
	}
	launches := []Launch{
		d,
		attentionLaunch(name("kv"), typ, o.KVHeads*parts, o.Seqs, o.SeqLen, o.HeadSize, attentionTile, backwardKVShared(o.HeadSize), args),
		attentionLaunch(name("q"), typ, o.Heads, o.Seqs, o.SeqLen, o.HeadSize, attentionRows, 4*tileBytes(o.HeadSize), args),
	}
	if parts > 1 {
		sum := line(name("sum"), cover(rows*o.KVHeads*o.HeadSize, 256*4), 256, args)
		sum.Grid[1] = 2 // DK, DV
		launches = append(launches, sum)
	}
	return launches, nil
}
