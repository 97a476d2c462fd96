//go:build cgo && linux

package nccl_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/cuda"
	"github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/nccl"
)

// child is the environment variable that makes the test binary a process which asks NCCL for a unique id, or
// joins a communicator without a GPU.
const (
	child     = "GOFSDP_TEST_NCCL_CHILD"
	askID     = "ask"
	joinBlind = "join"
)

// installed returns NCCL as it is installed here: where the finder finds it, or in the environment that the bench's
// peers are installed in.
func installed(t *testing.T) *nccl.Library {
	t.Helper()
	peers, err := filepath.Abs("../.venv/peers")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []cuda.Sources{{}, {Env: func(name string) string {
		if name == "VIRTUAL_ENV" {
			return peers
		}
		return os.Getenv(name)
	}}} {
		l, err := nccl.Open(s)
		if err == nil {
			return l
		}
		if !errors.Is(err, cuda.ErrNoLibrary) || os.Getenv(cuda.OverrideNCCL) != "" {
			t.Fatal(err)
		}
	}
	t.Skip("NVIDIA's NCCL is not installed here: make bench-peers installs it, or GOFSDP_LIBNCCL names its file")
	return nil
}

// askForID is what the child does.
func askForID() int {
	l, err := nccl.Open(cuda.Sources{})
	if err == nil {
		_, err = l.UniqueID()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// withoutGPU is a device of the host's that NCCL takes for a GPU, and finds none.
type withoutGPU struct{ device.Device }

func (withoutGPU) Do(f func() error) error                 { return f() }
func (withoutGPU) Within(f func() error) error             { return f() }
func (withoutGPU) Mark(device.Event, unsafe.Pointer) error { return errors.New("no GPU") }

// joinWithoutGPU is what the other child does.
func joinWithoutGPU() int {
	host, err := cpu.New(cpu.Options{Threads: 1})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	l, err := nccl.Open(cuda.Sources{})
	if err == nil {
		_, err = l.Connect(context.Background(), [][]int{{0}}, 0, nccl.ConnectSettings{
			Run: "run test", Deadline: time.Minute, Device: withoutGPU{host},
			Exchange: func(_ context.Context, value []byte) ([][]byte, error) { return [][]byte{value}, nil },
		})
	}
	fmt.Println(err)
	return 0
}

func TestTheRealNCCLWithoutAGPUSaysSo(t *testing.T) {
	l := installed(t)
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), child+"="+joinBlind, cuda.OverrideNCCL+"="+l.Found().Path, "CUDA_VISIBLE_DEVICES=")
	out, err := c.CombinedOutput()
	want := `rank 0: communicator "run test, group 0": ncclCommInitRankConfig: ncclUnhandledCudaError (1): unhandled cuda error`
	if err != nil || !strings.Contains(string(out), want) {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestTheRealHeaderIsWhatTheTableSays reads the header that NVIDIA ships with the library. It compares what
// table.h has written down: later versions may only add to it.
func TestTheRealHeaderIsWhatTheTableSays(t *testing.T) {
	l := installed(t)
	file := filepath.Join(filepath.Dir(l.Found().Path), "../include/nccl.h")
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("NVIDIA's NCCL is installed without its header")
	}
	if err != nil {
		t.Fatal(err)
	}
	header := regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`).ReplaceAllString(string(text), "")
	header = regexp.MustCompile(`\s+`).ReplaceAllString(header, " ")
	loose := strings.NewReplacer(" *", "*", "* ", "*", "( ", "(", " )", ")", ", ", ",")
	header = loose.Replace(header)
	for _, want := range []string{
		"#define NCCL_UNIQUE_ID_BYTES 128",
		"typedef struct { char internal[NCCL_UNIQUE_ID_BYTES]; } ncclUniqueId;",
		"size_t size; unsigned int magic; unsigned int version; int blocking; int cgaClusterSize; int minCTAs; int maxCTAs; const char *netName; int splitShare; int trafficClass; const char *commName; int collnetEnable; int CTAPolicy; int shrinkShare; int nvlsCTAs;",
		"ncclResult_t ncclGetVersion(int *version);",
		"ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId);",
		"ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t* config);",
		"ncclResult_t ncclCommFinalize(ncclComm_t comm);",
		"ncclResult_t ncclCommDestroy(ncclComm_t comm);",
		"ncclResult_t ncclCommAbort(ncclComm_t comm);",
		"const char* ncclGetErrorString(ncclResult_t result);",
		"const char* ncclGetLastError(ncclComm_t comm);",
		"ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);",
		"ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream);",
		"ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);",
		"ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);",
		"ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);",
		"ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm, cudaStream_t stream);",
		"ncclResult_t ncclGroupStart();",
		"ncclResult_t ncclGroupEnd();",
	} {
		if !strings.Contains(header, loose.Replace(want)) {
			t.Errorf("%s has no %s", file, want)
		}
	}
	for name, number := range map[string]string{
		"ncclSuccess": "0", "ncclUnhandledCudaError": "1", "ncclSystemError": "2", "ncclInternalError": "3",
		"ncclInvalidArgument": "4", "ncclInvalidUsage": "5", "ncclRemoteError": "6", "ncclInProgress": "7",
		"ncclSum": "0", "ncclInt32": "2", "ncclFloat32": "7", "ncclFloat64": "8", "ncclBfloat16": "9",
	} {
		if !regexp.MustCompile(name + " = " + number + `\b`).MatchString(header) {
			t.Errorf("%s has no %s = %s", file, name, number)
		}
	}
}

func TestTheRealNCCLHasEveryFunctionOfTheTable(t *testing.T) {
	l := installed(t) // Open refuses one that lacks any
	found := l.Found()
	if found.Name == "" || !strings.Contains(found.Path, "libnccl.so.2") || found.Version != l.Version() || !strings.HasPrefix(l.Version(), "2.") {
		t.Errorf("%+v, version %s", found, l.Version())
	}
	t.Logf("NCCL %s, %s", l.Version(), found.Path)
	a, err := l.UniqueID()
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.UniqueID()
	if err != nil {
		t.Fatal(err)
	}
	if a == b || a == (nccl.UniqueID{}) {
		t.Errorf("unique ids %x and %x", a, b)
	}
}

func TestTheRealNCCLWritesALogForEachRank(t *testing.T) {
	l := installed(t)
	dir := t.TempDir()
	for rank := range 2 {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), child+"="+askID, cuda.OverrideNCCL+"="+l.Found().Path)
		c.Env = append(c.Env, nccl.Settings{Require: "any"}.Environment(dir, rank)...)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		files, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf("nccl.rank-%04d.*.log", rank)))
		if err != nil || len(files) != 1 {
			t.Fatalf("rank %d: files %q, %v", rank, files, err)
		}
		text, err := os.ReadFile(files[0])
		if err != nil || !strings.Contains(string(text), "NCCL INFO") {
			t.Errorf("rank %d: %v, %q", rank, err, text)
		}
	}
}

func TestAFileThatIsNoNCCLIsRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "libnccl.so.2")
	s := cuda.Sources{Env: func(name string) string {
		if name == cuda.OverrideNCCL {
			return file
		}
		return ""
	}}
	if _, err := nccl.Open(s); err == nil || !strings.Contains(err.Error(), "GOFSDP_LIBNCCL") {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := nccl.Open(s); !errors.Is(err, cuda.ErrNoLibrary) || !strings.Contains(err.Error(), file) {
		t.Errorf("no library: %v", err)
	}
	// Any other library will do for one without NCCL's functions.
	matches, _ := filepath.Glob("/lib/*-linux-gnu/libm.so.6")
	if len(matches) == 0 {
		t.Skip("this system has no libm to take for NCCL")
	}
	file = matches[0]
	if _, err := nccl.Open(s); err == nil || !strings.Contains(err.Error(), "lacks 16 functions, ncclGetVersion, ncclGetUniqueId") || !strings.Contains(err.Error(), "2.27 or newer") {
		t.Errorf("no NCCL: %v", err)
	}
}
