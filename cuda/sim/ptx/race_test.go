package ptx

import (
	"strings"
	"testing"
)

// raceCases are bodies of kernels over shared memory s of 4096 bytes. %r2 is the thread's own word of it, %r4
// that of its neighbour in the warp, %r6 that of the same lane in the next warp of two. Each also says with
// what in the place of ORDER it is right.
var raceCases = map[string]struct {
	body  string
	wrong []string // in place of ORDER
	right []string
	shape Launch
	text  string // of the instruction that is reported, where wrong
	what  string // part of the report
}{
	"a lane reads what its neighbour has written": {
		body:  "st.shared.u32 [%r2], %r1;\nORDER\nld.shared.u32 %r9, [%r4];",
		wrong: []string{"", "shfl.sync.bfly.b32 %r9, %r1, 1, 31, -1;", "membar.cta;", "vote.sync.any.pred %p1, 1, -1;"},
		right: []string{"bar.warp.sync -1;", "bar.sync 0;", "bar.red.or.pred %p1, 0, 1;"},
		text:  "ld.shared.u32 %r9, [%r4]",
		what:  "lane 0 reads 4 bytes of shared memory at offset 124, which lane 31 has written in line 31, st.shared.u32 [%r2], %r1: no barrier is between them",
	},
	"a lane overwrites what its neighbour has read": {
		body:  "st.shared.u32 [%r2], 1;\nbar.warp.sync -1;\nld.shared.u32 %r9, [%r4];\nORDER\nst.shared.u32 [%r2], 2;",
		wrong: []string{""}, right: []string{"bar.warp.sync -1;"},
		text: "st.shared.u32 [%r2], 2", what: "which lane 1 has read",
	},
	"halves of a warp meet on their own": {
		body:  "st.shared.u32 [%r2], %r1;\nsetp.lt.u32 %p1, %r1, 16;\nselp.b32 %r10, 65535, -65536, %p1;\nbar.warp.sync %r10;\nORDER\nld.shared.u32 %r9, [%r4];",
		wrong: []string{""}, right: []string{"bar.warp.sync -1;"},
		text: "ld.shared.u32 %r9, [%r4]", what: "which lane 31 has written",
	},
	"lanes hand on what others have written": { // 0 to 1, and 1 to 2: so 0's is there for 2
		body: "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.shared.u32 [s], 5;\nsetp.gt.u32 %p2, %r1, 1;\nsetp.gt.u32 %p3, %r1, 2;\n" +
			"@%p2 bra A;\nbar.warp.sync 3;\nA:\n@%p1 bra END;\n@%p3 bra END;\nORDER\nsetp.eq.u32 %p4, %r1, 2;\n@%p4 ld.shared.u32 %r9, [s];\nEND:",
		wrong: []string{""}, right: []string{"bar.warp.sync 6;"},
		text: "@%p4 ld.shared.u32 %r9, [s]", what: "which lane 0 has written",
	},
	"two lanes write one word at once": {
		body:  "and.b32 %r2, %r2, ORDER;\nst.shared.u32 [%r2], 1;",
		wrong: []string{"-8"}, right: []string{"-1"},
		text: "st.shared.u32 [%r2], 1", what: "which lane 0 has written",
	},
	"neighbours write bytes of one word": {
		body:  "mov.u32 %r8, s;\nadd.s32 %r8, %r8, %r1;\nst.shared.u8 [%r8], 1;\nORDER\nld.shared.u8 %r9, [%r8];",
		wrong: []string{"ld.shared.u32 %r9, [%r2];"}, right: []string{""},
	},
	"a warp reads what another has written": {
		body:  "st.shared.u32 [%r2], %r1;\nORDER\nld.shared.u32 %r9, [%r6];",
		wrong: []string{"", "bar.warp.sync -1;", "bar.arrive 1, 64;"}, right: []string{"bar.sync 0;", "bar.sync 3, 64;"},
		shape: Launch{Block: [3]uint32{64, 1, 1}},
	},
	"a warp overwrites what another has read": {
		body:  "st.shared.u32 [%r2], %r1;\nbar.sync 0;\nld.shared.u32 %r9, [%r6];\nORDER\nst.shared.u32 [%r2], 2;",
		wrong: []string{""}, right: []string{"bar.sync 0;"},
		shape: Launch{Block: [3]uint32{64, 1, 1}},
	},
	"a producer goes on writing": {
		body: "setp.lt.u32 %p1, %r1, 32;\n@%p1 bra PRODUCE;\nbar.sync 3, 64;\nld.shared.u32 %r9, [%r6];\nbra END;\n" +
			"PRODUCE:\nst.shared.u32 [%r2], 77;\nbar.arrive 3, 64;\nORDER\nEND:",
		wrong: []string{"st.shared.u32 [%r2], 78;"}, right: []string{"", "st.shared.u32 [%r2+256], 78;"},
		shape: Launch{Block: [3]uint32{64, 1, 1}},
	},
	"a copy that is waited for after the barrier": {
		body:  "and.b32 %r7, %r1, 1;\nshl.b32 %r8, %r1, 4;\nmov.u32 %r9, s;\nadd.s32 %r8, %r8, %r9;\ncp.async.cg.shared.global [%r8], [%rd1], 16;\nORDER\nxor.b32 %r8, %r8, 512;\nld.shared.u32 %r9, [%r8];",
		wrong: []string{"", "cp.async.wait_all;", "bar.sync 0;\ncp.async.wait_all;"}, right: []string{"cp.async.wait_all;\nbar.sync 0;"},
		shape: Launch{Block: [3]uint32{64, 1, 1}, Eager: true},
	},
	"a lane reads its own copy": {
		body:  "mov.u32 %r8, s;\nshl.b32 %r9, %r1, 4;\nadd.s32 %r8, %r8, %r9;\ncp.async.cg.shared.global [%r8], [%rd1], 16;\ncp.async.commit_group;\nORDER\nld.shared.u32 %r9, [%r8];",
		wrong: []string{"", "cp.async.wait_group 1;"}, right: []string{"cp.async.wait_group 0;"},
		shape: Launch{Eager: true}, text: "ld.shared.u32 %r9, [%r8]", what: "which the lane itself has begun to write asynchronously",
	},
	"a copy into what a warp still reads": {
		body:  "shl.b32 %r8, %r1, 4;\nmov.u32 %r9, s;\nadd.s32 %r8, %r8, %r9;\nst.shared.u32 [%r8], 1;\nbar.sync 0;\nxor.b32 %r10, %r8, 512;\nld.shared.u32 %r9, [%r10];\nORDER\ncp.async.cg.shared.global [%r8], [%rd1], 16;",
		wrong: []string{""}, right: []string{"bar.sync 0;"},
		shape: Launch{Block: [3]uint32{64, 1, 1}},
	},
	"atomic operations meet a store": {
		body:  "setp.eq.u32 %p1, %r1, 0;\n@%p1 st.shared.u32 [s], 0;\nORDER\natom.shared.add.u32 %r9, [s], 1;",
		wrong: []string{""}, right: []string{"bar.sync 0;"},
		shape: Launch{Block: [3]uint32{64, 1, 1}},
	},
	"threads of a block in device memory": {
		body:  "mul.wide.u32 %rd3, %r1, 4;\nadd.s64 %rd3, %rd2, %rd3;\nst.global.u32 [%rd3], 1;\nORDER\nxor.b32 %r9, %r1, 32;\nmul.wide.u32 %rd4, %r9, 4;\nadd.s64 %rd4, %rd2, %rd4;\nld.global.u32 %r9, [%rd4];",
		wrong: []string{"", "bar.warp.sync -1;", "membar.gl;"}, right: []string{"bar.sync 0;"},
		shape: Launch{Block: [3]uint32{64, 1, 1}},
	},
	"blocks write one word": {
		body:  "mov.u32 %r9, %ctaid.x;\nmul.wide.u32 %rd3, %r9, ORDER;\nadd.s64 %rd3, %rd2, %rd3;\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 st.global.u16 [%rd3], 1;",
		wrong: []string{"0"}, right: []string{"2", "4"},
		shape: Launch{Grid: [3]uint32{8, 1, 1}, Workers: 4}, text: "@%p1 st.global.u16 [%rd3], 1", what: "which another block has written",
	},
	"blocks read what one writes": {
		body:  "mov.u32 %r9, %ctaid.x;\nsetp.eq.u32 %p1, %r9, 3;\nld.global.u32 %r8, [%rd1];\nsetp.eq.u32 %p2, %r1, 0;\nand.pred %p1, %p1, %p2;\n@%p1 ORDER",
		wrong: []string{"st.global.u32 [%rd1], 1;", "red.global.add.u32 [%rd1], 1;"}, right: []string{"st.global.u32 [%rd1+4], 1;", "ld.global.u32 %r8, [%rd1];"},
		shape: Launch{Grid: [3]uint32{8, 1, 1}},
	},
	"blocks count together": {
		body:  "red.global.add.u32 [%rd1], 1;\nORDER",
		wrong: []string{"ld.global.u32 %r9, [%rd1];"}, right: []string{"", "atom.global.add.u32 %r9, [%rd1], 1;"},
		shape: Launch{Grid: [3]uint32{8, 1, 1}},
	},
	"a block uses the shared memory of one before": {
		body:  "st.shared.u32 [%r2], 1;\nORDER",
		wrong: []string{"ld.shared.u32 %r9, [%r4];"}, right: []string{"ld.shared.u32 %r9, [%r2];"},
		shape: Launch{Grid: [3]uint32{8, 1, 1}},
	},
}

const raceAddresses = `shl.b32 %r2, %r1, 2;
mov.u32 %r3, s;
and.b32 %r5, %r1, 31;
setp.eq.u32 %p1, %r5, 0;
selp.b32 %r4, 124, -4, %p1;
add.s32 %r4, %r4, %r2;
add.s32 %r4, %r4, %r3;
xor.b32 %r6, %r2, 128;
add.s32 %r6, %r6, %r3;
add.s32 %r2, %r2, %r3;
mov.u32 %r7, 0;
mov.u32 %r8, 0;
mov.u32 %r9, 0;
`

func TestAccessesWithoutAnOrderAreFoundInAnyOrder(t *testing.T) {
	for name, c := range raceCases {
		try := func(order string, wrong bool) {
			k := kernel(t, ".shared .align 16 .b8 s[4096];", raceAddresses+strings.ReplaceAll(c.body, "ORDER", order))
			for _, o := range []Order{Forward, Reverse, Random} {
				for _, eager := range []bool{c.shape.Eager, true} {
					l := c.shape
					l.Order, l.Eager, l.Seed, l.Races = o, eager, 1, true
					_, err := launch(k, l, make([]byte, 4096), 4096)
					if !wrong {
						if err != nil {
							t.Errorf("%s, with %q, %v: %v", name, order, o, err)
						}
						continue
					}
					f, ok := err.(*Fault)
					if !ok || f.Kind != Race && f.Kind != NeverWritten || c.shape.Order == o && (c.text != "" && f.Text != c.text || !strings.Contains(f.What, c.what)) {
						t.Errorf("%s, with %q, %v: %v\nwant a race, %q, %q", name, order, o, err, c.text, c.what)
					}
				}
			}
		}
		for _, order := range c.wrong {
			try(order, true)
		}
		for _, order := range c.right {
			try(order, false)
		}
	}
}

func TestAPipelineHasNoRaceUntilAnInstructionIsMissing(t *testing.T) {
	rng := random(t)
	a, _ := halves(rng, 64*160)
	b, _ := halves(rng, 160*64)
	for _, eager := range []bool{false, true} {
		if _, err := gemm(gemmText, a, b, 64, 64, 160, Launch{Races: true, Eager: eager}); err != nil {
			t.Errorf("eager %v: %v", eager, err)
		}
		for from, to := range map[string]string{"cp.async.wait_group 1;": "cp.async.wait_group 2;", "bar.sync \t0;": "", "cp.async.commit_group;": ""} {
			text := strings.ReplaceAll(gemmText, from, to)
			_, err := gemm(text, a, b, 64, 64, 160, Launch{Races: true, Eager: eager})
			if f := mustFail(t, err); f.Kind != Race && f.Kind != NeverWritten {
				t.Errorf("eager %v, without %q: %v", eager, from, err)
			}
		}
	}
}

func TestARaceNamesBothPlacesOfTheSource(t *testing.T) {
	k := kernel(t, "", `
.shared .align 4 .b8 s[256];
.loc 1 7 1
mov.u32 %r2, s;
setp.eq.u32 %p1, %r1, 40;
@%p1 st.shared.u32 [%r2], 1;
.loc 1 9 1
setp.eq.u32 %p2, %r1, 3;
@%p2 st.shared.u32 [%r2], 2;
ret;
}
.file 1 "kernels.cu"
.visible .entry other() {
`)
	_, err := launch(k, Launch{Block: [3]uint32{64, 1, 1}, Races: true, Order: Reverse}, nil, 0)
	f := mustFail(t, err)
	const want = "lane 3 writes 4 bytes of shared memory at offset 0, which warp 1 lane 8 has written in line 23 (kernels.cu:7), @%p1 st.shared.u32 [%r2], 1: no barrier is between them"
	if f.Kind != Race || f.Warp != 0 || f.Lane != 3 || f.Source != "kernels.cu:9" || f.What != want {
		t.Errorf("%v\nwant %s", f, want)
	}
}
