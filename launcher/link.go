package launcher

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/proto"
)

// maxMessage bounds a message of the control plane, in bytes: an exchange of the
// largest values by a thousand ranks.
const maxMessage = 64 << 20

// link carries messages between an agent and a rank, each after its length.
// One goroutine may read while another writes.
type link struct {
	net.Conn
	in *bufio.Reader
}

func newLink(file *os.File) (*link, error) {
	defer file.Close()
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("the socket between agent and rank: %w", err)
	}
	return &link{Conn: conn, in: bufio.NewReader(conn)}, nil
}

// linkPair returns an agent's end, and the end that a rank inherits.
func linkPair() (*link, *os.File, error) {
	syscall.ForkLock.RLock() // no child may inherit both ends in between
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, fmt.Errorf("making a socket between agent and rank: %w", err)
	}
	ours, err := newLink(os.NewFile(uintptr(fds[0]), "agent"))
	theirs := os.NewFile(uintptr(fds[1]), "rank")
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

func (l *link) read(m proto.Message) error {
	return protodelim.UnmarshalOptions{MaxSize: maxMessage}.UnmarshalFrom(l.in, m)
}

// foreign says whether an error of read means that what came was no message, not
// that nothing more came.
func foreign(err error) bool {
	var broken *net.OpError
	return !errors.As(err, &broken) && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF)
}

// write sends a message in one piece: half of one would be garbage.
func (l *link) write(m proto.Message) error {
	_, err := protodelim.MarshalTo(l.Conn, m)
	return err
}
