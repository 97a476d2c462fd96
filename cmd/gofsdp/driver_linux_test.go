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

// testDriver is the files of the driver of package cuda's tests and of an NCCL that
// has its version alone.
type testDriver struct{ driver, nccl string }

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
	d := testDriver{
		driver: compile("libcuda.so.535.161.08", "driver/driver.c"),
		nccl:   compile("libnccl.so.2", "libraries/version.c", "-DNCCL=22907"),
	}
	compile("libcublasLt.so.13", "libraries/version.c", "-DPROPERTY=cublasLtGetProperty", "-DMAJOR=13")
	t.Setenv(cuda.OverrideBLAS, compile("libcublas.so.13", "libraries/version.c", "-DPROPERTY=cublasGetProperty", "-DMAJOR=13"))
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
