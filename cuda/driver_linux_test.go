//go:build cgo && linux

package cuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// control is what testdata/driver/driver.c shares with the test; it says what each is for.
type control struct {
	Version, Init, Devices, Major int32
	FailCode, FailSkip            int32
	Fail                          [64]byte
	Held, Silent, Live, Used      int32
	Log                           [1 << 20]byte
}

// fail makes a call return a code, after skip calls that do not.
func (c *control) fail(call string, code, skip int32) {
	clear(c.Fail[:])
	copy(c.Fail[:], call)
	c.FailCode, c.FailSkip = code, skip
}

// calls returns what was called since the last time, but the questions for versions and texts.
func (c *control) calls() string {
	text := string(c.Log[:c.Used])
	c.Used = 0
	return text
}

// library compiles a library of testdata, once for the same arguments, and copies it to a file of the
// test's own, so that it is loaded anew.
func library(t testing.TB, to, source string, arguments ...string) {
	t.Helper()
	key := fmt.Sprint(source, arguments)
	once, _ := compiled.LoadOrStore(key, sync.OnceValues(func() ([]byte, error) {
		cc := os.Getenv("CC")
		if cc == "" {
			cc = "cc"
		}
		dir, err := os.MkdirTemp("", "gofsdp-driver")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		out := filepath.Join(dir, "lib.so")
		cmd := append(strings.Fields(cc), "-O1", "-shared", "-fPIC", "-pthread", "-I.", "-o", out, filepath.Join("testdata", source))
		if text, err := exec.Command(cmd[0], append(cmd[1:], arguments...)...).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w: %s", err, text)
		}
		return os.ReadFile(out)
	}))
	binary, err := once.(func() ([]byte, error))()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, binary, 0o755); err != nil {
		t.Fatal(err)
	}
}

var compiled sync.Map // source and arguments → func() ([]byte, error)

// testDriver returns sources where the test's driver and cuBLAS are, and what the driver does.
func testDriver(t testing.TB, arguments ...string) (Sources, *control) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "libcuda.so.535.161.08")
	library(t, path, "driver/driver.c", arguments...)
	blas := filepath.Join(dir, "libcublas.so.13")
	library(t, blas, "libraries/cublas.c")
	library(t, filepath.Join(dir, "libcublasLt.so.13"), "libraries/version.c", "-DPROPERTY=cublasLtGetProperty", "-DMAJOR=13")
	f, err := os.Create(path + ".control")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := int(unsafe.Sizeof(control{}))
	if err := f.Truncate(int64(size)); err != nil {
		t.Fatal(err)
	}
	bytes, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(bytes) })
	c := (*control)(unsafe.Pointer(&bytes[0]))
	c.Version, c.Devices, c.Major = 12040, 1, 8
	return Sources{Root: t.TempDir(), Env: func(name string) string {
		return map[string]string{OverrideDriver: path, OverrideBLAS: blas}[name]
	}}, c
}
