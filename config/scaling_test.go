package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/gofsdp/gofsdp/config"
	"github.com/gofsdp/gofsdp/fsdp"
)

func TestNodesHaveEvenPartsOfTheMesh(t *testing.T) {
	for what, x := range map[string]struct {
		ranks, nodes int
		mesh         string
		want         string // the mesh that comes of it, or the mistake
	}{
		"one node":                        {4, 1, "", "1x4"},
		"a row for each node":             {4, 2, "", "2x2"},
		"one rank on each node":           {3, 3, "", "3x1"},
		"a row over two nodes":            {8, 4, "2x4", "2x4"},
		"two rows on each node":           {8, 2, "4x2", "4x2"},
		"columns of one rank":             {4, 2, "4x1", "4x1"},
		"more nodes than ranks":           {2, 4, "", "scaling.nodes: 2 ranks cannot be divided among 4 nodes"},
		"another mesh than ranks":         {4, 2, "2x4", "scaling.sharding.mesh: 2x4 has 8 ranks, the run has 4"},
		"a node with a row and a half":    {12, 2, "3x4", "scaling.sharding.mesh: 3x4 has rows of 4 ranks, and each of 2 nodes has 6: a node must have whole rows, or a row whole nodes"},
		"a row of a node and half of one": {12, 3, "2x6", "2x6 has rows of 6 ranks, and each of 3 nodes has 4"},
	} {
		s := config.Scaling{Workers: x.ranks, Nodes: x.nodes, Sharding: fsdp.Sharding{Mesh: x.mesh}}
		got := ""
		for _, err := range s.Check() {
			got += err.Error()
		}
		if got == "" {
			var o fsdp.Options
			if err := s.Layout().Over(x.ranks, &o); err != nil {
				got = err.Error()
			}
			got += o.Mesh.String()
		}
		if !strings.Contains(got, x.want) {
			t.Errorf("%s: %s, want: %s", what, got, x.want)
		}
	}
}

func TestTheTreeHoldsWhatAReaderOfJSONUnderstands(t *testing.T) {
	var c config.Config
	config.Bind(&c)
	c.Run.Processes.Deadline = 90 * time.Second
	var walk func(path string, v any)
	walk = func(path string, v any) {
		if m, ok := v.(map[string]any); ok {
			for k, x := range m {
				walk(path+"."+k, x)
			}
		} else if _, ok := v.(time.Duration); ok {
			t.Errorf("%s is a number of nanoseconds", path)
		}
	}
	tree := c.Tree()
	walk("", tree)
	if got := tree["run"].(map[string]any)["processes"].(map[string]any)["deadline"]; got != "1m30s" {
		t.Errorf("the deadline is %v", got)
	}
}
