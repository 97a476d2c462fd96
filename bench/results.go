package bench

import (
	"encoding/json"
	"time"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/record"
)

// Format is the format of the results that this package writes.
const Format = 2

// Results is everything that one command measured. Times are in seconds, rates
// in FLOP/s, bytes/s and tokens/s, shares and parts from 0 to 1.
type Results struct {
	Format int          `json:"format"`
	Time   time.Time    `json:"time"`
	Host   record.Host  `json:"host"`
	Build  record.Build `json:"build"`
	Device Device       `json:"device"`
	Short  bool         `json:"short"` // few repetitions of little work: not to be judged by

	// What was measured; the rest is absent.
	Machine     []Machine       `json:"machine,omitempty"`
	Workloads   []Workload      `json:"workloads,omitempty"`
	Collectives []Collective    `json:"collectives,omitempty"`
	Ranks       *RankedWorkload `json:"ranks,omitempty"`
}

// NewResults returns results of now and here, with nothing measured yet.
func NewResults(short bool) *Results {
	return &Results{Format: Format, Time: time.Now().UTC().Truncate(time.Second), Host: record.ThisHost(), Build: record.ThisBuild(), Short: short}
}

// Device is device.Info as it is recorded.
type Device struct {
	Name       string `json:"name"`
	Kind       string `json:"kind"`
	ISA        string `json:"isa"`
	Threads    int    `json:"threads"`
	Memory     int64  `json:"memory_bytes"` // 0: not known
	BF16Native bool   `json:"bf16_native"`
}

// DeviceOf returns what is recorded of a device.
func DeviceOf(i device.Info) Device {
	return Device{Name: i.Name, Kind: i.Kind, ISA: i.ISA, Threads: i.Threads, Memory: i.Memory, BF16Native: i.BF16Native}
}

// Machine is the raw limits with a number of threads, or of a GPU (0).
type Machine struct {
	Threads int    `json:"threads"`
	F32     Spread `json:"f32_flops"`
	BF16    Spread `json:"bf16_flops"`
	Copy    Spread `json:"copy_bytes"`
	Triad   Spread `json:"triad_bytes"`
}

// Workload is the training of one model in one precision.
type Workload struct {
	Model         string      `json:"model"`
	Parameters    int64       `json:"parameters"`
	Sequences     int         `json:"sequences"` // of a micro-batch; a step is one
	Length        int         `json:"sequence_length"`
	Precision     string      `json:"precision"`
	Recompute     string      `json:"recompute"`
	Threads       int         `json:"threads"`
	FLOPsPerToken float64     `json:"flops_per_token"`
	ArenaBytes    int64       `json:"arena_bytes"`
	Startup       Startup     `json:"startup"`
	Step          Step        `json:"step"`
	Watched       Spread      `json:"watched_step_seconds"` // the steps that Kinds and Operations come from
	Outside       Spread      `json:"outside_seconds"`      // of those, what no operation took
	Kinds         []Kind      `json:"kinds"`                // most time first
	Operations    []Operation `json:"operations"`           // most time lost first
}

// Startup is what comes before training, but for reading data.
type Startup struct {
	Device    float64               `json:"device_seconds"`
	Plan      float64               `json:"plan_seconds"`
	Allocate  float64               `json:"allocate_seconds"`
	Weights   float64               `json:"weights_seconds"`
	FirstStep float64               `json:"first_step_seconds"`
	Target    record.Value[float64] `json:"target_seconds"` // for Total
}

// Total is the start-up without the first step.
func (s Startup) Total() float64 { return s.Device + s.Plan + s.Allocate + s.Weights }

// Step is the optimizer step: micro-batch, norm and update.
type Step struct {
	Seconds Spread `json:"seconds"`
	Tokens  Spread `json:"tokens_per_second"`
	Peak    Spread `json:"peak_flops"`    // of the precision, before and after each step
	Share   Spread `json:"share_of_peak"` // the model's FLOPs over the time, of the peak
	// Cores is the time that the threads had on cores, of what they would have
	// had alone on the machine. Well below 1, others computed too, or a thread
	// waited for another. OnCores is the share in that time
	// alone, of the greatest reading of the peak: the others were disturbed too.
	// Of a GPU there is neither.
	Cores   Spread `json:"share_of_cores"`
	OnCores Spread `json:"share_of_peak_on_cores"`
}

// Kind is all operations of one name in a step.
type Kind struct {
	Name    string  `json:"name"`
	Count   int     `json:"count"`
	Seconds Spread  `json:"seconds"`
	Part    float64 `json:"part_of_step"`
	Share   Spread  `json:"share_of_limit"`
	Lost    float64 `json:"lost_part_of_step"` // the time beyond the limit
}

// Collective is one collective over the ranks of this machine, at one size.
type Collective struct {
	Kind    string `json:"kind"`
	Ranks   int    `json:"ranks"`
	Threads int    `json:"threads"`    // of a rank; 0: it has a GPU
	Bytes   int64  `json:"bytes"`      // of the whole tensor
	Reads   int64  `json:"read_bytes"` // the most that a rank must read from others; of an all-reduce, in both halves
	// Seconds is until the slowest rank is done, as is Copy, in which all ranks at
	// once copy what each must read from others. Share is Copy's of Seconds, pair
	// by pair. A barrier has neither, nor have GPUs.
	Seconds Spread `json:"seconds"`
	Copy    Spread `json:"copy_seconds"`
	Share   Spread `json:"share_of_limit"`
}

// RankedWorkload is the training of one model by strategies and numbers of ranks.
type RankedWorkload struct {
	Model         string       `json:"model"`
	Parameters    int64        `json:"parameters"`
	Sequences     int          `json:"sequences"` // of a rank's micro-batch; a step is one
	Length        int          `json:"sequence_length"`
	Precision     string       `json:"precision"`
	Recompute     string       `json:"recompute"`
	Threads       int          `json:"threads"` // of a rank
	FLOPsPerToken float64      `json:"flops_per_token"`
	Steps         []RankedStep `json:"steps"` // the first is of one rank, which the others are compared with
}

// RankedStep is the optimizer step by one strategy on one mesh.
type RankedStep struct {
	Ranks      int    `json:"ranks"`
	Mesh       string `json:"mesh"` // across × within nodes
	Strategy   string `json:"strategy"`
	ArenaBytes int64  `json:"arena_bytes"` // of a rank
	Step       Step   `json:"step"`        // of all ranks together
	// Both are step by step, of the same round.
	Speedup     Spread `json:"tokens_over_one_rank"`
	OverNoShard Spread `json:"seconds_over_no_shard"` // on the same mesh
}

// Program says where an operation is from.
type Program string

// The programs: a training step, the decoding of one token, and operations that
// neither has.
const (
	InStep   Program = "step"
	InDecode Program = "decode"
	InNone   Program = "none"
)

// Operation is all operations of one name and shape in a program.
type Operation struct {
	Program  Program `json:"program"`
	Name     string  `json:"name"`
	Shape    string  `json:"shape"`
	Operands string  `json:"operands"`
	Count    int     `json:"count"` // in the program
	FLOPs    int64   `json:"flops"` // of one, as Bytes
	Bytes    int64   `json:"bytes"`
	Bound    Bound   `json:"bound"`
	Alone    Timing  `json:"alone"`      // one, run several times in a row
	Within   Timing  `json:"in_program"` // one, as a part of the program; zero where it is in none
	Part     float64 `json:"part_of_program"`
	Lost     float64 `json:"lost_part_of_program"` // the time beyond the limit
}

// Timing is how long something took, and the share of its limit that this is.
type Timing struct {
	Seconds Spread `json:"seconds"`
	Share   Spread `json:"share_of_limit"`
}

// WriteFile writes the results as one JSON file, whole or not at all.
func (r *Results) WriteFile(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return record.WriteFileAtomic(path, append(text, '\n'), 0o644)
}
