package fsdp

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/collective"
)

// Axis is a direction of the mesh of ranks.
type Axis int

// The axes: across nodes, and within one. Rank r of a mesh lies at
// (r / Within, r mod Within).
const (
	Across Axis = iota
	Within
)

func (a Axis) String() string { return [...]string{"across", "within"}[a] }

// Mesh is the number of ranks along each axis; the zero value is one rank.
type Mesh struct{ Across, Within int }

// Along returns the ranks along an axis.
func (m Mesh) Along(a Axis) int {
	if a == Across {
		return max(m.Across, 1)
	}
	return max(m.Within, 1)
}

// Size returns the number of ranks.
func (m Mesh) Size() int { return m.Along(Across) * m.Along(Within) }

// At returns a rank's place along an axis.
func (m Mesh) At(rank int, a Axis) int {
	if a == Across {
		return rank / m.Along(Within)
	}
	return rank % m.Along(Within)
}

func (m Mesh) String() string { return fmt.Sprintf("%dx%d", m.Along(Across), m.Along(Within)) }

// Groups lists the groups of ranks that a mesh has, each by its ranks in order of
// their places along an axis: for each axis of several ranks, and for each line
// along it, one group that gathers and one that reduces. Ranks agree on the list.
func (m Mesh) Groups() (groups [][]int) {
	for _, line := range m.lines() {
		groups = append(groups, line.ranks, line.ranks)
	}
	return groups
}

// line is the ranks along an axis that share a place along the other.
type line struct {
	axis  Axis
	ranks []int
}

func (m Mesh) lines() (all []line) {
	for _, axis := range []Axis{Across, Within} {
		if m.Along(axis) == 1 {
			continue
		}
		for other := range m.Size() / m.Along(axis) {
			l := line{axis: axis}
			for r := range m.Size() {
				if m.At(r, Across+Within-axis) == other {
					l.ranks = append(l.ranks, r)
				}
			}
			all = append(all, l)
		}
	}
	return all
}

// Comms sorts a rank's ends of the mesh's Groups, in their order and nil where
// the rank is not in the group.
func (m Mesh) Comms(ends []collective.Comm) (c Comms) {
	for i, l := range m.lines() {
		if gather, reduce := ends[2*i], ends[2*i+1]; gather != nil {
			c.Gather[l.axis], c.Reduce[l.axis] = gather, reduce
		}
	}
	return c
}

// Strategy names how weights, gradients and optimizer state are spread.
type Strategy string

// The strategies, by the names of PyTorch and, behind them, of ZeRO.
const (
	NoShard         Strategy = "no_shard"          // DDP, ZeRO-0
	ShardOptimizer  Strategy = "shard_optimizer"   // ZeRO-1
	ShardGradOp     Strategy = "shard_grad_op"     // ZeRO-2
	FullShard       Strategy = "full_shard"        // FSDP, ZeRO-3
	HybridShard     Strategy = "hybrid_shard"      // HSDP: sharded within, replicated across
	HybridFullShard Strategy = "hybrid_full_shard" // HFSDP: as HSDP, with the optimizer sharded over all
)

// place says what a rank holds of a vector along one axis.
type place uint8

const (
	replicated place = iota // all of it
	sharded                 // its part
	partial                 // all of it, but only its own contribution to a sum
)

// spread is what a rank holds of a vector along both axes.
type spread [2]place

// strategy is a row of the table: how the copy that computes is spread, the
// gradients between micro-batches and at the step's end, and the master weights
// with their moments. The last two always agree.
type strategy struct{ params, between, end spread }

// strategies is the whole table: there is one mechanism, and no special case.
var strategies = func() map[Strategy]strategy {
	const r, s, p = replicated, sharded, partial
	return map[Strategy]strategy{ // across, within
		NoShard:         {spread{r, r}, spread{p, p}, spread{r, r}},
		ShardOptimizer:  {spread{r, r}, spread{p, p}, spread{s, s}},
		ShardGradOp:     {spread{r, r}, spread{s, s}, spread{s, s}},
		FullShard:       {spread{s, s}, spread{s, s}, spread{s, s}},
		HybridShard:     {spread{r, s}, spread{p, s}, spread{r, s}},
		HybridFullShard: {spread{r, s}, spread{p, s}, spread{s, s}},
	}
}()

// Strategies lists the names, from least sharded on.
func Strategies() []Strategy {
	return []Strategy{NoShard, ShardOptimizer, ShardGradOp, FullShard, HybridShard, HybridFullShard}
}

func strategyNames() string {
	var names []string
	for _, s := range Strategies() {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

// row returns the table's row for a mesh. Along an axis of one rank everything
// is replicated: there is nothing to share, nor to add.
func (o *Options) row() strategy {
	t := strategies[o.Strategy]
	if o.Strategy == "" {
		t = strategies[NoShard]
	}
	if o.LateReduce {
		t.between = spread{partial, partial}
	}
	for _, a := range []Axis{Across, Within} {
		if o.Mesh.Along(a) == 1 {
			t.params[a], t.between[a], t.end[a] = replicated, replicated, replicated
		}
	}
	return t
}

// extent is a range of elements of a unit's vector.
type extent struct{ from, to int }

func (e extent) len() int { return e.to - e.from }

// has reports whether it is so spread along any axis.
func (sp spread) has(x place) bool { return sp[Across] == x || sp[Within] == x }

// held returns what this rank holds of a vector of length elements that is
// spread so: sharding cuts within first, then across, so that what is gathered
// across and then within lies in place.
func (o *Options) held(length int, sp spread) extent {
	e := extent{0, length}
	for _, a := range []Axis{Within, Across} {
		if sp[a] == sharded {
			n := e.len() / o.Mesh.Along(a)
			e.from += o.Mesh.At(o.Rank, a) * n
			e.to = e.from + n
		}
	}
	return e
}

// finest returns the place in a vector of the smallest shard of a rank, counted
// in such shards.
func (o *Options) finest(rank int) int {
	return o.Mesh.At(rank, Within)*o.Mesh.Along(Across) + o.Mesh.At(rank, Across)
}

// first reports whether this rank speaks for those that hold the same: it is
// the first along every axis where sp is replicated.
func (o *Options) first(sp spread) bool {
	return !slices.ContainsFunc([]Axis{Across, Within}, func(a Axis) bool { return sp[a] != sharded && o.Mesh.At(o.Rank, a) != 0 })
}

// holds reports whether this rank's part of the master weights has the finest
// shard at that place.
func (o *Options) holds(finest int) bool {
	e := o.held(o.Mesh.Size(), o.row().end)
	return e.from <= finest && finest < e.to
}
