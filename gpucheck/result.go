package gpucheck

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/record"
)

// Format is the format of results.
const Format = 1

// Result is what a whole check gave.
type Result struct {
	Format  int          `json:"format"`
	Time    time.Time    `json:"time"`
	Host    record.Host  `json:"host"`
	Build   record.Build `json:"build"`
	Machine cuda.Report  `json:"machine"`
	// Simulated says that there was no GPU: nothing here was seen on one, and no time means anything.
	Simulated bool      `json:"simulated,omitempty"`
	Seconds   float64   `json:"seconds"`
	Parts     []Outcome `json:"parts"`
	Goals     []Goal    `json:"goals,omitempty"`
}

// Goal is a speed that the project wants to reach. One that is missed is no failure of a part.
type Goal struct {
	Goal    string `json:"goal"`
	Figure  string `json:"figure"`
	Verdict string `json:"verdict"` // reached, missed, or unknown where the parts that tell were not run
}

// Err is nil where no part has failed; those that were not run do not count.
func (r *Result) Err() error {
	var failed []string
	for _, p := range r.Parts {
		if p.State == Failed {
			failed = append(failed, p.Name)
		}
	}
	if len(failed) == 0 {
		return nil
	}
	return errors.New("failed: " + strings.Join(failed, ", "))
}

// Write writes gpu-check.json and gpu-check.md into a folder.
func (r *Result) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(r); err != nil {
		return err
	}
	var page bytes.Buffer
	r.Page(&page)
	return errors.Join(
		record.WriteFileAtomic(filepath.Join(dir, "gpu-check.json"), text.Bytes(), 0o644),
		record.WriteFileAtomic(filepath.Join(dir, "gpu-check.md"), page.Bytes(), 0o644),
	)
}

// judge holds the figures against the goals: DESIGN.md and issue 6 name them.
func (r *Result) judge(models []Shape) {
	figure := func(part, name string) float64 {
		for _, p := range r.Parts {
			if p.Name == part && p.State == OK {
				return p.Figures[name]
			}
		}
		return 0
	}
	add := func(goal string, is, want float64, text string) {
		g := Goal{Goal: goal, Figure: text, Verdict: "missed"}
		switch {
		case is == 0:
			g.Figure, g.Verdict = "", "unknown"
		case is >= want:
			g.Verdict = "reached"
		}
		r.Goals = append(r.Goals, g)
	}
	for _, m := range models {
		ratio := figure("pytorch-"+m.Name, "speed over PyTorch's")
		add("at least as fast as PyTorch with torch.compile: "+m.Model, ratio, 1, cell(ratio, Times))
	}
	sustained, sheet := figure("sustained", "sustained FLOP/s"), figure("sustained", "data sheet FLOP/s")
	name := (&Machine{Report: r.Machine}).first().Name
	for _, m := range models {
		flops := figure("training-"+m.Name, "training FLOP/s")
		goal, of, want := "80 % of what cuBLAS sustains", sustained, 0.8
		if strings.Contains(name, "H100") || strings.Contains(name, "H200") {
			goal, of, want = "50 % of the data sheet's dense peak", sheet, 0.5
		}
		share := 0.0
		if of > 0 {
			share = flops / of
		}
		add(goal+": "+m.Model, share, want, cell(share, Share))
	}
}
