package train

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// On a device that keeps its memory from the host, as GPUs do, all that a run does
// with weights, batches and results comes to the same.
func TestARunOnMemoryThatTheHostCannotSeeIsTheSame(t *testing.T) {
	w := work(t)
	w.Train.Steps, w.Train.EvalEvery = 4, 2
	w.Train.Sample = Sample{Prompts: []string{"the"}, Tokens: 6, Temperature: 1, TopP: 1}
	type outcome struct {
		losses          []float64
		heldOut         float64
		exported, again []float32
		text, nan       string
	}
	run := func(dev func() device.Device) (o outcome) {
		r := openOn(t, w, dev())
		var s seen
		sum, err := r.Train(context.Background(), &s)
		if err != nil {
			t.Fatal(err)
		}
		o.heldOut = sum.HeldOut.Loss
		for _, step := range s.steps {
			o.losses = append(o.losses, step.Loss, step.Norm)
		}
		if err := r.Generate(context.Background(), "the", func(text []byte) { o.text += string(text) }); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "model")
		if err := r.Export(dir); err != nil {
			t.Fatal(err)
		}
		o.exported = exported(t, dir)
		next := w
		next.Model = dir
		from := openOn(t, next, dev())
		o.again = weights(t, from.Engine)
		spoil(t, from.Engine, "model.layers.1.mlp.up_proj.weight", 5)
		if err := from.Engine.Refresh(); err != nil {
			t.Fatal(err)
		}
		var nf *NotFinite
		if _, err := from.Train(context.Background(), &seen{}); !errors.As(err, &nf) || nf.Where == nil {
			t.Errorf("a NaN is located as: %v", err)
		} else {
			o.nan = err.Error()
		}
		return o
	}
	want := run(device.NewReference)
	got := run(func() device.Device { return optest.Hidden(device.NewReference()) })
	if len(want.losses) != 8 || !slices.Equal(got.losses, want.losses) || got.heldOut != want.heldOut {
		t.Errorf("losses and norms are %v, then %v; want %v, then %v", got.losses, got.heldOut, want.losses, want.heldOut)
	}
	if !slices.Equal(got.exported, want.exported) || !slices.Equal(got.again, want.exported) || !slices.Equal(want.again, want.exported) {
		t.Error("the weights that are exported, or read again, differ")
	}
	if got.text != want.text {
		t.Errorf("it generates %q, want %q", got.text, want.text)
	}
	if got.nan != want.nan {
		t.Errorf("a NaN is located as %q, want %q", got.nan, want.nan)
	}
}
