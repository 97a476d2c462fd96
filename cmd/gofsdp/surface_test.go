package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
	"github.com/google/go-cmp/cmp"

	"github.com/gofsdp/gofsdp/config"
)

const surfaceFile = "testdata/surface.txt"

// Users' scripts and files depend on every command, flag and key, and on the
// defaults: whoever changes one does it knowingly.
func TestTheCommandLineAndTheConfigurationAreAsFrozen(t *testing.T) {
	got := surface()
	if *rewrite {
		if err := os.WriteFile(surfaceFile, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(surfaceFile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("flags or keys have changed; where that is wanted, renew %s by\n\tgo test ./cmd/gofsdp -rewrite\nand say in CHANGELOG.md what users have to do:\n%s", surfaceFile, diff)
	}
}

// surface lists what users can write: a command, argument, flag or key a line,
// with its default and its choices.
func surface() string {
	var out strings.Builder
	value := func(v *kong.Value) {
		if v.Default != "" {
			fmt.Fprintf(&out, " = %s", v.Default)
		}
		if v.Enum != "" {
			fmt.Fprintf(&out, " of %s", v.Enum)
		}
		out.WriteByte('\n')
	}
	var walk func(n *kong.Node)
	walk = func(n *kong.Node) {
		if n.Leaf() && n.Type == kong.CommandNode {
			fmt.Fprintf(&out, "command %s\n", strings.TrimPrefix(n.FullPath(), "gofsdp "))
			for _, arg := range n.Positional {
				fmt.Fprintf(&out, "  %s", arg.Summary())
				value(arg)
			}
			for _, flag := range n.Flags {
				fmt.Fprintf(&out, "  --%s", flag.Name)
				if flag.Short != 0 {
					fmt.Fprintf(&out, " -%c", flag.Short)
				}
				value(flag.Value)
			}
		}
		for _, child := range n.Children {
			walk(child)
		}
	}
	walk(newParser().Model.Node)
	b := config.Bind(new(config.Config))
	fmt.Fprintf(&out, "\nconfiguration\n")
	for line := range strings.Lines(string(b.Marshal())) {
		if strings.TrimSpace(line) != "" {
			fmt.Fprintf(&out, "  %s", line)
		}
	}
	return out.String()
}

func TestHelpIsThereForEachFlagAndArgument(t *testing.T) {
	var walk func(n *kong.Node)
	walk = func(n *kong.Node) {
		if n.Help == "" {
			t.Errorf("%s has no help", n.FullPath())
		}
		for _, v := range n.Positional {
			if v.Help == "" {
				t.Errorf("%s: argument %s has no help", n.FullPath(), v.Name)
			}
		}
		for _, f := range n.Flags {
			if f.Help == "" {
				t.Errorf("%s: flag --%s has no help", n.FullPath(), f.Name)
			}
		}
		for _, child := range n.Children {
			walk(child)
		}
	}
	walk(newParser().Model.Node)
}
