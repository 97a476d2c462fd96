package main

import (
	"fmt"
	"os"

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
	if _, err := os.Lstat(c.File); err == nil {
		return asUser(fmt.Errorf("%s exists already; name another file", c.File))
	}
	if err := record.WriteFileAtomic(c.File, text, 0o644); err != nil {
		return asUser(err)
	}
	a.printf("wrote %s; set data.path in it, then: gofsdp train %s\n", c.File, c.File)
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
