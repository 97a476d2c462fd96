package cuda

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Variables that name a library's file. What one names is taken, or refused; nothing else is looked for.
const (
	OverrideDriver = "GOFSDP_LIBCUDA"
	OverrideBLAS   = "GOFSDP_LIBCUBLAS" // its libcublasLt lies beside it
	OverrideNCCL   = "GOFSDP_LIBNCCL"
)

// Sources says where libraries are looked for. The zero value is this machine.
type Sources struct {
	// Root is what absolute paths begin with: for an image that lies unpacked in a folder.
	Root string
	// Env is the environment, os.Getenv where nil.
	Env func(string) string
}

func (s Sources) env(name string) string {
	if s.Env != nil {
		return s.Env(name)
	}
	return os.Getenv(name)
}

// wanted is a library as it is looked for.
type wanted struct {
	name     string   // that messages use
	sonames  []string // the preferred one first
	override string
	wheels   []string // folders of NVIDIA's wheels, below site-packages
	beside   string   // a folder to look in before all others, or empty
	partner  string   // what it works with at its own version: folders without it come last
	// systemFirst asks the system's loader before known folders.
	systemFirst bool
}

// The driver comes from the machine and not from the image: the container runtime puts it among the
// system's folders, and an image's entry point may put a newer one (cuda-compat) before it on
// LD_LIBRARY_PATH, so the system is asked first. All else comes from the image, whose LD_LIBRARY_PATH
// leaves out folders or names older copies, so known folders go first.
var driver = wanted{
	name: "libcuda", sonames: []string{"libcuda.so.1"}, override: OverrideDriver, systemFirst: true,
}

var nccl = wanted{
	name: "libnccl", sonames: []string{"libnccl.so.2"}, override: OverrideNCCL, wheels: []string{"nvidia/nccl/lib"},
}

// blas is cuBLAS for a driver's version: that of CUDA 13 asks for a driver of CUDA 13, so on older ones
// that of 12 goes first. What it stands on, libcublasLt, is one more library, which is opened before it.
func blas(name string, driverVersion int) wanted {
	majors := []string{"13", "12"}
	if driverVersion > 0 && driverVersion < 13000 {
		slices.Reverse(majors)
	}
	w := wanted{name: name, wheels: []string{"nvidia/cu13/lib", "nvidia/cublas/lib"}}
	if name == "libcublasLt" {
		w.partner = "libcublas"
	}
	for _, m := range majors {
		w.sonames = append(w.sonames, name+".so."+m)
	}
	return w
}

// candidate is a name to open, and whether the system's loader is to find it.
type candidate struct {
	name   string
	system bool
}

// candidates returns where w may be, best first: files that exist and names for the system's loader.
// Of two versions the preferred one goes first, wherever it is.
func (s Sources) candidates(w wanted) (list []candidate, err error) {
	if w.override != "" {
		if file := s.env(w.override); file != "" {
			if _, err = os.Stat(file); err != nil {
				return nil, fmt.Errorf("%s: %w; let it name the library's file, or unset it", w.override, err)
			}
			// The loader would look for a name without a folder in the system's alone.
			if file, err = filepath.Abs(file); err != nil {
				return nil, fmt.Errorf("%s: %w", w.override, err)
			}
			return []candidate{{name: file}}, nil
		}
	}
	for _, soname := range w.sonames {
		var files, alone []candidate
		for _, folder := range s.folders(w) {
			c := candidate{name: filepath.Join(folder, soname)}
			switch {
			case !exists(c.name) || slices.Contains(files, c) || slices.Contains(alone, c):
			case w.partner != "" && !exists(filepath.Join(folder, w.partner+strings.TrimPrefix(soname, w.name))):
				alone = append(alone, c)
			default:
				files = append(files, c)
			}
		}
		files = append(files, alone...)
		system := candidate{name: soname, system: true}
		if w.systemFirst {
			list = append(append(list, system), files...)
		} else {
			list = append(append(list, files...), system)
		}
	}
	return list, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// folders returns the existing folders that may hold w.
func (s Sources) folders(w wanted) (list []string) {
	if w.beside != "" {
		list = append(list, w.beside)
	}
	for _, site := range s.sitePackages() {
		for _, wheel := range w.wheels {
			list = append(list, filepath.Join(site, wheel))
		}
	}
	for _, pattern := range []string{
		"/usr/local/nvidia/lib64", "/usr/local/cuda/lib64", "/usr/local/cuda-1[0-9]*/lib64",
		"/usr/lib64", "/usr/lib/*-linux-gnu", "/usr/local/lib", "/usr/lib/wsl/lib",
	} {
		found, _ := filepath.Glob(s.Root + pattern) // the patterns are good
		slices.Reverse(found)                       // newer ones first
		list = append(list, found...)
	}
	return slices.DeleteFunc(list, func(folder string) bool { return !exists(folder) })
}

// sitePackages returns the folders of Python packages: those of the environment that is active, of the
// AWS deep learning containers (/opt/venv), of the python3 on the path, and of the system.
func (s Sources) sitePackages() (list []string) {
	for _, p := range filepath.SplitList(s.env("PYTHONPATH")) {
		if p != "" {
			list = append(list, p)
		}
	}
	prefixes := []string{s.env("VIRTUAL_ENV"), s.env("CONDA_PREFIX"), s.Root + "/opt/venv"}
	for _, dir := range filepath.SplitList(s.env("PATH")) {
		if exists(filepath.Join(dir, "python3")) {
			prefixes = append(prefixes, filepath.Dir(dir))
			break
		}
	}
	prefixes = append(prefixes, s.Root+"/usr/local", s.Root+"/usr")
	if home := s.env("HOME"); home != "" {
		prefixes = append(prefixes, filepath.Join(home, ".local"))
	}
	for _, prefix := range prefixes {
		if prefix == "" {
			continue
		}
		for _, pattern := range []string{"lib/python3*/site-packages", "lib64/python3*/site-packages", "lib/python3*/dist-packages"} {
			found, _ := filepath.Glob(filepath.Join(prefix, pattern))
			for _, dir := range found {
				if !slices.Contains(list, dir) {
					list = append(list, dir)
				}
			}
		}
	}
	return list
}

// missing says that none of the candidates is there, and what to do.
func (w wanted) missing(s Sources, failures []string) error {
	text := fmt.Sprintf("%s is not here: not where the system looks", w.sonames[0])
	if folders := s.folders(w); len(folders) > 0 {
		text += fmt.Sprintf(", and not in any of %s", strings.Join(folders, ", "))
	}
	if len(failures) > 0 {
		text = fmt.Sprintf("%s cannot be opened: %s", w.sonames[0], strings.Join(failures, "; "))
	}
	remedy := fmt.Sprintf("install NVIDIA's wheel of it (pip install %s)", w.wheel())
	if w.name == driver.name {
		remedy = "install NVIDIA's driver, or start the container with its GPUs (docker run --gpus all, nvidia.com/gpu in Kubernetes)"
	}
	if w.override != "" {
		remedy += fmt.Sprintf(", or let %s name its file", w.override)
	}
	return fmt.Errorf("%w: %s; %s", ErrNoLibrary, text, remedy)
}

// wheel is what brings the preferred version, as Python's index names it. NCCL's for CUDA 12 does with any driver.
func (w wanted) wheel() string {
	switch {
	case w.name == nccl.name:
		return "nvidia-nccl-cu12"
	case strings.HasSuffix(w.sonames[0], ".12"):
		return "nvidia-cublas-cu12"
	}
	return "nvidia-cublas"
}
