package fsdp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/pairwise"
)

// late is a way to train whose ranks are held up in a transport.
type late struct {
	variant
	transport transport
}

// transport trains with random delays at every edge of streams and between
// ranks, which follow from the seed.
type transport struct {
	name  string
	even  bool // it needs an even number of ranks
	train func(t *testing.T, o Options, steps, sequences int, seed uint64) outcome
}

func (x transport) String() string { return x.name }

// transports are those of this system.
var transports = []transport{
	{"in process", false, func(t *testing.T, o Options, steps, sequences int, seed uint64) outcome {
		return trained(t, o, steps, sequences, delayed(inProcess(o.Mesh), seed, longest))
	}},
	{"over TCP", false, func(t *testing.T, o Options, steps, sequences int, seed uint64) outcome {
		return trained(t, o, steps, sequences, delayed(overTCP(t, o.Mesh, seed), seed, longest))
	}},
}

// longest is how long a stream or a message rests at the most.
const longest = 100 * time.Microsecond

func TestDelaysAtEveryEdgeOfEveryTransportChangeNoBit(t *testing.T) {
	t.Parallel()
	const steps = 2
	delays := []pairwise.Factor[late]{
		pairwise.Of("transport", func(l *late, x transport) { l.transport = x }, transports...),
		pairwise.Of("ranks", func(l *late, n int) { l.ranks = n }, 3, 4),
		pairwise.Of("nodes", func(l *late, n int) { l.nodes = n }, 1, 2, 0),
		pairwise.Of("strategy", func(l *late, s Strategy) { l.Strategy = s }, Strategies()...),
		pairwise.Of("micro-batches", func(l *late, n int) { l.micros = n }, 1, 2),
		pairwise.Of("reduced late", func(l *late, x bool) { l.LateReduce = x }, false, true),
		pairwise.Of("weights kept", func(l *late, x bool) { l.KeepWeights = x }, false, true),
		pairwise.Of("prefetch", func(l *late, n int) { l.Prefetch = n }, 0, 1, 3),
		pairwise.Of("offload", func(l *late, x Offload) { l.Offload = x }, OffloadNone, OffloadAll),
		pairwise.Of("type", func(l *late, x device.DType) { l.Type = x }, device.F32, device.BF16),
	}
	for _, c := range pairwise.Cover(delays, func(l late) bool { return possible(l.variant) && (l.ranks%2 == 0 || !l.transport.even) }, 0) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			o, sequences := c.It.options()
			o.Model = twoBlocks(true)
			got := c.It.transport.train(t, o, steps, sequences, *seed)
			o.MicroBatches = 0
			same(t, "without delays, with gradients that last", got, trained(t, o, steps, sequences, nil))
			if t.Failed() {
				t.Logf("again: go test ./fsdp -run DelaysAtEveryEdge -args -seed %d", *seed)
			}
		})
	}
}

// overTCP is the ground of ranks that are connected over TCP, through relays
// that pass on a few bytes at a time, late.
func overTCP(t *testing.T, m Mesh, seed uint64) ground {
	groups := m.Groups()
	listeners, addresses := make([][]net.Listener, len(groups)), make([][]string, len(groups))
	for i, g := range groups {
		for range g {
			l := listen(t)
			listeners[i] = append(listeners[i], l)
			addresses[i] = append(addresses[i], relay(t, l.Addr().String(), seed))
		}
	}
	return func(rank int) (device.Device, Comms, func() error, error) {
		dev, err := cpu.New(cpu.Options{Threads: 1})
		if err != nil {
			return nil, Comms{}, nil, err
		}
		ends := make([]collective.Comm, len(groups))
		var closers []func() error
		leave := func() (err error) {
			for _, c := range closers {
				err = errors.Join(err, c())
			}
			return errors.Join(err, dev.Close())
		}
		for i, g := range groups {
			for place, r := range g {
				if r != rank {
					continue
				}
				end, err := collective.NewTCP(context.Background(), listeners[i][place], collective.TCPSettings{
					Group: fmt.Sprint(i), Rank: place, Addresses: addresses[i], Secret: []byte("a secret of the tests"),
					Deadline: time.Minute, Connections: 2, Device: dev,
				})
				if err != nil {
					return nil, Comms{}, nil, errors.Join(err, leave())
				}
				ends[i], closers = end, append(closers, end.Close)
			}
		}
		return dev, m.Comms(ends), leave, nil
	}
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // its owner may have
	return l
}

// relay returns an address from which all is passed on to another one and back,
// in pieces of any size and with rests.
func relay(t *testing.T, to string, seed uint64) (from string) {
	l := listen(t)
	var ended sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		ended.Wait()
	})
	ended.Go(func() {
		for number := uint64(0); ; number += 2 {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				t.Error(err, in.Close())
				return
			}
			ended.Go(func() {
				var ways sync.WaitGroup
				ways.Go(func() { trickle(in, out, rand.New(rand.NewPCG(seed, number))) })
				ways.Go(func() { trickle(out, in, rand.New(rand.NewPCG(seed, number+1))) })
				ways.Wait()
				_, _ = in.Close(), out.Close() // whether the ranks still hear it is their affair
			})
		}
	})
	return l.Addr().String()
}

// trickle passes on what comes from one end until it has no more.
func trickle(from, to net.Conn, r *rand.Rand) {
	defer to.(*net.TCPConn).CloseWrite()
	for b := make([]byte, 1<<14); ; {
		n, err := from.Read(b[:1+r.IntN(len(b))])
		if err != nil {
			return
		}
		time.Sleep(time.Duration(r.Int64N(int64(longest))))
		if _, err := to.Write(b[:n]); err != nil {
			return
		}
	}
}
