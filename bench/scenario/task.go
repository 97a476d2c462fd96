package scenario

// TaskFormat is the format of tasks and samples.
const TaskFormat = 1

// Task is the file that tells a side its work, as JSON. All sides of a scenario
// get the same one, but for Out.
type Task struct {
	Format int  `json:"format"`
	Work   Work `json:"work"`

	// Of training steps:
	//
	// Start is a Hugging Face directory with config.json and fp32 weights, which
	// all sides train from.
	Start string `json:"start,omitempty"`
	// Tokens is a file of int32, little-endian, rows of Work.Length+1: inputs are
	// all but the last token of a row, targets all but the first. Every row is one
	// document and every target counts. Rows are in the order step, micro-batch,
	// rank, sequence; where they are used up, they are used again from the first.
	// A case with other numbers of ranks or micro-batches takes rows in the same
	// order.
	Tokens    string    `json:"tokens,omitempty"`
	Optimizer Optimizer `json:"optimizer,omitzero"`

	// Out is the file that the side writes its Sample to, whole or not at all.
	Out string `json:"out"`
}

// Optimizer is AdamW as PyTorch's, with the gradient's norm clipped. Norms and
// biases do not decay.
type Optimizer struct {
	LR          float64 `json:"lr"` // of every step
	Beta1       float64 `json:"beta1"`
	Beta2       float64 `json:"beta2"`
	Eps         float64 `json:"eps"`
	WeightDecay float64 `json:"weight_decay"`
	Clip        float64 `json:"clip"`
}

// Sample is what one run of a side measured.
type Sample struct {
	Format   int               `json:"format"`
	Versions map[string]string `json:"versions"` // of what it is made of: "gofsdp", "torch", "python"
	Cases    []Case            `json:"cases"`
}

// Case is what was measured of one case, once for each timed step or repetition.
// What ranks do together lasts until the slowest of them is done.
type Case struct {
	Name    string    `json:"name"` // of StepCase; of a collective "all-gather 4 MB"; of an operation its name; of a start-up "first step"
	Seconds []float64 `json:"seconds"`
	// Limit is the least seconds that each of Seconds could have been at the
	// machine's limits at that time; empty where the side does not know them.
	Limit []float64 `json:"limit_seconds,omitempty"`
	// Tokens is what one of Seconds is for, over all ranks, and FLOPs their
	// model's (gofsdp's DESIGN.md, Numbers); 0 where it is no training.
	Tokens int64   `json:"tokens,omitempty"`
	FLOPs  float64 `json:"flops,omitempty"` // 0: the runner counts them from the model
	// Losses are means over the step's targets, also those of the steps that are
	// not timed.
	Losses []float64 `json:"losses,omitempty"`
	// Peak is the greatest resident memory of each rank's process from the end of
	// the first step to the last, in bytes: VmHWM after a reset through
	// /proc/self/clear_refs; on a GPU what the allocator has reserved.
	Peak []int64 `json:"peak_bytes,omitempty"`
}
