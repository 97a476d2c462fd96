package kernels

// Launch is one kernel's start.
type Launch struct {
	Kernel      string    // entry point, such as "add_rms_norm_bf16"
	Grid, Block [3]uint32 // blocks, and threads in a block
	Shared      uint32    // bytes of dynamic shared memory
	Args        []byte    // the kernel's one parameter, a packed struct
}
