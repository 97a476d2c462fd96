package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/train"
)

// CollectiveSettings say which collectives to measure, and how often. Cases are
// counted through the meshes, of each through the kinds, of each through the
// sizes.
type CollectiveSettings struct {
	Meshes  Meshes  // of one node; those of one rank have nothing to do
	Sizes   []int64 // bytes of the whole tensor, multiples of 4
	Threads int     // of each rank, whose device has them; 0: GPUs
	Short   bool

	// Of each case so many pairs are measured that Bytes bytes of tensors go
	// through the collective, but within Least and Most. Warm ones come before
	// them.
	Bytes       int64
	Least, Most int
	Warm        int
	// Working is the memory that a rank goes through before it comes back to the
	// same place: more than the caches hold.
	Working int64
}

// FullCollectives is what collectives are judged by.
func FullCollectives(m Meshes) CollectiveSettings {
	return CollectiveSettings{
		Meshes: m, Sizes: []int64{1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20}, Threads: 1,
		Bytes: 4 << 30, Least: 20, Most: 500, Working: 256 << 20,
	}
}

// ShortCollectives shows in seconds that all runs.
func ShortCollectives(m Meshes) CollectiveSettings {
	return CollectiveSettings{Meshes: m, Sizes: []int64{1 << 20, 4 << 20}, Threads: 1, Short: true, Least: 3, Most: 3, Working: 16 << 20}
}

// collectiveKind is a collective as it is measured.
type collectiveKind struct {
	name string
	// of returns the collective over x for a rank of a group.
	of func(x device.Tensor, rank, size int) collective.Op
	// reads returns the elements that a rank reads from others, of length in all;
	// nil where there are none, and nothing to compare with.
	reads func(length int64, rank, size int) int64
}

// collectiveKinds are all. Of an all-reduce both halves count: a sum of the own
// part from all, then the others' parts of the sum.
var collectiveKinds = []collectiveKind{
	{"barrier", func(device.Tensor, int, int) collective.Op { return &collective.Barrier{Name: "bench"} }, nil},
	{"all-gather", func(x device.Tensor, rank, size int) collective.Op {
		return &collective.AllGather{Own: partOf(x, rank, size), Data: x, Name: "bench"}
	}, othersParts},
	{"reduce-scatter", func(x device.Tensor, rank, size int) collective.Op {
		return &collective.ReduceScatter{Data: x, Out: partOf(x, rank, size), Name: "bench"}
	}, ownPartOfOthers},
	{"all-reduce", func(x device.Tensor, _, _ int) collective.Op {
		return &collective.AllReduce{Data: x, Name: "bench"}
	}, func(length int64, rank, size int) int64 {
		return ownPartOfOthers(length, rank, size) + othersParts(length, rank, size)
	}},
	{"broadcast", func(x device.Tensor, _, _ int) collective.Op {
		return &collective.Broadcast{Data: x, Name: "bench"}
	}, func(length int64, rank, _ int) int64 {
		if rank == 0 {
			return 0
		}
		return length
	}},
}

// elements is reads of a tensor of so many bytes.
func (k *collectiveKind) elements(bytes int64, rank, size int) int64 {
	if k.reads == nil {
		return 0
	}
	return k.reads(bytes/4, rank, size)
}

func partOf(x device.Tensor, rank, size int) device.Tensor {
	from, to := collective.Part(x.Len, rank, size)
	return x.Slice(from, to-from)
}

func othersParts(length int64, rank, size int) int64 {
	from, to := collective.Part(length, rank, size)
	return length - (to - from)
}

func ownPartOfOthers(length int64, rank, size int) int64 {
	from, to := collective.Part(length, rank, size)
	return int64(size-1) * (to - from)
}

// cases calls f for each case in order; that of a barrier has size 0.
func (s *CollectiveSettings) cases(f func(i, mesh int, k collectiveKind, size int64) error) error {
	i := 0
	for m, mesh := range s.Meshes {
		if mesh.Size() == 1 {
			continue
		}
		for _, k := range collectiveKinds {
			sizes := s.Sizes
			if k.reads == nil {
				sizes = []int64{0}
			}
			for _, size := range sizes {
				if err := f(i, m, k, size); err != nil {
					return err
				}
				i++
			}
		}
	}
	return nil
}

// pairs is how often a collective of that size is measured.
func (s *CollectiveSettings) pairs(size int64) int {
	return int(min(max(s.Bytes/max(size, 1), int64(s.Least)), int64(s.Most)))
}

// working is the memory that a rank goes through: at least the largest tensor.
func (s *CollectiveSettings) working() int64 {
	n := s.Working
	for _, size := range s.Sizes {
		n = max(n, size)
	}
	return n
}

// Check returns all that is wrong with the settings on a machine whose ranks have
// devices like that: they share its memory, or each has its own GPU's.
func (s *CollectiveSettings) Check(info device.Info) error {
	var errs []error
	for _, m := range s.Meshes {
		if m.Along(fsdp.Across) != 1 {
			errs = append(errs, fmt.Errorf("bench: collectives are measured within a node, not on a mesh of %v", m))
		}
	}
	for _, size := range s.Sizes {
		if size < 4 || size%4 != 0 {
			errs = append(errs, fmt.Errorf("bench: a tensor of %d bytes, want a multiple of 4", size))
		}
	}
	need := 3 * s.working() * int64(s.Meshes.World())
	if onGPU(info) {
		need = s.working()
	}
	switch {
	case len(errs) > 0 || info.Memory == 0 || need <= info.Memory:
	case onGPU(info):
		errs = append(errs, fmt.Errorf("bench: collectives need %s of each GPU's memory and %s has %s; take smaller sizes", train.Bytes(need), info.Name, train.Bytes(info.Memory)))
	default:
		errs = append(errs, fmt.Errorf("bench: collectives of %s need %s of memory and this machine has %s; take fewer ranks or smaller sizes",
			train.Number(s.Meshes.World(), "rank"), train.Bytes(need), train.Bytes(info.Memory)))
	}
	return errors.Join(errs...)
}

// Measure takes this rank's part in all cases. The data is F32. Each collective
// is followed by the copy that it is compared with, in memory of the rank's own.
// Both begin when all ranks have come and end when all are done: ranks that have
// to share a core copy one after the other.
//
// GPUs have no such copy: they reach each other over links, and their own memory is
// far faster. What they do together is timed by the host, from when it is asked for
// until it is done, as peers time it.
func (s *CollectiveSettings) Measure(ctx context.Context, m *Member) (err error) {
	c := &collector{CollectiveSettings: s, Member: m, stream: m.Device.NewStream("bench"), gpu: onGPU(m.Device.Info())}
	for _, b := range []struct {
		to *device.Buffer
		in device.Memory
	}{{&c.shared, device.Shared}, {&c.from, device.Local}, {&c.to, device.Local}} {
		if c.gpu && b.to != &c.shared {
			continue
		}
		if *b.to, err = m.Device.Alloc(s.working(), b.in); err != nil {
			return err
		}
		clear(b.to.Host) // takes its pages
		defer func() { err = errors.Join(err, m.Device.Free(*b.to)) }()
	}
	return s.cases(func(i, mesh int, k collectiveKind, size int64) error {
		if err := m.Meet(ctx); err != nil || m.Rank >= s.Meshes[mesh].Size() {
			return err
		}
		if m.Rank == 0 {
			m.Log("%s of %g MB over %s", k.name, float64(size)/(1<<20), train.Number(s.Meshes[mesh].Size(), "rank"))
		}
		list, err := c.measure(s.Meshes.comms(mesh, m.Ends).Gather[fsdp.Within], k, size)
		if err != nil {
			return err
		}
		return m.Report(Sample{Case: i, Readings: list})
	})
}

// collector is one rank's Measure.
type collector struct {
	*CollectiveSettings
	*Member
	stream           device.Stream
	shared, from, to device.Buffer // the last two are of no size on a GPU
	gpu              bool
}

// inARow is how many pairs are queued before they are waited for, so that no
// rank is late because its host was. More would not fit a stream's queue: one
// that makes room wakes who waits for it, which takes as long as a small
// collective.
const inARow = 32

// measure measures one case.
func (c *collector) measure(comm collective.Comm, k collectiveKind, size int64) ([]Reading, error) {
	barrier, err := comm.Bind(&collective.Barrier{Name: "bench"})
	if err != nil {
		return nil, err
	}
	launch := func(ops ...device.Op) {
		for _, op := range ops {
			c.stream.Launch(op)
		}
	}
	// Bound at each place of the memory, to be gone through in turn.
	n := c.pairs(size)
	var bound [][]device.Op
	for at := int64(0); len(bound) == 0 || at+size <= c.Working && len(bound) < n; at += size {
		ops, err := comm.Bind(k.of(c.shared.In(device.F32, at, size/4), comm.Rank(), comm.Size()))
		if err != nil {
			return nil, err
		}
		bound = append(bound, ops)
	}
	for _, ops := range bound {
		launch(ops...) // the first time maps pages, of which a run has all after a step
	}
	if err := c.stream.Sync(); err != nil {
		return nil, err
	}
	if c.gpu {
		return c.onGPU(bound, barrier, n)
	}
	reads := k.elements(size, comm.Rank(), comm.Size())
	stamps := make([]stamp, 4*(c.Warm+n))
	next := int64(0)
	for i := range c.Warm + n {
		s := stamps[4*i:]
		launch(barrier...)
		launch(&s[0])
		launch(bound[i%len(bound)]...)
		launch(&s[1])
		launch(barrier...)
		launch(&s[2])
		if reads > 0 {
			if next+4*reads > c.from.Size {
				next = 0
			}
			launch(&device.Copy{Src: c.from.In(device.F32, next, reads), Dst: c.to.In(device.F32, next, reads), N: int(reads)})
			next += 4 * reads
		}
		launch(barrier...)
		launch(&s[3])
		if (i+1)%inARow == 0 || i+1 == c.Warm+n {
			if err := c.stream.Sync(); err != nil {
				return nil, err
			}
		}
	}
	list := make([]Reading, n)
	for i := range list {
		s := stamps[4*(c.Warm+i):]
		list[i] = Reading{Seconds: s[1].Sub(s[0].Time).Seconds(), Limit: s[3].Sub(s[2].Time).Seconds()}
	}
	return list, nil
}

// onGPU measures n of the collectives, which take turns.
func (c *collector) onGPU(bound [][]device.Op, barrier []device.Op, n int) (list []Reading, err error) {
	run := func(ops []device.Op) error {
		for _, op := range ops {
			c.stream.Launch(op)
		}
		return c.stream.Sync()
	}
	for i := range c.Warm + n {
		if err := run(barrier); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := run(bound[i%len(bound)]); err != nil {
			return nil, err
		}
		if i >= c.Warm {
			list = append(list, Reading{Seconds: time.Since(began).Seconds()})
		}
	}
	return list, nil
}

// stamp is an operation that notes when its stream came to it.
type stamp struct{ time.Time }

// Check implements device.Op.
func (*stamp) Check() error { return nil }

// Cost implements device.Op.
func (*stamp) Cost() device.Cost { return device.Cost{} }

// Reference implements device.Op.
func (o *stamp) Reference() { o.Time = time.Now() }

// CollectiveTimes is what the ranks measured of a collective together, pair by
// pair.
type CollectiveTimes struct {
	Kind    string
	Ranks   int
	Bytes   int64     // of the whole tensor
	Reads   int64     // the most bytes that a rank must read from others; 0: nothing to compare with
	Seconds []float64 // until the slowest rank is done
	Copy    []float64 // of the slowest rank, while all copy what each must read; empty where Reads is 0, and of GPUs
}

// Times puts together what the ranks reported, by rank.
func (s *CollectiveSettings) Times(reported [][]Sample) ([]CollectiveTimes, error) {
	var all []CollectiveTimes
	err := s.cases(func(i, mesh int, k collectiveKind, size int64) error {
		ranks := s.Meshes[mesh].Size()
		byRank, err := readings(reported, ranks, i, s.pairs(size))
		if err != nil {
			return err
		}
		t := CollectiveTimes{Kind: k.name, Ranks: ranks, Bytes: size}
		for r := range ranks {
			t.Reads = max(t.Reads, 4*k.elements(size, r, ranks))
		}
		for i := range byRank[0] {
			var took, copied float64
			for _, list := range byRank {
				took, copied = max(took, list[i].Seconds), max(copied, list[i].Limit)
			}
			t.Seconds = append(t.Seconds, took)
			if copied > 0 && t.Reads > 0 {
				t.Copy = append(t.Copy, copied)
			}
		}
		all = append(all, t)
		return nil
	})
	return all, err
}

// Results sums up what the ranks reported, by rank.
func (s *CollectiveSettings) Results(reported [][]Sample) ([]Collective, error) {
	all, err := s.Times(reported)
	var list []Collective
	for _, t := range all {
		var shares []float64
		for i, copied := range t.Copy {
			shares = append(shares, copied/t.Seconds[i])
		}
		list = append(list, Collective{
			Kind: t.Kind, Ranks: t.Ranks, Threads: s.Threads, Bytes: t.Bytes, Reads: t.Reads,
			Seconds: SpreadOf(t.Seconds), Copy: SpreadOf(t.Copy), Share: SpreadOf(shares),
		})
	}
	return list, err
}
