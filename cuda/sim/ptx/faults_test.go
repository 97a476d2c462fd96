package ptx

import (
	"strings"
	"testing"
)

func TestEveryPlantedFaultIsFoundWhereItIs(t *testing.T) {
	const sharedArray = ".shared .align 16 .b8 s[256];\n.shared .align 16 .b8 big[4096];\n"
	odd := "and.b32 %r2, %r1, 1;\nsetp.eq.u32 %p1, %r2, 1;\n" // odd lanes
	for name, c := range map[string]struct {
		body  string
		kind  Kind
		text  string // of the instruction
		lane  int
		what  string // part of the report
		shape Launch
	}{
		"a load behind the end of an allocation": {
			body: "mul.wide.u32 %rd3, %r1, 8;\nadd.s64 %rd3, %rd1, %rd3;\nld.global.u64 %rd4, [%rd3+16];",
			kind: OutOfBounds, text: "ld.global.u64 %rd4, [%rd3+16]", lane: 31, what: "no allocation holds address 0x100108",
		},
		"a store that begins inside and ends outside": {
			body: "st.global.v4.u32 [%rd1+256], {%r1, %r1, %r1, %r1};",
			kind: OutOfBounds, text: "st.global.v4.u32 [%rd1+256], {%r1, %r1, %r1, %r1}", what: "offset 256 of in, which has 264",
		},
		"an address of zero": {
			body: "mov.u64 %rd3, 0;\nld.global.u32 %r2, [%rd3];",
			kind: OutOfBounds, text: "ld.global.u32 %r2, [%rd3]", what: "no allocation holds address 0x0",
		},
		"memory that was freed": {
			body: "mov.u64 %rd3, 268435456;\nld.global.nc.u32 %r2, [%rd3];",
			kind: OutOfBounds, text: "ld.global.nc.u32 %r2, [%rd3]", what: "old was freed",
		},
		"a load at an odd address": {
			body: "cvt.u64.u32 %rd3, %r1;\nadd.s64 %rd3, %rd1, %rd3;\nld.global.u16 %h1, [%rd3];",
			kind: Misaligned, text: "ld.global.u16 %h1, [%rd3]", lane: 1, what: "2 bytes at 0x100001",
		},
		"a vector at half its alignment": {
			body: "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1+8];",
			kind: Misaligned, text: "ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd1+8]", what: "16 bytes",
		},
		"device memory that nobody has written": {
			body: "mul.wide.u32 %rd3, %r1, 4;\nadd.s64 %rd3, %rd2, %rd3;\nsetp.ne.u32 %p1, %r1, 7;\n@%p1 st.global.u32 [%rd3], %r1;\nld.global.u32 %r2, [%rd3];",
			kind: NeverWritten, text: "ld.global.u32 %r2, [%rd3]", lane: 7, what: "offset 28 of out",
		},
		"a part of device memory that nobody has written": {
			body: "st.global.u16 [%rd2], 1;\nld.global.u32 %r4, [%rd2];",
			kind: NeverWritten, text: "ld.global.u32 %r4, [%rd2]", what: "offset 0 of out",
		},
		"an atomic operation on memory that nobody has written": {
			body: "red.global.add.u32 [%rd2], 1;",
			kind: NeverWritten, text: "red.global.add.u32 [%rd2], 1", what: "offset 0 of out",
		},
		"shared memory that nobody has written": {
			body: "shl.b32 %r2, %r1, 2;\nmov.u32 %r3, s;\nadd.s32 %r3, %r3, %r2;\nsetp.lt.u32 %p1, %r1, 20;\n@%p1 st.shared.u32 [%r3], %r1;\nld.shared.u32 %r4, [%r3];",
			kind: NeverWritten, text: "ld.shared.u32 %r4, [%r3]", lane: 20, what: "offset 80",
		},
		"a part of shared memory that nobody has written": {
			body: "st.shared.u16 [s], 1;\nld.shared.u32 %r4, [s];",
			kind: NeverWritten, text: "ld.shared.u32 %r4, [s]",
		},
		"a byte of shared memory that nobody has written": {
			body: "st.shared.u8 [s], 1;\nld.shared.u8 %r4, [s];\nld.shared.u8 %r4, [s+1];",
			kind: NeverWritten, text: "ld.shared.u8 %r4, [s+1]",
		},
		"the first byte of a word that is written but for it": {
			body: "st.shared.u8 [s+1], 1;\nst.shared.u16 [s+2], 1;\nld.shared.u32 %r4, [s];",
			kind: NeverWritten, text: "ld.shared.u32 %r4, [s]",
		},
		"shared memory past the block's": {
			body: "mov.u32 %r3, big;\nst.shared.u32 [%r3+4096], %r1;",
			kind: OutOfBounds, text: "st.shared.u32 [%r3+4096], %r1", what: "at offset 4352 of 4352",
		},
		"shared memory before the block's": {
			body: "st.shared.u32 [s+-4], %r1;",
			kind: OutOfBounds, text: "st.shared.u32 [s+-4], %r1", what: "at offset -4 of",
		},
		"a shared address where a global one should be": {
			body: "mov.u64 %rd3, s;\nld.global.u32 %r2, [%rd3];",
			kind: OutOfBounds, text: "ld.global.u32 %r2, [%rd3]",
		},
		"a generic address past shared memory": {
			body: "mov.u64 %rd3, big;\ncvta.shared.u64 %rd4, %rd3;\nst.u32 [%rd4+4096], %r1;",
			kind: OutOfBounds, text: "st.u32 [%rd4+4096], %r1",
		},
		"copies that nobody waited for": {
			body: "mov.u32 %r3, s;\ncp.async.cg.shared.global [%r3], [%rd1], 16;\ncp.async.commit_group;\nld.shared.u32 %r4, [%r3];",
			kind: NeverWritten, text: "ld.shared.u32 %r4, [%r3]", what: "offset 0 that a cp.async of warp 0 lane 0 will write",
		},
		"a wait that leaves one group too many": {
			body: "mov.u32 %r3, s;\ncp.async.cg.shared.global [%r3], [%rd1], 16;\ncp.async.commit_group;\n" +
				"cp.async.cg.shared.global [%r3+16], [%rd1], 16;\ncp.async.commit_group;\ncp.async.wait_group 1;\nld.shared.u32 %r4, [%r3];\nld.shared.u32 %r5, [%r3+16];",
			kind: NeverWritten, text: "ld.shared.u32 %r5, [%r3+16]",
		},
		"a wait for what was never committed": {
			body: "mov.u32 %r3, s;\ncp.async.ca.shared.global [%r3], [%rd1], 4;\ncp.async.wait_group 0;\nld.shared.u32 %r4, [%r3];",
			kind: NeverWritten, text: "ld.shared.u32 %r4, [%r3]",
		},
		"a wait of some lanes for the copies of all": {
			body: odd + "shl.b32 %r2, %r1, 4;\nmov.u32 %r3, big;\nadd.s32 %r3, %r3, %r2;\ncp.async.cg.shared.global [%r3], [%rd1], 16;\n@%p1 cp.async.wait_all;\nld.shared.u32 %r4, [%r3];",
			kind: NeverWritten, text: "ld.shared.u32 %r4, [%r3]", what: "a cp.async of warp 0 lane 0 will write",
		},
		"an asynchronous copy of more than it has room for": {
			body: "mov.u32 %r3, s;\ncp.async.cg.shared.global [%r3], [%rd1], 16, 17;",
			kind: Undefined, text: "cp.async.cg.shared.global [%r3], [%rd1], 16, 17", what: "lane 0 copies 17 bytes into 16",
		},
		"an asynchronous copy from outside of an allocation": {
			body: "mov.u32 %r3, s;\ncp.async.cg.shared.global [%r3], [%rd1+272], 16;",
			kind: OutOfBounds, text: "cp.async.cg.shared.global [%r3], [%rd1+272], 16",
		},
		"an asynchronous copy to outside of shared memory": {
			body: "mov.u32 %r3, big;\ncp.async.cg.shared.global [%r3+4096], [%rd1], 16;",
			kind: OutOfBounds, text: "cp.async.cg.shared.global [%r3+4096], [%rd1], 16",
		},
		"a misaligned asynchronous copy": {
			body: "mov.u32 %r3, s;\ncp.async.cg.shared.global [%r3+8], [%rd1], 16;",
			kind: Misaligned, text: "cp.async.cg.shared.global [%r3+8], [%rd1], 16",
		},
		"a barrier that some lanes of a warp return before": {
			body: odd + "@%p1 ret;\nbar.sync 0;",
			kind: Divergent, text: "bar.sync 0", what: "lanes aaaaaaaa have returned",
		},
		"a barrier in one side of a branch, another in the other": {
			body: odd + "@%p1 bra B;\nbar.sync 1;\nbra C;\nB:\nbar.sync 1;\nC:",
			kind: Divergent, text: "bar.sync 1", what: "lanes aaaaaaaa are at line 27: bar.sync 1",
		},
		"a barrier that one warp returns before": {
			body: "setp.lt.u32 %p1, %r1, 32;\n@%p1 ret;\nbar.sync 0;", shape: Launch{Block: [3]uint32{96, 1, 1}},
			kind: Divergent, text: "bar.sync 0", what: "warp 1 lanes ffffffff wait at line 23, bar.sync 0, for barrier 0 (64 of 96 threads are there)",
		},
		"warps at different barriers": {
			body: "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra A;\nbar.sync 1;\nbra B;\nA:\nbar.sync 2;\nB:", shape: Launch{Block: [3]uint32{64, 1, 1}},
			kind: Deadlock, text: "bar.sync 2", what: "warp 1 lanes ffffffff wait at line 23, bar.sync 1, for barrier 1",
		},
		"warps that expect different numbers of threads": {
			body: "and.b32 %r2, %r1, 32;\nadd.s32 %r2, %r2, 64;\nbar.sync 1, %r2;", shape: Launch{Block: [3]uint32{96, 1, 1}},
			kind: Undefined, text: "bar.sync 1, %r2", what: "barrier 1 waits for 64 threads, and for 96 here",
		},
		"lanes that name different barriers": {
			body: "and.b32 %r2, %r1, 1;\nbar.sync %r2;",
			kind: Divergent, lane: 1, text: "bar.sync %r2", what: "lanes 0 and 1 of a warp name different barriers",
		},
		"a barrier of half a warp": {
			body: "bar.sync 0, 16;",
			kind: Undefined, text: "bar.sync 0, 16", what: "16 threads",
		},
		"a matrix product in one side of a branch": {
			body: odd + "@%p1 bra A;\nmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r1,%r1,%r1}, {%r1,%r1}, {%f5,%f6,%f7,%f8};\nA:",
			kind: Divergent, text: "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r1,%r1,%r1}, {%r1,%r1}, {%f5,%f6,%f7,%f8}",
			what: "lanes 55555555 wait for the others",
		},
		"a matrix product under a predicate": {
			body: odd + "@%p1 mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r1,%r1,%r1}, {%r1,%r1}, {%f5,%f6,%f7,%f8};",
			kind: Divergent, lane: 1, text: "@%p1 mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r1,%r1,%r1}, {%r1,%r1}, {%f5,%f6,%f7,%f8}",
		},
		"a matrix product in a warp of 16 threads": {
			body: "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r1}, {%r1}, {%f5,%f6,%f7,%f8};", shape: Launch{Block: [3]uint32{16, 1, 1}},
			kind: Divergent, text: "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r1}, {%r1}, {%f5,%f6,%f7,%f8}",
		},
		"a matrix load of rows that nobody has written": {
			body: "shl.b32 %r2, %r1, 4;\nmov.u32 %r3, big;\nadd.s32 %r3, %r3, %r2;\nsetp.ne.u32 %p1, %r1, 9;\n@%p1 st.shared.v2.u64 [%r3], {%rd1, %rd1};\nldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4,%r5,%r6,%r7}, [%r3];",
			kind: NeverWritten, lane: 9, text: "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4,%r5,%r6,%r7}, [%r3]",
		},
		"a matrix load of rows that are not aligned": {
			body: "mov.u32 %r3, big;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r3+4];",
			kind: Misaligned, text: "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r3+4]",
		},
		"a shuffle that a lane in its mask returns before": {
			body: "setp.eq.u32 %p1, %r1, 3;\n@%p1 ret;\nshfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;",
			kind: Divergent, text: "shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1", what: "lanes 00000008 have returned",
		},
		"a shuffle by a lane that is not in its mask": {
			body: "shfl.sync.bfly.b32 %r2, %r1, 1, 31, 65535;",
			kind: Divergent, lane: 16, text: "shfl.sync.bfly.b32 %r2, %r1, 1, 31, 65535", what: "lanes ffff0000 execute it and are not in its mask 0000ffff",
		},
		"a shuffle that reads a lane which does not take part": {
			body: odd + "@%p1 bra A;\nshfl.sync.bfly.b32 %r2, %r1, 1, 31, 1431655765;\nA:",
			kind: Undefined, text: "shfl.sync.bfly.b32 %r2, %r1, 1, 31, 1431655765", what: "lane 0 reads the value of lane 1",
		},
		"a vote in one side of a branch": {
			body: odd + "@%p1 bra A;\nvote.sync.ballot.b32 %r2, %p1, -1;\nA:",
			kind: Divergent, text: "vote.sync.ballot.b32 %r2, %p1, -1",
		},
		"a warp barrier in one side of a branch": {
			body: odd + "@%p1 bra A;\nbar.warp.sync -1;\nA:",
			kind: Divergent, text: "bar.warp.sync -1",
		},
		"a loop that never ends": {
			body: "A:\nadd.s32 %r2, %r2, 1;\nbra A;", shape: Launch{Limit: 1000},
			kind: Endless, text: "bra A",
		},
		"local memory past a thread's": {
			body: ".local .align 8 .b8 d[16];\nst.local.u32 [d+12], %r1;\nst.local.u32 [d+16], %r1;",
			kind: OutOfBounds, text: "st.local.u32 [d+16], %r1", what: "local memory at offset 16 of 16",
		},
		"parameters past the last": {
			body: "mov.u64 %rd3, in;\nld.param.u64 %rd4, [%rd3+8];\nld.param.u64 %rd4, [%rd3+16];",
			kind: OutOfBounds, text: "ld.param.u64 %rd4, [%rd3+16]", what: "parameters at offset 16 of 16",
		},
		"a constant past its end": {
			body: "ld.const.u32 %r2, [c+4];\nld.const.u32 %r2, [c+8];",
			kind: OutOfBounds, text: "ld.const.u32 %r2, [c+8]",
		},
		"a write to a constant": {
			body: "mov.u64 %rd3, c;\nst.u32 [%rd3], %r1;",
			kind: ReadOnly, text: "st.u32 [%rd3], %r1",
		},
		"a trap": {
			body: odd + "@%p1 trap;",
			kind: Undefined, lane: 1, text: "@%p1 trap", what: "lanes aaaaaaaa stop the kernel",
		},
		"an index past a list of targets": {
			body: "T: .branchtargets A, B;\nbrx.idx %r1, T;\nA:\nB:",
			kind: Undefined, lane: 2, text: "brx.idx %r1, T", what: "index 2 of 2 branch targets",
		},
		"barrier 16": {
			body: "bar.sync 16;",
			kind: Undefined, text: "bar.sync 16",
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := kernel(t, sharedArray+".const .align 4 .b8 c[8] = {1, 2};\n.const .align 4 .b8 next[8];", c.body)
			_, err := launch(k, c.shape, make([]byte, 264), 128)
			f := mustFail(t, err)
			if f.Kind != c.kind || f.Text != c.text || f.Lane != c.lane || !strings.Contains(f.What, c.what) {
				t.Errorf("%v\nwant %v of %q in lane %d, and %q", f, c.kind, c.text, c.lane, c.what)
			}
			if f.Kernel != "k" || f.Module != "test.ptx" || f.Line < 20 {
				t.Errorf("kernel %q, module %q, line %d", f.Kernel, f.Module, f.Line)
			}
		})
	}
}

func TestAFaultNamesTheSourceLineAndTheBlock(t *testing.T) {
	k := kernel(t, "", `
.loc 1 42 3
mov.u32 %r2, %ctaid.y;
setp.eq.u32 %p1, %r2, 2;
.loc 1 43 9, function_name $L__info_string0, inlined_at 1 50 1
@%p1 ld.global.u32 %r3, [%rd1+4096];
ret;
}
.file 1 "/somewhere/kernels.cu"
.section .debug_str {
$L__info_string0:
.b8 95,90,0
}
.visible .entry other() {
`)
	_, err := launch(k, Launch{Grid: [3]uint32{1, 3, 1}, Block: [3]uint32{64, 1, 1}, Order: Reverse}, make([]byte, 64), 64)
	f := mustFail(t, err)
	if f.Source != "kernels.cu:43" || f.Block != [3]uint32{0, 2, 0} || f.Warp != 1 || f.Line != 23 {
		t.Error(f)
	}
	for _, part := range []string{"kernel k", "test.ptx:23", "kernels.cu:43", "block (0,2,0)", "warp 1", "lane 0", "ld.global.u32", "out of bounds"} {
		if !strings.Contains(f.Error(), part) {
			t.Errorf("%q does not say %q", f, part)
		}
	}
}

func TestCopiesThatNobodyWaitedForPassWhenEager(t *testing.T) {
	k := kernel(t, ".shared .align 16 .b8 s[256];", "mov.u32 %r3, s;\ncp.async.cg.shared.global [%r3], [%rd1], 16;\nld.shared.u32 %r4, [%r3];\nst.global.u32 [%rd2], %r4;")
	out, err := launch(k, Launch{Eager: true}, words(7, 8, 9, 10), 4)
	if err != nil || word(out, 0) != 7 {
		t.Errorf("%v, %v", out, err)
	}
}

func TestAMissingBarrierShowsInSomeOrder(t *testing.T) {
	// Each thread reads what its neighbour of the next warp has written.
	const body = `
shl.b32 %r2, %r1, 2;
mov.u32 %r3, s;
add.s32 %r3, %r3, %r2;
st.shared.u32 [%r3], %r1;
xor.b32 %r4, %r2, 128;
mov.u32 %r3, s;
add.s32 %r3, %r3, %r4;
BARRIER
ld.shared.u32 %r5, [%r3];`
	for barrier, want := range map[string]Kind{"": NeverWritten, "bar.sync 0;": 0} {
		k := kernel(t, ".shared .align 16 .b8 s[256];", strings.Replace(body, "BARRIER", barrier, 1))
		for _, order := range []Order{Forward, Reverse, Random} {
			_, err := launch(k, Launch{Block: [3]uint32{64, 1, 1}, Order: order}, nil, 0)
			if want == 0 {
				if err != nil {
					t.Errorf("%v: %v", order, err)
				}
			} else if f := mustFail(t, err); f.Kind != want {
				t.Errorf("%v: %v", order, f)
			}
		}
	}
}
