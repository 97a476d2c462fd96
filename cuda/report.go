package cuda

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/gofsdp/gofsdp/cuda/kernels"
	"github.com/gofsdp/gofsdp/device"
)

// The two answers of a machine that is none for this package; another error is a machine that should be
// one and is not.
var (
	ErrNoLibrary = errors.New("no library")
	ErrNoDevice  = errors.New("no device")
)

// State is what was found of the driver.
type State string

// The states.
const (
	NoLibrary State = "no library" // there is no driver
	NoDevice  State = "no device"  // there is a driver, and it sees no GPU
	Unusable  State = "unusable"   // there is a driver, and neither it nor any GPU can be used; Report.Problem says why
	Ready     State = "found"      // there is at least one GPU that can be used
)

// Report is what was found on a machine: for people and for records.
type Report struct {
	State   State        `json:"state"`
	Problem string       `json:"problem,omitempty"` // why the driver is not ready, and the remedy
	Driver  Library      `json:"driver"`
	BLASLt  Library      `json:"cublas_lt"`
	BLAS    Library      `json:"cublas"`
	NCCL    Library      `json:"nccl"`
	Devices []Properties `json:"devices,omitempty"`
}

// Library is what was found of a library.
type Library struct {
	Name    string `json:"name"`              // as it was asked for: "libnccl.so.2"
	Path    string `json:"path,omitempty"`    // the file, links followed; empty where none was opened
	Version string `json:"version,omitempty"` // its own: "2.29.7"; of the driver the CUDA that it offers
	Release string `json:"release,omitempty"` // of the driver: "535.161.08", where the file's name says it
	Problem string `json:"problem,omitempty"` // why it was not opened or cannot be used, and the remedy
}

// Properties are those of a GPU.
type Properties struct {
	Ordinal int    `json:"ordinal"`
	Name    string `json:"name"`
	UUID    string `json:"uuid"`
	PCI     string `json:"pci"`
	Major   int    `json:"major"` // of its compute capability
	Minor   int    `json:"minor"`
	SMs     int    `json:"sms"`
	Memory  int64  `json:"memory"` // bytes
	Shared  int64  `json:"shared"` // bytes of shared memory that a block may ask for
	Unified bool   `json:"unified"`
	Problem string `json:"problem,omitempty"` // why it cannot be used, if so
}

// check says why the GPU cannot be used, if so.
func (p Properties) check() error {
	switch {
	case p.Major < 8:
		return fmt.Errorf("cuda: device %d, %s, is of compute capability %d.%d and has no bf16: 8.0 (A100, L4, H100 and newer) is needed", p.Ordinal, p.Name, p.Major, p.Minor)
	case !p.Unified:
		return fmt.Errorf("cuda: device %d, %s, has addresses of its own for the host's memory (no unified addressing), which is not supported", p.Ordinal, p.Name)
	}
	return nil
}

// Compiled is what a driver's compiler made of a kernel. Kernel.Fits says whether that is what is wanted.
type Compiled struct {
	Kernel    kernels.Kernel
	Registers int // of a thread
	Spilled   int // bytes of memory that a thread uses for what registers do not hold
	Shared    int // bytes of shared memory of a block, at most
}

// Options say which GPU a device is and how it computes.
type Options struct {
	// Ordinal is the GPU, as the driver counts those that it shows (CUDA_VISIBLE_DEVICES).
	Ordinal int
	// Urgent names the streams whose work goes before that of all others.
	Urgent []string
	// Graphs makes CUDA graphs of lists of operations (LaunchAll).
	Graphs bool
	// Synchronous waits for each operation before the next is started, so that a fault in memory is
	// found at the operation that did it. It is slow.
	Synchronous bool
}

// Error is a call that the driver refused, or what it tells of earlier work.
type Error struct {
	Call   string    // "cuLaunchKernel"
	Code   int       // of CUresult
	Name   string    // "CUDA_ERROR_INVALID_VALUE"
	Text   string    // CUDA's own: "invalid argument"
	Where  string    // the device or stream, and what the call was for
	Op     device.Op // the operation that it was for; nil where there is none
	Detail string    // what else is known: the log of the compiler, what was asked for
}

// Operation returns the operation that failed, nil where it is not known: whoever made it knows its unit.
func (e *Error) Operation() device.Op { return e.Op }

// Lost says whether the device is lost with the error: nothing more can be done on it, by nobody's mistake that
// could be named.
func (e *Error) Lost() bool { return late(e.Code) }

func (e *Error) Error() string {
	var s strings.Builder
	s.WriteString(e.Where)
	if e.Op != nil {
		fmt.Fprintf(&s, ": %s", device.Name(e.Op))
	}
	fmt.Fprintf(&s, ": %s: %s (%d): %s", e.Call, e.Name, e.Code, e.Text)
	if e.Detail != "" {
		fmt.Fprintf(&s, ": %s", e.Detail)
	}
	if late(e.Code) && e.Op != nil {
		s.WriteString("; nothing more can be done on this device")
	} else if late(e.Code) {
		s.WriteString("; work that was started earlier on this device did it, and nothing more can be done on it")
	} else if hint := hints[e.Code]; hint != "" {
		fmt.Fprintf(&s, "; %s", hint)
	}
	return s.String()
}

// Results of the driver that are treated by name; their numbers are those of CUresult.
const (
	outOfMemory    = 2
	notInitialized = 3
	noDevice       = 100
	notFound       = 500
	notReady       = 600
)

// hints say what to do about an error.
var hints = map[int]string{
	outOfMemory: "another process may hold the memory; nvidia-smi shows which",
	34:          "this libcuda is the toolkit's stub for linking and no driver; take its folder from LD_LIBRARY_PATH",
	46:          "another process has the device for itself; nvidia-smi -q -d COMPUTE shows its compute mode",
	101:         "CUDA_VISIBLE_DEVICES says which devices there are",
	218:         "this PTX is not what the driver takes",
	221:         "the driver's compiler of PTX, libnvidia-ptxjitcompiler.so.1, is not found: the folder of the libcuda that was taken has it, and belongs first on LD_LIBRARY_PATH",
	222:         tooOld,
	802:         "the fabric manager of this server may not be running",
	803:         "libcuda and the kernel's driver are of different releases; in a container, take /usr/local/cuda/compat from LD_LIBRARY_PATH or update the host's driver",
	804:         "cuda-compat does not support this GPU: take /usr/local/cuda/compat from LD_LIBRARY_PATH and update the host's driver",
	999:         "the kernel's modules may not be loaded or the device files not be there; nvidia-smi tells more",
}

// late says whether a result tells of work that was started before, after which the context is lost.
func late(code int) bool {
	switch code {
	// ECC, NVLink, a contained fault, addresses, time-out, a context that is gone, assert, instructions, a leak of
	// tensor memory.
	case 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721:
		return true
	}
	return false
}

// oldest is the CUDA that a driver must offer: that of the kernels' PTX, 8.2.
const oldest = 12020

const tooOld = "the kernels need a driver of CUDA 12.2 (R535) or newer: update the host's driver, or on a data-centre GPU put the cuda-compat package's folder, such as /usr/local/cuda/compat, first on LD_LIBRARY_PATH"

// versionText reads a version as the driver tells it: 12020 is "12.2".
func versionText(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// ncclText reads a version as NCCL tells it: 22907 is "2.29.7".
func ncclText(v int) string { return fmt.Sprintf("%d.%d.%d", v/10000, v/100%100, v%100) }

// releaseOf reads the driver's release off its file: libcuda.so.535.161.08.
func releaseOf(path string) string {
	release, ok := strings.CutPrefix(filepath.Base(path), "libcuda.so.")
	if !ok || release == "1" {
		return ""
	}
	return release
}
