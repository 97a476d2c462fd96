//go:build sim && cgo && linux

package sim

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

// hub is what the process that made unique ids does for their ranks, which are in this process or in others:
// they come by a pipe, or by its loopback socket. It brings them together, and makes what each of them receives
// from what all send. It has no memory of a device's: each rank reads and writes its own.
type hub struct {
	refuse  func(call string, err error)
	socket  net.Listener
	working sync.WaitGroup

	mu     sync.Mutex
	groups map[[128]byte]*commGroup
	lines  map[*line]bool // open ones
	closed bool
}

// idBegin is what a unique id begins with; the port of its hub and 32 random bytes follow.
const idBegin = "sim unique id of the port "

// openHub listens.
func openHub(refuse func(call string, err error)) (*hub, error) {
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, deny(NCCLSystemError, "no socket: %v", err)
	}
	h := &hub{refuse: refuse, socket: socket, groups: map[[128]byte]*commGroup{}, lines: map[*line]bool{}}
	h.working.Go(func() {
		for {
			conn, err := socket.Accept()
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil:
				time.Sleep(10 * time.Millisecond) // no more files, perhaps
			default:
				h.working.Go(func() { h.serve(conn) })
			}
		}
	})
	return h, nil
}

// newID is ncclGetUniqueId.
func (h *hub) newID() (id [128]byte) {
	n := copy(id[:], idBegin)
	binary.LittleEndian.PutUint16(id[n:], uint16(h.socket.Addr().(*net.TCPAddr).Port))
	_, _ = rand.Read(id[96:]) // never fails
	h.mu.Lock()
	defer h.mu.Unlock()
	h.groups[id] = &commGroup{seats: map[int]*seat{}}
	return id
}

// has tells whether it made an id.
func (h *hub) has(id [128]byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.groups[id] != nil
}

// reach connects to the hub of an id: this process's own, where it has made it, or that of another one.
func (h *hub) reach(id [128]byte) (net.Conn, error) {
	if h != nil && h.has(id) {
		mine, its := net.Pipe()
		h.working.Go(func() { h.serve(its) })
		return mine, nil
	}
	port := binary.LittleEndian.Uint16(id[len(idBegin):])
	if string(id[:len(idBegin)]) != idBegin || port == 0 {
		return nil, deny(NCCLSystemError, "nobody listens where this unique id says")
	}
	conn, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), greeting)
	if err != nil {
		return nil, deny(NCCLRemoteError, "nobody listens where this unique id says: %v", err)
	}
	return conn, nil
}

// greeting is how long who connects may take to say who it is, and the hub to answer.
const greeting = 30 * time.Second

// seat is a rank, as its hub has it.
type seat struct {
	hello
	line  *line
	far   bool // it is in another process
	group *commGroup
	task  *task // what it has come to do
	left  bool
}

// errLeft is the orderly end of a rank.
var errLeft = errors.New("it has left")

// serve speaks with a rank until its end.
func (h *hub) serve(conn net.Conn) {
	_, far := conn.(*net.TCPConn)
	s := &seat{line: newLine(conn), far: far}
	defer s.line.close()
	if !h.enter(s.line) {
		return
	}
	defer h.leave(s.line)
	_ = conn.SetReadDeadline(time.Now().Add(greeting))
	err := s.line.listen(func(kind byte, words []byte) error {
		switch {
		case s.group == nil && kind == sayHello:
			_ = conn.SetReadDeadline(time.Time{})
			return h.admit(s, words)
		case s.group != nil && kind == sayTask:
			return s.group.come(h, s, words)
		case s.group != nil && kind == sayLeave:
			return errLeft
		}
		return fmt.Errorf("a frame of kind %d, which is out of place", kind)
	})
	if isDone(s.line.cut) {
		err = errLeft // by this hub's end
	}
	if s.group != nil {
		s.group.gone(s, err)
	}
	if !errors.Is(err, errLeft) && !errors.Is(err, io.EOF) {
		h.refuse("bootstrap root", err)
	}
}

func (h *hub) enter(l *line) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.closed {
		h.lines[l] = true
	}
	return !h.closed
}

func (h *hub) leave(l *line) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.lines, l)
}

// close ends all that the hub does. Ranks that are still there are told that it is over.
func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	var seats []*seat
	for _, g := range h.groups {
		seats = append(seats, g.present(nil)...)
	}
	h.mu.Unlock()
	_ = h.socket.Close()
	told := make(chan struct{})
	go func() { defer close(told); tell(seats, sayOver, nil) }()
	select {
	case <-told:
	case <-time.After(patience):
	}
	h.mu.Lock()
	for l := range h.lines {
		l.close()
	}
	h.mu.Unlock()
	<-told
	h.working.Wait()
}

// commGroup is the ranks of a unique id.
type commGroup struct {
	mu     sync.Mutex
	ranks  int           // 0: nobody has come yet
	seats  map[int]*seat // by rank, those that have joined
	broken bool          // its root has given up: nobody will ever be ready
	number int           // of the next collective
}

// admit takes a rank in, or refuses it. When the last has come all are told that they are ready, or why not.
func (h *hub) admit(s *seat, words []byte) error {
	var err error
	if s.hello, err = understood[hello](words); err != nil {
		return err
	}
	h.mu.Lock()
	g := h.groups[s.ID]
	h.mu.Unlock()
	if g == nil || s.Ranks < 1 || s.Rank < 0 || s.Rank >= s.Ranks {
		return fmt.Errorf("rank %d of %d of a communicator that is none", s.Rank, s.Ranks)
	}
	answer, complete := g.admit(s)
	if err := s.line.say(sayWelcome, answer); err != nil {
		return err
	}
	switch {
	case answer.Result != NCCLSuccess:
		return errLeft
	case complete:
		if why := g.unusable(); why != "" {
			tell(g.present(nil), sayNews, news{Result: NCCLInvalidUsage, Why: why})
		} else {
			tell(g.present(nil), sayReady, nil)
		}
	}
	return nil
}

func (g *commGroup) admit(s *seat) (answer news, complete bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ranks == 0 {
		g.ranks = s.Ranks
	}
	switch {
	case g.ranks != s.Ranks:
		g.broken = true
		s.group = g
		return news{Fault: true, Why: fmt.Sprintf("bootstrap root: mismatch in rank count from procs %d : %d; all ranks wait for ever", g.ranks, s.Ranks)}, false
	case g.seats[s.Rank] != nil:
		return news{Result: NCCLInternalError, Why: fmt.Sprintf("bootstrap root: rank %d of %d ranks has already checked in", s.Rank, s.Ranks)}, false
	}
	g.seats[s.Rank], s.group = s, g
	return answer, len(g.seats) == g.ranks && !g.broken
}

// unusable says why ranks that have all joined cannot be a communicator, as initTransportsRank does.
func (g *commGroup) unusable() string {
	all := g.present(nil)
	for i, a := range all {
		for _, b := range all[:i] {
			switch {
			case a.Version != b.Version:
				return fmt.Sprintf("Mismatched NCCL version detected: rank %d version %d rank %d version %d", b.Rank, b.Version, a.Rank, a.Version)
			case a.Host == b.Host && a.Bus == b.Bus:
				return fmt.Sprintf("Duplicate GPU detected: rank %d and rank %d both on CUDA device %x", b.Rank, a.Rank, a.Bus)
			}
		}
	}
	return ""
}

// present returns the ranks that are there, but one, in order.
func (g *commGroup) present(but *seat) (list []*seat) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for rank := range g.ranks {
		if s := g.seats[rank]; s != nil && s != but && !s.left {
			list = append(list, s)
		}
	}
	return list
}

// tell says something to ranks, and is not held up by one that does not listen: the others are told all the same.
func tell(seats []*seat, kind byte, v any) {
	var all sync.WaitGroup
	for _, s := range seats {
		all.Go(func() { _ = s.line.say(kind, v) }) // an error is the end of that rank, which its own listener finds
	}
	all.Wait()
}

// gone takes back what a rank has brought, and tells the others of its end: what has not left has died.
func (g *commGroup) gone(s *seat, why error) {
	g.mu.Lock()
	s.left, s.task = true, nil
	g.mu.Unlock()
	if errors.Is(why, errLeft) {
		tell(g.present(s), sayOver, nil)
		return
	}
	tell(g.present(s), sayNews, news{Result: NCCLRemoteError, Why: fmt.Sprintf("the connection of rank %d has ended: %v", s.Rank, why)})
}

// come notes what a rank has come to do. The last one's arrival begins it, unless ranks differ: then all are
// told, and nothing ends.
func (g *commGroup) come(h *hub, s *seat, words []byte) error {
	t, err := understood[task](words)
	if err == nil {
		err = t.check(s.Ranks)
	}
	if err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.task != nil {
		return errors.New("a task before the last one is done")
	}
	s.task = &t
	var seats []*seat
	for rank := range g.ranks {
		if other := g.seats[rank]; other != nil && other.task != nil {
			seats = append(seats, other)
		}
	}
	if len(seats) < g.ranks {
		return nil
	}
	for _, other := range seats {
		if *other.task != *seats[0].task {
			why := fmt.Sprintf("message truncated: collective %d is %s on rank 0 and %s on rank %d", g.number, seats[0].task, other.task, other.Rank)
			h.working.Go(func() { tell(seats, sayNews, news{Result: NCCLInvalidUsage, Why: why, Fault: true}) })
			return nil
		}
	}
	for _, other := range seats {
		other.task = nil
	}
	g.number++
	h.working.Go(func() { carry(t, seats) })
	return nil
}

// carry makes what ranks receive of what they send, a piece at a time: no rank gets a piece before all have sent
// theirs, so that it may be in place. A rank that ends meanwhile leaves the others waiting, for ever: what they
// send is dropped.
func carry(t task, seats []*seat) {
	if !carried(t, seats) {
		for _, s := range seats {
			s.line.drop()
		}
	}
}

func carried(t task, seats []*seat) bool {
	for _, s := range seats {
		if s.line.say(sayGo, nil) != nil {
			return false
		}
	}
	// What is in this process comes last: where it has its own, so have those whom it could leave by ending.
	outward := slices.Clone(seats)
	slices.SortStableFunc(outward, func(a, b *seat) int {
		switch {
		case a.far == b.far:
			return 0
		case a.far:
			return -1
		}
		return 1
	})
	buffer, sum := make([]byte, min(mostData, t.Count*sizeOf(t.Type))), []byte(nil)
	for step := range t.steps(len(seats)) {
		piece := buffer[:step.n]
		sum = sum[:0]
		for rank, s := range seats {
			if !step.sends(rank) {
				continue
			}
			if s.line.receive(piece) != nil {
				return false
			}
			if t.adds() {
				sum = add(t.Type, sum, piece, rank == 0)
			}
		}
		if t.adds() {
			piece = t.finish(sum)
		}
		for _, s := range outward {
			if step.receives(s.Rank) && s.line.send(piece) != nil {
				return false
			}
		}
	}
	return true
}
