package cuda

// Room is a GPU's memory as the driver counts it, in bytes: of all processes.
type Room struct {
	Total, Unused int64 // now
	// Context is what was in use when the device's context had been made, what others have included, and
	// Kernels what loading all modules took, before anything else had memory.
	Context, Kernels int64
}
