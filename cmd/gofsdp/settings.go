package main

import (
	_ "embed"
	"fmt"
	"os"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/cpu"
	"github.com/gofsdp/gofsdp/device"
)

// quickstartName stands for the built-in configuration where no file has that
// name.
const quickstartName = "quickstart"

//go:embed quickstart.yaml
var quickstart []byte

// configured are the flags of whoever takes a configuration.
type configured struct {
	File    string   `arg:"" name:"config" help:"Configuration file, or quickstart for the built-in one."`
	Set     []string `sep:"none" placeholder:"KEY=VALUE" help:"Set one key, such as train.lr=1e-3; may be repeated."`
	Cluster string   `placeholder:"FILE" help:"Take the sections scaling and run from this file instead."`
}

// load returns the configuration with all mistakes in one error.
func (c configured) load() (*config.Config, *config.Binding, error) {
	var cfg config.Config
	b := config.Bind(&cfg)
	if _, err := os.Stat(c.File); err != nil && c.File == quickstartName {
		b.Load(quickstartName, quickstart)
	} else {
		b.LoadFile(c.File)
	}
	if c.Cluster != "" {
		b.ReplaceFile(c.Cluster, config.Cluster...)
	}
	for _, s := range c.Set {
		b.Set(s)
	}
	if err := b.Check(); err != nil {
		return nil, nil, asUser(err)
	}
	return &cfg, b, nil
}

// openDevice opens the device that a configuration asks for. It is the only
// place where one is chosen.
func openDevice(s config.Scaling) (device.Device, error) {
	o := cpu.Options{Threads: s.Threads}
	if s.ISA != "auto" {
		o.ISA = s.ISA
	}
	dev, err := cpu.New(o)
	if err != nil {
		return nil, asUser(fmt.Errorf("scaling: %w", err))
	}
	return dev, nil
}
