package launcher

import (
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/gofsdp/gofsdp/launcher/gofsdpv1"
)

// service is what agents call. Each agent's stream becomes events for the gang,
// which alone decides.
type service struct {
	pb.UnimplementedControlServer
	control control
	timing  timing
	perNode int // ranks
	printer *printer
	events  chan event
	done    chan struct{} // closed when nobody takes events any more
}

// attendance is one agent's stream.
type attendance struct {
	node  int
	host  string
	out   chan *pb.ToAgent // to the agent
	pulse *pulse
}

// event is one thing that an agent's stream brought: its registration (both
// others nil), a message, or its end.
type event struct {
	from    *attendance
	message *pb.AgentMessage
	ended   error
}

// guard refuses callers that do not know the secret, before anything is read.
func (s *service) guard(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if !s.control.proven(stream.Context()) {
		return status.Error(codes.Unauthenticated, "the secret is not this run's")
	}
	return handle(server, stream)
}

// Attend serves one agent until its stream ends.
func (s *service) Attend(stream grpc.BidiStreamingServer[pb.AgentMessage, pb.ToAgent]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	register := first.GetRegister()
	if register == nil {
		return status.Error(codes.InvalidArgument, "an agent begins by registering")
	}
	a := &attendance{node: int(register.Node), host: register.Host, out: make(chan *pb.ToAgent, 64), pulse: newPulse()}
	left := make(chan struct{})
	var sender sync.WaitGroup
	defer sender.Wait() // nothing may be sent once this returns
	defer close(left)
	sender.Go(func() {
		beat := &pb.ToAgent{Kind: &pb.ToAgent_Beat{Beat: &pb.Beat{}}}
		send(left, a.out, s.timing.every, beat, stream.Send) // a failure shows in Recv
	})
	s.deliver(event{from: a})
	for {
		m, err := stream.Recv()
		if err != nil {
			s.deliver(event{from: a, ended: err})
			return nil
		}
		a.pulse.beat()
		switch k := m.Kind.(type) {
		case *pb.AgentMessage_Beat:
		case *pb.AgentMessage_Line:
			// Not by way of the gang, which a terminal that is held up would hold up too.
			if r := int(k.Line.Rank); r >= 0 && r/s.perNode == a.node {
				a.pulse.during(func() { s.printer.lines <- printedLine{r, k.Line.Error, k.Line.Text} })
			}
		default:
			a.pulse.during(func() { s.deliver(event{from: a, message: m}) })
		}
	}
}

func (s *service) deliver(e event) {
	select {
	case s.events <- e:
	case <-s.done:
	}
}
