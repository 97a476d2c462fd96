package data

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// memoryFile is a token file of documents given as ids without end-of-text.
func memoryFile(docs [][]int32) *tokenFile {
	f := &tokenFile{header: header{width: 4, endOfText: pairsEnd}, starts: []int64{0}}
	for _, ids := range docs {
		for _, id := range ids {
			f.ids = appendID(f.ids, id, 4)
		}
		f.ids = appendID(f.ids, pairsEnd, 4)
		f.starts = append(f.starts, f.starts[len(f.starts)-1]+int64(len(ids))+1)
		f.bytes = append(f.bytes, int64(len(ids)))
		f.first = append(f.first, int64(min(1, len(ids))))
	}
	return f
}

// allDocs is the natural order of n documents.
func allDocs(n int) []int32 {
	docs := make([]int32, n)
	for i := range docs {
		docs[i] = int32(i)
	}
	return docs
}

// packsOf is the plain meaning of packing: it spells the stream out, position by
// position, and cuts it.
func packsOf(docs [][]int32, length int, pad bool) []Pack {
	type position struct {
		id, target int32
		begin      int // of its document in the stream
	}
	var stream []position
	for _, ids := range docs {
		begin := len(stream)
		whole := append(slices.Clone(ids), pairsEnd)
		for i, id := range whole {
			target := int32(Masked)
			if i+1 < len(whole) {
				target = whole[i+1]
			}
			stream = append(stream, position{id, target, begin})
		}
	}
	for pad && len(stream)%length != 0 {
		stream = append(stream, position{pairsEnd, Masked, len(stream)})
	}
	var packs []Pack
	for from := 0; from+length <= len(stream); from += length {
		p := NewPack(length)
		for i, at := range stream[from : from+length] {
			p.IDs[i], p.Targets[i] = at.id, at.target
			p.Start[i] = int32(max(0, at.begin-from))
			p.Pos[i] = int32(i) - p.Start[i]
		}
		packs = append(packs, p)
	}
	return packs
}

// read reads all packs of an epoch.
func read(d *Dataset, epoch int) []Pack {
	packs := make([]Pack, d.Packs())
	for i := range packs {
		packs[i] = NewPack(d.Length())
		d.Read(epoch, i, packs[i])
	}
	return packs
}

func valid(p Pack) int {
	return len(slices.DeleteFunc(slices.Clone(p.Targets), func(id int32) bool { return id == Masked }))
}

func TestPacksAreThoseOfThePlainMeaning(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Ids count up, so that each token of the corpus is told from each other.
		var docs [][]int32
		next := int32(1000)
		for range rapid.IntRange(1, 12).Draw(t, "documents") {
			n := rapid.OneOf(rapid.IntRange(0, 5), rapid.IntRange(0, 60)).Draw(t, "tokens")
			ids := make([]int32, n)
			for i := range ids {
				ids[i], next = next, next+1
			}
			docs = append(docs, ids)
		}
		length := rapid.IntRange(1, 20).Draw(t, "length")
		shuffle := rapid.Bool().Draw(t, "shuffle")
		epoch := rapid.IntRange(0, 9).Draw(t, "epoch")
		d, err := newDataset(memoryFile(docs), allDocs(len(docs)), length, rapid.Uint64().Draw(t, "seed"), shuffle)
		if err != nil {
			t.Skip("fewer tokens than a pack")
		}
		e := d.epoch(epoch)
		ordered := make([][]int32, len(docs))
		for i, doc := range e.docs {
			ordered[i] = docs[doc]
		}
		natural := packsOf(ordered, length, !shuffle)
		want := natural
		if shuffle {
			want = make([]Pack, len(natural))
			for place, pack := range e.packs {
				want[place] = natural[pack]
			}
		}
		got := read(d, epoch)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("packs (-want +got):\n%s", diff)
		}
		for i, p := range got {
			if n := d.Valid(epoch, i); n != valid(p) {
				t.Fatalf("pack %d: Valid is %d, its targets are %v", i, n, p.Targets)
			}
		}
	})
}

func TestBoundariesOfDocumentsInPacks(t *testing.T) {
	const m, e = Masked, pairsEnd
	cases := map[string]struct {
		docs [][]int32
		want []Pack
	}{
		"a document that ends on the border of a pack": {
			[][]int32{{1, 2, 3}, {4, 5, 6}},
			[]Pack{
				{[]int32{1, 2, 3, e}, []int32{2, 3, e, m}, []int32{0, 0, 0, 0}, []int32{0, 1, 2, 3}},
				{[]int32{4, 5, 6, e}, []int32{5, 6, e, m}, []int32{0, 0, 0, 0}, []int32{0, 1, 2, 3}},
			},
		},
		"a document whose end-of-text alone is in the next pack": {
			[][]int32{{1, 2, 3, 4}, {5, 6}},
			[]Pack{
				{[]int32{1, 2, 3, 4}, []int32{2, 3, 4, e}, []int32{0, 0, 0, 0}, []int32{0, 1, 2, 3}},
				{[]int32{e, 5, 6, e}, []int32{m, 6, e, m}, []int32{0, 1, 1, 1}, []int32{0, 0, 1, 2}},
			},
		},
		"a document longer than two packs, positions counted within each": {
			[][]int32{{1, 2, 3, 4, 5, 6, 7, 8, 9}},
			[]Pack{
				{[]int32{1, 2, 3, 4}, []int32{2, 3, 4, 5}, []int32{0, 0, 0, 0}, []int32{0, 1, 2, 3}},
				{[]int32{5, 6, 7, 8}, []int32{6, 7, 8, 9}, []int32{0, 0, 0, 0}, []int32{0, 1, 2, 3}},
				{[]int32{9, e, e, e}, []int32{e, m, m, m}, []int32{0, 0, 2, 3}, []int32{0, 1, 0, 0}},
			},
		},
		"documents without a token": {
			[][]int32{{}, {7}, {}},
			[]Pack{{[]int32{e, 7, e, e}, []int32{m, e, m, m}, []int32{0, 1, 1, 3}, []int32{0, 0, 1, 0}}},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			d, err := newDataset(memoryFile(c.docs), allDocs(len(c.docs)), 4, 0, false)
			must(t, err)
			if diff := cmp.Diff(c.want, read(d, 0)); diff != "" {
				t.Errorf("packs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEachHeldOutTargetIsScoredExactlyOnce(t *testing.T) {
	docs := [][]int32{{1, 2, 3, 4, 5}, {}, {6}, {7, 8, 9, 10, 11, 12, 13, 14, 15}}
	for length := 1; length < 30; length++ {
		d, err := newDataset(memoryFile(docs), allDocs(len(docs)), length, 0, false)
		must(t, err)
		var got []int32
		for _, p := range read(d, 3) {
			got = append(got, p.Targets...)
		}
		got = slices.DeleteFunc(got, func(id int32) bool { return id == Masked })
		want := []int32{2, 3, 4, 5, 256, 256, 8, 9, 10, 11, 12, 13, 14, 15, 256}
		if !slices.Equal(got, want) {
			t.Errorf("length %d: targets %v, want %v", length, got, want)
		}
	}
}

func TestATrainingSetThatFillsNoPackIsRefused(t *testing.T) {
	_, err := newDataset(memoryFile([][]int32{{1, 2}}), allDocs(1), 4, 0, true)
	wantError(t, err, "data.sequence_length", "3 tokens", "lower data.sequence_length")
}

func TestReadingAllocatesNothing(t *testing.T) {
	d, err := newDataset(memoryFile([][]int32{make([]int32, 100), make([]int32, 77)}), allDocs(2), 8, 5, true)
	must(t, err)
	p := NewPack(8)
	d.Read(1, 0, p)
	d.Read(0, 0, p)
	sum := 0
	if n := testing.AllocsPerRun(100, func() {
		for i := range d.Packs() {
			d.Read(i%2, i, p)
			sum += d.Valid(i%2, i)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func TestReadersOfManyEpochsDoNotDisturbEachOther(t *testing.T) {
	docs := make([][]int32, 40)
	for i := range docs {
		docs[i] = make([]int32, i%7)
		for j := range docs[i] {
			docs[i][j] = int32(i*10 + j)
		}
	}
	d, err := newDataset(memoryFile(docs), allDocs(len(docs)), 5, 1, true)
	must(t, err)
	want := make([][]Pack, 8)
	for epoch := range want {
		want[epoch] = read(d, epoch)
	}
	var wg sync.WaitGroup
	for reader := range 8 {
		wg.Go(func() {
			for i := range 40 {
				epoch := (reader + i) % len(want)
				if diff := cmp.Diff(want[epoch], read(d, epoch)); diff != "" {
					t.Errorf("epoch %d (-want +got):\n%s", epoch, diff)
				}
			}
		})
	}
	wg.Wait()
}

func TestEpochsAndSeedsHaveOrdersOfTheirOwn(t *testing.T) {
	docs := make([][]int32, 50)
	for i := range docs {
		docs[i] = []int32{int32(i)}
	}
	seen := map[string]string{}
	for seed := range uint64(3) {
		d, err := newDataset(memoryFile(docs), allDocs(len(docs)), 2, seed, true)
		must(t, err)
		for epoch := range 3 {
			e := d.epoch(epoch)
			for what, order := range map[string][]int32{"documents": e.docs, "packs": e.packs} {
				if sorted := slices.Sorted(slices.Values(order)); !slices.Equal(sorted, allDocs(50)) {
					t.Errorf("seed %d epoch %d: the order of %s is no permutation: %v", seed, epoch, what, order)
				}
				name, spelled := fmt.Sprint(what, " of seed ", seed, " epoch ", epoch), fmt.Sprint(order)
				if other, ok := seen[spelled]; ok {
					t.Errorf("%s has the order of %s", name, other)
				}
				seen[spelled] = name
			}
		}
	}
}

func TestAPaddedPackIsMaskedAndEachPositionIsAlone(t *testing.T) {
	p := NewPack(3)
	p.Pad(0, 9)
	want := Pack{[]int32{9, 9, 9}, []int32{-1, -1, -1}, []int32{0, 1, 2}, []int32{0, 0, 0}}
	if diff := cmp.Diff(want, p); diff != "" {
		t.Error(diff)
	}
}

func BenchmarkRead(b *testing.B) {
	docs := make([][]int32, 1000)
	for i := range docs {
		docs[i] = make([]int32, 700)
	}
	d, err := newDataset(memoryFile(docs), allDocs(len(docs)), 512, 1, true)
	must(b, err)
	p := NewPack(512)
	b.SetBytes(4 * 512)
	for i := 0; b.Loop(); i++ {
		d.Read(0, i%d.Packs(), p)
	}
}
