package rules

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/gofsdp/gofsdp"

// part is a top-level package with all that is below it, unless that has an entry of its own.
type part struct {
	may []string // parts that it imports; what those may import, it may too
	why string   // the reason that is given where it imports another
}

// parts is the map of DESIGN.md, "Where things live". Imports point down. Tests may import any part.
var parts = map[string]part{
	"device":      {nil, "the compute seam is what everything else stands on"},
	"safetensors": {nil, "it is a file format, and knows no models"},
	"record":      {nil, "it knows neither tensors nor clusters, so that anything can be recorded"},
	"deploy":      {nil, "Kubernetes stays here, and here stays out of the rest: cmd hands it what the plan needs"},

	"model":      {[]string{"device"}, "a model is data and operations: it knows no ranks and no hardware"},
	"cpu":        {[]string{"device"}, "kernels know operations, and neither models nor ranks"},
	"cuda":       {[]string{"device"}, "kernels know operations, and neither models nor ranks"},
	"collective": {[]string{"device"}, "it moves bytes between ranks, and has no kernels"},
	"nccl":       {[]string{"collective", "cuda"}, "it is one implementation of collective"},
	"cuda/nvml":  {[]string{"record"}, "it tells facts of GPUs, and nothing that computes depends on them"},
	"cuda/sim":   {[]string{"cuda", "nccl", "collective", "cpu"}, "it stands in for what is below cuda and nccl"},

	"fsdp":       {[]string{"model", "collective", "device"}, "the plan is pure and reaches devices through the seams: it knows no CUDA"},
	"checkpoint": {[]string{"fsdp", "model", "collective", "safetensors", "record"}, "it stores layouts and names, and knows no training"},
	"data":       {[]string{"record"}, "packs are a function of data and seed: they know no model and no rank"},
	"train":      {[]string{"fsdp", "checkpoint", "data", "record"}, "the loop reaches hardware through the seams alone"},
	"launcher":   {[]string{"record"}, "it starts processes, and knows no tensors"},
	"ray":        {[]string{"launcher"}, "it is one way to place agents"},
	"config": {
		[]string{"train", "data", "model", "fsdp", "checkpoint", "launcher", "ray", "record", "nccl"},
		"it composes settings, those of nccl too, and chooses no implementation",
	},

	"bench":          {[]string{"config", "train", "cpu", "cuda", "nccl", "collective", "ray"}, "it measures everything but the command line"},
	"bench/scenario": {[]string{"bench"}, "it compares programs, which it starts as commands, ours too"},
	"bench/report":   {[]string{"bench/scenario"}, "it draws what was measured, and measures nothing"},
	"doctor":         {[]string{"cuda", "cuda/nvml", "record"}, "it says what a machine has, whatever is to run there"},
	"gpucheck":       {[]string{"bench/scenario", "cuda/nvml"}, "it takes GPUs from who calls it, so that tests run it on the simulator; the kernels' cases are a test binary's"},
	"cmd/gofsdp":     {[]string{"gpucheck", "bench/report", "bench/scenario", "config", "deploy", "doctor", "launcher", "train", "cpu", "cuda", "nccl", "ray"}, "the simulator is for tests"},

	"internal/rules":    {nil, "it reads the code as text"},
	"internal/golden":   {nil, "it reads golden files, for the tests of any part"},
	"internal/optest":   {[]string{"device"}, "it tests any implementation of the compute seam against the reference"},
	"internal/pairwise": {nil, "it chooses cases for the tests of any part"},
}

// testOnlyParts are imported by tests alone; the simulator also by what cmd/gofsdp has under its build tag.
var testOnlyParts = []string{"internal/golden", "internal/optest", "internal/pairwise", "internal/rules", "cuda/sim"}

// library is a module of others: which parts may import it, outside tests, and why no others.
type library struct {
	parts []string
	why   string
}

// libraries are the modules that this one requires; another one is a decision, which is noted here.
var libraries = map[string]library{
	"github.com/alecthomas/kong":        {[]string{"cmd/gofsdp"}, "the command line is parsed in one place"},
	"github.com/goccy/go-yaml":          {[]string{"config", "bench/scenario"}, "YAML is read strictly: configurations, and lists of what is compared"},
	"github.com/NVIDIA/go-nvml":         {[]string{"cuda/nvml"}, "the management library is asked in one place"},
	"golang.org/x/term":                 {[]string{"cmd/gofsdp"}, "only the command line knows terminals"},
	"golang.org/x/text":                 {[]string{"data"}, "only the tokenizer normalises text"},
	"google.golang.org/protobuf":        {[]string{"record", "launcher"}, "only TensorBoard's events and the control plane's messages are protobuf"},
	"google.golang.org/grpc":            {[]string{"launcher"}, "only the control plane is remote calls: tensors have transports of their own"},
	"gonum.org/v1/gonum":                {[]string{"bench", "bench/report"}, "statistics are for the bench and for tests: its products are ten times slower than ours"},
	"gonum.org/v1/plot":                 {[]string{"bench/report"}, "plots are drawn in one place"},
	"golang.org/x/sys":                  {[]string{"device", "cpu", "safetensors", "record", "data", "cuda", "nccl", "collective", "launcher", "checkpoint", "doctor", "cmd/gofsdp"}, "whatever knows no operating system stays portable"},
	"pgregory.net/rapid":                {nil, "it is for tests"},
	"go.uber.org/goleak":                {nil, "it is for tests"},
	"github.com/google/go-cmp":          {nil, "it is for tests, and panics by design"},
	"github.com/pmezard/go-difflib":     {nil, "it is for tests"},
	"github.com/cockroachdb/datadriven": {nil, "it is for tests"},
	"github.com/rogpeppe/go-internal":   {nil, "it is for tests"},
	"github.com/nlpodyssey/safetensors": {nil, "it is the witness that our own package is tested against"},
}

// cgoParts are where C may be.
var cgoParts = []string{"cpu", "cuda", "cuda/nvml", "cuda/sim", "nccl"}

func TestImportsPointDown(t *testing.T) {
	for _, f := range sourceFiles(t) {
		for _, imp := range f.imports {
			if why := forbidden(f, imp.path); why != "" {
				t.Errorf("%s:%d: %s imports %s: %s", f.path, imp.line, f.part(), imp.path, why)
			}
		}
	}
}

func TestEveryPartHasARule(t *testing.T) {
	for _, f := range sourceFiles(t) {
		if _, ok := parts[f.part()]; !ok {
			t.Errorf("%s: no rule says what %s may import, and why; add it to parts", f.path, f.part())
		}
	}
}

func TestNoRuleLeadsBackToItself(t *testing.T) {
	for name, p := range parts {
		for _, below := range p.may {
			if _, ok := parts[below]; !ok {
				t.Errorf("%s may import %s, which is no part", name, below)
			}
			if reach(below)[name] {
				t.Errorf("%s may import %s, which may import %s", name, below, name)
			}
		}
		if p.why == "" {
			t.Errorf("the rule of %s has no reason", name)
		}
	}
}

// TestTheRulesForbid shows the rules a few files that break them, and some that do not.
func TestTheRulesForbid(t *testing.T) {
	for _, c := range []struct {
		file, imports string // the file with its build tag behind it
		want          string // part of the reason, "" where it is allowed
	}{
		{"model/qwen.go", module + "/device", ""},
		{"model/qwen.go", module + "/fsdp", "knows no ranks"},
		{"model/qwen_test.go", module + "/cpu", ""},
		{"train/loop.go", module + "/device", ""},
		{"train/loop.go", module + "/cpu", "through the seams"},
		{"data/tokenizer/bpe.go", module + "/data/cache", ""},
		{"data/tokenizer/bpe.go", module + "/model", "know no model"},
		{"config/config.go", module + "/cpu", "chooses no implementation"},
		{"cuda/driver.go", module + "/cuda/sim", "tests alone"},
		{"cuda/sim/driver.go", module + "/cuda", ""},
		{"train/loop.go", module + "/internal/golden", "tests alone"},
		{"cmd/gofsdp/train.go", module + "/cpu", ""},
		{"cmd/gofsdp/gpu.go", module + "/cuda/sim", "tests alone"},
		{"cmd/gofsdp/gpu_sim.go,sim", module + "/cuda/sim", ""},
		{"cmd/gofsdp/gpu_sim.go,sim", module + "/internal/golden", "tests alone"},
		{"train/loop.go,sim", module + "/cuda/sim", "tests alone"},
		{"config/config.go", module + "/nccl", ""},
		{"cmd/gofsdp/train.go", "github.com/alecthomas/kong", ""},
		{"train/loop.go", "github.com/alecthomas/kong", "in one place"},
		{"train/loop.go", "github.com/google/go-cmp/cmp", "for tests"},
		{"train/loop_test.go", "github.com/google/go-cmp/cmp", ""},
		{"train/loop.go", "github.com/google/go-cmpx", "no rule"},
		{"train/loop_test.go", "example.com/new", "no rule"},
		{"train/loop.go", "net/http", ""},
		{"cpu/pool.go", "C", ""},
		{"device/host.go", "C", "without a C compiler"},
		{"newpart/x.go", module + "/device", "no rule"},
	} {
		file, tag, _ := strings.Cut(c.file, ",")
		got := forbidden(sourceFile{path: file, sim: tag == "sim"}, c.imports)
		if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s importing %s: %q, want %q", c.file, c.imports, got, c.want)
		}
	}
}

// forbidden says why a file may not import a path, "" where it may.
func forbidden(f sourceFile, path string) string {
	if path == "C" {
		if slices.Contains(cgoParts, f.part()) {
			return ""
		}
		return "C is for " + strings.Join(cgoParts, ", ") + ": everything else builds without a C compiler"
	}
	if path == module || strings.HasPrefix(path, module+"/") {
		target := partOf(strings.TrimPrefix(strings.TrimPrefix(path, module), "/"))
		rule, known := parts[f.part()]
		switch {
		case !known:
			return "no rule says what it may import"
		case f.isTest() || target == f.part():
			return ""
		case f.sim && f.part() == "cmd/gofsdp" && target == "cuda/sim":
			return "" // a program for tests, which no user gets
		case slices.Contains(testOnlyParts, target):
			return target + " is for tests alone"
		case !reach(f.part())[target]:
			below := slices.Sorted(maps.Keys(reach(f.part())))
			return fmt.Sprintf("%s; it may import %s", rule.why, strings.Join(below, ", "))
		}
		return ""
	}
	if first, _, _ := strings.Cut(path, "/"); !strings.Contains(first, ".") {
		return "" // the standard library
	}
	for name, lib := range libraries {
		if path != name && !strings.HasPrefix(path, name+"/") {
			continue
		}
		if f.isTest() || slices.Contains(lib.parts, f.part()) || slices.Contains(testOnlyParts, f.part()) {
			return ""
		}
		return lib.why
	}
	return "no rule allows this library; add it to libraries, with its reason"
}

// reach is the set of parts that a part may import, directly or through others.
func reach(name string) map[string]bool {
	found := map[string]bool{}
	var visit func(string)
	visit = func(name string) {
		for _, below := range parts[name].may {
			if !found[below] {
				found[below] = true
				visit(below)
			}
		}
	}
	visit(name)
	return found
}

// partOf returns the part that a folder belongs to: the longest entry of parts that is it or is above
// it, else its first two names below cmd and internal, and its first elsewhere.
func partOf(folder string) string {
	best := ""
	for name := range parts {
		if (folder == name || strings.HasPrefix(folder, name+"/")) && len(name) > len(best) {
			best = name
		}
	}
	if best != "" {
		return best
	}
	names := strings.SplitN(folder, "/", 3)
	if len(names) > 1 && (names[0] == "cmd" || names[0] == "internal") {
		return names[0] + "/" + names[1]
	}
	return names[0]
}
