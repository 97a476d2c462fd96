package fsdp

import (
	"fmt"

	"github.com/gofsdp/gofsdp/collective"
)

// verifySums follows what is left to add up over ranks. A sum in place leaves no
// trace in memory, so verify's shadow cannot see one that is missing: here each
// reduction must find its axis still to be added up, and none may be left at the
// program's end.
func (p *Plan) verifySums(prog *Program) error {
	begin, end := p.rows.between, p.rows.between
	switch prog {
	case &p.Micro[0], &p.Micro[1]:
		for a := range begin {
			if begin[a] == sharded {
				begin[a] = partial
			}
		}
	case &p.Reduce:
		end = p.rows.end
	case &p.Agree:
		begin, end = spread{}, spread{}
		for _, a := range []Axis{Across, Within} {
			if p.Mesh.Along(a) > 1 {
				begin[a] = partial
			}
		}
	default:
		begin, end = spread{}, spread{}
	}
	left := make([]spread, len(p.Units))
	for u := range left {
		left[u] = begin
	}
	for i, s := range prog.Steps {
		var to place
		switch s.Op.(type) {
		case *collective.AllReduce:
			to = replicated
		case *collective.ReduceScatter:
			to = sharded
		default:
			continue
		}
		if left[s.Unit][s.Axis] != partial {
			return fmt.Errorf("fsdp: program %s, step %d: %s is added up %s again", prog.Name, i, p.Units[s.Unit].Name, s.Axis)
		}
		left[s.Unit][s.Axis] = to
	}
	for u, sp := range left {
		if prog == &p.Agree && u > 0 {
			break // it is of no unit, and counts for the first
		}
		if sp != end {
			return fmt.Errorf("fsdp: program %s does not add up %s along every axis", prog.Name, p.Units[u].Name)
		}
	}
	return nil
}
