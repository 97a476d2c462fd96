package fsdp

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"slices"
)

// Hash returns a number that plans share which give the same numbers together:
// it covers the model, and every operation, with every size and constant, of the
// plan as rank 0 has it. It is below 2⁵³, so that it fits a float64.
func (p *Plan) Hash() (uint64, error) {
	zero := p
	if p.Rank != 0 {
		o := p.Options
		o.Rank = 0
		var err error
		if zero, err = NewPlan(o); err != nil {
			return 0, err
		}
	}
	h := fnv.New64a()
	// No operation shows what the rotary tables and fresh weights are made from.
	shape, scaling := zero.Model, zero.Model.RopeScaling
	shape.RopeScaling = nil // a pointer, of which an address would be printed
	fmt.Fprintf(h, "%+v %+v\n", shape, scaling)
	for _, prog := range zero.Programs() {
		fmt.Fprintln(h, prog.Name)
		for _, s := range prog.Steps {
			fmt.Fprintf(h, "%d %s %s %T %+v\n", s.Unit, s.Cut, s.Axis, s.Op, s.Op)
		}
	}
	for _, b := range zero.Buffers {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(b.span().from)))
	}
	return h.Sum64() >> 11, nil
}

// compare makes sure, before the first step, that all ranks have the same plan.
func (e *Engine) compare() error {
	n := e.Plan.Mesh.Size()
	mine, err := e.Plan.Hash()
	if err != nil {
		return err
	}
	if _, err := e.Total(float64(mine)); err != nil {
		return err
	}
	hashes := e.mail(e.Plan.agreed).F64()[n : 2*n]
	count := map[float64]int{}
	for _, h := range hashes {
		count[h]++
	}
	if len(count) == 1 {
		return nil
	}
	// The plan that most ranks have counts as the right one.
	usual := slices.MaxFunc(hashes, func(a, b float64) int { return count[a] - count[b] })
	var others []int
	for r, h := range hashes {
		if h != usual {
			others = append(others, r)
		}
	}
	return fmt.Errorf("fsdp: the plans of ranks %v differ from the others': they have another configuration or another program", others)
}
