//go:build sim && cgo && linux

package gpucheck_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/gpucheck"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/record"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// config is a model that is trained in no time.
const config = `{"model_type": "qwen2", "vocab_size": 96, "hidden_size": 128, "num_hidden_layers": 2,
"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 192, "max_position_embeddings": 64,
"rms_norm_eps": 1e-6, "rope_theta": 10000, "tie_word_embeddings": true, "initializer_range": 0.05}`

// prepared makes a folder of tools and the small model, and tells processes that are started of them.
func prepared(t *testing.T) (tools, model string) {
	t.Helper()
	tools, model = t.TempDir(), t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	write := func(path, text string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(self, filepath.Join(tools, "gpucheck.test")); err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(tools, "bench", "peers", "fsdp2.py"), "", 0o600)
	write(filepath.Join(model, "config.json"), config, 0o600)
	t.Setenv(modelVariable, model)
	t.Setenv("GOFSDP_TEST_TOOLS", tools)
	t.Setenv("GOFSDP_SEED", "1")
	return tools, model
}

// TestACheckOfSimulatedGPUs runs all parts, each as a process, and holds the page against the golden one. Numbers
// that are measured are left out of both.
func TestACheckOfSimulatedGPUs(t *testing.T) {
	tools, model := prepared(t)
	m, end, err := simulate(2, tools)
	if err != nil {
		t.Fatal(err)
	}
	if err := end(); err != nil {
		t.Fatal(err)
	}
	s := small(model)
	r := &gpucheck.Runner{
		Command: []string{m.Gofsdp, "gpu-check", "part"}, Report: m.Report, Simulated: true,
		Log: io.Discard, Say: func(format string, args ...any) { t.Logf(format, args...) },
	}
	result, err := r.Run(t.Context(), s, gpucheck.Parts(s))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range result.Parts {
		want := gpucheck.OK
		if p.Name == "witness" {
			want = gpucheck.NotRun
		}
		if p.State != want {
			t.Errorf("%s: %s, want %s: %s", p.Name, p.State, want, p.Reason)
		}
	}
	if result.Err() != nil {
		t.Error(result.Err())
	}
	out := t.TempDir()
	if err := result.Write(out); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(out, "gpu-check.json"))
	if err != nil {
		t.Fatal(err)
	}
	var read gpucheck.Result
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	plain(&read)
	if err := read.Write(out); err != nil {
		t.Fatal(err)
	}
	compare := func(file string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(out, file))
		if err != nil {
			t.Fatal(err)
		}
		golden(t, file, strings.NewReplacer(model, "MODEL", tools, "TOOLS").Replace(string(text)))
	}
	compare("gpu-check.md")
	// The form is the same for all parts.
	read.Parts = slices.DeleteFunc(read.Parts, func(p gpucheck.Outcome) bool {
		return !slices.Contains([]string{"loader", "graphs", "witness", "sustained"}, p.Name)
	})
	if err := read.Write(out); err != nil {
		t.Fatal(err)
	}
	compare("gpu-check.json")
}

// plain leaves out what differs from run to run and from machine to machine: each number that is measured is 1.
func plain(r *gpucheck.Result) {
	r.Time, r.Host, r.Build, r.Seconds = time.Time{}, record.Host{}, record.Build{}, 1
	for i := range r.Goals {
		r.Goals[i].Figure, r.Goals[i].Verdict = "", ""
	}
	for i := range r.Parts {
		p := &r.Parts[i]
		p.Seconds = 1
		for name := range p.Figures {
			p.Figures[name] = 1
		}
		for k := range p.Tables {
			t := &p.Tables[k]
			if p.Name == "compiled" { // a line a kernel
				t.Rows, t.Note = t.Rows[:1], ""
			}
			for _, row := range t.Rows {
				for j, c := range t.Columns {
					_, number := row[j].(float64)
					if number && (c.Unit != gpucheck.Count || p.Name == "compiled" || p.Name == "kernels" && c.Name != "wrong") {
						row[j] = 1.0
					}
					if strings.Contains(c.Name, "loss") || strings.Contains(c.Name, "norm") {
						row[j] = "as it is"
					}
				}
			}
			if p.Name == "shares" && t.Columns[0].Name == "operation" { // by time, and what bounds them by rates
				slices.SortFunc(t.Rows, func(a, b []any) int { return strings.Compare(a[0].(string), b[0].(string)) })
				for _, row := range t.Rows {
					row[6] = "as it is"
				}
			}
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s has changed; where that is wanted, renew it by -rewrite:\n%s", path, diff)
	}
}

// run runs one part here, on a machine that is changed before.
func run(t *testing.T, name string, change func(*gpucheck.Machine)) gpucheck.Outcome {
	t.Helper()
	tools, model := prepared(t)
	t.Setenv(plantVariable, "")
	m, end, err := simulate(2, tools)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := end(); err != nil {
			t.Error(err)
		}
	}()
	change(m)
	s := small(model)
	parts := gpucheck.Parts(s)
	i := slices.IndexFunc(parts, func(p gpucheck.Part) bool { return p.Name == name })
	return parts[i].Run(t.Context(), m, s)
}

// TestAFaultMakesItsPartFail plants one in what each part looks at.
func TestAFaultMakesItsPartFail(t *testing.T) {
	environment := func(plant string) func(*gpucheck.Machine) {
		return func(*gpucheck.Machine) {
			if err := os.Setenv(plantVariable, plant); err != nil { // run sets it back
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name, part string
		change     func(*gpucheck.Machine)
		want       string // in the reason
	}{
		{"a library that is missing", "loader", func(m *gpucheck.Machine) {
			m.Report.NCCL = cuda.Library{Name: "libnccl.so.2", Problem: "libnccl.so.2 is not here"}
		}, "NCCL: libnccl.so.2 is not here"},
		{"a GPU that cannot be used", "loader", func(m *gpucheck.Machine) {
			m.Report.Devices[1].Problem = "device 1 has no bf16"
		}, "device 1 has no bf16"},
		{"a kernel that is not compiled", "compiled", func(m *gpucheck.Machine) {
			m.Open = func(cuda.Options) (device.Device, error) {
				return nil, errors.New("218: this PTX is not what the driver takes")
			}
		}, "this PTX is not what the driver takes"},
		{"an element one number beyond its bound", "kernels", func(m *gpucheck.Machine) {
			m.Environment = []string{plantVariable + "=wrong SwiGLU"}
		}, "SwiGLU f32: SwiGLU.Out: 1 of "},
		{"a product whose second half is lost", "gemm", tampered[*device.MatMul](func(o *device.MatMul) device.Op {
			n := o.C.Len / 2
			return &device.Fill{Dst: o.C.Slice(o.C.Len-n, n), N: int(n)}
		}), "times as far from its value in float64 as rounding explains"},
		{"a bias that is another's", "gemm", tampered[*device.MatMul](func(o *device.MatMul) device.Op {
			if o.Bias.Absent() {
				return nil
			}
			wrong := *o
			wrong.Bias = o.A.Slice(8, int64(o.N))
			return &wrong
		}), ", bias in f32: an element is "},
		{"an operation that fails", "shares", refusing[*device.SwiGLU], "SwiGLU is refused"},
		{"a list that loses a number", "graphs", tampered[*device.ReduceSum](func(o *device.ReduceSum) device.Op {
			return &device.Fill{Dst: o.Dst.Slice(7, 1), N: 1, Value: 3}
		}), "element 7 is 3"},
		{"no NCCL", "nccl", func(m *gpucheck.Machine) {
			m.NCCL = func() (*nccl.Library, error) { return nil, errors.New("no library: libnccl.so.2 is not here") }
		}, "libnccl.so.2 is not here"},
		{"a wrong sum", "nccl-all", spoilt, "element 3 is 99"},
		{"a norm that forgets", "engine", tampered[*device.AddRMSNorm](func(o *device.AddRMSNorm) device.Op {
			n := o.Out.Len / 2
			return &device.Fill{Dst: o.Out.Slice(n, n), N: int(n)}
		}), "step 1: the loss is "},
		{"an update that is lost with graphs", "engine", forgetful, ": with graphs the loss is "},
		{"an update that is lost on one rank", "engine-all", forgetful, "step 2: the loss is "},
		{"memory that nobody accounts for", "memory", hoarding, "the rows add up to "},
		{"a witness that disagrees", "witness", func(m *gpucheck.Machine) {
			if err := os.WriteFile(filepath.Join(m.Tools, "witness.test"), []byte("#!/bin/sh\necho the copies differ; exit 1\n"), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "witness.test: the copies differ\n"},
		{"a GPU that does not open", "sustained", func(m *gpucheck.Machine) {
			m.Open = func(cuda.Options) (device.Device, error) { return nil, errors.New("out of memory") }
		}, "out of memory"},
		{"a step that fails", "training-tiny", refusing[*device.AdamW], "AdamW is refused"},
		{"a peer that ends", "pytorch-tiny", environment("the peer ends"), "the peer has ended"},
		{"losses that differ", "pytorch-tiny", environment("other losses"), "the loss of "},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := run(t, c.part, c.change)
			if o.State != gpucheck.Failed || !strings.Contains(o.Reason, c.want) {
				t.Errorf("%s: %s, want failed, by %q:\n%s", c.part, o.State, c.want, o.Reason)
			}
		})
	}
}

// TestWhatAMachineLacksIsNotRun and never as good as ok.
func TestWhatAMachineLacksIsNotRun(t *testing.T) {
	for _, c := range []struct {
		name, part string
		change     func(*gpucheck.Machine)
		want       string
	}{
		{"no test binary", "kernels", func(m *gpucheck.Machine) { m.Tools = t.TempDir() }, "gpucheck.test is not there"},
		{"one GPU", "nccl-all", func(m *gpucheck.Machine) { m.Report.Devices = m.Report.Devices[:1] }, "this machine has 1 GPU that can be used"},
		{"no witness", "witness", func(*gpucheck.Machine) {}, "witness.test is not there"},
		{"no Python", "pytorch-tiny", func(m *gpucheck.Machine) { m.Pythons = nil }, "there is no Python"},
		{"no PyTorch", "pytorch-tiny", func(m *gpucheck.Machine) { m.Environment = []string{plantVariable + "=no torch"} }, "No module named 'torch'"},
		{"too little memory", "pytorch-tiny", func(m *gpucheck.Machine) { m.Report.Devices[0].Memory = 1 << 20 }, ", and the GPU has 1 MiB, of which 60 % are used here at most"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := run(t, c.part, c.change)
			if o.State != gpucheck.NotRun || !strings.Contains(o.Reason, c.want) {
				t.Errorf("%s: %s, want not run, by %q: %s", c.part, o.State, c.want, o.Reason)
			}
		})
	}
}

func TestWhereNoGPUCanBeUsedTheLoaderAloneIsRun(t *testing.T) {
	started := filepath.Join(t.TempDir(), "started")
	r := &gpucheck.Runner{
		Command: []string{"sh", "-c", "echo $1 >> " + started, "sh"}, Log: io.Discard, Say: func(string, ...any) {},
		Report: cuda.Report{State: cuda.Unusable, Problem: "cuda: libcuda.so.1 is too old"},
	}
	s := gpucheck.Short()
	for _, names := range [][]string{nil, {"kernels", "nccl"}} {
		parts := gpucheck.Parts(s)
		if names != nil {
			var err error
			if parts, err = gpucheck.Choose(parts, names); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.RemoveAll(started); err != nil {
			t.Fatal(err)
		}
		result, err := r.Run(t.Context(), s, parts)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(started); err != nil || string(text) != "loader\n" {
			t.Errorf("of %q these were started: %q, %v", names, text, err)
		}
		for i, p := range result.Parts {
			want := gpucheck.NotRun
			if i == 0 {
				want = gpucheck.Failed // this one leaves no result
			}
			if p.State != want || p.State == gpucheck.NotRun && !strings.Contains(p.Reason, "no GPU of this machine can be used") {
				t.Errorf("%s: %s: %s", p.Name, p.State, p.Reason)
			}
		}
		if err := result.Err(); err == nil || err.Error() != "failed: loader" {
			t.Error(err)
		}
	}
}

// TestAPartWhoseProcessEndsHasFailed, and the others are run all the same.
func TestAPartWhoseProcessEndsHasFailed(t *testing.T) {
	s := small("")
	parts, err := gpucheck.Choose(gpucheck.Parts(s), []string{"loader", "graphs"})
	if err != nil {
		t.Fatal(err)
	}
	r := &gpucheck.Runner{
		Command: []string{"/bin/sh", "-c", `test "$0" = graphs && { echo a fault >&2; kill -SEGV $$; }; echo '{"state":"ok"}' > "$1"`},
		Log:     io.Discard, Say: func(string, ...any) {},
	}
	result, err := r.Run(t.Context(), s, parts)
	if err != nil {
		t.Fatal(err)
	}
	if p := result.Parts[1]; p.State != gpucheck.Failed || !strings.Contains(p.Reason, "ended without a result (signal: segmentation fault") || !strings.Contains(p.Reason, "a fault") {
		t.Errorf("%s: %s", p.State, p.Reason)
	}
	if result.Parts[0].State != gpucheck.OK || result.Err() == nil || result.Err().Error() != "failed: graphs" {
		t.Errorf("%s, %v", result.Parts[0].State, result.Err())
	}
}

// TestWhatNCCLSaysIsInTheLog also where nothing else is left of the part's process.
func TestWhatNCCLSaysIsInTheLog(t *testing.T) {
	for _, name := range []string{"NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_LAUNCH_ORDER_IMPLICIT"} {
		t.Setenv(name, "") // which puts back what it was
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("NCCL_DEBUG_SUBSYS", "ALL")
	parts, err := gpucheck.Choose(gpucheck.Parts(small("")), []string{"nccl"})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	r := &gpucheck.Runner{
		Command: []string{"/bin/sh", "-c", `echo "$0: $NCCL_DEBUG $NCCL_DEBUG_SUBSYS $NCCL_LAUNCH_ORDER_IMPLICIT" > "$NCCL_DEBUG_FILE"; kill -SEGV $$`},
		Log:     &log, Say: func(string, ...any) {},
	}
	if _, err := r.Run(t.Context(), small(""), parts); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"nccl: INFO ALL 1\n", "nccl-all: INFO ALL 1\n"} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("the log has no %q, or more than one:\n%s", want, log.String())
		}
	}
}

// TestAPartThatHangsIsEnded by its own limit, which is a failure, or because the time for all is over, which is not.
func TestAPartThatHangsIsEnded(t *testing.T) {
	for _, c := range []struct {
		whole bool // the limit is that of all parts
		want  gpucheck.State
		says  string
	}{
		{false, gpucheck.Failed, "not done after %v; its last words: waiting"},
		{true, gpucheck.NotRun, "%v for the whole check were over; gofsdp gpu-check --parts graphs"},
	} {
		// A busy machine may take longer than a limit to start the part, which then has said nothing.
		for limit := time.Second / 4; ; limit *= 4 {
			parts, err := gpucheck.Choose(gpucheck.Parts(small("")), []string{"graphs"})
			if err != nil {
				t.Fatal(err)
			}
			r := &gpucheck.Runner{
				Command: []string{"/bin/sh", "-c", "echo waiting; sleep 1000"},
				Log:     io.Discard, Say: func(string, ...any) {},
			}
			if parts[0].Within = limit; c.whole {
				parts[0].Within, r.Within = time.Hour, limit
			}
			result, err := r.Run(t.Context(), small(""), parts)
			if err != nil {
				t.Fatal(err)
			}
			p := result.Parts[0]
			if p.State == c.want && strings.Contains(p.Reason, fmt.Sprintf(c.says, limit)) {
				break
			}
			if p.State != c.want || strings.Contains(p.Reason, "waiting") || limit > 10*time.Second {
				t.Errorf("%s: %s", p.State, p.Reason)
				break
			}
			t.Logf("a limit of %v is too short for this machine now: %s", limit, p.Reason)
		}
	}
}

func TestPartsAreChosenByName(t *testing.T) {
	all := gpucheck.Parts(gpucheck.Full())
	for names, want := range map[string]string{
		"nccl":             "nccl nccl-all",
		"training,kernels": "kernels training-0.5b training-1.5b",
		"pytorch-1.5b":     "pytorch-1.5b",
		"":                 "",
	} {
		chosen, err := gpucheck.Choose(all, slices.DeleteFunc(strings.Split(names, ","), func(s string) bool { return s == "" }))
		if err != nil {
			t.Error(err)
		}
		var got []string
		for _, p := range chosen {
			got = append(got, p.Name)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", names, got, want)
		}
	}
	if _, err := gpucheck.Choose(all, []string{"kernel"}); err == nil || !strings.Contains(err.Error(), `no part "kernel"; the parts are loader, compiled, kernels,`) {
		t.Error(err)
	}
}

// A context that ends is no result.
func TestACheckThatIsInterruptedHasNoResult(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r := &gpucheck.Runner{Command: []string{"/bin/true"}, Log: io.Discard, Say: func(string, ...any) {}}
	if _, err := r.Run(ctx, small(""), gpucheck.Parts(small(""))); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
