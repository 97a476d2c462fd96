//go:build !linux

package bench

import "errors"

// forgetPeak fails: only Linux can forget.
func forgetPeak() error { return errors.ErrUnsupported }

// peakMemory fails, as forgetPeak does.
func peakMemory() (int64, error) { return 0, errors.ErrUnsupported }
