package doctor

import (
	"errors"
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/record"
)

// Format is the version of a Report's JSON.
const Format = 1

// Needs is what is asked of the machine. The zero value asks for nothing in particular.
type Needs struct {
	By        string `json:"by,omitempty"`         // who asks: "run.yaml", "--gpus"
	Ranks     int    `json:"ranks,omitempty"`      // processes of the run on this machine
	GPUs      int    `json:"gpus,omitempty"`       // of which each takes one; 0: they compute on the CPU
	GPUMemory int64  `json:"gpu_memory,omitempty"` // bytes of its GPU's that each rank takes; 0: not known
	Simulated int    `json:"simulated,omitempty"`  // GPUs that a simulator stands in for
	EFA       bool   `json:"efa,omitempty"`        // other nodes must be reached by it
	Memory    int64  `json:"memory,omitempty"`     // bytes of the host's that they take together; 0: not known
	Processor string `json:"processor,omitempty"`  // why the processor cannot do what is asked, if so
}

// Report is the machine, and how what was found compares with what is needed.
type Report struct {
	Format int `json:"format"`
	Machine
	Needs  Needs   `json:"needs"`
	Checks []Check `json:"checks"`
	// What can compute here, by the kind of device: "cpu" on every machine, "cuda" where there are GPUs, of which
	// so many can be used together.
	Ready []string `json:"ready"`
	GPUs  int      `json:"gpus_ready"`
	// Met says that nothing which is needed is missing.
	Met bool `json:"met"`
}

// Verdict is how a finding is.
type Verdict string

// The verdicts.
const (
	OK      Verdict = "ok"
	Missing Verdict = "missing" // it is not here, or not so much of it as is needed
	Remedy  Verdict = "remedy"  // it is here, and something is to be done
)

// Check is a line of the report.
type Check struct {
	Group   string  `json:"group"`
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Found   string  `json:"found"`
	Remedy  string  `json:"remedy,omitempty"` // why and what to do; empty where there is no need
	Blocks  bool    `json:"blocks"`           // what is asked for cannot run so
}

// Check compares what was found with what is needed.
func (m Machine) Check(n Needs) Report {
	r := Report{Format: Format, Machine: m, Needs: n, Ready: []string{"cpu"}, GPUs: m.UsableGPUs()}
	if r.GPUs > 0 {
		r.Ready = append(r.Ready, "cuda")
	}
	r.machine()
	r.limits()
	r.gpus()
	r.network()
	r.settings()
	r.Met = r.Problem() == nil
	return r
}

// Problem is why what is asked for cannot run here, all reasons at once; nil where it can.
func (r Report) Problem() error {
	var errs []error
	for _, c := range r.Checks {
		if c.Blocks {
			errs = append(errs, fmt.Errorf("%s %s: %s", c.Group, c.Name, strings.Join(nonEmpty(c.Found, c.Remedy), "; ")))
		}
	}
	return errors.Join(errs...)
}

func nonEmpty(all ...string) (list []string) {
	for _, s := range all {
		if s != "" {
			list = append(list, s)
		}
	}
	return list
}

// UsableGPUs is how many GPUs can be used together: those of which each can, but one where there is nothing by which several talk.
func (m Machine) UsableGPUs() (n int) {
	if !works(m.GPU.BLAS) {
		return 0
	}
	for _, d := range m.GPU.Devices {
		if d.Problem == "" {
			n++
		}
	}
	if !works(m.GPU.NCCL) {
		n = min(n, 1)
	}
	return n
}

// works says whether a library is here and can be used.
func works(l cuda.Library) bool { return l.Path != "" && l.Problem == "" }

// severalGPUs says whether ranks on GPUs of this machine are to talk with each other.
func (r *Report) severalGPUs() bool {
	return r.Needs.GPUs > 1 || r.Needs.By == "" && r.GPUs > 1
}

func (r *Report) add(group, name string, v Verdict, found, remedy string) *Check {
	r.Checks = append(r.Checks, Check{Group: group, Name: name, Verdict: v, Found: found, Remedy: remedy})
	return &r.Checks[len(r.Checks)-1]
}

// machine judges what every run needs.
func (r *Report) machine() {
	const group = "machine"
	build := r.Build.Version.String()
	if _, known := r.Build.Version.Get(); !known {
		build = "without a version"
	}
	if commit, known := r.Build.Commit.Get(); known {
		build += ", commit " + commit[:min(len(commit), 12)]
	}
	r.add(group, "gofsdp", OK, fmt.Sprintf("%s, %s, %s", build, r.Build.Go, r.Host.Platform), "")

	system := fmt.Sprintf("%s, kernel %s", text(r.Host.OS), text(r.Host.Kernel))
	if len(r.Container) > 0 {
		system += ", in a container (" + strings.Join(r.Container, ", ") + ")"
	}
	r.add(group, "system", OK, system, "")

	cores := fmt.Sprintf("%d CPUs for this process", r.Host.CPUs)
	if n, known := r.Host.Cores.Get(); known {
		cores = fmt.Sprintf("%d cores, ", n) + cores
	}
	c := r.add(group, "processor", OK, fmt.Sprintf("%s, %s, kernels: %s", text(r.Host.CPU), cores, r.Processor.ISA), "")
	switch {
	case r.Needs.Processor != "":
		c.Verdict, c.Remedy, c.Blocks = Missing, r.Needs.Processor, true
	case r.Processor.Remedy != "":
		c.Verdict, c.Remedy = Remedy, r.Processor.Remedy
	}
	r.memory(group)
}

func (r *Report) memory(group string) {
	m, known := r.Memory.Get()
	if !known {
		r.add(group, "memory", Missing, "not known: "+r.Memory.Reason(), "")
		return
	}
	limit := m.Total
	found := fmt.Sprintf("%s, %s available", size(m.Total), size(m.Available))
	if m.Limit > 0 {
		limit = m.Limit
		found += fmt.Sprintf(", at most %s by the control group", size(m.Limit))
	}
	c := r.add(group, "memory", OK, found, "")
	switch {
	case r.Needs.Memory > limit:
		c.Verdict, c.Blocks = Missing, true
		c.Remedy = fmt.Sprintf("%s takes %s; gofsdp plan shows what for", r.Needs.By, size(r.Needs.Memory))
	case r.Needs.Memory > m.Available:
		c.Verdict = Remedy
		c.Remedy = fmt.Sprintf("%s takes %s: end other programs first", r.Needs.By, size(r.Needs.Memory))
	}

	huge := "none set aside"
	if m.Huge.Total > 0 {
		huge = fmt.Sprintf("%d of %s set aside, %d free", m.Huge.Total, size(m.Huge.Size), m.Huge.Free)
	}
	if t := m.Huge.Transparent; t != "" {
		huge += "; transparent ones: " + t
	}
	c = r.add(group, "huge pages", OK, huge, "")
	if m.Huge.Transparent == "never" {
		c.Verdict = Remedy
		c.Remedy = "the CPU's memory is slower without transparent ones: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, as root of the host"
	}
}

const (
	// enoughShm is where NCCL's buffers for a node's GPUs fit surely: one for a channel and direction has 9.2 MiB
	// (its src/transport/shm.cc), and Docker's default of 64 MiB does not hold those of four GPUs.
	enoughShm = 1 << 30
	// enoughFiles is for connections, shared memory and files of weights.
	enoughFiles = 4096
)

// limits judges what a container's or a user's limits may be too low for.
func (r *Report) limits() {
	const group = "limits"
	if shm, known := r.Shm.Get(); !known {
		c := r.add(group, "/dev/shm", Missing, "not known: "+r.Shm.Reason(), "")
		if r.severalGPUs() {
			c.Remedy = moreShm
		}
	} else {
		c := r.add(group, "/dev/shm", OK, fmt.Sprintf("%s, %s free", size(shm.Size), size(shm.Free)), "")
		if r.severalGPUs() && shm.Free < enoughShm {
			c.Verdict, c.Remedy = Remedy, moreShm
		}
	}

	locked := r.limit(group, "locked memory", r.Locked, size)
	if l, known := r.Locked.Get(); known && l.Soft != Unlimited && r.efa() {
		locked.Verdict = Remedy
		locked.Remedy = "EFA locks the memory that it sends from: ulimit -l unlimited, docker run --ulimit memlock=-1, or LimitMEMLOCK=infinity for Kubernetes' container runtime"
	}
	files := r.limit(group, "open files", r.OpenFiles, func(n int64) string { return fmt.Sprint(n) })
	if l, known := r.OpenFiles.Get(); known && l.Soft != Unlimited && l.Soft < enoughFiles {
		files.Verdict = Remedy
		files.Remedy = fmt.Sprintf("connections and files of weights may need %d: ulimit -n %d, or docker run --ulimit nofile=%d", enoughFiles, enoughFiles, enoughFiles)
	}
}

const moreShm = "NCCL shares up to 9.2 MiB a channel and direction between GPUs there: docker run --shm-size=8g, or in Kubernetes an emptyDir of medium Memory at /dev/shm"

func (r *Report) limit(group, name string, v record.Value[Limit], write func(int64) string) *Check {
	l, known := v.Get()
	if !known {
		return r.add(group, name, Missing, "not known: "+v.Reason(), "")
	}
	word := func(n int64) string {
		if n == Unlimited {
			return "unlimited"
		}
		return write(n)
	}
	found := word(l.Soft)
	if l.Hard != l.Soft {
		found += ", may be raised to " + word(l.Hard)
	}
	return r.add(group, name, OK, found, "")
}

// text is a value's, in short where it is not known.
func text(v record.Value[string]) string {
	if s, known := v.Get(); known {
		return s
	}
	return "unknown"
}

// size writes bytes as people do.
func size(n int64) string {
	x, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; x >= 999.5 && i < len(units)-1; i++ {
		x /= 1024
	}
	return fmt.Sprintf("%.3g %s", x, units[i])
}
