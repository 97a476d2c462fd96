package rules

import (
	"bytes"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// root is the top of the module, seen from this package.
const root = "../.."

// mostLines is the length from which a file is to be divided.
const mostLines = 600

// sourceFile is what the rules know of a Go file.
type sourceFile struct {
	path    string // from the root, with slashes
	name    string // of its package
	doc     string // the comment of its package
	lines   int
	sim     bool // it is compiled under the build tag sim alone
	imports []imported
}

type imported struct {
	path string
	line int
}

func (f sourceFile) part() string { return partOf(path.Dir(f.path)) }
func (f sourceFile) isTest() bool { return strings.HasSuffix(f.path, "_test.go") }

// sourceFiles reads all Go files of the module, whatever their build tags.
func sourceFiles(t *testing.T) []sourceFile {
	t.Helper()
	files, err := readOnce()
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("found %d files of the module below %s", len(files), root)
	}
	return files
}

var readOnce = sync.OnceValues(func() ([]sourceFile, error) {
	var files []sourceFile
	err := walk(func(name string, text []byte) error {
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		positions := token.NewFileSet()
		tree, err := parser.ParseFile(positions, name, text, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		f := sourceFile{path: name, name: tree.Name.Name, doc: tree.Doc.Text(), lines: bytes.Count(text, []byte("\n"))}
		f.sim = needsTag(tree, "sim")
		if ast.IsGenerated(tree) {
			f.lines = 0 // nobody reads it
		}
		for _, spec := range tree.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			f.imports = append(f.imports, imported{imp, positions.Position(spec.Pos()).Line})
		}
		files = append(files, f)
		return nil
	})
	return files, err
})

// needsTag says whether a file is compiled only where a build tag is set.
func needsTag(tree *ast.File, tag string) bool {
	for _, group := range tree.Comments {
		for _, c := range group.List {
			if c.Pos() > tree.Package || !constraint.IsGoBuild(c.Text) {
				continue
			}
			expr, err := constraint.Parse(c.Text)
			return err == nil && !expr.Eval(func(t string) bool { return t != tag })
		}
	}
	return false
}

// walk calls visit for each file of the module: not of hidden folders, of test data, of what builds
// and runs leave behind, or of a module within.
func walk(visit func(name string, text []byte) error) error {
	return filepath.WalkDir(root, func(full string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, full)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if entry.IsDir() {
			switch base := entry.Name(); {
			case name == ".":
				return nil
			case base[0] == '.' || base[0] == '_' || base == "testdata" || name == "bin" || name == "runs":
				return fs.SkipDir
			}
			if _, err := os.Stat(filepath.Join(full, "go.mod")); err == nil {
				return fs.SkipDir
			}
			return nil
		}
		switch path.Ext(name) {
		case ".go", ".c", ".h", ".cu", ".cuh":
		default:
			return nil
		}
		text, err := os.ReadFile(full)
		if err != nil {
			return err
		}
		return visit(name, text)
	})
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	docs := map[string]string{}
	for _, f := range sourceFiles(t) {
		if folder := path.Dir(f.path); !f.isTest() {
			docs[folder] += f.doc
			want := "Package " + f.name
			if f.name == "main" {
				want = "Command " + path.Base(folder)
			}
			if f.doc != "" && !strings.HasPrefix(f.doc, want+" ") {
				t.Errorf("%s: the comment of the package begins %.30q, want %q", f.path, f.doc, want)
			}
		}
	}
	for folder, doc := range docs {
		if len(strings.Fields(doc)) < 5 {
			t.Errorf("%s: no comment says what the package knows and must not know", folder)
		}
	}
}

func TestNoFileIsLongerThanAPersonReads(t *testing.T) {
	for _, f := range sourceFiles(t) {
		if !f.isTest() && f.lines > mostLines {
			t.Errorf("%s has %d lines; divide it by %d", f.path, f.lines, mostLines)
		}
	}
	err := walk(func(name string, text []byte) error {
		if n := bytes.Count(text, []byte("\n")); path.Ext(name) != ".go" && n > mostLines {
			t.Errorf("%s has %d lines; divide it by %d", name, n, mostLines)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
