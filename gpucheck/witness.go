package gpucheck

import (
	"context"
	"os"
	"path/filepath"
)

// witness runs the test binary of the independent binding.
func witness(ctx context.Context, c *check) error {
	binary := filepath.Join(c.Tools, "witness.test")
	if _, err := os.Stat(binary); err != nil {
		return lacks("%s is not there; make witness-binary builds it, with NVIDIA's headers of CUDA 12", binary)
	}
	said, err := c.start(ctx, nil, binary, "-gpu", "-test.v", "-test.count", "1")
	if err != nil {
		return failed(binary, err, said)
	}
	return nil
}
