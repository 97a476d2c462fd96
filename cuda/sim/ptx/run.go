package ptx

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
)

// MaxShared is the most shared memory, static and dynamic, that a block may have: 227 KB, as on
// devices of compute capability 9. That a kernel also fits smaller ones is for its own tests.
const MaxShared = 227 << 10

// Run executes the kernel on the memory and returns when all blocks have ended.
// A *Fault is what a block did wrong; other blocks may have run by then.
func (k *Kernel) Run(l Launch, m Memory) error {
	if err := k.check(&l); err != nil {
		return fmt.Errorf("kernel %s: %w", k.Name, err)
	}
	blocks := uint64(l.Grid[0]) * uint64(l.Grid[1]) * uint64(l.Grid[2])
	position := func(i uint64) uint64 { return i }
	switch l.Order {
	case Reverse:
		position = func(i uint64) uint64 { return blocks - 1 - i }
	case Random:
		r := rand.New(rand.NewPCG(l.Seed, blocks))
		order := make([]uint32, blocks)
		for i := range order {
			order[i] = uint32(i)
		}
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		position = func(i uint64) uint64 { return uint64(order[i]) }
	}
	workers := l.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	workers = int(min(uint64(workers), blocks))
	if l.Races || l.Covered != nil {
		workers = 1 // what blocks that have ended did is known to the next
	}
	var next atomic.Uint64
	var failed atomic.Bool
	faults := make([]*Fault, workers)
	stats := make([]Stats, workers)
	work := func(i int) {
		b := k.block(&l, m)
		defer k.keep(b)
		for !failed.Load() {
			at := next.Add(1) - 1
			if at >= blocks {
				break
			}
			if f := b.run(position(at)); f != nil {
				faults[i] = f
				failed.Store(true)
			}
			for _, w := range b.warps {
				stats[i].add(Stats{w.steps, w.laneSteps, w.mmas, w.read, w.written})
			}
		}
	}
	var wg sync.WaitGroup
	for i := 1; i < workers; i++ {
		wg.Go(func() { work(i) })
	}
	work(0)
	wg.Wait()
	if l.Stats != nil {
		for _, s := range stats {
			l.Stats.add(s)
		}
	}
	for _, f := range faults {
		if f != nil {
			return f
		}
	}
	return nil
}

func (s *Stats) add(o Stats) {
	s.Instructions += o.Instructions
	s.LaneInstructions += o.LaneInstructions
	s.Mma += o.Mma
	s.Read += o.Read
	s.Written += o.Written
}

// check refuses a launch that a driver would refuse.
func (k *Kernel) check(l *Launch) error {
	for i := range l.Grid {
		if l.Grid[i] == 0 || l.Block[i] == 0 {
			return fmt.Errorf("grid %v of blocks %v: a size is zero", l.Grid, l.Block)
		}
	}
	if l.Grid[0] > 1<<31-1 || l.Grid[1] > 65535 || l.Grid[2] > 65535 {
		return fmt.Errorf("grid %v is larger than (2³¹-1, 65535, 65535)", l.Grid)
	}
	threads := uint64(l.Block[0]) * uint64(l.Block[1]) * uint64(l.Block[2])
	if threads > 1024 || l.Block[2] > 64 {
		return fmt.Errorf("blocks of %v: more than 1024 threads, or than 64 in z", l.Block)
	}
	if k.MaxThreads > 0 && threads > uint64(k.MaxThreads) {
		return fmt.Errorf("blocks of %d threads, and it was compiled for %d", threads, k.MaxThreads)
	}
	if l.Shared < 0 || k.dynamic+l.Shared > MaxShared {
		return fmt.Errorf("%d bytes of dynamic shared memory beside %d static ones: a block has at most %d", l.Shared, k.Shared, MaxShared)
	}
	if len(l.Args) != k.ArgsSize {
		return fmt.Errorf("%d bytes of arguments, and its parameters have %d", len(l.Args), k.ArgsSize)
	}
	return nil
}
