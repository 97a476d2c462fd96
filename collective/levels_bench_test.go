package collective

import (
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// countingConn adds up what is read.
type countingConn struct {
	net.Conn
	bytes *atomic.Int64
}

func (c countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.bytes.Add(int64(n))
	return n, err
}

// count makes a rank count what it reads from the peers that far says are on
// other nodes.
func count(c *TCP, bytes *atomic.Int64, far func(place int) bool) {
	for place, p := range c.peers {
		if p == nil || !far(place) {
			continue
		}
		for _, l := range p.links { // nothing has been posted to them
			l.conn = countingConn{l.conn, bytes}
		}
	}
}

// crossing are the collectives whose traffic between nodes is counted, and how
// many times as many bytes as the tensor has go from node to node, over TCP alone
// and in two levels, where each of the nodes has each ranks.
var crossing = []struct {
	name      string
	op        func(c Comm, x device.Tensor) Op
	flat, two func(nodes, each float64) float64
}{
	{
		"all-gather", func(c Comm, x device.Tensor) Op {
			from, to := Part(x.Len, c.Rank(), c.Size())
			return &AllGather{Own: x.Slice(from, to-from), Data: x, Name: "x"}
		},
		func(nodes, each float64) float64 { return each * (nodes - 1) },
		func(nodes, each float64) float64 { return nodes - 1 },
	},
	{
		// The whole goes from each node to the next, and what is not the last one's
		// comes back from there.
		"reduce-scatter", func(c Comm, x device.Tensor) Op {
			from, to := Part(x.Len, c.Rank(), c.Size())
			return &ReduceScatter{Data: x, Out: x.Slice(from, to-from), Name: "x"}
		},
		func(nodes, each float64) float64 { return each * (nodes - 1) },
		func(nodes, each float64) float64 { return nodes - 1 + (nodes-1)/nodes },
	},
	{
		"all-reduce", func(_ Comm, x device.Tensor) Op { return &AllReduce{Data: x, Name: "x"} },
		func(nodes, each float64) float64 { return 2 * each * (nodes - 1) },
		func(nodes, each float64) float64 { return 2*(nodes-1) + (nodes-1)/nodes },
	},
	{
		"broadcast", func(_ Comm, x device.Tensor) Op { return &Broadcast{Data: x, Root: 1, Name: "x"} },
		func(nodes, each float64) float64 { return each * (nodes - 1) },
		func(nodes, each float64) float64 { return nodes - 1 },
	},
}

// cross runs a collective over size elements so many times on every rank of nodes
// of each ranks, in two levels or over TCP alone, and returns the time of one and
// the bytes that then go from node to node.
func cross(t testing.TB, op func(c Comm, x device.Tensor) Op, nodes, each int, size int64, times int, two bool) (time.Duration, int64) {
	t.Helper()
	var bytes atomic.Int64
	var took time.Duration
	run := func(c Comm, far *TCP, dev device.Device, stream device.Stream) error {
		if two {
			count(far, &bytes, func(int) bool { return true })
		} else {
			count(far, &bytes, func(place int) bool { return place/each != c.Rank()/each })
		}
		ops, err := c.Bind(op(c, blank(t, dev, size)))
		if err != nil {
			return err
		}
		began := time.Now()
		for range times {
			if err := launch(stream, ops); err != nil {
				return err
			}
		}
		if c.Rank() == 0 {
			took = time.Since(began) / time.Duration(times)
		}
		return nil
	}
	if two {
		mustAll(t, levelRanks(t, nodes, each, time.Minute, func(r levelRank) error { return run(r, r.far, r.dev, r.stream) }))
	} else {
		mustAll(t, tcpRanks(t, nodes*each, 2, time.Minute, func(r tcpRank) error { return run(r, r.TCP, r.dev, r.stream) }))
	}
	return took, bytes.Load() / int64(times)
}

func TestOnSeveralNodesEachByteCrossesALinkOnceOrTwice(t *testing.T) {
	const size = 240_000
	for _, mesh := range [][2]int{{2, 2}, {3, 2}, {2, 4}} {
		nodes, each := mesh[0], mesh[1]
		for _, x := range crossing {
			for _, two := range []bool{false, true} {
				want := x.flat(float64(nodes), float64(each)) * 4 * size
				if two {
					want = x.two(float64(nodes), float64(each)) * 4 * size
				}
				// Each piece has a frame.
				if _, got := cross(t, x.op, nodes, each, size, 1, two); float64(got) < want || float64(got) > want*1.02 {
					t.Errorf("%s on %d nodes of %d ranks, in two levels %v: %d bytes between nodes, want %.0f", x.name, nodes, each, two, got, want)
				}
			}
		}
	}
}

// BenchmarkOnTwoNodes compares a group of two nodes of two ranks in two levels
// with the same over TCP alone, where a link between nodes is as fast as memory:
// what counts on a real one is the megabytes that cross.
func BenchmarkOnTwoNodes(b *testing.B) {
	const size = 4 << 20 // elements
	for _, x := range crossing {
		for _, two := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/two levels=%v", x.name, two), func(b *testing.B) {
				took := make([]time.Duration, 0, 5)
				var crossed int64
				for range cap(took) {
					d, bytes := cross(b, x.op, 2, 2, size, 4, two)
					took, crossed = append(took, d), bytes
				}
				slices.Sort(took)
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(float64(took[len(took)/2].Microseconds())/1e3, "ms")
				b.ReportMetric(float64(crossed)/1e6, "MB-between-nodes")
			})
		}
	}
}
