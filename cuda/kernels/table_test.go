package kernels

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheCommittedPTXIsThatOfItsSources(t *testing.T) {
	include := regexp.MustCompile(`(?m)^#include "(\w+\.cuh)"$`)
	sources, err := filepath.Glob("*.cu")
	if err != nil {
		t.Fatal(err)
	}
	var families []string
	for _, s := range sources {
		families = append(families, strings.TrimSuffix(s, ".cu"))
	}
	if !slices.Equal(families, Modules()) {
		t.Errorf("sources of %v, PTX of %v: run make kernels", families, Modules())
	}
	for _, m := range Modules() {
		text, headers := readFile(t, m+".cu"), map[string]string{}
		var follow func(text string)
		follow = func(text string) {
			for _, i := range include.FindAllStringSubmatch(text, -1) {
				if headers[i[1]] == "" {
					headers[i[1]] = readFile(t, i[1])
					follow(headers[i[1]])
				}
			}
		}
		follow(text)
		for _, name := range slices.Sorted(maps.Keys(headers)) {
			text += "\x00" + headers[name]
		}
		want := fmt.Sprintf("// sources %x\n", sha256.Sum256([]byte(text)))
		if !strings.HasPrefix(PTX(m), want) {
			t.Errorf("%s.ptx was not made of %s.cu and the headers as they are; run make kernels and commit it", m, m)
		}
	}
}

func TestThePTXIsForDriversFromR535AndGPUsFromSM80(t *testing.T) {
	for _, m := range Modules() {
		for _, want := range []string{"\n.version 8.2\n", "\n.target sm_80\n", "\n.address_size 64\n"} {
			if !strings.Contains(PTX(m), want) {
				t.Errorf("%s.ptx has no line %q", m, strings.TrimSpace(want))
			}
		}
		for _, l := range regexp.MustCompile(`(?m)^\s*\.file.*$`).FindAllString(PTX(m), -1) {
			if strings.Contains(l, "/") {
				t.Errorf("%s.ptx depends on where it was made: %s", m, l)
			}
		}
	}
}

var (
	entryOf  = regexp.MustCompile(`\.visible \.entry (\w+)\(\n((?:.*\n)*?)\)\n((?:\..*\n)*)`)
	paramOf  = regexp.MustCompile(`^\s*\.param \.align 8 \.b8 \w+_param_0\[(\d+)\]\n$`)
	maxOf    = regexp.MustCompile(`\.maxntid (\d+), 1, 1`)
	leastOf  = regexp.MustCompile(`\.minnctapersm (\d+)`)
	structOf = regexp.MustCompile(`(?s)struct (\w+Args) \{(.*?)\n\};`)
	headOf   = regexp.MustCompile(`(\w+(?:##\w+)*)\(const (\w+) a\)`)
	lineOf   = regexp.MustCompile(`^\s*(const )?(\w+) ([^;]+);\s*(//.*)?$`)
	fieldOf  = regexp.MustCompile(`^(\*?)(\w+)(?:\[(\d+)\])?$`)
)

func TestEachEntryPointIsInTheTableWithItsParameterAndThreads(t *testing.T) {
	found := map[string]bool{}
	for _, m := range Modules() {
		entries := entryOf.FindAllStringSubmatch(PTX(m), -1)
		if len(entries) != strings.Count(PTX(m), ".entry ") {
			t.Errorf("%s.ptx has entry points that this test cannot read", m)
		}
		for _, e := range entries {
			i := slices.IndexFunc(All(), func(k Kernel) bool { return k.Name == e[1] })
			if i < 0 {
				t.Errorf("%s of %s.ptx is not in the table", e[1], m)
				continue
			}
			k := All()[i]
			if found[k.Name] || k.Module != m {
				t.Errorf("%s: in %s.ptx, and in the table for %s", k.Name, m, k.Module)
			}
			found[k.Name] = true
			if p := paramOf.FindStringSubmatch(e[2]); p == nil || p[1] != strconv.Itoa(int(k.Args.Size())) {
				t.Errorf("%s takes %q, the struct has %d bytes", k.Name, strings.TrimSpace(e[2]), k.Args.Size())
			}
			if max := maxOf.FindStringSubmatch(e[3]); max == nil || max[1] != strconv.Itoa(k.Threads) {
				t.Errorf("%s: __launch_bounds__ gives %q, the table %d threads", k.Name, e[3], k.Threads)
			}
			// So that also the compiler of a driver that is not at hand keeps to it.
			if least := leastOf.FindStringSubmatch(e[3]); least == nil || least[1] != strconv.Itoa(k.Blocks) {
				t.Errorf("%s: __launch_bounds__ gives %q, the table %d blocks", k.Name, e[3], k.Blocks)
			}
		}
	}
	for _, k := range All() {
		if !found[k.Name] {
			t.Errorf("%s.ptx has no %s", k.Module, k.Name)
		}
	}
}

// kinds are what a field of a kernel's arguments may be, in CUDA C++ and in Go.
var kinds = map[string]reflect.Kind{
	"*": reflect.Uint64, "i64": reflect.Int64, "u64": reflect.Uint64,
	"int": reflect.Int32, "u32": reflect.Uint32, "float": reflect.Float32,
}

func TestArgumentsHaveTheSameFieldsInGoAndCUDA(t *testing.T) {
	for _, k := range All() {
		source := readFile(t, k.Module+".cu")
		args := ""
		for _, h := range headOf.FindAllStringSubmatch(source, -1) {
			var name strings.Builder
			for i, part := range strings.Split(h[1], "##") {
				if i == 0 || part == "_" {
					name.WriteString(part)
				} else {
					name.WriteString(`\w+`) // a macro's parameter
				}
			}
			if regexp.MustCompile("^(?:"+name.String()+")$").MatchString(k.Name) && len(h[2]) > 0 && strings.HasSuffix(h[2], "Args") &&
				strings.EqualFold(h[2], k.Args.Name()) {
				args = h[2]
			}
		}
		if args == "" {
			t.Errorf("%s.cu has no %s(const X a) with a struct X called %s, whatever the case", k.Module, k.Name, k.Args.Name())
			continue
		}
		fields, err := fieldsOf(source, args)
		if err != nil {
			t.Errorf("%s.cu: struct %s: %v", k.Module, args, err)
			continue
		}
		var inGo []string
		for i := range k.Args.NumField() {
			f := k.Args.Field(i)
			typ := f.Type.Kind().String()
			if f.Type.Kind() == reflect.Array {
				typ = fmt.Sprintf("%s[%d]", f.Type.Elem().Kind(), f.Type.Len())
			}
			inGo = append(inGo, strings.ToLower(f.Name)+" "+typ)
		}
		if !slices.Equal(fields, inGo) {
			t.Errorf("%s has in %s.cu\n\t%s\nand in Go\n\t%s", args, k.Module, strings.Join(fields, ", "), strings.Join(inGo, ", "))
		}
	}
}

// fieldsOf reads the fields of a struct of a CUDA source: their names without
// underscores, in lower case, and the kind of Go's that each is. Equal kinds in
// equal order have equal offsets: both languages align a field to its size.
func fieldsOf(source, name string) ([]string, error) {
	body := ""
	for _, s := range structOf.FindAllStringSubmatch(source, -1) {
		if s[1] == name {
			body = s[2]
		}
	}
	var fields []string
	for _, l := range strings.Split(body, "\n") {
		if l = strings.TrimSpace(l); l == "" || strings.HasPrefix(l, "//") {
			continue
		}
		decl := lineOf.FindStringSubmatch(l)
		if decl == nil {
			return nil, fmt.Errorf("%q is not read by this test", l)
		}
		for _, d := range strings.Split(decl[3], ",") {
			f := fieldOf.FindStringSubmatch(strings.TrimSpace(d))
			if f == nil {
				return nil, fmt.Errorf("%q is not read by this test", l)
			}
			kind, ok := kinds[decl[2]]
			if f[1] == "*" {
				kind, ok = kinds["*"], true
			}
			if !ok {
				return nil, fmt.Errorf("%q is of a type that arguments may not have", l)
			}
			typ := kind.String()
			if f[3] != "" {
				typ += "[" + f[3] + "]"
			}
			fields = append(fields, strings.ToLower(strings.ReplaceAll(f[2], "_", ""))+" "+typ)
		}
	}
	if len(fields) == 0 {
		return nil, fmt.Errorf("not found")
	}
	return fields, nil
}

func TestAFieldThatDiffersIsSeen(t *testing.T) {
	const source = "struct XArgs {\n  const void *from, *to; // two\n  i64 row_count;\n  const void *list[3];\n\n  u32 on;\n};\n"
	got, err := fieldsOf(source, "XArgs")
	if want := []string{"from uint64", "to uint64", "rowcount int64", "list uint64[3]", "on uint32"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("fields %q, %v; want %q", got, err, want)
	}
	for _, wrong := range []string{"struct XArgs {\n  bool on;\n};\n", "struct XArgs {\n  u32 on : 1;\n};\n", "struct YArgs {\n  u32 on;\n};\n"} {
		if got, err := fieldsOf(wrong, "XArgs"); err == nil {
			t.Errorf("%q has fields %q", wrong, got)
		}
	}
}
