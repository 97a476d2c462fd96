//go:build sim && cgo && linux

package bench

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/device"
)

// simulated returns what opens the GPU of a simulated machine with that much
// memory. At the test's end nothing may be left on it or have gone wrong.
func simulated(t *testing.T, memory uint64, s GPUSizes) Open {
	t.Helper()
	l4 := sim.L4()
	l4.Memory = memory
	m, err := sim.Start(sim.Config{Devices: []sim.Device{l4}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.Wait()
		for _, f := range m.Faults() {
			t.Error(f)
		}
		if leaks := m.Leaks(); len(leaks) > 0 {
			t.Errorf("left: %v", leaks)
		}
		m.Close()
	})
	driver, err := cuda.OpenTable(m.Table(), m.BLAS())
	if err != nil {
		t.Fatal(err)
	}
	return func(int) (device.Device, error) {
		d, err := cuda.New(driver, cuda.Options{})
		if err != nil {
			return nil, err
		}
		return OnGPU(d, s)
	}
}

// opened opens it for the time of a test.
func opened(t *testing.T, open Open) *GPU {
	t.Helper()
	d, err := open(0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d.(*GPU)
}

// smallShape is one that GPUs have kernels for.
func smallShape(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type": "qwen2", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
	  "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64,
	  "max_position_embeddings": 128, "tie_word_embeddings": true}`), 0o666); err != nil {
		t.Fatal(err)
	}
	return dir
}

var tiny = GPUSizes{Edge: 64, Copy: 64 << 10}

func TestASimulatedGPUIsMeasuredAsTheCPUIs(t *testing.T) {
	open := simulated(t, 1<<30, tiny)
	s := Short()
	s.Model, s.Length, s.Sequences, s.Precisions = smallShape(t), 16, 1, []device.DType{device.BF16}
	s.Steps, s.Watched, s.Rounds, s.Readings, s.Reading = 2, 1, 1, 1, time.Millisecond
	r, err := Run(t.Context(), s, open, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	if r.Device.Kind != gpuKind || len(r.Machine) != 1 || r.Machine[0].Threads != 0 || r.Machine[0].BF16.Low <= 0 || r.Machine[0].Copy.Low <= 0 || r.Machine[0].Triad.High != 0 {
		t.Errorf("device %+v, limits %+v", r.Device, r.Machine)
	}
	w := r.Workloads[0]
	if w.Threads != 0 || w.Step.Share.Low <= 0 || w.Step.Cores.Count != 0 || w.Step.OnCores.Count != 0 {
		t.Errorf("of a step: %+v, %d threads", w.Step, w.Threads)
	}
	for _, program := range []Program{InStep, InDecode, InNone} {
		n := 0
		for _, o := range w.Operations {
			if o.Program == program {
				n++
			}
			if o.Alone.Share.Low <= 0 || program == InStep && o.Program == program && o.Within.Seconds.Low <= 0 {
				t.Errorf("%s of %s: %+v", o.Name, o.Program, o)
			}
		}
		if n == 0 {
			t.Errorf("no operation of program %s", program)
		}
	}
	var text bytes.Buffer
	if err := r.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	if said := text.String(); !strings.Contains(said, "in bf16, a GPU: 1 × 16 tokens") || strings.Contains(said, "thread") || strings.Contains(said, "cores") {
		t.Errorf("the table says\n%s", said)
	}
}

func TestASimulatedGPUsLimitsAreMeasuredInTheMemoryThatThereIs(t *testing.T) {
	// 2 × 128 MiB do not fit.
	g := opened(t, simulated(t, 96<<20, GPUSizes{Copy: 128 << 20}))
	if rate, err := g.Copying(time.Microsecond); err != nil || rate <= 0 {
		t.Errorf("copying: %g bytes/s, %v", rate, err)
	}
}

func TestASimulatedGPUWithoutRoomForMeasuringIsRefused(t *testing.T) {
	full := opened(t, simulated(t, 16<<20, GPUSizes{Edge: 64 << 10, Copy: 1 << 30}))
	if rate := full.PeakFLOPS(device.BF16, time.Microsecond); rate != 0 {
		t.Errorf("%g FLOP/s without memory for the matrices", rate)
	}
	if _, err := LimitsOf(full); err == nil || !strings.Contains(err.Error(), "NVIDIA L4") || !strings.Contains(err.Error(), "of its memory free") {
		t.Errorf("%v, want the GPU and the remedy", err)
	}
}

func TestMemoryOnASimulatedGPUIsWhatTheDriverCounts(t *testing.T) {
	g := opened(t, simulated(t, 1<<30, tiny))
	take := func() {
		if _, err := g.Local(device.F32, 8<<20); err != nil {
			t.Fatal(err)
		}
	}
	take()
	r, err := residentOn(g)
	if err != nil {
		t.Fatal(err)
	}
	take()
	r.begin()
	if err := r.end(); err != nil || r.peak != 32<<20 {
		t.Errorf("%d bytes, %v, want 32 MiB", r.peak, err)
	}
	if err := g.Release(); err != nil {
		t.Fatal(err)
	}
	r.begin()
	if err := r.end(); err != nil || r.peak != 32<<20 {
		t.Errorf("%d bytes, %v, want the greatest that there was", r.peak, err)
	}
}

func TestASimulatedGPUIsFilledWithTheNumbersThatAtTells(t *testing.T) {
	g := opened(t, simulated(t, 1<<30, tiny))
	const n = 3*patternLen + 5
	for _, typ := range []device.DType{device.F32, device.BF16} {
		x, err := g.Local(typ, n)
		if err != nil {
			t.Fatal(err)
		}
		y, err := g.Pinned(typ, n)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Random(x); err != nil {
			t.Fatal(err)
		}
		g.Stream.Launch(&device.Copy{Src: x, Dst: y, N: n})
		if err := g.Stream.Sync(); err != nil {
			t.Fatal(err)
		}
		for _, i := range []int{0, 1, patternLen - 1, patternLen, 2*patternLen + 7, n - 1} {
			got := float64(0)
			if typ == device.F32 {
				got = float64(y.F32()[i])
			} else {
				got = float64(device.FromBF16(y.BF16()[i]))
			}
			if got != At(i) {
				t.Errorf("%s: element %d is %g, want %g", typ, i, got, At(i))
			}
		}
	}
}

func TestWhatASimulatedGPUHasNoKernelForIsRefusedBeforeItIsMeasured(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type": "qwen2", "vocab_size": 320, "hidden_size": 80, "intermediate_size": 96,
	  "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 40,
	  "max_position_embeddings": 128, "tie_word_embeddings": true}`), 0o666); err != nil {
		t.Fatal(err)
	}
	s := Short()
	s.Model, s.Length, s.Sequences = dir, 16, 1
	open := simulated(t, 1<<30, tiny)
	_, err := Run(t.Context(), s, open, func(string, ...any) { t.Error("something is measured") })
	if err == nil || !strings.Contains(err.Error(), "Attention") {
		t.Errorf("%v, want the operation", err)
	}
	x, err := ShortStrategies("none", 2)
	if err != nil {
		t.Fatal(err)
	}
	x.Model, x.Length, x.Sequences = dir, 16, 1
	if err := x.Check(opened(t, open).Info()); err == nil || !strings.Contains(err.Error(), "Attention") {
		t.Errorf("of ranks: %v, want the operation", err)
	}
}

func TestCollectivesOfGPUsNeedTheMemoryOfOne(t *testing.T) {
	s := ShortCollectives(Meshes{{Across: 1, Within: 8}})
	gpu := device.Info{Name: "NVIDIA L4", Kind: gpuKind, Memory: 16 << 20}
	if err := s.Check(gpu); err != nil {
		t.Error(err)
	}
	gpu.Memory--
	if err := s.Check(gpu); err == nil || !strings.Contains(err.Error(), "of each GPU's memory and NVIDIA L4 has") {
		t.Errorf("%v, want what is needed of each", err)
	}
	var text bytes.Buffer
	r := Results{Device: Device{Kind: gpuKind}, Collectives: []Collective{
		{Kind: "barrier", Ranks: 2, Seconds: SpreadOf([]float64{1})},
		{Kind: "all-gather", Ranks: 2, Bytes: 1 << 20, Reads: 1 << 19, Seconds: SpreadOf([]float64{1})},
		{Kind: "barrier", Ranks: 4, Seconds: SpreadOf([]float64{1})},
	}}
	if err := r.WriteTable(&text); err != nil {
		t.Fatal(err)
	}
	var titles []string
	for line := range strings.Lines(text.String()) {
		if strings.HasPrefix(line, "collectives over NCCL") {
			titles = append(titles, strings.Fields(line)[3])
		}
	}
	if !slices.Equal(titles, []string{"2", "4"}) || strings.Contains(text.String(), "copy") {
		t.Errorf("the tables are\n%s", &text)
	}
}
