//go:build cgo

package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/cuda"
)

// TestWhatARunOnGPUsLacksIsNamedWithTheRemedy starts runs on machines whose driver
// is that of package cuda's tests.
func TestWhatARunOnGPUsLacksIsNamedWithTheRemedy(t *testing.T) {
	if testing.Short() {
		t.Skip("it compiles C")
	}
	dir := t.TempDir()
	compile := func(name, source string, arguments ...string) string {
		t.Helper()
		out := filepath.Join(dir, name)
		cc := strings.Fields(os.Getenv("CC"))
		if len(cc) == 0 {
			cc = []string{"cc"}
		}
		cmd := append(cc, "-shared", "-fPIC", "-pthread", "-I../../cuda", "-o", out, "../../cuda/testdata/"+source)
		if text, err := exec.Command(cmd[0], append(cmd[1:], arguments...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return out
	}
	driver := compile("libcuda.so.535.161.08", "driver/driver.c")
	blas := compile("libcublas.so.13", "libraries/version.c", "-DPROPERTY=cublasGetProperty", "-DMAJOR=13")
	compile("libcublasLt.so.13", "libraries/version.c", "-DPROPERTY=cublasLtGetProperty", "-DMAJOR=13")
	nccl := compile("libnccl.so.2", "libraries/version.c", "-DNCCL=22907")
	t.Setenv(cuda.OverrideDriver, driver)
	t.Setenv(cuda.OverrideBLAS, blas)
	t.Setenv(cuda.OverrideNCCL, nccl)

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
		"an NCCL that is none": {
			driverControl{12040, 0, 2, 8},
			nil,
			[]string{"--ranks", "2"},
			[]string{"libnccl.so.2 (" + nccl + ") lacks ", "NCCL 2.27 or newer is needed: install NVIDIA's wheel of it, or let GOFSDP_LIBNCCL name its file"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var control bytes.Buffer
			if err := binary.Write(&control, binary.LittleEndian, c.is); err != nil {
				t.Fatal(err)
			}
			control.Write(make([]byte, controlSize-control.Len()))
			// The library has the file mapped, so it stays the same one.
			f, err := os.OpenFile(driver+".control", os.O_CREATE|os.O_WRONLY, 0o644)
			if err == nil {
				_, err = f.Write(control.Bytes())
			}
			if err == nil {
				err = f.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
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
