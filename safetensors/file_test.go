package safetensors

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	oracle "github.com/nlpodyssey/safetensors"
	"pgregory.net/rapid"
)

// fatal is what testing's and rapid's T have in common.
type fatal interface {
	Helper()
	Fatalf(format string, args ...any)
}

func compareWithOracle(t fatal, mine Tensor, theirs oracle.TensorView) {
	t.Helper()
	if mine.DType.String() != theirs.DType().String() {
		t.Fatalf("tensor %q: dtype %s, the oracle has %s", mine.Name, mine.DType, theirs.DType())
	}
	if !slices.EqualFunc(mine.Shape, theirs.Shape(), func(a int64, b uint64) bool { return uint64(a) == b }) {
		t.Fatalf("tensor %q: shape %v, the oracle has %v", mine.Name, mine.Shape, theirs.Shape())
	}
	if !bytes.Equal(mine.Data, theirs.Data()) {
		t.Fatalf("tensor %q: other bytes than the oracle's", mine.Name)
	}
}

// contents is a random set of tensors.
type contents struct {
	entries  []Entry
	data     map[string][]byte
	metadata map[string]string
}

func drawContents(t *rapid.T) contents {
	name := rapid.OneOf(rapid.StringMatching(`[a-z.]{0,12}`), rapid.String().Filter(func(s string) bool { return s != metadataKey }))
	c := contents{
		data:     map[string][]byte{},
		metadata: rapid.MapOfN(rapid.String(), rapid.String(), 0, 3).Draw(t, "metadata"),
	}
	for i, name := range rapid.SliceOfNDistinct(name, 0, 8, rapid.ID[string]).Draw(t, "names") {
		e := Entry{
			Name:  name,
			DType: DType(rapid.IntRange(int(F64), int(Bool)).Draw(t, "dtype")),
			Shape: rapid.SliceOfN(rapid.Int64Range(0, 5), 0, 4).Draw(t, "shape"),
		}
		size, err := e.Size()
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, size)
		for j := range data {
			data[j] = byte(i*31 + j*7 + 1)
		}
		c.entries = append(c.entries, e)
		c.data[name] = data
	}
	return c
}

func TestWhatIsWrittenTheOracleReads(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	rapid.Check(t, func(t *rapid.T) {
		c := drawContents(t)
		w, err := Create(path, c.entries, c.metadata)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range rapid.Permutation(c.entries).Draw(t, "order") {
			data := c.data[e.Name]
			cut := rapid.IntRange(0, len(data)).Draw(t, "cut")
			if cut == 0 {
				err = w.WriteTensor(e.Name, data)
			} else {
				err = errors.Join(w.WritePart(e.Name, int64(cut), data[cut:]), w.WritePart(e.Name, 0, data[:cut]))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Commit(); err != nil {
			t.Fatal(err)
		}

		file, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n, header, err := oracle.ReadMetadata(file)
		if err != nil {
			t.Fatal(err)
		}
		if (n+lengthBytes)%Align != 0 {
			t.Fatalf("the data begins at %d, not at a multiple of %d", n+lengthBytes, Align)
		}
		if !maps.Equal(header.Metadata(), c.metadata) {
			t.Fatalf("metadata %q, the oracle reads %q", c.metadata, header.Metadata())
		}
		theirs, err := oracle.Deserialize(file)
		if err != nil {
			t.Fatal(err)
		}
		if theirs.Len() != len(c.entries) {
			t.Fatalf("%d tensors written, the oracle reads %d", len(c.entries), theirs.Len())
		}
		for _, e := range c.entries {
			view, ok := theirs.Tensor(e.Name)
			if !ok {
				t.Fatalf("the oracle does not find %q", e.Name)
			}
			compareWithOracle(t, Tensor{Entry: e, Data: c.data[e.Name]}, view)
		}
		readBack(t, path, c)
	})
}

func TestWhatTheOracleWritesIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	rapid.Check(t, func(t *rapid.T) {
		c := drawContents(t)
		views := map[string]written{}
		for _, e := range c.entries {
			views[e.Name] = written{e, c.data[e.Name]}
		}
		file, err := oracle.Serialize(views, c.metadata)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		readBack(t, path, c)
	})
}

// written is a tensor as the oracle wants it for writing.
type written struct {
	Entry
	data []byte
}

func (v written) DType() oracle.DType {
	d, err := oracle.ParseDType(v.Entry.DType.String())
	if err != nil {
		panic(err)
	}
	return d
}

func (v written) Shape() []uint64 {
	shape := make([]uint64, len(v.Entry.Shape))
	for i, n := range v.Entry.Shape {
		shape[i] = uint64(n)
	}
	return shape
}
func (v written) Data() []byte    { return v.data }
func (v written) DataLen() uint64 { return uint64(len(v.data)) }

// readBack opens path and finds c in it.
func readBack(t fatal, path string, c contents) {
	t.Helper()
	f, err := Open(path)
	if err != nil {
		t.Fatalf("%v", err)
	}
	defer f.Close()
	if len(f.Names()) != len(c.entries) || !maps.Equal(f.Metadata(), c.metadata) {
		t.Fatalf("%d tensors with metadata %q, read %d with %q", len(c.entries), c.metadata, len(f.Names()), f.Metadata())
	}
	for _, e := range c.entries {
		got, ok := f.Tensor(e.Name)
		if !ok || got.Name != e.Name || got.DType != e.DType || !slices.Equal(got.Shape, e.Shape) || !bytes.Equal(got.Data, c.data[e.Name]) {
			t.Fatalf("%+v was written, %+v is read (found: %v)", e, got.Entry, ok)
		}
	}
}

// write writes a file of these tensors, byte i of each being i plus its number.
func write(t *testing.T, path string, entries ...Entry) {
	t.Helper()
	w, err := Create(path, entries, map[string]string{"format": "pt"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	for number, e := range entries {
		if err := w.WriteTensor(e.Name, bytesOf(t, e, number)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
}

func bytesOf(t *testing.T, e Entry, number int) []byte {
	t.Helper()
	size, err := e.Size()
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i + number)
	}
	return data
}

func TestTensorsAreReadInPlaceAndAligned(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	write(t, path, Entry{"w", F32, []int64{4, 16}}, Entry{"empty", F32, []int64{0}}, Entry{"b", BF16, []int64{32}})
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if got := f.Names(); !slices.Equal(got, []string{"w", "empty", "b"}) {
		t.Errorf("the order is %q", got)
	}
	for _, name := range []string{"w", "b"} {
		got, _ := f.Tensor(name)
		address := uintptr(unsafe.Pointer(unsafe.SliceData(got.Data)))
		if start := uintptr(unsafe.Pointer(unsafe.SliceData(f.mapped))); address != start+uintptr(got.Offset) {
			t.Errorf("tensor %q was copied out of the mapping", name)
		}
		if address%Align != 0 {
			t.Errorf("tensor %q is at address %x", name, address)
		}
		if cap(got.Data) != len(got.Data) {
			t.Errorf("an append to %q would reach the next tensor", name)
		}
	}
	if _, ok := f.Tensor("nobody"); ok {
		t.Error("a tensor was found that is not there")
	}
}

func TestAClosedFileHasNoTensors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	write(t, path, Entry{"w", F32, []int64{4}})
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Close(), f.Close()); err != nil {
		t.Error(err)
	}
	if _, ok := f.Tensor("w"); ok || len(f.Names()) != 0 {
		t.Error("there are tensors after Close")
	}
}

func TestWhatIsNoFileIsRefusedByName(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, filepath.Join(dir, "absent.safetensors"), os.DevNull} {
		if _, err := Open(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("opening %s: %v", path, err)
		}
	}
}

func TestManyGoroutinesReadOneFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	var entries []Entry
	for i := range 16 {
		entries = append(entries, Entry{fmt.Sprint("t", i), U8, []int64{1000}})
	}
	write(t, path, entries...)
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			for i, name := range f.Names() {
				if got, ok := f.Tensor(name); !ok || !bytes.Equal(got.Data, bytesOf(t, entries[i], i)) {
					t.Errorf("tensor %q differs", name)
				}
			}
		})
	}
	readers.Wait()
}
