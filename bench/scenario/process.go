package scenario

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// grace is how long a command that is to stop may take to do so by itself.
const grace = 5 * time.Second

// process is one run of a command.
type process struct {
	command     []string
	environment []string // besides this one's
	dir         string
	within      time.Duration  // the longest that it may take
	log         io.Writer      // what it writes goes here
	marker      *regexp.Regexp // nil: none is looked for
}

// ended is how a process ended.
type ended struct {
	seconds float64
	marked  float64  // seconds to the marker, 0 where it did not come
	failure *Failure // nil: exit code 0
}

// run runs the process, in a process group of its own, until it and all that it
// started have ended: after an error, too, nothing of it is left. It blocks; an
// error is ctx's, or that the command cannot be started.
func (p *process) run(ctx context.Context) (ended, error) {
	within, cancel := context.WithTimeout(ctx, p.within)
	defer cancel()
	log := &shared{to: p.log}
	said := &tail{}
	cmd := exec.CommandContext(within, p.command[0], p.command[1:]...)
	cmd.Dir = p.dir
	mark := newMark()
	cmd.Env = append(append(os.Environ(), p.environment...), mark)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = grace
	began := time.Now()
	seen := &watch{marker: p.marker, began: began}
	cmd.Stdout, cmd.Stderr = io.MultiWriter(log, seen), io.MultiWriter(log, seen, said)
	kills := memoryKills()
	if err := cmd.Start(); err != nil {
		return ended{}, fmt.Errorf("starting %s: %w", p.command[0], err)
	}
	sacrifice(cmd.Process.Pid)
	err := cmd.Wait()
	e := ended{seconds: time.Since(began).Seconds(), marked: seen.at()}
	swept := sweep(cmd.Process.Pid, mark)
	if cause := ctx.Err(); cause != nil {
		return e, errors.Join(cause, swept)
	}
	if err == nil || errors.Is(err, exec.ErrWaitDelay) && cmd.ProcessState.Success() {
		return e, swept
	}
	e.failure = &Failure{Reason: Failed, Text: said.text()}
	switch {
	case within.Err() != nil:
		e.failure.Reason = TimedOut
	case memoryKills() > kills, saysMemory(e.failure.Text):
		e.failure.Reason = OutOfMemory
	}
	if e.failure.Text == "" {
		e.failure.Text = err.Error()
	}
	return e, swept
}

// saysMemory reports whether a text says that there was too little memory, as C,
// Go, Python and PyTorch do.
func saysMemory(text string) bool {
	text = strings.ToLower(text)
	for _, words := range []string{"memoryerror", "out of memory", "can't allocate memory", "cannot allocate memory"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// shared lets both streams of a process write to one place.
type shared struct {
	mu sync.Mutex
	to io.Writer
}

func (s *shared) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.to.Write(b)
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	end []byte
}

// tailBytes and tailLines are how much of a failure is told.
const (
	tailBytes = 4 << 10
	tailLines = 20
)

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, b...)
	if len(t.end) > 2*tailBytes {
		t.end = append([]byte{}, t.end[len(t.end)-tailBytes:]...)
	}
	return len(b), nil
}

// text returns the last lines.
func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.ToValidUTF8(string(t.end[max(len(t.end)-tailBytes, 0):]), "?")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(len(lines)-tailLines, 0):], "\n")
}

// watch looks for the first line that its marker matches.
type watch struct {
	marker *regexp.Regexp
	began  time.Time

	mu   sync.Mutex
	line []byte
	when float64
}

func (w *watch) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.marker == nil || w.when > 0 {
		return len(b), nil
	}
	for _, c := range b {
		if c != '\n' && c != '\r' {
			w.line = append(w.line, c)
			continue
		}
		if w.marker.Match(w.line) {
			w.when = time.Since(w.began).Seconds()
			break
		}
		w.line = w.line[:0]
	}
	return len(b), nil
}

func (w *watch) at() float64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.when
}
