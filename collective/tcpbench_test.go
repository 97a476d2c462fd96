package collective

import (
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

func BenchmarkTCP(b *testing.B) {
	for _, mb := range []int{1, 16, 64} {
		size := mb << 20
		b.Run(fmt.Sprintf("raw copy/%dMB", mb), func(b *testing.B) { rawLoopback(b, size) })
		for _, connections := range []int{1, 2} {
			for _, kind := range []string{"all-gather", "reduce-scatter", "all-reduce"} {
				b.Run(fmt.Sprintf("%s, %d connections/%dMB", kind, connections, mb), func(b *testing.B) {
					mustAll(b, tcpRanks(b, 2, connections, 20*time.Second, func(r tcpRank) error {
						// Each rank sends size bytes and receives as many.
						n := int64(size) / 2
						if kind == "all-reduce" {
							n /= 2
						}
						x := blank(b, r.dev, n)
						from, to := Part(n, r.Rank(), 2)
						ops, err := r.Bind(map[string]Op{
							"all-gather":     &AllGather{Own: x.Slice(from, to-from), Data: x, Name: "x"},
							"reduce-scatter": &ReduceScatter{Data: x, Out: x.Slice(from, to-from), Name: "x"},
							"all-reduce":     &AllReduce{Data: x, Name: "x"},
						}[kind])
						if err != nil {
							return err
						}
						if r.Rank() == 0 {
							b.SetBytes(2 * int64(size))
							b.ResetTimer()
						}
						for range b.N {
							if err := launch(r.stream, ops); err != nil {
								return err
							}
						}
						return nil
					}))
				})
			}
		}
	}
}

// rawLoopback sends size bytes each way at once over one connection of this
// machine, as two ranks do.
func rawLoopback(b *testing.B, size int) {
	ls, addresses := listeners(b, 1)
	one, err := net.Dial("tcp", addresses[0])
	if err != nil {
		b.Fatal(err)
	}
	other, err := ls[0].Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer one.Close()
	defer other.Close()
	b.SetBytes(2 * int64(size))
	send, got := make([]byte, size), [2][]byte{make([]byte, size), make([]byte, size)}
	b.ResetTimer()
	for range b.N {
		var wait sync.WaitGroup
		for i, c := range []net.Conn{one, other} {
			wait.Go(func() { _, _ = c.Write(send) })
			wait.Go(func() {
				if _, err := io.ReadFull(c, got[i]); err != nil {
					b.Error(err)
				}
			})
		}
		wait.Wait()
	}
}
