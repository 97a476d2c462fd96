package main

import (
	"context"
	"errors"

	"github.com/gofsdp/gofsdp/collective"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/launcher"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/train"
)

// The exit codes of a rank whose peers do not answer, and of one that has lost a
// peer.
const (
	exitHung = 4
	exitLost = 5
)

// coded is an error with an exit code.
type coded struct {
	error
	code int
}

func (c coded) Unwrap() error { return c.error }

// ExitCode is what the process ends with.
func (c coded) ExitCode() int { return c.code }

// lost gives an error of a collective the exit code of a lost peer, and one that
// another's failure caused that of a rank which is not the reason. ended is the
// launcher's word, which ends where the run does.
func lost(ended context.Context, err error) error {
	c := failedCollective(err)
	var spoilt *train.NotFinite
	caused := c != nil && c.Missing == nil
	switch {
	case errors.As(err, &spoilt) && spoilt.Elsewhere:
		return coded{err, launcher.Stopped{}.ExitCode()}
	case spoilt != nil: // whatever failed after it
		return err
	case ended.Err() != nil && (caused || errors.Is(err, context.Canceled)):
		return context.Cause(ended)
	case caused:
		return coded{err, launcher.Stopped{}.ExitCode()}
	case c == nil:
		return err
	case errors.Is(c, collective.ErrDeadline):
		return coded{err, exitHung}
	}
	return coded{err, exitLost}
}

// failedCollective returns, of the collectives that have failed in err, the first
// that misses a rank, else the first; nil where there are none. One that fails
// ends the others of its rank.
func failedCollective(err error) (first *collective.Error) {
	c, ok := err.(*collective.Error)
	if ok && c.Missing != nil {
		return c
	}
	first = c
	var parts []error
	switch e := err.(type) {
	case interface{ Unwrap() []error }:
		parts = e.Unwrap()
	case interface{ Unwrap() error }:
		parts = []error{e.Unwrap()}
	}
	for _, part := range parts {
		if c := failedCollective(part); c != nil && (first == nil || first.Missing == nil && c.Missing != nil) {
			first = c
		}
	}
	return first
}

// lostOnGPU is lost for ranks on GPUs. NCCL does not tell which peer is gone, nor
// whether another's failure is the reason: what it says counts as a peer that is
// lost, or that hangs, until the launcher knows better.
func lostOnGPU(ended context.Context, err error) error {
	var spoilt *train.NotFinite
	var c *collective.Error
	var n *nccl.Error
	var d *cuda.Error
	hung := errors.Is(err, collective.ErrDeadline)
	gone := errors.As(err, &n) && n.Lost() || errors.As(err, &d) && d.Lost()
	switch {
	case errors.As(err, &spoilt):
		return lost(ended, err)
	case ended.Err() != nil && (errors.As(err, &c) || hung || gone || errors.Is(err, context.Canceled)):
		return context.Cause(ended)
	case hung:
		return coded{err, exitHung}
	case gone:
		return coded{err, exitLost}
	}
	return err
}
