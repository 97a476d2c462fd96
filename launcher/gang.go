package launcher

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"syscall"
	"time"

	pb "github.com/gofsdp/gofsdp/launcher/gofsdpv1"
)

// gang is all processes of a run as the launcher sees them. One goroutine owns
// it; everything reaches it as an event.
type gang struct {
	job     *Job
	control control
	logs    string
	timing  timing

	nodes     []*node
	ranks     []rankState
	exchanges map[string]*exchange
	started   bool
	stop      *Outcome // of ranks that were asked to end, nil while they were not
	cause     *failure // the best reason so far, nil while all is well
}

type node struct {
	placement Placement
	pulse     *pulse      // nil while nobody knows whether its process is there
	agent     *attendance // nil before it registers
	left      bool        // its stream has ended
	gone      bool        // its placement has
}

type rankState struct {
	done   *pb.Done // what it said last
	exited bool
}

func newGang(job *Job, known control, logs string) *gang {
	return &gang{
		job: job, control: known, logs: logs, timing: timingOf(job.Deadline),
		nodes: make([]*node, job.Nodes), ranks: make([]rankState, job.Nodes*job.Ranks), exchanges: map[string]*exchange{},
	}
}

// run places the agents and follows them to their end.
func (g *gang) run(ctx context.Context, events <-chan event) Outcome {
	gone := make(chan int)
	over := make(chan struct{})
	defer close(over)
	file, err := filepath.Abs(controlPath(g.job.Dir))
	if err != nil {
		return Outcome{Code: exitFailure, Reason: err.Error(), Rank: -1}
	}
	for i := range g.nodes {
		placement, err := g.job.Placer.Place(agentEnvironment(file, i, g.job.Deadline))
		if err != nil {
			g.fail(reason, -1, exitNoResources, "node %d: %v", i, err)
			break
		}
		g.nodes[i] = &node{placement: placement}
		go func() {
			select {
			case <-placement.Ended():
				select {
				case gone <- i:
				case <-over:
				}
			case <-over:
			}
		}()
	}
	ticks := time.NewTicker(g.timing.every)
	defer ticks.Stop()
	awake := wakefulness{g.timing, time.Now()}
	late := time.After(g.job.StartWithin)
	interrupted := ctx.Done()
	var settled <-chan time.Time // when a failure has had its time
	for !g.over() {
		if g.cause != nil && settled == nil {
			g.tellAll(&pb.ToAgent{Kind: &pb.ToAgent_Abort{Abort: &pb.Abort{Reason: g.cause.Reason}}})
			settled = time.After(g.timing.grace + g.timing.grace/4)
		}
		var act func()
		select {
		case e := <-events:
			act = func() { g.take(e) }
		case i := <-gone:
			act = func() { g.lose(i) }
		case <-late:
			act = g.late
		case <-interrupted:
			interrupted = nil
			act = func() { g.interrupt(interruptionOf(ctx)) }
		case <-settled:
			g.end()
			return g.outcome()
		case <-ticks.C:
			act = func() {}
		}
		// After a sleep, whatever happened is a consequence of it; after a short
		// one, nobody may be judged before all that was said has been read.
		slept, judge := awake.tick()
		if slept > 0 && g.cause == nil {
			g.fail(reason, -1, exitHung, "the launcher was stopped for %v, longer than its agents wait", slept.Round(time.Millisecond))
			break
		}
		act()
		if judge {
			g.listen()
		}
	}
	if g.stop != nil && interrupted != nil {
		// Whoever told others may have told all, and this process hears it last.
		select {
		case <-interrupted:
			g.interrupt(interruptionOf(ctx))
		case <-time.After(g.timing.every):
		}
	}
	g.end()
	return g.outcome()
}

// interruptionOf is how a run ends whose launcher was told to.
func interruptionOf(ctx context.Context) Outcome {
	cause := context.Cause(ctx)
	return Outcome{Code: exitCodeOf(cause), Reason: cause.Error(), Rank: -1}
}

// late gives up when the agents have not come in time.
func (g *gang) late() {
	if !g.started {
		g.fail(reason, -1, exitNoResources, "%d of %d nodes registered within %v; give them longer by launcher.start_within, or ask for fewer", g.registered(), len(g.nodes), g.job.StartWithin)
	}
}

// interrupt asks all ranks to end after the step at hand. What the launcher
// itself was told counts more than what others were.
func (g *gang) interrupt(why Outcome) {
	if g.stop != nil && why.Code == exitLost {
		return
	}
	g.stop = &why
	if !g.started {
		g.fail(reason, why.Rank, why.Code, "%s", why.Reason)
		return
	}
	g.tellAll(&pb.ToAgent{Kind: &pb.ToAgent_Stop{Stop: &pb.Stop{}}})
}

// told is for an agent or a rank whose process somebody told to end: its machine
// is taken away, perhaps. All end well, and the run counts as one that lost it.
func (g *gang) told(rank int, who string, t *pb.Told) {
	g.interrupt(Outcome{Code: exitLost, Reason: fmt.Sprintf("%s was told to end: %s", who, t.How), Rank: rank})
}

// over says whether nobody is left.
func (g *gang) over() bool {
	for _, n := range g.nodes {
		if n != nil && !n.gone {
			return false
		}
	}
	return true
}

// end kills what is left, and returns when it is gone.
func (g *gang) end() {
	for _, n := range g.nodes {
		if n != nil {
			n.placement.Kill()
		}
	}
	for _, n := range g.nodes {
		if n != nil {
			<-n.placement.Ended()
		}
	}
}

// take handles what an agent's stream brought.
func (g *gang) take(e event) {
	i := e.from.node
	if i < 0 || i >= len(g.nodes) || g.nodes[i] == nil {
		return // it knows the secret and not the run: nothing hangs on it
	}
	n := g.nodes[i]
	switch {
	case e.message == nil && e.ended == nil:
		if n.agent == nil {
			n.agent, n.pulse = e.from, e.from.pulse
			g.start()
		}
	case e.from != n.agent: // a second agent of the node is not listened to
	case e.ended != nil:
		n.left = true
		if !g.finished(i) && !errors.Is(e.ended, io.EOF) && n.placement != nil {
			// How the agent ended is the better reason, if that is known soon.
			g.fail(suspicion, -1, exitLost, "the agent of node %d was lost: %v", i, e.ended)
		}
	default:
		g.hear(i, e.message)
	}
}

// hear handles what an agent said.
func (g *gang) hear(node int, m *pb.AgentMessage) {
	switch k := m.Kind.(type) {
	case *pb.AgentMessage_Exited:
		if r := int(k.Exited.Rank); g.owns(node, r) {
			g.exited(r, k.Exited)
		}
	case *pb.AgentMessage_Lost:
		switch r := int(k.Lost.Rank); {
		case r < 0: // the agent gives up all, the launcher first
			g.fail(reason, -1, int(k.Lost.Code), "the agent of node %d: %s", node, k.Lost.Reason)
		case g.owns(node, r):
			g.fail(reason, r, int(k.Lost.Code), "%s", k.Lost.Reason)
		}
	case *pb.AgentMessage_Told:
		g.told(-1, fmt.Sprintf("the agent of node %d", node), k.Told)
	case *pb.AgentMessage_FromRank:
		r := int(k.FromRank.Rank)
		if !g.owns(node, r) {
			return
		}
		switch k := k.FromRank.Message.GetKind().(type) {
		case *pb.RankMessage_Give:
			g.give(r, k.Give)
		case *pb.RankMessage_Report:
			if g.job.OnReport != nil {
				g.job.OnReport(r, k.Report.Kind, k.Report.Text)
			}
		case *pb.RankMessage_Done:
			g.done(r, k.Done)
		case *pb.RankMessage_Told:
			g.told(r, fmt.Sprintf("rank %d", r), k.Told)
		}
	}
}

func (g *gang) owns(node, rank int) bool { return rank >= 0 && rank/g.job.Ranks == node }

// done handles a rank's last word.
func (g *gang) done(rank int, d *pb.Done) {
	g.ranks[rank].done = d
	code := int(d.Code)
	asked := g.stop != nil && (code == exitStopped || code == exitInterrupted || code == exitTerminated)
	if code == 0 || asked {
		g.checkExchanges()
		return
	}
	weight := weightOf(code)
	if g.stop != nil && code == exitLost {
		weight = consequence // its peers have left as they were asked to
	}
	g.fail(weight, rank, code, "rank %d: %s", rank, d.Reason)
}

// exited handles the end of a rank's process.
func (g *gang) exited(rank int, e *pb.Exited) {
	s := &g.ranks[rank]
	s.exited = true
	said := ""
	if e.Last != "" {
		said = "; its last words: " + e.Last
	}
	switch code := int(e.Code); {
	case s.done != nil: // it has said all, whatever its process then did
	case e.Signal != 0:
		signal := syscall.Signal(e.Signal)
		if signal == syscall.SIGKILL && said == "" {
			said = " (by somebody, or for want of memory: see the kernel's log)"
		}
		g.fail(reason, rank, exitLost, "rank %d was killed by signal %d (%v)%s", rank, e.Signal, signal, said)
	case code == exitStopped, code == exitLost, code == exitNoResources, code == exitHung:
		g.fail(weightOf(code), rank, code, "rank %d ended with exit code %d%s", rank, code, said)
	case g.stop != nil && (code == exitInterrupted || code == exitTerminated):
	default:
		// A Go program that panics exits with 2, so only a word makes that the user's mistake.
		g.fail(reason, rank, exitFailure, "rank %d ended with exit code %d without a word of why%s", rank, code, said)
	}
}

// lose handles the end of a placement.
func (g *gang) lose(i int) {
	n := g.nodes[i]
	n.gone = true
	if !g.finished(i) {
		what := "before it registered"
		if n.agent != nil {
			what = "before its ranks"
		}
		how, lost := n.placement.How()
		weight := reason
		if lost {
			weight = suspicion
		}
		// Where its ranks failed, the agent's own end says nothing more.
		if g.cause == nil || g.cause.weight < reason {
			g.fail(weight, -1, exitLost, "the agent of node %d %s %s", i, how, what)
		}
	}
}

// finished says whether all ranks of a node have ended.
func (g *gang) finished(node int) bool {
	for r := node * g.job.Ranks; r < (node+1)*g.job.Ranks; r++ {
		if !g.ranks[r].exited {
			return false
		}
	}
	return true
}

// listen fails for an agent that is silent. One that has not registered is, once
// its process is known to be there; before, it is waited for.
func (g *gang) listen() {
	for i, n := range g.nodes {
		if n == nil || n.gone || n.left {
			continue
		}
		if n.pulse == nil && n.placement.Running() {
			n.pulse = newPulse()
		}
		if n.pulse == nil {
			continue
		}
		if silent := n.pulse.silence(); silent > g.timing.silence {
			g.fail(reason, -1, exitHung, "the agent of node %d has not been heard for %v: it is stopped, or its machine is", i, silent.Round(time.Millisecond))
			n.placement.Kill() // it could not even hear that all is over
		}
	}
}

func (g *gang) registered() (count int) {
	for _, n := range g.nodes {
		if n != nil && n.agent != nil {
			count++
		}
	}
	return count
}

// start is the second phase: once all agents are there, each rank is told all.
func (g *gang) start() {
	if g.registered() < len(g.nodes) || g.cause != nil {
		return
	}
	g.started = true
	hosts := make([]string, len(g.ranks))
	for r := range hosts {
		hosts[r] = g.nodes[r/g.job.Ranks].agent.host
	}
	for i, n := range g.nodes {
		message := &pb.StartRanks{Environment: g.job.Environment, Logs: g.logs}
		for local := range g.job.Ranks {
			message.Ranks = append(message.Ranks, &pb.Start{
				Run: g.job.Run, Attempt: int32(g.job.Attempt),
				Rank: int32(i*g.job.Ranks + local), World: int32(len(g.ranks)),
				Node: int32(i), Nodes: int32(len(g.nodes)),
				LocalRank: int32(local), LocalRanks: int32(g.job.Ranks),
				Mesh: g.job.Mesh, Hosts: hosts, Secret: []byte(g.control.Secret),
				Config: g.job.Config, DeadlineNs: int64(g.job.Deadline),
			})
		}
		g.tell(i, n, &pb.ToAgent{Kind: &pb.ToAgent_Start{Start: message}})
	}
}

func (g *gang) tellAll(m *pb.ToAgent) {
	for i, n := range g.nodes {
		if n != nil && n.agent != nil {
			g.tell(i, n, m)
		}
	}
}

// tell queues a message. An agent that leaves so many unread is as good as gone.
func (g *gang) tell(i int, n *node, m *pb.ToAgent) {
	select {
	case n.agent.out <- m:
	default:
		g.fail(suspicion, -1, exitHung, "the agent of node %d does not read", i)
	}
}
