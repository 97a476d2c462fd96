//go:build cgo && linux

package nvml

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gofsdp/gofsdp/record"
)

// child makes the test binary a process that prints what the library of Override tells: whose functions are
// called is decided once in a process.
const (
	child        = "GOFSDP_TEST_NVML_CHILD"
	rootVariable = "GOFSDP_TEST_NVML_ROOT"
)

func TestMain(m *testing.M) {
	if os.Getenv(child) == "" {
		os.Exit(m.Run())
	}
	if err := tell(); err != nil {
		fmt.Fprint(os.Stderr, err)
		os.Exit(1)
	}
}

// told is what a child prints.
type told struct {
	Report Report
	Used   int64  // of the second GPU
	None   string // the error for a GPU that is not there
}

func tell() error {
	l, err := Open(Sources{Root: os.Getenv(rootVariable)})
	if err != nil {
		return err
	}
	out := told{Report: l.Report()}
	if out.Used, err = l.Used("GPU-55555555-6666-7777-8888-999999999999"); err != nil {
		return err
	}
	if _, err = l.Used("GPU-none"); err != nil {
		out.None = err.Error()
	}
	return errors.Join(json.NewEncoder(os.Stdout).Encode(out), l.Close())
}

// library compiles that of testdata.
func library(t *testing.T, flags ...string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("it compiles C")
	}
	cc := strings.Fields(os.Getenv("CC"))
	if len(cc) == 0 {
		cc = []string{"cc"}
	}
	file := filepath.Join(t.TempDir(), soname)
	args := append(cc[1:], "-shared", "-fPIC", "-o", file, "testdata/nvml.c")
	if text, err := exec.Command(cc[0], append(args, flags...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return file
}

// asked starts a child. Its error is what it says on stderr.
func asked(t *testing.T, file string, environment ...string) (out told, err error) {
	t.Helper()
	c := exec.Command(os.Args[0])
	c.Env = append(append(os.Environ(), child+"=1", Override+"="+file), environment...)
	text, err := c.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return out, errors.New(string(exit.Stderr))
	}
	if err == nil {
		err = json.Unmarshal(text, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out, nil
}

func TestEverythingIsToldOfEachGPU(t *testing.T) {
	file := library(t)
	got, err := asked(t, file)
	if err != nil {
		t.Fatal(err)
	}
	clock := func(now, most int) record.Value[Clock] { return record.Known(Clock{now, most}) }
	first := Device{
		UUID: "GPU-00000000-1111-2222-3333-444444444444", PCI: "0000:38:00.0", Name: record.Known("NVIDIA L4"),
		Memory: record.Known(Memory{24000 << 20, 500 << 20}), SMClock: clock(210, 2040), MemoryClock: clock(405, 6251),
		Power: record.Known(Power{16.5, 72}), Temperature: record.Known(34), Slowed: record.Known([]string{"idle"}),
		ECC: record.Known(ECC{On: true}), MIG: record.Known(false), Link: record.Known(Link{1, 8, 4, 16}), Processes: record.Known([]Process{}),
	}
	second := first
	second.UUID, second.PCI, second.Memory = "GPU-55555555-6666-7777-8888-999999999999", "0000:3a:00.0", record.Known(Memory{24000 << 20, 600 << 20})
	second.Power = record.Unknown[Power]("nvmlDeviceGetPowerUsage: insufficient permissions")
	second.Slowed = record.Known([]string{"idle", "hardware's thermal slowdown", "reasons 0x1000"})
	second.ECC = record.Known(ECC{On: true, Corrected: 7, Uncorrected: 2})
	second.Processes = record.Known([]Process{{4242, 300 << 20}})
	want := told{
		Report: Report{Library: file, Release: record.Known("580.95.05"), Devices: []Device{first, second}},
		Used:   600 << 20,
		None:   "nvml: device GPU-none: nvmlDeviceGetHandleByUUID: not found",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("(-want +got)\n%s", cmp.Diff(string(text(t, want)), string(text(t, got))))
	}
	if d, ok := got.Report.Find(second.UUID); !ok || d.PCI != second.PCI {
		t.Errorf("%+v, %v", d, ok)
	}
	if _, ok := got.Report.Find("GPU-none"); ok {
		t.Error("a GPU that is not there is found")
	}
}

func text(t *testing.T, v any) []byte {
	t.Helper()
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What a library lacks must not be called: the process would end, as nothing else gives the function.
func TestWhatAnOlderDriverLacksIsNotKnown(t *testing.T) {
	got, err := asked(t, library(t, "-DOLD"))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Report.Devices) != 2 {
		t.Fatalf("%+v", got)
	}
	d := got.Report.Devices[0]
	for function, reason := range map[string]string{
		"nvmlDeviceGetCurrentClocksThrottleReasons": d.Slowed.Reason(), "nvmlDeviceGetMigMode": d.MIG.Reason(),
		"nvmlDeviceGetComputeRunningProcesses_v3": d.Processes.Reason(),
	} {
		if want := "this driver has no " + function; reason != want {
			t.Errorf("%q, want %q", reason, want)
		}
	}
	if c, ok := d.SMClock.Get(); !ok || c.Max != 2040 {
		t.Errorf("what it has is not told: %v", d.SMClock)
	}
}

func TestALibraryThatCannotBeUsedSaysWhy(t *testing.T) {
	if _, err := asked(t, library(t, "-DFAILS")); err == nil || !strings.HasSuffix(err.Error(), "/libnvidia-ml.so.1: nvmlInit: driver not loaded (9)") {
		t.Error(err)
	}
	none := filepath.Join(t.TempDir(), soname)
	env := func(name string) string { return map[string]string{Override: none}[name] }
	if _, err := Open(Sources{Env: env}); err == nil || errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "let it name the library's file, or unset it") {
		t.Error(err)
	}
	if err := os.WriteFile(none, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Sources{Env: env}); !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), none) {
		t.Error(err)
	}
}

func TestAMachineWithoutTheLibraryIsANormalAnswer(t *testing.T) {
	l, err := Open(Sources{Root: t.TempDir(), Env: func(string) string { return "" }})
	if err == nil {
		t.Skip("this machine has the library: " + l.Report().Release.String())
	}
	if !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "NVIDIA's driver brings it") {
		t.Error(err)
	}
}

func TestTheLibraryOfAnUnpackedImageIsTaken(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(root+"/usr/lib64", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(root+"/usr/lib64/"+soname, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := Sources{Root: root, Env: func(string) string { return "" }}
	if files, err := s.files(); err != nil || !slices.Equal(files, []string{root + "/usr/lib64/" + soname, soname}) {
		t.Error(files, err)
	}
	s.Root = t.TempDir()
	if files, err := s.files(); err != nil || !slices.Equal(files, []string{soname}) {
		t.Error(files, err)
	}
}

// Some machines mount the driver's folder where the system's loader does not look.
func TestTheLibraryIsFoundWhereTheSystemDoesNotLook(t *testing.T) {
	root := t.TempDir()
	for _, folder := range []string{"/usr/lib64", "/usr/local/nvidia/lib64"} {
		if err := os.MkdirAll(root+folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(root+"/usr/lib64/"+soname, []byte("no library"), 0o644); err != nil {
		t.Fatal(err)
	}
	file := root + "/usr/local/nvidia/lib64/" + soname
	if err := os.Rename(library(t), file); err != nil {
		t.Fatal(err)
	}
	out, err := asked(t, "", rootVariable+"="+root)
	if err != nil || out.Report.Library != file {
		t.Errorf("%q is opened, want %q (%v)", out.Report.Library, file, err)
	}
}

func TestReasonsAreHarmlessOrNot(t *testing.T) {
	for reason, want := range map[string]bool{"idle": true, "power limit": true, "hardware slowdown": false, "reasons 0x1000": false} {
		if Harmless(reason) != want {
			t.Errorf("%s: %v", reason, !want)
		}
	}
}
