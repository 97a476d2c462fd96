//go:build sim && cgo && linux

package sim

import (
	"errors"
	"fmt"
)

// Result is a CUresult. Numbers and names: CUDA driver API reference, "Data
// types used by CUDA driver", enum cudaError_enum.
type Result int32

// The results that the simulator returns.
const (
	Success                  Result = 0
	InvalidValue             Result = 1
	OutOfMemory              Result = 2
	NotInitialized           Result = 3
	NoDevice                 Result = 100
	InvalidDevice            Result = 101
	InvalidImage             Result = 200
	InvalidContext           Result = 201
	NoBinaryForGPU           Result = 209
	InvalidPTX               Result = 218
	UnsupportedPTXVersion    Result = 222
	InvalidHandle            Result = 400
	IllegalState             Result = 401
	NotFound                 Result = 500
	NotReady                 Result = 600
	IllegalAddress           Result = 700
	ContextIsDestroyed       Result = 709
	MisalignedAddress        Result = 716
	LaunchFailed             Result = 719
	NotSupported             Result = 801
	SystemDriverMismatch     Result = 803
	CompatNotSupported       Result = 804
	StreamCaptureUnsupported Result = 900
	StreamCaptureInvalidated Result = 901
	StreamCaptureMerge       Result = 902
	StreamCaptureUnmatched   Result = 903
	StreamCaptureUnjoined    Result = 904
	StreamCaptureIsolation   Result = 905
	StreamCaptureImplicit    Result = 906
	CapturedEvent            Result = 907
	StreamCaptureWrongThread Result = 908
)

// texts holds name and description of each result.
var texts = map[Result][2]string{
	Success:                  {"CUDA_SUCCESS", "no error"},
	InvalidValue:             {"CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	OutOfMemory:              {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	NotInitialized:           {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	NoDevice:                 {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	InvalidDevice:            {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	InvalidImage:             {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
	InvalidContext:           {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	NoBinaryForGPU:           {"CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
	InvalidPTX:               {"CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
	UnsupportedPTXVersion:    {"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain"},
	InvalidHandle:            {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	IllegalState:             {"CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
	NotFound:                 {"CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	NotReady:                 {"CUDA_ERROR_NOT_READY", "device not ready"},
	IllegalAddress:           {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	ContextIsDestroyed:       {"CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
	MisalignedAddress:        {"CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
	LaunchFailed:             {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
	NotSupported:             {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	SystemDriverMismatch:     {"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
	CompatNotSupported:       {"CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW"},
	StreamCaptureUnsupported: {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
	StreamCaptureInvalidated: {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
	StreamCaptureMerge:       {"CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
	StreamCaptureUnmatched:   {"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
	StreamCaptureUnjoined:    {"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
	StreamCaptureIsolation:   {"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"},
	StreamCaptureImplicit:    {"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
	CapturedEvent:            {"CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"},
	StreamCaptureWrongThread: {"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"},
}

// String is the name that cuGetErrorName gives.
func (r Result) String() string {
	if t, ok := texts[r]; ok {
		return t[0]
	}
	return fmt.Sprintf("CUresult %d", int32(r))
}

// refusal is an error that a call returns as a number, with the reason that a driver keeps to itself.
type refusal struct {
	result Result
	why    string
}

func (r *refusal) Error() string { return r.result.String() + ": " + r.why }

// refuse returns a refusal.
func refuse(r Result, format string, args ...any) error {
	return &refusal{r, fmt.Sprintf(format, args...)}
}

// resultOf is the number that stands for an error of a call.
func resultOf(err error) Result {
	var r *refusal
	switch {
	case err == nil:
		return Success
	case errors.As(err, &r):
		return r.result
	}
	return LaunchFailed
}
