package bench

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
)

// together runs f for each rank of the meshes' world, in this process, and
// returns what each has reported.
func together(t *testing.T, meshes Meshes, f func(ctx context.Context, m *Member) error) [][]Sample {
	t.Helper()
	world := meshes.World()
	ends := make([][]collective.Comm, world)
	for i, g := range meshes.Groups() {
		comms := collective.NewGroup(len(g), time.Minute)
		for r := range world {
			ends[r] = append(ends[r], nil)
		}
		for place, r := range g {
			ends[r][i] = comms[place]
		}
	}
	all := collective.NewGroup(world, time.Minute)
	reported, errs := make([][]Sample, world), make([]error, world)
	var wait sync.WaitGroup
	for r := range world {
		wait.Go(func() {
			dev := metered{device.NewReference(), said}
			stream := dev.NewStream("meet")
			meet, err := all[r].Bind(&collective.Barrier{Name: "all"})
			if err == nil {
				err = f(t.Context(), &Member{
					Rank: r, Device: dev, Ends: ends[r], Log: quiet,
					Meet:   func(context.Context) error { stream.Launch(meet[0]); return stream.Sync() },
					Report: func(s Sample) error { reported[r] = append(reported[r], s); return nil },
				})
			}
			if err != nil {
				all[r].Abort(err)
				for _, c := range ends[r] {
					if c != nil {
						c.Abort(err)
					}
				}
			}
			errs[r] = errors.Join(err, dev.Close())
		})
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	return reported
}

func TestNumbersOfRanksHaveTheirMeshes(t *testing.T) {
	m, err := MeshesOf(1, 2, 3, 4)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := m.String(), "1x1,1x2,1x3,1x4,2x2"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	read, err := ParseMeshes(m.String())
	if diff := cmp.Diff(m, read); diff != "" || err != nil {
		t.Errorf("read again: %v %s", err, diff)
	}
	if m.World() != 4 {
		t.Errorf("a world of %d ranks, want 4", m.World())
	}
	for _, bad := range [][]int{{0}, {2, 3, 2}} {
		if m, err := MeshesOf(bad...); err == nil {
			t.Errorf("%v ranks have meshes %v", bad, m)
		}
	}
	if m, err := ParseMeshes("1x2,2"); err == nil {
		t.Errorf("read %v", m)
	}
}

func TestARankHasTheEndsOfEachMeshThatItIsIn(t *testing.T) {
	m := Meshes{{Across: 1, Within: 2}, {Across: 2, Within: 2}}
	groups := m.Groups()
	for r := range m.World() {
		// Ends that know which group they are of.
		ends := make([]collective.Comm, len(groups))
		for i, g := range groups {
			if p := slices.Index(g, r); p >= 0 {
				ends[i] = numbered{collective.NewGroup(len(g), time.Second)[p], i}
			}
		}
		pair, square := m.comms(0, ends), m.comms(1, ends)
		if in := pair.Gather[fsdp.Within] != nil; in != (r < 2) || pair.Gather[fsdp.Across] != nil {
			t.Errorf("rank %d of the pair: %+v", r, pair)
		}
		for _, a := range []fsdp.Axis{fsdp.Across, fsdp.Within} {
			g := square.Gather[a].(numbered)
			if groups[g.group][m[1].At(r, a)] != r || g.group < 2 || g.Rank() != m[1].At(r, a) {
				t.Errorf("rank %d has the end %d of group %v %s", r, g.Rank(), groups[g.group], a)
			}
		}
	}
}

type numbered struct {
	collective.Comm
	group int
}

func TestReadingsThatAreMissingAreAnError(t *testing.T) {
	one := []Reading{{Seconds: 1}}
	reported := [][]Sample{{{Case: 0, Readings: one}, {Case: 1, Readings: one}, {Case: 0, Readings: one}}, {{Case: 0, Readings: slices.Repeat(one, 2)}}}
	if got, err := readings(reported, 2, 0, 2); err != nil || len(got) != 2 || len(got[0]) != 2 || len(got[1]) != 2 {
		t.Errorf("%v, %v", got, err)
	}
	for sentence, n := range map[string]int{"too few": 3, "too many": 1} {
		if got, err := readings(reported, 2, 0, n); err == nil {
			t.Errorf("%s: %v", sentence, got)
		}
	}
	if got, err := readings(reported, 2, 1, 1); err == nil {
		t.Errorf("a rank that has not reported: %v", got)
	}
}
