//go:build sim && cgo && linux

package sim_test

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/cuda/sim"
)

// performer is a process, this one or another.
type performer interface{ perform(o order) reply }

func TestRanksOfSeveralProcessesGetTheSameBitsAsThoseOfOne(t *testing.T) {
	for _, placement := range [][][]int{
		{{0}, {1}},
		{{0}, {1}, {2}, {3}},
		{{0, 3}, {1, 2}},
	} {
		t.Run(fmt.Sprint(placement), func(t *testing.T) {
			n := 0
			for _, mine := range placement {
				n += len(mine)
			}
			r := ranks(t, n, sim.Config{})
			want := r.workout(n, everyoneOf(n))
			var all []*process
			for range placement {
				all = append(all, launch(t, sim.NCCL{}))
			}
			id := all[len(all)-1].perform(order{Do: "id"}).ID
			for i, p := range all {
				for _, k := range placement[i] {
					r.says(int(p.perform(order{Do: "join", ID: id, Ranks: n, Rank: k, Device: k}).Result), sim.NCCLInProgress)
				}
			}
			for i, p := range all {
				for _, k := range placement[i] {
					r.says(int(p.perform(order{Do: "until", Rank: k}).Result), sim.NCCLSuccess)
				}
				p.tells(order{Do: "workout", Ranks: n, Mine: placement[i]})
			}
			got := map[int][]byte{}
			for i, p := range all {
				maps.Copy(got, p.replies().Digests)
				p.tells(order{Do: "finish", Mine: placement[i]})
			}
			for _, p := range all {
				p.replies()
			}
			for k := range n {
				if len(want[k]) == 0 || !bytes.Equal(got[k], want[k]) {
					t.Errorf("rank %d: %x, want %x", k, got[k], want[k])
				}
			}
		})
	}
}

// everyoneOf is all of n ranks.
func everyoneOf(n int) (list []int) {
	for k := range n {
		list = append(list, k)
	}
	return list
}

// together joins ranks, each of a process, by the id of the first, and returns when all are ready.
func together(t *testing.T, all ...performer) {
	t.Helper()
	id := all[0].perform(order{Do: "id"}).ID
	for k, p := range all {
		if a := p.perform(order{Do: "join", ID: id, Ranks: len(all), Rank: k, Device: k}); a.Result != sim.NCCLInProgress {
			t.Fatalf("rank %d: %v, %s", k, a.Result, a.Text)
		}
	}
	for k, p := range all {
		is(t, p, k, sim.NCCLSuccess)
	}
}

// is demands how a communicator becomes.
func is(t *testing.T, p performer, rank int, want sim.NCCLResult) {
	t.Helper()
	if a := p.perform(order{Do: "until", Rank: rank, Want: want}); a.Result != want {
		t.Fatalf("rank %d: %v, want %v", rank, a.Result, want)
	}
}

// starts lets a rank start an all-reduce.
func starts(t *testing.T, p performer, rank int, count uint64) {
	t.Helper()
	if a := p.perform(order{Do: "reduce", Rank: rank, Count: count}); a.Result != sim.NCCLInProgress {
		t.Fatalf("rank %d: %v, %s", rank, a.Result, a.Text)
	}
	is(t, p, rank, sim.NCCLSuccess)
}

// waits demands that a rank's stream has work.
func waits(t *testing.T, p performer, rank int) {
	t.Helper()
	if a := p.perform(order{Do: "query", Rank: rank}); a.Text != sim.NotReady.String() {
		t.Errorf("rank %d: the stream says %s", rank, a.Text)
	}
}

// here is this process, with devices as the others have them.
func here(t *testing.T) *apart { return devices(t, maximum, sim.Config{}) }

func TestTheOthersAreToldOfAProcessThatIsKilled(t *testing.T) {
	for name, order := range map[string]func(mine, other, killed performer) []performer{
		"of a rank":                 func(mine, other, killed performer) []performer { return []performer{mine, other, killed} },
		"whose unique id they have": func(mine, other, killed performer) []performer { return []performer{killed, other, mine} },
	} {
		t.Run(name, func(t *testing.T) {
			r, other, killed := here(t), launch(t, sim.NCCL{}), launch(t, sim.NCCL{})
			all := order(r, other, killed)
			together(t, all...)
			for k, p := range all {
				if p != performer(killed) {
					starts(t, p, k, 100)
				}
			}
			killed.kill()
			for k, p := range all {
				if p != performer(killed) {
					is(t, p, k, sim.NCCLRemoteError)
					waits(t, p, k)
					p.perform(orderOf("abort", k))
				}
			}
		})
	}
}

func orderOf(do string, rank int) order { return order{Do: do, Rank: rank, Device: rank} }

func TestAProcessThatLeavesInOrderLeavesTheOthersWaiting(t *testing.T) {
	for name, whose := range map[string]int{"of a rank": 2, "whose unique id they have": 0} {
		t.Run(name, func(t *testing.T) {
			r, other, leaves := here(t), launch(t, sim.NCCL{}), launch(t, sim.NCCL{})
			all := []performer{r, other, leaves}
			all[whose], all[2] = all[2], all[whose]
			together(t, all...)
			for k, p := range all {
				starts(t, p, k, 100)
			}
			for k, p := range all {
				if p != performer(leaves) {
					starts(t, p, k, 200)
				}
			}
			leaves.perform(orderOf("abort", whose))
			leaves.end()
			for k, p := range all {
				if p != performer(leaves) {
					is(t, p, k, sim.NCCLSuccess)
					waits(t, p, k)
					p.perform(orderOf("abort", k))
				}
			}
		})
	}
}

func TestProcessesWithDifferentVersionsOfNCCLAreTold(t *testing.T) {
	r, other := here(t), launch(t, sim.NCCL{Version: 22800})
	id := r.perform(order{Do: "id"}).ID
	for k, p := range []performer{r, other} {
		r.says(int(p.perform(order{Do: "join", ID: id, Ranks: 2, Rank: k, Device: k}).Result), sim.NCCLInProgress)
	}
	for k, p := range []performer{r, other} {
		is(t, p, k, sim.NCCLInvalidUsage)
		if a := p.perform(order{Do: "reduce", Rank: k, Count: 1}); a.Result != sim.NCCLInvalidUsage || !strings.Contains(a.Text, "Mismatched NCCL version detected: rank 0 version 22907 rank 1 version 22800") {
			t.Errorf("rank %d: %v, %s", k, a.Result, a.Text)
		}
		p.perform(orderOf("abort", k))
	}
}

func TestAGPUIsOneInAllProcessesOfAHost(t *testing.T) {
	for _, c := range []struct {
		host string
		want sim.NCCLResult
	}{{"", sim.NCCLInvalidUsage}, {"another", sim.NCCLSuccess}} {
		r, other := here(t), launch(t, sim.NCCL{}, "NCCL_HOSTID="+c.host)
		id := r.perform(order{Do: "id"}).ID
		for k, p := range []performer{r, other} {
			r.says(int(p.perform(order{Do: "join", ID: id, Ranks: 2, Rank: k, Device: 3}).Result), sim.NCCLInProgress)
		}
		for k, p := range []performer{r, other} {
			is(t, p, k, c.want)
			p.perform(orderOf("abort", k))
		}
		r.m.Close() // another one comes
	}
}

func TestProcessesThatDoNotJoinTheSameAreRefused(t *testing.T) {
	r, other, third := here(t), launch(t, sim.NCCL{}), launch(t, sim.NCCL{})
	// A rank can be taken once.
	id := r.perform(order{Do: "id"}).ID
	r.says(int(r.perform(order{Do: "join", ID: id, Ranks: 2}).Result), sim.NCCLInProgress)
	if a := other.perform(order{Do: "join", ID: id, Ranks: 2, Device: 1}); a.Result != sim.NCCLInternalError || !strings.Contains(a.Text, "rank 0 of 2 ranks has already checked in") {
		t.Errorf("%v, %s", a.Result, a.Text)
	}
	// With another number of ranks all wait.
	r.says(int(other.perform(order{Do: "join", ID: id, Ranks: 3, Rank: 1, Device: 1}).Result), sim.NCCLInProgress)
	if a := other.perform(order{Do: "faults"}); !strings.Contains(a.Text, "mismatch in rank count from procs 2 : 3") {
		t.Errorf("faults: %s", a.Text)
	}
	other.perform(orderOf("abort", 1))
	// Nobody listens any more.
	id = third.perform(order{Do: "id"}).ID
	third.end()
	if a := other.perform(order{Do: "join", ID: id, Ranks: 2, Device: 1}); a.Result != sim.NCCLRemoteError || !strings.Contains(a.Text, "nobody listens where this unique id says") {
		t.Errorf("%v, %s", a.Result, a.Text)
	}
}

func TestRanksOfProcessesThatDoNotDoTheSameAreTold(t *testing.T) {
	r, other := here(t), launch(t, sim.NCCL{})
	together(t, r, other)
	for k, p := range []performer{r, other} {
		if a := p.perform(order{Do: "reduce", Rank: k, Count: uint64(1 + k)}); a.Result != sim.NCCLInProgress {
			t.Fatalf("rank %d: %v, %s", k, a.Result, a.Text)
		}
	}
	is(t, r, 0, sim.NCCLSuccess) // asking moves the call on
	is(t, other, 1, sim.NCCLInvalidUsage)
	is(t, r, 0, sim.NCCLInvalidUsage)
	for k, p := range []performer{r, other} {
		waits(t, p, k) // nothing ends by itself
		if a := p.perform(order{Do: "faults"}); !strings.Contains(a.Text, "message truncated: collective 0 is ncclAllReduce of 1 of type 7, root -1 on rank 0 and ncclAllReduce of 2") {
			t.Errorf("rank %d: faults: %s", k, a.Text)
		}
		p.perform(orderOf("abort", k))
	}
}
