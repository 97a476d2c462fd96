package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/nvml"
	"github.com/gofsdp/gofsdp/record"
)

// Machine is what was found. What cannot be read is not known, and says why.
type Machine struct {
	Build     record.Build               `json:"build"`
	Host      record.Host                `json:"host"`
	Processor Processor                  `json:"processor"`
	Container []string                   `json:"container"` // what shows that this is one: "docker", "kubernetes"
	Memory    record.Value[Memory]       `json:"memory"`
	Shm       record.Value[Space]        `json:"dev_shm"`
	Locked    record.Value[Limit]        `json:"locked_memory"` // bytes
	OpenFiles record.Value[Limit]        `json:"open_files"`
	GPU       cuda.Report                `json:"gpu"`
	NVML      nvml.Report                `json:"nvml"`
	Kernel    record.Value[KernelDriver] `json:"kernel_driver"` // NVIDIA's
	Network   Network                    `json:"network"`
	Settings  []Setting                  `json:"settings"`
}

// Processor is what the CPU's kernels found, which Find does not ask.
type Processor struct {
	ISA    string `json:"isa"`              // the best level here
	Remedy string `json:"remedy,omitempty"` // what would make it faster
}

// Memory is the host's, in bytes.
type Memory struct {
	Total     int64     `json:"total"`
	Available int64     `json:"available"` // without swapping, as the kernel estimates
	Limit     int64     `json:"limit"`     // of the control group; 0: none that can be read
	Huge      HugePages `json:"huge_pages"`
}

// HugePages are those that were set aside, and whether others come by themselves.
type HugePages struct {
	Size        int64  `json:"size"` // bytes of one
	Total       int64  `json:"total"`
	Free        int64  `json:"free"`
	Transparent string `json:"transparent"` // always, madvise or never; empty: not known
}

// Space is that of a file system, in bytes.
type Space struct {
	Size int64 `json:"size"`
	Free int64 `json:"free"`
}

// Limit is one of getrlimit(2): what holds, and what it may be raised to.
type Limit struct {
	Soft int64 `json:"soft"`
	Hard int64 `json:"hard"`
}

// Unlimited is no limit.
const Unlimited = -1

// KernelDriver is NVIDIA's in the kernel, which a container shares with its host.
type KernelDriver struct {
	Release string   `json:"release"` // "535.161.08"
	Devices []string `json:"devices"` // device files of GPUs that can be seen here
}

// Sources says where to look. The zero value is this machine.
type Sources struct {
	// Root is what absolute paths begin with: for an image that lies unpacked in a folder.
	Root string
	// Environ is the environment as os.Environ gives it, that where nil.
	Environ []string

	// space tells of the file system at a path; nil asks the kernel.
	space func(path string) (Space, error)
	// patience is how long fi_info may take; 0: long enough.
	patience time.Duration
}

// Find describes the machine, but for its processor. It takes seconds at most, and does not fail.
func (s Sources) Find() Machine {
	m := Machine{
		Build:     record.ThisBuild(),
		Host:      record.ThisHost(),
		Container: s.container(),
		Memory:    record.ValueOf(s.memory()),
		Shm:       record.ValueOf(s.shm()),
		Locked:    record.ValueOf(s.limit("Max locked memory")),
		OpenFiles: record.ValueOf(s.limit("Max open files")),
		GPU:       cuda.Sources{Root: s.Root, Env: s.env}.Find(),
		NVML:      s.nvml(),
		Kernel:    record.ValueOf(s.kernelDriver()),
		Settings:  s.settings(),
	}
	m.Network = s.network(m.Settings)
	return m
}

// nvml asks NVIDIA's management library how the GPUs are at this moment.
func (s Sources) nvml() (r nvml.Report) {
	l, err := nvml.Open(nvml.Sources{Root: s.Root, Env: s.env})
	if err != nil {
		return nvml.Report{Problem: err.Error(), Release: record.Unknown[string](err.Error())}
	}
	r = l.Report()
	if err := l.Close(); err != nil && r.Problem == "" {
		r.Problem = err.Error()
	}
	return r
}

// env is os.Getenv for the environment.
func (s Sources) env(name string) string {
	value := ""
	for _, v := range s.environ() { // of two the last one counts, as for exec
		if key, text, ok := strings.Cut(v, "="); ok && key == name {
			value = text
		}
	}
	return value
}

func (s Sources) environ() []string {
	if s.Environ != nil {
		return s.Environ
	}
	return os.Environ()
}

// read returns a file's text. Errors name the file as it is called below the root.
func (s Sources) read(path string) (string, error) {
	text, err := os.ReadFile(s.Root + path)
	return string(text), below(path, err)
}

// below makes an error of a file one of the path that it has below the root.
func below(path string, err error) error {
	var of *fs.PathError
	if errors.As(err, &of) {
		return fmt.Errorf("%s: %w", path, of.Err)
	}
	return err
}

// line is a file's text without what surrounds it, empty where there is none.
func (s Sources) line(path string) string {
	text, _ := s.read(path)
	return strings.TrimSpace(text)
}

// glob returns what is there, by the names that it has below the root.
func (s Sources) glob(pattern string) (list []string) {
	found, _ := filepath.Glob(s.Root + pattern) // the patterns are good
	for _, path := range found {
		list = append(list, strings.TrimPrefix(path, s.Root))
	}
	return list
}

// container tells what shows that the machine is one.
func (s Sources) container() []string {
	signs := []string{}
	for _, c := range []struct {
		sign  string
		shown bool
	}{
		{"docker", len(s.glob("/.dockerenv")) > 0},
		{"podman", len(s.glob("/run/.containerenv")) > 0},
		{"kubernetes", s.env("KUBERNETES_SERVICE_HOST") != ""},
	} {
		if c.shown {
			signs = append(signs, c.sign)
		}
	}
	if kind := s.env("DLC_CONTAINER_TYPE"); kind != "" {
		signs = append(signs, "AWS deep learning container for "+kind)
	}
	return signs
}

func (s Sources) memory() (m Memory, err error) {
	text, err := s.read("/proc/meminfo")
	if err != nil {
		return m, err
	}
	into := map[string]*int64{
		"MemTotal": &m.Total, "MemAvailable": &m.Available, "Hugepagesize": &m.Huge.Size,
		"HugePages_Total": &m.Huge.Total, "HugePages_Free": &m.Huge.Free,
	}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		if at := into[key]; at != nil {
			value, kib := strings.CutSuffix(strings.TrimSpace(value), " kB")
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return m, fmt.Errorf("/proc/meminfo: %q is no number", strings.TrimSpace(line))
			}
			if kib {
				n <<= 10
			}
			*at = n
		}
	}
	if m.Total == 0 {
		return m, errors.New("/proc/meminfo does not say")
	}
	// Of the control groups' two versions; the older one writes a huge number for no limit.
	for _, file := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		if n, err := strconv.ParseInt(s.line(file), 10, 64); err == nil && n < m.Total {
			m.Limit = n
		}
	}
	// "always [madvise] never": the one in brackets holds.
	_, chosen, _ := strings.Cut(s.line("/sys/kernel/mm/transparent_hugepage/enabled"), "[")
	m.Huge.Transparent, _, _ = strings.Cut(chosen, "]")
	return m, nil
}

func (s Sources) shm() (Space, error) {
	const path = "/dev/shm"
	if info, err := os.Stat(s.Root + path); err != nil {
		return Space{}, below(path, err)
	} else if !info.IsDir() {
		return Space{}, fmt.Errorf("%s is no directory", path)
	}
	if s.space != nil {
		return s.space(path)
	}
	var f unix.Statfs_t
	if err := unix.Statfs(s.Root+path, &f); err != nil {
		return Space{}, fmt.Errorf("statfs %s: %w", path, err)
	}
	block := int64(f.Bsize)
	return Space{Size: int64(f.Blocks) * block, Free: int64(f.Bavail) * block}, nil
}

// limit reads a line of /proc/self/limits: its name, what holds, what it may be raised to, a unit. Go has
// raised that of open files by then, as it does in every process of a run.
func (s Sources) limit(name string) (Limit, error) {
	const path = "/proc/self/limits"
	text, err := s.read(path)
	if err != nil {
		return Limit{}, err
	}
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok {
			continue
		}
		var l Limit
		fields := strings.Fields(rest)
		for i, at := range []*int64{&l.Soft, &l.Hard} {
			if i >= len(fields) {
				return l, fmt.Errorf("%s: %q has no two numbers", path, strings.TrimSpace(line))
			}
			if *at = Unlimited; fields[i] == "unlimited" {
				continue
			}
			if *at, err = strconv.ParseInt(fields[i], 10, 64); err != nil {
				return l, fmt.Errorf("%s: %q is no number", path, fields[i])
			}
		}
		return l, nil
	}
	return Limit{}, fmt.Errorf("%s has no %q", path, name)
}

// kernelDriver reads a line such as "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat ...";
// that of the open modules says "Open Kernel Module for x86_64".
func (s Sources) kernelDriver() (k KernelDriver, err error) {
	const path = "/proc/driver/nvidia/version"
	text, err := s.read(path)
	if err != nil {
		return k, err
	}
	k.Devices = append([]string{}, s.glob("/dev/nvidia[0-9]*")...)
	for _, word := range strings.Fields(text) {
		// The first word of numbers and dots alone.
		if strings.Contains(word, ".") && strings.Trim(word, "0123456789.") == "" {
			k.Release = word
			return k, nil
		}
	}
	return k, fmt.Errorf("%s names no release", path)
}
