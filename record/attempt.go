package record

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// AttemptsFormat is the format of attempts.json that this package writes.
const AttemptsFormat = 1

// Attempt is one start of a run's processes, from their placement to the end of
// the last. A run in one process has one.
type Attempt struct {
	Number  int              `json:"number"` // from 0
	Began   time.Time        `json:"began"`
	Ended   Value[time.Time] `json:"ended"`
	Outcome Outcome          `json:"outcome"`
	Ranks   int              `json:"ranks"` // of all nodes
	Nodes   []Node           `json:"nodes"` // by number
}

// Node is a machine's part in an attempt.
type Node struct {
	Number int           `json:"number"` // from 0
	Ranks  int           `json:"ranks"`  // that it has
	PID    Value[int]    `json:"pid"`    // of its agent, or of the run's only process
	Host   Value[Host]   `json:"host"`
	ISA    Value[string] `json:"isa"` // the best level that it has; Run.ISA is what computed
	GPUs   Value[GPUs]   `json:"gpus,omitzero"`
}

// NewAttempt returns an attempt that begins now, with so many nodes of so many
// ranks each, of which nothing is known yet.
func NewAttempt(number, nodes, ranks int) Attempt {
	a := Attempt{
		Number: number, Began: time.Now(), Ended: Unknown[time.Time](notEnded), Ranks: nodes * ranks,
		Outcome: Outcome{State: Running, ExitCode: Unknown[int](notEnded)},
	}
	const silent = "the node has not said"
	for i := range nodes {
		a.Nodes = append(a.Nodes, Node{
			Number: i, Ranks: ranks,
			PID: Unknown[int](silent), Host: Unknown[Host](silent), ISA: Unknown[string](silent), GPUs: Unknown[GPUs](silent),
		})
	}
	return a
}

// ThisNode describes this machine as a node; pid and isa are the Node's. Whoever
// knows its GPUs adds them.
func ThisNode(number, ranks, pid int, isa string) Node {
	return Node{Number: number, Ranks: ranks, PID: Known(pid), Host: Known(ThisHost()), ISA: Known(isa)}
}

// End notes how and when the attempt ended.
func (a *Attempt) End(o Outcome) {
	a.Ended = Known(time.Now())
	a.Outcome = o
}

// attempts is attempts.json.
type attempts struct {
	Format   int       `json:"format"`
	Attempts []Attempt `json:"attempts"`
}

// WriteAttempts writes attempts.json, in place of an earlier one. It is the
// launcher's part of the record while the first rank has run.json, so that no
// file has two writers; Conclude brings them together.
func (d *Dir) WriteAttempts(list []Attempt) error {
	return writeJSON(d.AttemptsFile(), attempts{AttemptsFormat, list})
}

// loadAttempts reads an attempts.json. A newer format than AttemptsFormat is
// refused.
func loadAttempts(path string) ([]Attempt, error) {
	var a attempts
	if err := readJSON(path, AttemptsFormat, &a); err != nil {
		return nil, err
	}
	return a.Attempts, nil
}

// Conclude writes run.json with these attempts in it and removes attempts.json,
// and what processes that were killed have left half-written. It is for whoever is
// left when all processes that wrote to the directory have ended. An error leaves
// attempts.json.
func (d *Dir) Conclude(r *Run, list []Attempt) error {
	names, err := os.ReadDir(d.Path())
	if err != nil {
		return err
	}
	for _, n := range names { // first, as a full disk needs the room
		if strings.HasPrefix(n.Name(), ".") && strings.Contains(n.Name(), ".partial-") {
			if err := os.RemoveAll(filepath.Join(d.Path(), n.Name())); err != nil {
				return err
			}
		}
	}
	_ = os.Remove(d.EvidenceDir()) // which is refused where there is anything in it
	r.Attempts = slices.Clone(list)
	if err := d.WriteRun(r); err != nil {
		return err
	}
	if err := os.Remove(d.AttemptsFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing %s, whose content is in %s: %w", d.AttemptsFile(), d.RunFile(), err)
	}
	return nil
}
