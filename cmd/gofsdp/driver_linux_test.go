//go:build cgo

package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/cuda"
)

// testDriver is the files of the driver of package cuda's tests, and of a cuBLAS
// and an NCCL of which only the version can be asked; in older one is of NCCL 2.26,
// and others lack what is called.
type testDriver struct{ driver, blas, nccl, older, lackingBLAS, lackingNCCL string }

// driverControl is what it is told: the first numbers of its control file.
type driverControl struct{ Version, Init, Devices, Major int32 }

// file is what the file holds: more than what the driver maps.
func (c driverControl) file() []byte {
	var control bytes.Buffer
	if err := binary.Write(&control, binary.LittleEndian, c); err != nil {
		panic(err) // of four numbers
	}
	return append(control.Bytes(), make([]byte, 2<<20-control.Len())...)
}

// newTestDriver compiles them, and a cuBLAS, and lets the program of this test find
// them.
func newTestDriver(t *testing.T) testDriver {
	t.Helper()
	if testing.Short() {
		t.Skip("it compiles C")
	}
	dir := t.TempDir()
	compile := func(name, source string, arguments ...string) string {
		t.Helper()
		out := filepath.Join(dir, name)
		cc := strings.Fields(os.Getenv("CC"))
		if len(cc) == 0 {
			cc = []string{"cc"}
		}
		cmd := append(cc, "-shared", "-fPIC", "-pthread", "-I../../cuda", "-o", out, "../../cuda/testdata/"+source)
		if text, err := exec.Command(cmd[0], append(cmd[1:], arguments...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		return out
	}
	const version, blas, complete = "libraries/version.c", "-DPROPERTY=cublasGetProperty", "-DCOMPLETE"
	d := testDriver{
		driver:      compile("libcuda.so.535.161.08", "driver/driver.c"),
		blas:        compile("libcublas.so.13", version, blas, "-DMAJOR=13", complete),
		nccl:        compile("libnccl.so.2", version, "-DNCCL=22907", complete),
		older:       compile("libnccl.so.2.26.5", version, "-DNCCL=22605", complete),
		lackingBLAS: compile("libcublas.so.12", version, blas, "-DMAJOR=12"),
		lackingNCCL: compile("libnccl.so.2.18.5", version, "-DNCCL=21805"),
	}
	compile("libcublasLt.so.13", version, "-DPROPERTY=cublasLtGetProperty", "-DMAJOR=13")
	compile("libcublasLt.so.12", version, "-DPROPERTY=cublasLtGetProperty", "-DMAJOR=12")
	t.Setenv(cuda.OverrideBLAS, d.blas)
	t.Setenv(cuda.OverrideDriver, d.driver)
	t.Setenv(cuda.OverrideNCCL, d.nccl)
	return d
}

// is tells the driver what it is from now on.
func (d testDriver) is(t *testing.T, what driverControl) {
	t.Helper()
	// The library has the file mapped, so it stays the same one.
	f, err := os.OpenFile(d.driver+".control", os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(what.file()); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
