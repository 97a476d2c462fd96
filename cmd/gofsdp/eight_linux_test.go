package main

import (
	"encoding/csv"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// progressOf returns what a run's directory says of each of its steps.
func progressOf(t *testing.T, dir string) (losses, norms []float64) {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "progress.csv"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	column := map[string]int{}
	for i, name := range lines[0] {
		column[name] = i
	}
	for _, l := range lines[1:] {
		if l[column["loss"]] == "" {
			continue // an evaluation
		}
		loss, err1 := strconv.ParseFloat(l[column["loss"]], 64)
		norm, err2 := strconv.ParseFloat(l[column["grad_norm"]], 64)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		losses, norms = append(losses, loss), append(norms, norm)
	}
	return losses, norms
}

func TestEightRanksOnAMeshTrainAsOneDoes(t *testing.T) {
	t.Parallel()
	run := func(args ...string) (losses, norms []float64) {
		s := begin(t, nil, append([]string{"train", "run.yaml", "--set", "train.steps=3", "--set", "train.batch=16", "--set", "train.lr=0.01", "--set", "train.micro_batch=1"}, args...)...)
		if status := s.end(); status.ExitStatus() != 0 || s.err.Len() > 0 {
			t.Fatalf("%v: exit code %d; it said\n%s%s", args, status.ExitStatus(), &s.out, &s.err)
		}
		return progressOf(t, filepath.Join(s.dir, "runs", "mine"))
	}
	want, wantNorms := run("--ranks", "1")
	if len(want) != 3 {
		t.Fatalf("one rank has the losses %v", want)
	}
	for _, strategy := range []string{"full_shard", "hybrid_shard"} {
		got, norms := run("--ranks", "8", "--mesh", "2x4", "--strategy", strategy)
		if len(got) != len(want) {
			t.Fatalf("%s: eight ranks have the losses %v, one has %v", strategy, got, want)
		}
		for i := range want {
			if math.Abs(got[i]/want[i]-1) > 1e-5 || math.Abs(norms[i]/wantNorms[i]-1) > 1e-4 {
				t.Errorf("%s, step %d: eight ranks have the loss %v and the norm %v, one has %v and %v", strategy, i+1, got[i], norms[i], want[i], wantNorms[i])
			}
		}
	}
}
