//go:build cgo

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gofsdp/gofsdp/doctor"
)

// What make e2e-image sets: where NVIDIA's wheels are installed (site-packages), and the program.
const (
	wheelsVariable  = "GOFSDP_IMAGE_WHEELS"
	programVariable = "GOFSDP_IMAGE_PROGRAM"
)

// Folders of the image. Its Dockerfile (aws/deep-learning-containers, docker/ray-train/Dockerfile.cuda) has the
// environment in /opt/venv on Python 3.13, over NVIDIA's CUDA 13.0 runtime image of Amazon Linux 2023.
const (
	imageSite   = "/opt/venv/lib/python3.13/site-packages"
	imageCUDA   = "/usr/local/cuda-13.0" // /usr/local/cuda leads here
	imageLib64  = imageCUDA + "/targets/x86_64-linux/lib"
	imageSystem = "/usr/lib64"
	compatFile  = "libcuda.so.580.82.07" // the driver of cuda-compat-13-0
	hostRelease = "580.95.05"
)

// imageEnvironment is the image's ENV.
var imageEnvironment = map[string]string{
	"PATH": "/opt/venv/bin:/opt/amazon/openmpi/bin:/opt/amazon/efa/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	"LD_LIBRARY_PATH": imageSite + "/nvidia/cudnn/lib:" + imageSite + "/nvidia/nccl/lib:/opt/amazon/ofi-nccl/lib64:/opt/amazon/openmpi/lib:" +
		"/opt/amazon/openmpi/lib64:/opt/amazon/efa/lib:/opt/amazon/efa/lib64:/usr/local/cuda/lib64:/usr/local/lib",
	"CUDA_HOME": "/usr/local/cuda", "DLC_CONTAINER_TYPE": "training", "PYTHONUNBUFFERED": "1", "LANG": "C.UTF-8", "HOME": "/root",
	"FI_PROVIDER": "efa", "FI_LOG_LEVEL": "warn", "NCCL_DEBUG": "INFO",
}

// image is the AWS Ray Train container's layout, unpacked in a folder.
type image struct {
	t    *testing.T
	root string
}

// newImage lays out what of the image concerns the loader: the wheels' real libraries where its environment has
// them, older copies where its base image has them, and this system's own libraries below all of it. It has no
// driver, which is not the image's.
func newImage(t *testing.T, wheels, program string) *image {
	t.Helper()
	// Beside the wheels, so that their files can be linked, of which there are a gigabyte.
	root, err := os.MkdirTemp(filepath.Dir(wheels), "image-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	m := &image{t, root}
	for _, dir := range []string{
		"/opt/venv/bin", "/opt/amazon/efa/bin", "/usr/local/lib", "/usr/local/bin", "/usr/bin", "/tmp", "/root", "/workspace", "/dev/shm", "/etc",
		imageSite + "/nvidia/cudnn/lib", imageLib64, imageCUDA + "/bin", imageCUDA + "/compat", imageSystem,
	} {
		m.must(os.MkdirAll(root+dir, 0o755))
	}
	for link, to := range map[string]string{
		"/opt/venv/lib64": "lib", "/opt/venv/bin/python3": "/usr/local/bin/python3.13",
		"/usr/local/cuda": "/etc/alternatives/cuda", "/etc/alternatives/cuda": imageCUDA, imageCUDA + "/lib64": "targets/x86_64-linux/lib",
	} {
		m.must(os.MkdirAll(filepath.Dir(root+link), 0o755))
		m.must(os.Symlink(to, root+link))
	}
	m.copy(program, "/usr/local/bin/python3.13") // something is there, which is not started
	m.copy(program, "/workspace/gofsdp")
	for _, wheel := range []string{"nvidia/cu13/lib", "nvidia/nccl/lib"} {
		files, err := filepath.Glob(filepath.Join(wheels, wheel, "*.so*"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no libraries below %s (%v)", wheelsVariable, filepath.Join(wheels, wheel), err)
		}
		m.must(os.MkdirAll(filepath.Join(root, imageSite, wheel), 0o755))
		for _, file := range files {
			m.must(os.Link(file, filepath.Join(root, imageSite, wheel, filepath.Base(file))))
		}
	}
	m.must(os.Symlink("libnccl.so.2", root+imageSite+"/nvidia/nccl/lib/libnccl.so")) // its Dockerfile makes it

	// The base image's copies, of which only the version is asked. As the real one, cuBLAS stands on cuBLASLt.
	const version = "libraries/version.c"
	lt := imageLib64 + "/libcublasLt.so.13"
	m.compile(lt, version, "-DPROPERTY=cublasLtGetProperty", "-DMAJOR=13", "-Wl,-soname,libcublasLt.so.13")
	m.compile(imageLib64+"/libcublas.so.13", version, "-DPROPERTY=cublasGetProperty", "-DMAJOR=13", "-DCOMPLETE", "-Wl,--no-as-needed,-rpath,$ORIGIN", root+lt)
	m.compile(imageSystem+"/libnccl.so.2.28.3", version, "-DNCCL=22803", "-DCOMPLETE")
	m.must(os.Symlink("libnccl.so.2.28.3", root+imageSystem+"/libnccl.so.2"))
	m.compile(imageCUDA+"/compat/"+compatFile, "driver/driver.c")
	m.must(os.Symlink(compatFile, root+imageCUDA+"/compat/libcuda.so.1"))

	// What all of those stand on is this system's.
	m.systemLibraries(program, filepath.Join(wheels, "nvidia/nccl/lib/libnccl.so.2"), filepath.Join(wheels, "nvidia/cu13/lib/libcublas.so.13"))
	m.must(os.WriteFile(root+"/etc/ld.so.conf", []byte(imageSystem+"\n"), 0o644)) // Amazon Linux has it built in
	m.index()
	return m
}

func (m *image) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *image) copy(from, to string) {
	m.t.Helper()
	data, err := os.ReadFile(from)
	m.must(err)
	m.must(os.MkdirAll(filepath.Dir(m.root+to), 0o755))
	m.must(os.WriteFile(m.root+to, data, 0o755))
}

// compile makes a library of package cuda's tests a file of the image.
func (m *image) compile(name, source string, flags ...string) {
	m.t.Helper()
	cc := strings.Fields(os.Getenv("CC"))
	if len(cc) == 0 {
		cc = []string{"cc"}
	}
	args := append(cc[1:], "-shared", "-fPIC", "-pthread", "-I../../cuda", "-o", m.root+name, "../../cuda/testdata/"+source)
	if text, err := exec.Command(cc[0], append(args, flags...)...).CombinedOutput(); err != nil {
		m.t.Fatalf("%v: %s", err, text)
	}
}

// systemLibraries puts what files need of this system's libraries where the loader has them here.
func (m *image) systemLibraries(files ...string) {
	m.t.Helper()
	text, err := exec.Command("ldd", files...).Output()
	if err != nil {
		m.t.Fatalf("ldd: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		for _, word := range strings.Fields(line) {
			// The loader itself stands alone, the libraries behind an arrow. Those of the wheels are there.
			if strings.HasPrefix(word, "/") && !strings.HasSuffix(word, ":") && !strings.Contains(word, "site-packages") {
				if _, err := os.Stat(m.root + word); err != nil {
					m.copy(word, word)
				}
			}
		}
	}
}

// confined is what starts a process in the image: as root by chroot alone, else in a user namespace of its own.
func (m *image) confined(chroot bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{}
	if chroot {
		a.Chroot = m.root
	}
	if os.Geteuid() != 0 {
		a.Cloneflags = syscall.CLONE_NEWUSER
		a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	return a
}

// index makes the loader's index of libraries anew, as NVIDIA's container runtime does when it has put the driver
// into a container.
func (m *image) index() {
	m.t.Helper()
	ldconfig := "/sbin/ldconfig"
	if path, err := exec.LookPath("ldconfig"); err == nil {
		ldconfig = path
	}
	c := exec.Command(ldconfig, "-X", "-r", m.root)
	c.SysProcAttr = m.confined(false)
	if text, err := c.CombinedOutput(); err != nil {
		m.t.Fatalf("%s -r: %v: %s (it takes root, or namespaces of users)", ldconfig, err, text)
	}
}

// driver puts a driver into the image, as NVIDIA's container runtime does on Amazon Linux, or changes it.
func (m *image) driver(folder, file string, is driverControl) {
	m.t.Helper()
	if _, err := os.Stat(m.root + folder + "/" + file); errors.Is(err, fs.ErrNotExist) {
		m.compile(folder+"/"+file, "driver/driver.c")
		m.must(os.Symlink(file, m.root+folder+"/libcuda.so.1"))
		m.index()
	}
	for _, name := range []string{file, "libcuda.so.1"} { // it looks beside the name that it was opened by
		m.must(os.WriteFile(m.root+folder+"/"+name+".control", is.file(), 0o644))
	}
}

// nvml puts the management library into the image, as NVIDIA's container runtime does with the driver.
func (m *image) nvml() {
	m.t.Helper()
	const at = imageSystem + "/libnvidia-ml.so.1"
	if _, err := os.Stat(m.root + at); errors.Is(err, fs.ErrNotExist) {
		m.compile(at, "../nvml/testdata/nvml.c")
		m.index()
	}
}

// without takes files of the image away for the time of a test.
func (m *image) without(t *testing.T, files ...string) {
	for _, f := range files {
		at := m.root + f
		m.must(os.Rename(at, at+".away"))
		t.Cleanup(func() {
			if err := os.Rename(at+".away", at); err != nil {
				t.Error(err)
			}
		})
	}
}

// doctor asks the program within the image, whose root is then "/", or from outside by --root.
func (m *image) doctor(t *testing.T, outside bool, changes map[string]string, args ...string) (r doctor.Report, code int, problem string) {
	t.Helper()
	env := maps.Clone(imageEnvironment)
	maps.Copy(env, changes)
	c := exec.Command("/workspace/gofsdp", append([]string{"doctor", "--json"}, args...)...)
	c.Dir = "/workspace"
	if outside {
		for _, name := range []string{"PATH", "LD_LIBRARY_PATH"} {
			var list []string
			for _, dir := range filepath.SplitList(env[name]) {
				list = append(list, m.root+dir)
			}
			env[name] = strings.Join(list, ":")
		}
		c = exec.Command(m.root+"/workspace/gofsdp", append([]string{"doctor", "--json", "--root", m.root}, args...)...)
	} else {
		c.SysProcAttr = m.confined(true)
	}
	c.Env = []string{}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		c.Env = append(c.Env, name+"="+env[name])
	}
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v: %v\n%s%s", c.Args, err, stdout.String(), stderr.String())
	}
	return r, c.ProcessState.ExitCode(), stderr.String()
}

// TestTheContainersLibrariesAreFound takes the image's layout with NVIDIA's real libraries and asks the program
// in it, with its environment: complete, with and without a driver, and with each library missing in turn.
func TestTheContainersLibrariesAreFound(t *testing.T) {
	wheels, program := os.Getenv(wheelsVariable), os.Getenv(programVariable)
	if wheels == "" || program == "" {
		t.Skip("make e2e-image fetches the wheels, which are 630 MB, and runs this")
	}
	m := newImage(t, wheels, program)
	const (
		venv = imageSite + "/nvidia/cu13/lib/"
		comm = imageSite + "/nvidia/nccl/lib/"
		old  = imageLib64 + "/"
		host = imageSystem + "/libcuda.so." + hostRelease
	)
	// As "path version", empty where there is none.
	whole := map[string]string{
		"libcuda":     host + " 13.0",
		"libcublasLt": venv + "libcublasLt.so.13 13.1.1", "libcublas": venv + "libcublas.so.13 13.1.1",
		"libnccl": comm + "libnccl.so.2 2.29.7",
	}
	with := func(changes ...string) map[string]string {
		found := maps.Clone(whole)
		for i := 0; i < len(changes); i += 2 {
			found[changes[i]] = changes[i+1]
		}
		return found
	}
	pods := driverControl{13000, 0, 4, 8} // four GPUs of a g6.12xlarge
	four := []string{"--gpus", "4"}
	for _, c := range []struct {
		name    string
		driver  driverControl // of no version: there is none
		without []string
		env     map[string]string
		args    []string
		outside bool
		found   map[string]string
		code    int
		says    []string // on stderr
	}{
		{
			name: "without a driver, and no GPU asked for", found: with("libcuda", ""),
		},
		{
			name: "without a driver", found: with("libcuda", ""), args: four, code: 1,
			says: []string{"gofsdp: GPU driver: none; libcuda.so.1 is not here", "nvidia.com/gpu in Kubernetes", "GOFSDP_LIBCUDA"},
		},
		{name: "complete", driver: pods, args: four, found: whole},
		{name: "complete, seen from outside", driver: pods, args: four, outside: true, found: whole},
		{
			name: "started with another environment", driver: pods, args: four, found: whole,
			env: map[string]string{"LD_LIBRARY_PATH": "", "PATH": "/usr/bin", "CUDA_HOME": ""},
		},
		{
			name: "a driver that sees no GPU", driver: driverControl{13000, 100, 0, 8}, args: four, found: whole, code: 1,
			says: []string{"gofsdp: GPU devices: none; libcuda.so.1 (" + host + "), of CUDA 13.0, is here and sees no GPU"},
		},
		{
			name: "a host whose driver is too old", driver: driverControl{11080, 0, 4, 8}, args: four, code: 1,
			found: with("libcuda", host+" 11.8"),
			says:  []string{"is too old; the kernels need a driver of CUDA 12.2 (R535) or newer", "such as /usr/local/cuda/compat, first on LD_LIBRARY_PATH"},
		},
		{
			name: "the same, and the entry point has put the image's own driver first", driver: driverControl{11080, 0, 4, 8}, args: four,
			env:   map[string]string{"LD_LIBRARY_PATH": "/usr/local/cuda/compat:" + imageEnvironment["LD_LIBRARY_PATH"]},
			found: with("libcuda", imageCUDA+"/compat/"+compatFile+" 13.0"),
		},
		{
			name: "without the wheels' cuBLAS", driver: pods, args: four, without: []string{venv + "libcublas.so.13", venv + "libcublasLt.so.13"},
			found: with("libcublasLt", old+"libcublasLt.so.13 13.1.2", "libcublas", old+"libcublas.so.13 13.1.2"),
		},
		{
			name: "of the pair the wheel has one, and the base image both", driver: pods, args: four, without: []string{venv + "libcublas.so.13"},
			found: with("libcublasLt", old+"libcublasLt.so.13 13.1.2", "libcublas", old+"libcublas.so.13 13.1.2"),
		},
		{
			name: "without any cuBLAS", driver: pods, args: four, code: 1, found: with("libcublas", ""),
			without: []string{venv + "libcublas.so.13", old + "libcublas.so.13"},
			says:    []string{"gofsdp: GPU cuBLAS: none; libcublas.so.13 is not here", venv[:len(venv)-1], "install NVIDIA's wheel of it (pip install nvidia-cublas), or let GOFSDP_LIBCUBLAS name its file"},
		},
		{
			name: "without any cuBLASLt", driver: pods, args: four, code: 1, found: with("libcublasLt", "", "libcublas", ""),
			without: []string{venv + "libcublasLt.so.13", old + "libcublasLt.so.13"},
			says: []string{
				"gofsdp: GPU cuBLASLt: none; libcublasLt.so.13 is not here", "install NVIDIA's wheel of it",
				"GPU cuBLAS: none; libcublas.so.13 cannot be opened: libcublasLt.so.13: cannot open shared object file",
			},
		},
		{
			name: "without the wheel's NCCL", driver: pods, args: four, without: []string{comm + "libnccl.so.2"},
			found: with("libnccl", imageSystem+"/libnccl.so.2.28.3 2.28.3"),
		},
		{
			name: "without any NCCL", driver: pods, args: four, code: 1, found: with("libnccl", ""),
			without: []string{comm + "libnccl.so.2", imageSystem + "/libnccl.so.2"},
			says:    []string{"gofsdp: GPU NCCL: none; libnccl.so.2 is not here", comm[:len(comm)-1], "GOFSDP_LIBNCCL"},
		},
		{
			name: "without any NCCL, for one GPU", driver: pods, args: []string{"--gpus", "1"}, found: with("libnccl", ""),
			without: []string{comm + "libnccl.so.2", imageSystem + "/libnccl.so.2"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			m.t = t
			if c.driver.Version != 0 {
				m.nvml()
				m.driver(imageSystem, "libcuda.so."+hostRelease, c.driver)
				m.driver(imageCUDA+"/compat", compatFile, pods)
			}
			m.without(t, c.without...)
			r, code, problem := m.doctor(t, c.outside, c.env, c.args...)
			if code != c.code || (problem == "") != (code == 0) {
				t.Errorf("exit code %d, want %d: %s", code, c.code, problem)
			}
			for _, want := range c.says {
				if !strings.Contains(problem, want) {
					t.Errorf("it says\n%s\nwant in it %q", problem, want)
				}
			}
			g := r.GPU
			for name, got := range map[string]string{
				"libcuda": g.Driver.Path + " " + g.Driver.Version, "libcublasLt": g.BLASLt.Path + " " + g.BLASLt.Version,
				"libcublas": g.BLAS.Path + " " + g.BLAS.Version, "libnccl": g.NCCL.Path + " " + g.NCCL.Version,
			} {
				want := c.found[name]
				if c.outside && want != "" {
					want = m.root + want
				}
				if strings.TrimSpace(got) != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
			if n := int(c.driver.Devices); code == 0 && len(c.args) > 0 && len(g.Devices) != n {
				t.Errorf("%d devices, want %d", len(g.Devices), n)
			}
			if release, known := r.NVML.Release.Get(); known != (c.driver.Version != 0) || known && release != hostRelease {
				t.Errorf("NVML's release is %v", r.NVML.Release)
			}
			if _, release, _ := strings.Cut(g.Driver.Path, "libcuda.so."); release != g.Driver.Release {
				t.Errorf("release %q of %s", g.Driver.Release, g.Driver.Path)
			}
		})
	}
}
