package kernels

import "github.com/gofsdp/gofsdp/device"

var headLossKernels = kernelsOf[headLossArgs]("headloss", "head_loss", headLossThreads, 2)

const headLossThreads = 512 // of a row's block

type headLossArgs struct {
	logits, targets, scale, loss uint64
	vocab, vector, backward      uint32
}

func headLoss(o *device.HeadLoss) ([]Launch, error) {
	kernel, err := named("head_loss", o.Logits.Type)
	if err != nil {
		return nil, err
	}
	return []Launch{line(kernel, cover(o.Rows, 1), headLossThreads, pack(headLossArgs{
		at(o.Logits), at(o.Targets), at(o.Scale), at(o.Loss),
		uint32(o.Vocab), alignedRows(o.Vocab, o.Logits), flag(o.Backward),
	}))}, nil
}

// alignedRows says, as a kernel's argument, whether rows of width elements
// consist of packs of 16 bytes; of the first tensor's type, in all tensors.
func alignedRows(width int, ts ...device.Tensor) uint32 {
	return aligned(ts...) & flag(int64(width)*ts[0].Type.Size()%16 == 0)
}
