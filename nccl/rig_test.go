//go:build sim && cgo && linux

package nccl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/nccl"
)

// patient is a deadline that no healthy test meets.
const patient = 5 * time.Minute

// server is the simulated machine that all tests have together: making a GPU compiles all kernels.
type server struct {
	m    *sim.Machine
	gpus []nccl.Device
}

// machine starts it once. At the end of all tests nothing may be left, and nothing have gone wrong.
var machine = sync.OnceValues(func() (s *server, err error) {
	s = &server{}
	s.m, err = sim.Start(sim.Config{Devices: []sim.Device{sim.L4(), sim.L4(), sim.L4(), sim.L4()}, Seed: 1, Pause: 50 * time.Microsecond})
	if err != nil {
		return nil, err
	}
	driver, err := cuda.OpenTable(s.m.Table(), nil)
	if err != nil {
		return nil, err
	}
	for n := range 4 {
		d, err := cuda.New(driver, cuda.Options{Ordinal: n})
		if err != nil {
			return nil, err
		}
		s.gpus = append(s.gpus, d.(nccl.Device))
	}
	atEnd = func() (code int) {
		wrong := func(what any) { fmt.Println("FAIL:", what); code = 1 }
		for _, d := range s.gpus {
			if err := d.Close(); err != nil {
				wrong(err)
			}
		}
		s.m.Wait()
		for _, f := range s.m.Faults() {
			wrong(f)
		}
		for _, leak := range s.m.Leaks() {
			wrong(leak)
		}
		s.m.Close()
		return code
	}
	return s, nil
})

// exchange gives n ranks an Exchange, which changes what rank i says by alter.
func exchange(n int, alter func(rank int, value []byte) []byte) func(rank int) func(context.Context, []byte) ([][]byte, error) {
	values := make([][]byte, n)
	var mu sync.Mutex
	came := 0
	all := make(chan struct{})
	return func(rank int) func(context.Context, []byte) ([][]byte, error) {
		return func(ctx context.Context, value []byte) ([][]byte, error) {
			if alter != nil {
				value = alter(rank, value)
			}
			mu.Lock()
			values[rank] = value
			if came++; came == n {
				close(all)
			}
			mu.Unlock()
			select {
			case <-all:
				return values, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
}

// run is ranks that have joined their groups.
type run struct {
	testing.TB
	*server
	groups []*nccl.Groups // by rank
}

// library opens the machine's NCCL.
func library(t testing.TB) (*nccl.Library, *server) {
	t.Helper()
	s, err := machine()
	if err != nil {
		t.Fatal(err)
	}
	l, err := nccl.OpenTable(s.m.NCCLTable())
	if err != nil {
		t.Fatal(err)
	}
	return l, s
}

// connect joins n ranks' groups. They are closed at the end of the test.
func connect(t testing.TB, n int, groups [][]int, deadline time.Duration) *run {
	t.Helper()
	l, s := library(t)
	r := &run{TB: t, server: s, groups: make([]*nccl.Groups, n)}
	ex := exchange(n, nil)
	errs := parallel(n, func(rank int) (err error) {
		r.groups[rank], err = l.Connect(t.Context(), groups, rank, nccl.ConnectSettings{
			Run: "run test, attempt 1", Deadline: deadline, Device: s.gpus[rank], Exchange: ex(rank),
		})
		return err
	})
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(parallel(n, func(rank int) error { return r.groups[rank].Close() })...); err != nil {
			t.Error(err)
		}
	})
	return r
}

// parallel calls f for n ranks at once.
func parallel(n int, f func(rank int) error) []error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for rank := range n {
		all.Go(func() { errs[rank] = f(rank) })
	}
	all.Wait()
	return errs
}

// everyone is a group of n ranks.
func everyone(n int) (ranks []int) {
	for r := range n {
		ranks = append(ranks, r)
	}
	return ranks
}

// held is a rank's tensor on its device, with the same on the host.
type held struct {
	there device.Tensor
	host  device.Tensor
}

// alloc gives a rank a tensor on its device.
func (r *run) alloc(rank int, typ device.DType, n int64) held {
	r.Helper()
	d := r.gpus[rank]
	var h held
	for _, in := range []device.Memory{device.Local, device.Pinned} {
		b, err := d.Alloc(max(1, n*typ.Size()), in)
		if err != nil {
			r.Fatal(err)
		}
		r.Cleanup(func() {
			if err := d.Free(b); err != nil {
				r.Error(err)
			}
		})
		if h.there.Absent() {
			h.there = b.In(typ, 0, n)
		} else {
			h.host = b.In(typ, 0, n)
		}
	}
	return h
}

// set puts numbers into the tensor, in the order of the stream.
func (h held) set(s device.Stream, f func(i int) float64) {
	for i := range int(h.host.Len) {
		put(h.host, i, f(i))
	}
	if h.host.Len > 0 {
		s.Launch(&device.Copy{Src: h.host, Dst: h.there, N: int(h.host.Len)})
	}
}

// get returns the tensor's numbers, when the stream has come so far.
func (h held) get(s device.Stream) ([]float64, error) {
	if h.host.Len > 0 {
		s.Launch(&device.Copy{Src: h.there, Dst: h.host, N: int(h.host.Len)})
	}
	if err := s.Sync(); err != nil {
		return nil, err
	}
	list := make([]float64, h.host.Len)
	for i := range list {
		switch h.host.Type {
		case device.F32:
			list[i] = float64(h.host.F32()[i])
		case device.F64:
			list[i] = h.host.F64()[i]
		case device.I32:
			list[i] = float64(h.host.I32()[i])
		case device.BF16:
			list[i] = float64(device.FromBF16(h.host.BF16()[i]))
		}
	}
	return list, nil
}

// put writes a number.
func put(t device.Tensor, i int, x float64) {
	switch t.Type {
	case device.F32:
		t.F32()[i] = float32(x)
	case device.F64:
		t.F64()[i] = x
	case device.I32:
		t.I32()[i] = int32(x)
	case device.BF16:
		t.BF16()[i] = device.ToBF16(float32(x))
	}
}

// launch binds a collective and launches it.
func launch(c collective.Comm, s device.Stream, op collective.Op) error {
	ops, err := c.Bind(op)
	if err != nil {
		return err
	}
	for _, o := range ops {
		s.Launch(o)
	}
	return nil
}

// altered changes one word of what a rank says.
func altered(value []byte, key string, to any) []byte {
	var m map[string]any
	if err := json.Unmarshal(value, &m); err != nil {
		panic(err)
	}
	m[key] = to
	text, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return text
}
