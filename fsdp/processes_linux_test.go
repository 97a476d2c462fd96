package fsdp

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

// rankVariable tells a process that it is one, filesVariable how many files it
// has.
const (
	rankVariable  = "GOFSDP_TEST_RANK"
	filesVariable = "GOFSDP_TEST_FILES"
)

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
	Sharing          int // ranks of a node
	Steps, Sequences int
	Seed             uint64
	Longest          time.Duration // of its rests; 0: none
	Steady           bool          // it repeats a step, and looks at what it takes
}

func (j job) world() collective.World {
	return collective.World{Ranks: j.Mesh.Size(), Sharing: j.Sharing, Groups: j.Mesh.Groups()}
}

// parent is what a rank has to do with the process that started it.
type parent struct {
	in  *gob.Decoder
	out *gob.Encoder
}

// beRank does a rank's job.
func beRank() error {
	p := parent{gob.NewDecoder(os.Stdin), gob.NewEncoder(os.Stdout)}
	var j job
	if err := p.in.Decode(&j); err != nil {
		return err
	}
	runtime.GOMAXPROCS(8) // as the program has it: a rank that waits keeps one
	g := onNode(j, p)
	if j.Longest > 0 {
		g = delayed(g, j.Seed, j.Longest)
	}
	var s share
	before, err := resident()
	if err != nil {
		return err
	}
	err = onGround(j.Options, g, func(e *Engine) (err error) {
		if j.Steady {
			s.Taken, err = takes(e, j.Steps)
			s.Taken.Before = before
			return err
		}
		s, err = trainRank(e, j.Steps, j.Sequences)
		return err
	})
	return errors.Join(err, goleak.Find(), p.out.Encode(s))
}

// onNode is the ground of a rank that has inherited its node's files.
func onNode(j job, p parent) ground {
	return func(rank int) (dev device.Device, c Comms, leave func() error, err error) {
		w := j.world()
		var closers []func() error
		leave = func() (err error) {
			for _, c := range slices.Backward(closers) {
				err = errors.Join(err, c())
			}
			return err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, leave())
			}
		}()
		n, err := strconv.Atoi(os.Getenv(filesVariable))
		if err != nil {
			return nil, c, leave, err
		}
		var files []*os.File
		for i := range n {
			files = append(files, os.NewFile(uintptr(3+i), fmt.Sprintf("inherited %d", i)))
		}
		node, err := w.OpenNode(rank, files, time.Minute)
		if err != nil {
			return nil, c, leave, err
		}
		closers = append(closers, node.Close)
		if dev, err = cpu.New(cpu.Options{Threads: 1, Window: node.Window}); err != nil {
			return nil, c, leave, err
		}
		closers = append(closers, dev.Close)
		ends, err := collective.Connect(context.Background(), w, rank, node, collective.ConnectSettings{
			Run: "test", Host: "127.0.0.1", Secret: []byte("a secret of the tests"), Deadline: time.Minute, Connections: 2, Device: dev,
			Exchange: p.exchange,
		})
		if err != nil {
			return nil, c, leave, err
		}
		closers = append(closers, ends.Close)
		return dev, j.Mesh.Comms(ends.Comms), leave, nil
	}
}

// exchange gives the parent a value and gets all ranks'.
func (p parent) exchange(_ context.Context, value []byte) (all [][]byte, err error) {
	return all, errors.Join(p.out.Encode(value), p.in.Decode(&all))
}

// processes starts a rank of the job's mesh as a process for each, and returns
// what each wrote.
func processes(t *testing.T, j job) []share {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := j.Mesh.Size()
	files := make([][]*os.File, n) // by node
	defer func() {
		for _, f := range slices.Concat(files...) {
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	shares, errs := make([]share, n), make([]error, n)
	said, all, missing := make([][]byte, n), make(chan struct{}), int64(n)
	var wait sync.WaitGroup
	for rank := range n {
		node := rank / j.Sharing
		if files[node] == nil {
			var err error
			if files[node], err = j.world().NodeFiles(rank); err != nil {
				t.Fatal(err)
			}
		}
		j := j
		j.Rank = rank
		c := exec.CommandContext(ctx, os.Args[0])
		c.Env, c.ExtraFiles = append(os.Environ(), rankVariable+"=1", fmt.Sprintf("%s=%d", filesVariable, len(files[node]))), files[node]
		wait.Go(func() {
			errs[rank] = converse(c, func(p parent) error {
				if err := p.out.Encode(j); err != nil {
					return err
				}
				if j.Sharing < n {
					if err := p.in.Decode(&said[rank]); err != nil {
						return err
					}
					said[rank] = relayed(t, said[rank], j.Seed)
					if atomic.AddInt64(&missing, -1) == 0 {
						close(all)
					}
					select {
					case <-all:
					case <-ctx.Done():
						return ctx.Err()
					}
					if err := p.out.Encode(said); err != nil {
						return err
					}
				}
				return p.in.Decode(&shares[rank])
			})
			if errs[rank] != nil {
				cancel()
			}
		})
	}
	wait.Wait()
	for rank, err := range errs {
		if err != nil {
			t.Errorf("mesh %v, %s, the process of rank %d: %v", j.Mesh, j.Strategy, rank, err)
		}
	}
	if t.Failed() {
		t.FailNow()
	}
	return shares
}

// converse runs a rank's process and talks to it.
func converse(c *exec.Cmd, talk func(parent) error) error {
	// A parent's death is that of the thread which started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	var said bytes.Buffer
	c.Stderr = &said
	in, err := c.StdinPipe()
	if err != nil {
		return err
	}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		return err
	}
	err = talk(parent{gob.NewDecoder(out), gob.NewEncoder(in)})
	if ended := c.Wait(); ended != nil {
		return fmt.Errorf("%w\n%s", errors.Join(err, ended), &said)
	}
	return err
}

// relayed puts a relay in front of each address of a list.
func relayed(t *testing.T, list []byte, seed uint64) []byte {
	addresses := strings.Split(string(list), "\n")
	for i, a := range addresses {
		if a != "" {
			addresses[i] = relay(t, a, seed)
		}
	}
	return []byte(strings.Join(addresses, "\n"))
}

func init() {
	in := func(name string, nodes int) transport {
		return transport{name, nodes > 1, func(t *testing.T, o Options, steps, sequences int, seed uint64) outcome {
			return together(t, o, processes(t, job{
				Options: toTrain(o), Sharing: o.Mesh.Size() / nodes, Steps: steps, Sequences: sequences, Seed: seed, Longest: longest,
			}))
		}}
	}
	transports = append(transports, in("in shared memory", 1), in("in shared memory of two nodes", 2))
}
