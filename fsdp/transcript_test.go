package fsdp

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/gofsdp/gofsdp/device"
)

// TestTranscripts shows a step's operations as they run: go test ./fsdp
// -run Transcripts -rewrite writes the files anew.
func TestTranscripts(t *testing.T) {
	datadriven.RunTest(t, "testdata/plan.txt", func(t *testing.T, d *datadriven.TestData) string {
		cfg := small(d.HasArg("tied"))
		cfg.Layers, cfg.QKNorm = 2, d.HasArg("qknorm")
		o := Options{
			Model: cfg, Type: device.F32, Train: true, Eval: true, Seqs: 2, SeqLen: 16, HeadRows: 20, Optimizer: Optimizer{WeightDecay: 0.1},
			Decoding: Decoding{Seqs: 1, CacheLen: 32, Prefill: 8},
		}
		if d.HasArg("bf16") {
			o.Type = device.BF16
		}
		if d.HasArg("once") {
			o.MicroBatches = 1
		}
		var r string
		d.MaybeScanArgs(t, "recompute", &r)
		o.Recompute = Recompute(r)
		p, err := NewPlan(o)
		if err != nil {
			return err.Error() + "\n"
		}
		switch d.Cmd {
		case "memory":
			return memoryTable(p)
		case "units":
			return unitTable(p)
		}
		for _, prog := range p.Programs() {
			if strings.ReplaceAll(prog.Name, " ", "-") == d.Cmd {
				var b strings.Builder
				if err := p.Transcript(&b, prog); err != nil {
					return err.Error()
				}
				return b.String()
			}
		}
		return "no program " + d.Cmd + "\n"
	})
}

func memoryTable(p *Plan) string {
	var b strings.Builder
	for _, r := range p.Memory() {
		fmt.Fprintf(&b, "%7d %s\n", r.Bytes, r.Kind)
	}
	fmt.Fprintf(&b, "%7d in all\n", p.Bytes())
	return b.String()
}

func unitTable(p *Plan) string {
	var b strings.Builder
	for _, u := range p.Units {
		fmt.Fprintf(&b, "%s: %d elements, %d decay\n", u.Name, u.Len, u.Decayed)
		for _, s := range u.Slots {
			fmt.Fprintf(&b, "  %5d %s %v\n", s.Off, s.Name, s.Shape)
		}
	}
	return b.String()
}
