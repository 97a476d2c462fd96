//go:build cgo && linux

package cuda

// #include "call.h"
import "C"

import (
	"fmt"
	"slices"

	"github.com/gofsdp/gofsdp/device"
)

// graph is a list of operations that the driver starts with one call.
type graph struct {
	works []*work       // of its operations as they were captured; nil of a Native
	exec  C.CUgraphExec // nil until then
}

// listed is a list of operations by where it is: a slice that stays.
type listed struct {
	stream *stream
	first  *device.Op
	n      int
}

// LaunchAll queues a list of operations. With Options.Graphs the list becomes a CUDA graph when it is
// launched for the second time, and is one call of the driver from then on; an operation that has changed
// makes it anew. The slice is what a list is known by: it stays what it is as long as the device. What a
// Native starts must not change, and one that is Watched is refused.
func (s *stream) LaunchAll(ops []device.Op) {
	if len(ops) > 0 {
		s.gpu.queue <- command{stream: s, ops: ops}
	}
}

// performAll starts a list, unless an earlier operation failed.
func (s *stream) performAll(ops []device.Op) {
	if s.err != nil {
		return
	}
	g := s.gpu
	key := listed{s, &ops[0], len(ops)}
	l := g.graphs[key]
	if !g.options.Graphs || g.options.Synchronous || l == nil {
		if s.err = s.unwatched(ops); s.err != nil {
			return
		}
		// A list that is launched only once is not worth a graph.
		for _, op := range ops {
			s.perform(op)
		}
		if s.err == nil && g.options.Graphs {
			g.graphs[key] = &graph{}
		}
		return
	}
	if !l.still(g, ops) {
		if s.err = l.renew(s, ops); s.err != nil {
			return
		}
		if l.strange(g) {
			for _, op := range ops {
				s.perform(op)
			}
			return
		}
		if s.err = l.capture(s, ops); s.err != nil {
			return
		}
	}
	if s.started == 0 {
		s.first = ops[0]
	}
	s.started, s.last = s.started+len(ops), ops[len(ops)-1]
	if r := C.call_cuGraphLaunch(g.driver.table, l.exec, s.handle); r != 0 {
		s.err = s.failed(r, "cuGraphLaunch", s.since())
	}
}

// unwatched refuses a list that would hide an operation in a graph from what watches over it. NCCL also keeps a
// communicator for as long as there are graphs with its collectives, so it could not be left before them.
func (s *stream) unwatched(ops []device.Op) error {
	if !s.gpu.options.Graphs {
		return nil
	}
	for _, op := range ops {
		if _, ok := op.(Watched); ok {
			return fmt.Errorf("stream %s: %s cannot be in a list of operations that becomes a graph: launch it by itself", s.name, device.Name(op))
		}
	}
	return nil
}

// still says whether the list is what it was when it was captured.
func (l *graph) still(g *gpu, ops []device.Op) bool {
	if l.exec == nil {
		return false
	}
	for i, op := range ops {
		if w := g.works[op]; w != l.works[i] || w != nil && !w.still(op) {
			return false
		}
	}
	return true
}

// renew lets go of the graph and turns the operations into calls, for nothing may be allocated while they are
// captured: twice, since a new one may let go of those before it (mostWorks).
func (l *graph) renew(s *stream, ops []device.Op) error {
	g := s.gpu
	if err := l.destroy(g); err != nil {
		return err
	}
	l.works = make([]*work, len(ops))
	for range 2 {
		for i, op := range ops {
			if _, own := op.(Native); own {
				continue
			}
			w, err := g.work(op, s)
			if err != nil {
				return fmt.Errorf("stream %s: %w", s.name, err)
			}
			l.works[i] = w
		}
	}
	g.graphs[listed{s, &ops[0], len(ops)}] = l // where it has been let go of as well
	return nil
}

// strange says whether a product of the list is of a new shape: it is started on its own once, since what that
// waits for, and loads, may not be captured.
func (l *graph) strange(g *gpu) bool {
	return slices.ContainsFunc(l.works, func(w *work) bool {
		return w != nil && slices.ContainsFunc(w.parts, func(p part) bool {
			product, ok := p.(interface{ strange(g *gpu) bool })
			return ok && product.strange(g)
		})
	})
}

// capture makes the graph.
func (l *graph) capture(s *stream, ops []device.Op) error {
	g := s.gpu
	const threadLocal = 1 // CUstreamCaptureMode: other threads may wait meanwhile
	table, where := g.driver.table, fmt.Sprintf("%d operations, %s to %s", len(ops), device.Name(ops[0]), device.Name(ops[len(ops)-1]))
	if r := C.call_cuStreamBeginCapture(table, s.handle, threadLocal); r != 0 {
		return s.failed(r, "cuStreamBeginCapture", where)
	}
	var err error
	for _, op := range ops {
		if err = s.start(op); err != nil {
			break
		}
	}
	var made C.CUgraph
	if r := C.call_cuStreamEndCapture(table, s.handle, &made); r != 0 && err == nil {
		err = s.failed(r, "cuStreamEndCapture", where)
	}
	if made == nil {
		return err
	}
	if err == nil {
		if r := C.call_cuGraphInstantiate(table, &l.exec, made, 0); r != 0 {
			err = s.failed(r, "cuGraphInstantiate", where)
		}
	}
	if r := C.call_cuGraphDestroy(table, made); r != 0 && err == nil {
		err = s.failed(r, "cuGraphDestroy", where)
	}
	return err
}

// destroy lets go of the graph. One that is under way runs to its end, and is freed then (CUDA driver API
// reference, cuGraphExecDestroy): nobody waits here, where what the GPU does may come after a collective that
// hangs.
func (l *graph) destroy(g *gpu) error {
	if l.exec == nil {
		return nil
	}
	err := g.failed(C.call_cuGraphExecDestroy(g.driver.table, l.exec), "cuGraphExecDestroy")
	l.exec = nil
	return err
}
