package kernels

import "github.com/gofsdp/gofsdp/device"

// Five blocks of 256 threads, each thread with 56 bytes or more under way, are enough
// for the memory's latency; a sixth would cost spills.
var adamWKernels = kernelsOf[adamWArgs]("adamw", "adam_w", 256, 5)

type adamWArgs struct {
	param, m, v, grad, hyper, copy                        uint64
	seed                                                  uint64
	index, n                                              int64
	oneMinusBeta1, beta2, oneMinusBeta2, eps, weightDecay float32
	stochastic, vector                                    uint32
}

func adamW(o *device.AdamW) ([]Launch, error) {
	if _, err := named("adam_w", o.Param.Type); err != nil {
		return nil, err
	}
	kernel, err := named("adam_w", o.Grad.Type)
	if err != nil {
		return nil, err
	}
	return []Launch{line(kernel, cover(o.N, 256*4), 256, pack(adamWArgs{
		param: at(o.Param), m: at(o.M), v: at(o.V), grad: at(o.Grad), hyper: at(o.Hyper), copy: at(o.Copy),
		seed: o.Seed, index: o.Index, n: int64(o.N),
		// A difference to 1 is rounded once, from the beta that was asked for.
		oneMinusBeta1: float32(1 - float64(o.Beta1)), beta2: o.Beta2, oneMinusBeta2: float32(1 - float64(o.Beta2)),
		eps: o.Eps, weightDecay: o.WeightDecay,
		stochastic: flag(o.Stochastic), vector: aligned(o.Param, o.M, o.V, o.Grad, o.Copy),
	}))}, nil
}
