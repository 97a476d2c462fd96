package nccl

import (
	"fmt"
	"strings"
)

// Error is a call that NCCL refused, or what it tells of earlier work.
type Error struct {
	Call   string // "ncclAllGather"; "ncclCommGetAsyncError" where it tells of earlier work
	Code   int    // of ncclResult_t
	Name   string // "ncclRemoteError"
	Text   string // NCCL's own: "remote process exited or there was a network error"
	Where  string // the communicator
	Detail string // the last that NCCL had to say, and what the call was for
}

func (e *Error) Error() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s: %s: %s (%d): %s", e.Where, e.Call, e.Name, e.Code, e.Text)
	if e.Detail != "" {
		fmt.Fprintf(&s, ": %s", e.Detail)
	}
	if hint := hints[e.Code]; hint != "" {
		fmt.Fprintf(&s, "; %s", hint)
	}
	return s.String()
}

// Lost says whether a peer, a link or the device was lost, and not by a call that was wrong.
func (e *Error) Lost() bool {
	switch e.Code {
	case unhandledCUDA, systemError, remoteError, timedOut:
		return true
	}
	return false
}

// Results of NCCL's that are treated by name; the numbers are those of ncclResult_t before 2.30, where 8 became
// a result too.
const (
	success         = 0
	unhandledCUDA   = 1
	systemError     = 2
	internalError   = 3
	invalidArgument = 4
	invalidUsage    = 5
	remoteError     = 6
	inProgress      = 7
	timedOut        = 8
)

var resultNames = map[int]string{
	unhandledCUDA: "ncclUnhandledCudaError", systemError: "ncclSystemError", internalError: "ncclInternalError",
	invalidArgument: "ncclInvalidArgument", invalidUsage: "ncclInvalidUsage", remoteError: "ncclRemoteError",
	inProgress: "ncclInProgress", timedOut: "ncclTimeout",
}

// hints say what to do about an error.
var hints = map[int]string{
	unhandledCUDA: "a call of CUDA's failed within NCCL; its log (NCCL_DEBUG_FILE) says which",
	systemError:   "a call of the system's failed within NCCL: /dev/shm may be full, memory may not be locked (ulimit -l), or no network be there; its log (NCCL_DEBUG_FILE) says which",
	invalidUsage:  "the log of NCCL (NCCL_DEBUG_FILE) says which rule was broken: two ranks on one GPU, different versions of NCCL, or a network that was demanded and is not there",
	remoteError:   "a peer has ended, or its connection; that rank's own log says why",
}

// versionText says a version as people do: 22907 is "2.29.7".
func versionText(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) }

// oldest is the version whose configuration of a communicator table.h has, and newest the first that may have
// another one.
const (
	oldest = 22700
	newest = 30000
)
