//go:build !linux

package collective

import (
	"errors"
	"os"
)

var errNotLinux = errors.New("collective: groups over shared memory are there on Linux only; use TCP")

// Shared is a rank's end of a group over shared memory, of which there are none.
type Shared struct{ member }

// NewControl fails: groups over shared memory are there on Linux only.
func NewControl(int) (*os.File, error) { return nil, errNotLinux }

// NewShared fails: groups over shared memory are there on Linux only.
func NewShared(s SharedSettings) (*Shared, error) { return nil, errors.Join(s.check(), errNotLinux) }

// Close does nothing.
func (s *Shared) Close() error { return nil }
