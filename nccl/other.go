//go:build !(cgo && linux)

package nccl

import (
	"context"
	"fmt"
	"runtime"

	"github.com/gofsdp/gofsdp/cuda"
)

// Library is NCCL's functions; this build cannot call them.
type Library struct{}

// Open says that this build has no NCCL.
func Open(cuda.Sources) (*Library, error) {
	return nil, fmt.Errorf("%w: NCCL needs a build with cgo for Linux, and this is one of %s without; build with CGO_ENABLED=1 and a C compiler", cuda.ErrNoLibrary, runtime.GOOS)
}

// Version cannot be reached: there is no Library.
func (l *Library) Version() string { return "" }

// Connect cannot be reached: there is no Library.
func (l *Library) Connect(context.Context, [][]int, int, ConnectSettings) (*Groups, error) {
	return nil, cuda.ErrNoLibrary
}
