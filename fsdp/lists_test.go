package fsdp

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
)

// listing is a device whose streams take lists, and that keeps them.
type listing struct {
	device.Device
	mu    sync.Mutex
	lists map[string][][]device.Op // by stream, each once
}

// NewStream implements device.Device.
func (l *listing) NewStream(name string) device.Stream {
	return listingStream{l.Device.NewStream(name), name, l}
}

type listingStream struct {
	device.Stream
	name string
	dev  *listing
}

// LaunchAll implements lister.
func (s listingStream) LaunchAll(ops []device.Op) {
	s.dev.mu.Lock()
	known := s.dev.lists[s.name]
	if !slices.ContainsFunc(known, func(l []device.Op) bool { return &l[0] == &ops[0] && len(l) == len(ops) }) {
		s.dev.lists[s.name] = append(known, ops)
	}
	s.dev.mu.Unlock()
	for _, op := range ops {
		s.Launch(op)
	}
}

// Observe implements device.Observable.
func (s listingStream) Observe(o device.Observer) { s.Stream.(device.Observable).Observe(o) }

// listed is a ground of devices whose streams take lists.
func listed(g ground, devices []*listing) ground {
	return func(rank int) (device.Device, Comms, func() error, error) {
		dev, comms, leave, err := g(rank)
		devices[rank] = &listing{Device: dev, lists: map[string][][]device.Op{}}
		return devices[rank], comms, leave, err
	}
}

// checkLists requires of a program's lists that they are runs of steps of the
// computing stream as long as can be, without collectives, in which nothing waits
// or is waited for.
func checkLists(b *program, lists [][]device.Op) error {
	listOf := map[device.Op]int{}
	for n, list := range lists {
		for _, op := range list {
			listOf[op] = n + 1
		}
	}
	waited := map[int]bool{}
	for _, s := range b.plan.Steps {
		for _, w := range s.Waits {
			waited[w] = true
		}
	}
	var before *boundOp // of the computing stream
	for i := range b.ops {
		o := &b.ops[i]
		s, n := b.plan.Steps[o.step], listOf[o.Op]
		_, collects := s.Op.(collective.Op)
		if n != 0 && (collects || s.Stream != Computing) {
			return fmt.Errorf("step %d of stream %v, a %s, is in a list", o.step, s.Stream, device.Name(s.Op))
		}
		if s.Stream != Computing {
			continue
		}
		if !collects && before != nil {
			meet, together := len(s.Waits) > 0 || waited[before.step], n != 0 && n == listOf[before.Op]
			if meet == together {
				return fmt.Errorf("step %d and the one before of its stream, %d, are in one list: %v; others wait for them, or they for others: %v", o.step, before.step, together, meet)
			}
		}
		if before = o; collects {
			before = nil
		}
	}
	return nil
}

// remembered is what an engine's recorder has of the order of operations.
func remembered(e *Engine) (lines []string) {
	for _, s := range e.flight.Streams() {
		for _, op := range s.Ops {
			lines = append(lines, fmt.Sprint(s.Name, op.Number, op.Program, op.Step, op.Operation, op.State, op.Collective))
		}
	}
	return lines
}

// Lists change neither what is computed nor what the recorder remembers.
func TestListsAreAsLongAsStreamsDoNotMeet(t *testing.T) {
	const steps, sequences = 3, 8
	for i, s := range Strategies() {
		for _, mesh := range []Mesh{{1, 1}, {1, 2}, {2, 2}} {
			o := Options{Model: twoBlocks(i%2 == 0), Mesh: mesh, Strategy: s, Seqs: 1, SeqLen: 7, Prefetch: i % 3, Offload: offloads[i%len(offloads)]}
			devices, shares, lines := make([]*listing, mesh.Size()), make([]share, mesh.Size()), make([][]string, mesh.Size())
			world(t, toTrain(o), listed(inProcess(mesh), devices), func(e *Engine) (err error) {
				p, lists := e.Plan, devices[e.Plan.Rank].lists
				if shares[p.Rank], err = trainRank(e, steps, sequences); err != nil {
					return err
				}
				lines[p.Rank] = remembered(e)
				longest := 0
				for _, list := range lists["compute"] {
					longest = max(longest, len(list))
				}
				if longest < 10 || len(lists) != 1 {
					return fmt.Errorf("the longest list has %d operations; there are lists in %d streams", longest, len(lists))
				}
				for _, prog := range []*Program{&p.Micro[0], &p.Micro[1], &p.Reduce, &p.Norm, &p.Agree, &p.Update} {
					if b := e.bound[prog]; b != nil {
						if err := checkLists(b, lists["compute"]); err != nil {
							return fmt.Errorf("%s: %w", prog.Name, err)
						}
					}
				}
				return nil
			})
			plain := make([]share, mesh.Size())
			world(t, toTrain(o), nil, func(e *Engine) (err error) {
				if plain[e.Plan.Rank], err = trainRank(e, steps, sequences); err != nil {
					return err
				}
				if !slices.Equal(remembered(e), lines[e.Plan.Rank]) {
					t.Errorf("mesh %v, %s: with lists the recorder of rank %d has other operations", mesh, s, e.Plan.Rank)
				}
				return nil
			})
			same(t, "without lists", together(t, o, shares), together(t, o, plain))
		}
	}
}

func TestListsAllocateNothingInAStep(t *testing.T) {
	o := toTrain(Options{Model: twoBlocks(true), Mesh: Mesh{1, 2}, Strategy: FullShard, Seqs: 1, SeqLen: 7, Prefetch: 1})
	dev, _, leave, err := inProcess(Mesh{})(0)
	if err != nil {
		t.Fatal(err)
	}
	needKernels(t, dev)
	if err := leave(); err != nil {
		t.Fatal(err)
	}
	var allocated []uint64
	world(t, o, listed(inProcess(o.Mesh), make([]*listing, 2)), func(e *Engine) error {
		if _, err := steady(e, 0, 5); err != nil {
			return err
		}
		a, err := steady(e, 5, 200)
		if e.Plan.Rank == 0 {
			allocated = a
		}
		return err
	})
	wantNone(t, "with lists", allocated, 2)
}
