package ptx

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"testing"
)

func TestLanesThatPartMeetAgain(t *testing.T) {
	// Each lane goes round its own number of times; all are together afterwards.
	r := perThread(t, `
mov.u32 %r2, 0;
mov.u32 %r3, 0;
LOOP:
setp.ge.u32 %p1, %r2, %r1;
@%p1 bra DONE;
and.b32 %r4, %r2, 1;
setp.eq.u32 %p2, %r4, 0;
@%p2 bra EVEN;
add.u32 %r3, %r3, 100;
bra NEXT;
EVEN:
add.u32 %r3, %r3, 1;
NEXT:
add.u32 %r2, %r2, 1;
bra LOOP;
DONE:
activemask.b32 %r5;
setp.eq.u32 %p3, %r5, -1;
selp.u32 %r6, 10000, 0, %p3;
add.u32 %r9, %r3, %r6;`, Launch{})
	for i, v := range r {
		if want := uint32(10000 + (i+1)/2 + i/2*100); v != want {
			t.Errorf("lane %d: %d, want %d", i, v, want)
		}
	}
}

func TestCodeOutOfLineIsRunByItsLanesAlone(t *testing.T) {
	r := perThread(t, `
setp.lt.u32 %p1, %r1, 4;
mov.u32 %r9, 1;
@%p1 bra FAR;
BACK:
add.u32 %r9, %r9, 5;
shfl.sync.idx.b32 %r9, %r9, 0, 31, -1;
bra END;
FAR:
mov.u32 %r9, 100;
bra BACK;
END:`, Launch{})
	for i, v := range r {
		if v != 105 {
			t.Errorf("lane %d: %d, want 105", i, v)
		}
	}
}

func TestAValueThatSomeLanesReplaceLivesOn(t *testing.T) {
	// %r8 is not read between here and the next turn, in which not all lanes write it: %r20 must not take its slot.
	r := perThread(t, `
mov.u32 %r2, 0;
mov.u32 %r3, 0;
mov.u32 %r4, 0;
mov.u32 %r8, 5;
LOOP:
setp.eq.u32 %p1, %r2, %r1;
@%p1 mov.u32 %r8, %r2;
add.u32 %r3, %r3, %r8;
add.u32 %r20, %r2, 1000;
add.u32 %r2, %r2, 1;
add.u32 %r4, %r4, %r20;
setp.lt.u32 %p2, %r2, 40;
@%p2 bra LOOP;
mov.u32 %r9, %r3;`, Launch{})
	for i, v := range r {
		if want := uint32(5*i + (40-i)*i); v != want {
			t.Errorf("lane %d: %d, want %d", i, v, want)
		}
	}
}

func TestABranchByIndexPartsLanes(t *testing.T) {
	r := perThread(t, `
mov.u32 %r9, 0;
and.b32 %r2, %r1, 3;
setp.eq.u32 %p1, %r2, 3;
T: .branchtargets A, B,
C;
@!%p1 brx.idx %r2, T;
add.u32 %r9, %r9, 1000;
A: add.u32 %r9, %r9, 100;
B: add.u32 %r9, %r9, 10;
C: add.u32 %r9, %r9, 1;`, Launch{})
	for i, v := range r {
		if want := []uint32{111, 11, 1, 1111}[i%4]; v != want {
			t.Errorf("lane %d: %d, want %d", i, v, want)
		}
	}
}

func TestHalvesOfAWarpShuffleOnTheirOwn(t *testing.T) {
	r := perThread(t, `
setp.lt.u32 %p1, %r1, 16;
@%p1 bra LOW;
shfl.sync.down.b32 %r9, %r1, 1, 31, -65536;
bra END;
LOW:
shfl.sync.up.b32 %r9, %r1, 1, 0, 65535;
END:
bar.warp.sync -1;`, Launch{})
	for i, v := range r {
		want := uint32(min(i+1, 31))
		if i < 16 {
			want = uint32(max(i-1, 0))
		}
		if v != want {
			t.Errorf("lane %d: %d, want %d", i, v, want)
		}
	}
	// The same instruction with a mask a half is two shuffles.
	r = perThread(t, "setp.lt.u32 %p1, %r1, 16;\nselp.b32 %r3, 65535, -65536, %p1;\nmov.u32 %r4, 7;\nshfl.sync.bfly.b32 %r9, %r1, 15, 31, %r3;", Launch{})
	for i, v := range r {
		if want := uint32(i ^ 15); v != want {
			t.Errorf("lane %d: %d, want %d", i, v, want)
		}
	}
}

func TestEachModeOfAShuffle(t *testing.T) {
	for _, c := range []struct {
		mode    string
		by      int
		control int // clamp | segment mask << 8
		from    func(lane int) (int, bool)
	}{
		{"up", 3, 0, func(l int) (int, bool) { return l - 3, l >= 3 }},
		{"down", 5, 31, func(l int) (int, bool) { return l + 5, l+5 <= 31 }},
		{"bfly", 16, 31, func(l int) (int, bool) { return l ^ 16, true }},
		{"idx", 9, 31, func(int) (int, bool) { return 9, true }},
		{"up", 1, 24 << 8, func(l int) (int, bool) { return l - 1, l%8 >= 1 }},
		{"down", 2, 24<<8 | 31, func(l int) (int, bool) { return l + 2, l%8+2 < 8 }},
		{"bfly", 4, 28<<8 | 31, func(l int) (int, bool) { return l ^ 4, l^4 <= l|3 }},
		{"idx", 6, 28<<8 | 31, func(l int) (int, bool) { return l&^3 | 2, true }},
		{"down", 2, 4, func(l int) (int, bool) { return l + 2, l+2 <= 4 }},
	} {
		r := perThread(t, fmt.Sprintf("shfl.sync.%s.b32 %%r3|%%p1, %%r1, %d, %d, -1;\nselp.u32 %%r4, 1000, 0, %%p1;\nadd.u32 %%r9, %%r3, %%r4;", c.mode, c.by, c.control), Launch{})
		for i, v := range r {
			from, inside := c.from(i)
			want := uint32(i)
			if inside {
				want = uint32(from) + 1000
			}
			if v != want {
				t.Errorf("%s by %d, %#x, lane %d: %d, want %d", c.mode, c.by, c.control, i, v, want)
			}
		}
	}
}

func TestVotesMatchesAndReductionsOverAWarp(t *testing.T) {
	odd := "and.b32 %r2, %r1, 1;\nsetp.eq.u32 %p1, %r2, 1;\n"
	low := "setp.lt.u32 %p4, %r1, 8;\n@!%p4 bra END;\n" // lanes 0 to 7 alone
	for name, c := range map[string]struct {
		body string
		want func(i int) uint32
	}{
		"ballot":           {odd + "vote.sync.ballot.b32 %r9, %p1, -1;", func(int) uint32 { return 0xaaaaaaaa }},
		"ballot of not":    {odd + "vote.sync.ballot.b32 %r9, !%p1, -1;", func(int) uint32 { return 0x55555555 }},
		"ballot of few":    {"mov.u32 %r9, 0;\n" + odd + low + "vote.sync.ballot.b32 %r9, %p1, 255;\nEND:", func(i int) uint32 { return 0xaa * bit(i < 8) }},
		"all":              {odd + "vote.sync.all.pred %p2, %p1, -1;\nselp.u32 %r9, 1, 0, %p2;", func(int) uint32 { return 0 }},
		"any":              {odd + "vote.sync.any.pred %p2, %p1, -1;\nselp.u32 %r9, 1, 0, %p2;", func(int) uint32 { return 1 }},
		"uni":              {odd + "vote.sync.uni.pred %p2, %p1, -1;\nselp.u32 %r9, 1, 0, %p2;", func(int) uint32 { return 0 }},
		"match any":        {"and.b32 %r3, %r1, 3;\nmatch.any.sync.b32 %r9, %r3, -1;", func(i int) uint32 { return 0x11111111 << (i % 4) }},
		"match all":        {"match.all.sync.b32 %r9|%p1, 7, -1;\n@!%p1 mov.u32 %r9, 5;", func(int) uint32 { return 0xffffffff }},
		"match not all":    {"match.all.sync.b32 %r9|%p1, %r1, -1;\n@!%p1 mov.u32 %r9, 5;", func(int) uint32 { return 5 }},
		"match of 64 bits": {"mov.b64 %rd3, {%r1, 0};\nmatch.any.sync.b64 %r9, %rd3, -1;", func(i int) uint32 { return 1 << i }},
		"redux add":        {"redux.sync.add.s32 %r9, %r1, -1;", func(int) uint32 { return 31 * 32 / 2 }},
		"redux max":        {"neg.s32 %r3, %r1;\nredux.sync.max.s32 %r9, %r3, -1;", func(int) uint32 { return 0 }},
		"redux min":        {"neg.s32 %r3, %r1;\nredux.sync.min.u32 %r9, %r3, -1;", func(int) uint32 { return 0 }},
		"redux xor":        {"redux.sync.xor.b32 %r9, %r1, -1;", func(int) uint32 { return 0 }},
		"redux or of few":  {"mov.u32 %r9, 0;\n" + low + "redux.sync.or.b32 %r9, %r1, 255;\nEND:", func(i int) uint32 { return 7 * bit(i < 8) }},
		"active lanes":     {"mov.u32 %r9, 0;\n" + low + "activemask.b32 %r9;\nEND:", func(i int) uint32 { return 255 * bit(i < 8) }},
		"movmatrix":        {"movmatrix.sync.aligned.m8n8.trans.b16 %r9, %r1;", nil},
	} {
		if name == "movmatrix" { // lane 4r+c/2 holds row r; value in the low half is the lane, in the high one zero
			at := func(row, col int) uint32 { return uint32(4*row+col/2) * bit(col%2 == 0) }
			c.want = func(i int) uint32 { return at(i%4*2, i/4) | at(i%4*2+1, i/4)<<16 }
		}
		for i, v := range perThread(t, c.body, Launch{}) {
			if v != c.want(i) {
				t.Errorf("%s, lane %d: %#x, want %#x", name, i, v, c.want(i))
			}
		}
	}
}

func TestSpecialRegistersTellWhoAThreadIs(t *testing.T) {
	const body = `
mov.u32 %r2, %tid.y;
mov.u32 %r3, %tid.z;
mad.lo.u32 %r1, %r2, %ntid.x, %r1;
mov.u32 %r4, %ntid.y;
mul.lo.u32 %r4, %r4, %ntid.x;
mad.lo.u32 %r1, %r3, %r4, %r1;
mov.u32 %r5, %laneid;
mov.u32 %r6, %warpid;
mad.lo.u32 %r7, %r6, WARP_SZ, %r5;
mov.u32 %r8, %lanemask_lt;
popc.b32 %r8, %r8;
mov.u32 %r9, %lanemask_ge;
popc.b32 %r9, %r9;
mov.u32 %r10, %lanemask_eq;
add.u32 %r8, %r8, %r9;
mov.u32 %r11, %nwarpid;
mov.u32 %r12, %clock;
mov.u32 %r13, %nctaid.x;
mov.u32 %r14, %ctaid.x;
mad.lo.u32 %r15, %r14, 96, %r1;
mul.wide.u32 %rd9, %r15, 16;
add.s64 %rd9, %rd9, %rd2;
st.global.v4.u32 [%rd9], {%r7, %r8, %r10, %r13};`
	out, err := launch(kernel(t, "", body), Launch{Grid: [3]uint32{3, 1, 1}, Block: [3]uint32{8, 4, 3}}, nil, 96*3*16)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 96 * 3 {
		got := [4]uint32{word(out, 4*i), word(out, 4*i+1), word(out, 4*i+2), word(out, 4*i+3)}
		if want := [4]uint32{uint32(i % 96), 32, 1 << (i % 32), 3}; got != want {
			t.Fatalf("thread %d: %v, want %v", i, got, want)
		}
	}
}

func TestBarriersHaveNumbersCountsAndReductions(t *testing.T) {
	// Warps 0 and 1 meet at barrier 1, while warps 2 and 3 go on to barrier 2.
	const body = `
shl.b32 %r2, %r1, 2;
mov.u32 %r3, s;
add.s32 %r4, %r3, %r2;
st.shared.u32 [%r4], %r1;
xor.b32 %r5, %r2, 128;
add.s32 %r5, %r3, %r5;
shr.u32 %r6, %r1, 6;
add.u32 %r6, %r6, 1;
bar.sync %r6, 64;
ld.shared.u32 %r9, [%r5];
setp.lt.u32 %p1, %r1, 10;
bar.red.popc.u32 %r7, 0, %p1;
bar.red.or.pred %p2, 0, %p1;
bar.red.and.pred %p3, 0, !%p1;
selp.u32 %r8, 1000, 0, %p2;
add.u32 %r9, %r9, %r8;
selp.u32 %r8, 2000, 0, %p3;
add.u32 %r9, %r9, %r8;
mad.lo.u32 %r9, %r7, 10000, %r9;`
	for _, order := range []Order{Forward, Reverse, Random} {
		k := kernel(t, ".shared .align 4 .b8 s[512];", body+"\nmul.wide.u32 %rd9, %r1, 4;\nadd.s64 %rd9, %rd9, %rd2;\nst.global.u32 [%rd9], %r9;")
		out, err := launch(k, Launch{Block: [3]uint32{128, 1, 1}, Order: order, Seed: 3}, nil, 512)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 128 {
			if got, want := word(out, i), uint32(i^32+1000+100000); got != want {
				t.Fatalf("%v, thread %d: %d, want %d", order, i, got, want)
			}
		}
	}
}

func TestAProducerArrivesAndGoesOn(t *testing.T) {
	const body = `
setp.lt.u32 %p1, %r1, 32;
mov.u32 %r3, s;
@%p1 bra PRODUCE;
bar.sync 3, 64;
ld.shared.u32 %r9, [%r3];
st.global.u32 [%rd2], %r9;
bra END;
PRODUCE:
st.shared.u32 [%r3], 77;
bar.arrive 3, 64;
END:`
	for _, order := range []Order{Forward, Reverse} {
		out, err := launch(kernel(t, ".shared .align 4 .b8 s[4];", body), Launch{Block: [3]uint32{64, 1, 1}, Order: order}, nil, 4)
		if err != nil || word(out, 0) != 77 {
			t.Errorf("%v: %v, %v", order, out, err)
		}
	}
}

func TestAtomicsOfAllBlocksAddUp(t *testing.T) {
	const body = `
atom.global.add.u32 %r2, [%rd1], 1;
red.global.max.s32 [%rd1+4], %r1;
red.global.min.u32 [%rd1+8], %r1;
atom.global.or.b32 %r3, [%rd1+12], %r1;
atom.global.inc.u32 %r4, [%rd1+16], 9;
atom.global.cas.b32 %r5, [%rd1+20], 0, %r2;
atom.global.exch.b32 %r6, [%rd1+24], 5;
red.global.add.f32 [%rd1+28], 0f3F000000;
red.global.add.u64 [%rd1+32], 4294967296;
atom.global.dec.u32 %r8, [%rd1+40], 100;
st.shared.u32 [s], 0;
bar.sync 0;
atom.shared.add.u32 %r7, [s], 2;
bar.sync 0;
ld.shared.u32 %r7, [s];
setp.eq.u32 %p1, %r7, 128;
@!%p1 trap;`
	in := make([]byte, 64)
	binary.LittleEndian.PutUint32(in[8:], 1000)
	k := kernel(t, ".shared .align 4 .b8 s[4];", body)
	if _, err := launch(k, Launch{Grid: [3]uint32{50, 1, 1}, Block: [3]uint32{64, 1, 1}, Workers: 4}, in, 0); err != nil {
		t.Fatal(err)
	}
	const n = 50 * 64
	for i, want := range map[int]uint32{0: n, 1: 63, 2: 0, 3: 63, 4: n % 10, 6: 5, 8: 0, 9: n, 10: 101 - (n % 101)} {
		if got := word(in, i); got != want && !(i == 10 && got == want%101) {
			t.Errorf("word %d is %d, want %d", i, got, want)
		}
	}
	if got := word(in, 7); got != 0x44c80000 { // 1600
		t.Errorf("the float is %#x", got)
	}
}

func TestFencesAndHintsChangeNothing(t *testing.T) {
	for i, v := range perThread(t, `
mov.u32 %r9, %r1;
membar.gl;
fence.acq_rel.gpu;
prefetch.global.L2 [%rd1];
nanosleep.u32 10;
.pragma "nounroll";
barrier.sync.aligned 0;
barrier.cta.sync 0;`, Launch{}) {
		if v != uint32(i) {
			t.Errorf("lane %d: %d", i, v)
		}
	}
}

func TestOrdersOfBlocksAndWarpsAreThoseAskedFor(t *testing.T) {
	// The last warp of the last block to come is who stays.
	k := kernel(t, "", "mov.u32 %r2, %ctaid.x;\nmov.u32 %r3, %warpid;\nmad.lo.u32 %r2, %r2, 4, %r3;\natom.global.exch.b32 %r4, [%rd1], %r2;")
	last := func(order Order, seed uint64) uint32 {
		in := make([]byte, 4)
		if _, err := launch(k, Launch{Grid: [3]uint32{40, 1, 1}, Block: [3]uint32{128, 1, 1}, Order: order, Seed: seed, Workers: 1}, in, 0); err != nil {
			t.Fatal(err)
		}
		return word(in, 0)
	}
	if f, r := last(Forward, 0), last(Reverse, 0); f != 159 || r != 0 {
		t.Errorf("forward ends with warp %d, reverse with %d; want 159 and 0", f, r)
	}
	seen := map[uint32]bool{}
	for seed := range uint64(10) {
		v := last(Random, seed)
		if again := last(Random, seed); again != v {
			t.Errorf("seed %d ends with warp %d, and with %d", seed, v, again)
		}
		seen[v] = true
	}
	if len(seen) < 5 {
		t.Errorf("ten seeds end with %d warps", len(seen))
	}
}

func TestLoadsAndStoresOfEveryWidth(t *testing.T) {
	in := make([]byte, 64)
	for i := range in {
		in[i] = byte(0xf0 + i)
	}
	k := kernel(t, "", `
setp.ne.u32 %p1, %r1, 5;
@%p1 ret;
ld.global.u8 %r2, [%rd1+1];
ld.global.s8 %r3, [%rd1+1];
ld.global.u16 %h2, [%rd1+2];
ld.global.s16 %r4, [%rd1+2];
ld.global.s32 %rd3, [%rd1+4];
ld.global.nc.L1::no_allocate.L2::128B.v2.u64 {%rd4, %rd5}, [%rd1];
ld.volatile.global.v4.u8 {%h3, %h4, %h5, %h6}, [%rd1];
ld.global.cg.v2.f32 {%f1, %f2}, [%rd1+8];
ld.global.s8 %h7, [%rd1];
ld.global.s8 %rd6, [%rd1];
st.global.v4.u32 [%rd2], {%r2, %r3, %r4, %r4};
st.global.v2.u64 [%rd2+16], {%rd3, %rd4};
st.global.cs.v2.f32 [%rd2+32], {%f1, %f2};
st.global.v4.u8 [%rd2+40], {%h3, %h4, %h5, %h6};
st.global.u16 [%rd2+44], %h2;
st.global.u16 [%rd2+46], %h7;
st.global.u64 [%rd2+48], %rd6;
st.global.u8 [%rd2+56], %r4;`)
	out, err := launch(k, Launch{}, in, 64)
	if err != nil {
		t.Fatal(err)
	}
	want := words(0xf1, 0xfffffff1, 0xfffff3f2, 0xfffff3f2, 0xf7f6f5f4, 0xffffffff, 0xf3f2f1f0, 0xf7f6f5f4, 0xfbfaf9f8, 0xfffefdfc, 0xf3f2f1f0, 0xfff0f3f2, 0xfffffff0, 0xffffffff, 0xf2)
	for i := range 57 {
		if out[i] != want[i] {
			t.Fatalf("byte %d is %#x, want %#x", i, out[i], want[i])
		}
	}
}

func TestLaunchesThatADriverWouldRefuse(t *testing.T) {
	m, err := Parse("test.ptx", strings.Replace(module("", ""), "{\n", ".maxntid 64, 1, 1\n{\n", 1))
	if err != nil {
		t.Fatal(err)
	}
	k := m.Kernels["k"]
	one := [3]uint32{1, 1, 1}
	args := make([]byte, 16)
	for name, c := range map[string]struct {
		l    Launch
		want string
	}{
		"no blocks":             {Launch{Grid: [3]uint32{0, 1, 1}, Block: one, Args: args}, "a size is zero"},
		"more than 1024":        {Launch{Grid: one, Block: [3]uint32{64, 32, 1}, Args: args}, "more than 1024 threads"},
		"more than its bounds":  {Launch{Grid: one, Block: [3]uint32{65, 1, 1}, Args: args}, "65 threads, and it was compiled for 64"},
		"too much shared":       {Launch{Grid: one, Block: one, Shared: 228 << 10, Args: args}, "a block has at most 232448"},
		"arguments of a length": {Launch{Grid: one, Block: one, Args: args[:12]}, "12 bytes of arguments, and its parameters have 16"},
	} {
		if err := k.Run(c.l, Regions{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	var s Stats
	if err := k.Run(Launch{Grid: [3]uint32{2, 1, 1}, Block: [3]uint32{33, 1, 1}, Args: args, Stats: &s}, Regions{}); err != nil {
		t.Fatal(err)
	}
	if s.Instructions != 2*2*4 || s.LaneInstructions != 2*33*4 {
		t.Errorf("%+v of four instructions in two blocks of 33", s)
	}
}

func TestWrittenBitsAreThoseOfTheBytes(t *testing.T) {
	for _, c := range [][2]int{{0, 200}, {3, 5}, {60, 70}, {64, 64}, {128, 72}, {10, 0}} {
		r := Region{Bytes: make([]byte, 200), Written: NewWritten(200)}
		r.MarkWritten(c[0], c[1])
		n := 0
		for i, w := range r.Written {
			n += bits.OnesCount64(w)
			for j := range 64 {
				if at := 64*i + j; w>>j&1 != 0 && (at < c[0] || at >= c[0]+c[1]) {
					t.Errorf("%v: byte %d counts as written", c, at)
				}
			}
		}
		if n != c[1] {
			t.Errorf("%v: %d bytes count as written", c, n)
		}
	}
}

func TestBytesOfGlobalMemoryAreCountedByLane(t *testing.T) {
	k := kernel(t, ".shared .align 16 .b8 s[64];", `mov.u32 %r3, s;
setp.lt.u32 %p1, %r1, 5;
ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd1];
@%p1 ld.global.u16 %h1, [%rd1+16];
@%p1 st.global.v2.u32 [%rd2], {%r4, %r5};
@!%p1 atom.global.add.u32 %r8, [%rd2], 1;
cp.async.cg.shared.global [%r3], [%rd1], 16;
cp.async.ca.shared.global [%r3+16], [%rd1+8], 4, 2;
cp.async.ca.shared.global [%r3+32], [%rd1+8], 8, 0;
cp.async.wait_all;
st.shared.u32 [%r3+48], %r1;
ld.shared.u32 %r9, [%r3+48];`)
	var s Stats
	if _, err := launch(k, Launch{Stats: &s, Grid: [3]uint32{2, 1, 1}}, make([]byte, 64), 16); err != nil {
		t.Fatal(err)
	}
	if read, written := int64(2*(32*16+5*2+32*16+32*2)), int64(2*(5*8+27*4)); s.Read != read || s.Written != written {
		t.Errorf("%d bytes read, %d written; want %d and %d", s.Read, s.Written, read, written)
	}
}

func TestLinesThatAreExecutedAreCovered(t *testing.T) {
	k := kernel(t, "", `setp.eq.u32 %p1, %r1, 40;
@%p1 bra SKIP;
mov.u32 %r2, 1;
SKIP:
setp.lt.u32 %p2, %r1, 64;
@%p2 bra END;
mov.u32 %r2, 3;
END:
@!%p2 mov.u32 %r2, 4;`)
	covered := make([]bool, 40)
	if _, err := launch(k, Launch{Block: [3]uint32{64, 1, 1}, Covered: covered}, nil, 0); err != nil {
		t.Fatal(err)
	}
	var lines []int
	for i, c := range covered {
		if c {
			lines = append(lines, i+1-17) // of the body, from 1
		}
	}
	// The body follows three instructions, and ret follows it.
	if want := []int{-2, -1, 0, 1, 2, 3, 5, 6, 9, 10}; !slices.Equal(lines, want) {
		t.Errorf("lines %v, want %v", lines, want)
	}
}
