package mutate

import (
	"slices"
	"strings"
	"testing"
)

func TestWhatNoInputCanShowIsNoMutant(t *testing.T) {
	for name, c := range map[string]struct {
		code    string
		changed string // a part of the instruction that may or may not have mutants
		kind    Kind
		want    int
	}{
		"a number of bf16 is rounded": {
			"shl.b32 %r1, %r2, 16; mov.b32 %f1, %r1; mov.f32 %f2, 0f3F800000; cvt.rn.bf16x2.f32 %r3, %f1, %f2;", "cvt", RoundingChanged, 0,
		},
		"a sum is rounded":            {"add.f32 %f1, %f2, %f3; cvt.rn.bf16.f32 %rs1, %f1;", "cvt", RoundingChanged, 1},
		"one of two ways is a sum":    {"mov.f32 %f1, 0f00000000; add.f32 %f1, %f1, %f3; cvt.rn.bf16.f32 %rs1, %f1;", "cvt", RoundingChanged, 1},
		"a parameter is rounded":      {"ld.param.f32 %f1, [k]; cvt.rn.bf16.f32 %rs1, %f1;", "cvt", RoundingChanged, 1},
		"what nobody knows, likewise": {"cvt.rn.bf16.f32 %rs1, %f1;", "cvt", RoundingChanged, 1},
		"a square has no sign":        {"and.b32 %r1, %r2, -65536; mov.b32 %f1, %r1; fma.rn.f32 %f3, %f1, %f1, %f2;", "and", ImmediateChanged, 0},
		"a product has":               {"and.b32 %r1, %r2, -65536; mov.b32 %f1, %r1; fma.rn.f32 %f3, %f1, %f2, %f2;", "and", ImmediateChanged, 1},
		"and so has a sum":            {"and.b32 %r1, %r2, -65536; mov.b32 %f1, %r1; fma.rn.f32 %f3, %f1, %f1, %f1;", "and", ImmediateChanged, 1},
		"a byte of nothing": {
			"selp.b32 %r1, 16, 0, %p1; cp.async.cg.shared.global [%r2], [%rd1], 16, %r1;", "selp", ImmediateChanged, 1, // a byte more than there are
		},
		"the address of nothing": {
			"setp.lt.s32 %p1, %r3, %r4; selp.b32 %r5, %r3, 0, %p1; mul.wide.s32 %rd2, %r5, 4; add.s64 %rd1, %rd3, %rd2; " +
				"selp.b32 %r1, 16, 0, %p1; cp.async.cg.shared.global [%r2], [%rd1], 16, %r1;", "selp.b32 %r5", ImmediateChanged, 0,
		},
		"the address of what another predicate chooses": {
			"setp.lt.s32 %p1, %r3, %r4; setp.lt.s32 %p2, %r3, %r6; selp.b32 %r5, %r3, 0, %p1; mul.wide.s32 %rd2, %r5, 4; add.s64 %rd1, %rd3, %rd2; " +
				"selp.b32 %r1, 16, 0, %p2; cp.async.cg.shared.global [%r2], [%rd1], 16, %r1;", "selp.b32 %r5", ImmediateChanged, 1,
		},
		"an address that is loaded from, too": {
			"setp.lt.s32 %p1, %r3, %r4; selp.b32 %r5, %r3, 0, %p1; mul.wide.s32 %rd2, %r5, 4; add.s64 %rd1, %rd3, %rd2; ld.global.u32 %r7, [%rd1]; " +
				"selp.b32 %r1, 16, 0, %p1; cp.async.cg.shared.global [%r2], [%rd1], 16, %r1;", "selp.b32 %r5", ImmediateChanged, 1,
		},
		"an address in shared memory": {
			"setp.lt.s32 %p1, %r3, %r4; selp.b32 %r5, %r3, 0, %p1; " +
				"selp.b32 %r1, 16, 0, %p1; cp.async.cg.shared.global [%r5], [%rd1], 16, %r1;", "selp.b32 %r5", ImmediateChanged, 1,
		},
		"bits behind the end": {"bfi.b32 %r1, %r2, %r3, 3, 29;", "bfi", ImmediateChanged, 1}, // where they begin
		"bits within":         {"bfi.b32 %r1, %r2, %r3, 3, 28;", "bfi", ImmediateChanged, 2},
		"a negative index is rounded towards zero": {
			"shr.s32 %r1, %r2, 31; shr.u32 %r3, %r1, 26; add.s32 %r4, %r2, %r3;", "shr.u32", ShiftChanged, 0,
		},
		"an index is halved": {"shr.u32 %r3, %r2, 31; add.s32 %r4, %r2, %r3; shr.s32 %r5, %r4, 1;", "shr.u32", ShiftChanged, 0},
		"a sign is read":     {"shr.u32 %r3, %r2, 31; add.s32 %r4, %r1, %r3;", "shr.u32", ShiftChanged, 1},
		"any number but zero": {
			"selp.u32 %r1, 1, 0, %p1; setp.ne.u32 %p2, %r1, 0; setp.eq.s32 %p3, %r1, 0;", "selp", ImmediateChanged, 1, // that of zero
		},
		"one":                {"selp.u32 %r1, 1, 0, %p1; setp.ne.u32 %p2, %r1, 1;", "selp", ImmediateChanged, 2},
		"a number to add":    {"selp.u32 %r1, 1, 0, %p1; setp.ne.u32 %p2, %r1, 0; add.u32 %r2, %r2, %r1;", "selp", ImmediateChanged, 2},
		"a part of an index": {"shr.u32 %r3, %r2, 26; add.s32 %r4, %r2, %r3;", "shr.u32", ShiftChanged, 1},
	} {
		text := ".visible .entry k(\n)\n{\n" + strings.ReplaceAll(c.code, "; ", ";\n") + "\n}\n"
		ms := slices.DeleteFunc(Read("k", text).Mutants(), func(m Mutant) bool { return m.Kind != c.kind || !strings.HasPrefix(m.Before, c.changed) })
		if len(ms) != c.want {
			t.Errorf("%s: %v, want %d", name, ms, c.want)
		}
	}
}
