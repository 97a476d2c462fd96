package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/cuda"
)

// rewrite renews what the tests compare with: go test ./cmd/gofsdp -rewrite,
// then look at the difference.
var rewrite = flag.Bool("rewrite", false, "write what the program says now into testdata")

func TestMain(m *testing.M) {
	if signal.Ignored(os.Interrupt) { // in a shell's background; the programs of the tests must not inherit it
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}
	if _, err := cuda.Open(cuda.Sources{}); err == nil { // no test is to take a GPU unasked
		os.Setenv("CUDA_VISIBLE_DEVICES", "")
	}
	testscript.Main(m, map[string]func(){"gofsdp": main, differingCommand: differingMain})
}

// TestScripts runs the sessions of a user in testdata/script. Beside
// testscript's own commands they have these:
//
//	exits CODE COMMAND...   runs it, and wants that exit code
//	unchanged               wants the files as they were at the script's begin, but for the cache
//	corpus DIR N            writes N documents of made-up text
//	bytes FILE HEX          writes a file of those bytes
//	same-settings A B       wants two configurations to give the same values
//	json FILE KEY WANT      wants the value at a dotted key, as JSON
//	held-out RESULT         wants the loss that eval has just printed to be that of result.json
func TestScripts(t *testing.T) { runScripts(t, "testdata/script") }

func runScripts(t *testing.T, dir string) {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		t.Fatal("the test does not know how it was built")
	}
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		UpdateScripts:       *rewrite,
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			if hidden, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES"); ok {
				env.Setenv("CUDA_VISIBLE_DEVICES", hidden)
			}
			env.Setenv("XDG_CACHE_HOME", filepath.Join(env.WorkDir, ".cache"))
			env.Setenv("HF_HOME", filepath.Join(env.WorkDir, "hf"))
			files, err := listing(env.WorkDir)
			env.Values["files"] = &files
			return err
		},
		Condition: func(name string) (bool, error) {
			if name == "own-disk" { // whether this user can mount one
				return exec.Command("unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/tmp").Run() == nil, nil
			}
			if name == "sim" { // whether the program has the simulator
				return slices.ContainsFunc(build.Settings, func(s debug.BuildSetting) bool { return s.Key == "-tags" && s.Value == "sim" }), nil
			}
			return false, fmt.Errorf("unknown condition %q", name)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "unchanged": unchanged, "corpus": corpus, "bytes": writeBytes,
			"same-settings": sameSettings, "json": jsonValue, "held-out": heldOut,
		},
	})
}

func usage(ts *testscript.TestScript, neg bool, args []string, n int, text string) {
	if neg || len(args) < n {
		ts.Fatalf("usage: %s", text)
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2, "exits CODE COMMAND...")
	code := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, want %s; it said: %s", code, args[0], ts.ReadFile("stderr"))
	}
}

// listing returns all files below dir, but for the cache, in which nothing may
// be half-written.
func listing(dir string) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		whole := strings.HasPrefix(name, ".cache") && !strings.Contains(name, "partial") && !strings.HasSuffix(name, ".lock")
		if err == nil && !whole {
			files = append(files, name)
		}
		return err
	})
	return files, err
}

func unchanged(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 0, "unchanged")
	files, err := listing(ts.Getenv("WORK"))
	ts.Check(err)
	if before := *ts.Value("files").(*[]string); !slices.Equal(files, before) {
		ts.Fatalf("files were left behind (+) or removed (-):\n%s", cmp.Diff(before, files))
	}
}

func corpus(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2, "corpus DIR N")
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	dir := ts.MkAbs(args[0])
	ts.Check(os.MkdirAll(dir, 0o777))
	words := strings.Fields("the a one cat dog house tree sun runs walks sleeps quickly and under over of green old")
	random := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		var text []byte
		for range 300 {
			text = append(append(text, words[random.IntN(len(words))]...), ' ')
		}
		ts.Check(os.WriteFile(filepath.Join(dir, fmt.Sprintf("%02d.txt", i)), text, 0o666))
	}
	files, err := listing(ts.Getenv("WORK"))
	ts.Check(err)
	*ts.Value("files").(*[]string) = files
}

func writeBytes(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2, "bytes FILE HEX")
	var text []byte
	if _, err := fmt.Sscanf(args[1], "%x", &text); err != nil {
		ts.Fatalf("%q: %v", args[1], err)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), text, 0o666))
	files, err := listing(ts.Getenv("WORK"))
	ts.Check(err)
	*ts.Value("files").(*[]string) = files
}

func sameSettings(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 2, "same-settings A B")
	var c [2]config.Config
	for i := range c {
		b := config.Bind(&c[i])
		b.Load(args[i], []byte(ts.ReadFile(args[i])))
		ts.Check(b.Check())
	}
	if diff := cmp.Diff(c[0], c[1]); diff != "" {
		ts.Fatalf("the settings of %s (-) and %s (+) differ:\n%s", args[0], args[1], diff)
	}
}

// decode reads a JSON file with nothing behind its value.
func decode(ts *testscript.TestScript, file string) (v any) {
	d := json.NewDecoder(strings.NewReader(ts.ReadFile(file)))
	d.UseNumber()
	ts.Check(d.Decode(&v))
	if d.More() {
		ts.Fatalf("%s has more than one JSON value", file)
	}
	return v
}

func jsonValue(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 3, "json FILE KEY WANT")
	v := decode(ts, args[0])
	for key := range strings.SplitSeq(args[1], ".") {
		section, ok := v.(map[string]any)
		if v = section[key]; !ok || !reflect.ValueOf(section).MapIndex(reflect.ValueOf(key)).IsValid() {
			ts.Fatalf("%s has no %s", args[0], args[1])
		}
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	ts.Check(e.Encode(v))
	if got := strings.TrimSpace(text.String()); got != args[2] {
		ts.Fatalf("%s: %s is %s, want %s", args[0], args[1], got, args[2])
	}
}

func heldOut(ts *testscript.TestScript, neg bool, args []string) {
	usage(ts, neg, args, 1, "held-out RESULT")
	var loss, bits float64
	var tokens, bytes int64
	if _, err := fmt.Sscanf(ts.ReadFile("stdout"), "loss %g nats a token over %d tokens, %g bits per byte over %d bytes", &loss, &tokens, &bits, &bytes); err != nil {
		ts.Fatalf("eval printed %q: %v", ts.ReadFile("stdout"), err)
	}
	result := decode(ts, args[0]).(map[string]any)
	for key, got := range map[string]float64{"eval_loss": loss, "eval_bits_per_byte": bits} {
		want, err := result[key].(json.Number).Float64()
		ts.Check(err)
		if math.Abs(got-want) > 1e-3 || want == 0 {
			ts.Fatalf("eval says %v, %s of %s is %v", got, key, args[0], want)
		}
	}
}
