package collective

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

var garbageSeed = flag.Uint64("garbage-seed", 0, "replay a case of garbage in a control file")

// pair is a rank of this process in a group of two, whose other rank the test plays.
type pair struct {
	comm *Shared
	file *os.File // the control file
	ctl  *control // as the other rank has it
	x    device.Tensor
}

func newPair(t *testing.T, deadline time.Duration) *pair {
	t.Helper()
	var ends []func() error
	t.Cleanup(func() {
		for i := range ends {
			if err := ends[len(ends)-1-i](); err != nil {
				t.Error(err)
			}
		}
	})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p := &pair{}
	var err error
	p.file, err = NewControl(2)
	must(err)
	ends = append(ends, p.file.Close)
	own, err := device.NewWindowFile("own")
	must(err)
	ends = append(ends, own.Close)
	theirs, err := device.NewWindowFile("theirs")
	must(err)
	ends = append(ends, theirs.Close)
	must(theirs.Truncate(4 << 20))
	w, err := device.NewWindow(own)
	must(err)
	v, err := device.NewView(theirs)
	must(err)
	ends = append(ends, v.Close)
	dev := device.NewHostIn(w, device.Info{}, nil)
	ends = append(ends, dev.Close)
	p.comm, err = NewShared(SharedSettings{Rank: 0, Control: p.file, Window: w, Peers: []*device.View{nil, v}, Deadline: deadline})
	must(err)
	ends = append(ends, p.comm.Close)
	p.ctl, err = openControl(p.file, 2)
	must(err)
	ends = append(ends, p.ctl.close)
	p.x = tensor(t, dev, 0, 100)
	return p
}

// bind is rank 0's attempt at a collective, and what it may not do is crash.
func (p *pair) bind() error {
	_, err := p.comm.Bind(&AllReduce{Data: p.x, Name: "x"})
	return err
}

func TestWhatAControlFileSaysIsChecked(t *testing.T) {
	good, _ := checked(&AllReduce{Data: device.Tensor{Type: device.F32, Len: 100}, Name: "x"}, 0, 2)
	for name, x := range map[string]struct {
		spoil func(c *control)
		want  string
	}{
		"a description longer than its place": {func(c *control) { c.ranks[1].length = 1 << 31 }, "a description of 2147483648 bytes"},
		"data at an odd place":                {func(c *control) { c.ranks[1].off = 3 }, "f32 at odd byte 3"},
		"data before the window":              {func(c *control) { c.ranks[1].off = -8 }, "has no 400 bytes at -8"},
		"data behind the window":              {func(c *control) { c.ranks[1].off = 1 << 40 }, "has no 400 bytes at 1099511627776"},
		"data that ends behind the window":    {func(c *control) { c.ranks[1].off = 4<<20 - 396 }, "has no 400 bytes at 4193908"},
		"a rank that is meetings ahead":       {func(c *control) { c.ranks[1].arrived.Store(9) }, "rank 1 is said to have come to meeting 9, this is 1"},
		"another collective":                  {func(c *control) { copy(c.ranks[1].text[:], "ALL") }, "plans differ"},
		"an end without a reason":             {func(c *control) { c.head.length = 1 << 31; c.head.state.Store(over) }, "did not say why"},
		"an end that was never written":       {func(c *control) { c.head.state.Store(ending) }, "did not say why"},
		"an unknown end":                      {func(c *control) { c.head.state.Store(77) }, "did not say why"},
		"a reason that is no text":            {func(c *control) { c.head.length = 3; copy(c.head.text[:], "\xffab"); c.head.state.Store(over) }, "says: ab"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, time.Minute)
			m := &p.ctl.ranks[1]
			m.length = uint32(copy(m.text[:], good))
			m.arrived.Store(2) // and to the meeting after the offers
			x.spoil(p.ctl)
			if err := p.bind(); err == nil || !strings.Contains(err.Error(), x.want) {
				t.Errorf("%v, want: %s", err, x.want)
			}
		})
	}
	t.Run("a file that is as it should be", func(t *testing.T) {
		p := newPair(t, time.Minute)
		m := &p.ctl.ranks[1]
		m.length = uint32(copy(m.text[:], good))
		m.arrived.Store(2)
		if err := p.bind(); err != nil {
			t.Error(err)
		}
	})
}

func TestGarbageInAControlFileIsAnErrorAndNoCrash(t *testing.T) {
	for i := range uint64(100) {
		seed := *garbageSeed
		if seed == 0 {
			seed = i + 1
		}
		rng := rand.New(rand.NewPCG(seed, 4))
		p := newPair(t, 5*time.Millisecond)
		for range 1 + rng.IntN(8) {
			from := rng.IntN(len(p.ctl.bytes))
			if rng.IntN(2) == 0 {
				from = rng.IntN(3)*controlPage + rng.IntN(160) // where fields are
			}
			for j := from; j < min(from+1+rng.IntN(64), len(p.ctl.bytes)); j++ {
				p.ctl.bytes[j] = byte(rng.Uint32())
			}
		}
		if err := p.bind(); err == nil {
			t.Errorf("rank 0 bound with nobody; again: go test ./collective -run Garbage -garbage-seed %d", seed)
		}
	}
}

func TestARankJoinsOnlyWhatIsItsOwn(t *testing.T) {
	p := newPair(t, time.Second)
	set := p.comm.own.SharedSettings
	if _, err := NewShared(set); err == nil || !strings.Contains(err.Error(), "there is a rank 0 already") {
		t.Errorf("the same rank twice: %v", err)
	}
	three := set
	three.Peers = append(three.Peers, three.Peers[1])
	if _, err := NewShared(three); err == nil || !strings.Contains(err.Error(), "want 16384 for 3 ranks") {
		t.Errorf("a group of another size: %v", err)
	}
	plain, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	onDisk := set
	onDisk.Control = plain
	if _, err := NewShared(onDisk); err == nil || !strings.Contains(err.Error(), "control file") {
		t.Errorf("a file on disk: %v", err)
	}
	zeros, err := device.NewWindowFile("zeros")
	if err != nil {
		t.Fatal(err)
	}
	defer zeros.Close()
	if err := zeros.Truncate(3 * controlPage); err != nil {
		t.Fatal(err)
	}
	empty := set
	empty.Control = zeros
	if _, err := NewShared(empty); err == nil || !strings.Contains(err.Error(), "is no control file for 2 ranks") {
		t.Errorf("a file of zeros: %v", err)
	}
	if _, err := NewShared(SharedSettings{Rank: 2, Peers: make([]*device.View, 2)}); err == nil ||
		strings.Count(err.Error(), "\n") != 5 {
		t.Errorf("settings with six mistakes: %v", err)
	}
	if _, err := NewControl(0); err == nil {
		t.Error("a group of nobody")
	}
}

func TestTheFirstReasonOfAnAbortIsKept(t *testing.T) {
	p := newPair(t, time.Minute)
	first := errors.New("the disk is full")
	p.comm.Abort(first)
	p.comm.Abort(errors.New("late"))
	if err := p.bind(); !errors.Is(err, first) {
		t.Errorf("the rank that gave up: %v", err)
	}
	if err := p.ctl.head.reason(); err.Error() != "rank 0 says: the disk is full" {
		t.Errorf("the other rank: %v", err)
	}
	long := newPair(t, time.Minute)
	long.comm.Abort(fmt.Errorf("%s: %w", bytes.Repeat([]byte("é"), controlPage), ErrDeadline))
	if err := long.ctl.head.reason(); !errors.Is(err, ErrDeadline) || len(err.Error()) > controlPage {
		t.Errorf("a reason of many bytes: %v", err)
	}
}
