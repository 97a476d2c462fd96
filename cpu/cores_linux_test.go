package cpu

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMain is also a process that binds itself, for the test below: a test's own
// threads would stay bound.
func TestMain(m *testing.M) {
	var part, parts, threads int
	if n, _ := fmt.Sscan(os.Getenv("GOFSDP_TEST_BIND"), &part, &parts, &threads); n == 3 {
		bound, err := Bind(part, parts, threads)
		fmt.Println(bound, err, allCores())
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// allCores returns the cores of every thread, where they agree.
func allCores() string {
	done := make(chan string)
	seen := map[string]bool{}
	for range 8 { // on threads that are started now
		go func() {
			runtime.LockOSThread()
			var set unix.CPUSet
			if err := unix.SchedGetaffinity(0, &set); err != nil {
				panic(err)
			}
			var cores []string
			for c := range len(set) * 64 {
				if set.IsSet(c) {
					cores = append(cores, fmt.Sprint(c))
				}
			}
			done <- strings.Join(cores, ",")
		}()
	}
	for range 8 {
		seen[<-done] = true
	}
	if len(seen) > 1 {
		return fmt.Sprint("threads differ: ", seen)
	}
	for cores := range seen {
		return cores
	}
	return ""
}

func TestProcessesThatTakeAllCoresHaveTheirOwn(t *testing.T) {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		t.Fatal(err)
	}
	n := may.Count()
	run := func(part, parts, threads int) string {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), fmt.Sprintf("GOFSDP_TEST_BIND=%d %d %d", part, parts, threads))
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return strings.TrimSpace(string(out))
	}
	all := strings.TrimPrefix(run(0, 1, n), "false <nil> ")
	cores := strings.Split(all, ",")
	if len(cores) != n {
		t.Fatalf("one process has the cores %s, want %d", all, n)
	}
	for _, parts := range []int{2, n} {
		if n%parts != 0 || parts < 2 {
			continue
		}
		threads := n / parts
		for part := range parts {
			want := "true <nil> " + strings.Join(cores[part*threads:(part+1)*threads], ",")
			if got := run(part, parts, threads); got != want {
				t.Errorf("process %d of %d with %d threads: %s, want %s", part, parts, threads, got, want)
			}
		}
	}
	if got := run(1, 2, n); got != "false <nil> "+all {
		t.Errorf("two processes that each take all cores: %s", got)
	}
}
