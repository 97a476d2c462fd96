//go:build cgo && linux

package cuda

// #include "blas.h"
// #include "call.h"
// #include "load.h"
// #include <stdlib.h>
// #cgo LDFLAGS: -ldl
import "C"

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"unsafe"
)

// Driver is the driver's functions. It stays to the end of the process.
type Driver struct {
	table   *C.gofsdp_driver
	version int
	library Library
	blas    *C.gofsdp_blas // nil where there is none
	noBLAS  error          // why Open found none
}

// Open finds the driver and cuBLAS, and initialises the driver. The error is ErrNoLibrary, ErrNoDevice,
// or says what is wrong with the driver that is there, and the remedy. Of a cuBLAS that is not there New
// tells.
func Open(s Sources) (*Driver, error) {
	d, _, err := s.open()
	if err != nil {
		return nil, err
	}
	handle, _, lib, err := s.openBLAS(d.version)
	if err != nil {
		d.noBLAS = fmt.Errorf("cuda: matrix products need cuBLAS: %w", err)
		return d, nil
	}
	d.blas, d.noBLAS = fillBLAS(handle, lib)
	return d, nil
}

// fillBLAS returns the table of a cuBLAS that is open. The error names what it lacks, and the remedy.
func fillBLAS(handle unsafe.Pointer, lib Library) (*C.gofsdp_blas, error) {
	table := (*C.gofsdp_blas)(C.calloc(1, C.sizeof_gofsdp_blas))
	var missing [4]*C.char
	if lacks := int(C.gofsdp_fill_blas(handle, table, &missing[0], C.int(len(missing)))); lacks > 0 {
		C.free(unsafe.Pointer(table))
		return nil, fmt.Errorf("cuda: %s (%s, version %s) has no %s; one of CUDA 12 or 13 is needed: install NVIDIA's wheel of it (pip install nvidia-cublas-cu12), or let %s name its file", lib.Name, lib.Path, lib.Version, named(missing[:], lacks), OverrideBLAS)
	}
	return table, nil
}

// named lists symbols that a library lacks, of which the first are known by name.
func named(first []*C.char, lacks int) string {
	var names []string
	for _, name := range first[:min(lacks, len(first))] {
		names = append(names, C.GoString(name))
	}
	if more := lacks - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// open also returns what was found of the library where it cannot be used.
func (s Sources) open() (*Driver, Library, error) {
	handle, lib, err := s.load(driver)
	if err != nil {
		return nil, lib, err
	}
	lib.Release = releaseOf(lib.Path)
	d := &Driver{table: (*C.gofsdp_driver)(C.calloc(1, C.sizeof_gofsdp_driver)), library: lib}
	var missing [4]*C.char
	lacks := int(C.gofsdp_fill(handle, d.table, &missing[0], C.int(len(missing))))
	if d.table.cuDriverGetVersion != nil {
		d.askVersion()
	}
	if lacks > 0 {
		err := fmt.Errorf("cuda: %s has no %s; %s", d.described(), named(missing[:], lacks), tooOld)
		C.free(unsafe.Pointer(d.table))
		C.gofsdp_close(handle)
		return nil, d.library, err
	}
	if err := d.start(); err != nil {
		return nil, d.library, err
	}
	return d, d.library, nil
}

func (d *Driver) askVersion() {
	var v C.int
	if C.call_cuDriverGetVersion(d.table, &v) == 0 {
		d.version = int(v)
		d.library.Version = versionText(d.version)
	}
}

// described names the driver in messages.
func (d *Driver) described() string {
	s := d.library.Name
	if d.library.Path != "" {
		s += " (" + d.library.Path + ")"
	}
	if d.version > 0 {
		s += ", of CUDA " + versionText(d.version) + ","
	}
	return s
}

// start initialises the driver. A driver may be asked for its version before.
func (d *Driver) start() error {
	d.askVersion()
	if d.version < oldest {
		return fmt.Errorf("cuda: %s is too old; %s", d.described(), tooOld)
	}
	switch r := C.call_cuInit(d.table, 0); {
	case r == noDevice:
		return fmt.Errorf("%w: %s is here and sees no GPU; a container gets its GPUs from its runtime (docker run --gpus all, nvidia.com/gpu in Kubernetes), and CUDA_VISIBLE_DEVICES hides them", ErrNoDevice, d.described())
	case r != 0:
		return d.failure(r, "cuInit", "the driver")
	}
	n, err := d.Count()
	if err == nil && n == 0 {
		err = fmt.Errorf("%w: %s is here and counts no GPU; CUDA_VISIBLE_DEVICES may hide them", ErrNoDevice, d.described())
	}
	return err
}

// Version is the CUDA that the driver offers, such as 12.2.
func (d *Driver) Version() string { return versionText(d.version) }

// Count is the number of GPUs.
func (d *Driver) Count() (int, error) {
	var n C.int
	if r := C.call_cuDeviceGetCount(d.table, &n); r != 0 {
		return 0, d.failure(r, "cuDeviceGetCount", "the driver")
	}
	return int(n), nil
}

// Attributes of CUdevice_attribute.
const (
	multiprocessors   = 16
	unifiedAddressing = 41
	capabilityMajor   = 75
	capabilityMinor   = 76
	sharedOfBlock     = 97 // with the kernel's consent (cuFuncSetAttribute)
)

// Properties describes a GPU.
func (d *Driver) Properties(ordinal int) (Properties, error) {
	p := Properties{Ordinal: ordinal}
	var (
		dev   C.CUdevice
		name  [256]C.char
		pci   [32]C.char
		id    C.CUuuid
		bytes C.size_t
		err   error
	)
	ask := func(call string, r C.CUresult) {
		if r != 0 && err == nil {
			err = d.failure(r, call, fmt.Sprintf("device %d", ordinal))
		}
	}
	if ask("cuDeviceGet", C.call_cuDeviceGet(d.table, &dev, C.int(ordinal))); err != nil {
		if n, _ := d.Count(); ordinal >= n {
			err = fmt.Errorf("there are %d devices, counted from 0: %w", n, err)
		}
		return p, err
	}
	ask("cuDeviceGetName", C.call_cuDeviceGetName(d.table, &name[0], C.int(len(name)-1), dev))
	ask("cuDeviceGetPCIBusId", C.call_cuDeviceGetPCIBusId(d.table, &pci[0], C.int(len(pci)-1), dev))
	ask("cuDeviceGetUuid", C.call_cuDeviceGetUuid(d.table, &id, dev))
	ask("cuDeviceTotalMem", C.call_cuDeviceTotalMem(d.table, &bytes, dev))
	attribute := func(which C.int) (v C.int) {
		ask("cuDeviceGetAttribute", C.call_cuDeviceGetAttribute(d.table, &v, which, dev))
		return v
	}
	p.Name, p.PCI, p.Memory = C.GoString(&name[0]), C.GoString(&pci[0]), int64(bytes)
	u := C.GoBytes(unsafe.Pointer(&id), C.int(unsafe.Sizeof(id)))
	p.UUID = fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
	p.Major, p.Minor = int(attribute(capabilityMajor)), int(attribute(capabilityMinor))
	p.SMs, p.Shared = int(attribute(multiprocessors)), int64(attribute(sharedOfBlock))
	p.Unified = attribute(unifiedAddressing) != 0
	return p, err
}

// failure makes an error of a result, with CUDA's own words for it.
func (d *Driver) failure(r C.CUresult, call, where string) *Error {
	e := &Error{Call: call, Code: int(r), Where: where, Name: "unknown error", Text: "the driver has no words for it"}
	var text *C.char
	if C.call_cuGetErrorName(d.table, r, &text) == 0 && text != nil {
		e.Name = C.GoString(text)
	}
	if C.call_cuGetErrorString(d.table, r, &text) == 0 && text != nil {
		e.Text = C.GoString(text)
	}
	return e
}

// load opens a library. Where it cannot, the Library says why as well.
func (s Sources) load(w wanted) (unsafe.Pointer, Library, error) {
	lib := Library{Name: w.sonames[0]}
	fail := func(err error) (unsafe.Pointer, Library, error) {
		lib.Problem = err.Error()
		return nil, lib, err
	}
	list, err := s.candidates(w)
	if err != nil {
		return fail(fmt.Errorf("cuda: %w", err))
	}
	var failures []string // of files; a name that the system does not find is no failure
	for _, c := range list {
		name := C.CString(c.name)
		var why *C.char
		handle := C.gofsdp_open(name, &why)
		C.free(unsafe.Pointer(name))
		if handle == nil {
			if text := C.GoString(why); !c.system || !strings.HasPrefix(text, c.name+": cannot open shared object file") {
				failures = append(failures, text)
			}
			C.free(unsafe.Pointer(why))
			continue
		}
		lib.Path = C.GoString(C.gofsdp_path(handle))
		if real, err := filepath.EvalSymlinks(lib.Path); err == nil {
			lib.Path = real
		}
		lib.Name = filepath.Base(c.name)
		return handle, lib, nil
	}
	if w.override != "" && s.env(w.override) != "" {
		return fail(fmt.Errorf("%w: %s: %s; let it name the library's file, or unset it", ErrNoLibrary, w.override, strings.Join(failures, "; ")))
	}
	return fail(w.missing(s, failures))
}

// Find looks for everything and says what there is. It does not fail: what is wrong stands in the Report.
func (s Sources) Find() Report {
	var r Report
	var err error
	var d *Driver
	d, r.Driver, err = s.open()
	version := 0
	if d != nil {
		version = d.version
		r.Devices, err = d.survey()
	}
	switch {
	case err == nil:
		r.State = Ready
	case errors.Is(err, ErrNoLibrary):
		r.State = NoLibrary
	case errors.Is(err, ErrNoDevice):
		r.State = NoDevice
	default:
		r.State = Unusable
	}
	if err != nil {
		r.Problem = err.Error()
	}
	var handle unsafe.Pointer
	if handle, r.BLASLt, r.BLAS, err = s.openBLAS(version); err == nil {
		table, err := fillBLAS(handle, r.BLAS)
		if err != nil {
			r.BLAS.Problem = err.Error()
		}
		C.free(unsafe.Pointer(table))
	}
	if handle, r.NCCL, err = s.load(nccl); err == nil {
		if v := C.gofsdp_nccl_version(handle); v >= 0 {
			r.NCCL.Version = ncclText(int(v))
		}
	}
	return r
}

// survey describes all GPUs. It is an error where none can be used.
func (d *Driver) survey() (list []Properties, err error) {
	n, err := d.Count()
	if err != nil {
		return nil, err
	}
	var problems []error
	for i := range n {
		p, err := d.Properties(i)
		if err == nil {
			err = p.check()
		}
		if err != nil {
			p.Problem = err.Error()
			problems = append(problems, err)
		}
		list = append(list, p)
	}
	if len(problems) == n {
		err = errors.Join(problems...)
	}
	return list, err
}

// openBLAS opens cuBLAS for a driver's version, before it what it stands on, from the same folder.
func (s Sources) openBLAS(driverVersion int) (handle unsafe.Pointer, ltFound, found Library, err error) {
	w, below := blas("libcublas", driverVersion), blas("libcublasLt", driverVersion)
	w.override = OverrideBLAS
	if file := s.env(OverrideBLAS); file != "" {
		below.beside = filepath.Dir(file)
		if _, major, ok := strings.Cut(filepath.Base(file), ".so."); ok {
			below.sonames = []string{"libcublasLt.so." + strings.Split(major, ".")[0]}
		}
	}
	var lt unsafe.Pointer
	if lt, ltFound, err = s.load(below); err == nil {
		ltFound.Version = blasVersion(lt, "cublasLtGetProperty")
		w.beside = filepath.Dir(ltFound.Path)
		w.sonames = []string{"libcublas.so" + filepath.Ext(ltFound.Name)}
	}
	if handle, found, err = s.load(w); err == nil {
		found.Version = blasVersion(handle, "cublasGetProperty")
	}
	return handle, ltFound, found, err
}

// blasVersion is empty where the library does not tell.
func blasVersion(handle unsafe.Pointer, symbol string) string {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	var parts []string
	for part := range 3 {
		n := C.gofsdp_cublas_version(handle, name, C.int(part))
		if n < 0 {
			return ""
		}
		parts = append(parts, fmt.Sprint(n))
	}
	return strings.Join(parts, ".")
}
