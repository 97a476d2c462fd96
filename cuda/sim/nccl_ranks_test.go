//go:build sim && cgo && linux

package sim_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gofsdp/gofsdp/cuda/sim"
)

// Ranks of another process are this test binary once more, which runs TestARemoteControl and does as it is told:
// orders come from its standard input, replies go to descriptor 3.

// controlled is the variable that says what machine such a process has.
const controlled = "GOFSDP_TEST_SIM_CONTROLLED"

// maximum is how many devices each machine has.
const maximum = 4

// order is what a process is to do.
type order struct {
	Do          string
	ID          [128]byte
	Ranks, Rank int
	Device      int
	Count       uint64
	Want        sim.NCCLResult
	Mine        []int
}

// reply is what came of it.
type reply struct {
	Result  sim.NCCLResult
	ID      [128]byte
	Text    string
	Digests map[int][]byte
}

// perform does as it is told. What a test demands is demanded here as well.
func (r *apart) perform(o order) (a reply) {
	r.Helper()
	switch o.Do {
	case "id":
		r.does(r.GetUniqueId(&a.ID))
	case "join":
		r.ok(r.CtxSetCurrent(r.contexts[o.Device]))
		a.Result = sim.NCCLResult(r.CommInitRankConfig(&r.comms[o.Rank], o.Ranks, o.ID, o.Rank, plain()))
		a.Text = r.GetLastError(0)
	case "until": // it is so
		state := int32(-1)
		for tries := 0; sim.NCCLResult(state) != o.Want && tries < 20000; tries++ {
			if tries > 10 {
				time.Sleep(time.Millisecond)
			}
			r.does(r.CommGetAsyncError(r.comms[o.Rank], &state))
		}
		a.Result = sim.NCCLResult(state)
	case "reduce":
		r.on(o.Rank)
		at := r.upload(make([]byte, 4*o.Count))
		a.Result = sim.NCCLResult(r.AllReduce(at, at, o.Count, f32, 0, r.comms[o.Rank], r.streams[o.Rank]))
		a.Text = r.GetLastError(0)
	case "query":
		a.Text = sim.Result(r.StreamQuery(r.streams[o.Rank])).String()
	case "abort":
		r.ok(r.CtxSetCurrent(r.contexts[o.Device]))
		r.does(r.CommAbort(r.comms[o.Rank]))
	case "finish":
		for _, k := range o.Mine {
			r.on(k)
			r.says(r.CommFinalize(r.comms[k]), sim.NCCLInProgress)
		}
		for _, k := range o.Mine {
			r.on(k)
			r.settled(k, sim.NCCLSuccess)
			r.does(r.CommDestroy(r.comms[k]))
		}
		r.noFaults()
	case "faults":
		for _, f := range r.m.Faults() {
			a.Text += f.Error() + "\n"
		}
	case "workout":
		a.Digests = r.workout(o.Ranks, o.Mine)
	default:
		r.Fatalf("what is %q?", o.Do)
	}
	return a
}

// TestARemoteControl is the process that another test controls. Without one it is a rank alone.
func TestARemoteControl(t *testing.T) {
	var config sim.NCCL
	orders, replies := io.Reader(nil), io.Writer(nil)
	if text := os.Getenv(controlled); text != "" {
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			t.Fatal(err)
		}
		orders, replies = os.Stdin, os.NewFile(3, "replies")
	}
	noLeaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, noLeaks) }) // once the machine is closed
	r := devices(t, maximum, sim.Config{NCCL: config})
	if orders == nil {
		id := r.perform(order{Do: "id"}).ID
		r.says(int(r.perform(order{Do: "join", Ranks: 1, ID: id}).Result), sim.NCCLInProgress)
		r.settled(0, sim.NCCLSuccess)
		r.perform(order{Do: "workout", Ranks: 1, Mine: []int{0}})
		r.perform(order{Do: "finish", Mine: []int{0}})
		return
	}
	in, out := gob.NewDecoder(orders), gob.NewEncoder(replies)
	for {
		var o order
		if err := in.Decode(&o); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if err := out.Encode(r.perform(o)); err != nil {
			t.Fatal(err)
		}
	}
}

// process is ranks of another process.
type process struct {
	testing.TB
	command *exec.Cmd
	orders  io.Closer
	in      *gob.Encoder
	out     *gob.Decoder
	output  *bytes.Buffer
	ended   bool
}

// launch starts a process with a machine of its own. It has to end well by the end of the test, unless it is killed.
func launch(t testing.TB, config sim.NCCL, env ...string) *process {
	t.Helper()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{TB: t, command: exec.Command(os.Args[0], "-test.run=^TestARemoteControl$"), out: gob.NewDecoder(from), output: &bytes.Buffer{}}
	p.command.Env = append(append(os.Environ(), env...), controlled+"="+string(text))
	p.command.ExtraFiles, p.command.Stdout, p.command.Stderr = []*os.File{to}, p.output, p.output
	orders, err := p.command.StdinPipe()
	if err == nil {
		err = p.command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	p.orders, p.in = orders, gob.NewEncoder(orders)
	_ = to.Close() // the process has it
	t.Cleanup(func() {
		p.end()
		_ = from.Close()
	})
	return p
}

// tells gives an order.
func (p *process) tells(o order) { // without its reply
	p.Helper()
	if err := p.in.Encode(o); err != nil {
		p.Fatalf("%+v: %v\n%s", o, err, p.output)
	}
}

// replies waits for what came of an order.
func (p *process) replies() (a reply) {
	p.Helper()
	if err := p.out.Decode(&a); err != nil {
		_ = p.command.Wait()
		p.ended = true
		p.Fatalf("%v\n%s", err, p.output)
	}
	return a
}

func (p *process) perform(o order) reply {
	p.Helper()
	p.tells(o)
	return p.replies()
}

// end lets the process end.
func (p *process) end() {
	p.Helper()
	if p.ended {
		return
	}
	p.ended = true
	_ = p.orders.Close()
	if err := p.command.Wait(); err != nil {
		p.Errorf("%v\n%s", err, p.output)
	}
}

// kill ends the process by force.
func (p *process) kill() {
	p.Helper()
	p.ended = true
	if err := p.command.Process.Kill(); err != nil {
		p.Fatal(err)
	}
	_ = p.command.Wait() // that it was killed
}

// workout does every collective, of all types and several lengths, in place and not, on this machine's ranks of a
// communicator that has been joined. It returns a digest of all that each rank received.
func (r *apart) workout(n int, mine []int) map[int][]byte {
	r.Helper()
	digests := map[int]hash.Hash{}
	for _, k := range mine {
		digests[k] = sha256.New()
	}
	for _, typ := range []int{i32, f32, f64, bf16} {
		size := len(encode(typ, 0))
		lengths := []int{1, 7, 1000}
		if typ == f32 || typ == bf16 {
			lengths = append(lengths, 1<<20/size/n+3) // more than goes into a frame
		}
		for _, each := range lengths {
			var send, recv [maximum]uint64
			for _, k := range mine {
				r.on(k)
				random := rand.New(rand.NewPCG(uint64(k), uint64(typ*each)))
				numbers := make([]float64, n*each)
				for i := range numbers {
					numbers[i] = 100 * random.NormFloat64()
				}
				send[k], recv[k] = r.upload(encode(typ, numbers...)), r.alloc(uint64(n*each*size))
				r.ok(r.MemsetD8Async(recv[k], 0, uint64(n*each*size), r.stream))
			}
			own := func(at uint64, k int) uint64 { return at + uint64(k*each*size) }
			count, whole := uint64(each), uint64(n*each)
			for number, call := range []func(k int) int{
				func(k int) int { return r.AllReduce(send[k], recv[k], whole, typ, 0, r.comms[k], r.streams[k]) },
				func(k int) int { return r.ReduceScatter(send[k], recv[k], count, typ, 0, r.comms[k], r.streams[k]) },
				func(k int) int { return r.AllGather(own(send[k], k), recv[k], count, typ, r.comms[k], r.streams[k]) },
				func(k int) int { return r.Reduce(send[k], recv[k], whole, typ, 0, n-1, r.comms[k], r.streams[k]) },
				func(k int) int { return r.Broadcast(send[k], recv[k], whole, typ, n-1, r.comms[k], r.streams[k]) },
				func(k int) int { // in place, from here on
					return r.ReduceScatter(send[k], own(send[k], k), count, typ, 0, r.comms[k], r.streams[k])
				},
				func(k int) int { return r.AllGather(own(send[k], k), send[k], count, typ, r.comms[k], r.streams[k]) },
				func(k int) int { return r.AllReduce(send[k], send[k], whole, typ, 0, r.comms[k], r.streams[k]) },
				func(k int) int { return r.Reduce(send[k], send[k], whole, typ, 0, 0, r.comms[k], r.streams[k]) },
				func(k int) int { // and two as a group
					r.does(r.GroupStart())
					r.does(r.Broadcast(send[k], send[k], whole, typ, n-1, r.comms[k], r.streams[k]))
					r.does(r.Broadcast(recv[k], recv[k], count, typ, 0, r.comms[k], r.streams[k]))
					return r.GroupEnd()
				},
			} {
				for _, k := range mine {
					r.on(k)
					r.started(k, call(k))
				}
				for _, k := range mine {
					r.on(k)
					for _, at := range []uint64{send[k], recv[k]} {
						_, _ = fmt.Fprintf(digests[k], "%d of type %d, call %d: ", each, typ, number)
						_, _ = digests[k].Write(r.download(at, n*each*size)) // a hash's never fails
					}
				}
			}
			for _, k := range mine {
				r.on(k)
				r.ok(r.StreamSynchronize(r.stream))
				r.ok(r.MemFree(send[k]))
				r.ok(r.MemFree(recv[k]))
			}
		}
	}
	sums := map[int][]byte{}
	for k, d := range digests {
		sums[k] = d.Sum(nil)
	}
	return sums
}
