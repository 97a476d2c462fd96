package golden

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Case is one model shape with what the reference computed for it, in fp32 on a CPU.
type Case struct {
	Name     string            `json:"case"`
	Versions map[string]string `json:"versions"` // of what computed it
	Config   []byte            `json:"-"`        // config.json as transformers wrote it

	// The forward and backward pass: Batch sequences of Sequence tokens, flat and row-major.
	Batch    int     `json:"batch"`
	Sequence int     `json:"sequence"`
	IDs      []int32 `json:"ids"`
	Targets  []int32 `json:"targets"` // -1: no target
	Start    []int32 `json:"start"`   // index within the sequence of the first token of the position's document
	Loss     float64 `json:"loss"`    // mean over valid targets

	Parameters []Parameter          `json:"parameters"` // in transformers' order; a tied head has none
	Logits     []float32            `json:"-"`          // [Batch, Sequence, vocabulary]
	Grads      map[string][]float32 `json:"-"`          // of Loss, by parameter name

	Greedy   []Continuation `json:"greedy"`   // none in a packed case
	Training *Training      `json:"training"` // nil in most cases
}

// Parameter is one tensor of the model, with what is needed to check the formula.
type Parameter struct {
	Name   string  `json:"name"`
	Shape  []int   `json:"shape"`
	First  float32 `json:"first"`  // its first element
	SHA256 string  `json:"sha256"` // of its little-endian float32 bytes
}

// Continuation is what greedy decoding made of a prompt. The two best logits of every step lie at
// least LeastGap apart.
type Continuation struct {
	Prompt   []int32 `json:"prompt"`
	Tokens   []int32 `json:"tokens"`
	LeastGap float64 `json:"least_gap"`
}

// Training is a run of AdamW: betas, epsilon, decoupled weight decay on parameters of two
// dimensions only, gradients clipped to the global norm Clip.
type Training struct {
	MicroBatches int     `json:"micro_batches"` // accumulated in each step
	Sequences    int     `json:"sequences"`     // of each micro-batch
	Sequence     int     `json:"sequence"`      // tokens of each
	Warmup       int     `json:"warmup"`        // steps of linear warm-up, then a cosine to MinLR
	MaxLR        float64 `json:"max_lr"`
	MinLR        float64 `json:"min_lr"`
	Beta1        float64 `json:"beta1"`
	Beta2        float64 `json:"beta2"`
	Eps          float64 `json:"eps"`
	WeightDecay  float64 `json:"weight_decay"`
	Clip         float64 `json:"clip"`
	Steps        []Step  `json:"step"`
	Final        []Final `json:"final"`
}

// Step is one optimizer step. Micro-batch m has sequences [m·Sequences, (m+1)·Sequences), each of
// them one document.
type Step struct {
	IDs     []int32 `json:"ids"`     // [MicroBatches·Sequences, Sequence]
	Targets []int32 `json:"targets"` // the same shape; -1: no target
	Valid   int     `json:"valid"`   // targets of the whole step that are not masked
	LR      float64 `json:"lr"`
	Loss    float64 `json:"loss"` // before the step, mean over Valid
	Norm    float64 `json:"norm"` // of the whole gradient, before clipping
}

// Final tells where a parameter was after the last step: its L2 norm, and the L2 norm of its
// difference to the start.
type Final struct {
	Name  string  `json:"name"`
	Norm  float64 `json:"norm"`
	Moved float64 `json:"moved"`
}

// Load reads a case by its name, such as "qwen2-tied". It finds the module's root from the working
// directory, so a test of any package may call it.
func Load(name string) (*Case, error) {
	dir, err := Dir()
	if err != nil {
		return nil, err
	}
	dir = filepath.Join(dir, name)
	text, err := os.ReadFile(filepath.Join(dir, "case.json"))
	if err != nil {
		return nil, fmt.Errorf("golden case %q: %w", name, err)
	}
	var c Case
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("golden case %q: case.json: %w", name, err)
	}
	if c.Config, err = os.ReadFile(filepath.Join(dir, "config.json")); err != nil {
		return nil, fmt.Errorf("golden case %q: %w", name, err)
	}
	tensors, err := readTensors(filepath.Join(dir, "tensors.safetensors"))
	if err != nil {
		return nil, fmt.Errorf("golden case %q: %w", name, err)
	}
	c.Logits = tensors["logits"]
	c.Grads = map[string][]float32{}
	for key, values := range tensors {
		if parameter, ok := strings.CutPrefix(key, "grad/"); ok {
			c.Grads[parameter] = values
		}
	}
	return &c, nil
}

// Names lists all cases in order.
func Names() ([]string, error) {
	dir, err := Dir()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("golden cases: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Weights returns the formula's value of every parameter of the case, by name.
func (c *Case) Weights() map[string][]float32 {
	weights := make(map[string][]float32, len(c.Parameters))
	for _, p := range c.Parameters {
		weights[p.Name] = Weight(p.Name, p.Shape...)
	}
	return weights
}

// Dir returns the folder of the cases: model/testdata/golden under the module's root.
func Dir() (string, error) {
	root, err := root()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "model", "testdata", "golden"), nil
}

// root returns the folder of the nearest go.mod at or above the working directory.
func root() (string, error) {
	at, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at, nil
		}
		parent := filepath.Dir(at)
		if parent == at {
			return "", errors.New("golden cases: no go.mod above the working directory")
		}
		at = parent
	}
}
