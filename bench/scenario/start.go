package scenario

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/record"
)

const (
	// seed is that of all weights and tokens: everybody begins with the same.
	seed = 1
	// mostTokens bounds the file of tokens; rows are used again where a scenario
	// takes more.
	mostTokens = 1 << 22
)

// optimizer is what all sides train with: usual values, at a rate that moves the
// loss in few steps and keeps it well-behaved.
var optimizer = Optimizer{LR: 3e-4, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, Clip: 1}

// starts are the weights and tokens that sides begin with, in a directory of
// their own. Those of a model are written once and serve all scenarios.
type starts struct {
	dir    string
	models map[string]string // directory, by model
	tokens map[string]string // file, by what is in it
}

func newStarts() (*starts, error) {
	dir, err := os.MkdirTemp("", "gofsdp-bench-")
	return &starts{dir: dir, models: map[string]string{}, tokens: map[string]string{}}, err
}

// Close removes everything.
func (s *starts) Close() error { return os.RemoveAll(s.dir) }

// weights returns a Hugging Face directory of the model with fresh fp32
// weights. It holds no more of them at once than the largest parameter.
func (s *starts) weights(name string, c model.Config) (string, error) {
	if dir, ok := s.models[name]; ok {
		return dir, nil
	}
	if err := record.CheckSpace(s.dir, 4*c.NumParams()); err != nil {
		return "", err
	}
	params := map[string]model.Param{}
	for _, p := range c.Params() {
		params[p.Name] = p
	}
	dir := filepath.Join(s.dir, fmt.Sprintf("model-%d", len(s.models)))
	err := checkpoint.WriteHuggingFace(dir, checkpoint.Export{Config: c, Weight: func(param string, first int, dst []float32) error {
		c.InitParam(dst, params[param], seed, first)
		return nil
	}})
	if err != nil {
		return "", err
	}
	s.models[name] = dir
	return dir, nil
}

// rows returns a file of token rows for the work, as Task.Tokens says.
func (s *starts) rows(w *Work, vocab int) (string, error) {
	rows := 1
	for _, c := range w.Cases {
		rows = max(rows, (w.Warm+w.Timed)*int(w.tokensOf(c))/w.Length)
	}
	rows = max(min(rows, mostTokens/(w.Length+1)), 1)
	key := fmt.Sprintf("%d-%d-%d", vocab, w.Length, rows)
	if path, ok := s.tokens[key]; ok {
		return path, nil
	}
	text := make([]byte, 0, 4*rows*(w.Length+1))
	for _, t := range tokens(rows*(w.Length+1), vocab) {
		text = binary.LittleEndian.AppendUint32(text, uint32(t))
	}
	path := filepath.Join(s.dir, "tokens-"+key)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return "", err
	}
	s.tokens[key] = path
	return path, nil
}

// tokens returns n pseudo-random tokens, always the same. Small ones are
// frequent: the density of x = token/vocab is that of u³ for a uniform u, so that
// a model learns in its first steps which tokens there are.
func tokens(n, vocab int) []int32 {
	rng := rand.New(rand.NewPCG(seed, uint64(vocab)))
	all := make([]int32, n)
	for i := range all {
		all[i] = min(int32(math.Pow(rng.Float64(), 3)*float64(vocab)), int32(vocab-1))
	}
	return all
}

// task returns what every side is told of the work, but for Out.
func (s *starts) task(w Work) (Task, error) {
	t := Task{Format: TaskFormat, Work: w}
	if w.Kind != Steps {
		return t, nil
	}
	src, err := model.Resolve(w.Model)
	if err != nil {
		return t, err
	}
	t.Optimizer = optimizer
	var errWeights, errRows error
	t.Start, errWeights = s.weights(w.Model, src.Config)
	t.Tokens, errRows = s.rows(&w, src.Config.Vocab)
	return t, errors.Join(errWeights, errRows)
}
