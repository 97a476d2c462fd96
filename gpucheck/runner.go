package gpucheck

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/record"
)

// Runner runs parts, each in a process of its own, one after the other.
type Runner struct {
	// Command is the program that runs a part; the part's name and the file for its Outcome are added.
	Command []string
	// Report is what was found on the machine, and Simulated that there is no GPU.
	Report    cuda.Report
	Simulated bool
	// Log gets what the parts write.
	Log io.Writer
	// Within is the longest that all parts together may take; what does not fit is not run. 0: any time.
	Within time.Duration
	// Say tells how it goes.
	Say func(format string, args ...any)
}

// grace is how long a process that is to stop may take to do so by itself.
const grace = 5 * time.Second

// Run runs the parts and returns what came of them; it blocks, for minutes. That a part fails is no error but in
// the result. An error is ctx's, or that the parts cannot be started.
func (r *Runner) Run(ctx context.Context, s Sizes, parts []Part) (*Result, error) {
	result := &Result{
		Format: Format, Time: time.Now().UTC().Truncate(time.Second), Host: record.ThisHost(), Build: record.ThisBuild(),
		Machine: r.Report, Simulated: r.Simulated,
	}
	dir, err := os.MkdirTemp("", "gofsdp-gpu-check-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	began := time.Now()
	useless := r.Report.State == cuda.Unusable
	if useless { // whatever was asked for, it is the loader that says why
		parts = append([]Part{loaderPart}, slices.DeleteFunc(slices.Clone(parts), func(p Part) bool { return p.Name == loaderPart.Name })...)
	}
	for _, p := range parts {
		if useless && p.Name != loaderPart.Name {
			o := Outcome{Name: p.Name, Claim: p.Claim, State: NotRun, Reason: "no GPU of this machine can be used, which part " + loaderPart.Name + " says more of"}
			result.Parts = append(result.Parts, o)
			continue
		}
		left := p.Within
		if r.Within > 0 {
			left = r.Within - time.Since(began)
		}
		o := r.part(ctx, p, left, filepath.Join(dir, p.Name+".json"))
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		text := string(o.State)
		if o.State != OK {
			text += ": " + firstLine(o.Reason)
		}
		r.Say("%s: %s (%.1f s)", p.Name, text, o.Seconds)
		result.Parts = append(result.Parts, o)
	}
	if useless {
		r.Say("nothing else was run: no GPU of this machine can be used")
	}
	result.Seconds = time.Since(began).Seconds()
	result.judge(s.Models)
	return result, nil
}

// part runs one, for which so much time is left. Whatever becomes of its process, there is an outcome.
func (r *Runner) part(ctx context.Context, p Part, left time.Duration, file string) Outcome {
	within, cancel := context.WithTimeout(ctx, min(p.Within, left))
	defer cancel()
	cmd := exec.CommandContext(within, r.Command[0], append(append([]string{}, r.Command[1:]...), p.Name, file)...)
	end := &ending{}
	cmd.Stdout = io.MultiWriter(r.Log, end)
	cmd.Stderr = cmd.Stdout
	cmd.Env = slices.Concat(os.Environ(), compiledIn(filepath.Dir(file)), ncclIn(filepath.Dir(file)))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = grace
	began := time.Now()
	err := cmd.Run()
	r.keepNCCL(filepath.Dir(file))
	o := Outcome{Name: p.Name, Claim: p.Claim, State: Failed, Seconds: time.Since(began).Seconds()}
	text, unread := os.ReadFile(file)
	switch {
	case within.Err() != nil && left < p.Within:
		o.State, o.Reason = NotRun, fmt.Sprintf("the %v for the whole check were over; gofsdp gpu-check --parts %s runs it alone", r.Within, p.Name)
	case within.Err() != nil:
		o.Reason = fmt.Sprintf("not done after %v; its last words: %s", p.Within, end.text())
	case unread != nil:
		o.Reason = fmt.Sprintf("its process has ended without a result (%v); its last words: %s", err, end.text())
	default:
		took := o.Seconds
		if err := json.Unmarshal(text, &o); err != nil {
			o.State, o.Reason = Failed, fmt.Sprintf("its result cannot be read: %v", err)
		}
		o.Seconds = took // opening the program included
	}
	return o
}

// compiledIn lets the driver keep compiled kernels in a folder where it cannot keep them at home: otherwise every
// part would compile them again, which takes seconds.
func compiledIn(dir string) []string {
	const variable = "CUDA_CACHE_PATH"
	if os.Getenv(variable) != "" {
		return nil
	}
	if home, err := os.UserHomeDir(); err == nil && os.MkdirAll(filepath.Join(home, ".nv"), 0o700) == nil {
		return nil
	}
	return []string{variable + "=" + filepath.Join(dir, "compiled")}
}

// ncclLogs are the files that NCCL writes while a part runs.
const ncclLogs = "nccl.*.log"

// ncclIn lets NCCL say in a file of the folder what it does, since what it says on the standard output is lost when a
// Go process ends, and start what several communicators of a GPU do in one order, as ranks that train have it. What a
// user says to NCCL holds.
func ncclIn(dir string) []string {
	return slices.DeleteFunc(nccl.Settings{}.Environment(dir, 0), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		_, set := os.LookupEnv(name)
		return set
	})
}

// keepNCCL moves what NCCL has said into the log.
func (r *Runner) keepNCCL(dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, ncclLogs)) // the pattern is good
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && len(text) > 0 {
			fmt.Fprintf(r.Log, "=== %s\n%s", filepath.Base(file), text)
		}
		_ = os.Remove(file) // else it is there once more
	}
}

// WriteFile writes an outcome for the Runner.
func (o *Outcome) WriteFile(path string) error {
	text, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return record.WriteFileAtomic(path, text, 0o600)
}

// ending keeps the end of what a process writes.
type ending struct{ end []byte }

func (e *ending) Write(b []byte) (int, error) {
	e.end = append(e.end, b...)
	if most := 8 << 10; len(e.end) > most {
		e.end = append([]byte(nil), e.end[len(e.end)-most:]...)
	}
	return len(b), nil
}

func (e *ending) text() string { return lastLines(string(e.end), 12) }
