package fsdp

import (
	"fmt"
	"io"
	"strings"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
)

// Traffic is the collectives of one kind along one axis in an optimizer step.
type Traffic struct {
	Kind  string // "AllGather", "ReduceScatter", "AllReduce"
	Axis  Axis
	Count int
	Bytes int64 // that a rank reads from others
}

// Traffic returns what a step of so many micro-batches moves, in the order of
// first use. The one small all-reduce of the agreement is among it.
func (p *Plan) Traffic(microBatches int) []Traffic {
	var list []Traffic
	add := func(prog *Program, times int) {
		for _, s := range prog.Steps {
			op, ok := s.Op.(collective.Op)
			if !ok || times == 0 {
				continue
			}
			t := Traffic{Kind: device.Name(op), Axis: s.Axis}
			at := 0
			for at < len(list) && (list[at].Kind != t.Kind || list[at].Axis != t.Axis) {
				at++
			}
			if at == len(list) {
				list = append(list, t)
			}
			list[at].Count += times
			list[at].Bytes += int64(times) * moved(op, p.Mesh.Along(s.Axis))
		}
	}
	add(&p.Micro[0], min(microBatches, 1))
	add(&p.Micro[1], max(microBatches-1, 0))
	for _, prog := range []*Program{&p.Reduce, &p.Agree, &p.Update} {
		add(prog, 1)
	}
	return list
}

// moved returns the bytes of a collective that a rank reads from the n−1 others:
// their parts once, and in an all-reduce once to add and once to gather.
func moved(op collective.Op, n int) int64 {
	for _, o := range device.Operands(op) {
		if o.Name == "Data" {
			bytes := o.T.Bytes() / int64(n) * int64(n-1)
			if _, both := op.(*collective.AllReduce); both {
				bytes *= 2
			}
			return bytes
		}
	}
	return 0
}

// Transcript writes a program a line a step: stream, unit, cut point, and what
// the operation reads and writes; a "+" marks what is both. Steps of other
// streams that it waits for stand behind.
func (p *Plan) Transcript(w io.Writer, prog *Program) error {
	for i, s := range prog.Steps {
		var reads, writes []string
		for _, o := range device.Operands(s.Op) {
			switch name := p.operand(s, *o.T); o.Access {
			case device.Read:
				reads = append(reads, name)
			case device.Write:
				writes = append(writes, name)
			default:
				writes = append(writes, "+"+name)
			}
		}
		kind, waits := device.Name(s.Op), ""
		if _, ok := s.Op.(collective.Op); ok {
			kind += " " + s.Axis.String()
		}
		if len(s.Waits) > 0 {
			waits = fmt.Sprintf(" | after %s", strings.Trim(fmt.Sprint(s.Waits), "[]"))
		}
		if _, err := fmt.Fprintf(w, "%4d %v | %s | %s | %s(%s) -> %s%s\n", i, s.Stream, p.Units[s.Unit].Name, s.Cut, kind, strings.Join(reads, ", "), strings.Join(writes, ", "), waits); err != nil {
			return err
		}
	}
	return nil
}

// operand names a tensor by its buffer, and by its parameter where it is one.
func (p *Plan) operand(s Step, t device.Tensor) string {
	if t.Buf == p.mailbox {
		return "mailbox of " + p.operand(s, p.unmail(t))
	}
	b, u := p.Buffers[t.Buf-1], p.Units[s.Unit]
	if b.fields != nil {
		return b.fieldOf(t)
	}
	name := strings.TrimPrefix(b.Name, u.Name+" ")
	from, to := t.Off/t.Type.Size(), t.Off/t.Type.Size()+t.Len
	if name == b.Name || b.Kind == Activations && !strings.HasPrefix(name, "gathered") && !strings.HasPrefix(name, "whole") {
		return name
	}
	for _, slot := range u.Slots {
		if from == int64(slot.Off) && to == int64(slot.Off+slot.Len()) && b.Bytes == int64(u.Len)*t.Type.Size() {
			return name + " of " + strings.TrimPrefix(slot.Name, "model.")
		}
	}
	if t.Bytes() < b.Bytes {
		return fmt.Sprintf("%s[%d:%d]", name, from, to)
	}
	return name
}
