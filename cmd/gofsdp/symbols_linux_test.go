//go:build cgo

package main

import (
	"debug/elf"
	"os"
	"strings"
	"testing"
)

// TestNothingIsLeftUndefined looks at what the program's packages link to. go-nvml tells the linker to leave
// symbols undefined that nothing defines, and it does so for the whole program: a C function of ours that is
// missing would be found missing by whoever calls it, and a function of NVML's would keep the program from
// starting where LD_BIND_NOW is set.
func TestNothingIsLeftUndefined(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, s := range symbols {
		switch {
		case s.Version != "": // a library is named that has it
			found++
		case strings.HasPrefix(s.Name, "nvml"):
			t.Errorf("go-nvml calls %s: add it to cuda/nvml/functions.h", s.Name)
		default:
			t.Errorf("nothing defines %s", s.Name)
		}
	}
	if found == 0 {
		t.Error("this system's symbols have no versions; find another check")
	}
}
