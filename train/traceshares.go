package train

import (
	"sort"
	"time"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/record"
)

// dependency is an operation that another had to come after.
type dependency fsdp.TracedRef

func (d *dependency) of(streams []fsdp.TracedStream) *fsdp.TracedOp {
	return &streams[d.Stream].Ops[d.Op]
}

// wait returns what a stream that was free since some time waited for before it
// began op, and from when until when; nil where it waited for nothing. Of several
// dependencies it is the one that ended last.
func (p *part) wait(op *fsdp.TracedOp, free time.Time) (last *dependency, from, until time.Time) {
	from = later(free, op.Queued)
	until = from
	for _, ref := range op.After {
		d := dependency(ref)
		if ended := d.of(p.streams).Ended; ended.After(until) && !ended.After(op.Begun) {
			last, until = &d, ended
		}
	}
	return last, from, until
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// shares returns where the time of a step went. Every moment of it is counted
// once: the stream that computes runs something; or it has nothing from the host,
// which then waits for another stream or does work of its own; or it waits for
// another stream; or it is about to begin.
func (p *part) shares(s span) record.TraceStep {
	var compute, gather, reduce, agree, host, start time.Duration
	streams := map[string]*fsdp.TracedStream{}
	for i := range p.streams {
		streams[p.streams[i].Name] = &p.streams[i]
	}
	empty := func(from, to time.Time) {
		n := to.Sub(from)
		if n <= 0 {
			return
		}
		r := underWay(streams["reduce"], from, to)
		g := min(underWay(streams["gather"], from, to), n-r)
		reduce, gather, host = reduce+r, gather+g, host+n-r-g
	}
	free := s.begun
	if computing := streams["compute"]; computing != nil {
		for i := range computing.Ops {
			op := &computing.Ops[i]
			if !s.holds(op) {
				continue
			}
			empty(free, earlier(op.Queued, op.Begun))
			dep, from, until := p.wait(op, free)
			if dep != nil {
				waited := until.Sub(from)
				if p.streams[dep.Stream].Name == "gather" {
					gather += waited
				} else {
					reduce += waited
				}
			}
			start += max(op.Begun.Sub(until), 0)
			if op.Group == "" {
				compute += op.Ended.Sub(op.Begun)
			} else {
				agree += op.Ended.Sub(op.Begun)
			}
			free = op.Ended
		}
	}
	empty(free, s.end)
	seconds := s.end.Sub(s.begun).Seconds()
	share := func(d time.Duration) float64 { return d.Seconds() / seconds }
	return record.TraceStep{
		Step: s.step, Seconds: seconds, Compute: share(compute), Gather: share(gather), Reduce: share(reduce),
		Agree: share(agree), Host: share(host), Start: share(start),
	}
}

// underWay returns for how long of an interval a stream ran something. The stream
// may be nil.
func underWay(s *fsdp.TracedStream, from, to time.Time) (sum time.Duration) {
	if s == nil {
		return 0
	}
	first := sort.Search(len(s.Ops), func(i int) bool { return s.Ops[i].Ended.After(from) })
	for _, op := range s.Ops[first:] {
		if !op.Begun.Before(to) {
			break
		}
		sum += earlier(op.Ended, to).Sub(later(op.Begun, from))
	}
	return sum
}
