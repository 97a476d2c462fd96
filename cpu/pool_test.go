//go:build cgo && amd64

package cpu

import (
	"context"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// compiler is what cgo uses.
func compiler(t *testing.T) []string {
	out, err := exec.Command("go", "env", "CC").Output()
	if err != nil {
		t.Skipf("no go command to name the C compiler: %v", err)
	}
	return strings.Fields(string(out))
}

func TestAPoolRunsEveryPartOnceAndBarriersOrderThemAndTheCallerTakesWhatASleeperLeaves(t *testing.T) {
	cc, program := compiler(t), filepath.Join(t.TempDir(), "stress")
	build := func(flags ...string) ([]byte, error) {
		args := append(cc[1:len(cc):len(cc)], "-O2", "-g", "-pthread", "-o", program, "testdata/pool_stress.c", "pool.c")
		return exec.Command(cc[0], append(args, flags...)...).CombinedOutput()
	}
	if out, err := build("-fsanitize=thread"); err != nil {
		t.Logf("without ThreadSanitizer: %s", out)
		if out, err := build(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for _, threads := range []int{1, 2, 3, 16} { // 16: more than cores, on most machines that test
		// For a pool that hangs. Beside many busy processes, which do not let its threads meet, it takes a minute.
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
		out, err := exec.CommandContext(ctx, program, strconv.Itoa(threads), "300").CombinedOutput()
		cancel()
		if err != nil {
			t.Errorf("%d threads: %v\n%s", threads, err, out)
		}
	}
}

func TestAPoolSleepsBetweenTasks(t *testing.T) {
	pool, err := newPool(4, Detect())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.close()
	pool.peakFLOPS(0, time.Millisecond) // all threads have worked
	busy := func() time.Duration {
		var use syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
			t.Fatal(err)
		}
		return time.Duration(use.Utime.Nano() + use.Stime.Nano())
	}
	before := busy()
	time.Sleep(200 * time.Millisecond)
	if used := busy() - before; used > 50*time.Millisecond {
		t.Errorf("an idle pool used %v of processor time in 200 ms", used)
	}
}

func TestAPoolRefusesWhatTheMachineCannotDo(t *testing.T) {
	for _, c := range []struct {
		threads int
		isa     ISA
		says    string
	}{
		{0, Generic, "at least 1 thread"},
		{1, Detect() + 1, "this machine has"},
		{1, Generic - 1, "this machine has"},
	} {
		if pool, err := newPool(c.threads, c.isa); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("newPool(%d, %v) = %v, %v; want an error with %q", c.threads, c.isa, pool, err, c.says)
		}
	}
}

func TestALevelIsNamedAndReadBack(t *testing.T) {
	for isa := Generic; isa <= AVX512BF16; isa++ {
		if got, err := ParseISA(isa.String()); err != nil || got != isa {
			t.Errorf("ParseISA(%q) = %v, %v", isa.String(), got, err)
		}
	}
	if _, err := ParseISA("sse2"); err == nil || !strings.Contains(err.Error(), "avx512bf16") {
		t.Errorf("an unknown level is refused with the known ones; got %v", err)
	}
}
