package fsdp

import "github.com/gofsdp/gofsdp/model"

// The grain of a flat unit, in elements: parameters begin at multiples of
// paramAlign, shards have lengths that are multiples of shardAlign.
const (
	paramAlign = 128
	shardAlign = 1024
)

// Slot is a parameter's place in its unit's flat vector.
type Slot struct {
	model.Param
	Unit int
	Off  int // elements from the vector's start
}

// Unit is the layout of one flat vector. The decayed matrices come first, then
// norms and biases; gaps and the tail are zero and belong to no parameter.
type Unit struct {
	Name    string
	Slots   []Slot
	Decayed int // elements [0,Decayed) decay, gaps included
	Len     int // a multiple of 1,024 for each rank
}

// layout places a unit's parameters. Only the tail depends on the ranks.
func layout(index int, mu model.Unit, ranks int) Unit {
	u := Unit{Name: mu.Name}
	off := 0
	for _, decay := range []bool{true, false} {
		for _, p := range mu.Params {
			if p.Decay != decay {
				continue
			}
			u.Slots = append(u.Slots, Slot{Param: p, Unit: index, Off: off})
			off += roundUp(p.Len(), paramAlign)
		}
		if decay {
			u.Decayed = off
		}
	}
	u.Len = roundUp(off, shardAlign*ranks)
	return u
}

// gaps returns what of the vector belongs to no parameter.
func (u Unit) gaps() (list []extent) {
	at := 0
	for _, s := range u.Slots {
		if s.Off > at {
			list = append(list, extent{at, s.Off})
		}
		at = s.Off + s.Len()
	}
	if u.Len > at {
		list = append(list, extent{at, u.Len})
	}
	return list
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }
