package gpucheck

import (
	"context"
	"fmt"

	"github.com/gofsdp/gofsdp/cuda"
)

// loader tells what was found.
func loader(_ context.Context, c *check) error {
	r := c.Report
	t := c.table("Libraries", Column{"library", Text}, Column{"version", Text}, Column{"file", Text})
	for _, l := range []struct {
		name  string
		found cuda.Library
	}{{"driver", r.Driver}, {"cuBLAS Lt", r.BLASLt}, {"cuBLAS", r.BLAS}, {"NCCL", r.NCCL}} {
		version := l.found.Version
		if l.found.Release != "" {
			version = fmt.Sprintf("%s (release %s)", version, l.found.Release)
		}
		t.add(l.name, version, l.found.Path)
		if l.found.Problem != "" {
			c.fail("%s: %s", l.name, l.found.Problem)
		}
	}
	t = c.table("GPUs", Column{"GPU", Text}, Column{"architecture", Text}, Column{"multiprocessors", Count}, Column{"memory", Byte}, Column{"bus", Text}, Column{"data sheet, bf16 dense", FLOPS})
	for _, p := range r.Devices {
		var peak any
		if known := densePeak(p.Name); known > 0 {
			peak = known
		}
		t.add(fmt.Sprintf("%d: %s", p.Ordinal, p.Name), fmt.Sprintf("sm_%d%d", p.Major, p.Minor), float64(p.SMs), float64(p.Memory), p.PCI, peak)
		if p.Problem != "" {
			c.fail("%s", p.Problem)
		}
	}
	if r.State != cuda.Ready {
		c.fail("%s", r.Problem)
	}
	return nil
}
