package ptx

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// specialRegister is one of those that a thread may read and not write.
type specialRegister uint8

const (
	tidX specialRegister = iota
	tidY
	tidZ
	ntidX
	ntidY
	ntidZ
	ctaidX
	ctaidY
	ctaidZ
	nctaidX
	nctaidY
	nctaidZ
	laneid
	warpid
	nwarpid
	lanemaskEq
	lanemaskLt
	lanemaskLe
	lanemaskGt
	lanemaskGe
)

var plainSpecials = map[string]specialRegister{
	"%laneid": laneid, "%warpid": warpid, "%nwarpid": nwarpid,
	"%lanemask_eq": lanemaskEq, "%lanemask_lt": lanemaskLt, "%lanemask_le": lanemaskLe,
	"%lanemask_gt": lanemaskGt, "%lanemask_ge": lanemaskGe,
}

// special is a special register that a kernel reads, and the slot that holds it.
type special struct {
	which specialRegister
	slot  int32
}

// block is a thread block that runs, and what its threads share. One goroutine
// runs all of its warps in turn.
type block struct {
	kernel    *Kernel
	shape     [3]uint32
	launch    *Launch
	memory    Memory
	at        [3]uint32
	warps     []*warp
	memoryOf  []byte   // shared memory
	written   []uint64 // a bit for each byte of it
	meetings  [16]meeting
	limit     int64
	order     []int
	random    *rand.Rand
	addresses uint64 // the first address past shared memory
	races     *races // nil where they are not looked for
}

// meeting is a barrier with those who wait at it.
type meeting struct {
	arrived  uint32 // threads
	expected uint32
	waiting  []*warp
	epochs   [32]uint32 // of races: the times that were brought here
	// what a bar.red combines
	count    uint32
	all, any bool
}

// block returns a block for a launch; it runs many blocks after each other. One
// of an earlier launch of the same shape is taken where there is one.
func (k *Kernel) block(l *Launch, m Memory) *block {
	size := k.Shared
	if l.Shared > 0 {
		size = k.dynamic + l.Shared
	}
	b, ok := k.idle.Get().(*block)
	if !ok || b.shape != l.Block || b.addresses != uint64(sharedStart+size) {
		b = k.newBlock(l, size)
	}
	b.launch, b.memory, b.limit, b.random, b.races = l, m, l.Limit, nil, nil
	if l.Races {
		b.races = newRaces(b)
	}
	if b.limit == 0 {
		b.limit = 1<<63 - 1
	}
	for i, w := range b.warps {
		b.order[i] = i
		for _, s := range k.specials {
			w.setSpecial(s, l)
		}
	}
	if l.Order == Reverse {
		slices.Reverse(b.order)
	}
	return b
}

// keep keeps a block for a later launch, which has other memory.
func (k *Kernel) keep(b *block) {
	b.launch, b.memory, b.races = nil, nil, nil
	for _, w := range b.warps {
		w.recent = [len(w.recent)]*Region{}
		w.address = [32]*byte{}
	}
	k.idle.Put(b)
}

// newBlock makes a block of the launch's shape, with so many bytes of shared memory.
func (k *Kernel) newBlock(l *Launch, size int) *block {
	b := &block{kernel: k, shape: l.Block}
	b.memoryOf = make([]byte, size+16) // a wide access in bounds of the slice, checked against addresses
	b.written = NewWritten(size + 64)
	b.addresses = uint64(sharedStart + size)
	threads := int(l.Block[0] * l.Block[1] * l.Block[2])
	for i := 0; i*32 < threads; i++ {
		w := &warp{block: b, index: i, exists: allLanes}
		if n := threads - 32*i; n < 32 {
			w.exists = 1<<n - 1
		}
		w.r32 = make([]slot32, k.regs[narrow]+1)
		copy(w.r32, k.r32)
		w.r64 = make([]slot64, k.regs[wide]+1)
		copy(w.r64, k.r64)
		w.p = make([]uint32, k.regs[predicate]+1)
		for _, p := range k.truths {
			w.p[p] = allLanes
		}
		w.local = make([]byte, 32*k.Local)
		b.warps = append(b.warps, w)
	}
	b.order = make([]int, len(b.warps))
	return b
}

// setSpecial fills in a special register that is the same in all blocks.
func (w *warp) setSpecial(s special, l *Launch) {
	d := &w.r32[s.slot]
	for i := range d {
		t := uint32(w.index*32 + i)
		switch s.which {
		case tidX:
			d[i] = t % l.Block[0]
		case tidY:
			d[i] = t / l.Block[0] % l.Block[1]
		case tidZ:
			d[i] = t / l.Block[0] / l.Block[1]
		case ntidX, ntidY, ntidZ:
			d[i] = l.Block[s.which-ntidX]
		case nctaidX, nctaidY, nctaidZ:
			d[i] = l.Grid[s.which-nctaidX]
		case laneid:
			d[i] = uint32(i)
		case warpid:
			d[i] = uint32(w.index)
		case nwarpid:
			d[i] = (l.Block[0]*l.Block[1]*l.Block[2] + 31) / 32
		case lanemaskEq:
			d[i] = 1 << i
		case lanemaskLt:
			d[i] = 1<<i - 1
		case lanemaskLe:
			d[i] = 2<<i - 1
		case lanemaskGt:
			d[i] = ^(uint32(2)<<i - 1)
		case lanemaskGe:
			d[i] = ^(uint32(1)<<i - 1)
		}
	}
}

// run executes the block with the given index in the grid.
func (b *block) run(index uint64) *Fault {
	l := b.launch
	b.at = [3]uint32{
		uint32(index % uint64(l.Grid[0])),
		uint32(index / uint64(l.Grid[0]) % uint64(l.Grid[1])),
		uint32(index / uint64(l.Grid[0]) / uint64(l.Grid[1])),
	}
	clear(b.written)
	if b.races != nil {
		b.races.begin()
	}
	for i := range b.meetings {
		b.meetings[i] = meeting{}
	}
	for _, w := range b.warps {
		w.start()
		for _, s := range b.kernel.specials {
			if s.which >= ctaidX && s.which <= ctaidZ {
				d := &w.r32[s.slot]
				for i := range d {
					d[i] = b.at[s.which-ctaidX]
				}
			}
		}
	}
	if l.Order == Random {
		b.random = rand.New(rand.NewPCG(l.Seed, index))
	}
	for {
		if b.random != nil {
			b.random.Shuffle(len(b.order), func(i, j int) { b.order[i], b.order[j] = b.order[j], b.order[i] })
		}
		ran := false
		for _, i := range b.order {
			w := b.warps[i]
			if w.ended() || w.meeting != noMeeting {
				continue
			}
			ran = true
			slice := int64(0)
			if b.random != nil {
				slice = 1 + b.random.Int64N(200)
			}
			w.run(slice)
			if w.fault != nil {
				return w.fault
			}
		}
		if !ran {
			break
		}
	}
	return b.stuck()
}

// arrive counts a warp at a barrier, and lets all that wait go on when those
// expected are there. Zero threads stands for all of the block.
func (b *block) arrive(w *warp, id, threads uint32, wait bool) {
	if id >= uint32(len(b.meetings)) {
		w.fail(Undefined, 0, "barrier %d of 16", id)
		return
	}
	all := uint32(len(b.warps) * 32)
	if threads == 0 {
		threads = all
	}
	if threads%32 != 0 || threads > all {
		w.fail(Undefined, 0, "a barrier of %d threads, in a block of %d warps", threads, len(b.warps))
		return
	}
	m := &b.meetings[id]
	if m.arrived > 0 && m.expected != threads {
		w.fail(Undefined, 0, "barrier %d waits for %d threads, and for %d here", id, m.expected, threads)
		return
	}
	m.expected = threads
	m.arrived += 32
	if b.races != nil {
		b.races.arrive(w.index, m)
	}
	if wait {
		w.meeting = int(id)
		m.waiting = append(m.waiting, w)
	}
	if m.arrived < m.expected {
		return
	}
	for _, o := range m.waiting {
		o.meeting = noMeeting
		o.finishReduction(m)
		if b.races != nil {
			b.races.leave(o, m)
		}
	}
	*m = meeting{waiting: m.waiting[:0]}
}

// stuck returns the fault if warps wait for a barrier that nobody comes to.
func (b *block) stuck() *Fault {
	var lines []string
	var first *warp
	ended := 0
	for _, w := range b.warps {
		if w.ended() {
			ended++
			continue
		}
		if first == nil {
			first = w
		}
		if len(lines) < 8 {
			pc := w.groups[0].pc - 1
			lines = append(lines, fmt.Sprintf("warp %d lanes %08x wait at line %d, %s, for barrier %d (%d of %d threads are there)",
				w.index, w.groups[0].lanes, b.kernel.places[pc].line, b.kernel.places[pc].text, w.meeting, b.meetings[w.meeting].arrived, b.meetings[w.meeting].expected))
		}
	}
	if first == nil {
		return nil
	}
	first.pc = first.groups[0].pc - 1
	kind := Deadlock
	if ended > 0 {
		kind = Divergent
		lines = append(lines, fmt.Sprintf("%d warps have returned", ended))
	}
	first.fail(kind, 0, "%s", strings.Join(lines, "; "))
	return first.fault
}
