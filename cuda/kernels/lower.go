package kernels

import (
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/device"
)

// Lower returns the launches that compute op, in order, on one stream. The
// operands' addresses are read now. Op must pass its Check. An error names the
// operation and what of it no kernel can do.
func Lower(op device.Op) ([]Launch, error) {
	launches, err := lower(op)
	for _, l := range launches {
		if l.Grid[0] > maxGrid || l.Grid[1] > 65535 || l.Grid[2] > 65535 {
			err = errors.Join(err, fmt.Errorf("%s in %d × %d × %d blocks is larger than a grid may be; make the micro-batch smaller",
				l.Kernel, l.Grid[0], l.Grid[1], l.Grid[2]))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cuda: %s: %w", device.Name(op), err)
	}
	return launches, nil
}

func lower(op device.Op) ([]Launch, error) {
	switch o := op.(type) {
	case *device.Attention:
		return attention(o)
	case *device.AttentionBackward:
		return attentionBackward(o)
	case *device.AttentionDecode:
		return attentionDecode(o)
	case *device.SwiGLU:
		return swiGLU(o)
	case *device.SwiGLUBackward:
		return swiGLUBackward(o)
	case *device.AddRMSNorm:
		return addRMSNorm(o)
	case *device.AddRMSNormBackward:
		return addRMSNormBackward(o)
	case *device.QKNormRoPE:
		return qkNormRoPE(o)
	case *device.QKNormRoPEBackward:
		return qkNormRoPEBackward(o)
	case *device.Cast:
		return cast(o)
	case *device.Copy:
		return copyBits(o.Src, o.Dst, o.N)
	case *device.Fill:
		return fill(o)
	case *device.Embed:
		return embedRows(o)
	case *device.BiasBackward:
		return biasBackward(o)
	case *device.EmbedBackward:
		return embedBackward(o)
	case *device.HeadLoss:
		return headLoss(o)
	case *device.ReduceSum:
		return reduceSum(o)
	case *device.SumSquares:
		return sumSquares(o)
	case *device.CheckFinite:
		return checkFinite(o)
	case *device.AdamW:
		return adamW(o)
	case *device.MatMul:
		return nil, errors.New("it has no kernel here: matrix products are cuBLAS's")
	}
	return nil, errors.New("it has no kernel")
}

// named returns the entry point of a kernel for operands of typ.
func named(kernel string, typ device.DType) (string, error) {
	if typ != device.F32 && typ != device.BF16 {
		return "", fmt.Errorf("operands of %s: there are kernels for %s and %s", typ, device.F32, device.BF16)
	}
	return kernel + "_" + typ.String(), nil
}
