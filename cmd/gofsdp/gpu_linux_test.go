//go:build cgo

package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/cuda"
)

// TestWhatARunOnGPUsLacksIsNamedWithTheRemedy starts runs on machines whose driver
// is that of package cuda's tests.
func TestWhatARunOnGPUsLacksIsNamedWithTheRemedy(t *testing.T) {
	there := newTestDriver(t)
	for name, c := range map[string]struct {
		is   driverControl
		env  map[string]string
		args []string
		want []string // in what it says
	}{
		"too old a driver": {
			driverControl{11080, 0, 1, 8},
			nil,
			[]string{"--ranks", "1"},
			[]string{"scaling.device: cuda, and this machine has no GPU to compute on: libcuda.so.535.161.08", "is too old; the kernels need a driver of CUDA 12.2 (R535) or newer", "cuda-compat"},
		},
		"no device": {
			driverControl{12040, 100, 0, 8},
			nil,
			[]string{"--ranks", "1"},
			[]string{"is here and sees no GPU; a container gets its GPUs from its runtime"},
		},
		"a device without bf16": {
			driverControl{12040, 0, 1, 7},
			nil,
			[]string{"--ranks", "1"},
			[]string{"device 0, Test GPU 0, is of compute capability 7.9 and has no bf16: 8.0 (A100, L4, H100 and newer) is needed"},
		},
		"no cuBLAS": {
			driverControl{12040, 0, 1, 8},
			map[string]string{cuda.OverrideBLAS: "/nowhere/libcublas.so.13"},
			[]string{"--ranks", "1"},
			[]string{"matrix products need cuBLAS: GOFSDP_LIBCUBLAS: /nowhere/libcublas.so.13: no such file or directory; let it name the library's file, or unset it"},
		},
		"no NCCL for two": {
			driverControl{12040, 0, 2, 8},
			map[string]string{cuda.OverrideNCCL: "/nowhere"},
			[]string{"--ranks", "2"},
			[]string{"rank 0 on this machine has no GPU to compute on: GOFSDP_LIBNCCL: /nowhere: no such file or directory"},
		},
		"a cuBLAS that is none": {
			driverControl{12040, 0, 1, 8},
			map[string]string{cuda.OverrideBLAS: there.lackingBLAS},
			[]string{"--ranks", "1"},
			[]string{"matrix products need cuBLAS: libcublas.so.12 (" + there.lackingBLAS + ", version 12.1.2) has no ", "one of CUDA 12 or 13 is needed: install NVIDIA's wheel of it (pip install nvidia-cublas-cu12), or let GOFSDP_LIBCUBLAS name its file"},
		},
		"fewer GPUs than ranks": {
			driverControl{12040, 0, 2, 8},
			nil,
			[]string{"--ranks", "4"},
			[]string{"rank 2 on this machine has no GPU to compute on: 2 GPUs for 4 ranks that take one each: start as many as there are, by scaling.num_workers, or look at CUDA_VISIBLE_DEVICES"},
		},
		"too little memory": {
			driverControl{12040, 0, 1, 8},
			nil,
			[]string{"--ranks", "1", "--set", "model=qwen2.5-7b"},
			[]string{"a rank needs ", " of its GPU's memory, ", "and Test GPU 0 has 24 GiB: shard over more ranks, take a smaller train.micro_batch"},
		},
		"an older NCCL": {
			driverControl{12040, 0, 2, 8},
			map[string]string{cuda.OverrideNCCL: there.older},
			[]string{"--ranks", "2"},
			[]string{"libnccl.so.2.26.5 (" + there.older + ") is NCCL 2.26.5, which is not supported; NCCL 2.27 or newer is needed: install NVIDIA's wheel of it"},
		},
		"an NCCL that is none": {
			driverControl{12040, 0, 2, 8},
			map[string]string{cuda.OverrideNCCL: there.lackingNCCL},
			[]string{"--ranks", "2"},
			[]string{"libnccl.so.2.18.5 (" + there.lackingNCCL + ") lacks ", "NCCL 2.27 or newer is needed: install NVIDIA's wheel of it (pip install nvidia-nccl-cu12), or let GOFSDP_LIBNCCL name its file"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			there.is(t, c.is)
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			var stdout, stderr bytes.Buffer
			if code := run(append([]string{"train", "quickstart", "--set", "scaling.device=cuda", "--set", "run.storage_path=" + t.TempDir()}, c.args...), &stdout, &stderr); code != exitUser || stdout.Len() > 0 {
				t.Errorf("exit code %d, want %d; it said\n%s", code, exitUser, &stdout)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("it says %q, want in it %q", &stderr, want)
				}
			}
		})
	}
}
