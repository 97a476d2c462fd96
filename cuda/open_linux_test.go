//go:build cgo && linux

package cuda

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAMachineWithoutADriverIsToldWhatToInstall(t *testing.T) {
	if _, err := os.Stat("/proc/driver/nvidia"); err == nil {
		t.Skip("this machine has a driver")
	}
	s := Sources{Root: t.TempDir(), Env: func(string) string { return "" }}
	_, err := Open(s)
	if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "libcuda.so.1 is not here") ||
		!strings.Contains(err.Error(), "GOFSDP_LIBCUDA") || errors.Is(err, ErrNoDevice) {
		t.Fatal(err)
	}
	if r := s.Find(); r.State != NoLibrary || r.Problem != err.Error() || r.Driver.Problem != r.Problem || r.Driver.Path != "" {
		t.Fatalf("%+v", r)
	}
}

func TestAFileThatIsNoLibraryIsNamed(t *testing.T) {
	s := image(t, map[string]string{OverrideDriver: "ROOT/libcuda.so.1"}, "/libcuda.so.1")
	says := ": GOFSDP_LIBCUDA: " + s.Root + "/libcuda.so.1: file too short; let it name the library's file, or unset it"
	if _, err := Open(s); !errors.Is(err, ErrNoLibrary) || !strings.HasSuffix(err.Error(), says) {
		t.Fatal(err)
	}
	// A name without a folder is that of a file here, and not of the system's.
	t.Chdir(s.Root)
	s.Env = func(name string) string { return map[string]string{OverrideDriver: "libcuda.so.1"}[name] }
	if _, err := Open(s); !errors.Is(err, ErrNoLibrary) || !strings.HasSuffix(err.Error(), says) {
		t.Fatal(err)
	}
}

func TestADriverAnswersByWhatItIs(t *testing.T) {
	for name, c := range map[string]struct {
		set   func(*control)
		flags []string
		state State
		want  []string // of the error
	}{
		"found": {state: Ready},
		"no device": {
			set: func(c *control) { c.Init = 100 }, state: NoDevice,
			want: []string{"no device: libcuda.so.535.161.08 (", "of CUDA 12.4, is here and sees no GPU", "--gpus all"},
		},
		"a driver that counts none": {
			set: func(c *control) { c.Devices = 0 }, state: NoDevice,
			want: []string{"no device: ", "counts no GPU; CUDA_VISIBLE_DEVICES"},
		},
		"the toolkit's stub": {
			set: func(c *control) { c.Init = 34 }, state: Unusable,
			want: []string{"the driver: cuInit: unknown error (34)", "stub for linking"},
		},
		"another release than the kernel's": {
			set: func(c *control) { c.Init = 803 }, state: Unusable,
			want: []string{"(803)", "of different releases"},
		},
		"too old": {
			set: func(c *control) { c.Version = 11080 }, state: Unusable,
			want: []string{"of CUDA 11.8, is too old; the kernels need a driver of CUDA 12.2 (R535) or newer", "cuda-compat"},
		},
		"functions missing": {
			set: func(c *control) { c.Version = 11020 }, flags: []string{"-DWITHOUT_GRAPHS"}, state: Unusable,
			want: []string{"of CUDA 11.2, has no cuStreamBeginCapture_v2, cuStreamEndCapture, cuGraphInstantiateWithFlags, cuGraphLaunch, 2 more; "},
		},
		"a GPU without bf16": {
			set: func(c *control) { c.Major = 7 }, state: Unusable,
			want: []string{"device 0, Test GPU 0, is of compute capability 7.9 and has no bf16"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, control := testDriver(t, c.flags...)
			if c.set != nil {
				c.set(control)
			}
			r := s.Find()
			if r.State != c.state || (r.Problem == "") != (c.state == Ready) {
				t.Fatalf("%+v", r)
			}
			for _, want := range c.want {
				if !strings.Contains(r.Problem, want) {
					t.Errorf("%s\nwant in it %q", r.Problem, want)
				}
			}
			if r.Driver.Path != s.env(OverrideDriver) || r.Driver.Release != "535.161.08" || r.Driver.Version != versionText(int(control.Version)) {
				t.Errorf("%+v", r.Driver)
			}
		})
	}
}

func TestDevicesAreDescribed(t *testing.T) {
	s, c := testDriver(t)
	c.Devices = 2
	r := s.Find()
	if r.State != Ready || len(r.Devices) != 2 {
		t.Fatalf("%+v", r)
	}
	want := Properties{1, "Test GPU 1", "GPU-10111213-1415-1617-1819-1a1b1c1d1e1f", "0000:02:00.0", 8, 9, 58, 24 << 30, 99 << 10, true, ""}
	if r.Devices[1] != want {
		t.Errorf("%+v", r.Devices[1])
	}
	c.fail("cuDeviceTotalMem_v2", 999, 1)
	if r := s.Find(); r.State != Ready || r.Devices[0].Problem != "" || !strings.Contains(r.Devices[1].Problem, "device 1: cuDeviceTotalMem: ") {
		t.Errorf("one of two devices can be used: %+v", r)
	}
	c.fail("", 0, 0)
	d, err := Open(s)
	if err != nil || d.Version() != "12.4" {
		t.Fatal(err, d)
	}
	if _, err := New(d, Options{Ordinal: 2}); err == nil || !strings.HasPrefix(err.Error(), "there are 2 devices, counted from 0: device 2: cuDeviceGet: ") {
		t.Fatal(err)
	}
}

func TestLinksToALibraryAreFollowed(t *testing.T) {
	s, _ := testDriver(t)
	file := s.env(OverrideDriver)
	link := filepath.Join(t.TempDir(), "libcuda.so.1")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(file+".control", link+".control"); err != nil { // the test's driver looks beside its name
		t.Fatal(err)
	}
	r := Sources{Root: s.Root, Env: func(name string) string { return map[string]string{OverrideDriver: link}[name] }}.Find()
	if r.State != Ready || r.Driver.Path != file || r.Driver.Name != "libcuda.so.1" {
		t.Fatalf("%+v", r)
	}
}

func TestCuBLASAndNCCLAreFoundInWheels(t *testing.T) {
	const site = "/opt/venv/lib/python3.13/site-packages/nvidia/"
	nothing := Sources{Root: t.TempDir(), Env: func(string) string { return "" }}
	if r := nothing.Find(); r.NCCL.Path == "" && (!strings.Contains(r.NCCL.Problem, "no library: libnccl.so.2 is not here") || !strings.Contains(r.NCCL.Problem, OverrideNCCL)) {
		t.Errorf("%+v", r.NCCL)
	}
	for name, c := range map[string]struct {
		files    map[string][]string
		env      map[string]string
		lt, blas string // path below site and version
	}{
		"of CUDA 13": {
			files: map[string][]string{
				"cu13/lib/libcublasLt.so.13":   {"-DPROPERTY=cublasLtGetProperty", "-DMAJOR=13"},
				"cu13/lib/libcublas.so.13":     {"-DPROPERTY=cublasGetProperty", "-DMAJOR=13", "-DCOMPLETE"},
				"cublas/lib/libcublas.so.12":   {"-DPROPERTY=cublasGetProperty", "-DMAJOR=12", "-DCOMPLETE"},
				"cublas/lib/libcublasLt.so.12": {"-DPROPERTY=cublasLtGetProperty", "-DMAJOR=12"},
			},
			lt: "cu13/lib/libcublasLt.so.13 13.1.2", blas: "cu13/lib/libcublas.so.13 13.1.2",
		},
		"of CUDA 12": {
			files: map[string][]string{
				"cublas/lib/libcublas.so.12":   {"-DPROPERTY=cublasGetProperty", "-DMAJOR=12", "-DCOMPLETE"},
				"cublas/lib/libcublasLt.so.12": {"-DPROPERTY=cublasLtGetProperty", "-DMAJOR=12"},
			},
			lt: "cublas/lib/libcublasLt.so.12 12.1.2", blas: "cublas/lib/libcublas.so.12 12.1.2",
		},
		"of CUDA 12, lacking what is called": {
			files: map[string][]string{
				"cublas/lib/libcublas.so.12":   {"-DPROPERTY=cublasGetProperty", "-DMAJOR=12"},
				"cublas/lib/libcublasLt.so.12": {"-DPROPERTY=cublasLtGetProperty", "-DMAJOR=12"},
			},
			lt: "cublas/lib/libcublasLt.so.12 12.1.2", blas: "cublas/lib/libcublas.so.12 12.1.2",
		},
		"by override, Lt beside it": {
			files: map[string][]string{
				"cu13/lib/libcublasLt.so.13": {"-DPROPERTY=cublasLtGetProperty", "-DMAJOR=13"},
				"cu13/lib/libcublas.so.13":   {"-DPROPERTY=cublasGetProperty", "-DMAJOR=13", "-DCOMPLETE"},
				"mine/libcublas.so.12":       {"-DPROPERTY=cublasGetProperty", "-DMAJOR=12", "-DCOMPLETE"},
				"mine/libcublasLt.so.12":     {"-DPROPERTY=cublasLtGetProperty", "-DMAJOR=12"},
			},
			env: map[string]string{OverrideBLAS: "mine/libcublas.so.12"},
			lt:  "mine/libcublasLt.so.12 12.1.2", blas: "mine/libcublas.so.12 12.1.2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			s := Sources{Root: root, Env: func(name string) string {
				if file := c.env[name]; file != "" {
					return root + site + file
				}
				return ""
			}}
			for file, flags := range c.files {
				library(t, root+site+file, "libraries/version.c", flags...)
			}
			library(t, root+site+"nccl/lib/libnccl.so.2", "libraries/version.c", "-DNCCL=22907")
			r := s.Find()
			told := func(l Library) string { return strings.TrimPrefix(l.Path, root+site) + " " + l.Version }
			if told(r.BLASLt) != c.lt || told(r.BLAS) != c.blas || told(r.NCCL) != "nccl/lib/libnccl.so.2 2.29.7" {
				t.Errorf("%+v\n%+v\n%+v", r.BLASLt, r.BLAS, r.NCCL)
			}
			if lacks := name == "of CUDA 12, lacking what is called"; lacks != strings.Contains(r.BLAS.Problem, "has no cublasCreate_v2, ") || !lacks && r.BLAS.Problem != "" {
				t.Errorf("%+v", r.BLAS)
			}
		})
	}
}

// TestTheWheelsOfNVIDIAAreOpened takes those of the peers that the bench compares with, where they are
// installed.
func TestTheWheelsOfNVIDIAAreOpened(t *testing.T) {
	const venv = "../.venv/peers"
	if found, _ := filepath.Glob(venv + "/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2"); len(found) == 0 {
		t.Skip("there are none; make bench-peers installs them")
	}
	r := Sources{Root: t.TempDir(), Env: func(name string) string { return map[string]string{"VIRTUAL_ENV": venv}[name] }}.Find()
	for _, l := range []Library{r.BLASLt, r.BLAS, r.NCCL} {
		if !strings.Contains(l.Path, venv[3:]) || l.Version == "" || l.Problem != "" {
			t.Errorf("%+v", l)
		}
		t.Logf("%s is %s", l.Name, l.Version)
	}
}
