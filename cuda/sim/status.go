//go:build sim && cgo && linux

package sim

import (
	"errors"
	"fmt"
)

// Status is a cublasStatus_t. Numbers and names: cuBLAS library reference, "cublasStatus_t".
type Status int32

// The statuses that the simulator returns.
const (
	BLASSuccess         Status = 0
	BLASNotInitialized  Status = 1
	BLASAllocFailed     Status = 3
	BLASInvalidValue    Status = 7
	BLASExecutionFailed Status = 13
	BLASInternalError   Status = 14
	BLASNotSupported    Status = 15
)

var statusNames = map[Status]string{
	BLASSuccess:         "CUBLAS_STATUS_SUCCESS",
	BLASNotInitialized:  "CUBLAS_STATUS_NOT_INITIALIZED",
	BLASAllocFailed:     "CUBLAS_STATUS_ALLOC_FAILED",
	BLASInvalidValue:    "CUBLAS_STATUS_INVALID_VALUE",
	BLASExecutionFailed: "CUBLAS_STATUS_EXECUTION_FAILED",
	BLASInternalError:   "CUBLAS_STATUS_INTERNAL_ERROR",
	BLASNotSupported:    "CUBLAS_STATUS_NOT_SUPPORTED",
}

// String is the status's name in cuBLAS's header.
func (s Status) String() string {
	if name, ok := statusNames[s]; ok {
		return name
	}
	return fmt.Sprintf("cublasStatus_t %d", int32(s))
}

// declined is an error that a call of cuBLAS returns as a status, with the reason.
type declined struct {
	status Status
	why    string
}

func (d *declined) Error() string { return d.status.String() + ": " + d.why }

// decline returns an error of cuBLAS's.
func decline(s Status, format string, args ...any) error {
	return &declined{s, fmt.Sprintf(format, args...)}
}

// declineFor gives an error of the driver's, if there is one, the status that cuBLAS has for it.
func declineFor(s Status, err error) error {
	if err == nil {
		return nil
	}
	return &declined{s, err.Error()}
}

// statusOf is the status that stands for an error of a call.
func statusOf(err error) Status {
	var d *declined
	switch {
	case err == nil:
		return BLASSuccess
	case errors.As(err, &d):
		return d.status
	}
	return BLASInternalError
}
