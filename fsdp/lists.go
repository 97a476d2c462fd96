package fsdp

import (
	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
)

// lister is a stream that starts a list of operations at once. It may know a list
// by its slice, which stays what it is as long as the engine: a GPU makes a graph
// of one that comes again, and starts it by one call.
type lister interface {
	device.Stream
	LaunchAll(ops []device.Op)
}

// list joins the operations of the computing stream q that it can start at once,
// where it takes lists: a unit's forward, for example. A list ends where its
// stream waits for another one or another one for it, so that both wait for what
// they would wait for without lists. Collectives stay alone: each of their starts
// is counted and watched.
func (b *program) list(q device.Stream) {
	if _, ok := q.(lister); !ok {
		return
	}
	var run []*boundOp
	end := func() {
		if len(run) > 1 {
			list := make([]device.Op, len(run))
			for i, o := range run {
				list[i], o.joined = o.Op, true
			}
			last := run[len(run)-1]
			last.list, last.joined = list, false
		}
		run = nil
	}
	for i := range b.ops {
		o := &b.ops[i]
		if o.queue != q {
			continue
		}
		_, collects := b.plan.Steps[o.step].Op.(collective.Op)
		if collects || len(o.waits) > 0 {
			end()
		}
		if collects {
			continue
		}
		if run = append(run, o); o.record != nil {
			end()
		}
	}
	end()
}

// launch launches an operation: alone, as the last of a list with all of it, or as
// another one of a list not yet.
func (o *boundOp) launch() {
	switch {
	case o.joined:
	case o.list != nil:
		o.queue.(lister).LaunchAll(o.list)
	default:
		o.queue.Launch(o.Op)
	}
}
