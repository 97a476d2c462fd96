package fsdp

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"testing"

	"github.com/gofsdp/gofsdp/device"
)

// takes repeats a step and looks at what the process takes, at step 5 and at the
// last.
func takes(e *Engine, steps int) (x taken, err error) {
	if _, err = steady(e, 0, 5); err != nil {
		return x, err
	}
	if x.AtFive, err = resident(); err != nil {
		return x, err
	}
	if x.Allocated, err = steady(e, 5, steps); err != nil {
		return x, err
	}
	x.AtEnd, err = resident()
	return x, err
}

// resident returns the process's memory in RAM: its own, and what it has touched
// of files of memory.
func resident() (bytes int64, err error) {
	debug.FreeOSMemory()
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	found := 0
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var kind string
		var n int64
		if _, err := fmt.Sscanf(lines.Text(), "%s %d kB", &kind, &n); err == nil && (kind == "RssAnon:" || kind == "RssShmem:") {
			bytes += n << 10
			found++
		}
	}
	if err := lines.Err(); err != nil || found != 2 {
		return 0, errors.Join(err, errors.New("the system does not say how much memory a process has"))
	}
	return bytes, nil
}

// A leak of a few bytes an element and step would be many times these limits.
func TestAProcessTakesThePlansMemoryAndPeersWindowsAndStaysSo(t *testing.T) {
	big := twoBlocks(true)
	big.Vocab, big.Hidden = 12_011, 132
	for what, c := range map[string]struct {
		Options
		sharing, steps int
		runtimes       uint64 // see wantNone; over TCP more goroutines wait in more ways
	}{
		"a large plan, in shared memory":              {Options{Model: big, Mesh: Mesh{1, 2}, Strategy: FullShard}, 2, 8, 0},
		"a large plan, all weights":                   {Options{Model: big, Mesh: Mesh{1, 2}, Strategy: NoShard, Offload: OffloadAll}, 2, 8, 0},
		"a small plan, in shared memory":              {Options{Model: twoBlocks(true), Mesh: Mesh{1, 3}, Strategy: FullShard}, 3, 200, 2},
		"a small plan, in shared memory of two nodes": {Options{Model: twoBlocks(true), Mesh: Mesh{1, 4}, Strategy: HybridShard}, 2, 80, 14},
	} {
		t.Run(what, func(t *testing.T) {
			o := toTrain(c.Options)
			o.Seqs, o.SeqLen, o.Prefetch = 1, 7, 1
			p, err := NewPlan(o)
			if err != nil {
				t.Fatal(err)
			}
			for rank, s := range processes(t, job{Options: o, Sharing: c.sharing, Steps: c.steps, Steady: true}) {
				x, peers := s.Taken, int64(c.sharing-1)*p.Arenas[device.Shared].Bytes
				// Behind the plan: what Go, threads and connections take, and pages that
				// are not full.
				const slack = 16 << 20
				if took := x.AtFive - x.Before; took > p.Bytes()+peers+slack || took < p.Bytes()/2 {
					t.Errorf("rank %d takes %d bytes, the plan says %d, and %d of its peers' windows", rank, took, p.Bytes(), peers)
				}
				if grown := x.AtEnd - x.AtFive; grown > 4<<20 {
					t.Errorf("rank %d takes %d bytes more in step %d than in step 5", rank, grown, c.steps)
				}
				if c.steps >= 80 {
					wantNone(t, fmt.Sprintf("rank %d", rank), x.Allocated, c.runtimes)
				}
			}
		})
	}
}
