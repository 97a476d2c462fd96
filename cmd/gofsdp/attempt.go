package main

import (
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"sync"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/launcher"
	"github.com/gofsdp/gofsdp/record"
)

// describe fills in what the run knows of its record.
func (j *job) describe() {
	j.run.Describe(j.rec)
	j.rec.Device = record.Known(j.on.kind)
	p := j.run.Plan
	j.rec.Mesh = record.Known(p.Mesh.String())
	j.rec.Strategy = record.Known(string(cmp.Or(p.Strategy, fsdp.NoShard)))
}

// alone notes the only attempt of a run in this process.
func (j *job) alone() error {
	here, err := thisMachine()
	if err != nil {
		return err
	}
	a := record.NewAttempt(0, 1, 1)
	a.Nodes[0] = record.ThisNode(0, 1, os.Getpid(), here.ISA)
	a.Nodes[0].GPUs = j.on.gpus.record()
	j.rec.Attempts = append(j.rec.Attempts, a)
	return nil
}

// nodeReport is the kind of report by which the first rank of a node tells the
// launcher what the node is.
const nodeReport = "node"

// introduce tells the launcher what this rank's node is; one rank of each does.
func introduce(client *launcher.Client, here machine, its *gpus) error {
	start := client.Start()
	if start.LocalRank != 0 {
		return nil
	}
	node := record.ThisNode(start.Node, start.LocalRanks, os.Getppid(), here.ISA)
	node.GPUs = its.record()
	text, err := json.Marshal(node)
	if err != nil {
		return err
	}
	return client.Report(nodeReport, string(text))
}

// attempt keeps the launcher's record of one, beside those before.
type attempt struct {
	dir    *record.Dir
	before []record.Attempt
	writes sync.WaitGroup

	writing sync.Mutex // held while the file is written
	mutex   sync.Mutex // held for what follows
	now     record.Attempt
}

// beginAttempt writes that an attempt begins.
func beginAttempt(dir *record.Dir, before []record.Attempt, nodes, ranks int) (*attempt, error) {
	a := &attempt{dir: dir, before: before, now: record.NewAttempt(len(before), nodes, ranks)}
	return a, a.write()
}

// all returns the attempts as they are now.
func (a *attempt) all() []record.Attempt {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	now := a.now
	now.Nodes = slices.Clone(now.Nodes)
	return append(slices.Clone(a.before), now)
}

func (a *attempt) write() error {
	a.writing.Lock()
	defer a.writing.Unlock()
	return a.dir.WriteAttempts(a.all())
}

// report is for launcher.Job.OnReport: it takes what a node says of itself. The
// launcher does not wait for the disk; what could not be written is again when
// the attempt ends.
func (a *attempt) report(_ int, kind, text string) {
	var n record.Node
	if kind != nodeReport || json.Unmarshal([]byte(text), &n) != nil {
		return
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	if n.Number < 0 || n.Number >= len(a.now.Nodes) {
		return
	}
	a.now.Nodes[n.Number] = n
	a.writes.Go(func() { a.write() })
}

// end notes how the attempt ended, once nobody reports any more, and returns
// all attempts.
func (a *attempt) end(o record.Outcome) []record.Attempt {
	a.writes.Wait()
	a.mutex.Lock()
	a.now.End(o)
	a.mutex.Unlock()
	return a.all()
}
