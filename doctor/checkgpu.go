package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/nvml"
)

const gpuGroup = "GPU"

// gpus judges driver, devices and libraries. Where there is no GPU and none is asked for, it says so and
// proposes nothing.
func (r *Report) gpus() {
	g := r.GPU
	asked := r.Needs.GPUs > 0
	concerns := asked || g.State == cuda.Ready || g.State == cuda.Unusable
	r.kernelDriver(concerns)

	found := library(g.Driver)
	c := r.add(gpuGroup, "driver", OK, found, "")
	switch {
	case g.State == cuda.NoLibrary:
		c.Verdict, c.Found, c.Remedy, c.Blocks = Missing, "none", said(g.Problem), asked
	case g.State == cuda.Unusable && len(g.Devices) == 0:
		c.Verdict, c.Remedy, c.Blocks = Remedy, said(g.Problem), asked
	case g.State == cuda.NoDevice:
		c = r.add(gpuGroup, "devices", Missing, "none", said(g.Problem))
		c.Blocks = asked
	}
	usable := 0
	for _, d := range g.Devices {
		text := fmt.Sprintf("%s, compute capability %d.%d, %d SMs, %s, at %s", d.Name, d.Major, d.Minor, d.SMs, size(d.Memory), d.PCI)
		c := r.add(gpuGroup, fmt.Sprintf("device %d", d.Ordinal), OK, text, "")
		switch {
		case d.Problem != "":
			c.Verdict, c.Remedy = Remedy, said(d.Problem)
		case d.Memory < r.Needs.GPUMemory:
			c.Verdict = Missing
			c.Remedy = fmt.Sprintf("each rank of %s takes %s of its GPU: shard over more ranks, recompute or offload, or take a smaller micro-batch; gofsdp plan shows what for", r.Needs.By, size(r.Needs.GPUMemory))
		default:
			usable++
		}
		r.moment(d)
	}
	if len(g.Devices) > 0 && len(r.NVML.Devices) == 0 {
		r.add(gpuGroup, "NVML", Missing, "none: how the devices are just now is not known", said(r.NVML.Problem))
	}
	if g.State != cuda.NoLibrary && g.State != cuda.NoDevice && usable < r.Needs.GPUs && len(g.Devices) > 0 {
		c := r.add(gpuGroup, "devices", Missing, fmt.Sprintf("%d of those can be used, and %s asks for %d", usable, r.Needs.By, r.Needs.GPUs),
			"ask for fewer ranks on a machine, or give the container more GPUs; CUDA_VISIBLE_DEVICES hides some")
		c.Blocks = true
	}
	for _, l := range []struct {
		name string
		cuda.Library
		needed bool
	}{{"cuBLASLt", g.BLASLt, asked}, {"cuBLAS", g.BLAS, asked}, {"NCCL", g.NCCL, r.Needs.GPUs > 1}} {
		c := r.add(gpuGroup, l.name, OK, library(l.Library), "")
		switch {
		case works(l.Library):
			continue
		case l.Path != "":
			c.Verdict, c.Remedy, c.Blocks = Remedy, said(l.Problem), l.needed
			continue
		case l.Problem == "":
			c.Verdict, c.Found = Missing, "not looked for, as there is no way to call it" // the driver's line says why
			continue
		}
		c.Verdict, c.Found, c.Blocks = Missing, "none", l.needed
		if concerns {
			c.Remedy = said(l.Problem)
		}
	}
}

// moment judges how a GPU is just now, as far as that can be known. None of it keeps a run from starting.
func (r *Report) moment(p cuda.Properties) {
	name := fmt.Sprintf("device %d now", p.Ordinal)
	d, known := r.NVML.Find(p.UUID)
	if !known {
		if len(r.NVML.Devices) > 0 {
			r.add(gpuGroup, name, Missing, "not known: NVML does not list it", said(r.NVML.Problem))
		}
		return
	}
	var found, unknown, trouble []string
	add := func(what string, known bool, reason, text string) {
		if !known {
			unknown = append(unknown, what+" ("+reason+")")
		} else if text != "" {
			found = append(found, text)
		}
	}
	m, ok := d.Memory.Get()
	add("memory", ok, d.Memory.Reason(), fmt.Sprintf("%s of %s used", size(m.Used), size(m.Total)))
	c, ok := d.SMClock.Get()
	add("clock", ok, d.SMClock.Reason(), fmt.Sprintf("%d of %d MHz", c.Now, c.Max))
	w, ok := d.Power.Get()
	add("power", ok, d.Power.Reason(), fmt.Sprintf("%.0f of %.0f W", w.Now, w.Limit))
	t, ok := d.Temperature.Get()
	add("temperature", ok, d.Temperature.Reason(), fmt.Sprintf("%d °C", t))
	k, ok := d.Link.Get()
	add("PCIe", ok, d.Link.Reason(), fmt.Sprintf("PCIe %d ×%d of %d ×%d", k.Generation, k.Width, k.MaxGeneration, k.MaxWidth))
	if ok && k.Width < k.MaxWidth {
		trouble = append(trouble, fmt.Sprintf("%d of %d PCIe lanes are connected, so copies from and to the host are slower: the machine's type, or the slot", k.Width, k.MaxWidth))
	}
	slowed, ok := d.Slowed.Get()
	add("what slows it", ok, d.Slowed.Reason(), "")
	slowed = slices.DeleteFunc(slices.Clone(slowed), nvml.Harmless)
	if len(slowed) > 0 {
		trouble = append(trouble, "it is slowed down ("+strings.Join(slowed, ", ")+"), so what is measured now is too slow: nvidia-smi -q -d PERFORMANCE")
	}
	e, ok := d.ECC.Get()
	add("ECC", ok, d.ECC.Reason(), "")
	switch {
	case e.Uncorrected > 0:
		trouble = append(trouble, fmt.Sprintf("its memory has had %d errors that ECC could not correct: take the machine out of use and reset the GPU (nvidia-smi -r)", e.Uncorrected))
	case e.Corrected > 0:
		found = append(found, fmt.Sprintf("%d errors corrected by ECC", e.Corrected))
	}
	mig, ok := d.MIG.Get()
	add("MIG", ok, d.MIG.Reason(), "")
	if mig {
		trouble = append(trouble, "it is divided (MIG), and a run has a part of it alone: nvidia-smi -mig 0 makes it whole")
	}
	others, ok := d.Processes.Get()
	add("processes", ok, d.Processes.Reason(), "")
	for _, o := range others {
		text := fmt.Sprintf("process %d computes on it", o.PID)
		if o.Memory >= 0 {
			text += " and holds " + size(o.Memory)
		}
		trouble = append(trouble, text+": end it, or it takes time and memory from a run")
	}
	if len(unknown) > 0 {
		found = append(found, "not known: "+strings.Join(unknown, ", "))
	}
	line := r.add(gpuGroup, name, OK, strings.Join(found, ", "), strings.Join(trouble, "; "))
	if len(trouble) > 0 {
		line.Verdict = Remedy
	}
}

// kernelDriver judges what the container's host has.
func (r *Report) kernelDriver(concerns bool) {
	const name = "kernel's driver"
	k, known := r.Kernel.Get()
	switch {
	case !known && concerns:
		r.add(gpuGroup, name, Missing, "not known: "+r.Kernel.Reason(), "")
	case !known:
		r.add(gpuGroup, name, Missing, "none", "")
	case len(k.Devices) == 0:
		r.add(gpuGroup, name, Remedy, k.Release+", and no device files of GPUs", "the host has NVIDIA's driver; give the container its GPUs (docker run --gpus all, nvidia.com/gpu in Kubernetes)")
	default:
		r.add(gpuGroup, name, OK, k.Release+", device files "+strings.Join(k.Devices, ", "), "")
	}
}

// library is what was found of one: its version and file.
func library(l cuda.Library) string {
	version := l.Version
	if l.Release != "" {
		version += " (release " + l.Release + ")"
	}
	if strings.HasPrefix(l.Name, "libcuda.") && version != "" {
		version = "CUDA " + version
	}
	return strings.Join(nonEmpty(version, l.Path), ", ")
}

// said is an error's text without the package that it comes from.
func said(problem string) string {
	lines := strings.Split(problem, "\n")
	for i, line := range lines {
		for _, prefix := range []string{"cuda: ", "nccl: ", "nvml: ", "no library: ", "no device: "} {
			line = strings.TrimPrefix(line, prefix)
		}
		lines[i] = line
	}
	return strings.Join(lines, "; ")
}
