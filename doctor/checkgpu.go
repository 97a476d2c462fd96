package doctor

import (
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/cuda"
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
		case l.Path != "":
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
		lines[i] = strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(line, "cuda: "), "no library: "), "no device: ")
	}
	return strings.Join(lines, "; ")
}
