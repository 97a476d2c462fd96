package record

// GPUs are those of a node, and the libraries by which its ranks compute on them:
// the driver's and the libraries' own words, so that two runs can be compared.
type GPUs struct {
	Devices []GPU         `json:"devices"` // in the order in which ranks take them
	Driver  LibraryFile   `json:"driver"`  // its release, such as "535.161.08"
	CUDA    Value[string] `json:"cuda"`    // that the driver offers
	BLASLt  LibraryFile   `json:"cublas_lt"`
	BLAS    LibraryFile   `json:"cublas"`
	NCCL    LibraryFile   `json:"nccl"`
}

// GPU is one.
type GPU struct {
	Name       string `json:"name"`
	UUID       string `json:"uuid"`
	PCI        string `json:"pci"`
	Capability string `json:"compute_capability"`
	SMs        int    `json:"sms"`
	Memory     int64  `json:"memory_bytes"`
}

// LibraryFile is which library was opened: its file, links followed, and its own
// version.
type LibraryFile struct {
	Path    Value[string] `json:"path"`
	Version Value[string] `json:"version"`
}
