package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	pb "github.com/gofsdp/gofsdp/launcher/gofsdpv1"
)

// MaxValue is the most bytes that a rank can give to an exchange.
const MaxValue = 64 << 10

// Start is all that a rank is told before it begins.
type Start struct {
	Run         string
	Attempt     int
	Rank, World int
	Node, Nodes int

	LocalRank, LocalRanks int // within the node; the first is also the device's index

	Mesh     string        // as the job has it
	Hosts    []string      // by rank: address by which others reach it
	Secret   []byte        // the run's; see Key
	Config   []byte        // the resolved configuration
	Deadline time.Duration // within which a hang must end the run

	// Descriptors of the files that the node's ranks share, in the order in which
	// RunAgent's memory made them. They belong to the rank, and are not inherited
	// on.
	Files []int
}

// Stopped is the error of whatever was ended because the run has failed
// elsewhere.
type Stopped struct{ Reason string }

func (s Stopped) Error() string { return "stopped because of another: " + s.Reason }

// ExitCode is that of a rank which is not the reason.
func (Stopped) ExitCode() int { return exitStopped }

// Garbled is the error of whatever was ended because the agent speaks garbage:
// unlike one that is gone it can be told.
type Garbled struct{ err error }

func (g Garbled) Error() string { return "its agent speaks garbage to it: " + g.err.Error() }

// ExitCode is that of a rank that has lost a peer.
func (Garbled) ExitCode() int { return exitLost }

// Client is a rank's connection to its agent. All methods may be called at once.
type Client struct {
	start    Start
	link     *link
	timing   timing
	out      chan *pb.RankMessage
	agent    *pulse
	ctx      context.Context // ends when the run has failed elsewhere
	cancel   context.CancelCauseFunc
	stopping chan struct{}
	stop     func()
	left     chan struct{} // closed by Done
	leave    func()
	loops    sync.WaitGroup

	mutex   sync.Mutex
	waiting map[string]chan [][]byte
}

// Join connects a rank's process to the agent that started it, and blocks until
// it is told what it is. It is to be called before anything slow: the agent
// gives up a rank that it does not hear. From then on the process ends itself,
// with exit code 6, if its agent is lost.
func Join() (*Client, error) {
	fd, err := strconv.Atoi(os.Getenv(rankVariable))
	if err != nil {
		return nil, fmt.Errorf("this process is no rank of a run: %s names no socket; ranks are started by gofsdp train", rankVariable)
	}
	os.Unsetenv(rankVariable) // no child of this process is that rank
	l, err := newLink(os.NewFile(uintptr(fd), "agent"))
	if err != nil {
		return nil, err
	}
	first := &pb.ToRank{}
	for first.GetStart() == nil {
		if err := l.read(first); err != nil {
			l.Close()
			return nil, fmt.Errorf("waiting for the agent's word to start: %w", err)
		}
	}
	c := &Client{
		start: startOf(first.GetStart()), link: l, out: make(chan *pb.RankMessage, 64), agent: newPulse(),
		stopping: make(chan struct{}), left: make(chan struct{}), waiting: map[string]chan [][]byte{},
	}
	for _, fd := range c.start.Files {
		if fd > 0 {
			syscall.CloseOnExec(fd)
		}
	}
	c.timing = timingOf(c.start.Deadline)
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.stop = sync.OnceFunc(func() { close(c.stopping) })
	c.leave = sync.OnceFunc(func() { close(c.left) })
	c.loops.Go(c.speak)
	c.loops.Go(c.hear)
	c.loops.Go(c.listen)
	return c, nil
}

func startOf(s *pb.Start) Start {
	files := make([]int, len(s.Files))
	for i, w := range s.Files {
		files[i] = int(w)
	}
	return Start{
		Run: s.Run, Attempt: int(s.Attempt), Rank: int(s.Rank), World: int(s.World), Node: int(s.Node), Nodes: int(s.Nodes),
		LocalRank: int(s.LocalRank), LocalRanks: int(s.LocalRanks), Mesh: s.Mesh, Hosts: s.Hosts, Secret: s.Secret,
		Config: s.Config, Deadline: time.Duration(s.DeadlineNs), Files: files,
	}
}

// Start returns what the rank was told. Its slices are shared.
func (c *Client) Start() Start { return c.start }

// Context ends when the run has failed because of another; its cause is then a
// Stopped, or Garbled. A rank has a fifth of the deadline to end, before it is killed.
func (c *Client) Context() context.Context { return c.ctx }

// Stopping is closed when the rank is to end after the step at hand.
func (c *Client) Stopping() <-chan struct{} { return c.stopping }

// Exchange gives a value of at most MaxValue bytes under a key, and returns all
// ranks' values under it, by rank. It blocks until all ranks have given theirs,
// ctx ends, or the run fails (Stopped). A key may be used again once its
// exchange is through.
func (c *Client) Exchange(ctx context.Context, key string, value []byte) ([][]byte, error) {
	if len(value) > MaxValue {
		return nil, fmt.Errorf("exchange of %q: a value of %d bytes, and %d is the most: large things go by a collective", key, len(value), MaxValue)
	}
	answer := make(chan [][]byte, 1)
	c.mutex.Lock()
	_, taken := c.waiting[key]
	if !taken {
		c.waiting[key] = answer
	}
	c.mutex.Unlock()
	if taken {
		return nil, fmt.Errorf("exchange of %q: this rank has one under way", key)
	}
	if err := c.say(&pb.RankMessage{Kind: &pb.RankMessage_Give{Give: &pb.Give{Key: key, Value: value}}}); err != nil {
		return nil, fmt.Errorf("exchange of %q: %w", key, err)
	}
	select {
	case values := <-answer:
		return values, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("exchange of %q: %w", key, context.Cause(ctx))
	case <-c.ctx.Done():
		return nil, fmt.Errorf("exchange of %q: %w", key, context.Cause(c.ctx))
	case <-c.left:
		return nil, fmt.Errorf("exchange of %q: %w", key, errLeft)
	}
}

var errLeft = errors.New("this rank has said that it is done")

// Report tells the launcher something: its kind, and a text or JSON.
func (c *Client) Report(kind, text string) error {
	return c.say(&pb.RankMessage{Kind: &pb.RankMessage_Report{Report: &pb.Report{Kind: kind, Text: text}}})
}

// Told says that somebody told this process to end, and how. The launcher then
// asks all ranks to end after the step at hand, this one too.
func (c *Client) Told(how string) error {
	return c.say(&pb.RankMessage{Kind: &pb.RankMessage_Told{Told: &pb.Told{How: how}}})
}

// Done says how the rank ends, by the exit code that its process is about to
// return and the reason, "" for 0. Nothing can be said after it, and the
// process is to end soon. It returns when all has been handed over.
func (c *Client) Done(code int, reason string) error {
	err := c.say(&pb.RankMessage{Kind: &pb.RankMessage_Done{Done: &pb.Done{Code: int32(code), Reason: reason}}})
	c.leave()
	c.loops.Wait()
	c.cancel(nil)
	return err
}

func (c *Client) say(m *pb.RankMessage) error {
	select {
	case <-c.left:
		return errLeft
	default:
	}
	select {
	case c.out <- m:
		return nil
	case <-c.left:
		return errLeft
	}
}

// speak writes what is said, until the rank leaves; then what is queued.
func (c *Client) speak() {
	beat := &pb.RankMessage{Kind: &pb.RankMessage_Beat{Beat: &pb.Beat{}}}
	write := func(m *pb.RankMessage) error { return c.link.write(m) }
	err := send(c.left, c.out, c.timing.every, beat, write)
	for err == nil {
		select {
		case m := <-c.out:
			err = write(m)
		default:
			c.link.Close() // ends hear
			return
		}
	}
	c.lost(fmt.Errorf("its agent was lost: %w", err))
}

// hear takes what the agent says, until the link ends.
func (c *Client) hear() {
	for {
		m := &pb.ToRank{}
		if err := c.link.read(m); err != nil {
			select {
			case <-c.left:
				return
			default:
			}
			if foreign(err) {
				why := Garbled{err}
				c.cancel(why) // the first cause stays
				// At once, as what the rank is at may take longer than the grace.
				c.say(&pb.RankMessage{Kind: &pb.RankMessage_Done{Done: &pb.Done{Code: int32(why.ExitCode()), Reason: why.Error()}}})
			}
			c.lost(fmt.Errorf("its agent was lost: %w", err))
			return
		}
		c.agent.beat()
		switch k := m.Kind.(type) {
		case *pb.ToRank_Stop:
			c.stop()
		case *pb.ToRank_Abort:
			c.cancel(Stopped{k.Abort.Reason})
		case *pb.ToRank_Gathered:
			c.mutex.Lock()
			answer := c.waiting[k.Gathered.Key]
			delete(c.waiting, k.Gathered.Key)
			c.mutex.Unlock()
			if answer != nil {
				answer <- k.Gathered.Values
			}
		}
	}
}

// listen ends the process if the agent falls silent.
func (c *Client) listen() {
	ticks := time.NewTicker(c.timing.every)
	defer ticks.Stop()
	awake := wakefulness{c.timing, time.Now()}
	for {
		select {
		case <-c.left:
			return
		case <-ticks.C:
		}
		if _, judge := awake.tick(); judge && c.agent.silence() > c.timing.silence {
			c.lost(fmt.Errorf("its agent has not been heard for %v", c.agent.silence().Round(time.Millisecond)))
			return
		}
	}
}

// lost ends the process, after the grace for whoever watches Context: nobody is
// left to say anything to.
func (c *Client) lost(err error) {
	c.cancel(Stopped{err.Error()})
	select {
	case <-c.left: // it is about to end anyhow
	case <-time.After(c.timing.grace):
		fmt.Fprintf(os.Stderr, "gofsdp: rank %d ends because %v\n", c.start.Rank, err)
		os.Exit(exitStopped)
	}
}
