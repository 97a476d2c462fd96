package launcher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	pb "github.com/gofsdp/gofsdp/launcher/gofsdpv1"
)

// What an agent reads from its environment.
const (
	controlVariable  = "GOFSDP_CONTROL"  // path of the control file
	nodeVariable     = "GOFSDP_NODE"     // its number
	deadlineVariable = "GOFSDP_DEADLINE" // Settings.Deadline
)

func agentEnvironment(file string, node int, deadline time.Duration) []string {
	return []string{controlVariable + "=" + file, nodeVariable + "=" + strconv.Itoa(node), deadlineVariable + "=" + deadline.String()}
}

// Node is what a program gives the ranks of its node. Either may be nil.
type Node struct {
	// Files makes the files that the ranks share, by what the first of them is told;
	// each rank inherits all of them, in their order (Start.Files). They are made when
	// the ranks are, and closed with them.
	Files func(first Start) ([]*os.File, error)
	// Environment returns what a rank's process begins with, NAME=value each, besides
	// what it inherits from the agent and the job's own, which it is given.
	Environment func(rank Start, job []string) ([]string, error)
}

// RunAgent is the whole life of an agent: it registers with the launcher that
// its environment names, starts the node's ranks, each by the command, and
// returns the exit code for its process when all have ended. What it has to
// complain about itself it writes to its standard error. When ctx ends, somebody
// told this process to end, as ctx's cause says: then the launcher is asked to
// let all ranks end after the step at hand.
//
// node is what the node's ranks are given by the program that starts them.
func RunAgent(ctx context.Context, command []string, node Node) int {
	code, err := runAgent(ctx, command, node)
	if err != nil {
		fmt.Fprintf(os.Stderr, "gofsdp: agent: %v\n", err)
	}
	return code
}

func runAgent(told context.Context, command []string, of Node) (code int, err error) {
	// Where nobody made it the leader of a group, so that all can be killed at
	// once, it makes itself one; a session's leader is one already.
	syscall.Setpgid(0, 0)
	known, err := readControl(os.Getenv(controlVariable))
	if err != nil {
		return exitFailure, err
	}
	node, err := strconv.Atoi(os.Getenv(nodeVariable))
	if err != nil {
		return exitFailure, fmt.Errorf("%s is no number: %w", nodeVariable, err)
	}
	deadline, err := time.ParseDuration(os.Getenv(deadlineVariable))
	if err != nil {
		return exitFailure, fmt.Errorf("%s is no duration: %w", deadlineVariable, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	gone := make(chan struct{})
	a := &agent{
		command: command, node: of, timing: timingOf(deadline), launcher: newPulse(),
		gone: gone, forsake: sync.OnceFunc(func() { close(gone) }),
		out: make(chan *pb.AgentMessage, 256), ended: make(chan *rank),
	}
	silent := time.AfterFunc(a.timing.silence, cancel)
	connection, stream, err := attend(ctx, known)
	if err == nil {
		defer connection.Close()
	}
	if !silent.Stop() {
		return exitLost, fmt.Errorf("the launcher at %s has not answered for %v: it is stopped, or its machine is", known.Address, a.timing.silence)
	}
	if err != nil {
		return exitLost, err
	}
	register := &pb.AgentMessage{Kind: &pb.AgentMessage_Register{Register: &pb.Register{Node: int32(node), Host: hostTowards(known.Address)}}}
	stream.Send(register) // before any beat; a failure shows in Recv
	sent := make(chan error, 1)
	go func() {
		beat := &pb.AgentMessage{Kind: &pb.AgentMessage_Beat{Beat: &pb.Beat{}}}
		err := send(ctx.Done(), a.out, a.timing.every, beat, stream.Send)
		stream.CloseSend()
		sent <- err
	}()
	received := make(chan *pb.ToAgent)
	lost := make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				lost <- err
				return
			}
			a.launcher.beat()
			if m.GetBeat() != nil {
				continue
			}
			select {
			case received <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
	err = a.run(told, received, lost)
	// What was said last must arrive before the process is gone, if anybody listens.
	patience := a.timing.silence
	if err != nil {
		patience = a.timing.every
	}
	a.saying.Wait()
	close(a.out)
	select {
	case <-sent:
	case <-time.After(patience):
	}
	select {
	case <-lost: // the launcher has read all, and ends the stream
	case <-time.After(patience):
	}
	if err != nil || a.aborted {
		return exitStopped, err
	}
	return 0, nil
}

// attend opens an agent's stream.
func attend(ctx context.Context, known control) (*grpc.ClientConn, grpc.BidiStreamingClient[pb.AgentMessage, pb.ToAgent], error) {
	connection, err := grpc.NewClient("passthrough:///"+known.Address,
		grpc.WithTransportCredentials(credentials.NewTLS(known.clientTLS())), grpc.WithPerRPCCredentials(known),
		grpc.WithNoProxy(), // a proxy is for the world outside
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)))
	if err != nil {
		return nil, nil, fmt.Errorf("reaching the launcher at %s: %w", known.Address, err)
	}
	stream, err := pb.NewControlClient(connection).Attend(ctx)
	if err != nil {
		connection.Close()
		return nil, nil, fmt.Errorf("reaching the launcher at %s: %w", known.Address, err)
	}
	return connection, stream, nil
}

// hostTowards returns the address of this node on the way to another.
func hostTowards(address string) string {
	conn, err := net.Dial("udp", address) // sends nothing
	if err != nil {
		return "127.0.0.1"
	}
	defer conn.Close()
	host, _, _ := net.SplitHostPort(conn.LocalAddr().String())
	return host
}

// agent is one node's. One goroutine owns it, but for out.
type agent struct {
	command  []string
	node     Node
	timing   timing
	launcher *pulse
	gone     <-chan struct{} // closed when the launcher is lost
	forsake  func()          // closes gone
	out      chan *pb.AgentMessage
	ended    chan *rank // a rank, when its process and all that it said are through

	ranks   []*rank
	running int
	saying  sync.WaitGroup
	aborted bool
	killAt  <-chan time.Time
}

// say queues a message for the launcher.
func (a *agent) say(m *pb.AgentMessage) {
	select {
	case a.out <- m:
	case <-a.gone:
	}
}

// sayLater is for the goroutine that owns the agent: a launcher that does not
// read must not keep it from killing.
func (a *agent) sayLater(m *pb.AgentMessage) { a.saying.Go(func() { a.say(m) }) }

// run follows the node's ranks to their end. It returns an error when the
// launcher is lost; then, too, no rank is left.
func (a *agent) run(told context.Context, received <-chan *pb.ToAgent, lost <-chan error) (err error) {
	ticks := time.NewTicker(a.timing.every)
	defer ticks.Stop()
	awake := wakefulness{a.timing, time.Now()}
	interrupted := told.Done()
	for started := false; !started || a.running > 0; {
		select {
		case m := <-received:
			switch k := m.Kind.(type) {
			case *pb.ToAgent_Start:
				started = true
				a.start(k.Start)
			case *pb.ToAgent_Gathered:
				a.tellAll(&pb.ToRank{Kind: &pb.ToRank_Gathered{Gathered: k.Gathered}})
			case *pb.ToAgent_Stop:
				a.tellAll(&pb.ToRank{Kind: &pb.ToRank_Stop{Stop: k.Stop}})
			case *pb.ToAgent_Abort:
				a.abort(k.Abort.Reason)
				started = true // or it never will be
			}
		case <-interrupted:
			interrupted = nil
			a.sayLater(&pb.AgentMessage{Kind: &pb.AgentMessage_Told{Told: &pb.Told{How: context.Cause(told).Error()}}})
		case r := <-a.ended:
			a.running--
			r.gone = true
			r.close()
		case cause := <-lost:
			lost = nil
			if err == nil { // else it ends because this agent has given it up
				err = lostLauncher(cause)
			}
		case <-a.killAt:
			a.kill()
		case <-ticks.C:
		}
		slept, judge := awake.tick()
		switch {
		case slept > 0 && err == nil:
			err = fmt.Errorf("this agent was stopped for %v, longer than others wait", slept.Round(time.Millisecond))
		case judge:
			if silent := a.launcher.silence(); silent > a.timing.silence && err == nil {
				err = fmt.Errorf("the launcher has not been heard for %v: it is stopped, or its machine is", silent.Round(time.Millisecond))
			}
			a.listen()
		}
		if err != nil {
			a.giveUp(err)
			if !started {
				return err
			}
			a.abort(err.Error())
		}
	}
	return err
}

// giveUp ends all hope of the launcher. Where that is there after all, it hears why.
func (a *agent) giveUp(err error) {
	select {
	case <-a.gone:
		return
	default:
	}
	select {
	case a.out <- lostMessage(-1, exitHung, "%v", err):
	default: // it does not read
	}
	a.forsake()
}

func lostLauncher(cause error) error {
	if s, ok := status.FromError(cause); ok && s.Code() == codes.Unauthenticated {
		return errors.New("the launcher refused this agent: " + s.Message())
	}
	return fmt.Errorf("the launcher was lost: %w", cause)
}

// start starts all ranks. Where one cannot be started, the launcher hears why.
func (a *agent) start(s *pb.StartRanks) {
	var shared []*os.File
	var err error
	if a.node.Files != nil {
		shared, err = a.node.Files(startOf(s.Ranks[0]))
	}
	defer closeAll(shared)
	for _, start := range s.Ranks {
		var r *rank
		if err == nil {
			r, err = startRank(a, s, start, shared)
		}
		if err != nil {
			a.sayLater(lostMessage(start.Rank, exitFailure, "rank %d could not be started: %v", start.Rank, err))
			return
		}
		a.ranks = append(a.ranks, r)
		a.running++
	}
}

func lostMessage(rank, code int32, format string, args ...any) *pb.AgentMessage {
	return &pb.AgentMessage{Kind: &pb.AgentMessage_Lost{Lost: &pb.Lost{Rank: rank, Code: code, Reason: fmt.Sprintf(format, args...)}}}
}

func (a *agent) tellAll(m *pb.ToRank) {
	for _, r := range a.ranks {
		if !r.gone && !r.tell(m) && !r.killed.Load() {
			a.sayLater(lostMessage(r.start.Rank, exitHung, "rank %d does not read what its agent says", r.start.Rank))
			r.kill()
		}
	}
}

// abort tells the ranks that the run has failed, and kills those that are still
// there after the grace.
func (a *agent) abort(reason string) {
	if a.aborted {
		return
	}
	a.aborted = true
	a.tellAll(&pb.ToRank{Kind: &pb.ToRank_Abort{Abort: &pb.Abort{Reason: reason}}})
	a.killAt = time.After(a.timing.grace)
}

func (a *agent) kill() {
	for _, r := range a.ranks {
		if !r.gone {
			r.kill()
		}
	}
}

// listen gives up ranks that are silent.
func (a *agent) listen() {
	for _, r := range a.ranks {
		silent := r.pulse.silence()
		if r.gone || r.killed.Load() || silent <= a.timing.silence {
			continue
		}
		// One that is done and does not leave is ended; that is no failure.
		if r.done.Load() == nil && !a.aborted {
			a.sayLater(lostMessage(r.start.Rank, exitHung, "rank %d has not been heard for %v: it is stopped, or its machine is overloaded", r.start.Rank, silent.Round(time.Millisecond)))
		}
		r.kill()
	}
}

// closeAll leaves the files to the ranks that have inherited them.
func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

func logPath(logs string, rank int32) string {
	return filepath.Join(logs, "rank-"+strconv.Itoa(int(rank))+".log")
}
