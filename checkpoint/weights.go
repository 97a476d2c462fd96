package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/safetensors"
)

// Weights are the open files of a Hugging Face directory, checked to fit a
// model's configuration.
type Weights struct {
	dir    *safetensors.Dir
	params []model.Param
}

// OpenWeights opens the weights of dir and checks that each parameter of cfg is
// there with its shape and a type that can be read (F32, BF16 or F16), and that
// nothing else is. All that does not fit is in one error, a line each, that
// names file, tensor, what is expected and what was found. Weights are mapped
// and not read, but for a copy of a tied head, which is compared.
func OpenWeights(dir string, cfg model.Config) (*Weights, error) {
	d, err := safetensors.OpenDir(dir)
	if err != nil {
		return nil, fmt.Errorf("the weights of %s cannot be used:\n%w", dir, err)
	}
	w := &Weights{dir: d, params: cfg.Params()}
	if mistakes := w.fit(dir, cfg); mistakes != nil {
		return nil, errors.Join(fmt.Errorf("the weights of %s do not fit its config.json:\n%w", dir, joined(mistakes)), d.Close())
	}
	return w, nil
}

// mostMistakes bounds what is said about one directory: that of another model
// has hundreds.
const mostMistakes = 20

func joined(mistakes []error) error {
	if more := len(mistakes) - mostMistakes; more > 0 {
		mistakes = append(mistakes[:mostMistakes:mostMistakes], fmt.Errorf("and %d more", more))
	}
	return errors.Join(mistakes...)
}

// fit lists what does not fit.
func (w *Weights) fit(dir string, cfg model.Config) []error {
	var mistakes []error
	wrong := func(where, format string, args ...any) {
		mistakes = append(mistakes, fmt.Errorf("%s: tensor %w", where, fmt.Errorf(format, args...)))
	}
	known := make(map[string]bool, len(w.params))
	for _, p := range w.params {
		known[p.Name] = true
		t, ok := w.dir.Tensor(p.Name)
		if !ok {
			remedy := ""
			if p.Name == headName {
				remedy = ` (where the head is the embedding, "tie_word_embeddings": true says so)`
			}
			wrong(dir, "%s is missing, expected with the shape %v%s", p.Name, p.Shape, remedy)
			continue
		}
		if !slices.EqualFunc(t.Shape, p.Shape, func(found int64, expected int) bool { return found == int64(expected) }) {
			wrong(t.File, "%s has the shape %v, expected %v", p.Name, t.Shape, p.Shape)
		}
		if !readable(t.DType) {
			wrong(t.File, "%s has the type %s, expected F32, BF16 or F16", p.Name, t.DType)
		}
	}
	for _, name := range w.dir.Names() {
		t, _ := w.dir.Tensor(name)
		switch {
		case known[name], strings.HasSuffix(name, ".rotary_emb.inv_freq"):
			// Old exporters stored RoPE's frequencies, which follow from config.json.
		case name == headName: // of a tied model: it is known else
			if embed, ok := w.dir.Tensor(model.EmbedName); ok && !sameTensor(t, embed) {
				wrong(t.File, `%s is expected to be a copy of %s, but differs (where the head is of its own, "tie_word_embeddings": false says so)`, name, model.EmbedName)
			}
		default:
			wrong(t.File, "%s, %s %v, is not expected: a %s model with this config.json has none", name, t.DType, t.Shape, cfg.Family)
		}
	}
	return mistakes
}

// headName is the head of a model whose head is not tied.
var headName = model.Config{}.HeadName()

func sameTensor(a, b safetensors.Tensor) bool {
	return a.DType == b.DType && slices.Equal(a.Shape, b.Shape) && bytes.Equal(a.Data, b.Data)
}

// Read converts a part of a parameter, which begins with element first, to
// float32, exactly: as much of it as dst holds. It uses all cores. A parameter
// that the model does not have, or not so much of, is the caller's mistake.
func (w *Weights) Read(param string, first int, dst []float32) {
	from, _ := w.dir.Tensor(param)
	size := int(from.DType.Size())
	if first < 0 || (first+len(dst))*size > len(from.Data) {
		panic(fmt.Sprintf("checkpoint: parameter %s is shorter than %d elements from %d on", param, len(dst), first))
	}
	inPieces(len(dst), func(_, begin, end int) {
		decode(dst[begin:end], from.Data[(first+begin)*size:(first+end)*size], from.DType)
	})
}

// Close unmaps the files. A second call does nothing.
func (w *Weights) Close() error { return w.dir.Close() }
