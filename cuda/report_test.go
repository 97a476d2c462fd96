package cuda

import (
	"strings"
	"testing"
)

func TestOfAResultThatEndsAContextIsSaidThatNothingMoreCanBeDone(t *testing.T) {
	for code, ends := range map[int]bool{1: false, 2: false, 98: false, 226: true, 700: true, 709: true, 719: true, 721: true} {
		text := (&Error{Call: "cuLaunchKernel", Code: code, Where: "stream compute"}).Error()
		if strings.Contains(text, "nothing more can be done on it") != ends {
			t.Errorf("%d: %s", code, text)
		}
	}
}

func TestADriverWithoutItsCompilerIsToldWhereItLies(t *testing.T) {
	text := (&Error{Call: "cuModuleLoadDataEx", Code: 221, Where: "device 0"}).Error()
	if !strings.Contains(text, "libnvidia-ptxjitcompiler.so.1, is not found") || !strings.Contains(text, "LD_LIBRARY_PATH") {
		t.Error(text)
	}
}
