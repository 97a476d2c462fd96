package record

import "testing"

func TestWhatProcSaysIsReadAndWhatItDoesNotIsUnknown(t *testing.T) {
	const two = "processor\t: 0\nmodel name\t: AMD EPYC 9B14\nphysical id\t: 0\ncore id\t\t: 0\n\n" +
		"processor\t: 1\nmodel name\t: AMD EPYC 9B14\nphysical id\t: 0\ncore id\t\t: 0\n\n" +
		"processor\t: 2\nmodel name\t: AMD EPYC 9B14\nphysical id\t: 1\ncore id\t\t: 0\n"
	if got, ok := cpuModel(two); !ok || got != "AMD EPYC 9B14" {
		t.Errorf("the model is %q (%v)", got, ok)
	}
	if got, ok := cpuCores(two); !ok || got != 2 {
		t.Errorf("%d cores (%v)", got, ok)
	}
	if got, ok := memoryTotal("MemTotal:       24641120 kB\nMemFree: 1 kB\n"); !ok || got != 24641120<<10 {
		t.Errorf("the memory is %d (%v)", got, ok)
	}
	if got, ok := osName("NAME=\"x\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n"); !ok || got != "Debian GNU/Linux 12 (bookworm)" {
		t.Errorf("the system is %q (%v)", got, ok)
	}
	const arm = "processor\t: 0\nBogoMIPS\t: 243.75\n"
	if got, ok := cpuModel(arm); ok {
		t.Errorf("a model was made up: %q", got)
	}
	if got, ok := cpuCores(arm); ok {
		t.Errorf("cores were made up: %d", got)
	}
	if got, ok := memoryTotal("MemTotal: lots\n"); ok {
		t.Errorf("memory was made up: %d", got)
	}
	_, err := readWith("/proc/cpuinfo", func(string) (int, bool) { return 0, false })
	says(t, err, "/proc/cpuinfo does not say")
	_, err = readWith("testdata/absent", cpuModel)
	says(t, err, "testdata/absent")
}
