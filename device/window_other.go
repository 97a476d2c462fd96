//go:build !linux

package device

import (
	"errors"
	"os"
)

var errNoWindows = errors.New("device: memory that processes share is there on Linux only; reach the other ranks over TCP")

// NewWindowFile fails: only Linux has files of memory without a path.
func NewWindowFile(string) (*os.File, error) { return nil, errNoWindows }

func windowSize(*os.File) (int64, error) { return 0, errNoWindows }

func punch(*os.File, int64, int64) error { return errNoWindows }
