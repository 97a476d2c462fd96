//go:build !cgo || !linux

package nvml

import "fmt"

// Library is NVML.
type Library struct{}

// Open says that there is none.
func Open(Sources) (*Library, error) {
	return nil, fmt.Errorf("nvml: %w: this program was built without C, or not for Linux", ErrNoLibrary)
}

// Close does nothing.
func (*Library) Close() error { return nil }

// Report has nothing.
func (*Library) Report() Report { return Report{} }

// Used knows nothing.
func (*Library) Used(string) (int64, error) { return 0, ErrNoLibrary }
