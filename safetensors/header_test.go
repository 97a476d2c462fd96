package safetensors

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	oracle "github.com/nlpodyssey/safetensors"
)

// image returns the bytes of a file with this header text and data.
func image(header string, data int) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	out = append(out, header...)
	return append(out, make([]byte, data)...)
}

// tensor returns one tensor's member of a header.
func tensor(name, dtype, shape string, begin, end int64) string {
	return fmt.Sprintf(`"%s":{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, name, dtype, shape, begin, end)
}

func TestAHostileFileIsRefusedWithTheTensorAndTheOffset(t *testing.T) {
	good := tensor("a", "F32", "[2]", 0, 8)
	claim := func(n uint64) []byte {
		return append(binary.LittleEndian.AppendUint64(nil, n), `{"a":`...)
	}
	cases := map[string]struct {
		file []byte
		want []string // all of these are in the message
	}{
		"an empty file":                          {nil, []string{"offset 0", "truncated"}},
		"a file of seven bytes":                  {make([]byte, 7), []string{"truncated: 7 bytes"}},
		"a header longer than the file":          {claim(50), []string{"claims 50 bytes", "the file has 5"}},
		"a header of 8 EiB":                      {claim(1 << 63), []string{"offset 0", "limit of 100000000"}},
		"a header one over the limit":            {claim(maxHeader + 1), []string{"limit"}},
		"an empty header":                        {image("", 0), []string{"offset 8", "'{'"}},
		"a blank before the brace":               {image(" {}", 0), []string{"offset 8", "'{'"}},
		"bytes that are not UTF-8":               {image("{\"a\xff\":1}", 0), []string{"offset 11", "UTF-8"}},
		"JSON that ends early":                   {image(`{"a":{"dtype":"F32"`, 0), []string{"offset", "unexpected EOF"}},
		"a missing comma":                        {image(`{"a":{"dtype":"F32" "shape":[]}}`, 0), []string{`tensor "a"`, "invalid JSON"}},
		"a trailing comma":                       {image("{"+good+",}", 8), []string{"invalid JSON"}},
		"something after the object":             {image("{"+good+"} {}", 8), []string{"after the end"}},
		"an array as header value":               {image(`{"a":[]}`, 0), []string{`tensor "a"`, "offset 14", `found [ where "{"`}},
		"a tensor that is null":                  {image(`{"a":null}`, 0), []string{`tensor "a"`}},
		"nesting without end":                    {image(`{"a":`+strings.Repeat("[", 1<<20), 0), []string{`tensor "a"`}},
		"the same tensor twice":                  {image("{"+good+","+good+"}", 8), []string{`duplicate key "a"`, "offset 65"}},
		"the same tensor twice, escaped":         {image("{"+good+","+strings.Replace(good, "a", `\u0061`, 1)+"}", 8), []string{`duplicate key "a"`}},
		"the same key twice in a tensor":         {image(`{"a":{"dtype":"F32","dtype":"F32","shape":[]}}`, 4), []string{`tensor "a"`, `duplicate key "dtype"`}},
		"the same metadata twice":                {image(`{"__metadata__":{"k":"1","k":"2"}}`, 0), []string{`duplicate key "k"`}},
		"metadata that is a number":              {image(`{"__metadata__":{"k":1}}`, 0), []string{`"k" is not a string`}},
		"metadata that is a list":                {image(`{"__metadata__":[]}`, 0), []string{"offset 25", `found [ where "{"`}},
		"an unknown dtype":                       {image("{"+tensor("a", "F128", "[2]", 0, 8)+"}", 8), []string{`tensor "a"`, `unknown dtype "F128"`, "BF16"}},
		"a dtype in lower case":                  {image("{"+tensor("a", "f32", "[2]", 0, 8)+"}", 8), []string{`unknown dtype "f32"`}},
		"a dtype that is a number":               {image(`{"a":{"dtype":1,"shape":[],"data_offsets":[0,4]}}`, 4), []string{`tensor "a"`, "not a string"}},
		"no dtype":                               {image(`{"a":{"shape":[1],"data_offsets":[0,4]}}`, 4), []string{`tensor "a"`, "not all there"}},
		"no shape":                               {image(`{"a":{"dtype":"F32","data_offsets":[0,4]}}`, 4), []string{`tensor "a"`, "not all there"}},
		"a key that nobody knows":                {image(`{"a":{"dtype":"F32","shape":[],"offsets":[0,4]}}`, 4), []string{`tensor "a"`, `unknown key "offsets"`}},
		"a negative extent":                      {image("{"+tensor("a", "F32", "[-2]", 0, 8)+"}", 8), []string{`tensor "a"`, "-2"}},
		"two negative extents":                   {image("{"+tensor("a", "F32", "[-1,-2]", 0, 8)+"}", 8), []string{`tensor "a"`, "-1"}},
		"minus zero":                             {image("{"+tensor("a", "F32", "[-0]", 0, 0)+"}", 0), []string{`tensor "a"`, "-0"}},
		"an extent with a fraction":              {image("{"+tensor("a", "F32", "[2.0]", 0, 8)+"}", 8), []string{`tensor "a"`, "2.0"}},
		"an extent with an exponent":             {image("{"+tensor("a", "F32", "[2e0]", 0, 8)+"}", 8), []string{"2e0"}},
		"an extent that is a string":             {image("{"+tensor("a", "F32", `["2"]`, 0, 8)+"}", 8), []string{"number is expected"}},
		"an extent beyond 64 bits":               {image("{"+tensor("a", "F32", "[99999999999999999999]", 0, 8)+"}", 8), []string{"99999999999999999999"}},
		"a product that overflows to the size":   {image("{"+tensor("a", "F32", "[4611686018427387905,4]", 0, 16)+"}", 16), []string{`tensor "a"`, "more than 2^63-1 bytes"}},
		"a product of 2^63 bytes":                {image("{"+tensor("a", "F16", "[4611686018427387904]", 0, 0)+"}", 0), []string{"more than 2^63-1 bytes"}},
		"a product that overflows to nought":     {image("{"+tensor("a", "F32", "[4294967296,4294967296]", 0, 0)+"}", 0), []string{"more than 2^63-1 bytes"}},
		"a shape that needs more than there is":  {image("{"+tensor("a", "F32", "[3]", 0, 8)+"}", 8), []string{`tensor "a"`, "takes 12 bytes, the offsets give 8"}},
		"one offset":                             {image(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4]}}`, 4), []string{`tensor "a"`, "1 numbers"}},
		"three offsets":                          {image(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,4]}}`, 4), []string{"3 numbers"}},
		"a negative offset":                      {image("{"+tensor("a", "F32", "[2]", -8, 0)+"}", 8), []string{`tensor "a"`, "-8"}},
		"offsets in the wrong order":             {image("{"+tensor("a", "F32", "[2]", 8, 0)+"}", 8), []string{`tensor "a"`, "ends before it begins"}},
		"a truncated tensor":                     {image("{"+good+"}", 7), []string{`tensor "a"`, "data 0 to 8", "after the end of the data at 7", "truncated"}},
		"many tensors beyond the end":            {image("{"+good+","+tensor("b", "F32", "[2]", 8, 16)+","+tensor("c", "F32", "[1]", 16, 20)+"}", 10), []string{`tensor "b"`, "data 8 to 16", "after the end of the data at 10, like 1 more: "}},
		"a tensor far beyond the end":            {image("{"+tensor("a", "I8", "[9223372036854775807]", 0, 1<<63-1)+"}", 8), []string{`tensor "a"`, "truncated"}},
		"overlapping tensors":                    {image("{"+good+","+tensor("b", "F32", "[2]", 4, 12)+"}", 12), []string{`tensor "b"`, `overlaps tensor "a", which ends at 8`}},
		"a tensor inside another":                {image("{"+tensor("a", "F32", "[4]", 0, 16)+","+tensor("b", "F32", "[1]", 4, 8)+"}", 16), []string{`tensor "b"`, "overlaps"}},
		"two tensors in one place":               {image("{"+good+","+tensor("b", "F32", "[2]", 0, 8)+"}", 8), []string{`tensor "b"`, "overlaps"}},
		"a gap between tensors":                  {image("{"+good+","+tensor("b", "F32", "[2]", 12, 20)+"}", 20), []string{`tensor "b"`, `gap after tensor "a", which ends at 8`}},
		"a gap before the first tensor":          {image("{"+tensor("a", "F32", "[2]", 4, 12)+"}", 12), []string{`tensor "a"`, "gap after the start"}},
		"bytes after the last tensor":            {image("{"+good+"}", 9), []string{"1 bytes after the last tensor"}},
		"bytes and no tensors":                   {image("{}", 3), []string{"offset 10", "3 bytes"}},
		"two mistakes are both told, the first":  {image("{"+tensor("a", "F9", "[2]", 0, 8)+","+tensor("b", "F8", "[2]", 8, 16)+"}", 16), []string{`"F9"`, `"F8"`}},
		"two mistakes are both told, the second": {image("{"+tensor("a", "F32", "[1]", 0, 8)+","+tensor("b", "F32", "[1]", 8, 16)+"}", 16), []string{`tensor "a"`, `tensor "b"`}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "hostile.safetensors")
			if err := os.WriteFile(path, c.file, 0o600); err != nil {
				t.Fatal(err)
			}
			f, err := Open(path)
			if err == nil {
				f.Close()
				t.Fatal("it was opened")
			}
			for _, want := range append(c.want, path) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error does not say %q:\n%v", want, err)
				}
			}
		})
	}
}

func TestATensorBehindOverlappingOnesIsNotBlamed(t *testing.T) {
	_, err := newFile("x", image("{"+tensor("a", "U8", "[16]", 0, 16)+","+tensor("b", "U8", "[4]", 4, 8)+","+tensor("c", "U8", "[4]", 16, 20)+"}", 20))
	if err == nil || !strings.Contains(err.Error(), `tensor "b"`) || strings.Contains(err.Error(), `tensor "c"`) {
		t.Errorf("got %v", err)
	}
}

func TestAThousandMistakesDoNotMakeAThousandLines(t *testing.T) {
	var members []string
	for i := range 1000 {
		members = append(members, tensor(fmt.Sprint(i), "F9", "[]", 0, 0))
	}
	_, err := newFile("x", image("{"+strings.Join(members, ",")+"}", 0))
	if err == nil || strings.Count(err.Error(), "\n") != maxMistakes || !strings.HasSuffix(err.Error(), "and 980 more") {
		t.Errorf("got %v", err)
	}
}

func TestHeadersThatOthersWriteAreRead(t *testing.T) {
	cases := map[string]struct {
		file []byte
		want []string
	}{
		"no tensors":                            {image("{}", 0), nil},
		"only metadata":                         {image(`{"__metadata__":{"format":"pt"}}`, 0), nil},
		"empty metadata":                        {image(`{"__metadata__":{}}`, 0), nil},
		"blanks after the object":               {image("{"+tensor("a", "F32", "[2]", 0, 8)+"}     ", 8), []string{"a"}},
		"a scalar":                              {image("{"+tensor("a", "F64", "[]", 0, 8)+"}", 8), []string{"a"}},
		"names in another order than the data":  {image("{"+tensor("b", "U8", "[2]", 2, 4)+","+tensor("a", "U8", "[2]", 0, 2)+"}", 4), []string{"a", "b"}},
		"empty tensors between others":          {image("{"+tensor("a", "U8", "[2]", 0, 2)+","+tensor("e", "F32", "[0,7]", 2, 2)+","+tensor("b", "U8", "[1]", 2, 3)+"}", 3), []string{"a", "e", "b"}},
		"many empty tensors at one place":       {image("{"+tensor("x", "U8", "[0]", 0, 0)+","+tensor("y", "U8", "[0]", 0, 0)+"}", 0), []string{"x", "y"}},
		"a name of no letters":                  {image("{"+tensor("", "U8", "[1]", 0, 1)+"}", 1), []string{""}},
		"every dtype, each of its size":         everyDType(),
		"keys of a tensor in any order":         {image(`{"a":{"data_offsets":[0,4],"shape":[1],"dtype":"F32"}}`, 4), []string{"a"}},
		"line breaks and tabs where JSON may":   {image("{\n\t"+tensor("a", "U8", "[1]", 0, 1)+"\n}", 1), []string{"a"}},
		"a nought in a shape and a great other": {image("{"+tensor("a", "U8", "[0,4294967296]", 0, 0)+"}", 0), []string{"a"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			f, err := newFile("x", c.file)
			if err != nil {
				t.Fatal(err)
			}
			if got := f.Names(); fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("names %q, want %q", got, c.want)
			}
			if _, err := oracle.Deserialize(c.file); err != nil {
				t.Errorf("the oracle refuses the case: %v", err)
			}
		})
	}
}

func everyDType() (c struct {
	file []byte
	want []string
},
) {
	var members []string
	var end int64
	for d := F64; d <= Bool; d++ {
		members = append(members, tensor(d.String(), d.String(), "[3]", end, end+3*d.Size()))
		end += 3 * d.Size()
		c.want = append(c.want, d.String())
	}
	c.file = image("{"+strings.Join(members, ",")+"}", int(end))
	return c
}

func TestALyingHeaderAllocatesLittle(t *testing.T) {
	cases := map[string][]byte{
		"a header of nearly the limit in a short file": append(binary.LittleEndian.AppendUint64(nil, maxHeader), "{}"...),
		"a tensor of 8 EiB":                            image("{"+tensor("a", "I8", "[9223372036854775807]", 0, 1<<63-1)+"}", 8),
	}
	for name, file := range cases {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range 100 {
				if _, err := parseHeader(file); err == nil {
					t.Fatal("it was accepted")
				}
			}
			runtime.ReadMemStats(&after)
			if bytes := (after.TotalAlloc - before.TotalAlloc) / 100; bytes > 64<<10 {
				t.Errorf("%d bytes were allocated", bytes)
			}
		})
	}
}

// What this package accepts, the oracle accepts too and sees the same in it; and
// it is JSON.
func FuzzHeader(f *testing.F) {
	f.Add(image("{}", 0))
	f.Add(everyDType().file)
	f.Add(image("{"+tensor("a", "F32", "[2]", 0, 8)+","+tensor("b", "BF16", "[1,2]", 8, 12)+`,"__metadata__":{"k":"v"}}   `, 12))
	f.Add(image("{"+tensor("a", "F32", "[-2]", 8, 0)+"}", 8))
	f.Add(image(`{"a":`+strings.Repeat("[", 100), 0))
	f.Fuzz(func(t *testing.T, file []byte) {
		got, err := newFile("fuzz", file)
		if err != nil {
			return
		}
		header := file[lengthBytes : lengthBytes+binary.LittleEndian.Uint64(file)]
		if !json.Valid(header) {
			t.Fatalf("accepted what is not JSON: %q", header)
		}
		want, err := oracle.Deserialize(file)
		if err != nil {
			t.Fatalf("accepted what the oracle refuses: %v: %q", err, header)
		}
		if want.Len() != len(got.Names()) {
			t.Fatalf("%d tensors, the oracle sees %d: %q", len(got.Names()), want.Len(), header)
		}
		for _, name := range got.Names() {
			mine, _ := got.Tensor(name)
			view, ok := want.Tensor(name)
			if !ok {
				t.Fatalf("tensor %q is not in the oracle: %q", name, header)
			}
			compareWithOracle(t, mine, view)
		}
	})
}
