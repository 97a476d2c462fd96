package kernels

import (
	"slices"

	"github.com/gofsdp/gofsdp/device"
)

var embedBackwardKernels = slices.Concat(
	kernelsOf[embedBackwardArgs]("embed_backward", "embed_backward", embedBackwardThreads, 5),
	mixed[embedBackwardArgs]("embed_backward", "embed_backward", embedBackwardThreads, 5),
)

const embedBackwardThreads = 256

type embedBackwardArgs struct {
	dout, ids, dtable        uint64
	rows, dim, vocab, vector uint32
}

func embedBackward(o *device.EmbedBackward) ([]Launch, error) {
	kernel, err := namedMixed("embed_backward", o.DOut.Type, o.DTable.Type)
	if err != nil {
		return nil, err
	}
	vector, columns := alignedRows(o.Dim, o.DOut, o.DTable), embedBackwardThreads // of a block
	if vector == 1 {
		columns *= 16 / int(o.DTable.Type.Size())
	}
	l := line(kernel, cover(o.Rows, 1), embedBackwardThreads, pack(embedBackwardArgs{
		at(o.DOut), at(o.IDs), at(o.DTable), uint32(o.Rows), uint32(o.Dim), uint32(o.Vocab), vector,
	}))
	l.Grid[1] = cover(o.Dim, columns)
	return []Launch{l}, nil
}
