// Package nvml asks NVIDIA's management library what must be known of GPUs to judge a measurement: clocks,
// power, temperature, what holds the GPU back, errors of its memory, who else uses it. It binds the library
// by NVIDIA's go-nvml.
//
// It knows GPUs by their UUID and nothing of what computes on them. The library belongs to the driver: a
// machine without one is a normal answer (ErrNoLibrary), and so is a value that this driver, this GPU or a
// container does not give: each value may be unknown, with the reason.
//
// It needs cgo, on Linux. go-nvml links without the library and leaves its functions undefined, and so the program
// would not start where all are looked for at once, and would end where one is called that an older driver lacks.
// So they are defined here (forward_linux.c) and call those of the library that was opened. go-nvml's flag for
// the linker lets any C function of the program be missing, so a test of cmd/gofsdp looks for such.
package nvml

import (
	"errors"

	"github.com/gofsdp/gofsdp/record"
)

// Override is the variable that names the library's file.
const Override = "GOFSDP_LIBNVML"

// ErrNoLibrary is a machine without the library.
var ErrNoLibrary = errors.New("no library")

// Sources says where the library is looked for. The zero value is this machine.
type Sources struct {
	// Root is what absolute paths begin with, where the system's own loader finds none: for an image that lies
	// unpacked in a folder.
	Root string
	// Env is the environment, os.Getenv where nil.
	Env func(string) string
}

// Report is what was found at one moment: for people and for records.
type Report struct {
	Library string               `json:"library,omitempty"` // that was opened
	Problem string               `json:"problem,omitempty"` // why there is nothing else
	Release record.Value[string] `json:"release"`           // the driver's: "535.161.08"
	Devices []Device             `json:"devices,omitempty"`
}

// Device is a GPU at one moment.
type Device struct {
	UUID        string                  `json:"uuid"`
	PCI         string                  `json:"pci"` // as the driver API has it: "0000:38:00.0"
	Name        record.Value[string]    `json:"name"`
	Memory      record.Value[Memory]    `json:"memory"`
	SMClock     record.Value[Clock]     `json:"sm_clock"`
	MemoryClock record.Value[Clock]     `json:"memory_clock"`
	Power       record.Value[Power]     `json:"power"`
	Temperature record.Value[int]       `json:"temperature"` // of the GPU, degrees Celsius
	Slowed      record.Value[[]string]  `json:"slowed"`      // what keeps its clocks down: see Harmless
	ECC         record.Value[ECC]       `json:"ecc"`
	MIG         record.Value[bool]      `json:"mig"` // it is divided into instances
	Link        record.Value[Link]      `json:"pcie"`
	Processes   record.Value[[]Process] `json:"processes"` // that compute on it, by the numbers of the library's own namespace
}

// Memory is the GPU's, in bytes.
type Memory struct {
	Total int64 `json:"total"`
	Used  int64 `json:"used"` // by all processes and the driver
}

// Clock is in MHz.
type Clock struct {
	Now int `json:"now"`
	Max int `json:"max"`
}

// Power is in watts.
type Power struct {
	Now   float64 `json:"now"`
	Limit float64 `json:"limit"` // that is enforced
}

// ECC counts errors of memory since the driver was loaded.
type ECC struct {
	On          bool   `json:"on"`
	Corrected   uint64 `json:"corrected"`
	Uncorrected uint64 `json:"uncorrected"`
}

// Link is that of PCIe. Of a GPU that does nothing it may be slower than under load.
type Link struct {
	Generation    int `json:"generation"`
	Width         int `json:"width"`
	MaxGeneration int `json:"max_generation"`
	MaxWidth      int `json:"max_width"`
}

// Process is one that computes on the GPU.
type Process struct {
	PID    int   `json:"pid"`
	Memory int64 `json:"memory"` // bytes; -1: not known
}

// reasons are the bits of NVML's "clocks event reasons", and whether one means that the GPU is slower than it
// should be: nvml.h, nvmlClocksEventReason*.
var reasons = []struct {
	bit      uint64
	name     string
	harmless bool
}{
	{0x1, "idle", true},
	{0x2, "application clocks", false},
	{0x4, "power limit", true}, // as it is under any heavy load of an L4
	{0x8, "hardware slowdown", false},
	{0x10, "sync boost", false},
	{0x20, "software's thermal slowdown", false},
	{0x40, "hardware's thermal slowdown", false},
	{0x80, "power brake", false},
	{0x100, "display clocks", false},
}

// Harmless says of what keeps a GPU's clocks down that it is as it should be.
func Harmless(reason string) bool {
	for _, r := range reasons {
		if r.name == reason {
			return r.harmless
		}
	}
	return false
}

// Find returns the device of a UUID, false where there is none.
func (r Report) Find(uuid string) (Device, bool) {
	for _, d := range r.Devices {
		if d.UUID == uuid {
			return d, true
		}
	}
	return Device{}, false
}
