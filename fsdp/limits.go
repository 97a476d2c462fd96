package fsdp

import (
	"fmt"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
)

// limited is a device that cannot run every operation. What it is asked about has
// no address yet.
type limited interface {
	// Runs says what of an operation the device cannot do, nil where it can.
	Runs(op device.Op) error
}

// Limits asks about each of the plan's operations but the collectives, and returns
// what was said against the first that cannot be run, with its place in the plan.
func (p *Plan) Limits(runs func(op device.Op) error) error {
	for _, prog := range p.Programs() {
		for _, s := range prog.Steps {
			if _, ok := s.Op.(collective.Op); ok {
				continue
			}
			if err := runs(s.Op); err != nil {
				return fmt.Errorf("fsdp: program %s, %s, %s: %w", prog.Name, p.Units[s.Unit].Name, s.Cut, err)
			}
		}
	}
	return nil
}
