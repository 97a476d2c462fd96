package main

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/gofsdp/gofsdp/config"
)

// quickstartName stands for the built-in configuration where no file has that
// name.
const quickstartName = "quickstart"

//go:embed quickstart.yaml
var quickstart []byte

// configured are the flags of whoever takes a configuration.
type configured struct {
	File string `arg:"" name:"config" help:"Configuration file, or quickstart for the built-in one."`
	changed
}

// changed are the flags that change what a configuration says.
type changed struct {
	Set     []string `sep:"none" placeholder:"KEY=VALUE" help:"Set one key, such as train.lr=1e-3; may be repeated."`
	Cluster string   `placeholder:"FILE" help:"Take the sections scaling and run from this file instead."`
}

// spread are the flags of whoever spreads work over ranks; they stand for keys
// of the configuration. A nil one is not given.
type spread struct {
	Ranks    *int    `placeholder:"N" help:"Processes that train together (scaling.num_workers)."`
	Nodes    *int    `placeholder:"N" help:"Nodes that they are on (scaling.nodes)."`
	Mesh     *string `placeholder:"AxB" help:"Ranks across nodes and within one, such as 2x4 (scaling.sharding.mesh)."`
	Strategy *string `placeholder:"NAME" help:"What they shard: no_shard, shard_optimizer, shard_grad_op, full_shard, hybrid_shard or hybrid_full_shard (scaling.sharding.strategy)."`
}

// assignment is what a flag sets.
type assignment struct{ flag, text string }

// assignments returns what the flags set.
func (s spread) assignments() (list []assignment) {
	if s.Ranks != nil {
		list = append(list, assignment{"--ranks", fmt.Sprintf("scaling.num_workers=%d", *s.Ranks)})
	}
	if s.Nodes != nil {
		list = append(list, assignment{"--nodes", fmt.Sprintf("scaling.nodes=%d", *s.Nodes)})
	}
	if s.Mesh != nil {
		list = append(list, assignment{"--mesh", "scaling.sharding.mesh=" + *s.Mesh})
	}
	if s.Strategy != nil {
		list = append(list, assignment{"--strategy", "scaling.sharding.strategy=" + *s.Strategy})
	}
	return list
}

// load returns the configuration, with a command's own assignments, with all
// mistakes in one error.
func (c configured) load(a *app, assignments ...assignment) (*config.Config, *config.Binding, error) {
	var cfg config.Config
	b := config.Bind(&cfg)
	info, err := os.Stat(c.File)
	switch {
	case c.File == quickstartName && (err != nil || info.IsDir()):
		b.Load(quickstartName, quickstart)
	case err == nil:
		b.LoadFile(c.File)
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil, asUser(fmt.Errorf("there is no file %s; gofsdp init %s writes one with all defaults, and %s is a built-in configuration", c.File, c.File, quickstartName))
	default:
		return nil, nil, asUser(err)
	}
	if c.Cluster != "" {
		b.ReplaceFile(c.Cluster, config.Cluster...)
	}
	for _, s := range c.Set {
		b.Set(s)
	}
	for _, x := range assignments {
		b.SetBy(x.flag, x.text)
	}
	if err := b.Check(); err != nil {
		return nil, nil, asUser(err)
	}
	a.sources = b.Sources()
	return &cfg, b, nil
}
