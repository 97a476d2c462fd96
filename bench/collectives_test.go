package bench

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
)

func TestARankReadsFromOthersWhatACollectiveNeeds(t *testing.T) {
	for _, c := range []struct {
		kind         string
		length, size int64
		want         []int64 // by rank
	}{
		{"all-gather", 8, 2, []int64{4, 4}},
		{"all-gather", 7, 3, []int64{4, 4, 6}}, // parts of 3, 3 and 1
		{"reduce-scatter", 8, 2, []int64{4, 4}},
		{"reduce-scatter", 7, 3, []int64{6, 6, 2}},
		{"all-reduce", 8, 2, []int64{8, 8}},
		{"all-reduce", 8, 4, []int64{12, 12, 12, 12}},
		{"broadcast", 8, 2, []int64{0, 8}},
	} {
		for r, want := range c.want {
			got := kindOf(t, c.kind).reads(c.length, r, int(c.size))
			if got != want {
				t.Errorf("%s of %d by rank %d of %d: %d elements, want %d", c.kind, c.length, r, c.size, got, want)
			}
		}
	}
}

func kindOf(t *testing.T, name string) collectiveKind {
	for _, k := range collectiveKinds {
		if k.name == name {
			return k
		}
	}
	t.Fatalf("no kind %s", name)
	return collectiveKind{}
}

func TestEachKindOfCollectiveIsMeasured(t *testing.T) {
	x := device.Tensor{Type: device.F32, Len: 8}
	for _, want := range []collective.Op{&collective.AllGather{}, &collective.ReduceScatter{}, &collective.AllReduce{}, &collective.Broadcast{}, &collective.Barrier{}} {
		found := false
		for _, k := range collectiveKinds {
			op := k.of(x, 1, 2)
			found = found || device.Name(op) == device.Name(want)
			if err := op.Check(); err != nil {
				t.Errorf("%s: %v", k.name, err)
			}
		}
		if !found {
			t.Errorf("%s is not measured", device.Name(want))
		}
	}
}

func littleCollectives() CollectiveSettings {
	return CollectiveSettings{
		Meshes: Meshes{{Across: 1, Within: 1}, {Across: 1, Within: 2}, {Across: 1, Within: 3}},
		Sizes:  []int64{64, 52}, Threads: 1, Bytes: 320, Least: 2, Most: 5, Working: 130,
	}
}

func TestCollectivesAreMeasuredOverAllRanksTogether(t *testing.T) {
	s := littleCollectives()
	list, err := s.Results(together(t, s.Meshes, s.Measure))
	if err != nil {
		t.Fatal(err)
	}
	const cases = 1 + 4*2 // on each mesh
	if want := 2 * cases; len(list) != want {
		t.Fatalf("%d results, want %d", len(list), want)
	}
	for i, c := range list {
		if want := 2 + i/cases; c.Ranks != want || c.Threads != 1 {
			t.Errorf("result %d is of %d ranks of %d threads, want %d", i, c.Ranks, c.Threads, want)
		}
		n := s.pairs(c.Bytes)
		copies := n
		if c.Kind == "barrier" {
			copies = 0
		}
		if c.Seconds.Count != n || c.Copy.Count != copies || c.Share.Count != copies || c.Seconds.Low <= 0 || (c.Reads > 0) != (copies > 0) {
			t.Errorf("%s of %d bytes: %+v, want %d readings", c.Kind, c.Bytes, c, n)
		}
	}
}

func TestTheNumberOfPairsFollowsFromTheBytes(t *testing.T) {
	s := CollectiveSettings{Bytes: 1000, Least: 3, Most: 20}
	for size, want := range map[int64]int{0: 20, 1: 20, 100: 10, 400: 3, 5000: 3} {
		if got := s.pairs(size); got != want {
			t.Errorf("%d pairs of %d bytes, want %d", got, size, want)
		}
	}
}

func TestACollectiveTakesAsLongAsTheSlowestRankAndSoDoTheCopies(t *testing.T) {
	s := CollectiveSettings{Meshes: Meshes{{Across: 1, Within: 2}}, Sizes: []int64{64}, Threads: 3, Least: 3, Most: 3}
	reported := make([][]Sample, 2)
	for i := range collectiveKinds {
		reported[0] = append(reported[0], Sample{Case: i, Readings: []Reading{{Seconds: 4, Limit: 1}, {Seconds: 4, Limit: 2}, {Seconds: 8, Limit: 2}}})
		reported[1] = append(reported[1], Sample{Case: i, Readings: []Reading{{Seconds: 2, Limit: 2}, {Seconds: 5, Limit: 1}, {Seconds: 1, Limit: 6}}})
	}
	list, err := s.Results(reported)
	if err != nil {
		t.Fatal(err)
	}
	want := Collective{
		Kind: "all-gather", Ranks: 2, Threads: 3, Bytes: 64, Reads: 32,
		Seconds: Spread{5, 4, 8, 3}, Copy: Spread{2, 2, 6, 3}, Share: Spread{0.5, 0.4, 0.75, 3},
	}
	if diff := cmp.Diff(want, list[1]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if list[0].Kind != "barrier" || list[0].Seconds != want.Seconds || list[0].Share != (Spread{}) {
		t.Errorf("barrier: %+v, want times alone", list[0])
	}
	if list[4].Kind != "broadcast" || list[4].Reads != 64 {
		t.Errorf("broadcast: %+v, want the bytes of whoever reads", list[4])
	}
	if _, err := s.Results([][]Sample{reported[0], nil}); err == nil {
		t.Error("a rank that has reported nothing is no error")
	}
}

func TestCollectivesThatCannotBeMeasuredAreRefused(t *testing.T) {
	ok := littleCollectives()
	if err := ok.Check(device.Info{Memory: math.MaxInt64}); err != nil {
		t.Error(err)
	}
	for sentence, change := range map[string]func(*CollectiveSettings) int64{
		"a mesh of two nodes": func(s *CollectiveSettings) int64 {
			s.Meshes = append(s.Meshes, Meshes{{Across: 2, Within: 2}}...)
			return 0
		},
		"half a number":        func(s *CollectiveSettings) int64 { s.Sizes[0] = 6; return 0 },
		"nothing":              func(s *CollectiveSettings) int64 { s.Sizes[1] = 0; return 0 },
		"more than the memory": func(s *CollectiveSettings) int64 { return 3*3*130 - 1 },
	} {
		s := littleCollectives()
		if memory := change(&s); s.Check(device.Info{Memory: memory}) == nil {
			t.Errorf("%s is not refused", sentence)
		}
	}
}
