package scenario

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/device"
)

func TestAllSidesComputeOnWhatTheRunnerSays(t *testing.T) {
	for on, hidden := range map[string]bool{"": false, "cpu": true, "cuda": false, "sim": false} {
		t.Setenv("CUDA_VISIBLE_DEVICES", "0,1")
		r, _ := runner(t)
		r.Device = on
		res, err := r.Run(t.Context(), comparison(1, side("one", "tells")))
		if err != nil {
			t.Fatal(err)
		}
		f := res.Rounds[0].Runs[0].Failure
		want := fmt.Sprintf("device %q, GPUs %q", on, map[bool]string{true: "", false: "0,1"}[hidden])
		if f == nil || f.Text != want {
			t.Errorf("on %q: a side is told %+v, want %s", on, f, want)
		}
	}
}

// gpus is a machine of GPUs.
type gpus struct{ machine }

func (gpus) Info() device.Info { return device.Info{Name: "fake", Kind: "cuda"} }

func TestTheLimitsOfGPUsAreThoseOfOneForEachRank(t *testing.T) {
	r, _ := runner(t)
	s := comparison(1, side("one", "takes", "1", "4"))
	s.Work.Ranks, s.Work.Threads, s.Work.Cases = 4, 7, []StepCase{{Name: "plain", Strategy: "full_shard"}, {Name: "two", Ranks: 2, Strategy: "full_shard"}}
	read := 0.0
	r.Open = func(int) (device.Device, error) { return gpus{machine{read: &read}}, nil }
	res, err := r.Run(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	// One GPU reads 101 before and 201 after, see machine.
	if got := res.Rounds[0].Runs[0].Limits; got != (Limits{604, 604, 604}) {
		t.Errorf("limits %+v, want four times 151", got)
	}
	for ranks, want := range map[int]float64{4: 1, 2: 0.5, 0: 0.25, 1: 0.25} {
		if got := res.Parts(ranks); got != want {
			t.Errorf("%d ranks have %g of the limits, want %g", ranks, got, want)
		}
	}
	cpu := Result{Scenario: *s, Device: bench.Device{Kind: "cpu", Threads: 14}}
	if got := cpu.Parts(1); got != 0.5 {
		t.Errorf("7 of 14 cores are %g of the limits", got)
	}
}

func TestAStartUpTakesNoSimulatedGPUs(t *testing.T) {
	r, _ := runner(t)
	s := &Scenario{Name: "x", Work: Work{Kind: Startup}}
	for on, refused := range map[string]bool{"cpu": false, "cuda": false, "sim": true} {
		r.Device = on
		if err := r.Check(s); (err != nil) != refused || refused && !strings.Contains(err.Error(), "x: a start-up ") {
			t.Errorf("on %s: %v", on, err)
		}
	}
}
