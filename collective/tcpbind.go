package collective

import (
	"fmt"
	"slices"
	"time"

	"github.com/gofsdp/gofsdp/device"
)

// Bind implements Comm.
func (t *TCP) Bind(op Op) ([]device.Op, error) {
	about, err := checked(op, t.Rank(), t.Size())
	if err != nil {
		return nil, err
	}
	b := t.binding(op, about)
	if err := t.agree(op, b.about); err != nil {
		return nil, err
	}
	return b.steps()
}

// binding begins to bind op; all ranks do so in the same order.
func (t *TCP) binding(op Op, about string) *binding {
	kind, _ := op.collective()
	b := &binding{comm: t, op: op, id: t.bound, kind: byte(slices.Index(kinds, kind)), about: about}
	t.bound++
	return b
}

// agree returns when all ranks have said that they bind the same.
func (t *TCP) agree(op Op, mine string) error {
	began := time.Now()
	for _, p := range t.peers {
		if p == nil {
			continue
		}
		if err := p.tell(wordBind, []byte(mine), t.patience()); err != nil {
			t.lost(p, err)
			return t.errorOf(op, began)
		}
	}
	deadline := time.NewTimer(t.set.Deadline)
	defer deadline.Stop()
	var other error
	for i, p := range t.peers {
		if p == nil {
			continue
		}
		var theirs []byte
		select {
		case theirs = <-p.bound: // before what ended the group, if it is there
		default:
			select {
			case theirs = <-p.bound:
			case <-t.failed:
				return t.errorOf(op, began)
			case <-p.left:
				t.fail([]int{p.name}, fmt.Errorf("%v has left the group", p))
				return t.errorOf(op, began)
			case <-deadline.C:
				var missing []int
				for _, q := range t.peers[i:] {
					if q != nil && len(q.bound) == 0 {
						missing = append(missing, q.name)
					}
				}
				t.fail(missing, fmt.Errorf("rank %d waited in vain: %w", t.name(t.set.Rank), ErrDeadline))
				return t.errorOf(op, began)
			}
		}
		if string(theirs) != mine && other == nil {
			other = t.refusal(op, began, nil, differ(p.name, string(theirs), mine))
		}
	}
	return other
}

// binding is what Bind makes of one collective.
type binding struct {
	comm  *TCP
	op    Op
	id    uint32
	kind  byte
	about string // what the ranks have alike
	sends *latch // of those since the last flush; nil where there are none
	parts uint32
}
