//go:build sim && cgo && linux

package nccl_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/cuda/sim"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/nccl"
)

// Ranks of another process are this test binary once more, which runs TestRanksOfAProcess: each has a machine of
// its own, with as many devices as there are ranks, and a rank's device is that of its number. What it exchanges
// with the others goes to descriptor 3, and comes by its standard input.

// ofProcess is the variable that says which ranks a process has, and what they do.
const ofProcess = "GOFSDP_TEST_NCCL_RANKS"

// part is what a process does.
type part struct {
	World   int
	Mine    []int
	Version int  // of NCCL; 0: as everybody's
	Hangs   bool // it binds a collective and does not come to it
}

// TestRanksOfAProcess is one rank alone where no other test says more.
func TestRanksOfAProcess(t *testing.T) {
	p := part{World: 1, Mine: []int{0}}
	text := os.Getenv(ofProcess)
	if text == "" {
		for _, err := range connect(t, 1, [][]int{{0}}, patient).everything(p) {
			if err != nil {
				t.Error(err)
			}
		}
		return
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	in, out := gob.NewDecoder(os.Stdin), gob.NewEncoder(os.NewFile(3, "to the others"))
	own := exchange(len(p.Mine), nil)
	all := make(chan [][]byte, 1)
	r, leave := p.join(t, func(rank int) func(context.Context, []byte) ([][]byte, error) {
		place := slices.Index(p.Mine, rank)
		return func(ctx context.Context, value []byte) ([][]byte, error) {
			mine, err := own(place)(ctx, value)
			if err == nil && place == 0 {
				var said [][]byte
				err = errors.Join(out.Encode(mine), in.Decode(&said))
				all <- said
			}
			said := <-all
			all <- said
			return said, err
		}
	})
	if r == nil {
		return
	}
	defer leave()
	if p.Hangs {
		for _, k := range p.Mine {
			if _, err := r.groups[k].Comms[0].Bind(&collective.Barrier{Name: "what the others wait in"}); err != nil {
				t.Error(err)
			}
		}
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
		return
	}
	for _, err := range r.everything(p) {
		if err != nil {
			t.Error(err)
		}
	}
}

// join makes the process's devices and joins its ranks. Of a version that others do not have, it demands to be told.
func (p part) join(t *testing.T, ex func(rank int) func(context.Context, []byte) ([][]byte, error)) (r *run, leave func()) {
	t.Helper()
	c := sim.Config{NCCL: sim.NCCL{Version: p.Version}}
	for range p.World {
		c.Devices = append(c.Devices, sim.L4())
	}
	m, err := sim.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	driver, err := cuda.OpenTable(m.Table(), nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := nccl.OpenTable(m.NCCLTable())
	if err != nil {
		t.Fatal(err)
	}
	r = &run{TB: t, server: &server{m: m, gpus: make([]nccl.Device, p.World)}, groups: make([]*nccl.Groups, p.World)}
	for _, k := range p.Mine {
		d, err := cuda.New(driver, cuda.Options{Ordinal: k})
		if err != nil {
			t.Fatal(err)
		}
		r.gpus[k] = d.(nccl.Device)
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	told := 0
	for i, err := range parallel(len(p.Mine), func(i int) (err error) {
		k := p.Mine[i]
		r.groups[k], err = l.Connect(t.Context(), [][]int{everyone(p.World)}, k, nccl.ConnectSettings{
			Run: "run test, attempt 1", Deadline: patient, Device: r.gpus[k], Exchange: ex(k),
		})
		return err
	}) {
		if p.Version != 0 && err != nil && strings.Contains(err.Error(), "different versions of NCCL") {
			told++
		} else if err != nil {
			t.Fatalf("rank %d: %v", p.Mine[i], err)
		}
	}
	if told == len(p.Mine) {
		return nil, nil
	}
	return r, func() {
		for _, err := range parallel(len(p.Mine), func(i int) error { return r.groups[p.Mine[i]].Close() }) {
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// everything does every collective of all types on the process's ranks.
func (r *run) everything(p part) []error {
	return parallel(len(p.Mine), func(i int) error {
		for _, typ := range []device.DType{device.F32, device.BF16, device.F64, device.I32} {
			for _, length := range []int64{0, 1, 13, 1 << 12} {
				if err := everyCollective(r, p.Mine[i], p.World, typ, length); err != nil {
					return fmt.Errorf("%d of %s: %w", length, typ, err)
				}
			}
		}
		return nil
	})
}

// spawn starts another process's part. Its ranks exchange through ex, as this process's own. The process has to
// end well by the end of the test, unless it is killed.
func spawn(t *testing.T, p part, ex func(rank int) func(context.Context, []byte) ([][]byte, error)) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	c := exec.Command(os.Args[0], "-test.run=^TestRanksOfAProcess$")
	c.Env = append(os.Environ(), ofProcess+"="+string(text))
	c.ExtraFiles, c.Stdout, c.Stderr = []*os.File{to}, &output, &output
	in, err := c.StdinPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = to.Close() // the process has it
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var mine [][]byte
		if gob.NewDecoder(from).Decode(&mine) != nil {
			return // its output says why
		}
		all := parallel(len(p.Mine), func(i int) error {
			said, err := ex(p.Mine[i])(context.Background(), mine[i])
			if err == nil && i == 0 {
				err = gob.NewEncoder(in).Encode(said)
			}
			return err
		})
		if err := errors.Join(all...); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		err := c.Wait()
		var exit *exec.ExitError
		if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled() {
			err = nil // it was killed
		}
		if err != nil {
			t.Errorf("%v\n%s", err, &output)
		}
		<-ended
		_ = from.Close()
	})
	return c
}

// among joins this process's ranks of a world; the others are processes.
func among(t *testing.T, deadline time.Duration, mine []int, others ...part) (*run, []*exec.Cmd) {
	t.Helper()
	l, s := library(t)
	n := len(mine)
	for _, o := range others {
		n += len(o.Mine)
	}
	ex := exchange(n, nil)
	var all []*exec.Cmd
	for _, o := range others {
		o.World = n
		all = append(all, spawn(t, o, ex))
	}
	r := &run{TB: t, server: s, groups: make([]*nccl.Groups, n)}
	if err := errors.Join(parallel(len(mine), func(i int) (err error) {
		r.groups[mine[i]], err = l.Connect(t.Context(), [][]int{everyone(n)}, mine[i], nccl.ConnectSettings{
			Run: "run test, attempt 1", Deadline: deadline, Device: s.gpus[mine[i]], Exchange: ex(mine[i]),
		})
		return err
	})...); err != nil {
		t.Fatal(err)
	}
	return r, all
}

func TestEveryCollectiveIsDoneBetweenProcesses(t *testing.T) {
	mine := part{World: 4, Mine: []int{0, 3}}
	r, _ := among(t, patient, mine.Mine, part{Mine: []int{1}}, part{Mine: []int{2}})
	for _, err := range r.everything(mine) {
		if err != nil {
			t.Error(err)
		}
	}
	for _, err := range parallel(2, func(i int) error { return r.groups[mine.Mine[i]].Close() }) {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestAPeersProcessThatIsKilledOrStoppedIsToldByName(t *testing.T) {
	for name, c := range map[string]struct {
		signal   syscall.Signal
		deadline time.Duration
		want     string
	}{
		"killed":  {syscall.SIGKILL, patient, "ncclRemoteError (6): remote process exited or there was a network error"},
		"stopped": {syscall.SIGSTOP, 10 * time.Second, "which of ranks [0 1] did not come"},
	} {
		t.Run(name, func(t *testing.T) {
			r, others := among(t, c.deadline, []int{0}, part{Mine: []int{1}, Hangs: true})
			s := r.gpus[0].NewStream("reduce")
			ops, err := r.groups[0].Comms[0].Bind(&collective.Barrier{Name: "what the others wait in"})
			if err != nil {
				t.Fatal(err)
			}
			s.Launch(ops[0])
			if err := others[0].Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			err = s.Sync()
			var told *collective.Error
			if !errors.As(err, &told) || told.Kind != "barrier" || told.Name != "what the others wait in" || told.Number != 0 || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v", err)
			}
			if err := r.groups[0].Close(); err != nil {
				t.Error(err)
			}
			_ = others[0].Process.Kill() // where it is only stopped
		})
	}
}

func TestProcessesWithDifferentVersionsOfNCCLAreToldByName(t *testing.T) {
	l, s := library(t)
	ex := exchange(2, nil)
	spawn(t, part{World: 2, Mine: []int{1}, Version: 22703}, ex)
	_, err := l.Connect(t.Context(), [][]int{{0, 1}}, 0, nccl.ConnectSettings{
		Run: "run test, attempt 1", Deadline: patient, Device: s.gpus[0], Exchange: ex(0),
	})
	if err == nil || !strings.Contains(err.Error(), "2.27.3 on ranks [1] (in memory), 2.29.7 on ranks [0] (in memory)") {
		t.Errorf("%v", err)
	}
}
