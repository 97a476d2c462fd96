package config

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/gofsdp/gofsdp/data"
	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/launcher"
	"github.com/gofsdp/gofsdp/nccl"
	"github.com/gofsdp/gofsdp/train"
)

// Config is the whole configuration of a run. Model, Data and Train describe
// the work; Scaling and Run say where and how it runs, and --cluster replaces
// those two alone.
type Config struct {
	Model   string         `yaml:"model" default:"tiny" help:"A directory with a Hugging Face config.json; a built-in shape, which needs no download (tiny, smollm2-135m, qwen3-0.6b, qwen2.5-0.5b, -1.5b, -3b, -7b); or a Hub name such as Qwen/Qwen2.5-1.5B, found in the local Hugging Face cache."`
	Data    data.Settings  `yaml:"data" help:"The text, and how it is cut into sequences."`
	Train   train.Settings `yaml:"train" help:"The training itself."`
	Scaling Scaling        `yaml:"scaling" help:"What computes."`
	Run     Run            `yaml:"run" help:"Where the run leaves its files."`
}

// Cluster names the sections that --cluster replaces.
var Cluster = []string{"scaling", "run"}

// Scaling says what computes. Its name is Ray Train's.
type Scaling struct {
	Workers   int           `yaml:"num_workers" default:"1" min:"1" max:"65536" help:"Ranks: processes that train together, each with a part of every batch."`
	Nodes     int           `yaml:"nodes" default:"1" min:"1" max:"65536" help:"Nodes that the ranks are on, the same number on each; all are processes of this machine, with an agent for each node."`
	Sharding  fsdp.Sharding `yaml:"sharding" help:"What several ranks share, and how."`
	Device    string        `yaml:"device" default:"auto" enum:"auto,cpu,cuda,sim" help:"What computes: the cpu; cuda, an NVIDIA GPU for each rank, its node's by the rank's place on it; or sim, simulated GPUs, which are for tests and only in a program that was built with them (go build -tags sim). auto takes GPUs where every rank's machine has one for it, CPUs where none has, and refuses a mixture."`
	Graphs    string        `yaml:"graphs" default:"auto" enum:"auto,on,off" help:"Hand a GPU the operations between two waits as one CUDA graph, which costs the host less than one by one; auto does so on GPUs, and on refuses to compute on anything else."`
	NCCL      nccl.Settings `yaml:"nccl" help:"How ranks on GPUs reach each other, which they do by NVIDIA's NCCL."`
	Transport string        `yaml:"transport" default:"auto" enum:"auto,shared,tcp" help:"How ranks of one node reach each other on CPUs: by shared memory or over TCP; auto shares memory where the system has it, which is Linux. Ranks of different nodes always use TCP."`
	Threads   int           `yaml:"threads" default:"0" min:"0" max:"1024" help:"Threads of each rank that compute; 0 divides all cores that the process may use among the ranks. The number changes no result."`
	BindCores bool          `yaml:"bind_cores" default:"true" help:"Give each rank cores of its own where the threads of a node's ranks are as many as its cores. Turn it off where other programs compute, too."`
	ISA       string        `yaml:"isa" default:"auto" enum:"auto,generic,avx2,avx512,avx512bf16" help:"Instruction set of the kernels; auto takes the best of the machine."`
}

// Run says where a run leaves its files. Its names are Ray Train's.
type Run struct {
	Name        string `yaml:"name" default:"" help:"Name of the run's directory, which must not exist; empty takes a new numbered one."`
	StoragePath string `yaml:"storage_path" default:"runs" help:"Directory in which the run's directory is made."`
	Trace       string `yaml:"trace" default:"" help:"Steps of which the run's directory gets a trace of all operations, trace.json, to be opened in Perfetto: FIRST-LAST, or a number of steps, which begin with the third; empty takes none."`

	Processes launcher.Settings `yaml:"processes" help:"How patient several ranks are with each other."`
}

// Check returns what is wrong between sections.
func (c Config) Check() []error {
	var errs []error
	if c.Model == "" {
		errs = append(errs, fmt.Errorf("model: is empty; name a directory, a built-in shape or a Hub name"))
	}
	return errs
}

// Check returns what is wrong with the mesh of ranks and their nodes.
func (s Scaling) Check() []error {
	if s.Nodes < 1 || s.Workers%s.Nodes != 0 {
		return []error{fmt.Errorf("scaling.nodes: %d ranks cannot be divided among %d nodes", s.Workers, s.Nodes)}
	}
	var o fsdp.Options
	if err := s.Layout().Over(s.Workers, &o); err != nil {
		return []error{fmt.Errorf("scaling.sharding.%w", err)}
	}
	// Then all groups have as many ranks on each of their nodes.
	if row, node := o.Mesh.Along(fsdp.Within), s.Workers/s.Nodes; row%node != 0 && node%row != 0 {
		return []error{fmt.Errorf("scaling.sharding.mesh: %v has rows of %d ranks, and each of %d nodes has %d: a node must have whole rows, or a row whole nodes", o.Mesh, row, s.Nodes, node)}
	}
	return nil
}

// Layout returns how the ranks share the work, with their mesh where there are
// several nodes: unless another one is given, each has a row.
func (s Scaling) Layout() fsdp.Sharding {
	spread := s.Sharding
	if spread.Mesh == "" && s.Nodes > 1 {
		spread.Mesh = fsdp.Mesh{Across: s.Nodes, Within: s.Workers / s.Nodes}.String()
	}
	return spread
}

// Check returns what is wrong with the place of a run.
func (r Run) Check() []error {
	var errs []error
	switch {
	case r.StoragePath == "":
		errs = append(errs, fmt.Errorf("run.storage_path: is empty; name a directory, such as runs"))
	case strings.Contains(r.StoragePath, "://"):
		errs = append(errs, fmt.Errorf("run.storage_path: %s is no directory of this machine", r.StoragePath))
	}
	if r.Name == "." || r.Name == ".." || strings.ContainsAny(r.Name, "/\\\x00") {
		errs = append(errs, fmt.Errorf("run.name: %q is not the name of a single directory; its parents go into run.storage_path", r.Name))
	}
	if _, err := train.ParseWindow(r.Trace); err != nil {
		errs = append(errs, fmt.Errorf("run.trace: %w", err))
	}
	return errs
}

// Tree returns all values as nested maps, by their keys; durations as texts, such
// as "10s".
func (c Config) Tree() map[string]any { return tree(reflect.ValueOf(c)) }

func tree(section reflect.Value) map[string]any {
	values := map[string]any{}
	for i := range section.NumField() {
		key, v := section.Type().Field(i).Tag.Get("yaml"), section.Field(i)
		switch {
		case v.Kind() == reflect.Struct:
			values[key] = tree(v)
		case v.Kind() == reflect.Slice && v.IsNil():
			values[key] = []string{}
		case kindOf(v.Type()) == kind(durationKind{}):
			values[key] = durationKind{}.print(v)
		default:
			values[key] = v.Interface()
		}
	}
	return values
}
