//go:build cgo

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/doctor"
)

// TestTheDoctorTellsOfDrivers asks the program on machines whose driver is that of package cuda's tests.
func TestTheDoctorTellsOfDrivers(t *testing.T) {
	there, root := newTestDriver(t), t.TempDir()
	driver, nccl := there.driver, there.nccl
	for name, c := range map[string]struct {
		is   driverControl
		env  map[string]string
		args []string
		code int
		out  []string // lines of the report, blanks as one
		err  string   // in what stderr says
	}{
		"two GPUs": {
			is: driverControl{12040, 0, 2, 8}, args: []string{"--gpus", "2"},
			out: []string{
				"ok driver CUDA 12.4 (release 535.161.08), " + driver, "ok device 0 Test GPU 0, compute capability 8.9, 58 SMs, 24 GiB, at 0000:01:00.0",
				"ok device 1 Test GPU 1, compute capability 8.9, 58 SMs, 24 GiB, at 0000:02:00.0", "ok cuBLASLt 13.1.2, ", "ok cuBLAS 13.1.2, ", "ok NCCL 2.29.7, " + nccl,
				"--gpus 2: all that it needs is here; ready to compute: the CPU (", ") and 2 GPUs\n",
			},
		},
		"two GPUs, and nothing asked": {
			is:  driverControl{12040, 0, 2, 8},
			out: []string{"ready to compute: the CPU (", ") and 2 GPUs\n"},
		},
		"a configuration of two ranks on one GPU": {
			is: driverControl{12040, 0, 1, 8}, args: []string{"quickstart", "--ranks", "2", "--gpus", "1"}, code: 1,
			out: []string{"MISSING devices 1 of those can be used, and quickstart asks for 2"},
			err: "gofsdp: GPU devices: 1 of those can be used, and quickstart asks for 2; ",
		},
		"a configuration that fits": {
			is: driverControl{12040, 0, 2, 8}, args: []string{"quickstart", "--ranks", "2", "--gpus", "2"},
			out: []string{"quickstart: all that it needs is here"},
		},
		"a configuration that is too large for a GPU": {
			is: driverControl{12040, 0, 2, 8}, args: []string{"quickstart", "--set", "model=qwen2.5-7b", "--ranks", "2", "--gpus", "2"}, code: 1,
			out: []string{"missing device 0 Test GPU 0", "each rank of quickstart takes ", "MISSING devices 0 of those can be used, and quickstart asks for 2"},
			err: "gofsdp: GPU devices: 0 of those can be used, and quickstart asks for 2; ",
		},
		"a configuration that takes what there is": {
			is: driverControl{12040, 0, 2, 8}, args: []string{"quickstart", "--ranks", "2", "--set", "scaling.device=auto", "--set", "model=qwen2.5-7b"}, code: 1,
			out: []string{"MISSING devices 0 of those can be used, and quickstart asks for 2"},
			err: "gofsdp: GPU devices: 0 of those can be used",
		},
		"a configuration that takes what there is, which is fewer GPUs than ranks": {
			is: driverControl{12040, 0, 1, 8}, args: []string{"quickstart", "--ranks", "2", "--set", "scaling.device=auto"}, code: 1,
			out: []string{"MISSING devices 1 of those can be used, and quickstart asks for 2"},
			err: "gofsdp: GPU devices: 1 of those can be used",
		},
		"a configuration that would take GPUs, which cannot talk": {
			is: driverControl{12040, 0, 2, 8}, env: map[string]string{cuda.OverrideNCCL: "/nowhere"}, args: []string{"quickstart", "--ranks", "2", "--set", "scaling.device=auto"},
			out: []string{"quickstart: all that it needs is here; ready to compute: the CPU ("},
		},
		"a configuration of two nodes, of which this is one": {
			is: driverControl{12040, 0, 2, 8}, args: []string{"quickstart", "--ranks", "4", "--nodes", "2", "--set", "scaling.device=cuda"},
			out: []string{"quickstart: all that it needs is here"},
		},
		"a configuration that demands EFA between nodes": {
			is: driverControl{12040, 0, 2, 8}, args: []string{"quickstart", "--ranks", "4", "--nodes", "2", "--set", "scaling.device=cuda", "--set", "scaling.nccl.require=efa"}, code: 1,
			out: []string{"MISSING EFA no device quickstart asks for it: give the pod vpc.amazonaws.com/efa: 1", "MISSING NCCL's plugin none without aws-ofi-nccl NCCL goes over TCP"},
			err: "gofsdp: network EFA: no device; quickstart asks for it: ",
		},
		"a configuration that demands EFA on one node, which needs none": {
			is: driverControl{12040, 0, 2, 8}, args: []string{"quickstart", "--ranks", "2", "--set", "scaling.device=cuda", "--set", "scaling.nccl.require=efa"},
			out: []string{"missing EFA no device", "quickstart: all that it needs is here"},
		},
		"fewer GPUs than are asked for": {
			is: driverControl{12040, 0, 1, 8}, args: []string{"--gpus", "4"}, code: 1,
			out: []string{"ok device 0 Test GPU 0", "MISSING devices 1 of those can be used, and --gpus 4 asks for 4"},
			err: "gofsdp: GPU devices: 1 of those can be used, and --gpus 4 asks for 4; ask for fewer ranks",
		},
		"no device": {
			is: driverControl{12040, 100, 0, 8}, args: []string{"--gpus", "1"}, code: 1,
			out: []string{"ok driver CUDA 12.4", "MISSING devices none libcuda.so.535.161.08 ("},
			err: "gofsdp: GPU devices: none; libcuda.so.535.161.08 (" + driver + "), of CUDA 12.4, is here and sees no GPU; ",
		},
		"no device, and none asked for": {
			is:  driverControl{12040, 100, 0, 8},
			out: []string{"missing devices none", "ready to compute: the CPU ("},
		},
		"too old a driver": {
			is: driverControl{11080, 0, 1, 8}, args: []string{"--gpus", "1"}, code: 1,
			out: []string{"REMEDY driver CUDA 11.8 (release 535.161.08), "},
			err: "is too old; the kernels need a driver of CUDA 12.2 (R535) or newer: update the host's driver",
		},
		"too old a driver, and a configuration for the CPU": {
			is: driverControl{11080, 0, 1, 8}, args: []string{"quickstart"},
			out: []string{"remedy driver CUDA 11.8", "quickstart: all that it needs is here; ready to compute: the CPU ("},
		},
		"a GPU without bf16": {
			is: driverControl{12040, 0, 1, 7}, args: []string{"--gpus", "1"}, code: 1,
			out: []string{"remedy device 0 Test GPU 0, compute capability 7.9", "has no bf16", "MISSING devices 0 of those can be used"},
			err: "gofsdp: GPU devices: 0 of those can be used",
		},
		"no cuBLAS": {
			is: driverControl{12040, 0, 1, 8}, env: map[string]string{cuda.OverrideBLAS: "/nowhere/libcublas.so.13"}, args: []string{"--gpus", "1"}, code: 1,
			out: []string{"MISSING cuBLAS none GOFSDP_LIBCUBLAS: stat /nowhere/libcublas.so.13: no such file"},
			err: "gofsdp: GPU cuBLAS: none; GOFSDP_LIBCUBLAS: /nowhere/libcublas.so.13: no such file",
		},
		"no NCCL for two": {
			is: driverControl{12040, 0, 2, 8}, env: map[string]string{cuda.OverrideNCCL: "/nowhere"}, args: []string{"--gpus", "2"}, code: 1,
			out: []string{"MISSING NCCL none GOFSDP_LIBNCCL: stat /nowhere: no such file", ") and 1 GPU\n"},
			err: "gofsdp: GPU NCCL: none; GOFSDP_LIBNCCL: /nowhere: no such file",
		},
		"an NCCL of a version that is not supported": {
			is: driverControl{12040, 0, 2, 8}, env: map[string]string{cuda.OverrideNCCL: there.older}, args: []string{"quickstart", "--ranks", "2", "--gpus", "2"}, code: 1,
			out: []string{"REMEDY NCCL 2.26.5, " + there.older, "is NCCL 2.26.5, which is not supported; NCCL 2.27 or newer is needed: install NVIDIA's wheel of it", ") and 1 GPU\n"},
			err: "gofsdp: GPU NCCL: 2.26.5, " + there.older + "; libnccl.so.2.26.5 (" + there.older + ") is NCCL 2.26.5, which is not supported; ",
		},
		"an NCCL that lacks what is called": {
			is: driverControl{12040, 0, 2, 8}, env: map[string]string{cuda.OverrideNCCL: there.lackingNCCL}, args: []string{"--gpus", "2"}, code: 1,
			out: []string{"REMEDY NCCL 2.18.5, "},
			err: "lacks 15 functions, ncclGetUniqueId, ",
		},
		"a cuBLAS that lacks what is called": {
			is: driverControl{12040, 0, 2, 8}, env: map[string]string{cuda.OverrideBLAS: there.lackingBLAS}, args: []string{"--gpus", "1"}, code: 1,
			out: []string{"ok cuBLASLt 12.1.2, ", "REMEDY cuBLAS 12.1.2, ", "ready to compute: the CPU ("},
			err: "has no cublasCreate_v2, ",
		},
		"no NCCL for one": {
			is: driverControl{12040, 0, 2, 8}, env: map[string]string{cuda.OverrideNCCL: "/nowhere"}, args: []string{"--gpus", "1"},
			out: []string{"missing NCCL none GOFSDP_LIBNCCL: stat /nowhere: no such file"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			there.is(t, c.is)
			for name, value := range c.env {
				t.Setenv(name, value)
			}
			args := append([]string{"doctor", "--root", root}, c.args...)
			var stdout, stderr bytes.Buffer
			if code := run(args, &stdout, &stderr); code != c.code {
				t.Errorf("exit code %d, want %d: %s", code, c.code, stderr.String())
			}
			if !strings.Contains(stderr.String(), c.err) || (c.err == "") != (stderr.Len() == 0) {
				t.Errorf("it says %q, want in it %q", stderr.String(), c.err)
			}
			// Lines are broken wherever they are long, and behind colons.
			squeeze := func(s string) string { return strings.Join(strings.Fields(s), "") }
			for _, want := range c.out {
				if !strings.Contains(squeeze(stdout.String()), squeeze(want)) {
					t.Errorf("want %q in\n%s", want, stdout.String())
				}
			}

			stdout.Reset()
			if code := run(append(args, "--json"), &stdout, &stderr); code != c.code {
				t.Errorf("exit code %d as JSON, want %d", code, c.code)
			}
			var r doctor.Report
			d := json.NewDecoder(&stdout)
			d.DisallowUnknownFields()
			if err := d.Decode(&r); err != nil || d.More() {
				t.Fatal(err, d.More())
			}
			if r.Met != (c.code == 0) || r.GPU.Driver.Path != driver || r.GPU.Driver.Release != "535.161.08" {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestWhatAGPUHasToHoldDependsOnItsKind(t *testing.T) {
	there := newTestDriver(t)
	need := func(major int32) int64 {
		there.is(t, driverControl{12040, 0, 2, major})
		var stdout, stderr bytes.Buffer
		if code := run([]string{"doctor", "quickstart", "--ranks", "2", "--gpus", "2", "--json"}, &stdout, &stderr); code != 0 {
			t.Fatalf("exit code %d: %s", code, &stderr)
		}
		var r doctor.Report
		if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		return r.Needs.GPUMemory
	}
	const streams = 6 // two communicators and ownStreams
	if more, want := need(9)-need(8), streams*(cuda.Workspace(9)-cuda.Workspace(8)); more != want {
		t.Errorf("on a GPU of 9.0 a rank takes %d bytes more than on one of 8.9, want %d", more, want)
	}
}
