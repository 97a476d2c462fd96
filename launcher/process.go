package launcher

import (
	"errors"
	"os/exec"
	"runtime"
	"syscall"
)

// child is a process that was started here, and dies with this one.
type child struct {
	command *exec.Cmd
	ended   chan struct{} // closed when it has ended; then the rest may be read
	code    int           // exit code, where signal is 0
	signal  syscall.Signal
}

// startChild starts a command. A leader gets a process group of its own, and
// takes the whole group with it when it ends; others stay in their parent's.
//
// The kernel signals a parent's death when the *thread* that started the child
// ends, so one thread is kept for each child until that has been waited for.
func startChild(command *exec.Cmd, leader bool) (*child, error) {
	command.SysProcAttr = childAttributes(leader)
	c := &child{command: command, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := command.Start()
		started <- err
		if err != nil {
			return
		}
		if leader {
			endGroupOf(command.Process.Pid)
		}
		c.wait()
		close(c.ended)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

func (c *child) wait() {
	err := c.command.Wait()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
			c.signal = status.Signal()
		} else {
			c.code = status.ExitStatus()
		}
	case err != nil: // nobody knows how it ended
		c.code = exitFailure
	}
}

// kill ends a child at once, stopped or not.
func (c *child) kill() { c.command.Process.Kill() }
