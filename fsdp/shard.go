package fsdp

import (
	"strings"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
)

// enter begins with a unit: its weights are gathered, unless they are there.
func (b *builder) enter(unit int) {
	p := b.plan
	b.unit = unit
	b.segments = append(b.segments, segment{})
	if p.lasting(unit) != 0 || b.weights[unit] != 0 {
		return
	}
	u := p.Units[unit]
	own, whole := p.held(u.Len, p.rows.params), b.Value("gathered weights", p.Type, u.Len)
	b.ahead = true
	b.set(whole.Slice(int64(own.from), int64(own.len())), p.shard(unit))
	b.collect(whole, 0, p.rows.params, spread{})
	b.ahead = false
	b.weights[unit] = whole.Buf
}

// gatherMaster emits the gathers of a unit's master weights.
func (p *Plan) gatherMaster(unit int) func(*builder) {
	return func(b *builder) {
		b.unit = unit
		u := p.Units[unit]
		own, whole := p.held(u.Len, p.rows.end), b.Value("whole weights", device.F32, u.Len)
		b.set(whole.Slice(int64(own.from), int64(own.len())), p.flat(p.master[unit], device.F32, 0, own.len()))
		b.collect(whole, 0, p.rows.end, spread{})
		p.whole = append(p.whole, whole.Buf)
	}
}

// leave releases the unit's gathered weights, unless they are kept.
func (b *builder) leave(keep bool) {
	if !keep {
		delete(b.weights, b.unit)
	}
}

// shard returns what this rank holds of a unit's computing weights.
func (p *Plan) shard(unit int) device.Tensor {
	own := p.held(p.Units[unit].Len, p.rows.params)
	if p.copies[unit] != 0 {
		return p.copied(unit, own)
	}
	return p.flat(p.master[unit], device.F32, 0, own.len())
}

// set emits dst = src, rounded where dst is bf16.
func (b *builder) set(dst, src device.Tensor) {
	if dst.Type == src.Type {
		b.Emit("gather", &device.Copy{Src: src, Dst: dst, N: int(src.Len)})
		return
	}
	b.Emit("gather", &device.Cast{Src: src, Dst: dst, N: int(src.Len)})
}

// collect emits the gathers that turn t, which begins at element origin of the
// unit's vector and is spread as from, into to: across first, so that every
// gather's parts lie side by side.
func (b *builder) collect(t device.Tensor, origin int, from, to spread) {
	for _, a := range []Axis{Across, Within} {
		if from[a] != sharded || to[a] == sharded {
			continue
		}
		own := b.part(t, origin, from)
		from[a] = replicated
		b.step(Step{Op: &collective.AllGather{Own: own, Data: b.part(t, origin, from), Name: b.name("weights")}, Unit: b.unit, Cut: "gather", Axis: a})
	}
}

// part returns of t, which begins at element origin, what a rank holds of a
// vector that is spread so.
func (b *builder) part(t device.Tensor, origin int, sp spread) device.Tensor {
	e := b.plan.held(b.plan.Units[b.unit].Len, sp)
	return t.Slice(int64(e.from-origin), int64(e.len()))
}

func (b *builder) name(what string) string { return b.plan.Units[b.unit].Name + " " + what }

// copies returns where the unit's lasting computing weights are made: in their
// place, or where that is offloaded on the device.
func (b *builder) copies() device.Tensor {
	p, unit := b.plan, b.unit
	if p.copies[unit] == 0 {
		return device.Tensor{}
	}
	t := p.copied(unit, p.held(p.Units[unit].Len, p.rows.params))
	if p.offloaded(t) {
		return b.Value("computing weights on the device", t.Type, int(t.Len))
	}
	return t
}

// align emits what brings a unit's lasting computing weights in line, which are
// made in copies: this rank's part from its master weights, unless the optimizer
// has written it, and what others have.
func (b *builder) align(copies, master device.Tensor, own bool) {
	p, u := b.plan, b.plan.Units[b.unit]
	has, need := p.held(u.Len, p.rows.end), p.held(u.Len, p.rows.params)
	if own {
		b.set(copies.Slice(int64(has.from-need.from), int64(has.len())), master)
	}
	b.collect(copies, need.from, p.rows.end, p.rows.params)
	b.stored(p.copied(b.unit, need), copies)
}

// fetched returns t, or where it is offloaded a copy on the device.
func (b *builder) fetched(t device.Tensor) device.Tensor {
	if !b.plan.offloaded(t) {
		return t
	}
	on := b.Value(strings.TrimPrefix(b.plan.Buffers[t.Buf-1].Name, b.plan.Units[b.unit].Name+" ")+" on the device", t.Type, int(t.Len))
	b.ahead = true
	b.Emit("fetch", &device.Copy{Src: t, Dst: on, N: int(t.Len)})
	b.ahead = false
	return on
}

// stored emits t = on, where t is offloaded.
func (b *builder) stored(t, on device.Tensor) {
	if b.plan.offloaded(t) {
		b.Emit("store", &device.Copy{Src: on, Dst: t, N: int(t.Len)})
	}
}

// gradient returns the buffer of the unit's whole gradient of this micro-batch.
// Where it does not last, what lies between parameters is zeroed as it begins: it
// is added up too, and counts in the norm.
func (b *builder) gradient() device.Buf {
	if buf := b.grads[b.unit]; buf != 0 {
		return buf
	}
	p, u := b.plan, b.plan.Units[b.unit]
	buf := p.grad[b.unit]
	if p.rows.between.has(sharded) {
		buf = b.Value("whole gradient", device.F32, u.Len).Buf
	}
	if !p.Buffers[buf-1].Lasts {
		for _, g := range u.gaps() {
			b.Emit("reduce", &device.Fill{Dst: p.flat(buf, device.F32, g.from, g.len()), N: g.len()})
		}
	}
	b.grads[b.unit] = buf
	return buf
}

// settle ends a unit's backward: a gradient that does not last is added up over
// ranks, and this rank's part becomes, or is added to, what lasts.
func (b *builder) settle() {
	p, unit := b.plan, b.unit
	if !p.rows.between.has(sharded) {
		return
	}
	u := p.Units[unit]
	whole := p.flat(b.grads[unit], device.F32, 0, u.Len)
	lasting := p.gradient(unit, p.held(u.Len, p.rows.between))
	all := p.rows.between
	for a := range all {
		if all[a] == sharded {
			all[a] = partial
		}
	}
	if !b.add {
		b.sum(whole, 0, all, p.rows.between, lasting)
		return
	}
	b.sum(whole, 0, all, p.rows.between, device.Tensor{})
	b.Emit("reduce", &device.ReduceSum{Srcs: []device.Tensor{lasting, b.part(whole, 0, p.rows.between)}, Dst: lasting, N: int(lasting.Len)})
}

// sum emits the reductions that turn t, which begins at element origin and is
// spread as from, into to: within first, then across, so that there is one
// order of sums. The last one writes to out, where that is present.
func (b *builder) sum(t device.Tensor, origin int, from, to spread, out device.Tensor) {
	due := func() (list []Axis) {
		for _, a := range []Axis{Within, Across} {
			if from[a] == partial && to[a] != partial {
				list = append(list, a)
			}
		}
		return list
	}
	for axes := due(); len(axes) > 0; axes = due() {
		a := axes[0]
		data := b.part(t, origin, from)
		from[a] = to[a]
		if to[a] == replicated {
			b.step(Step{Op: &collective.AllReduce{Data: data, Name: b.name("gradient")}, Unit: b.unit, Cut: "reduce", Axis: a})
			continue
		}
		dst := b.part(t, origin, from)
		if len(axes) == 1 && !out.Absent() {
			dst = out
		}
		b.step(Step{Op: &collective.ReduceScatter{Data: data, Out: dst, Name: b.name("gradient")}, Unit: b.unit, Cut: "reduce", Axis: a})
	}
}

// agree emits the all-reduce of what ranks tell each other in a step.
func (p *Plan) agree(b *builder) {
	b.upload(p.agreed)
	for _, a := range []Axis{Within, Across} {
		if p.Mesh.Along(a) > 1 {
			b.step(Step{Op: &collective.AllReduce{Data: p.agreed, Name: "agreement"}, Cut: "agree", Axis: a})
		}
	}
	b.download(p.agreed)
}

// agreeLen is the numbers that ranks agree on: for each rank a squared norm and
// a loss, then the wishes to stop.
func agreeLen(ranks int) int { return 2*ranks + 1 }
