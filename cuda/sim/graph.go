//go:build sim && cgo && linux

package sim

import (
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
)

// capture is one capture sequence: CUDA C++ programming guide, "Creating a graph
// using stream capture". It began in one stream; others join by waiting for its
// events, and must be joined to the first again before it ends.
type capture struct {
	m       *Machine
	origin  *stream
	mode    int
	thread  int
	streams []*stream
	graph   *graph // nil once it has ended
	invalid bool
}

// Modes of a capture: enum CUstreamCaptureMode.
const (
	captureGlobal = iota
	captureThreadLocal
	captureRelaxed
)

// graph is what a capture made: nodes with all that they need.
type graph struct {
	ctx    *context
	handle uintptr
	name   string
	nodes  []node
}

// node is one operation of a graph, with the earlier ones that it follows.
type node struct {
	ctx   *context
	call  string
	do    func() error
	after []int
}

// begin is cuStreamBeginCapture.
func (s *stream) begin(mode int) error {
	if mode < captureGlobal || mode > captureRelaxed {
		return refuse(InvalidValue, "mode %d of a capture", mode)
	}
	if s.capture != nil {
		return refuse(IllegalState, "%s captures already", s.name)
	}
	c := &capture{m: s.ctx.m, origin: s, mode: mode, thread: syscall.Gettid(), graph: &graph{ctx: s.ctx}}
	c.enter(s, nil)
	s.ctx.m.captures = append(s.ctx.m.captures, c)
	return nil
}

// enter makes a stream part of the capture.
func (c *capture) enter(s *stream, front []int) {
	s.capture, s.front = c, slices.Clone(front)
	c.streams = append(c.streams, s)
}

// end is cuStreamEndCapture. Whatever it finds wrong beside stream and thread, the capture has ended.
func (s *stream) end() (*graph, error) {
	c := s.capture
	switch {
	case c == nil:
		return nil, refuse(IllegalState, "%s does not capture", s.name)
	case c.origin != s:
		return nil, refuse(StreamCaptureUnmatched, "the capture of %s began in %s", s.name, c.origin.name)
	case c.mode != captureRelaxed && c.thread != syscall.Gettid():
		return nil, refuse(StreamCaptureWrongThread, "the capture of %s began on thread %d", s.name, c.thread)
	}
	g := c.graph
	reached := make([]bool, len(g.nodes))
	for _, i := range s.front {
		reached[i] = true
	}
	for i := len(g.nodes) - 1; i >= 0; i-- {
		for _, before := range g.nodes[i].after {
			reached[before] = reached[before] || reached[i]
		}
	}
	loose := slices.Index(reached, false)
	c.close()
	switch {
	case c.invalid:
		return nil, refuse(StreamCaptureInvalidated, "the capture of %s was invalidated before", s.name)
	case loose >= 0:
		return nil, refuse(StreamCaptureUnjoined, "%s, node %d, is in a stream that has not been joined to %s again", g.nodes[loose].call, loose, s.name)
	}
	g.handle = c.m.handle(kindGraph)
	g.name = fmt.Sprintf("graph %d of %d nodes", number(g.handle), len(g.nodes))
	c.m.graphs[g.handle] = g
	return g, nil
}

// close ends the capture in all of its streams.
func (c *capture) close() {
	for _, s := range c.streams {
		s.capture, s.front = nil, nil
	}
	c.graph = nil
	c.m.captures = slices.DeleteFunc(c.m.captures, func(o *capture) bool { return o == c })
}

// add makes a node of an operation in a stream of the capture.
func (c *capture) add(s *stream, call string, do func() error) error {
	if err := c.usable(); err != nil {
		return err
	}
	c.graph.nodes = append(c.graph.nodes, node{s.ctx, call, do, s.front})
	s.front = []int{len(c.graph.nodes) - 1}
	return nil
}

// join lets a stream wait for an event that was recorded in the capture.
func (c *capture) join(s *stream, e *event) error {
	switch {
	case c.graph == nil:
		return refuse(StreamCaptureIsolation, "%s was recorded in a capture that has ended", e.name)
	case s.capture != nil && s.capture != c:
		return c.breaks(s.capture.breaks(refuse(StreamCaptureMerge, "%s waits for %s of another capture", s.name, e.name)))
	case c.invalid:
		return c.usable()
	case s.capture == nil:
		c.enter(s, e.front)
		return nil
	}
	for _, i := range e.front {
		if !slices.Contains(s.front, i) {
			s.front = append(s.front, i)
		}
	}
	return nil
}

// usable refuses everything after something has invalidated the capture.
func (c *capture) usable() error {
	if c.invalid {
		return refuse(StreamCaptureInvalidated, "the capture of %s was invalidated before; end it", c.origin.name)
	}
	return nil
}

// breaks invalidates the capture and returns why.
func (c *capture) breaks(err error) error {
	if earlier := c.usable(); earlier != nil {
		return earlier
	}
	c.invalid = true
	return err
}

// violated invalidates the capture for something that cannot be captured.
func (c *capture) violated(format string, args ...any) error {
	return c.breaks(refuse(StreamCaptureUnsupported, "%s while %s captures", fmt.Sprintf(format, args...), c.origin.name))
}

// safe refuses a potentially unsafe call, and invalidates the captures that
// forbid it: the calling thread's own unless relaxed, and those of other threads
// that are global. Source: cuThreadExchangeStreamCaptureMode.
func (m *Machine) safe(call string) error {
	var err error
	thread := syscall.Gettid()
	for _, c := range m.captures {
		if c.thread == thread && c.mode != captureRelaxed || c.thread != thread && c.mode == captureGlobal {
			c.invalid = true
			err = refuse(StreamCaptureUnsupported, "%s may be unsafe while %s captures (begun on thread %d)", call, c.origin.name, c.thread)
		}
	}
	return err
}

// executable is a graph that can be launched. Nodes never change, so it has the graph's.
type executable struct {
	ctx    *context
	handle uintptr
	name   string
	nodes  []node
	last   <-chan struct{} // its newest launch; one runs at a time
}

// Flags of an instantiation: enum CUgraphInstantiate_flags.
const (
	instantiateAutoFree     = 1
	instantiateNodePriority = 8
)

// instantiate is cuGraphInstantiateWithFlags.
func (g *graph) instantiate(flags uint64) (*executable, error) {
	if flags&^(instantiateAutoFree|instantiateNodePriority) != 0 {
		return nil, refuse(InvalidValue, "flags %#x of an instantiation", flags)
	}
	m := g.ctx.m
	x := &executable{ctx: g.ctx, handle: m.handle(kindExecutable), nodes: g.nodes, last: closed}
	x.name = fmt.Sprintf("executable %d of %s", number(x.handle), g.name)
	m.execs[x.handle] = x
	return x, nil
}

// launch is cuGraphLaunch: behind the stream's work, and behind the launch before.
func (x *executable) launch(s *stream) error {
	if x.ctx != s.ctx {
		return refuse(InvalidHandle, "%s of device %d is launched in %s of device %d", x.name, x.ctx.device.number, s.name, s.ctx.device.number)
	}
	if s.capture != nil {
		return s.capture.add(s, "cuGraphLaunch", x.plan(s))
	}
	s.enqueue("cuGraphLaunch", x.plan(s), x.last)
	x.last = s.tail
	return nil
}

// plan returns what runs the nodes: each a goroutine that waits for those it follows.
func (x *executable) plan(s *stream) func() error {
	pauses := make([]time.Duration, len(x.nodes))
	for i := range pauses {
		pauses[i] = x.ctx.m.pause()
	}
	return func() error {
		done := make([]chan struct{}, len(x.nodes))
		for i := range done {
			done[i] = make(chan struct{})
		}
		var failed atomic.Bool
		for i, n := range x.nodes {
			go func() {
				defer close(done[i])
				for _, before := range n.after {
					<-done[before]
				}
				time.Sleep(pauses[i])
				if failed.Load() {
					return
				}
				if err := n.do(); err != nil {
					if faultOf(err) != Success {
						failed.Store(true)
					}
					n.ctx.failed(fmt.Sprintf("%s, node %d of %s", s.name, i, x.name), n.call, err)
				}
			}()
		}
		for _, d := range done {
			<-d
		}
		return nil
	}
}
