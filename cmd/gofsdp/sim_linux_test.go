//go:build sim && cgo

package main

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/gofsdp/gofsdp/record"
)

// simulatedShape is one that GPUs have kernels for.
const simulatedShape = `{"model_type": "qwen2", "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96,
  "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64,
  "max_position_embeddings": 128, "tie_word_embeddings": true}`

// simulatedSteps are as many as losses are compared over.
const simulatedSteps = 3

// beginSimulated starts a run in bf16 of the program.
func beginSimulated(t *testing.T, env []string, args ...string) *session {
	t.Helper()
	shape := filepath.Join(t.TempDir(), "shape")
	err := os.Mkdir(shape, 0o777)
	if err == nil {
		err = os.WriteFile(filepath.Join(shape, "config.json"), []byte(simulatedShape), 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	return begin(t, env, append([]string{"train", "run.yaml", "--set", "model=" + shape, "--set", "train.precision=bf16", "--set", "data.sequence_length=32"}, args...)...)
}

// lossesOf returns the losses of a session's steps, once it has ended well.
func lossesOf(s *session) (losses []float64) {
	s.t.Helper()
	if status := s.end(); status.ExitStatus() != 0 {
		s.t.Fatalf("exit code %d; it said\n%s%s", status.ExitStatus(), &s.out, &s.err)
	}
	f, err := os.Open(filepath.Join(s.dir, "runs", "mine", "progress.csv"))
	if err != nil {
		s.t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		s.t.Fatal(err)
	}
	at := slices.Index(rows[0], "loss")
	for _, row := range rows[1:] {
		if row[at] == "" { // of an evaluation
			continue
		}
		loss, err := strconv.ParseFloat(row[at], 64)
		if err != nil {
			s.t.Fatalf("%v: %v", rows[0], err)
		}
		losses = append(losses, loss)
	}
	return losses
}

// apart is how far the losses of two runs are from each other, over all steps.
func apart(a, b []float64) (sum float64) {
	for i := range a {
		sum += (a[i] - b[i]) * (a[i] - b[i])
	}
	return math.Sqrt(sum)
}

// Numbers that are rounded to bf16 at other places differ as much from each other as
// from numbers that are not rounded: the CPU's losses in bf16 may be twice as far from
// a GPU's as they are from its own in fp32.
func TestSimulatedGPUsTrainAsTheCPUDoes(t *testing.T) {
	steps := "train.steps=" + strconv.Itoa(simulatedSteps)
	want := lossesOf(beginSimulated(t, nil, "--set", steps, "--set", "scaling.device=cpu"))
	rounding := apart(want, lossesOf(beginSimulated(t, nil, "--set", steps, "--set", "scaling.device=cpu", "--set", "train.precision=f32")))
	for name, args := range map[string][]string{
		"alone":                  {"--set", "scaling.graphs=off"},
		"alone, by graphs":       {"--set", "scaling.graphs=on"},
		"two ranks":              {"--ranks", "2"},
		"two ranks, accumulated": {"--ranks", "2", "--set", "train.micro_batch=1", "--strategy", "shard_grad_op"},
		"four ranks":             {"--ranks", "4", "--mesh", "2x2", "--strategy", "hybrid_shard"},
	} {
		t.Run(name, func(t *testing.T) {
			s := beginSimulated(t, nil, append([]string{"--set", steps, "--set", "scaling.device=sim"}, args...)...)
			got := lossesOf(s)
			if len(got) != simulatedSteps || len(want) != simulatedSteps {
				t.Fatalf("%d losses and %d of the CPU", len(got), len(want))
			}
			if off := apart(got, want); !(off <= 2*rounding) {
				t.Errorf("the losses are %v, the CPU's %v: off by %.2g, and rounding to bf16 takes the CPU's off by %.2g", got, want, off, rounding)
			} else {
				t.Logf("the losses are off by %.2g, and rounding to bf16 takes the CPU's off by %.2g", off, rounding)
			}
			run, err := record.LoadRun(filepath.Join(s.dir, "runs", "mine", "run.json"))
			if err != nil {
				t.Fatal(err)
			}
			n := run.Attempts[0].Nodes[0]
			gpus, known := n.GPUs.Get()
			if !known || len(gpus.Devices) != n.Ranks || gpus.Devices[0].Name != "NVIDIA L4" || gpus.Devices[0].Capability != "8.9" || gpus.CUDA != record.Known("12.2") || gpus.NCCL.Version != record.Known("2.29.7") {
				t.Errorf("the GPUs are recorded as %+v", n.GPUs)
			}
			if run.Device != record.Known(simDevice) || run.ISA != record.Known("sm_89") {
				t.Errorf("recorded as computed on %v by %v", run.Device, run.ISA)
			}
		})
	}
}

func TestWhatHappensToASimulatedRankEndsTheRun(t *testing.T) {
	for name, c := range map[string]struct {
		signal   syscall.Signal
		deadline string // which only the second waits for
		code     int
		want     string
	}{
		"it is killed":     {syscall.SIGKILL, "1m", exitLost, `^gofsdp: rank \d was killed by signal 9 `},
		"it is stopped":    {syscall.SIGSTOP, "8s", exitHung, `^gofsdp: rank \d( has not been heard for |: .* did not come)`}, // its peer may notice first
		"it is told to go": {syscall.SIGTERM, "1m", exitLost, `^gofsdp: rank \d was told to end: interrupted by SIGTERM`},
	} {
		t.Run(name, func(t *testing.T) {
			mark := "GOFSDP_TEST_MARK=" + t.TempDir()
			s := beginSimulated(t, []string{mark, "NCCL_DEBUG_SUBSYS=ALL"}, "--set", "scaling.device=sim", "--ranks", "2", "--set", "run.processes.deadline="+c.deadline)
			s.until("step ")
			pids := processesOf(t, mark, "rank")
			if len(pids) != 2 {
				t.Fatalf("the ranks are %v", pids)
			}
			for _, pid := range pids {
				hasVariablesOfNCCL(t, pid, filepath.Join(s.dir, "runs", "mine", "evidence"))
			}
			if err := syscall.Kill(pids[1], c.signal); err != nil {
				t.Fatal(err)
			}
			s.failed(c.code, c.want)
			if said := s.out.String(); strings.Contains(said, "between programs") {
				t.Errorf("it makes up where a rank stood: %s", said)
			}
			await(t, "the end of all", func() bool { return len(marked(t, mark)) == 0 })
		})
	}
}

// hasVariablesOfNCCL wants a rank's process to have begun with them, but for the
// user's own.
func hasVariablesOfNCCL(t *testing.T, pid int, evidence string) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Split(string(text), "\x00")
	for _, want := range []string{"NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=ALL", "NCCL_DEBUG_FILE=" + evidence + "/nccl.rank-000"} {
		if !slices.ContainsFunc(all, func(v string) bool { return strings.HasPrefix(v, want) }) {
			t.Errorf("process %d has no %s", pid, want)
		}
	}
}

func TestSimulatedScripts(t *testing.T) { runScripts(t, "testdata/sim") }
