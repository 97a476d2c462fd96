package collective

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// benchWorking is the memory that each rank goes through before it comes back to
// the same place: more than caches hold.
const benchWorking = 128 << 20

// benchCase is a collective and how many bytes it makes each of n ranks read from
// others when its tensor has size bytes.
var benchCases = []struct {
	name  string
	op    func(p *process, x device.Tensor) Op
	bytes func(size, n int64) int64
}{
	{"all-gather", func(p *process, x device.Tensor) Op {
		from, to := Part(x.Len, p.rank, p.size)
		return &AllGather{Own: x.Slice(from, to-from), Data: x, Name: "x"}
	}, func(size, n int64) int64 { return size / n * (n - 1) }},
	{"reduce-scatter", func(p *process, x device.Tensor) Op {
		from, to := Part(x.Len, p.rank, p.size)
		return &ReduceScatter{Data: x, Out: x.Slice(from, to-from), Name: "x"}
	}, func(size, n int64) int64 { return size / n * (n - 1) }},
	{"all-reduce", func(p *process, x device.Tensor) Op {
		return &AllReduce{Data: x, Name: "x"}
	}, func(size, n int64) int64 { return 2 * (size / n * (n - 1)) }},
}

var benchSizes = []int64{1 << 20, 4 << 20, 16 << 20, 64 << 20}

func init() {
	roles["bench"] = func(p *process) error {
		shared, err := p.dev.Alloc(benchWorking, device.Shared)
		if err != nil {
			return err
		}
		// The copy that it is compared with is of memory of the rank's own.
		plain, err := device.NewReference().Alloc(2*benchWorking, device.Local)
		if err != nil {
			return err
		}
		for i := range shared.Host {
			shared.Host[i] = 0
		}
		for i := range plain.Host {
			plain.Host[i] = 0
		}
		barrier, err := p.comm.Bind(&Barrier{Name: "start"})
		if err != nil {
			return err
		}
		// Times from when all ranks have begun.
		timed := func(ops []device.Op) (time.Duration, error) {
			var began, ended stamp
			err := launch(p.stream, slices.Concat(barrier, []device.Op{&began}, ops, []device.Op{&ended}))
			return ended.Sub(began.Time), err
		}
		var meetings []time.Duration
		for range 50 {
			d, err := timed(slices.Repeat(barrier, 100))
			if err != nil {
				return err
			}
			meetings = append(meetings, d/100)
		}
		fmt.Println("barrier 0", median(meetings).Nanoseconds(), 0)
		for _, c := range benchCases {
			for _, size := range benchSizes {
				// Bound at each place of the memory, to be gone through in turn.
				var bound [][]device.Op
				for at := int64(0); at+size <= benchWorking; at += size {
					ops, err := p.comm.Bind(c.op(p, shared.In(device.F32, at, size/4)))
					if err != nil {
						return err
					}
					bound = append(bound, ops)
					// The first time maps pages, of which a run has all after a step.
					if err := launch(p.stream, ops); err != nil {
						return err
					}
				}
				n := c.bytes(size, int64(p.size)) / 4
				place := 0
				copied := func() []device.Op {
					from := int64(place) * n * 4 % (benchWorking - n*4 + 1) / 64 * 64
					return append([]device.Op{&device.Copy{Src: plain.In(device.F32, from, n), Dst: plain.In(device.F32, benchWorking+from, n), N: int(n)}}, barrier...)
				}
				var collectives, copies []time.Duration
				for place = range max(20, 2*len(bound)) {
					d, err := timed(bound[place%len(bound)])
					if err != nil {
						return err
					}
					collectives = append(collectives, d)
					if d, err = timed(copied()); err != nil {
						return err
					}
					copies = append(copies, d)
				}
				fmt.Printf("%s/%dMB %d %d %d\n", c.name, size>>20, n*4, median(collectives).Nanoseconds(), median(copies).Nanoseconds())
			}
		}
		return nil
	}
}

// stamp is an operation that notes when the stream came to it.
type stamp struct{ time.Time }

func (o *stamp) Check() error      { return nil }
func (o *stamp) Cost() device.Cost { return device.Cost{} }
func (o *stamp) Reference()        { o.Time = time.Now() }

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// measured runs the ranks once, and returns rank 0's figures by collective and size.
var measured = sync.OnceValue(func() map[string][3]int64 {
	figures := map[string][3]int64{}
	t := benchReporter
	c := start(t, "bench", 2, time.Minute)
	for range 1 + len(benchCases)*len(benchSizes) {
		var f [3]int64
		name, rest, _ := strings.Cut(c[0].line(t), " ")
		if _, err := fmt.Sscan(rest, &f[0], &f[1], &f[2]); err != nil {
			t.Fatal(err)
		}
		figures[name] = f
	}
	end(t, c...)
	return figures
})

var benchReporter testing.TB

// BenchmarkProcesses compares what two processes of one thread do together with
// the time in which both, at once, have copied the bytes that each must read from
// the other, in memory of their own. limit% is the share of that limit that is
// reached. Both times end when the last rank is done, so that on a busy machine
// both wait for whoever had no core.
func BenchmarkProcesses(b *testing.B) {
	benchReporter = b
	figures := measured()
	b.Run("barrier", func(b *testing.B) {
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(float64(figures["barrier"][1])/1e3, "µs")
	})
	for _, c := range benchCases {
		for _, size := range benchSizes {
			name := fmt.Sprintf("%s/%dMB", c.name, size>>20)
			b.Run(name, func(b *testing.B) {
				f := figures[name]
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(f[0])/float64(f[1]), "GB/s")
				b.ReportMetric(float64(f[0])/float64(f[2]), "copyGB/s")
				b.ReportMetric(100*float64(f[2])/float64(f[1]), "limit%")
			})
		}
	}
}
