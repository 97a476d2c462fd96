package gpucheck

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/train"
)

// oneGPU checks NCCL on the first GPU.
func oneGPU(ctx context.Context, c *check) error { return c.collectives(ctx, 1) }

// allGPUs checks NCCL over all that can be used.
func allGPUs(ctx context.Context, c *check) error {
	n, err := c.several()
	if err != nil {
		return err
	}
	return c.collectives(ctx, n)
}

// several is how many GPUs there are that can be used, where that is more than one.
func (c *check) several() (n int, err error) {
	for _, p := range c.Report.Devices {
		if p.Problem == "" {
			n++
		}
	}
	if n < 2 {
		err = lacks("this machine has %s that can be used; several ranks need several", train.Number(n, "GPU"))
	}
	return n, err
}

// collectiveDeadline only ends what has gone wrong.
const collectiveDeadline = time.Minute

// ranks opens GPUs, each a rank, joins their groups by NCCL and calls f for all at once. (Training has a process for
// each GPU; here one is enough, since what is checked is NCCL and what it is called with.)
func (c *check) ranks(ctx context.Context, library *nccl.Library, n int, groups [][]int, f func(ctx context.Context, rank int, g *gpu, ends []collective.Comm) error) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var gpus []*gpu
	defer func() {
		for _, g := range gpus {
			err = errors.Join(err, g.Close())
		}
	}()
	for _, p := range c.Report.Devices {
		if p.Problem != "" || len(gpus) == n {
			continue
		}
		d, err := c.Open(cuda.Options{Ordinal: p.Ordinal, Urgent: asRanks.Urgent, Graphs: true})
		if err != nil {
			return err
		}
		g, err := onStream(d, c.Sizes)
		if err != nil {
			return err
		}
		gpus = append(gpus, g)
	}
	meeting := newMeeting(n)
	return together(n, func(rank int) (err error) {
		d, err := ncclDevice(gpus[rank].Device)
		if err != nil {
			return err
		}
		joined, err := library.Connect(ctx, groups, rank, nccl.ConnectSettings{
			Run: "gpu-check", Deadline: collectiveDeadline, Device: d, Exchange: meeting.exchange(rank),
		})
		if err != nil {
			cancel() // nobody has to wait for this one
			return err
		}
		defer func() {
			if err != nil {
				joined.Abort(err)
				cancel()
			}
			err = errors.Join(err, joined.Close())
		}()
		return f(ctx, rank, gpus[rank], joined.Comms)
	})
}

// collectives lets n GPUs gather, scatter and reduce.
func (c *check) collectives(ctx context.Context, n int) error {
	library, err := c.NCCL()
	if err != nil {
		return err
	}
	t := c.table(fmt.Sprintf("NCCL %s on %s", library.Version(), train.Number(n, "GPU")), Column{"collective", Text}, Column{"type", Text}, Column{"tensor", Byte}, Column{"time", Second}, Column{"tensor / time", Rate}, Column{"bus", Rate})
	t.Note = "The time is of the slowest rank. Bus: what each link carries, as NCCL's own tests count it: 2(n−1)/n of an all-reduce, (n−1)/n of the others. Sums are of small whole numbers and must be exact."
	rows := make([][][]any, n)
	err = c.ranks(ctx, library, n, [][]int{everyone(n)}, func(ctx context.Context, rank int, g *gpu, ends []collective.Comm) (err error) {
		m := &member{gpu: g, rank: rank, ranks: n, pieces: map[device.DType]device.Tensor{}}
		rows[rank], err = m.all(ctx, ends[0], c.Sizes)
		return err
	})
	for i := range rows[0] {
		row, slowest := rows[0][i], 0.0
		for _, r := range rows {
			if i < len(r) {
				slowest = max(slowest, r[i][3].(float64))
			}
		}
		bytes := row[2].(float64)
		row[3], row[4] = slowest, bytes/slowest
		row[5] = nil
		if n > 1 {
			row[5] = bytes / slowest * busPart(row[0].(string), n)
		}
		t.add(row...)
		if n > 1 {
			c.figure(fmt.Sprintf("%s %s %.0f", row[0], row[1], bytes), row[5].(float64))
		}
	}
	return err
}

// busPart is the part of a tensor that each link carries.
func busPart(kind string, n int) float64 {
	part := float64(n-1) / float64(n)
	if kind == "all-reduce" {
		part *= 2
	}
	return part
}

// member is a rank with its GPU.
type member struct {
	*gpu
	rank, ranks int
	data        device.Tensor                  // on the GPU
	piece       device.Tensor                  // on the host, of the same type
	pieces      map[device.DType]device.Tensor // one of each type
}

// period is after how many elements a rank's numbers begin again.
const period = 7

// pieceLen is how many elements pass between host and GPU at once: whole periods.
const pieceLen = period << 16

// all runs each kind of collective in each type and size, first once to be checked, then to be timed.
func (m *member) all(ctx context.Context, end collective.Comm, s Sizes) (rows [][]any, err error) {
	for _, bytes := range s.Collectives {
		for _, typ := range []device.DType{device.F32, device.BF16} {
			n := bytes / typ.Size() / int64(m.ranks) * int64(m.ranks)
			if m.data, err = m.Local(typ, int(n)); err != nil {
				return rows, err
			}
			if m.pieces[typ].Absent() {
				if m.pieces[typ], err = m.Pinned(typ, pieceLen); err != nil {
					return rows, err
				}
			}
			m.piece = m.pieces[typ]
			part := m.data.Slice(n/int64(m.ranks)*int64(m.rank), n/int64(m.ranks))
			for _, x := range []struct {
				kind string
				op   collective.Op
			}{
				{"all-gather", &collective.AllGather{Own: part, Data: m.data, Name: "a check"}},
				{"reduce-scatter", &collective.ReduceScatter{Data: m.data, Out: part, Name: "a check"}},
				{"all-reduce", &collective.AllReduce{Data: m.data, Name: "a check"}},
			} {
				if err := ctx.Err(); err != nil {
					return rows, err
				}
				seconds, err := m.one(end, x.kind, x.op, part)
				if err != nil {
					return rows, fmt.Errorf("%s of %d of %s: %w", x.kind, n, typ, err)
				}
				rows = append(rows, []any{x.kind, typ.String(), float64(n * typ.Size()), seconds, nil, nil})
			}
			if err := m.Release(); err != nil {
				return rows, err
			}
		}
	}
	return rows, nil
}

// one runs a collective: right, then again and again.
func (m *member) one(end collective.Comm, kind string, op collective.Op, part device.Tensor) (float64, error) {
	if err := m.write(); err != nil {
		return 0, err
	}
	steps, err := end.Bind(op)
	if err != nil {
		return 0, err
	}
	run := func(times int) (float64, error) {
		took, err := m.Stream.Time(func() {
			for range times {
				for _, step := range steps {
					m.Stream.Launch(step)
				}
			}
		})
		return max(took.Seconds(), 1e-9) / float64(times), err
	}
	if _, err := run(1); err != nil {
		return 0, err
	}
	whole := m.data.Len
	each := whole / int64(m.ranks)
	first := each * int64(m.rank)
	want := func(i int64) float64 { return m.sum(i) }
	result := m.data
	switch kind {
	case "all-gather":
		want = func(i int64) float64 { return m.number(int(i/each), i) }
	case "reduce-scatter":
		result = part
		want = func(i int64) float64 { return m.sum(first + i) }
	}
	if err := m.read(result, want); err != nil {
		return 0, err
	}
	if _, err := run(3); err != nil { // warm
		return 0, err
	}
	return run(timedCollectives)
}

// timedCollectives is in how many in a row a collective is timed. All ranks do as many.
const timedCollectives = 10

// number is element i of a rank's tensor, and sum that of all ranks': whole numbers that bf16 holds.
func (m *member) number(rank int, i int64) float64 { return float64(i%period) + float64(rank) }

func (m *member) sum(i int64) float64 {
	n := float64(m.ranks)
	return n*float64(i%period) + n*(n-1)/2
}

// write gives the rank's tensor its numbers.
func (m *member) write() error {
	for i := range int(m.piece.Len) {
		set(m.piece, i, float32(m.number(m.rank, int64(i))))
	}
	for done := int64(0); done < m.data.Len; {
		n := min(m.piece.Len, m.data.Len-done)
		m.Stream.Launch(&device.Copy{Src: m.piece.Slice(0, n), Dst: m.data.Slice(done, n), N: int(n)})
		done += n
	}
	return m.Stream.Sync()
}

// read compares a tensor with what it must hold.
func (m *member) read(t device.Tensor, want func(i int64) float64) error {
	for done := int64(0); done < t.Len; {
		n := min(m.piece.Len, t.Len-done)
		m.Stream.Launch(&device.Copy{Src: t.Slice(done, n), Dst: m.piece.Slice(0, n), N: int(n)})
		if err := m.Stream.Sync(); err != nil {
			return err
		}
		for i := range n {
			if got := float64(get(m.piece, int(i))); got != want(done+i) {
				return fmt.Errorf("rank %d: element %d is %v, want %v", m.rank, done+i, got, want(done+i))
			}
		}
		done += n
	}
	return nil
}

// meeting lets ranks of one process exchange values, once.
type meeting struct {
	mu     sync.Mutex
	values [][]byte
	came   int
	all    chan struct{}
}

func newMeeting(n int) *meeting { return &meeting{values: make([][]byte, n), all: make(chan struct{})} }

// exchange returns a rank's end.
func (m *meeting) exchange(rank int) func(context.Context, []byte) ([][]byte, error) {
	return func(ctx context.Context, value []byte) ([][]byte, error) {
		m.mu.Lock()
		m.values[rank] = value
		if m.came++; m.came == len(m.values) {
			close(m.all)
		}
		m.mu.Unlock()
		select {
		case <-m.all:
			return m.values, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// together calls f for n ranks at once.
func together(n int, f func(rank int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for rank := range n {
		all.Go(func() { errs[rank] = f(rank) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func everyone(n int) (ranks []int) {
	for r := range n {
		ranks = append(ranks, r)
	}
	return ranks
}
