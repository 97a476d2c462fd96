package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/gofsdp/gofsdp/checkpoint"
	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/record"
	"github.com/gofsdp/gofsdp/safetensors"
)

// Work is what a run does, wherever it runs.
type Work struct {
	Model string
	Data  data.Settings
	Train Settings
}

// Place is which of a run's ranks this process is. The zero value is the only
// one.
type Place struct {
	Ranks, Rank int
	Sharding    fsdp.Sharding
	// Join opens the groups of the plan's mesh; it is called where there are
	// several ranks.
	Join func(*fsdp.Plan) (fsdp.Comms, error)
	// Meet returns when all ranks have called it, however long some take: it is
	// for what a disk may hold up, which no collective should wait for. It may be
	// nil where there is one rank.
	Meet func() error
	// Flight is the engine's recorder; nil: one that nobody reads.
	Flight *fsdp.Flight
	// Apart is of a device whose memory is apart from the host's; nil: ranks share
	// the memory of their devices.
	Apart *Apart
}

// fit returns an error where a plan cannot run on the devices of a place.
func (p Place) fit(plan *fsdp.Plan, info device.Info) error {
	if p.Apart != nil {
		return p.Apart.Check(plan, info)
	}
	return CheckMemory(plan, info, max(p.Ranks, 1))
}

// Run is a run that is ready to go: everything that can be wrong with its
// model, its text and its size has been found.
type Run struct {
	Work
	Model  model.Source
	Data   *data.Data
	Plan   *fsdp.Plan
	Engine *fsdp.Engine // nil where the run was only checked
	info   device.Info
	apart  bool // its memory is, and so it is none that can be observed
	dev    device.Device
	meet   func() error
	flight *fsdp.Flight // the engine's
	trace  *trace       // of Train; nil: none

	weights *checkpoint.Weights // nil: fresh ones
}

// Open prepares a run on dev, as Check does, takes its memory and sets the
// weights. The caller closes the run, then the device.
func Open(ctx context.Context, w Work, place Place, dev device.Device, log func(string, ...any)) (*Run, error) {
	r, err := Check(ctx, w, place, dev.Info(), log)
	if err != nil {
		return nil, err
	}
	if err := r.start(place, dev); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *Run) start(place Place, dev device.Device) (err error) {
	var comms fsdp.Comms
	if place.Ranks > 1 {
		if comms, err = place.Join(r.Plan); err != nil {
			return err
		}
	}
	r.dev, r.meet = dev, place.Meet
	r.flight = cmp.Or(place.Flight, fsdp.NewFlight())
	if r.Engine, err = r.flight.NewEngine(r.Plan, dev, comms); err != nil {
		return err
	}
	err = SetWeights(r.Engine, r.weights, uint64(r.Work.Train.Seed))
	return errors.Join(err, r.closeWeights())
}

// closeWeights closes the weights' files. They are mapped, so as long as they are
// open what was read of them counts as memory of this process.
func (r *Run) closeWeights() (err error) {
	if r.weights != nil {
		err = r.weights.Close()
	}
	r.weights = nil
	return err
}

// Check finds all that can be wrong with a run before it starts on a device: it
// resolves and checks the model, plans, checks that the plan fits, and reads and
// tokenises the text. log gets lines for the user; it may be nil. The caller
// closes the run.
func Check(ctx context.Context, w Work, place Place, info device.Info, log func(string, ...any)) (r *Run, err error) {
	if log == nil {
		log = func(string, ...any) {}
	}
	src, tok, weights, err := OpenModel(w.Model, w.Train.Weights)
	if err != nil {
		return nil, err
	}
	r = &Run{Work: w, Model: src, info: info, apart: place.Apart != nil, weights: weights}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Close())
			r = nil
		}
	}()
	if r.Plan, err = w.Train.NewPlanOver(max(place.Ranks, 1), place.Rank, place.Sharding, src.Config, w.Data.SequenceLength); err != nil {
		return r, err
	}
	if err := place.fit(r.Plan, info); err != nil {
		return r, err
	}
	if w.Data.Tokenizer == data.TokenizerModel && tok == nil {
		return r, fmt.Errorf("data.tokenizer: the model %s has no tokenizer; give the path of a tokenizer.json, or train to make one", w.Model)
	}
	if w.Data.Tokenizer == data.TokenizerTrain && w.Data.VocabSize > src.Config.Vocab {
		return r, fmt.Errorf("data.vocab_size: a tokenizer of %d entries is more than the model's vocabulary of %d; lower it", w.Data.VocabSize, src.Config.Vocab)
	}
	if w.Data.Tokenizer == data.TokenizerTrain && weights != nil {
		log("the weights of %s were made with another tokenizer than the one that is trained here; data.tokenizer: model takes theirs, train.weights: fresh does without them", w.Model)
	}
	if r.Data, err = data.Prepare(ctx, w.Data, tok, log); err != nil {
		return r, err
	}
	if int(r.Data.MaxID) >= src.Config.Vocab {
		return r, fmt.Errorf("data.tokenizer: the text has token %d, but the model's vocabulary has %d: this is not the model's tokenizer", r.Data.MaxID, src.Config.Vocab)
	}
	if err = errors.Join(r.checkPrompts(r.Plan), r.checkSteps()); err != nil {
		return r, err
	}
	_, err = data.NewSampler(r.Data.Train, w.Train.Batch)
	return r, err
}

// checkPrompts finds the samples' prompts that could not be continued.
func (r *Run) checkPrompts(p *fsdp.Plan) error {
	var errs []error
	for i, prompt := range r.Work.Train.Sample.Prompts {
		if _, err := promptTokens(r.Data.Tokenizer, prompt, p.Decoding.CacheLen, p.Model.Vocab); err != nil {
			errs = append(errs, fmt.Errorf("train.sample.prompts: entry %d: %w", i+1, err))
		}
	}
	return errors.Join(errs...)
}

// checkSteps checks a schedule whose length the text decides.
func (r *Run) checkSteps() error {
	s := r.Work.Train
	if steps := s.StepsOver(r.Data.Train); s.Warmup+s.DecaySteps > steps {
		return fmt.Errorf("train.warmup: warm-up (%d) and decay (train.decay_steps: %d) are longer than the run, whose epochs (train.epochs: %d) hold %d steps of %d sequences",
			s.Warmup, s.DecaySteps, s.Epochs, steps, s.Batch)
	}
	return nil
}

// Close gives back what Open took. The device stays open.
func (r *Run) Close() error {
	var errs []error
	if r.Engine != nil {
		errs = append(errs, r.Engine.Close())
	}
	if r.Data != nil {
		errs = append(errs, r.Data.Close())
	}
	return errors.Join(append(errs, r.closeWeights())...)
}

// Train runs all steps and the last evaluation; see Job.
func (r *Run) Train(ctx context.Context, report Reporter) (Summary, error) {
	j := Job{Settings: r.Work.Train, Engine: r.Engine, Device: r.dev, Train: r.Data.Train, HeldOut: r.Data.HeldOut, Report: report, trace: r.trace}
	return j.Run(ctx)
}

// Generate continues a prompt as the settings' sample says.
func (r *Run) Generate(ctx context.Context, prompt string, emit func([]byte)) error {
	return Generate(ctx, r.Engine, r.Data.Tokenizer, prompt, r.Work.Train.Sample, uint64(r.Work.Train.Seed), emit)
}

// DiskBytes is what the run's directory will need at the least: the weights.
func (r *Run) DiskBytes() int64 {
	size := int64(4)
	if r.Work.Train.Export == "bf16" {
		size = 2
	}
	return size*r.Model.Config.NumParams() + 1<<20
}

// Export writes the weights as a Hugging Face directory; of several ranks all
// call it, and the first writes. It returns when all is written, on all ranks. A fine-tuned model keeps its own tokenizer's
// and generation's files; a tokenizer that came from elsewhere is written beside
// the weights.
func (r *Run) Export(dir string) error {
	if r.Plan.Rank != 0 {
		for u := range r.Plan.Units {
			if err := r.whole(u); err != nil {
				return err
			}
		}
		return r.together()
	}
	x := checkpoint.Export{Config: r.Model.Config, Weight: r.wholeWeights()}
	if r.Work.Train.Export == "bf16" {
		x.Type = safetensors.BF16
	}
	if r.Work.Data.Tokenizer == data.TokenizerModel {
		x.From = r.Model.Dir
	} else {
		tok := r.Data.Tokenizer
		text, err := tok.MarshalJSON()
		if err != nil {
			return err
		}
		x.Tokenizer = text
		if id, ok := tok.EndOfText(); ok {
			x.EndOfText = string(tok.TokenBytes(id))
		}
	}
	if err := checkpoint.WriteHuggingFace(dir, x); err != nil {
		return err
	}
	return r.together()
}

// together waits for all ranks.
func (r *Run) together() error {
	if r.meet == nil {
		return nil
	}
	return r.meet()
}

// whole gathers a unit's weights once all ranks are there.
func (r *Run) whole(unit int) error {
	if err := r.together(); err != nil {
		return err
	}
	return r.Engine.Whole(unit)
}

// wholeWeights returns what gives an export parameters in the order of units, each
// of which is gathered once.
func (r *Run) wholeWeights() func(param string, first int, dst []float32) error {
	gathered := -1
	return func(param string, first int, dst []float32) error {
		for u, x := range r.Plan.Units {
			for _, slot := range x.Slots {
				if slot.Name != param {
					continue
				}
				if u != gathered {
					if err := r.whole(u); err != nil {
						return err
					}
					gathered = u
				}
				return r.Engine.ReadWhole(slot.Off+first, dst)
			}
		}
		panic("train: no parameter " + param)
	}
}

// Outline says in a line what the run does.
func (r *Run) Outline() string {
	p, s := r.Plan, r.Work.Train
	steps, of := s.StepsOver(r.Data.Train), ""
	if p.Mesh.Size() > 1 {
		of = " a rank"
	}
	return fmt.Sprintf("%s parameters in %s, %s of %d × %d tokens, %s of memory%s, %s",
		count(float64(p.Model.NumParams())), s.Precision, Number(steps, "step"), s.Batch, p.SeqLen, Bytes(p.Bytes()), of, r.place())
}

func (r *Run) place() string {
	i, n, who := r.info, r.Plan.Mesh.Size(), ""
	if n > 1 {
		who = fmt.Sprintf("%d ranks as %v (%s)", n, r.Plan.Mesh, r.Plan.Strategy)
	}
	switch {
	case i.Threads == 0 && n > 1: // a GPU is a rank's own
		return fmt.Sprintf("%s, each on %s (%s)", who, i.Name, i.ISA)
	case i.Threads == 0:
		return fmt.Sprintf("%s (%s)", i.Name, i.ISA)
	case n > 1:
		return fmt.Sprintf("%s of %s each, %s (%s)", who, Number(i.Threads, "thread"), i.Name, i.ISA)
	}
	return fmt.Sprintf("%s of %s (%s)", Number(i.Threads, "thread"), i.Name, i.ISA)
}

// Describe fills in what the run knows of its record.
func (r *Run) Describe(rec *record.Run) {
	i, d, src := r.info, r.Data, r.Model
	rec.ISA, rec.Threads = record.Known(i.ISA), record.Known(i.Threads*r.Plan.Mesh.Size())
	if i.Threads == 0 {
		rec.Threads = record.Unknown[int]("they are a GPU's")
	}
	rec.Model = record.Model{Family: record.Known(src.Config.Family), Source: record.Known(src.Name), Parameters: record.Known(src.Config.NumParams())}
	rec.Data = record.Data{
		Fingerprint: record.Known(d.Fingerprint),
		Documents:   record.Known(int64(d.Train.Documents())), Tokens: record.Known(d.Train.Tokens()),
		HeldOutDocuments: record.Known(int64(d.HeldOut.Documents())), HeldOutTokens: record.Known(d.HeldOut.Tokens()),
	}
	rec.Seeds = map[string]uint64{"data": uint64(r.Work.Data.Seed), "train": uint64(r.Work.Train.Seed)}
}

// Figures fills in what came out; held-out figures only where they are those of
// the last weights and of all held-out text. flops is the work of a token, peak what the
// device can do in a second, 0 where that is not known.
func (s Summary) Figures(rec *record.Run, flops, peak float64) {
	f := &rec.Figures
	f.Steps, f.Tokens, f.Seconds = record.Known(int64(s.Steps)), record.Known(s.Tokens), record.Known(s.Seconds)
	if s.Steps > 0 {
		rate := float64(s.Tokens) / s.Seconds
		f.Loss, f.TokensPerSecond = record.Known(s.Loss), record.Known(rate)
		if peak > 0 {
			f.ShareOfPeak = record.Known(rate * flops / peak)
		}
	}
	whole := !math.IsNaN(s.HeldOut.BitsPerByte) || !finite(s.HeldOut.Loss)
	if s.HeldOut.Targets > 0 && s.Evaluated == s.Steps && whole {
		f.HeldOutLoss, f.BitsPerByte = record.Known(s.HeldOut.Loss), record.Known(s.HeldOut.BitsPerByte)
	}
}
