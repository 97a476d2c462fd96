package ptx

import (
	"math/bits"
	"slices"
	"strings"
)

// What the lanes of a warp tell each other.
var warpDecoders = map[string]func(d *decoder, in *inst) error{
	"shfl": decodeShuffle, "vote": decodeVote, "activemask": decodeActiveMask, "match": decodeMatch, "redux": decodeRedux,
	"mma": decodeMma, "movmatrix": decodeMovmatrix,
}

// decodeShuffle decodes shfl.sync d|p, a, b, c, members.
func decodeShuffle(d *decoder, in *inst) error {
	s := d.s
	if len(s.mods) != 3 || s.mods[0] != "sync" || s.mods[2] != "b32" {
		return d.unknown()
	}
	mode := slices.Index([]string{"up", "down", "bfly", "idx"}, s.mods[1])
	if mode < 0 {
		return d.unknown()
	}
	if err := d.count(5); err != nil {
		return err
	}
	in.kind = int32(mode)
	to := s.args[0]
	if to.kind == operandPair {
		in.vec = make([]int32, 1)
		if err := d.dest(&in.vec[0], to.list[1], 1); err != nil {
			return err
		}
		to = to.list[0]
	}
	if err := d.dest(&in.d, to, 32); err != nil {
		return err
	}
	for i, f := range []*int32{&in.a, &in.b, &in.c, &in.e} {
		if err := d.source(f, s.args[1+i], 32); err != nil {
			return err
		}
	}
	in.control, in.run = members, shuffle
	return nil
}

func shuffle(w *warp, in *inst, m uint32) {
	a, b, c := &w.r32[in.a], &w.r32[in.b], &w.r32[in.c]
	r := &w.aside32
	var inside uint32
	for i := range uint32(32) {
		if m>>i&1 == 0 {
			continue
		}
		by, clamp, segment := b[i]&31, c[i]&31, c[i]>>8&31
		low := i & segment
		high := low | clamp&^segment
		var j uint32
		var ok bool
		switch in.kind {
		case 0:
			j = i - by
			ok = int32(j) >= int32(high)
		case 1:
			j = i + by
			ok = j <= high
		case 2:
			j = i ^ by
			ok = j <= high
		default:
			j = low | by&^segment
			ok = j <= high
		}
		if !ok {
			j = i
		}
		inside |= bit(ok) << i
		if m>>j&1 == 0 {
			w.fail(Undefined, int(i), "lane %d reads the value of lane %d, which does not take part (lanes %08x do)", i, j, m)
			return
		}
		r[i] = a[j]
	}
	merge32(&w.r32[in.d], r, m)
	if len(in.vec) > 0 {
		p := &w.p[in.vec[0]]
		*p = *p&^m | inside&m
	}
}

// decodeVote decodes vote.sync.
func decodeVote(d *decoder, in *inst) error {
	s := d.s
	if len(s.mods) != 3 || s.mods[0] != "sync" {
		return d.unknown()
	}
	if err := d.count(3); err != nil {
		return err
	}
	width := 1
	switch s.mods[1] + "." + s.mods[2] {
	case "all.pred":
		in.run = vote(func(votes, m uint32) bool { return votes == m })
	case "any.pred":
		in.run = vote(func(votes, _ uint32) bool { return votes != 0 })
	case "uni.pred":
		in.run = vote(func(votes, m uint32) bool { return votes == m || votes == 0 })
	case "ballot.b32":
		width = 32
		in.run = func(w *warp, in *inst, m uint32) {
			votes := (w.p[in.a] ^ in.not) & m
			for i := range w.r32[in.d] {
				if m>>i&1 != 0 {
					w.r32[in.d][i] = votes
				}
			}
		}
	default:
		return d.unknown()
	}
	if err := d.dest(&in.d, s.args[0], width); err != nil {
		return err
	}
	p := s.args[1]
	if p.not {
		p.not, in.not = false, allLanes
	}
	if p.kind == operandImmediate {
		p.bits = uint64(bit(p.bits != 0))
	}
	if err := d.source(&in.a, p, 1); err != nil {
		return err
	}
	in.control = members
	return d.source(&in.e, s.args[2], 32)
}

func vote(f func(votes, m uint32) bool) func(w *warp, in *inst, m uint32) {
	return func(w *warp, in *inst, m uint32) {
		t := -bit(f((w.p[in.a]^in.not)&m, m))
		w.p[in.d] = w.p[in.d]&^m | t&m
	}
}

func decodeActiveMask(d *decoder, in *inst) error {
	if err := d.only("b32"); err != nil {
		return err
	}
	if err := d.count(1); err != nil {
		return err
	}
	in.run = func(w *warp, in *inst, m uint32) {
		for i := range w.r32[in.d] {
			if m>>i&1 != 0 {
				w.r32[in.d][i] = m
			}
		}
	}
	return d.dest(&in.d, d.s.args[0], 32)
}

// decodeMatch decodes match.any.sync and match.all.sync.
func decodeMatch(d *decoder, in *inst) error {
	s := d.s
	if len(s.mods) != 3 || s.mods[1] != "sync" || s.mods[0] != "any" && s.mods[0] != "all" {
		return d.unknown()
	}
	n, kind := typeBits(s.mods[2])
	if n < 32 || kind != 'b' {
		return d.unknown()
	}
	if err := d.count(3); err != nil {
		return err
	}
	to := s.args[0]
	if to.kind == operandPair {
		if s.mods[0] == "any" {
			return d.unknown()
		}
		in.vec = make([]int32, 1)
		if err := d.dest(&in.vec[0], to.list[1], 1); err != nil {
			return err
		}
		to = to.list[0]
	}
	if err := d.dest(&in.d, to, 32); err != nil {
		return err
	}
	if err := d.source(&in.a, s.args[1], n); err != nil {
		return err
	}
	all := s.mods[0] == "all"
	in.run = func(w *warp, in *inst, m uint32) {
		value := func(i int) uint64 {
			if n == 64 {
				return w.r64[in.a][i]
			}
			return uint64(w.r32[in.a][i])
		}
		for i := range 32 {
			var same uint32
			for j := range 32 {
				same |= bit(m>>j&1 != 0 && value(i) == value(j)) << j
			}
			if all && same != m {
				same = 0
			}
			w.aside32[i] = same
		}
		if len(in.vec) > 0 {
			p := &w.p[in.vec[0]]
			*p = *p&^m | m&-bit(w.aside32[bits.TrailingZeros32(m)] == m)
		}
		merge32(&w.r32[in.d], &w.aside32, m)
	}
	in.control = members
	return d.source(&in.e, s.args[2], 32)
}

// decodeRedux decodes redux.sync, a reduction of integers over a warp.
func decodeRedux(d *decoder, in *inst) error {
	s := d.s
	if len(s.mods) != 3 || s.mods[0] != "sync" {
		return d.unknown()
	}
	var f func(x, y uint32) uint32
	switch strings.Join(s.mods[1:], ".") {
	case "add.s32", "add.u32":
		f = func(x, y uint32) uint32 { return x + y }
	case "min.u32":
		f = func(x, y uint32) uint32 { return min(x, y) }
	case "max.u32":
		f = func(x, y uint32) uint32 { return max(x, y) }
	case "min.s32":
		f = func(x, y uint32) uint32 { return uint32(min(int32(x), int32(y))) }
	case "max.s32":
		f = func(x, y uint32) uint32 { return uint32(max(int32(x), int32(y))) }
	case "and.b32":
		f = func(x, y uint32) uint32 { return x & y }
	case "or.b32":
		f = func(x, y uint32) uint32 { return x | y }
	case "xor.b32":
		f = func(x, y uint32) uint32 { return x ^ y }
	default:
		return d.unknown()
	}
	if err := d.count(3); err != nil {
		return err
	}
	if err := d.dest(&in.d, s.args[0], 32); err != nil {
		return err
	}
	if err := d.source(&in.a, s.args[1], 32); err != nil {
		return err
	}
	in.run = func(w *warp, in *inst, m uint32) {
		first := bits.TrailingZeros32(m)
		v := w.r32[in.a][first]
		for i := first + 1; i < 32; i++ {
			if m>>i&1 != 0 {
				v = f(v, w.r32[in.a][i])
			}
		}
		for i := range w.r32[in.d] {
			if m>>i&1 != 0 {
				w.r32[in.d][i] = v
			}
		}
	}
	in.control = members
	return d.source(&in.e, s.args[2], 32)
}
