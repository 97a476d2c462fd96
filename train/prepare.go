package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/data/tokenizer"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
)

// Type returns the type that computes.
func (s Settings) Type() device.DType {
	if s.Precision == "bf16" {
		return device.BF16
	}
	return device.F32
}

// PlanOptions returns what a run of these settings needs of a plan, with
// sequences of seqLen tokens.
func (s Settings) PlanOptions(cfg model.Config, seqLen int) fsdp.Options {
	o := fsdp.Options{
		Model: cfg, Type: s.Type(), Train: true, Eval: true, Seqs: s.Micro(seqLen), SeqLen: seqLen, HeadRows: s.HeadRows,
		Recompute: fsdp.Recompute(s.Recompute), Optimizer: s.Optimizer, Seed: uint64(s.Seed),
	}
	if len(s.Sample.Prompts) > 0 {
		o.Decoding = Decoding(min(seqLen, cfg.MaxPositions))
	}
	return o
}

// NewPlan plans a run of these settings on one rank, with sequences of seqLen
// tokens.
func (s Settings) NewPlan(cfg model.Config, seqLen int) (*fsdp.Plan, error) {
	return s.NewPlanOver(1, 0, fsdp.Sharding{}, cfg, seqLen)
}

// NewPlanOver plans what a rank of so many does in a run of these settings; the
// batch is divided among them.
//
// A micro-batch beyond what any device holds is refused before it is planned,
// which would take minutes.
func (s Settings) NewPlanOver(ranks, rank int, sharding fsdp.Sharding, cfg model.Config, seqLen int) (*fsdp.Plan, error) {
	if s.Batch%ranks != 0 {
		return nil, fmt.Errorf("train.batch: %d sequences cannot be divided among %d ranks", s.Batch, ranks)
	}
	if s.Batch /= ranks; s.MicroBatch > 0 && s.Batch%s.MicroBatch != 0 {
		return nil, fmt.Errorf("train.micro_batch: %d does not divide the %d sequences of a rank", s.MicroBatch, s.Batch)
	}
	if seqLen > cfg.MaxPositions {
		return nil, fmt.Errorf("data.sequence_length: %d tokens are more than the model's %d positions (max_position_embeddings)", seqLen, cfg.MaxPositions)
	}
	o := s.PlanOptions(cfg, seqLen)
	if err := CheckRows(o.Seqs, seqLen); err != nil {
		key := "train.micro_batch"
		if o.Seqs == 1 {
			key = "data.sequence_length"
		}
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	if rows := o.Seqs * seqLen; s.HeadRows > 0 && rows/s.HeadRows > mostPieces {
		return nil, fmt.Errorf("train.head_rows: %d cuts the %d tokens of a micro-batch into more than %d pieces; raise it, or set 0", s.HeadRows, rows, mostPieces)
	}
	if err := sharding.Over(ranks, &o); err != nil {
		return nil, err
	}
	o.Rank, o.MicroBatches = rank, s.Batch/o.Seqs
	return fsdp.NewPlan(o)
}

// CheckRows returns an error where a micro-batch is beyond what any device
// holds, which is known before it is planned. Of a single sequence that is its
// length.
func CheckRows(seqs, seqLen int) error {
	if seqs == 1 && seqLen > mostRows {
		return fmt.Errorf("a sequence of %d tokens has more than the %d that can be planned; take shorter ones", seqLen, mostRows)
	}
	if seqs > mostRows/seqLen {
		return fmt.Errorf("%d sequences of %d tokens are more at once than the %d tokens that can be planned; take fewer", seqs, seqLen, mostRows)
	}
	return nil
}

// What a plan may have: tokens of a micro-batch, pieces of its loss.
const (
	mostRows   = 1 << 20
	mostPieces = 1 << 12
)

// prefill is the tokens of a prompt that are processed at once.
const prefill = 64

// Decoding returns the plan of generating one sequence of up to length tokens.
func Decoding(length int) fsdp.Decoding {
	return fsdp.Decoding{Seqs: 1, CacheLen: length, Prefill: min(prefill, length)}
}

// OpenModel resolves a model's name and loads its tokenizer, nil where it has
// none. The weights are opened, and so checked, where they are there and
// wanted: mode is auto, load or fresh. The caller closes them.
func OpenModel(name, mode string) (model.Source, *tokenizer.Tokenizer, *checkpoint.Weights, error) {
	src, err := model.Resolve(name)
	if err != nil {
		return src, nil, nil, err
	}
	if mode == "load" && !src.HasWeights {
		return src, nil, nil, fmt.Errorf("train.weights: load, but the model %s has no weights: name a directory that has, or begin with fresh ones", name)
	}
	var errs []error
	var tok *tokenizer.Tokenizer
	var weights *checkpoint.Weights
	if src.Dir != "" {
		path := filepath.Join(src.Dir, "tokenizer.json")
		if _, err := os.Stat(path); err == nil {
			tok, err = tokenizer.Load(path)
			errs = append(errs, err)
		}
		if src.HasWeights && mode != "fresh" {
			weights, err = checkpoint.OpenWeights(src.Dir, src.Config)
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		if weights != nil {
			err = errors.Join(err, weights.Close())
		}
		return src, nil, nil, err
	}
	return src, tok, weights, nil
}

// CheckMemory returns an error where the plans of so many ranks, which share the
// device's memory, cannot fit it.
func CheckMemory(p *fsdp.Plan, info device.Info, ranks int) error {
	if need := p.Bytes() * int64(ranks); info.Memory > 0 && need > info.Memory {
		return fmt.Errorf("the run needs %s of memory and %s has %s: take a smaller train.micro_batch, train.recompute block, a shorter data.sequence_length or a smaller model (gofsdp plan shows what takes how much)",
			Bytes(need), info.Name, Bytes(info.Memory))
	}
	return nil
}

// SetWeights fills an engine from files, or where weights is nil with fresh
// values from seed, on all cores.
func SetWeights(e *fsdp.Engine, weights *checkpoint.Weights, seed uint64) error {
	room := make([]float32, pieceLen)
	for _, p := range e.Plan.Model.Params() {
		first, n := e.Owned(p.Name)
		for end := first + n; first < end; first += len(room) {
			values := room[:min(len(room), end-first)]
			if weights != nil {
				weights.Read(p.Name, first, values)
			} else {
				initialize(&e.Plan.Model, p, seed, first, values)
			}
			if err := e.WriteOwned(p.Name, first, values); err != nil {
				return err
			}
		}
	}
	return e.Refresh()
}

// pieceLen is the elements of a parameter that pass to or from an engine at once.
const pieceLen = 1 << 20

// initialize sets dst to a parameter's fresh values from element first on.
func initialize(m *model.Config, p model.Param, seed uint64, first int, dst []float32) {
	var wait sync.WaitGroup
	cores := runtime.GOMAXPROCS(0)
	each := (len(dst) + cores - 1) / cores
	for at := 0; at < len(dst); at += each {
		wait.Go(func() { m.InitParam(dst[at:min(at+each, len(dst))], p, seed, first+at) })
	}
	wait.Wait()
}

// Number writes n of a thing: 1 step, 2 steps, 2 batches.
func Number(n int, thing string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(thing, "ch"):
		thing += "es"
	default:
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// Bytes writes a size as people do: 2.13 GiB, 512 KiB.
func Bytes(n int64) string {
	x, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; x >= 1024 && i < len(units)-1; i++ {
		x /= 1024
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	if x >= 999.5 {
		return fmt.Sprintf("%.0f %s", x, units[i]) // %.3g would write 1e+03
	}
	return fmt.Sprintf("%.3g %s", x, units[i])
}
