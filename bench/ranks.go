package bench

import (
	"context"
	"fmt"
	"strings"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/fsdp"
)

// Member is one rank's process as it takes part in a measurement of several.
type Member struct {
	Rank int
	// Device computes with the threads of this rank alone, or is its GPU. The other
	// ranks read its Shared memory.
	Device device.Device
	Ends   []collective.Comm // its ends of Meshes.Groups, nil where it is in none
	// Meet returns when all ranks of the run have come to it. Whoever waits there
	// takes no core from those that measure, however long.
	Meet func(ctx context.Context) error
	// Report hands over what this rank has measured.
	Report func(Sample) error
	// Log tells what begins. It is called on the first rank alone.
	Log func(format string, args ...any)
}

// Sample is what one rank measured of one case, which may be a part of it.
type Sample struct {
	Case     int       `json:"case"` // as the settings count them
	Readings []Reading `json:"readings"`
	// Of a training step: the memory that the rank's plan takes; the process's
	// greatest resident memory in the turn's steps after the first, or at the first
	// one's end, 0 where that is not known, and on a GPU what the process has taken of
	// the GPU's for the turn; the loss of each step of the turn, over all ranks.
	Bytes  int64     `json:"arena_bytes,omitempty"`
	Memory int64     `json:"peak_bytes,omitempty"`
	Losses []float64 `json:"losses,omitempty"`
}

// Reading is one measurement with the limit at that moment.
type Reading struct {
	Seconds float64 `json:"seconds"`
	// Limit is, of a collective, the seconds in which this rank copied the bytes
	// that it reads from others; of a step, the FLOP/s that its threads could do
	// just before and after. Of a collective between GPUs it is 0.
	Limit float64 `json:"limit"`
	// Cores is, of a step, the part of the time that a thread of this rank had a
	// core; 0 where a GPU computes.
	Cores float64 `json:"cores,omitempty"`
}

// readings returns those of a case by rank, for ranks that have reported n each.
func readings(reported [][]Sample, ranks, number, n int) ([][]Reading, error) {
	all := make([][]Reading, ranks)
	for r := range all {
		for _, s := range reported[r] {
			if s.Case == number {
				all[r] = append(all[r], s.Readings...)
			}
		}
		if len(all[r]) != n {
			return nil, fmt.Errorf("bench: rank %d has reported %d of the %d measurements of case %d", r, len(all[r]), n, number)
		}
	}
	return all, nil
}

// Meshes are those that a measurement takes place on, all by the processes of
// one run: a mesh of n ranks is of the first n. So what is compared alternates,
// and what disturbs the machine for a while disturbs all of it.
type Meshes []fsdp.Mesh

// MeshesOf returns the meshes for numbers of ranks: for each number one node
// with that many and, where it is even and not below four, two nodes with half
// as many each. Numbers that are less than 1 or come twice are an error.
func MeshesOf(ranks ...int) (Meshes, error) {
	var all Meshes
	seen := map[int]bool{}
	for _, n := range ranks {
		if n < 1 || seen[n] {
			return nil, fmt.Errorf("ranks: %d of %v is less than 1 or there twice", n, ranks)
		}
		seen[n] = true
		all = append(all, fsdp.Mesh{Across: 1, Within: n})
		if n >= 4 && n%2 == 0 {
			all = append(all, fsdp.Mesh{Across: 2, Within: n / 2})
		}
	}
	return all, nil
}

// ParseMeshes reads meshes as String writes them.
func ParseMeshes(text string) (Meshes, error) {
	var all Meshes
	for part := range strings.SplitSeq(text, ",") {
		m, err := fsdp.ParseMesh(part)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

func (m Meshes) String() string {
	var parts []string
	for _, mesh := range m {
		parts = append(parts, mesh.String())
	}
	return strings.Join(parts, ",")
}

// World returns the number of processes that the largest mesh needs.
func (m Meshes) World() int {
	most := 1
	for _, mesh := range m {
		most = max(most, mesh.Size())
	}
	return most
}

// Groups lists the groups of all meshes, as fsdp.Mesh.Groups does for one.
func (m Meshes) Groups() (groups [][]int) {
	for _, mesh := range m {
		groups = append(groups, mesh.Groups()...)
	}
	return groups
}

// comms returns a rank's ends of the groups of the i-th mesh.
func (m Meshes) comms(i int, ends []collective.Comm) fsdp.Comms {
	from := len(m[:i].Groups())
	return m[i].Comms(ends[from : from+len(m[i].Groups())])
}
