package main

import (
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/record"
)

func TestResultsAreCalledAfterWhatComputes(t *testing.T) {
	h := record.Host{CPU: record.Known("AMD EPYC"), CPUs: 16}
	g := &gpus{report: cuda.Report{Devices: []cuda.Properties{{Name: "NVIDIA H100 80GB HBM3"}, {Name: "NVIDIA H100 80GB HBM3"}}}}
	for want, found := range map[string]*gpus{"amd-epyc-16-cpus": nil, "nvidia-h100-80gb-hbm3-2-gpus": g} {
		if got := machineName(h, found); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestRanksComputeOnGPUsWhereAllHaveOneAndOnCPUsWhereNoneHas(t *testing.T) {
	l4 := gpu{Name: "NVIDIA L4", Capability: "8.9", Driver: "535.161.08"}
	l40s := gpu{Name: "NVIDIA L40S", Capability: "8.9", Driver: "535.161.08"}
	h200 := gpu{Name: "NVIDIA H200", Capability: "9.0", Driver: "580.1"}
	newer := gpu{Name: "NVIDIA L4", Capability: "8.9", Driver: "580.1"}
	with := func(g gpu, nccl string) gpu { g.NCCL = nccl; return g }
	none := gpu{Lacks: "no library: libcuda.so.1 is not here; install NVIDIA's driver"}
	old := gpu{Lacks: "cuda: libcuda.so.1 is too old; update it", Broken: true}
	fewer := gpu{Lacks: "1 GPU for 2 ranks that take one each: start as many as there are, by scaling.num_workers", Broken: true}
	for name, c := range map[string]struct {
		asked string
		gpus  []gpu
		want  string
		says  []string // of the error, or of the only note; nil: neither
	}{
		"all have one":                      {"auto", []gpu{l4, l4, l4}, "cuda", nil},
		"none has one":                      {"auto", []gpu{none, none}, "cpu", nil},
		"nobody has looked":                 {"cpu", []gpu{{}, {}}, "cpu", nil},
		"the CPU is asked for":              {"cpu", []gpu{l4, none}, "cpu", nil},
		"a rank alone":                      {"auto", []gpu{l4}, "cuda", nil},
		"simulated ones are asked for":      {"sim", []gpu{l4, l4}, "sim", nil},
		"one cannot be used":                {"auto", []gpu{none, old}, "cpu", []string{"computing on the CPU", "rank 1 on node-b has no GPU to compute on: libcuda.so.1 is too old; update it"}},
		"the only one cannot be used":       {"auto", []gpu{old}, "cpu", []string{"since this machine has no GPU to compute on: libcuda.so.1 is too old"}},
		"a mixture":                         {"auto", []gpu{none, l4, none}, "", []string{"scaling.device: auto takes GPUs for all ranks or CPUs for all", "rank 1 on node-b has NVIDIA L4", "rank 0 on node-a has no GPU to compute on: libcuda.so.1 is not here; install NVIDIA's driver", "scaling.device: cpu"}},
		"fewer of them than ranks":          {"auto", []gpu{l4, fewer}, "", []string{"rank 1 on node-b has no GPU to compute on: 1 GPU for 2 ranks", "scaling.num_workers"}},
		"GPUs are asked for, and one lacks": {"cuda", []gpu{l4, none}, "", []string{"scaling.device: cuda, and rank 1 on node-b has no GPU to compute on: libcuda.so.1 is not here"}},
		"GPUs are asked for of one":         {"cuda", []gpu{none}, "", []string{"scaling.device: cuda, and this machine has no GPU"}},
		"two architectures":                 {"cuda", []gpu{l4, l4, h200}, "", []string{"rank 0 on node-a has NVIDIA L4 (compute capability 8.9) and rank 2 on node-c has NVIDIA H200 (9.0)", "drift apart", "take one kind"}},
		"two versions of NCCL":              {"cuda", []gpu{with(l4, "2.29.7 (/a)"), with(l4, "2.29.7 (/b)"), with(l4, "2.28.3 (/c)")}, "", []string{"rank 0 on node-a has NCCL 2.29.7 (/a) and rank 2 on node-c has NCCL 2.28.3 (/c)", "install one on all machines, or let GOFSDP_LIBNCCL name its file"}},
		"one version of NCCL at two places": {"cuda", []gpu{with(l4, "2.29.7 (/a)"), with(l4, "2.29.7 (/b)")}, "cuda", nil},
		"two kinds of one architecture":     {"auto", []gpu{l4, l40s, l4}, "cuda", []string{"rank 0 on node-a has NVIDIA L4", "rank 1 on node-b has NVIDIA L40S", "the slowest"}},
		"two drivers":                       {"cuda", []gpu{l4, newer, newer}, "cuda", []string{"driver 535.161.08", "rank 1 on node-b has NVIDIA L4 (driver 580.1)"}},
	} {
		t.Run(name, func(t *testing.T) {
			var all []machine
			for i, g := range c.gpus {
				all = append(all, machine{Host: "node-" + string(rune('a'+i)), ISA: "avx2", GPU: g})
			}
			got, notes, err := commonDevice(c.asked, all)
			if got != c.want || (err == nil) != (c.want != "") || err == nil && len(notes) != min(len(c.says), 1) {
				t.Fatalf("the ranks take %q (%v) and say %q, want %q", got, err, notes, c.want)
			}
			said := strings.Join(notes, "; ")
			if err != nil {
				said = err.Error()
				if code := (&app{ctx: t.Context()}).codeOf(err); code != exitUser {
					t.Errorf("it ends with exit code %d", code)
				}
			}
			for _, s := range c.says {
				if !strings.Contains(said, s) {
					t.Errorf("it does not say %q: %s", s, said)
				}
			}
		})
	}
}
