package launcher

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/gofsdp/gofsdp/launcher/gofsdpv1"
)

// rankVariable names the descriptor of a rank's socket.
const rankVariable = "GOFSDP_RANK_SOCKET"

// firstInherited is the number of a process's first descriptor beyond the
// standard three.
const firstInherited = 3

// rank is a rank's process as its agent sees it.
type rank struct {
	start *pb.Start
	child *child
	link  *link
	pulse *pulse
	out   chan *pb.ToRank
	left  chan struct{} // closed when nobody writes any more
	done  atomic.Pointer[pb.Done]

	killed atomic.Bool // by the agent
	gone   bool        // owned by the agent's goroutine

	readers sync.WaitGroup
	writer  sync.WaitGroup
	log     *rankLog
}

// startRank starts a rank's process and the goroutines that follow it.
func startRank(a *agent, all *pb.StartRanks, start *pb.Start, shared []*os.File) (*rank, error) {
	if len(a.command) == 0 {
		return nil, errors.New("the agent was given no command to start ranks by")
	}
	ours, theirs, err := linkPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	inherited := append([]*os.File{theirs}, shared...)
	start = proto.CloneOf(start)
	for i := range shared {
		start.Files = append(start.Files, int32(firstInherited+1+i))
	}
	environment := append(os.Environ(), all.Environment...)
	if a.node.Environment != nil {
		own, err := a.node.Environment(startOf(start), all.Environment)
		if err != nil {
			ours.Close()
			return nil, err
		}
		environment = append(environment, own...)
	}
	log, err := newRankLog(all.Logs, start.Rank)
	if err != nil {
		ours.Close()
		return nil, err
	}
	r := &rank{start: start, link: ours, pulse: newPulse(), out: make(chan *pb.ToRank, 64), left: make(chan struct{}), log: log}
	command := exec.Command(a.command[0], a.command[1:]...)
	command.Env = append(environment, rankVariable+"="+strconv.Itoa(firstInherited))
	command.ExtraFiles = inherited
	outputs, err := r.pipes(command)
	if err == nil {
		r.child, err = startChild(command, false)
		command.Stdout.(*os.File).Close()
		command.Stderr.(*os.File).Close()
	}
	if err != nil {
		ours.Close()
		log.close()
		for _, f := range outputs {
			f.Close()
		}
		return nil, err
	}
	r.out <- &pb.ToRank{Kind: &pb.ToRank_Start{Start: start}}
	r.writer.Go(func() {
		beat := &pb.ToRank{Kind: &pb.ToRank_Beat{Beat: &pb.Beat{}}}
		send(r.left, r.out, a.timing.every, beat, func(m *pb.ToRank) error { return r.link.write(m) })
	})
	r.readers.Go(func() { r.hear(a) })
	for i, f := range outputs {
		r.readers.Go(func() { r.relay(a, f, i == 1) })
	}
	go func() {
		<-r.child.ended
		// A grandchild may hold the ends, and has nothing to say.
		soon := time.Now().Add(a.timing.grace)
		r.link.SetReadDeadline(soon)
		for _, f := range outputs {
			f.SetReadDeadline(soon)
		}
		r.readers.Wait()
		for _, f := range outputs {
			f.Close()
		}
		a.say(&pb.AgentMessage{Kind: &pb.AgentMessage_Exited{Exited: r.exit()}})
		a.ended <- r
	}()
	return r, nil
}

// pipes connects a command's standard output and error, and returns the ends to
// read from.
func (r *rank) pipes(command *exec.Cmd) ([]*os.File, error) {
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	errRead, errWrite, err := os.Pipe()
	if err != nil {
		outRead.Close()
		outWrite.Close()
		return nil, err
	}
	command.Stdout, command.Stderr = outWrite, errWrite
	return []*os.File{outRead, errRead}, nil
}

// hear passes on what the rank says.
func (r *rank) hear(a *agent) {
	for {
		m := &pb.RankMessage{}
		if err := r.link.read(m); err != nil {
			if foreign(err) {
				a.say(lostMessage(r.start.Rank, exitLost, "rank %d speaks garbage to its agent: %v", r.start.Rank, err))
			}
			return // its process has ended, or is silent from now on
		}
		r.pulse.beat()
		if m.GetBeat() != nil {
			continue
		}
		if d := m.GetDone(); d != nil {
			r.done.Store(d)
		}
		r.pulse.during(func() {
			a.say(&pb.AgentMessage{Kind: &pb.AgentMessage_FromRank{FromRank: &pb.FromRank{Rank: r.start.Rank, Message: m}}})
		})
	}
}

// relay passes on the lines of one of the rank's outputs.
func (r *rank) relay(a *agent, from io.Reader, isError bool) {
	in := bufio.NewReaderSize(from, 64<<10)
	for {
		// A longer line is passed on in parts.
		line, err := in.ReadSlice('\n')
		if len(line) > 0 {
			text := bytes.Clone(bytes.TrimSuffix(line, []byte("\n")))
			r.log.line(text, isError)
			a.say(&pb.AgentMessage{Kind: &pb.AgentMessage_Line{Line: &pb.Line{Rank: r.start.Rank, Error: isError, Text: text}}})
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

// tell queues a message. It says whether there was room for it.
func (r *rank) tell(m *pb.ToRank) bool {
	select {
	case r.out <- m:
		return true
	default:
		return false
	}
}

func (r *rank) kill() {
	r.killed.Store(true)
	r.child.kill()
}

// exit says how the rank ended. One that the agent killed did so because of
// another, or of what has been said already.
func (r *rank) exit() *pb.Exited {
	e := &pb.Exited{Rank: r.start.Rank, Code: int32(r.child.code), Signal: int32(r.child.signal), Last: r.log.last()}
	if r.killed.Load() {
		e.Code, e.Signal = exitStopped, 0
	}
	return e
}

func (r *rank) close() {
	close(r.left)
	r.link.Close() // ends a write that nobody reads
	r.writer.Wait()
	r.log.close()
}

// rankLog is a rank's file of all that it wrote, and its last words.
type rankLog struct {
	mutex sync.Mutex
	file  *os.File // nil for none
	words []byte
	fatal bool
}

func newRankLog(folder string, rank int32) (*rankLog, error) {
	if folder == "" {
		return &rankLog{}, nil
	}
	file, err := os.OpenFile(logPath(folder, rank), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		return nil, fmt.Errorf("opening its log: %w", err)
	}
	return &rankLog{file: file}, nil
}

// line notes a line. Of standard error it keeps the last for the reason, or the
// one by which Go begins a panic.
func (l *rankLog) line(text []byte, isError bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if l.file != nil {
		l.file.Write(append(bytes.Clone(text), '\n')) // a full disk must not end a run
	}
	if isError && !l.fatal && len(bytes.TrimSpace(text)) > 0 {
		l.words = text[:min(len(text), 1000)]
		l.fatal = bytes.HasPrefix(text, []byte("panic: ")) || bytes.HasPrefix(text, []byte("fatal error: "))
	}
}

func (l *rankLog) last() string {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return string(bytes.ToValidUTF8(l.words, []byte("?")))
}

func (l *rankLog) close() {
	if l.file != nil {
		l.file.Close()
	}
}
