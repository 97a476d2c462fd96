// Package cuda is device.Device on NVIDIA GPUs. It opens the driver and cuBLAS
// at run time, so that nothing of NVIDIA's is needed where it is built or where
// there is no GPU, and runs operations as kernels of package kernels, compiled
// by the driver from PTX, and as products of cuBLAS.
//
// It knows operations, and neither models nor ranks. What it calls through is a
// table of functions (table.h), which a simulator may fill as well.
package cuda
