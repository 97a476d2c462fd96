package main

import (
	"cmp"

	"github.com/gofsdp/gofsdp/bench"
	"github.com/gofsdp/gofsdp/bench/scenario"
	"github.com/gofsdp/gofsdp/fsdp"
)

// side is a task that this program does as one side of a comparison.
type side struct {
	*scenario.Task
	file  string
	ranks benchRanks
}

// readTask reads a side's task; see scenario.ReadTask.
func readTask(path string) (*side, error) {
	task, err := scenario.ReadTask(path)
	if err != nil {
		return nil, err
	}
	s := &side{Task: task, file: path}
	s.ranks.Device, s.ranks.Threads, s.ranks.ISA = cmp.Or(task.Device, autoDevice), task.Work.Threads, autoISA
	return s, nil
}

// cases returns those of training steps, with what the task leaves out.
func (s *side) cases() (list []bench.StepCase, err error) {
	for _, c := range s.Work.Cases {
		x := bench.StepCase{
			Name: c.Name, Strategy: fsdp.Strategy(c.Strategy), MicroBatches: max(c.MicroBatches, 1),
			Mesh: fsdp.Mesh{Across: 1, Within: c.Ranks}, Recompute: fsdp.Recompute(c.Recompute),
		}
		switch {
		case c.Mesh != "":
			if x.Mesh, err = fsdp.ParseMesh(c.Mesh); err != nil {
				return nil, err
			}
		case c.Ranks == 0:
			x.Mesh.Within = s.Work.Ranks
		}
		if x.Recompute == "" {
			x.Recompute = fsdp.RecomputeNone
		}
		list = append(list, x)
	}
	return list, nil
}
