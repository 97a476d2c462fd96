package collective

import (
	"errors"
	"fmt"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// ErrDeadline is the reason of a wait that lasted too long.
var ErrDeadline = errors.New("the deadline passed")

// link is how one rank meets the others of its group, where each can read the
// others' memory. Its methods but abort are called by one goroutine at a time.
type link interface {
	// meet returns when all ranks have come to this meeting, else the ranks that
	// are missing at the deadline, or the reason of an abort.
	meet() (missing []int, err error)
	// exchange is a meeting at which each rank says what it offers. It returns the
	// offers of all by rank, their data where this rank reads them.
	exchange(o offer) (offers []offer, missing []int, err error)
	// abort ends all meetings of all ranks.
	abort(reason error)
}

// offer is what a rank brings to a collective.
type offer struct {
	signature string
	data      device.Tensor // that the others read
}

// member is a rank's end of a group whose ranks read each other's memory.
type member struct {
	link
	rank, size int
	names      names
	deadline   time.Duration
	done       int         // collectives finished
	onError    func(error) // nil, or what else ends where a collective fails
}

func (m *member) Rank() int { return m.rank }
func (m *member) Size() int { return m.size }

// Abort implements Comm.
func (m *member) Abort(reason error) { m.abort(reason) }

// Bind implements Comm.
func (m *member) Bind(op Op) ([]device.Op, error) {
	about, err := checked(op, m.rank, m.size)
	if err != nil {
		return nil, err
	}
	offers, err := m.agree(op, about)
	if err != nil {
		return nil, err
	}
	return m.steps(op, offers), nil
}

// agree returns what the ranks offer for op, once all have said that they bind
// the same.
func (m *member) agree(op Op, about string) ([]offer, error) {
	mine := offer{about, data(op)}
	offers, missing, err := m.exchange(mine)
	if err != nil {
		return nil, m.fail(op, missing, err)
	}
	for r, o := range offers {
		if o.signature != mine.signature {
			return nil, m.fail(op, nil, differ(m.names.of(r), o.signature, mine.signature))
		}
	}
	return offers, nil
}

// fail describes a collective that failed.
func (m *member) fail(op Op, missing []int, err error) *Error {
	kind, name := op.collective()
	e := &Error{Rank: m.names.of(m.rank), Kind: kind, Name: name, Number: m.done, Waited: m.deadline, Missing: m.names.all(missing), Err: err}
	e.tell(m.onError)
	return e
}

// checked returns what all ranks of a group must have alike in a collective, or
// what is wrong with it for a rank of so many.
func checked(op Op, rank, size int) (signature string, err error) {
	if err := op.Check(); err != nil {
		return "", err
	}
	kind, name := op.collective()
	signature = fmt.Sprintf("%s of %s", kind, name)
	refuse := func(format string, args ...any) (string, error) {
		return "", fmt.Errorf("collective: %s %s", signature, fmt.Sprintf(format, args...))
	}
	if _, barrier := op.(*Barrier); barrier {
		return signature, nil
	}
	whole := data(op)
	if whole.Absent() {
		return refuse("has no data")
	}
	signature += fmt.Sprintf(" (%d of %s)", whole.Len, whole.Type)
	from, to := Part(whole.Len, rank, size)
	part := to - from
	switch op := op.(type) {
	case *AllGather:
		part = op.Own.Len
	case *ReduceScatter:
		part = op.Out.Len
	case *Broadcast:
		if op.Root < 0 || op.Root >= size {
			return refuse("has root %d in a group of %d", op.Root, size)
		}
		signature += fmt.Sprintf(" from place %d", op.Root)
	}
	if part != to-from {
		return refuse("has %d elements for the rank at place %d of %d, want %d", part, rank, size, to-from)
	}
	return signature, nil
}

// differ says that a rank has bound something else.
func differ(rank int, theirs, mine string) error {
	return fmt.Errorf("rank %d has bound %s where this rank has %s: their plans differ", rank, theirs, mine)
}

// data returns the tensor that others read.
func data(op Op) device.Tensor {
	switch op := op.(type) {
	case *AllGather:
		return op.Data
	case *ReduceScatter:
		return op.Data
	case *AllReduce:
		return op.Data
	case *Broadcast:
		return op.Data
	}
	return device.Tensor{}
}
