package checkpoint_test

import (
	"encoding/binary"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gofsdp/gofsdp/internal/golden"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/safetensors"
)

// tiny is a model of a few thousand parameters.
func tiny(tied bool) model.Config {
	return model.Config{
		Family: "qwen2", Vocab: 33, Hidden: 16, Layers: 2, Heads: 4, KVHeads: 2, HeadSize: 4, MLP: 20,
		MaxPositions: 64, NormEps: 1e-6, RopeTheta: 1e4, QKVBias: true, Tied: tied, InitStd: 0.02,
	}
}

// formula is a value for every parameter.
func formula(cfg model.Config) map[string][]float32 {
	values := map[string][]float32{}
	for _, p := range cfg.Params() {
		values[p.Name] = golden.Weight(p.Name, p.Shape...)
	}
	return values
}

// tensor is what a test writes to a file.
type tensor struct {
	typ   safetensors.DType
	shape []int64
	data  []byte
}

// stored is a tensor of these values, which must be numbers of that type.
func stored(typ safetensors.DType, shape []int64, values []float32) tensor {
	var data []byte
	for _, v := range values {
		switch typ {
		case safetensors.F32:
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
		case safetensors.BF16:
			data = binary.LittleEndian.AppendUint16(data, uint16(math.Float32bits(v)>>16))
		case safetensors.F16:
			data = binary.LittleEndian.AppendUint16(data, halfBits(v))
		}
	}
	return tensor{typ, shape, data}
}

// halfBits is the binary16 of a normal number that has one.
func halfBits(v float32) uint16 {
	w := math.Float32bits(v)
	return uint16(w>>16&0x8000 | (w>>23&0xff-112)<<10 | w>>13&0x3ff)
}

// directory is the tensors of a model by file and name.
type directory map[string]map[string]tensor

// directoryOf spreads the formula's values, cut to what typ can hold, over n
// files. It returns the values too.
func directoryOf(cfg model.Config, typ safetensors.DType, n int) (directory, map[string][]float32) {
	kept := map[safetensors.DType]uint32{safetensors.F32: 0xffffffff, safetensors.BF16: 0xffff0000, safetensors.F16: 0xffffe000}[typ]
	values := formula(cfg)
	d := directory{}
	for i, p := range cfg.Params() {
		for j, v := range values[p.Name] {
			if typ == safetensors.F16 && v > -0x1p-14 && v < 0x1p-14 {
				v = 0x1p-14
			}
			values[p.Name][j] = math.Float32frombits(math.Float32bits(v) & kept)
		}
		file := safetensors.SingleFile
		if n > 1 {
			file = safetensors.ShardFile(i%n+1, n)
		}
		if d[file] == nil {
			d[file] = map[string]tensor{}
		}
		d[file][p.Name] = stored(typ, shape64(p), values[p.Name])
	}
	return d, values
}

func shape64(p model.Param) []int64 {
	var shape []int64
	for _, n := range p.Shape {
		shape = append(shape, int64(n))
	}
	return shape
}

// change replaces a tensor, wherever it is.
func (d directory) change(name string, with func(*tensor)) {
	for _, tensors := range d {
		if t, ok := tensors[name]; ok {
			with(&t)
			tensors[name] = t
		}
	}
}

func (d directory) remove(name string) {
	for _, tensors := range d {
		delete(tensors, name)
	}
}

// write writes the files, and an index where there are several.
func (d directory) write(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	index := map[string]string{}
	for file, tensors := range d {
		var entries []safetensors.Entry
		for _, name := range slices.Sorted(maps.Keys(tensors)) {
			entries = append(entries, safetensors.Entry{Name: name, DType: tensors[name].typ, Shape: tensors[name].shape})
			index[name] = file
		}
		w, err := safetensors.Create(filepath.Join(dir, file), entries, nil)
		check(t, err)
		for name, tensor := range tensors {
			check(t, w.WriteTensor(name, tensor.data))
		}
		check(t, w.Commit())
	}
	if len(d) > 1 {
		check(t, safetensors.WriteIndex(dir, index, 0))
	}
	return dir
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sameBits compares two models' values, NaNs and signs of zeros too.
func sameBits(t *testing.T, got, want map[string][]float32) {
	t.Helper()
	if !slices.Equal(slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want))) {
		t.Fatalf("parameters %v, want %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
	for name := range want {
		if len(got[name]) != len(want[name]) {
			t.Errorf("%s has %d elements, want %d", name, len(got[name]), len(want[name]))
			continue
		}
		for i := range want[name] {
			if math.Float32bits(got[name][i]) != math.Float32bits(want[name][i]) {
				t.Errorf("%s[%d] is %v, want %v", name, i, got[name][i], want[name][i])
				break
			}
		}
	}
}

// listing is the names in a directory, sorted.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check(t, err)
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// says checks that an error's text has every part.
func says(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one that says %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q:\n%v", part, err)
		}
	}
}

// nothingOpen checks that this process has no file below dir open or mapped,
// on systems that tell.
func nothingOpen(t *testing.T, dir string) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	if strings.Contains(string(maps), dir+"/") {
		t.Errorf("files of %s are still mapped", dir)
	}
	for _, fd := range listing(t, "/proc/self/fd") {
		if path, _ := os.Readlink("/proc/self/fd/" + fd); strings.HasPrefix(path, dir+"/") {
			t.Errorf("%s is still open", path)
		}
	}
}
