package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestTheBundlesScriptFindsItsProgramFromAnywhere runs tools/gpucheck/run, with a
// program beside it that tells what it is given.
func TestTheBundlesScriptFindsItsProgramFromAnywhere(t *testing.T) {
	bundle, elsewhere := t.TempDir(), t.TempDir()
	script, err := os.ReadFile("../../tools/gpucheck/run")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"run": string(script), "gofsdp": "#!/bin/sh\necho \"$*\"\n"} {
		if err := os.WriteFile(filepath.Join(bundle, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(elsewhere, "check")
	if err := os.Symlink(filepath.Join(bundle, "run"), link); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		program string
		args    []string
		out     string // the variable
		want    string
	}{
		"from another folder":     {filepath.Join(bundle, "run"), nil, "", "gpu-check --out gpu-check"},
		"by a link":               {link, []string{"there"}, "", "gpu-check --out there"},
		"by the variable":         {link, []string{"--verbose"}, "here", "gpu-check --out here --verbose"},
		"a folder without a name": {link, []string{"", "--verbose"}, "", "gpu-check --out gpu-check --verbose"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("sh", append([]string{c.program}, c.args...)...)
			cmd.Dir, cmd.Env = elsewhere, []string{"PATH=" + os.Getenv("PATH"), "OUT=" + c.out}
			if said, err := cmd.CombinedOutput(); err != nil || string(said) != c.want+"\n" {
				t.Errorf("%q, %v, want %q", said, err, c.want)
			}
		})
	}
}
