package collective

import (
	"errors"
	"fmt"
	"slices"
)

// World says which groups the ranks of a run form, and which ranks share memory.
// It is the same value on all ranks.
type World struct {
	Ranks int
	// Sharing ranks in a row, those of one node, read each other's memory; with
	// 1 each has its own alone, and all groups go over TCP.
	Sharing int
	Groups  [][]int // each by its ranks, two or more in increasing order
}

// Check returns all that is wrong with a world.
func (w World) Check() error {
	if w.Ranks < 1 || w.Sharing < 1 || w.Ranks%w.Sharing != 0 {
		return fmt.Errorf("collective: %d ranks of which %d each share memory", w.Ranks, w.Sharing)
	}
	var errs []error
	for i, g := range w.Groups {
		ordered := len(g) > 1
		for p, r := range g {
			ordered = ordered && r >= 0 && r < w.Ranks && (p == 0 || g[p-1] < r)
		}
		if !ordered {
			errs = append(errs, fmt.Errorf("collective: group %d of ranks %v: want several of the %d ranks in increasing order", i, g, w.Ranks))
			continue
		}
		of := w.nodes(g)
		for _, ranks := range of {
			if len(ranks) != len(of[0]) {
				errs = append(errs, fmt.Errorf("collective: group %d of ranks %v: nodes of %d ranks have unequal parts %v of it", i, g, w.Sharing, of))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// nodes cuts a group by the nodes that its ranks are on.
func (w World) nodes(group []int) (of [][]int) {
	for i, r := range group {
		if i == 0 || r/w.Sharing != group[i-1]/w.Sharing {
			of = append(of, nil)
		}
		of[len(of)-1] = append(of[len(of)-1], r)
	}
	return of
}

// near returns those of a group on the node of rank, by their places on it; none
// where there are fewer than two.
func (w World) near(group []int, rank int) (places []int) {
	for _, r := range group {
		if r/w.Sharing == rank/w.Sharing {
			places = append(places, r%w.Sharing)
		}
	}
	if len(places) < 2 {
		return nil
	}
	return places
}

// far returns, for a rank of a group that spans several nodes, one rank of each:
// those with its place among the group's on their node; none for other ranks and
// groups.
func (w World) far(group []int, rank int) (ranks []int) {
	of := w.nodes(group)
	if len(of) == 1 {
		return nil
	}
	for _, mine := range of {
		if place := slices.Index(mine, rank); place >= 0 {
			for _, theirs := range of {
				ranks = append(ranks, theirs[place])
			}
		}
	}
	return ranks
}

// spans reports whether any group needs more than shared memory.
func (w World) spans() bool {
	return slices.ContainsFunc(w.Groups, func(g []int) bool { return len(w.nodes(g)) > 1 })
}
