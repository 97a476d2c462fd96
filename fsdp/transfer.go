package fsdp

import (
	"fmt"

	"github.com/gofsdp/gofsdp/device"
)

// Owned returns which of a parameter's elements this rank holds the master weights
// of: n from element first on, maybe none.
func (e *Engine) Owned(param string) (first, n int) {
	p := e.Plan
	s := p.slot(param)
	own := p.held(p.Units[s.Unit].Len, p.rows.end)
	from, to := max(s.Off, own.from), min(s.Off+s.Len(), own.to)
	if from >= to {
		return 0, 0
	}
	return from - s.Off, to - from
}

// owned returns where len(x) elements of a parameter's master weights lie, from
// element first on. That others hold them is the caller's mistake.
func (e *Engine) owned(param string, first int, x []float32) device.Tensor {
	p := e.Plan
	if at, n := e.Owned(param); first < at || first+len(x) > at+n {
		panic(fmt.Sprintf("fsdp: rank %d holds the elements %d to %d of %s, and is asked for %d to %d", p.Rank, at, at+n, param, first, first+len(x)))
	}
	s := p.slot(param)
	own := p.held(p.Units[s.Unit].Len, p.rows.end)
	return p.flat(p.master[s.Unit], device.F32, s.Off+first-own.from, len(x))
}

// ReadOwned copies master weights of a parameter that this rank holds to dst, from
// element first on. It blocks until they are there, as the next two do.
func (e *Engine) ReadOwned(param string, first int, dst []float32) error {
	if err := e.read(e.owned(param, first, dst), dst); err != nil {
		return fmt.Errorf("fsdp: reading %s: %w", param, err)
	}
	return nil
}

// WriteOwned sets master weights of a parameter that this rank holds to src, from
// element first on. After all that is to be set call Refresh.
func (e *Engine) WriteOwned(param string, first int, src []float32) error {
	if err := e.write(e.owned(param, first, src), src); err != nil {
		return fmt.Errorf("fsdp: writing %s: %w", param, err)
	}
	return nil
}

// Whole gathers the master weights of a unit, by its index in the plan, for
// ReadWhole. All ranks call it alike.
func (e *Engine) Whole(unit int) error {
	e.gathered = unit
	if len(e.Plan.Whole) == 0 {
		return nil // every rank has them
	}
	return e.run(&e.Plan.Whole[unit])
}

// ReadWhole copies the vector that Whole has gathered to dst, from element first
// on; a Slot says where a parameter lies in it. It is good until the engine runs
// anything else.
func (e *Engine) ReadWhole(first int, dst []float32) error {
	p, u := e.Plan, e.gathered
	buf := p.master[u]
	if len(p.Whole) > 0 {
		buf = p.whole[u]
	}
	if err := e.read(p.flat(buf, device.F32, first, len(dst)), dst); err != nil {
		return fmt.Errorf("fsdp: reading %s: %w", p.Units[u].Name, err)
	}
	return nil
}

// read copies t to x through the staging memory.
func (e *Engine) read(t device.Tensor, x []float32) error {
	return e.stage(t, func(staged, on device.Tensor, at int64) error {
		if err := e.move(on, staged); err != nil {
			return err
		}
		copy(x[at:], staged.F32())
		return nil
	})
}

// write copies x to t through the staging memory.
func (e *Engine) write(t device.Tensor, x []float32) error {
	return e.stage(t, func(staged, on device.Tensor, at int64) error {
		copy(staged.F32(), x[at:])
		return e.move(staged, on)
	})
}

// stage calls pass for each piece of t that the staging memory holds at once: the
// piece begins at element at of t, on the device at on.
func (e *Engine) stage(t device.Tensor, pass func(staged, on device.Tensor, at int64) error) error {
	staging := e.at(e.Plan.staging)
	for at := int64(0); at < t.Len; at += staging.Len {
		n := min(staging.Len, t.Len-at)
		if err := pass(staging.Slice(0, n), e.at(t.Slice(at, n)), at); err != nil {
			return err
		}
	}
	return nil
}

// move copies src to dst and waits for it.
func (e *Engine) move(src, dst device.Tensor) error {
	q := e.queues[Computing]
	q.Launch(&device.Copy{Src: src, Dst: dst, N: int(src.Len)})
	return q.Sync()
}
