package cuda

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// image returns Sources of a folder that holds empty files of such names, and an environment.
func image(t *testing.T, env map[string]string, files ...string) Sources {
	t.Helper()
	root := t.TempDir()
	for _, f := range files {
		path := filepath.Join(root, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Sources{Root: root, Env: func(name string) string {
		return strings.ReplaceAll(env[name], "ROOT", root)
	}}
}

func TestLibrariesAreLookedForWhereImagesAndWheelsKeepThem(t *testing.T) {
	const site = "/opt/venv/lib/python3.13/site-packages/"
	for name, c := range map[string]struct {
		wanted wanted
		env    map[string]string
		files  []string
		want   []string
	}{
		"the driver: the system's first, since cuda-compat comes by LD_LIBRARY_PATH": {
			wanted: driver,
			files:  []string{"/usr/lib64/libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1"},
			want:   []string{"libcuda.so.1", "ROOT/usr/local/nvidia/lib64/libcuda.so.1", "ROOT/usr/lib64/libcuda.so.1"},
		},
		"NCCL: the container's environment first": {
			wanted: nccl,
			files:  []string{site + "nvidia/nccl/lib/libnccl.so.2", "/usr/lib/x86_64-linux-gnu/libnccl.so.2"},
			want:   []string{"ROOT" + site + "nvidia/nccl/lib/libnccl.so.2", "ROOT/usr/lib/x86_64-linux-gnu/libnccl.so.2", "libnccl.so.2"},
		},
		"NCCL: the active environment before all others": {
			wanted: nccl,
			env:    map[string]string{"VIRTUAL_ENV": "ROOT/home/me/env", "HOME": "ROOT/home/me", "PYTHONPATH": "ROOT/extra"},
			files: []string{
				site + "nvidia/nccl/lib/libnccl.so.2", "/home/me/env/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
				"/extra/nvidia/nccl/lib/libnccl.so.2", "/home/me/.local/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
			},
			want: []string{
				"ROOT/extra/nvidia/nccl/lib/libnccl.so.2", "ROOT/home/me/env/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
				"ROOT" + site + "nvidia/nccl/lib/libnccl.so.2", "ROOT/home/me/.local/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2",
				"libnccl.so.2",
			},
		},
		"NCCL: the environment of the python3 on the path": {
			wanted: nccl,
			env:    map[string]string{"PATH": "ROOT/bin:ROOT/conda/bin"},
			files:  []string{"/conda/bin/python3", "/conda/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2"},
			want:   []string{"ROOT/conda/lib/python3.11/site-packages/nvidia/nccl/lib/libnccl.so.2", "libnccl.so.2"},
		},
		"cuBLAS: that of CUDA 13 before that of 12, wherever they are": {
			wanted: blas("libcublasLt", 13000),
			files:  []string{site + "nvidia/cublas/lib/libcublasLt.so.12", site + "nvidia/cu13/lib/libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13"},
			want: []string{
				"ROOT" + site + "nvidia/cu13/lib/libcublasLt.so.13", "ROOT/usr/local/cuda/lib64/libcublasLt.so.13", "libcublasLt.so.13",
				"ROOT" + site + "nvidia/cublas/lib/libcublasLt.so.12", "libcublasLt.so.12",
			},
		},
		"cuBLAS: that of CUDA 12 first where the driver is": {
			wanted: blas("libcublas", 12020),
			files:  []string{site + "nvidia/cu13/lib/libcublas.so.13", "/usr/local/cuda-12.2/lib64/libcublas.so.12", "/usr/local/cuda-12.8/lib64/libcublas.so.12"},
			want: []string{
				"ROOT/usr/local/cuda-12.8/lib64/libcublas.so.12", "ROOT/usr/local/cuda-12.2/lib64/libcublas.so.12", "libcublas.so.12",
				"ROOT" + site + "nvidia/cu13/lib/libcublas.so.13", "libcublas.so.13",
			},
		},
		"cuBLASLt: a folder that lacks cuBLAS of its version after those that have it": {
			wanted: blas("libcublasLt", 13000),
			files:  []string{site + "nvidia/cu13/lib/libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13", "/usr/local/cuda/lib64/libcublas.so.13"},
			want: []string{
				"ROOT/usr/local/cuda/lib64/libcublasLt.so.13", "ROOT" + site + "nvidia/cu13/lib/libcublasLt.so.13", "libcublasLt.so.13",
				"libcublasLt.so.12",
			},
		},
		"an override alone": {
			wanted: nccl,
			env:    map[string]string{OverrideNCCL: "ROOT/my/libnccl.so.2.30.7"},
			files:  []string{"/my/libnccl.so.2.30.7", site + "nvidia/nccl/lib/libnccl.so.2"},
			want:   []string{"ROOT/my/libnccl.so.2.30.7"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := image(t, c.env, c.files...)
			list, err := s.candidates(c.wanted)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, x := range list {
				if x.system != slices.Contains(c.wanted.sonames, x.name) {
					t.Errorf("%+v", x)
				}
				got = append(got, strings.Replace(x.name, s.Root, "ROOT", 1))
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestAnOverrideThatIsNotThereIsRefusedByName(t *testing.T) {
	s := image(t, map[string]string{OverrideDriver: "ROOT/nowhere"}, "/usr/lib64/libcuda.so.1")
	if _, err := s.candidates(driver); err == nil || !strings.HasPrefix(err.Error(), "GOFSDP_LIBCUDA: stat "+s.Root+"/nowhere: no such file") {
		t.Fatal(err)
	}
}

func TestVersionsAreReadAsTheirLibrariesTellThem(t *testing.T) {
	for got, want := range map[string]string{
		versionText(12020): "12.2", versionText(13000): "13.0", ncclText(22907): "2.29.7", ncclText(23000): "2.30.0",
		releaseOf("/usr/lib64/libcuda.so.535.161.08"): "535.161.08", releaseOf("/x/libcuda.so.1"): "", releaseOf("/x/other.so"): "",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestALibraryThatIsMissingIsToldByItsWheel(t *testing.T) {
	s := Sources{Root: t.TempDir(), Env: func(string) string { return "" }}
	for name, c := range map[string]struct {
		wanted wanted
		want   string // of Python's index
	}{
		"NCCL":                                   {nccl, "nvidia-nccl-cu12"},
		"cuBLAS for a driver of CUDA 12":         {blas("libcublas", 12040), "nvidia-cublas-cu12"},
		"cuBLAS for a driver of CUDA 13":         {blas("libcublas", 13000), "nvidia-cublas"},
		"cuBLASLt for a driver of CUDA 12":       {blas("libcublasLt", 12040), "nvidia-cublas-cu12"},
		"cuBLAS where no driver says what it is": {blas("libcublas", 0), "nvidia-cublas"},
	} {
		if err := c.wanted.missing(s, nil); !strings.Contains(err.Error(), "(pip install "+c.want+")") {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	if err := driver.missing(s, nil); strings.Contains(err.Error(), "pip") {
		t.Errorf("the driver is no wheel: %v", err)
	}
}
