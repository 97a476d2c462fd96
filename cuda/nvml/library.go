//go:build cgo && linux

package nvml

// #include "forward.h"
// #include <stdlib.h>
// #cgo LDFLAGS: -ldl
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/gofsdp/gofsdp/record"
)

const soname = "libnvidia-ml.so.1"

// Library is NVML, opened and initialised. There is one in a process: the one that was opened last is called.
type Library struct {
	calls nvml.Interface
	path  string
}

// Open finds the library and initialises it. The error is ErrNoLibrary, or says why what is there cannot be
// used.
func Open(s Sources) (*Library, error) {
	files, err := s.files()
	if err != nil {
		return nil, err
	}
	file := files[0]
	if err = bind(file); err != nil {
		for _, other := range files[1:] {
			if bind(other) == nil {
				file, err = other, nil
				break
			}
		}
	}
	if err != nil {
		return nil, err
	}
	l := &Library{nvml.New(nvml.WithLibraryPath(file)), file}
	if r := l.calls.Init(); r != nvml.SUCCESS {
		return nil, fmt.Errorf("nvml: %s: nvmlInit: %s (%d)", file, words(r), int(r))
	}
	return l, nil
}

// bind lets NVML's functions be those of a file.
func bind(file string) error {
	runtime.LockOSThread() // dlerror is the thread's
	defer runtime.UnlockOSThread()
	name := C.CString(file)
	defer C.free(unsafe.Pointer(name))
	if why := C.gofsdp_nvml_open(name); why != nil {
		return fmt.Errorf("nvml: %w: %s; NVIDIA's driver brings it, and a container gets it with NVIDIA_DRIVER_CAPABILITIES=utility", ErrNoLibrary, C.GoString(why))
	}
	return nil
}

// files are what to open, best first: paths, and the soname for the system's loader to find. The driver's folder may
// be mounted where the system does not look, as /usr/local/nvidia is.
func (s Sources) files() (list []string, err error) {
	env := s.Env
	if env == nil {
		env = os.Getenv
	}
	if file := env(Override); file != "" {
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("nvml: %s: %w; let it name the library's file, or unset it", Override, err)
		}
		return []string{file}, nil
	}
	for _, pattern := range []string{"/usr/lib64/", "/usr/lib/*-linux-gnu/", "/usr/local/nvidia/lib64/", "/usr/lib/wsl/lib/"} {
		found, _ := filepath.Glob(s.Root + pattern + soname) // the patterns are good
		list = append(list, found...)
	}
	if s.Root == "" {
		return append([]string{soname}, list...), nil
	}
	return append(list, soname), nil
}

// Close ends the use of the library.
func (l *Library) Close() error {
	if r := l.calls.Shutdown(); r != nvml.SUCCESS {
		return fmt.Errorf("nvml: nvmlShutdown: %s", words(r))
	}
	return nil
}

// words are NVML's for a result.
func words(r nvml.Return) string { return strings.ToLower(r.Error()) }

// ask makes a call, if the library has the function: one that it lacks must not be called.
func ask[T any](l *Library, function string, call func() (T, nvml.Return)) (T, error) {
	var none T
	if l.calls.Extensions().LookupSymbol(function) != nil {
		return none, fmt.Errorf("this driver has no %s", function)
	}
	v, r := call()
	if r != nvml.SUCCESS {
		return none, fmt.Errorf("%s: %s", function, words(r))
	}
	return v, nil
}

// Report asks for everything.
func (l *Library) Report() Report {
	r := Report{Library: l.path}
	r.Release = record.ValueOf(ask(l, "nvmlSystemGetDriverVersion", l.calls.SystemGetDriverVersion))
	n, err := ask(l, "nvmlDeviceGetCount_v2", l.calls.DeviceGetCount)
	if err != nil {
		r.Problem = "nvml: " + err.Error()
		return r
	}
	for i := range n {
		d, err := ask(l, "nvmlDeviceGetHandleByIndex_v2", func() (nvml.Device, nvml.Return) { return l.calls.DeviceGetHandleByIndex(i) })
		if err != nil {
			r.Problem = fmt.Sprintf("nvml: device %d: %v", i, err)
			continue
		}
		r.Devices = append(r.Devices, l.device(d))
	}
	return r
}

// Used returns the bytes of a GPU's memory that are in use, by all processes and the driver.
func (l *Library) Used(uuid string) (int64, error) {
	d, err := ask(l, "nvmlDeviceGetHandleByUUID", func() (nvml.Device, nvml.Return) { return l.calls.DeviceGetHandleByUUID(uuid) })
	if err != nil {
		return 0, fmt.Errorf("nvml: device %s: %w", uuid, err)
	}
	m, err := l.memory(d)
	if err != nil {
		return 0, fmt.Errorf("nvml: device %s: %w", uuid, err)
	}
	return m.Used, nil
}

// memory takes what the driver itself has reserved for used, as older drivers' only answer does.
func (l *Library) memory(d nvml.Device) (Memory, error) {
	m, err := ask(l, "nvmlDeviceGetMemoryInfo", d.GetMemoryInfo)
	return Memory{Total: int64(m.Total), Used: int64(m.Used)}, err
}

// both makes a value of two answers, which is known where both are.
func both[A, B, T any](a A, errA error, b B, errB error, make func(A, B) T) record.Value[T] {
	if err := errors.Join(errA, errB); err != nil {
		return record.Unknown[T](strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return record.Known(make(a, b))
}

func (l *Library) device(d nvml.Device) (out Device) {
	out.UUID, _ = ask(l, "nvmlDeviceGetUUID", d.GetUUID)
	if p, err := ask(l, "nvmlDeviceGetPciInfo_v3", d.GetPciInfo); err == nil {
		out.PCI = fmt.Sprintf("%04x:%02x:%02x.0", p.Domain, p.Bus, p.Device)
	}
	out.Name = record.ValueOf(ask(l, "nvmlDeviceGetName", d.GetName))
	out.Memory = record.ValueOf(l.memory(d))
	out.SMClock, out.MemoryClock = l.clock(d, nvml.CLOCK_SM), l.clock(d, nvml.CLOCK_MEM)

	now, errNow := ask(l, "nvmlDeviceGetPowerUsage", d.GetPowerUsage)
	limit, errLimit := ask(l, "nvmlDeviceGetEnforcedPowerLimit", d.GetEnforcedPowerLimit)
	out.Power = both(now, errNow, limit, errLimit, func(a, b uint32) Power { return Power{Now: float64(a) / 1000, Limit: float64(b) / 1000} })

	celsius, err := ask(l, "nvmlDeviceGetTemperature", func() (uint32, nvml.Return) { return d.GetTemperature(nvml.TEMPERATURE_GPU) })
	out.Temperature = record.ValueOf(int(celsius), err)

	bits, err := ask(l, "nvmlDeviceGetCurrentClocksThrottleReasons", d.GetCurrentClocksThrottleReasons)
	out.Slowed = record.ValueOf(slowed(bits), err)

	out.ECC = record.ValueOf(l.ecc(d))
	mode, err := ask(l, "nvmlDeviceGetMigMode", func() (int, nvml.Return) { now, _, r := d.GetMigMode(); return now, r })
	out.MIG = record.ValueOf(mode == nvml.DEVICE_MIG_ENABLE, err)
	if err != nil && strings.HasSuffix(err.Error(), words(nvml.ERROR_NOT_SUPPORTED)) {
		out.MIG = record.Known(false) // a GPU that cannot be divided
	}
	out.Link = record.ValueOf(l.link(d))
	out.Processes = record.ValueOf(l.processes(d))
	return out
}

func (l *Library) clock(d nvml.Device, of nvml.ClockType) record.Value[Clock] {
	now, errNow := ask(l, "nvmlDeviceGetClockInfo", func() (uint32, nvml.Return) { return d.GetClockInfo(of) })
	most, errMost := ask(l, "nvmlDeviceGetMaxClockInfo", func() (uint32, nvml.Return) { return d.GetMaxClockInfo(of) })
	return both(now, errNow, most, errMost, func(a, b uint32) Clock { return Clock{Now: int(a), Max: int(b)} })
}

// slowed names the bits. Bits that nobody has named yet are told by their number.
func slowed(bits uint64) []string {
	list := []string{}
	for _, r := range reasons {
		if bits&r.bit != 0 {
			list = append(list, r.name)
			bits &^= r.bit
		}
	}
	if bits != 0 {
		list = append(list, fmt.Sprintf("reasons %#x", bits))
	}
	return list
}

func (l *Library) ecc(d nvml.Device) (e ECC, err error) {
	mode, err := ask(l, "nvmlDeviceGetEccMode", func() (nvml.EnableState, nvml.Return) { now, _, r := d.GetEccMode(); return now, r })
	if err != nil || mode != nvml.FEATURE_ENABLED {
		return e, err
	}
	e.On = true
	count := func(kind nvml.MemoryErrorType) (uint64, error) {
		return ask(l, "nvmlDeviceGetTotalEccErrors", func() (uint64, nvml.Return) { return d.GetTotalEccErrors(kind, nvml.VOLATILE_ECC) })
	}
	if e.Corrected, err = count(nvml.MEMORY_ERROR_TYPE_CORRECTED); err != nil {
		return e, err
	}
	e.Uncorrected, err = count(nvml.MEMORY_ERROR_TYPE_UNCORRECTED)
	return e, err
}

func (l *Library) link(d nvml.Device) (k Link, err error) {
	for _, c := range []struct {
		to       *int
		function string
		call     func() (int, nvml.Return)
	}{
		{&k.Generation, "nvmlDeviceGetCurrPcieLinkGeneration", d.GetCurrPcieLinkGeneration},
		{&k.Width, "nvmlDeviceGetCurrPcieLinkWidth", d.GetCurrPcieLinkWidth},
		{&k.MaxGeneration, "nvmlDeviceGetMaxPcieLinkGeneration", d.GetMaxPcieLinkGeneration},
		{&k.MaxWidth, "nvmlDeviceGetMaxPcieLinkWidth", d.GetMaxPcieLinkWidth},
	} {
		if *c.to, err = ask(l, c.function, c.call); err != nil {
			return k, err
		}
	}
	return k, nil
}

func (l *Library) processes(d nvml.Device) ([]Process, error) {
	// The binding takes the newest of three functions that the library has; the third came with R510.
	list, err := ask(l, "nvmlDeviceGetComputeRunningProcesses_v3", d.GetComputeRunningProcesses)
	if err != nil {
		return nil, err
	}
	found := []Process{}
	for _, p := range list {
		memory := int64(-1)
		if p.UsedGpuMemory != 1<<64-1 { // NVML_VALUE_NOT_AVAILABLE
			memory = int64(p.UsedGpuMemory)
		}
		found = append(found, Process{PID: int(p.Pid), Memory: memory})
	}
	return found, nil
}
