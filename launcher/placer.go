package launcher

import (
	"fmt"
	"io"
	"os"
	"os/exec"
)

// Placer starts agents. It is where machines come from: this one, a cluster's.
type Placer interface {
	// Place starts one agent that sees the environment, NAME=value each,
	// besides its own. It returns once the agent has been asked for; an error
	// says why there will be none.
	Place(environment []string) (Placement, error)
}

// Placement is an agent that was asked for.
type Placement interface {
	// Running says whether the agent is known to have been started. From then on
	// it is to be heard within the deadline, and before it may take its time.
	Running() bool
	// Ended is closed when the agent is gone, or will never come.
	Ended() <-chan struct{}
	// How says how it ended, after Ended: "was killed by signal 9 (killed)", and
	// whether because it had lost the launcher, which has another reason.
	How() (how string, lost bool)
	// Kill ends the agent, and all that it started, without waiting for it.
	Kill()
}

// Local places agents on this machine, as child processes that lead process
// groups of their own, so that a terminal's Ctrl-C reaches the launcher alone.
type Local struct {
	Command []string  // what starts an agent: this program and a sub-command
	Stderr  io.Writer // for what an agent itself has to complain about
}

// Place starts the agent at once.
func (l Local) Place(environment []string) (Placement, error) {
	if len(l.Command) == 0 {
		return nil, fmt.Errorf("launcher.Local has no command to start an agent by")
	}
	command := exec.Command(l.Command[0], l.Command[1:]...)
	command.Env = append(os.Environ(), environment...)
	command.Stderr = l.Stderr
	c, err := startChild(command, true)
	if err != nil {
		return nil, fmt.Errorf("starting an agent: %w", err)
	}
	return localPlacement{c}, nil
}

type localPlacement struct{ *child }

func (localPlacement) Running() bool { return true }

func (p localPlacement) Ended() <-chan struct{} { return p.ended }

func (p localPlacement) How() (how string, lost bool) {
	if p.signal != 0 {
		return fmt.Sprintf("was killed by signal %d (%v)", p.signal, p.signal), false
	}
	return fmt.Sprintf("ended with exit code %d", p.code), p.code == exitStopped
}

// Kill is enough for the group: its leader's end takes the others along.
func (p localPlacement) Kill() { p.kill() }
