//go:build linux

package device

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func windowed(t *testing.T) (*os.File, *Window, Device) {
	t.Helper()
	f, err := NewWindowFile("test")
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWindow(f)
	if err != nil {
		t.Fatal(err)
	}
	d := NewHostIn(w, Info{}, func(string) (Executor, error) { return referenceExecutor{}, nil })
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		f.Close()
	})
	return f, w, d
}

func viewed(t *testing.T, f *os.File) *View {
	t.Helper()
	v, err := NewView(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	})
	return v
}

func TestAViewSeesWhatTheWindowHoldsAsItGrows(t *testing.T) {
	f, w, d := windowed(t)
	v := viewed(t, f)
	var first Addr
	for i, n := range []int64{1000, 3 << 20, 1} {
		b, err := d.Alloc(n, Shared)
		if err != nil {
			t.Fatal(err)
		}
		if b.Addr%windowAlign != 0 || int64(len(b.Host)) != n || slices.Max(b.Host) != 0 {
			t.Fatalf("buffer %d: address %#x, %d bytes, or not zeroed", i, b.Addr, len(b.Host))
		}
		b.Host[0], b.Host[n-1] = 7, byte(i+1)
		off, ok := w.Offset(b.Addr, n)
		if !ok {
			t.Fatalf("buffer %d is not in the window", i)
		}
		at, err := v.At(off, n)
		if err != nil {
			t.Fatal(err)
		}
		seen := Buffer{Addr: at, Size: n}.In(BF16, n%2, n/2) // bytes in pairs
		if got := raw(seen); n > 1 && got[len(got)-1] != byte(i+1) {
			t.Errorf("buffer %d ends with %d, want %d", i, got[len(got)-1], i+1)
		}
		if i == 0 {
			first = at
		}
	}
	if again, err := v.At(0, 1000); err != nil || again != first {
		t.Errorf("the first buffer moved from %#x to %#x (%v)", first, again, err)
	}
	if got := v.Mapped(); got != 8<<20 {
		t.Errorf("the view maps %d bytes, want 8 MiB", got)
	}
}

func TestAWindowKnowsWhatIsItsOwn(t *testing.T) {
	_, w, d := windowed(t)
	b, err := d.Alloc(100, Shared)
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		addr Addr
		size int64
		in   bool
	}{
		"all of it":       {b.Addr, 100, true},
		"its middle":      {b.Addr + 10, 20, true},
		"before it":       {b.Addr - 1, 10, false},
		"beyond its end":  {b.Addr, windowAlign + 1, false},
		"a negative size": {b.Addr, -1, false},
	} {
		if _, ok := w.Offset(x.addr, x.size); ok != x.in {
			t.Errorf("%s: in the window: %v, want %v", name, ok, x.in)
		}
	}
	if err := d.Free(b); err != nil {
		t.Error(err)
	}
	if _, ok := w.Offset(b.Addr, 100); ok {
		t.Error("memory that was freed is still in the window")
	}
	if err := d.Free(b); err == nil {
		t.Error("a buffer is freed twice")
	}
	if _, err := d.Alloc(0, Shared); err == nil {
		t.Error("a buffer of nothing")
	}
}

func TestFreedMemoryGoesBackToTheSystem(t *testing.T) {
	f, _, d := windowed(t)
	b, err := d.Alloc(4<<20, Shared)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b.Host {
		b.Host[i] = 1
	}
	before := blocks(t, f)
	if err := d.Free(b); err != nil {
		t.Fatal(err)
	}
	if after := blocks(t, f); before < 4<<20 || after != 0 {
		t.Errorf("the file takes %d bytes before and %d after, want 4 MiB and none", before, after)
	}
}

func TestAViewRefusesWhatTheWindowDoesNotHave(t *testing.T) {
	f, _, d := windowed(t)
	v := viewed(t, f)
	for range 2 { // the second time with everything mapped
		for _, x := range [][2]int64{{0, windowAlign + 1}, {-1, 4}, {windowAlign, 1}, {1 << 62, 1 << 62}, {4, -4}, {5, 1<<63 - 1}} {
			if _, err := v.At(x[0], x[1]); err == nil {
				t.Errorf("%d bytes at %d are there", x[1], x[0])
			}
		}
		if _, err := d.Alloc(windowAlign, Shared); err != nil {
			t.Fatal(err)
		}
		if _, err := v.At(0, 4); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAWindowIsAnEmptyFileThatCannotShrink(t *testing.T) {
	f, _, d := windowed(t)
	if _, err := d.Alloc(1, Shared); err != nil {
		t.Fatal(err)
	}
	if _, err := NewWindow(f); err == nil || !strings.Contains(err.Error(), "of its own") {
		t.Errorf("a second window in a file: %v", err)
	}
	if err := f.Truncate(0); err == nil {
		t.Error("a window shrank")
	}
	plain, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := NewView(plain); err == nil {
		t.Error("a file on disk is taken for a window")
	}
}

// blocks returns the memory that a file takes.
func blocks(t *testing.T, f *os.File) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}
