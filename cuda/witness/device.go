//go:build cu && cgo && linux && amd64

package witness

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/gofsdp/gofsdp/cuda/kernels"
	"github.com/gofsdp/gofsdp/device"
)

// Device is a GPU by the binding. It is for the goroutine that made it alone, to whose thread the GPU's
// primary context belongs from then on: the one that package cuda computes in as well.
type Device struct {
	ordinal   cu.Device
	context   cu.CUContext
	modules   []cu.Module
	functions map[string]cu.Function

	// Started counts the launches of each kernel.
	Started map[string]int
}

// withoutConsent is the dynamic shared memory that any kernel may have.
const withoutConsent = 48 << 10

// New makes the GPU's primary context current on this thread and loads our kernels into it.
func New(ordinal int) (*Device, error) {
	d := &Device{functions: map[string]cu.Function{}, Started: map[string]int{}}
	var err error
	if d.ordinal, err = cu.GetDevice(ordinal); err != nil {
		return nil, fmt.Errorf("witness: device %d: %w", ordinal, err)
	}
	if d.context, err = d.ordinal.RetainPrimaryCtx(); err != nil {
		return nil, fmt.Errorf("witness: device %d: its primary context: %w", ordinal, err)
	}
	if err := d.context.Lock(); err != nil {
		return nil, fmt.Errorf("witness: device %d: making its context current: %w", ordinal, err)
	}
	modules := map[string]cu.Module{}
	for _, name := range kernels.Modules() {
		m, err := cu.LoadData(kernels.PTX(name))
		if err != nil {
			return nil, fmt.Errorf("witness: module %s: %w", name, err)
		}
		modules[name] = m
		d.modules = append(d.modules, m)
	}
	for _, k := range kernels.All() {
		if d.functions[k.Name], err = modules[k.Module].Function(k.Name); err != nil {
			return nil, fmt.Errorf("witness: kernel %s: %w", k.Name, err)
		}
		if k.Shared > withoutConsent {
			if err := consent(d.functions[k.Name], k.Shared); err != nil {
				return nil, err
			}
		}
	}
	return d, nil
}

// Close gives back what New took.
func (d *Device) Close() error {
	for _, m := range d.modules {
		if err := m.Unload(); err != nil {
			return err
		}
	}
	if err := cu.SetCurrentContext(cu.CUContext{}); err != nil {
		return err
	}
	return d.ordinal.ReleasePrimaryCtx()
}

// Launch starts a kernel. The binding copies eight bytes for each argument into memory of C's, one after the
// other, and gives the driver the addresses of all. Our kernels have one argument, a struct of a multiple of
// eight bytes, so it is handed over as its words: the driver reads all of them from the address of the first.
func (d *Device) Launch(l kernels.Launch, s cu.Stream) error {
	words := make([]uint64, len(l.Args)/8)
	if len(words)*8 != len(l.Args) || len(words) == 0 {
		return fmt.Errorf("witness: the argument of %s has %d bytes, which is no number of words", l.Kernel, len(l.Args))
	}
	arguments := make([]unsafe.Pointer, len(words))
	for i := range words {
		words[i] = binary.NativeEndian.Uint64(l.Args[8*i:])
		arguments[i] = unsafe.Pointer(&words[i])
	}
	err := d.functions[l.Kernel].Launch(
		int(l.Grid[0]), int(l.Grid[1]), int(l.Grid[2]), int(l.Block[0]), int(l.Block[1]), int(l.Block[2]),
		int(l.Shared), s, arguments)
	if err != nil {
		return fmt.Errorf("witness: %s: %w", l.Kernel, err)
	}
	d.Started[l.Kernel]++
	return nil
}

// Run computes an operation whose operands are the host's: they are copied to memory of the device, and back
// when it has been computed.
func (d *Device) Run(op device.Op, s cu.Stream) (err error) {
	if err := op.Check(); err != nil {
		return err
	}
	there := device.Clone(op)
	held := map[device.Addr]cu.DevicePtr{}
	defer func() {
		for _, p := range held {
			if e := cu.MemFree(p); err == nil && e != nil {
				err = fmt.Errorf("witness: freeing memory of %s: %w", device.Name(op), e)
			}
		}
	}()
	each := func(what string, call func(t device.Tensor) error) error {
		for _, o := range device.Operands(op) {
			if err := call(*o.T); err != nil {
				return fmt.Errorf("witness: %s of %s of %s: %w", what, o.Name, device.Name(op), err)
			}
		}
		return nil
	}
	err = each("memory", func(t device.Tensor) (err error) {
		if _, ok := held[t.Addr]; !ok {
			held[t.Addr], err = cu.MemAlloc(max(1, t.Bytes()))
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, o := range device.Operands(there) {
		o.T.Addr = device.Addr(held[o.T.Addr])
	}
	launches, err := kernels.Lower(there)
	if err != nil {
		return err
	}
	err = each("the copy to the device", func(t device.Tensor) error {
		return cu.MemcpyHtoDAsync(held[t.Addr], t.Pointer(), t.Bytes(), s)
	})
	for _, l := range launches {
		if err == nil {
			err = d.Launch(l, s)
		}
	}
	if err == nil {
		err = each("the copy to the host", func(t device.Tensor) error {
			return cu.MemcpyDtoHAsync(t.Pointer(), held[t.Addr], t.Bytes(), s)
		})
	}
	if err == nil {
		err = s.Synchronize()
	}
	return err
}
