//go:build cgo

package main

import (
	"debug/elf"
	"os"
	"strings"
	"testing"
)

// TestOnlyNVMLIsLeftToBeFoundLater looks at what the program's packages link to. go-nvml tells the linker to
// leave symbols open that nothing defines, and it does so for the whole program: a C function of ours that is
// missing would be found missing by whoever calls it, and not here.
func TestOnlyNVMLIsLeftToBeFoundLater(t *testing.T) {
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
	of := map[string]int{}
	for _, s := range symbols {
		switch {
		case s.Version != "": // a library is named that has it
			of["libraries"]++
		case strings.HasPrefix(s.Name, "nvml"):
			of["NVML"]++
		default:
			t.Errorf("nothing has %s", s.Name)
		}
	}
	if of["libraries"] == 0 || of["NVML"] == 0 {
		t.Errorf("%v: this system's symbols have no versions, or go-nvml is linked in another way; find another check", of)
	}
}
