package fsdp

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/device"
)

// Ranks that share memory are processes of this binary. They read a job from
// their input, have the files of their node from descriptor 3 on, and write what
// came of it to their output.

// rankVariable tells a process that it is one.
const rankVariable = "GOFSDP_TEST_RANK"

func TestMain(m *testing.M) {
	if os.Getenv(rankVariable) == "" {
		goleak.VerifyTestMain(m)
		return
	}
	if err := beRank(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// job is what a rank has to do.
type job struct {
	Options
	Steps, Sequences int
	Seed             uint64
	Longest          time.Duration // of its rests; 0: none
}

// beRank does a rank's job.
func beRank() error {
	var j job
	if err := gob.NewDecoder(os.Stdin).Decode(&j); err != nil {
		return err
	}
	runtime.GOMAXPROCS(8) // as the program has it: a rank that waits keeps one
	g := inSharedMemory(j.Mesh)
	if j.Longest > 0 {
		g = delayed(g, j.Seed, j.Longest)
	}
	var s share
	err := onGround(j.Options, g, func(e *Engine) (err error) {
		s, err = trainRank(e, j.Steps, j.Sequences)
		return err
	})
	return errors.Join(err, goleak.Find(), gob.NewEncoder(os.Stdout).Encode(s))
}

// inSharedMemory is the ground of a rank that has inherited its node's files.
func inSharedMemory(m Mesh) ground {
	return func(rank int) (device.Device, Comms, func() error, error) {
		var files []*os.File
		for i := range m.Size() + len(m.Groups()) {
			files = append(files, os.NewFile(uintptr(3+i), fmt.Sprintf("inherited %d", i)))
		}
		node, err := collective.OpenNode(files, rank, m.Size(), m.Groups(), time.Minute)
		if err != nil {
			return nil, Comms{}, nil, err
		}
		dev, err := cpu.New(cpu.Options{Threads: 1, Window: node.Window})
		if err != nil {
			return nil, Comms{}, nil, errors.Join(err, node.Close())
		}
		ends := make([]collective.Comm, len(node.Comms))
		for i, c := range node.Comms {
			if c != nil {
				ends[i] = c
			}
		}
		return dev, m.Comms(ends), func() error { return errors.Join(dev.Close(), node.Close()) }, nil
	}
}

// processes starts a rank of the job's mesh as a process for each, and returns
// what each wrote.
func processes(t *testing.T, j job) []share {
	t.Helper()
	files, err := collective.NewNodeFiles(j.Mesh.Size(), j.Mesh.Groups())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		for _, f := range files {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	shares, errs := make([]share, j.Mesh.Size()), make([]error, j.Mesh.Size())
	var wait sync.WaitGroup
	for rank := range shares {
		j := j
		j.Rank = rank
		var in, out, said bytes.Buffer
		if err := gob.NewEncoder(&in).Encode(j); err != nil {
			t.Fatal(err)
		}
		c := exec.CommandContext(t.Context(), os.Args[0])
		c.Env, c.ExtraFiles = append(os.Environ(), rankVariable+"=1"), files
		c.Stdin, c.Stdout, c.Stderr = &in, &out, &said
		c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
		wait.Go(func() {
			// A parent's death is that of the thread which started the child.
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			if err := c.Run(); err != nil {
				errs[rank] = fmt.Errorf("%w\n%s", err, &said)
				return
			}
			errs[rank] = gob.NewDecoder(&out).Decode(&shares[rank])
		})
	}
	wait.Wait()
	for rank, err := range errs {
		if err != nil {
			t.Fatalf("mesh %v, %s, the process of rank %d: %v", j.Mesh, j.Strategy, rank, err)
		}
	}
	return shares
}

func init() {
	transports = append(transports, transport{"in shared memory", func(t *testing.T, o Options, steps, sequences int, seed uint64) outcome {
		return together(t, o, processes(t, job{toTrain(o), steps, sequences, seed, longest}))
	}})
}
