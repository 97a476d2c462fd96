package record

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestARecordTakesTheAttemptsOfItsLauncherWhileTheRunGoesOn(t *testing.T) {
	d := create(t)
	list := []Attempt{NewAttempt(0, 2, 4), NewAttempt(1, 1, 4)}
	list[0].Nodes[1] = ThisNode(1, 4, 815, "avx2")
	list[0].End(OutcomeOf(5, "rank 7 was lost"))
	// Each has a file of its own, in whatever order they write.
	if err := errors.Join(d.WriteAttempts(list), d.WriteRun(NewRun())); err != nil {
		t.Fatal(err)
	}
	r, err := d.ReadRun()
	if err != nil {
		t.Fatal(err)
	}
	if alone, err := LoadRun(d.RunFile()); err != nil || len(alone.Attempts) != 0 || len(r.Attempts) != 2 {
		t.Fatalf("run.json has %d attempts (%v), the record %d; want 0 and 2", len(alone.Attempts), err, len(r.Attempts))
	}
	first, second := r.Attempts[0], r.Attempts[1]
	if code, _ := first.Outcome.ExitCode.Get(); first.Outcome.State != Failed || code != 5 || first.Ranks != 8 || len(first.Nodes) != 2 {
		t.Errorf("the first attempt is %+v", first)
	}
	if ended, known := first.Ended.Get(); !known || ended.Before(first.Began) {
		t.Errorf("the first attempt ended at %v", first.Ended)
	}
	told, silent := first.Nodes[1], first.Nodes[0]
	if pid, _ := told.PID.Get(); pid != 815 || told.Ranks != 4 || told.Number != 1 || told.ISA != Known("avx2") {
		t.Errorf("the node that said what it is: %+v", told)
	}
	if h, known := told.Host.Get(); !known || h != ThisHost() {
		t.Errorf("its machine is %+v", told.Host)
	}
	if _, known := silent.Host.Get(); known || silent.Host.Reason() != "the node has not said" || silent.Ranks != 4 {
		t.Errorf("the node that said nothing: %+v", silent)
	}
	if second.Number != 1 || second.Outcome.State != Running || second.Ended.Reason() == "" {
		t.Errorf("the second attempt is %+v", second)
	}
}

func TestOneFileIsLeftOfARunThatHasEnded(t *testing.T) {
	d := create(t)
	list := []Attempt{NewAttempt(0, 1, 2)}
	if err := d.WriteAttempts(list); err != nil {
		t.Fatal(err)
	}
	list[0].End(OutcomeOf(0, ""))
	if err := errors.Join(d.MakeEvidence(), d.MakeEvidence()); err != nil { // as by several that have some
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing to remove
		half := []string{filepath.Join(d.Path(), ".model.partial-0badcafe"), filepath.Join(d.Path(), ".run.json.partial-0badcafe")}
		if err := errors.Join(os.Mkdir(half[0], 0o777), os.WriteFile(filepath.Join(half[0], "shard"), nil, 0o666), os.WriteFile(half[1], nil, 0o666)); err != nil {
			t.Fatal(err)
		}
		if err := d.Conclude(NewRun(), list); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, d.Path()); !slices.Equal(got, []string{"logs", "run.json"}) {
		t.Errorf("the directory holds %q", got)
	}
	file := filepath.Join(d.EvidenceDir(), "nccl.log")
	if err := errors.Join(d.MakeEvidence(), os.WriteFile(file, []byte("x"), 0o666), d.Conclude(NewRun(), list)); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("evidence is gone: %v", err)
	}
	r, err := d.ReadRun()
	if err != nil || len(r.Attempts) != 1 || r.Attempts[0].Outcome.State != Succeeded {
		t.Errorf("the record has the attempts %+v (%v)", r.Attempts, err)
	}
}

func TestANodesGPUsAreReadAsTheyWereWritten(t *testing.T) {
	d := create(t)
	a := NewAttempt(0, 2, 1)
	a.Nodes[0] = ThisNode(0, 1, 7, "avx2")
	a.Nodes[0].GPUs = Known(GPUs{
		Devices: []GPU{{"NVIDIA L4", "GPU-1", "0000:31:00.0", "8.9", 58, 24 << 30}},
		Driver:  LibraryFile{Known("/usr/lib/libcuda.so.535.161.08"), Known("535.161.08")}, CUDA: Known("12.2"),
		BLASLt: LibraryFile{Unknown[string]("it is not here"), Unknown[string]("it is not here")},
	})
	if err := d.WriteAttempts([]Attempt{a}); err != nil {
		t.Fatal(err)
	}
	list, err := loadAttempts(d.AttemptsFile())
	if err != nil {
		t.Fatal(err)
	}
	was, _ := a.Nodes[0].GPUs.Get()
	is, known := list[0].Nodes[0].GPUs.Get()
	if !known || len(is.Devices) != 1 || is.Devices[0] != was.Devices[0] || is.Driver != was.Driver || is.CUDA != was.CUDA || is.BLASLt != was.BLASLt {
		t.Errorf("read as %+v, want %+v", is, was)
	}
	if why := list[0].Nodes[1].GPUs.Reason(); why != "the node has not said" {
		t.Errorf("of the other node they are not known because %s", why)
	}
}

func TestARecordThatCannotBeWrittenKeepsTheAttempts(t *testing.T) {
	d := create(t)
	list := []Attempt{NewAttempt(0, 1, 2)}
	if err := errors.Join(d.WriteAttempts(list), os.Mkdir(d.RunFile(), 0o777)); err != nil {
		t.Fatal(err)
	}
	says(t, d.Conclude(NewRun(), list), d.RunFile())
	if kept, err := loadAttempts(d.AttemptsFile()); err != nil || len(kept) != 1 {
		t.Errorf("attempts.json has %d (%v)", len(kept), err)
	}
}

func TestDamagedAttemptsAreNamedAndNotPassedOver(t *testing.T) {
	d := create(t)
	if err := d.WriteRun(NewRun()); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ text, want string }{
		"a newer format": {`{"format":2,"attempts":1}`, "format 2, this program reads up to 1"},
		"half a file":    {`{"format":1,`, "unexpected end"},
		"no format":      {`{"attempts":[]}`, "no format number"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(d.AttemptsFile(), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := d.ReadRun()
			says(t, err, d.AttemptsFile(), c.want)
		})
	}
}

// As with the other golden files of format 1, what they say must stay readable
// under the same names.
func TestAttemptsOfFormatOneStayReadable(t *testing.T) {
	list, err := loadAttempts("testdata/attempts.v1.json")
	if err != nil {
		t.Fatal(err)
	}
	keeps(t, "testdata/attempts.v1.json", attempts{AttemptsFormat, list})
	run, err := LoadRun("testdata/run.v1.ranks.json")
	if err != nil {
		t.Fatal(err)
	}
	keeps(t, "testdata/run.v1.ranks.json", run)
	if len(list) != 2 || len(run.Attempts) != 2 || run.Mesh != Known("2x4") || run.Strategy != Known("hybrid_shard") {
		t.Errorf("read %d attempts, and %d of a run with mesh %v and strategy %v", len(list), len(run.Attempts), run.Mesh, run.Strategy)
	}
	if h, known := list[0].Nodes[1].Host.Get(); !known || h.Name != Known("node-b") {
		t.Errorf("the second node is %+v", list[0].Nodes[1])
	}
}
