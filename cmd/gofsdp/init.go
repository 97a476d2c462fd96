package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/record"
)

type initCommand struct {
	File string `arg:"" default:"gofsdp.yaml" help:"Where to write it; - is standard output."`
}

// Run writes the template.
func (c *initCommand) Run(a *app) error {
	text := config.Bind(new(config.Config)).Template()
	if c.File == "-" {
		_, err := a.out.Write(text)
		return err
	}
	if err := vacant(c.File); err != nil {
		return asUser(err)
	}
	if err := record.WriteFileAtomic(c.File, text, 0o644); err != nil {
		return asUser(err)
	}
	a.printf("wrote %s; set data.path in it, then: gofsdp train %s\n", c.File, c.File)
	return nil
}

// vacant returns an error where no new file can be made at path.
func vacant(path string) error {
	if _, err := os.Lstat(path); err == nil {
		return fmt.Errorf("%s exists already; name another file", path)
	}
	dir := filepath.Dir(path)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return fmt.Errorf("%s cannot be written: there is no directory %s", path, dir)
	}
	return nil
}

type configCommand struct {
	Schema schemaCommand `cmd:"" help:"Print the JSON Schema of configurations, for editors."`
}

type schemaCommand struct{}

// Run prints the schema.
func (schemaCommand) Run(a *app) error {
	_, err := a.out.Write(config.Bind(new(config.Config)).JSONSchema())
	return err
}
