package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/nvml"
	"github.com/gofsdp/gofsdp/record"
)

// rewrite renews what the tests compare with: go test ./doctor -rewrite, then look at the difference.
var rewrite = flag.Bool("rewrite", false, "write what is said now into testdata")

// machine is a file of testdata, unpacked.
type machine struct {
	Sources
	archive *txtar.Archive
	path    string
}

// unpack makes the machine of an archive: below root/ what its file system has, in environ its environment, in
// space the size and free space of /dev/shm in MiB.
func unpack(t *testing.T, path string) *machine {
	t.Helper()
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{Sources{Root: t.TempDir(), Environ: []string{}}, a, path}
	for _, f := range a.Files {
		name, ok := strings.CutPrefix(f.Name, "root/")
		if !ok {
			continue
		}
		to := filepath.Join(m.Root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, f.Data, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	m.Environ = append(m.Environ, strings.Split(strings.TrimSpace(m.file("environ")), "\n")...)
	m.space = func(path string) (s Space, err error) {
		if _, err := fmt.Sscan(m.file("space"), &s.Size, &s.Free); err != nil {
			return s, fmt.Errorf("statfs %s: %w", path, err)
		}
		return Space{s.Size << 20, s.Free << 20}, nil
	}
	return m
}

// file is a part of the archive, empty where there is none.
func (m *machine) file(name string) string {
	for _, f := range m.archive.Files {
		if f.Name == name {
			return string(f.Data)
		}
	}
	return ""
}

func (m *machine) decode(t *testing.T, name string, into any) {
	t.Helper()
	text := m.file(name)
	if text == "" {
		return
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %s: %v", m.path, name, err)
	}
}

// compare holds a part of the archive, the only one of that name, against what came.
func (m *machine) compare(t *testing.T, name, got string) {
	t.Helper()
	for i := range m.archive.Files {
		f := &m.archive.Files[i]
		if f.Name != name {
			continue
		}
		if *rewrite {
			f.Data = []byte(got)
			if err := os.WriteFile(m.path, txtar.Format(m.archive), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(strings.Split(string(f.Data), "\n"), strings.Split(got, "\n")); diff != "" {
			t.Errorf("%s: %s (-want +got; -rewrite renews it):\n%s", m.path, name, diff)
		}
		return
	}
	t.Fatalf("%s has no %s", m.path, name)
}

// report looks at the machine. What cannot be faked by files stands in the archive: GPUs and their libraries.
func (m *machine) report(t *testing.T) Report {
	t.Helper()
	found := m.Find()
	found.Build = record.Build{Version: record.Known("v0.6.0"), Commit: record.Known("0123456789abcdef"), Modified: record.Known(false), Go: "go1.26"}
	found.Host = record.Host{
		Name: record.Known("worker-0"), Platform: "linux/amd64", OS: record.Known("Test Linux 1"), Kernel: record.Known("6.12.0"),
		CPU: record.Known("Test CPU"), Cores: record.Known(24), CPUs: 48, Memory: record.Known(int64(192 << 30)),
	}
	found.Processor.ISA = "avx2"
	const noNVML = "nvml: no library: libnvidia-ml.so.1 is not here"
	found.GPU, found.NVML = cuda.Report{}, nvml.Report{Problem: noNVML, Release: record.Unknown[string](noNVML)}
	m.decode(t, "processor", &found.Processor)
	m.decode(t, "gpu", &found.GPU)
	if m.file("nvml") != "" {
		found.NVML = nvml.Report{}
		m.decode(t, "nvml", &found.NVML)
	}
	var n Needs
	m.decode(t, "needs", &n)
	return found.Check(n)
}

func TestMachinesAreDescribed(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			m := unpack(t, path)
			r := m.report(t)
			var out bytes.Buffer
			if err := r.Text(&out); err != nil {
				t.Fatal(err)
			}
			m.compare(t, "text", out.String())
			problem := ""
			if err := r.Problem(); err != nil {
				problem = err.Error() + "\n"
			}
			m.compare(t, "problem", problem)
			if r.Met != (problem == "") {
				t.Errorf("met is %v, and the problem %q", r.Met, problem)
			}
			if m.file("json") != "" {
				text, err := json.MarshalIndent(r, "", "  ")
				if err != nil {
					t.Fatal(err)
				}
				m.compare(t, "json", string(text)+"\n")
			}
		})
	}
}

// A report of format 1 is read by others; what this program writes it can read, too.
func TestAReportSurvivesJSON(t *testing.T) {
	r := unpack(t, "testdata/gpu_pod.txtar").report(t)
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&back); err != nil {
		t.Fatal(err)
	}
	again, err := json.Marshal(back)
	if err != nil || !bytes.Equal(text, again) || back.Format != 1 {
		t.Errorf("%v, format %d:\n%s\n%s", err, back.Format, text, again)
	}
}

func TestNothingIsSaidOfGPUDirect(t *testing.T) {
	var out bytes.Buffer
	if err := unpack(t, "testdata/gpu_pod.txtar").report(t).Text(&out); err != nil {
		t.Fatal(err)
	}
	text := strings.ToLower(out.String())
	if !strings.Contains(text, "fi_ep_rdm") {
		t.Errorf("endpoints are not shown:\n%s", text)
	}
	for _, word := range []string{"gpudirect", "gpu direct", "gdr"} {
		if strings.Contains(text, word) {
			t.Errorf("%q is claimed:\n%s", word, text)
		}
	}
}

func TestAMachineWithoutAnyOfTheFilesIsDescribed(t *testing.T) {
	r := Sources{Root: t.TempDir(), Environ: []string{}}.Find().Check(Needs{})
	for _, reason := range []string{r.Memory.Reason(), r.Shm.Reason(), r.Locked.Reason(), r.OpenFiles.Reason(), r.Kernel.Reason()} {
		if !strings.Contains(reason, "no such file") {
			t.Errorf("%q", reason)
		}
	}
	if !r.Met || len(r.Ready) != 1 || r.Network.FabricInfo.Path != "" || len(r.Settings)+len(r.Network.Plugins)+len(r.Network.Adapters) != 0 {
		t.Errorf("%+v", r)
	}
}

func TestThisMachineIsRead(t *testing.T) {
	m := Sources{}.Find()
	if m.Host.Platform == "" || m.Build.Go == "" {
		t.Errorf("%+v", m)
	}
	if !strings.HasPrefix(m.Host.Platform, "linux") {
		return
	}
	memory, known := m.Memory.Get()
	if total, _ := m.Host.Memory.Get(); !known || memory.Total != total || memory.Available <= 0 || memory.Available > total {
		t.Errorf("%+v, %s; the host has %d", memory, m.Memory.Reason(), total)
	}
	if files, known := m.OpenFiles.Get(); !known || files.Soft == 0 {
		t.Errorf("%+v, %s", files, m.OpenFiles.Reason())
	}
	if _, err := os.Stat("/dev/shm"); err == nil {
		if shm, known := m.Shm.Get(); !known || shm.Size <= 0 || shm.Free > shm.Size {
			t.Errorf("%+v, %s", shm, m.Shm.Reason())
		}
	}
}

func TestAnFiInfoThatHangsOrSaysNothingIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		script, want string
		patience     time.Duration
	}{
		"it hangs":          {"exec sleep 1000", "fi_info -p efa gave no answer in 100ms", 100 * time.Millisecond},
		"it says nothing":   {"exit 0", "fi_info -p efa names no provider", 0},
		"it fails in words": {"echo no luck >&2; exit 3", "fi_info -p efa says: no luck", 0},
		"it fails silently": {"exit 3", "fi_info -p efa fails: exit status 3", 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := Sources{Root: t.TempDir(), Environ: []string{"PATH=bin:/sbin:/usr/bin"}, patience: c.patience}
			file := s.Root + "/usr/bin/fi_info"
			if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte("#!/bin/sh\n"+c.script+"\n"), 0o755)); err != nil {
				t.Fatal(err)
			}
			if f := s.fabrics(); f.Problem != c.want || f.Path != "/usr/bin/fi_info" || len(f.Endpoints) > 0 {
				t.Errorf("%+v, want %q", f, c.want)
			}
		})
	}
}

func TestFilesThatSayNonsenseAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		path, text string
		reason     func(Machine) string
		want       string
	}{
		"memory that is no number": {
			"proc/meminfo", "MemTotal: much kB\n", func(m Machine) string { return m.Memory.Reason() },
			`/proc/meminfo: "MemTotal: much kB" is no number`,
		},
		"memory without a total": {
			"proc/meminfo", "MemFree: 1 kB\n", func(m Machine) string { return m.Memory.Reason() }, "/proc/meminfo does not say",
		},
		"a limit that is no number": {
			"proc/self/limits", "Max open files  many  many  files\n", func(m Machine) string { return m.OpenFiles.Reason() },
			`/proc/self/limits: "many" is no number`,
		},
		"a limit that is cut off": {
			"proc/self/limits", "Max open files  12\n", func(m Machine) string { return m.OpenFiles.Reason() },
			`/proc/self/limits: "Max open files  12" has no two numbers`,
		},
		"limits without the line": {
			"proc/self/limits", "Max open files  1 1 files\n", func(m Machine) string { return m.Locked.Reason() },
			`/proc/self/limits has no "Max locked memory"`,
		},
		"a driver without a release": {
			"proc/driver/nvidia/version", "NVRM version: x86_64\n", func(m Machine) string { return m.Kernel.Reason() },
			"/proc/driver/nvidia/version names no release",
		},
		"a file in place of a directory": {
			"dev/shm", "", func(m Machine) string { return m.Shm.Reason() }, "/dev/shm is no directory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			path := filepath.Join(root, c.path)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(c.text), 0o644)); err != nil {
				t.Fatal(err)
			}
			m := Sources{Root: root, Environ: []string{}}.Find()
			if got := c.reason(m); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
			var out bytes.Buffer
			if err := m.Check(Needs{}).Text(&out); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestNCCLsSettingsComeInItsOrder(t *testing.T) {
	root := t.TempDir()
	for path, text := range map[string]string{
		"etc/nccl.conf":      "# comment\nNCCL_DEBUG=INFO\nNCCL_SOCKET_IFNAME=^docker0,lo\nNCCL_ALGO=Ring\n",
		"home/me/.nccl.conf": "NCCL_DEBUG=WARN\nNCCL_PROTO=Simple\n",
		"mine.conf":          "NCCL_DEBUG=TRACE\n",
		".nccl.conf":         "NCCL_DEBUG=ABORT\n",
	} {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		environ []string
		want    []Setting
	}{
		"the environment, the user's file, the machine's": {
			[]string{"HOME=/home/me", "NCCL_SOCKET_IFNAME=eth0", "PATH=/bin", "FI_PROVIDER=tcp", "FI_PROVIDER=efa"},
			[]Setting{
				{"FI_PROVIDER", "efa", fromEnvironment, ""},
				{"NCCL_ALGO", "Ring", "/etc/nccl.conf", ""},
				{"NCCL_DEBUG", "WARN", "/home/me/.nccl.conf", "/etc/nccl.conf"},
				{"NCCL_PROTO", "Simple", "/home/me/.nccl.conf", ""},
				{"NCCL_SOCKET_IFNAME", "eth0", fromEnvironment, "/etc/nccl.conf"},
			},
		},
		"the environment, with another value in each file": {
			[]string{"HOME=/home/me", "NCCL_DEBUG=VERSION"},
			[]Setting{
				{"NCCL_ALGO", "Ring", "/etc/nccl.conf", ""},
				{"NCCL_DEBUG", "VERSION", fromEnvironment, "/home/me/.nccl.conf"},
				{"NCCL_PROTO", "Simple", "/home/me/.nccl.conf", ""},
				{"NCCL_SOCKET_IFNAME", "^docker0,lo", "/etc/nccl.conf", ""},
			},
		},
		"nobody's home": {
			nil,
			[]Setting{{"NCCL_ALGO", "Ring", "/etc/nccl.conf", ""}, {"NCCL_DEBUG", "INFO", "/etc/nccl.conf", ""}, {"NCCL_SOCKET_IFNAME", "^docker0,lo", "/etc/nccl.conf", ""}},
		},
		"a file that is named, in place of the user's": {
			[]string{"HOME=/home/me", "NCCL_CONF_FILE=/mine.conf", "NCCL_DEBUG=TRACE"},
			[]Setting{
				{"NCCL_ALGO", "Ring", "/etc/nccl.conf", ""},
				{"NCCL_CONF_FILE", "/mine.conf", fromEnvironment, ""},
				{"NCCL_DEBUG", "TRACE", fromEnvironment, "/etc/nccl.conf"},
				{"NCCL_SOCKET_IFNAME", "^docker0,lo", "/etc/nccl.conf", ""},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, Sources{Root: root, Environ: append([]string{}, c.environ...)}.settings()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestInterfacesAreMeantAsNCCLReadsThem(t *testing.T) {
	here := []string{"ens5", "lo"}
	for value, want := range map[string]bool{
		"ens": true, "ens5": true, "eth0": false, "eth,ens": true, "=ens": false, "=ens5": true,
		"^docker0,lo": true, "^ens,lo": false, "^=ens,lo": true, "eth0,": false,
	} {
		if got := matchesInterface(value, here); got != want {
			t.Errorf("NCCL_SOCKET_IFNAME=%s means one of %v: %v, want %v", value, here, got, want)
		}
	}
}

func TestPluginsAreNamedAsNCCLReadsThem(t *testing.T) {
	for value, want := range map[string]string{
		"": "libnccl-net.so", "ofi": "libnccl-net-ofi.so", "libmine.so": "libmine.so", "/a/b.so": "/a/b.so", "none": "",
		"ofi,/a/b.so,STATIC_PLUGIN": "libnccl-net-ofi.so /a/b.so",
	} {
		if got := strings.Join(wantedPlugins(value), " "); got != want {
			t.Errorf("NCCL_NET_PLUGIN=%s is %q, want %q", value, got, want)
		}
	}
}

func TestPluginsAreLookedForWhereTheLoaderDoes(t *testing.T) {
	const ofi = "/opt/amazon/ofi-nccl/lib64/libnccl-net-ofi.so"
	for name, c := range map[string]struct {
		environ []string
		files   map[string]string // by path; "-> PATH" is a link
		want    []Plugin
	}{
		"a folder of LD_LIBRARY_PATH": {
			[]string{"LD_LIBRARY_PATH=/nowhere:/opt/mine"},
			map[string]string{"/opt/mine/libnccl-net.so": "Initializing aws-ofi-nccl 1.21.1-aws\n"},
			[]Plugin{{"/opt/mine/libnccl-net.so", "1.21.1-aws", true}},
		},
		"a folder that the loader's configuration names": {
			nil,
			map[string]string{"/etc/ld.so.conf.d/efa.conf": "# comment\n/opt/amazon/ofi-nccl/lib64\n", "/opt/amazon/ofi-nccl/lib64/libnccl-net.so": ""},
			[]Plugin{{"/opt/amazon/ofi-nccl/lib64/libnccl-net.so", "", true}},
		},
		"a folder of the system": {
			nil, map[string]string{"/usr/lib64/libnccl-net.so": ""}, []Plugin{{"/usr/lib64/libnccl-net.so", "", true}},
		},
		"a file that is named": {
			[]string{"NCCL_NET_PLUGIN=" + ofi}, map[string]string{ofi: ""}, []Plugin{{ofi, "", true}},
		},
		"a name, found before others, and a link to the same file": {
			[]string{"NCCL_NET_PLUGIN=ofi", "LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib64"},
			map[string]string{ofi: "", "/opt/amazon/ofi-nccl/lib64/libnccl-net.so": "-> libnccl-net-ofi.so", "/usr/local/lib/libnccl-net.so": ""},
			[]Plugin{{ofi, "", true}, {"/usr/local/lib/libnccl-net.so", "", false}},
		},
		"a folder that the loader does not look into": {
			[]string{"NCCL_NET_PLUGIN=none"},
			map[string]string{ofi: "", "/usr/lib64/libnccl-net.so": ""},
			[]Plugin{{"/usr/lib64/libnccl-net.so", "", false}, {ofi, "", false}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := Sources{Root: t.TempDir(), Environ: append([]string{}, c.environ...)}
			for path, text := range c.files {
				path = s.Root + path
				err := os.MkdirAll(filepath.Dir(path), 0o755)
				if to, link := strings.CutPrefix(text, "-> "); link {
					err = errors.Join(err, os.Symlink(to, path))
				} else {
					err = errors.Join(err, os.WriteFile(path, []byte(text), 0o644))
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(c.want, s.plugins(s.settings())); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTextIsBrokenBetweenWordsAndPaths(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "one": "one", "one two three": "one two|three", "averylongwordthatfits not": "averylongwordthatfits|not",
		"/usr/lib:/opt/lib:/a": "/usr/lib:|/opt/lib:/a", "a: b": "a: b",
	} {
		if got := strings.Join(wrap(text, 12), "|"); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
