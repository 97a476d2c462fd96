//go:build cgo && linux

package nccl

// #include "call.h"
// #include <stdlib.h>
import "C"

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"
	"unsafe"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/device"
)

// Connect joins this rank's groups, each of them ranks in increasing order, by a communicator of its own. All
// ranks call it at once, with the same groups. It returns when this rank has joined all of its own, and fails
// after JoinWithin, or as soon as ctx ends. The groups are to be closed before the device.
func (l *Library) Connect(ctx context.Context, groups [][]int, rank int, set ConnectSettings) (_ *Groups, err error) {
	own := word{Version: l.Version(), File: l.found.Path, IDs: map[int][]byte{}}
	for i, ranks := range groups {
		if ranks[0] == rank {
			id, err := l.UniqueID()
			if err != nil {
				return nil, err
			}
			own.IDs[i] = id[:]
		}
	}
	value, err := json.Marshal(own)
	if err != nil {
		return nil, fmt.Errorf("nccl: rank %d: %w", rank, err)
	}
	said, err := set.Exchange(ctx, value)
	if err != nil {
		return nil, err
	}
	words, err := heard(said)
	if err != nil {
		return nil, err
	}
	g := &Groups{Comms: make([]collective.Comm, len(groups))}
	var joined []*Comm
	for i, ranks := range groups {
		place := slices.Index(ranks, rank)
		if place < 0 {
			continue
		}
		id, err := idOf(words, i, ranks)
		if err == nil {
			var c *Comm
			if c, err = l.join(ctx, id, fmt.Sprintf("%s, group %d", set.Run, i), ranks, place, set); err == nil {
				joined, g.own, g.Comms[i] = append(joined, c), append(g.own, c), c
				continue
			}
		}
		g.Abort(err) // the others cannot be left in order: this rank joins no more
		return nil, errors.Join(err, g.Close())
	}
	for _, c := range joined {
		c.watch(g.Abort)
	}
	return g, nil
}

// join makes one communicator, with what it needs of the device.
func (l *Library) join(ctx context.Context, id UniqueID, name string, ranks []int, place int, set ConnectSettings) (_ *Comm, err error) {
	c := &Comm{
		library: l, device: set.Device, name: name, where: fmt.Sprintf("rank %d: communicator %q", ranks[place], name),
		ranks: ranks, place: place, deadline: set.Deadline, joining: cmp.Or(set.JoinWithin, set.Deadline), wake: make(chan struct{}, 1),
		done: make(chan struct{}), ended: make(chan struct{}),
	}
	if err := c.prepare(); err != nil {
		return nil, errors.Join(err, c.release())
	}
	if err = c.init(ctx, id, set.network(), c.joining); err == nil {
		return c, nil
	}
	return nil, errors.Join(err, c.depart())
}

// prepare allocates: a slot of text for every rank, and an element for barriers; events for the watchdog; a
// stream for what ranks agree on.
func (c *Comm) prepare() (err error) {
	n := int64(len(c.ranks))
	if c.slots, err = c.device.Alloc(n*slotBytes, device.Local); err != nil {
		return fmt.Errorf("%s: %w", c.where, err)
	}
	if c.host, err = c.device.Alloc(n*slotBytes, device.Pinned); err != nil {
		return fmt.Errorf("%s: %w", c.where, err)
	}
	if c.cell, err = c.device.Alloc(4, device.Local); err != nil {
		return fmt.Errorf("%s: %w", c.where, err)
	}
	for i := range c.flight {
		c.flight[i].begin, c.flight[i].end = c.device.NewEvent(), c.device.NewEvent()
	}
	c.stream, c.agreeing = c.device.NewStream("agreement of "+c.name), c.agreement()
	return nil
}

// release gives the memory back. NCCL must not be using it any more; streams and events go with the device.
func (c *Comm) release() error {
	var errs []error
	for _, b := range []*device.Buffer{&c.slots, &c.host, &c.cell} {
		if b.Size > 0 {
			errs = append(errs, c.device.Free(*b))
			*b = device.Buffer{}
		}
	}
	for i, text := range c.texts {
		C.free(unsafe.Pointer(text))
		c.texts[i] = nil
	}
	return errors.Join(errs...)
}

// init joins, on the device's thread, whose GPU NCCL takes, and waits elsewhere until all ranks have.
func (c *Comm) init(ctx context.Context, id UniqueID, network string, within time.Duration) error {
	if c.texts[1] = C.CString(c.name); network != "" {
		c.texts[0] = C.CString(network)
	}
	began := time.Now()
	err := c.device.Do(func() error {
		var handle C.ncclComm_t
		r := C.gofsdp_join(c.library.table, &handle, C.int(len(c.ranks)), (*C.ncclUniqueId)(unsafe.Pointer(&id)), C.int(c.place), c.texts[0], c.texts[1])
		c.handle = handle
		if r != success && r != inProgress {
			return c.refused(r, "ncclCommInitRankConfig", c.asked(network))
		}
		return nil
	})
	for err == nil {
		r := C.gofsdp_settle(c.library.table, c.handle)
		switch waited := time.Since(began); {
		case r == success:
			return nil
		case r != inProgress:
			err = c.refused(r, "ncclCommInitRankConfig", c.asked(network))
		case ctx.Err() != nil:
			err = fmt.Errorf("%s: not all of ranks %v have joined it: %w", c.where, c.ranks, context.Cause(ctx))
		case waited > within:
			err = fmt.Errorf("%s: after %v not all of ranks %v have joined it, and NCCL does not tell which: %w; the log of NCCL (NCCL_DEBUG_FILE) says how far it came, and NCCL_SOCKET_IFNAME which interface the ranks meet on", c.where, waited.Round(time.Millisecond), c.ranks, collective.ErrDeadline)
		}
	}
	return err
}

// asked says what a communicator was asked to use.
func (c *Comm) asked(network string) string {
	if network == "" {
		return ""
	}
	return fmt.Sprintf("scaling.nccl.require demands the network %s: its plugin (aws-ofi-nccl, libnccl-net.so) must be on LD_LIBRARY_PATH, and see an EFA device", network)
}

// refused makes an error of a result.
func (c *Comm) refused(r C.ncclResult_t, call, about string) *Error {
	e := c.library.failure(r, call, c.where, c.handle)
	if e.Detail != "" && about != "" {
		e.Detail += "; "
	}
	e.Detail += about
	return e
}
