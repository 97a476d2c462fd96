package main

import (
	"github.com/gofsdp/gofsdp/record"
)

type versionCommand struct{}

// Run prints which build this is.
func (versionCommand) Run(a *app) error {
	b := record.ThisBuild()
	a.printf("gofsdp %s\ncommit %s\nbuilt with %s\n", b.Version, b.Commit, b.Go)
	return nil
}
