package train

import (
	"fmt"

	"github.com/gofsdp/gofsdp/fsdp"
)

// Settings are the training's part of the configuration.
type Settings struct {
	Steps      int    `yaml:"steps" default:"0" min:"0" help:"Optimizer steps; 0 means as many as the epochs hold."`
	Epochs     int    `yaml:"epochs" default:"1" min:"1" help:"Passes over the training text where steps is 0."`
	Batch      int    `yaml:"batch" default:"8" min:"1" help:"Sequences per optimizer step of the whole run."`
	MicroBatch int    `yaml:"micro_batch" default:"0" min:"0" help:"Sequences that a rank computes at once; divides batch. 0 takes as many as 2,048 tokens hold."`
	Precision  string `yaml:"precision" default:"f32" enum:"f32,bf16" help:"What weights and activations compute in. Master weights, moments and gradients are always f32."`
	Recompute  string `yaml:"recompute" default:"none" enum:"none,selective,block" help:"Activations that are computed again in the backward to save memory: none; those of norms and SwiGLU; all of a block. The numbers stay the same."`
	HeadRows   int    `yaml:"head_rows" default:"0" min:"0" help:"Tokens whose logits exist at once; 0 takes as many as 128 MiB hold."`

	LR         float64 `yaml:"lr" default:"3e-4" min:"0" help:"Highest learning rate."`
	MinLR      float64 `yaml:"min_lr" default:"0" min:"0" help:"Learning rate at the schedule's end."`
	Schedule   string  `yaml:"schedule" default:"cosine" enum:"cosine,linear,constant,wsd" help:"What follows the warm-up: cosine or linear decay to min_lr, constant, or wsd (constant, then linear decay over the last decay_steps)."`
	Warmup     int     `yaml:"warmup" default:"0" min:"0" help:"Steps of linear warm-up."`
	DecaySteps int     `yaml:"decay_steps" default:"0" min:"0" help:"Steps of the final decay of wsd; 0 means a fifth of all."`
	Clip       float64 `yaml:"clip" default:"1" min:"0" help:"Greatest norm of the whole gradient; larger ones are scaled down to it. 0 means none."`

	Optimizer fsdp.Optimizer `yaml:"optimizer" help:"AdamW."`

	Weights   string `yaml:"weights" default:"auto" enum:"auto,load,fresh" help:"What to begin with: the model's weights, or fresh ones from the seed; auto takes the model's where it has some."`
	Seed      int64  `yaml:"seed" default:"0" help:"Decides fresh weights, stochastic rounding and what is sampled."`
	EvalEvery int    `yaml:"eval_every" default:"0" min:"0" help:"Steps between evaluations on held-out text; 0 evaluates at the end only. The last one always takes all held-out text."`
	EvalPacks int    `yaml:"eval_packs" default:"32" min:"0" help:"Held-out sequences of an evaluation within the run; 0 means all."`

	Export   string `yaml:"export" default:"f32" enum:"f32,bf16" help:"Type of the weights that the run writes at its end."`
	Baseline string `yaml:"baseline" default:"show" enum:"none,show,beat" help:"Compare at the end with a model of each byte given the two before it, counted on the training text: not at all, show its bits per byte, or fail where it is not beaten."`

	Sample Sample `yaml:"sample" help:"What the model continues at the end, to be looked at."`
}

// Sample says what is generated at the end of a run.
type Sample struct {
	Prompts     []string `yaml:"prompts" default:"[]" help:"Beginnings of text to continue; none means no samples."`
	Tokens      int      `yaml:"tokens" default:"96" min:"1" help:"Most tokens of a continuation."`
	Temperature float64  `yaml:"temperature" default:"0.8" min:"0" help:"0 always takes the likeliest token."`
	TopP        float64  `yaml:"top_p" default:"0.95" min:"0" max:"1" help:"Draw from the likeliest tokens that together have this probability."`
}

// Check returns what is wrong with values that are right by themselves. Each
// error begins with its key.
func (s Settings) Check() []error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if s.MicroBatch > 0 && s.Batch%s.MicroBatch != 0 {
		bad("train.micro_batch: %d does not divide train.batch (%d)", s.MicroBatch, s.Batch)
	}
	if s.Steps > 0 && s.Warmup > s.Steps {
		bad("train.warmup: %d steps of warm-up in a run of %d (train.steps)", s.Warmup, s.Steps)
	}
	if s.MinLR > s.LR {
		bad("train.min_lr: %g is above train.lr (%g)", s.MinLR, s.LR)
	}
	if s.DecaySteps > 0 && s.Steps > 0 && s.Warmup+s.DecaySteps > s.Steps {
		bad("train.decay_steps: warm-up (%d) and decay (%d) together are longer than the run (train.steps: %d)", s.Warmup, s.DecaySteps, s.Steps)
	}
	// As the device has them, in fp32.
	if float32(s.Optimizer.Beta1) >= 1 {
		bad("train.optimizer.beta1: %g is not below 1", s.Optimizer.Beta1)
	}
	if float32(s.Optimizer.Beta2) >= 1 {
		bad("train.optimizer.beta2: %g is not below 1", s.Optimizer.Beta2)
	}
	if float32(s.Optimizer.Eps) <= 0 {
		bad("train.optimizer.eps: with %g, a weight that has had no gradient yet becomes 0/0", s.Optimizer.Eps)
	}
	if s.Optimizer.Stochastic && s.Precision != "bf16" {
		bad("train.optimizer.stochastic_rounding: rounds the bf16 copy of the weights, which train.precision %s does not have", s.Precision)
	}
	return errs
}

// autoRows is the tokens of a micro-batch where the user does not say: enough
// that packing the weights of a product costs little.
const autoRows = 2048

// Micro returns the sequences of a micro-batch: the setting, or the largest
// divisor of Batch whose tokens stay within autoRows.
func (s Settings) Micro(seqLen int) int {
	if s.MicroBatch > 0 {
		return s.MicroBatch
	}
	n := min(max(autoRows/seqLen, 1), s.Batch)
	for s.Batch%n != 0 {
		n--
	}
	return n
}
