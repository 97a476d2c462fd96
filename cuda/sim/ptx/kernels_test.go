//go:build linux

package ptx_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/cuda/kernels"
	"github.com/gofsdp/gofsdp/cuda/sim/ptx"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

// compiled parses the committed kernels once.
var compiled = sync.OnceValues(func() (map[string]*ptx.Kernel, error) {
	all := map[string]*ptx.Kernel{}
	for _, name := range kernels.Modules() {
		m, err := ptx.Parse(name+".ptx", kernels.PTX(name))
		if err != nil {
			return nil, err
		}
		for _, k := range m.Kernels {
			all[k.Name] = k
		}
	}
	return all, nil
})

// regions returns the memory of an operation's operands, of which those that it only writes count as never written.
func regions(op device.Op) ptx.Regions {
	var rs ptx.Regions
	for _, o := range device.Operands(op) {
		if _, err := rs.Find(uint64(o.T.Addr)); err == nil || o.T.Len == 0 {
			continue
		}
		r := &ptx.Region{Base: uint64(o.T.Addr), Bytes: optest.Bytes(*o.T), Name: o.Name}
		if o.Access&device.Read == 0 {
			r.Written = ptx.NewWritten(len(r.Bytes) + 64)
		}
		rs = append(rs, r)
	}
	return rs
}

// run executes an operation's kernels.
func run(op device.Op, how ptx.Launch) error {
	all, err := compiled()
	if err != nil {
		return err
	}
	launches, err := kernels.Lower(op)
	if err != nil {
		return err
	}
	memory := regions(op)
	for _, l := range launches {
		k := all[l.Kernel]
		if k == nil {
			return fmt.Errorf("no kernel %s", l.Kernel)
		}
		how.Grid, how.Block, how.Shared, how.Args = l.Grid, l.Block, int(l.Shared), l.Args
		if err := k.Run(how, memory); err != nil {
			return err
		}
	}
	return nil
}

// attention returns a forward of attention on fresh memory.
func attention(t testing.TB, seqLen, heads, size int) *device.Attention {
	m := optest.NewMemory(t, rand.New(rand.NewPCG(1, 1)))
	n := seqLen * heads * size
	return &device.Attention{
		Q: m.Normal(device.BF16, n, 0, 1), K: m.Normal(device.BF16, n, 0, 1), V: m.Normal(device.BF16, n, 0, 1),
		Start: m.Ints(seqLen, func(int) int { return 0 }), Out: m.Blank(device.BF16, n), LSE: m.Blank(device.F32, seqLen*heads),
		Seqs: 1, SeqLen: seqLen, Heads: heads, KVHeads: heads, HeadSize: size, Scale: float32(1 / math.Sqrt(float64(size))),
	}
}

// cpuSeconds returns the processor time that this process has had: other work on the machine does not count.
func cpuSeconds() float64 {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return float64(r.Utime.Nano()+r.Stime.Nano()) / 1e9
}

// BenchmarkAttentionForward prints the lane-instructions that one core executes in a second of its time.
func BenchmarkAttentionForward(b *testing.B) {
	for _, size := range []int{64, 128} {
		b.Run(fmt.Sprintf("head=%d", size), func(b *testing.B) {
			op := attention(b, 1024, 1, size)
			if err := run(op, ptx.Launch{Workers: 1}); err != nil { // parses the module, too
				b.Fatal(err)
			}
			var s ptx.Stats
			begin := cpuSeconds()
			for b.Loop() {
				if err := run(op, ptx.Launch{Workers: 1, Stats: &s}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(s.LaneInstructions)/(cpuSeconds()-begin)/1e6, "Mlane-inst/s")
			b.ReportMetric(float64(s.Mma)*32/float64(s.LaneInstructions)*100, "%mma")
		})
	}
}
