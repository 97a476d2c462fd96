package gpucheck

import (
	"time"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/train"
)

// Sizes say how much work the parts do. The sizes of a real check are Full's.
type Sizes struct {
	Models []Shape // whose shapes are measured
	Layers int     // of a model, where only its operations' shapes matter

	Kernels time.Duration // how long random cases are run; at least once

	Copy      int64         // bytes of a copy that no cache holds
	Edge      int           // rows, columns and depth of a large product
	Reading   time.Duration // of a limit
	Sustained time.Duration // of the yardstick

	GraphOps int // operations of a list

	Collectives []int64 // bytes of the whole tensors

	Engine      Shape // the small model that is trained on GPU and CPU
	EngineSteps int

	Rounds, Warm, Timed int // of training: runs of a side, steps of a run that do not count and that do
}

// Shape is a model and the work of a step.
type Shape struct {
	Name      string // in parts' names
	Model     string // a name that model.Resolve knows
	Length    int    // tokens of a sequence
	Sequences []int  // of a step; the first number that fits is taken
}

// Full is the check of a real machine.
func Full() Sizes {
	many := []int{16, 8, 4, 2, 1}
	return Sizes{
		Models: []Shape{
			{"0.5b", "qwen2.5-0.5b", 1024, many},
			{"1.5b", "qwen2.5-1.5b", 1024, many},
		},
		Layers: 2, Kernels: 30 * time.Second,
		Copy: 1 << 30, Edge: 8192, Reading: 200 * time.Millisecond, Sustained: time.Minute,
		GraphOps:    200,
		Collectives: []int64{64 << 10, 1 << 20, 16 << 20, 256 << 20},
		Engine:      Shape{"tiny", "tiny", 128, []int{4}}, EngineSteps: 10,
		Rounds: 2, Warm: 2, Timed: 8,
	}
}

// Short is little work of small models, to show that all runs where time means nothing, as on the simulator.
func Short() Sizes {
	return Sizes{
		Models: []Shape{{"tiny", "tiny", 24, []int{1}}},
		Layers: 1, Copy: 64 << 10, Edge: 64, Reading: time.Millisecond, Sustained: 20 * time.Millisecond,
		GraphOps: 5, Collectives: []int64{4 << 10, 40 << 10},
		Engine: Shape{"tiny", "tiny", 24, []int{2}}, EngineSteps: 3,
		Rounds: 2, Warm: 1, Timed: 2,
	}
}

// mostOfMemory is the part of a GPU that a plan takes here at most. The rest is for what else there is, and for
// PyTorch, which needs more.
const mostOfMemory = 0.6

// options are those of a plan that trains on one rank in bf16.
func (s Shape) options(c model.Config, sequences int) fsdp.Options {
	return fsdp.Options{
		Model: c, Type: device.BF16, Train: true, Seqs: sequences, SeqLen: s.Length, MicroBatches: 1,
		Recompute: fsdp.RecomputeNone, Optimizer: adamW,
	}
}

// adamW is an optimizer as runs have it.
var adamW = fsdp.Optimizer{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}

// fit returns how many sequences a step has on a GPU of so much memory, and the plan.
func (s Shape) fit(memory int64) (sequences int, plan *fsdp.Plan, err error) {
	src, err := model.Resolve(s.Model)
	if err != nil {
		return 0, nil, err
	}
	var own int64
	for _, sequences = range s.Sequences {
		if plan, err = fsdp.NewPlan(s.options(src.Config, sequences)); err != nil {
			return 0, nil, err
		}
		if own, _ = plan.Apart(); float64(own) <= mostOfMemory*float64(memory) {
			return sequences, plan, nil
		}
	}
	return 0, nil, lacks("training %s with %s takes %s, and the GPU has %s, of which %.0f %% are used here at most",
		s.Model, train.Number(sequences, "sequence"), train.Bytes(own), train.Bytes(memory), 100*mostOfMemory)
}

// densePeak returns the bf16 FLOP/s without sparsity that NVIDIA's data sheets give for a GPU of that name;
// 0 where none is known here. Names are those of nvidia-smi.
func densePeak(name string) float64 {
	return densePeaks[name] * 1e12
}

// densePeaks are TFLOP/s: half of what the sheets print with sparsity.
var densePeaks = map[string]float64{
	"NVIDIA L4":             121,
	"NVIDIA L40S":           362,
	"NVIDIA A10G":           70,
	"NVIDIA A100-SXM4-40GB": 312, "NVIDIA A100-SXM4-80GB": 312, "NVIDIA A100-PCIE-40GB": 312, "NVIDIA A100 80GB PCIe": 312,
	"NVIDIA H100 80GB HBM3": 989, "NVIDIA H100 PCIe": 756, "NVIDIA H100 NVL": 835,
	"NVIDIA H200": 989, "NVIDIA H200 NVL": 835,
}
