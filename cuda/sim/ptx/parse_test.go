package ptx

import (
	"strings"
	"testing"
)

func TestWhatIsNotKnownIsRefusedByNameAndLine(t *testing.T) {
	for name, c := range map[string]struct{ before, body, want string }{
		"an unknown instruction":         {"", "frobnicate.s32 %r1, %r2;", "line 18: unknown instruction frobnicate.s32"},
		"a line after a long comment":    {"", "/* one\ntwo\n*/ // three\nfoo;", "line 21: unknown instruction foo"},
		"an unknown form":                {"", "\nadd.sat.cc.s32 %r1, %r2, %r3;", "line 19: add.sat.cc.s32 %r1, %r2, %r3: unknown form add.sat.cc.s32"},
		"half precision":                 {"", "fma.rn.f16 %h1, %h2, %h3, %h4;", "unknown form fma.rn.f16"},
		"a product of another type":      {"", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r1,%r1,%r1}, {%r1,%r1}, {%f5,%f6,%f7,%f8};", "unknown form mma"},
		"a product with an operand less": {"", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r1,%r1}, {%r1,%r1}, {%f5,%f6,%f7,%f8};", "operand 2 has 4 registers, and not 3"},
		"a register of another width":    {"", "add.s64 %rd1, %rd2, %r3;", "register %r3 has 32 bits where 64 are wanted"},
		"a result of another width":      {"", "add.s32 %rd1, %r2, %r3;", "register %rd1 has 64 bits where 32 are written"},
		"a register nobody declared":     {"", "add.s32 %r1, %r2, %x3;", "%x3 is not declared"},
		"an operand too few":             {"", "add.s32 %r1, %r2;", "3 operands, and not 2"},
		"a label that is not there":      {"", "bra NOWHERE;", "no label NOWHERE"},
		"a list that is not there":       {"", "A: brx.idx %r1, A;", "no list of targets A"},
		"a label twice":                  {"", "A:\nA:\n", "label A is there twice"},
		"a guard that is no predicate":   {"", "@%r1 add.s32 %r1, %r2, %r3;", "%r1 is no predicate"},
		"a call":                         {"", "call (%r1), f, (%r2);", "unknown instruction call"},
		"a function":                     {".func f() { ret; }", "", ".func is not supported"},
		"an unknown special register":    {"", "mov.u32 %r1, %smid;", "%smid is not declared"},
		"a store to parameters":          {"", "st.param.u32 [in], %r1;", "param memory cannot be written"},
		"a copy of an odd size":          {".shared .b8 s[32];", "cp.async.cg.shared.global [s], [%rd1], 8;", "cg 16"},
		"a vector that is too wide":      {"", "ld.global.v4.u64 {%rd1,%rd2,%rd3,%rd4}, [%rd1];", "unknown form ld.global.v4.u64"},
		"a comparison that is not one":   {"", "setp.lt.b32 %p1, %r1, %r2;", "unknown form setp.lt.b32"},
		"an address without brackets":    {"", "ld.global.u32 %r1, %rd1;", "an address in brackets is wanted"},
		"something behind the end":       {"", "add.s32 %r1, %r2, %r3 %r4;", "where an instruction should end"},
		"a string without an end":        {"", `.pragma "nounroll;`, "line 18: a string does not end"},
		"a comment without an end":       {"", "/* it goes on", "a comment does not end"},
		"a number that is none":          {"", "mov.u32 %r1, 0xzz;", `"0xzz" is no number`},
		"a kernel without an end":        {"", "{", "kernel k does not end"},
		"registers of a strange type":    {"", ".reg .b128 %q;", `registers of type ".b128" are not supported`},
		"a register twice":               {"", ".reg .b32 %r1;", "register %r1 is there twice"},
		"more values than room":          {".const .b8 c[2] = {1, 2, 3};", "", "c has more values than room"},
	} {
		if _, err := Parse("bad.ptx", module(c.before, c.body)); err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "bad.ptx: line ") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	for text, want := range map[string]string{
		"":                                   "a module begins with .version",
		".version 8.2\n.address_size 32":     "addresses are 64 bits wide",
		"hello":                              `"hello" where a directive should be`,
		".version 8.2\n.entry k":             "kernel k has no body",
		".version 8.2\n.entry k{}\n.entry k": "kernel k is there twice",
	} {
		if _, err := Parse("bad.ptx", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func TestAModuleTellsItsKernelsAndTheirParameters(t *testing.T) {
	m, err := Parse("m.ptx", `.version 8.2
.target sm_80, debug
.address_size 64
/* two
lines */
.extern .shared .align 16 .b8 dyn[];
.visible .entry a(
	.param .u32 a_param_0,
	.param .align 8 .b8 a_param_1[24], // after a gap
	.param .u64 .ptr .global .align 16 a_param_2,
	.param .b8 a_param_3
)
.maxntid 32, 2, 1
.minnctapersm 2
{
	.shared .align 4 .b8 s[20];
	.local .align 8 .b8 d[40];
	.reg .b32 %r<3>;
	mov.u32 %r1, dyn;
	ret;
}
.entry b { ret; }
`)
	if err != nil {
		t.Fatal(err)
	}
	a := m.Kernels["a"]
	want := []Param{{"a_param_0", 4, 4, 0}, {"a_param_1", 24, 8, 8}, {"a_param_2", 8, 8, 32}, {"a_param_3", 1, 1, 40}}
	if m.Version != "8.2" || m.Target != "sm_80" || len(m.Kernels) != 2 || m.Kernels["b"] == nil {
		t.Errorf("%+v", m)
	}
	if a.ArgsSize != 41 || a.MaxThreads != 64 || a.MinBlocks != 2 || a.Shared != 20 || a.Local != 40 || len(a.Params) != len(want) {
		t.Fatalf("%+v", a)
	}
	for i, p := range want {
		if a.Params[i] != p {
			t.Errorf("parameter %d is %+v, want %+v", i, a.Params[i], p)
		}
	}
}

func TestDynamicSharedMemoryFollowsTheStatic(t *testing.T) {
	k := kernel(t, ".extern .shared .align 16 .b8 dyn[];\n.shared .align 4 .b8 s[20];", `
mov.u32 %r2, dyn;
mov.u32 %r3, s;
sub.u32 %r4, %r2, %r3;
st.shared.v4.u32 [%r2+16], {%r4, %r4, %r4, %r4};
ld.shared.u32 %r5, [dyn+28];
st.global.u32 [%rd2], %r5;
st.shared.u32 [dyn+32], %r4;`)
	out, err := launch(k, Launch{Shared: 32}, nil, 4)
	if f := mustFail(t, err); f.Text != "st.shared.u32 [dyn+32], %r4" || word(out, 0) != 32 {
		t.Errorf("%v, %v", out, f)
	}
	if _, err := launch(k, Launch{Shared: 36}, nil, 4); err != nil {
		t.Error(err)
	}
}

func TestNamesOfABlockHideThoseAroundIt(t *testing.T) {
	r := perThread(t, `
mov.u32 %r3, 1;
{ .reg .b32 %r3; .reg .pred p; mov.u32 %r3, 5; setp.eq.u32 p, %r3, 5; @p bra L; trap; L: mov.u32 %r4, %r3; }
{ .reg .pred p; setp.ne.u32 p, %r3, 1; @p bra L; bra M; L: trap; M: }
mad.lo.u32 %r9, %r4, 10, %r3;`, Launch{})
	for i, v := range r {
		if v != 51 {
			t.Fatalf("lane %d: %d, want 51", i, v)
		}
	}
}

// BenchmarkParse is of a text of about 1,600 lines.
func BenchmarkParse(b *testing.B) {
	b.SetBytes(int64(len(gemmText)))
	for b.Loop() {
		if _, err := Parse("gemm.ptx", gemmText); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(gemmText)
	f.Add(module(".const .align 4 .b8 c[8] = {1, 2};\n.extern .shared .align 16 .b8 dyn[];", "{ .reg .pred p; setp.lt.and.s32 p|_, %r1, -5, !%p1; @!p bra L; L: }\nld.global.v2.f32 {%f1,%f2}, [%rd1+-8];"))
	f.Add(module("", "cp.async.ca.shared.global [%r1], [%rd1], 4, %r2;\nbar.red.popc.u32 %r1, 0, %p1;\nmov.b64 {%r1,%r2}, %rd1;\nbfe.s64 %rd1, %rd2, %r1, 3;"))
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Parse("fuzz.ptx", text)
		if err != nil {
			return
		}
		for _, k := range m.Kernels { // what was accepted may be wrong, and must not bring down the interpreter
			l := Launch{Grid: [3]uint32{2, 1, 1}, Block: [3]uint32{40, 1, 1}, Args: make([]byte, k.ArgsSize), Shared: 64, Limit: 200}
			_ = k.Run(l, Regions{{Base: 1 << 20, Bytes: make([]byte, 4096), Name: "x"}})
		}
	})
}
