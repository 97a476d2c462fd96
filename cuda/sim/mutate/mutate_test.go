package mutate

import (
	"slices"
	"strings"
	"testing"
)

func TestAnInstructionHasTheMistakesOfItsKind(t *testing.T) {
	for line, want := range map[string][]string{
		"	bar.sync 	0;":                    {"barrier dropped: "},
		"	bar.red.or.pred 	%p1, 0, %p2;":   {"barrier dropped: mov.pred %p1, %p2;"},
		"	bar.red.and.pred 	%p1, 0, !%p2;": {"barrier dropped: not.pred %p1, %p2;"},
		"	bar.warp.sync 	-1;":              {"warp barrier dropped: "},
		"	cp.async.wait_group 0;":          {"wait dropped: ", "wait count changed: cp.async.wait_group 1;"},
		"	cp.async.commit_group;":          {"commit dropped: "},
		"	cp.async.cg.shared.global [%r1], [%rd2+8], 16, %r3;": {
			"copy dropped: ", "index shifted: cp.async.cg.shared.global [%r1+16], [%rd2+8], 16, %r3;",
			"index shifted: cp.async.cg.shared.global [%r1], [%rd2+24], 16, %r3;",
		},
		"	@%p1 st.global.v4.u16 	[%rd1], {%rs1, %rs2, %rs3, %rs4};": {
			"predicate lost: st.global.v4.u16 [%rd1], {%rs1, %rs2, %rs3, %rs4};",
			"predicate negated: @!%p1 st.global.v4.u16 [%rd1], {%rs1, %rs2, %rs3, %rs4};",
			"store dropped: ", "index shifted: @%p1 st.global.v4.u16 [%rd1+8], {%rs1, %rs2, %rs3, %rs4};",
		},
		"	atom.global.or.b32 	%r1, [%rd1], 1;":  {"store dropped: ", "index shifted: atom.global.or.b32 %r1, [%rd1+4], 1;"},
		"	ld.param.u64 	%rd23, [k_param_0+16];": {"index shifted: ld.param.u64 %rd23, [k_param_0+24];"},
		"	ld.shared.f32 	%f1, [%rd1+-4];":       {"index shifted: ld.shared.f32 %f1, [%rd1+0];"},
		"	ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r3];": {
			"index shifted: ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r3+16];",
			"fragments swapped: ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r2, %r1}, [%r3];",
		},
		"	mma.sync.x {%f1, %f2}, {%r1, %r2}, {%r3, %r3}, {%f1, %f2};": {
			"fragments swapped: mma.sync.x {%f2, %f1}, {%r1, %r2}, {%r3, %r3}, {%f1, %f2};",
			"fragments swapped: mma.sync.x {%f1, %f2}, {%r2, %r1}, {%r3, %r3}, {%f1, %f2};",
		},
		"	shfl.sync.bfly.b32 	%r1|%p1, %r2, 16, 31, -1;":  {"shuffle changed: shfl.sync.bfly.b32 %r1|%p1, %r2, 8, 31, -1;"},
		"	shfl.sync.up.b32 	%r1|%p1, %r2, 1, 0, -1;":      {"shuffle changed: shfl.sync.up.b32 %r1|%p1, %r2, 2, 0, -1;"},
		"	shfl.sync.bfly.b32 	%r1|%p1, %r2, %r3, 31, -1;": {"shuffle changed: shfl.sync.up.b32 %r1|%p1, %r2, %r3, 31, -1;"},
		"	shfl.sync.up.b32 	%r1|%p1, %r2, %r3, 0, -1;":    {"shuffle changed: shfl.sync.down.b32 %r1|%p1, %r2, %r3, 0, -1;"},
		"	shl.b32 	%r1, %r2, 4;":                          {"shift count changed: shl.b32 %r1, %r2, 5;"},
		"	shr.u32 	%r1, %r2, %r3;":                        {"operands swapped: shr.u32 %r1, %r3, %r2;"},
		"	sub.f32 	%f1, %f2, %f3;":                        {"operands swapped: sub.f32 %f1, %f3, %f2;"},
		"	sub.f32 	%f1, %f2, %f2;":                        nil,
		"	add.f32 	%f1, %f2, %f3;":                        nil,
		"	fma.rn.f32 	%f1, %f2, %f3, %f4;":                {"operands swapped: fma.rn.f32 %f1, %f2, %f4, %f3;"},
		"	add.s64 	%rd1, %rd2, 24;":                       {"index shifted: add.s64 %rd1, %rd2, 32;"},
		"	add.s32 	%r1, %r2, -1;":                         {"index shifted: add.s32 %r1, %r2, 0;"},
		"	and.b32  	%r1, %r2, 3;":                         {"immediate changed: and.b32 %r1, %r2, 1;"},
		"	mov.f32 	%f1, 0f00000000;":                      {"immediate changed: mov.f32 %f1, 0f3F800000;"},
		"	mov.f32 	%f1, 0fFF800000;":                      {"immediate changed: mov.f32 %f1, 0f00000000;"},
		"	and.b64 	%rd1, %rd2, -4294967296;":              nil,
		"	and.b32 	%r1, %r2, -65536;":                     {"immediate changed: and.b32 %r1, %r2, 2147418112;"},
		"	and.b32 	%r1, %r2, -4;":                         {"immediate changed: and.b32 %r1, %r2, -8;"},
		"	shr.s32 	%r1, %r2, 31;":                         nil,
		"	shr.u32 	%r1, %r2, 31;":                         {"shift count changed: shr.u32 %r1, %r2, 32;"},
		"	mul.wide.u32 	%rd1, %r2, 4;":                    {"immediate changed: mul.wide.u32 %rd1, %r2, 2;"},
		"	mov.u32 	%r1, 16;":                              {"immediate changed: mov.u32 %r1, 32;"},
		"	mov.f64 	%fd1, 0d0000000000000000;":             {"immediate changed: mov.f64 %fd1, 0d3FF0000000000000;"},
		"	selp.b32 	%r1, %r2, %r3, %p1;":                  {"operands swapped: selp.b32 %r1, %r3, %r2, %p1;"},
		"	max.f32 	%f1, %f2, %f3;":                        {"operator changed: min.f32 %f1, %f2, %f3;"},
		"	or.pred  	%p1, %p2, %p3;":                       {"operator changed: and.pred %p1, %p2, %p3;"},
		"	setp.eq.f32 	%p1, %f1, %f2;":                    {"comparison moved: setp.ne.f32 %p1, %f1, %f2;"},
		"	cvt.rn.bf16.f32 %rs1, %f1;":                     {"rounding changed: cvt.rz.bf16.f32 %rs1, %f1;"},
		"	setp.lt.s32 	%p1, %r1, %r2;":                    {"comparison moved: setp.le.s32 %p1, %r1, %r2;", "operands swapped: setp.lt.s32 %p1, %r2, %r1;"},
		"	@%p1 bra 	$L__BB0_1;":                           {"predicate lost: bra $L__BB0_1;", "predicate negated: @!%p1 bra $L__BB0_1;"},
		"	@!%p1 bra 	$L__BB0_1;":                          {"predicate lost: bra $L__BB0_1;", "predicate negated: @%p1 bra $L__BB0_1;"},
		"	cvt.rn.bf16x2.f32 %r1, %f1, %f2;":               {"operands swapped: cvt.rn.bf16x2.f32 %r1, %f2, %f1;", "rounding changed: cvt.rz.bf16x2.f32 %r1, %f1, %f2;"},
		"	mad.lo.s32 	%r1, %r2, %r3, 1;":                  {"operands swapped: mad.lo.s32 %r1, %r2, 1, %r3;", "index shifted: mad.lo.s32 %r1, %r2, %r3, 2;"},
		"	.reg .pred 	%p<60>;":                            nil,
		"	.loc	1 156 0":                                   nil,
		"$L__BB0_1:":                                      nil,
		"	// begin inline asm":                            nil,
		"	ret;":                                           nil,
		"	bra.uni 	$L__BB0_2;":                            nil,
		"	mov.u64 	%rd1, _ZZ4sums;":                       nil,
	} {
		var got []string
		if in, ok := parse(line); ok {
			for _, c := range changes(in) {
				got = append(got, string(c.kind)+": "+c.after)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s\ngot  %q\nwant %q", strings.TrimSpace(line), got, want)
		}
	}
}

const text = `.version 8.2
.target sm_80
.visible .entry one(
	.param .u64 p
)
{
	.loc	1 7 3
	bar.sync 	0;
	.loc	2 9 3, function_name $L, inlined_at 1 8 1
	bar.sync 	0;
	ret;
}
.visible .entry two(
	.param .u64 p
)
{
	bar.warp.sync 	-1;
	@%p1 bra 	$L;
	ret;
}
	.file	1 "one.cu"
	.file	2 "common.cuh"
`

func TestAMutantNamesItsPlaces(t *testing.T) {
	var got []string
	for _, m := range Read("m.ptx", text).Mutants() {
		got = append(got, m.String())
	}
	want := []string{
		"m.ptx:8 one, one.cu:7, barrier dropped: bar.sync 0;",
		"m.ptx:10 one, common.cuh:9 one.cu:8, barrier dropped: bar.sync 0;",
		"m.ptx:17 two,, warp barrier dropped: bar.warp.sync -1;",
		"m.ptx:18 two,, predicate lost: @%p1 bra $L; → bra $L;",
		"m.ptx:18 two,, predicate negated: @%p1 bra $L; → @!%p1 bra $L;",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestAMutantStandsAloneInItsPlace(t *testing.T) {
	m := Read("m.ptx", text)
	all := m.Mutants()
	got, want := strings.Split(m.With(all[3]), "\n"), strings.Split(text, "\n")
	for i, line := range got[:len(want)] {
		switch {
		case i >= 2 && i < 12: // the other kernel
			want[i] = ""
		case i == 17:
			want[i] = "bra $L;"
		}
		if line != want[i] {
			t.Errorf("line %d is %q, want %q", i+1, line, want[i])
		}
	}
}

func TestWhatIsChosenIsSpreadOverKindsModulesAndKernels(t *testing.T) {
	var all []Mutant
	for _, module := range []string{"a", "b", "c"} {
		for _, kernel := range []string{"f32", "bf16"} {
			for _, kind := range []Kind{StoreDropped, ShiftChanged, PredicateLost} {
				for i := range 5 {
					all = append(all, Mutant{Module: module, Kernel: module + kernel, Kind: kind, Ordinal: i, Line: len(all)})
				}
			}
		}
	}
	chosen := Choose(all, 9)
	count := map[any]int{}
	for _, m := range chosen {
		count[m.Kind]++
		count[m.Module]++
		if m.Ordinal != 2 {
			t.Errorf("%v is number %d of its like", m, m.Ordinal)
		}
	}
	for what, n := range count {
		if n != 3 {
			t.Errorf("%d of %v, want 3", n, what)
		}
	}
	if len(chosen) != 9 || len(count) != 6 || !slices.IsSortedFunc(chosen, func(a, b Mutant) int { return a.Line - b.Line }) {
		t.Errorf("%v", chosen)
	}
	// A kernel that has more of a kind changes what is chosen of it alone.
	more := append(slices.Clone(all), Mutant{Module: "a", Kernel: "af32", Kind: StoreDropped, Ordinal: 5, Line: len(all)}, Mutant{Module: "a", Kernel: "af32", Kind: StoreDropped, Ordinal: 6, Line: len(all) + 1})
	for _, m := range Choose(more, 9) {
		if !slices.ContainsFunc(chosen, func(c Mutant) bool { return c.String() == m.String() }) && (m.Kernel != "af32" || m.Kind != StoreDropped) {
			t.Errorf("%v is new", m)
		}
	}
	if n := len(Choose(all, 1000)); n != 18 {
		t.Errorf("%d of 18 kernels and kinds", n)
	}
}
