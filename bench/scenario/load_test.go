package scenario

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEveryScenarioFileIsReadAndItsProgramsAreThere(t *testing.T) {
	files, err := filepath.Glob("../scenarios/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d scenario files: %v", len(files), err)
	}
	for _, path := range files {
		s, err := Load(path)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, side := range s.Sides {
			if program := side.Command[0]; program != "gofsdp" && program != "python" {
				t.Errorf("%s: side %s runs %s, which is neither gofsdp nor python", path, side.Name, program)
			}
			for _, arg := range side.Command {
				if !strings.HasSuffix(arg, ".py") {
					continue
				}
				if _, err := os.Stat(filepath.Join("../..", arg)); err != nil {
					t.Errorf("%s: side %s: %v", path, side.Name, err)
				}
			}
		}
		peers := slices.ContainsFunc(s.Sides, func(o Side) bool { return o.Command[0] == "python" })
		if peers && s.Rounds < 5 {
			t.Errorf("%s has %d rounds; a peer is judged by at least 5 pairs", path, s.Rounds)
		}
		if !peers && s.Rounds*s.Work.Timed < 5 && s.Name != "short" {
			t.Errorf("%s has %d pairs, want at least 5", path, s.Rounds*s.Work.Timed)
		}
	}
}

const wholeFile = `
title: A step
compared: >
  One thing
  with another.
counted: Seconds.
fair: "Same: work."
rounds: 5
work:
  kind: steps
  model: tiny
  precision: f32
  length: 128
  sequences: 2
  ranks: 2
  threads: 1
  warm: 1
  timed: 3
  cases:
    - {name: plain, strategy: full_shard}
    - name: again
      strategy: no_shard
      ranks: 1
      mesh: 1x1
      micro_batches: 4
      recompute: block
sides:
  - name: gofsdp
    command: [gofsdp, bench, side]
  - name: peer # of another make
    command: [python, peer.py, "--compile"]
ratios:
  - of: gofsdp/*
    against: peer/*
    by: speed
    firm: 1.5
    aim: 1.6
    why: it must
  - {of: gofsdp/plain, against: peer/plain, by: memory, firm: 0.5, aim: 1e-1}
shares:
  - of: gofsdp/again
    firm: 0.8
agree: 1e-3
`

func TestAScenarioIsReadWhole(t *testing.T) {
	got, err := Parse("bench/scenarios/step.yaml", []byte(wholeFile))
	if err != nil {
		t.Fatal(err)
	}
	want := &Scenario{
		Name: "step", Title: "A step", Compared: "One thing with another.", Counted: "Seconds.", Fair: "Same: work.", Rounds: 5,
		Work: Work{
			Kind: Steps, Model: "tiny", Precision: "f32", Length: 128, Sequences: 2, Ranks: 2, Threads: 1, Warm: 1, Timed: 3,
			Cases: []StepCase{
				{Name: "plain", Strategy: "full_shard"},
				{Name: "again", Strategy: "no_shard", Ranks: 1, Mesh: "1x1", MicroBatches: 4, Recompute: "block"},
			},
		},
		Sides: []Side{
			{Name: "gofsdp", Command: []string{"gofsdp", "bench", "side"}},
			{Name: "peer", Command: []string{"python", "peer.py", "--compile"}},
		},
		Ratios: []Ratio{
			{Of: "gofsdp/*", Against: "peer/*", By: BySpeed, Firm: 1.5, Aim: 1.6, Why: "it must"},
			{Of: "gofsdp/plain", Against: "peer/plain", By: ByMemory, Firm: 0.5, Aim: 0.1},
		},
		Shares: []Share{{Of: "gofsdp/again", Firm: 0.8}},
		Agree:  1e-3,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want (-) and got (+):\n%s", diff)
	}
}

// TestEveryMistakeIsToldWithItsPlace changes the whole file in one place.
func TestEveryMistakeIsToldWithItsPlace(t *testing.T) {
	for what, c := range map[string]struct{ old, new, want string }{
		"an unknown key":                 {"\nrounds: 5", "\nround: 5", "step.yaml:8: round: is no key here; there are agree, compared, counted,"},
		"a key twice":                    {"  warm: 1\n", "  warm: 1\n  warm: 2\n", "step.yaml:17: work.warm: is there twice, also in line 18; keep one"},
		"a text where a number goes":     {"rounds: 5", "rounds: five", `step.yaml:8: rounds: is "five"; write a whole number`},
		"a fraction of a round":          {"rounds: 5", "rounds: 2.5", `step.yaml:8: rounds: is "2.5"; write a whole number`},
		"a quoted number":                {"agree: 1e-3", `agree: "1e-3"`, `step.yaml:43: agree: is "1e-3"; write a number`},
		"a number where a text goes":     {"title: A step", "title: 5", "step.yaml:2: title: is the number 5; put it in quotes"},
		"a list where a section goes":    {"shares:\n  - of: gofsdp/again\n    firm: 0.8\n", "shares: [1]\n", `step.yaml:40: shares[0]: is "1"; write keys with values`},
		"an empty list":                  {"command: [gofsdp, bench, side]", "command:", "step.yaml:29: sides[0].command: is empty; write a list"},
		"no YAML":                        {"rounds: 5", "rounds: [5", "step.yaml:"},
		"no title":                       {"title: A step\n", "", "step.yaml:1: title: is missing; say what is measured"},
		"no rounds":                      {"rounds: 5\n", "", "step.yaml:1: rounds: is 0; every side runs once in a round"},
		"rounds below one":               {"rounds: 5", "rounds: -1", "step.yaml:8: rounds: is -1;"},
		"a bad kind":                     {"kind: steps", "kind: step", `step.yaml:10: work.kind: is "step"; write one of steps, collectives, operations, startup`},
		"an unknown model":               {"model: tiny", "model: tini", "step.yaml:11: work.model: "},
		"a bad precision":                {"precision: f32", "precision: fp32", `step.yaml:12: work.precision: is "fp32"; write f32 or bf16`},
		"no ranks":                       {"  ranks: 2\n", "", "step.yaml:9: work.ranks: is 0; for work of kind steps write a number from 1 to 64"},
		"sizes of no collective":         {"  threads: 1\n", "  threads: 1\n  sizes: [1]\n", "step.yaml:17: work.sizes: is not for work of kind steps; remove it"},
		"cases of no steps":              {"kind: steps", "kind: operations", "step.yaml:19: work.cases: is not for work of kind operations; remove it"},
		"two cases of one name":          {"name: again", "name: plain", `step.yaml:21: work.cases[1].name: is "plain" a second time; give each case a name of its own`},
		"a case of too many ranks":       {"ranks: 1\n", "ranks: 3\n", "work.cases[1].ranks: is 3; write at most the 2 of work.ranks"},
		"a mesh of other ranks":          {"mesh: 1x1", "mesh: 1x2", "step.yaml:24: work.cases[1].mesh: is 1x2, which has 2 ranks; the case has 1"},
		"a bad strategy":                 {"strategy: no_shard", "strategy: none", `step.yaml:22: work.cases[1].strategy: is "none"; write one of [no_shard `},
		"a bad recomputation":            {"recompute: block", "recompute: all", `step.yaml:26: work.cases[1].recompute: is "all"; write one of [none selective block]`},
		"two sides of one name":          {"name: peer", "name: gofsdp", `step.yaml:30: sides[1].name: is "gofsdp" a second time; give each side a name of its own`},
		"a marker of no start-up":        {"command: [gofsdp, bench, side]", "command: [gofsdp]\n    marker: x", "step.yaml:30: sides[0].marker: is for work of kind startup alone; remove it"},
		"a ratio of an unknown side":     {"of: gofsdp/*", "of: gofdsp/*", `step.yaml:33: ratios[0].of: names the side "gofdsp", and there are only: gofsdp, peer`},
		"a ratio of an unknown case":     {"against: peer/plain", "against: peer/plane", `step.yaml:39: ratios[1].against: names the case "plane", and there are only: plain, again`},
		"a ratio of a side of two cases": {"of: gofsdp/plain", "of: gofsdp", "step.yaml:39: ratios[1].of: names a side that has several cases; write gofsdp/CASE"},
		"a ratio with itself":            {"against: peer/plain", "against: gofsdp/plain", "step.yaml:39: ratios[1].against: is what it is compared with"},
		"one against several":            {"of: gofsdp/*", "of: gofsdp/plain", `step.yaml:34: ratios[0].against: stands for several cases, and "of" for one`},
		"a ratio by nothing known":       {"by: speed", "by: time", `step.yaml:35: ratios[0].by: is "time"; write speed or memory`},
		"an aim below the firm target":   {"aim: 1.6", "aim: 1.4", "step.yaml:37: ratios[0].aim: is 1.4, no better than the firm target of 1.5"},
		"an aim above that of memory":    {"aim: 1e-1", "aim: 0.6", "step.yaml:39: ratios[1].aim: is 0.6, no better than the firm target of 0.5"},
		"an aim alone":                   {"    firm: 1.5\n", "", "step.yaml:36: ratios[0].aim: is a target beyond the firm one, which is missing; write firm"},
		"a share of an unknown side":     {"of: gofsdp/again", "of: other", `step.yaml:41: shares[0].of: names the side "other"`},
		"a negative agreement":           {"agree: 1e-3", "agree: -1", "step.yaml:43: agree: is -1; it is the greatest relative difference"},
	} {
		if strings.Count(wholeFile, c.old) < 1 {
			t.Fatalf("%s: the file has no %q", what, c.old)
		}
		_, err := Parse("step.yaml", []byte(strings.Replace(wholeFile, c.old, c.new, 1)))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is\n  %v\nwant\n  %s", what, err, c.want)
		}
	}
}

func TestAllMistakesOfAFileAreToldAtOnce(t *testing.T) {
	_, err := Parse("x.yaml", []byte("title: X\nrounds: 0\nwork: {kind: collectives, sizes: [0, 4, 4], ranks: 1, threads: 1, timed: 1, model: tiny}\nratios: [{of: a, against: b, by: x}]\n"))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"compared: is missing", "counted: is missing", "fair: is missing", "rounds: is 0", "sizes[0]", "sizes[2]", "sides: is empty", "ratios[0].of", "ratios[0].against", "ratios[0].by"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in\n%v", want, err)
		}
	}
	if _, err := Parse("x.yaml", []byte("a: 1\nb: 2\ntitle: [x]\n")); err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("of three mistakes of form it says %v", err)
	}
	for _, text := range []string{"", "# nothing\n", "- a\n", "x", "---\na: 1\n---\nb: 1\n", "{[", "\x00"} {
		if _, err := Parse("x.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), "x.yaml:") {
			t.Errorf("of %q it says %v", text, err)
		}
	}
}

func TestOnlyTheSidesThatAreNamedStay(t *testing.T) {
	s, err := Parse("step.yaml", []byte(wholeFile))
	if err != nil {
		t.Fatal(err)
	}
	s.Only([]string{"gofsdp"})
	if len(s.Sides) != 1 || s.Sides[0].Name != "gofsdp" || len(s.Ratios) != 0 || len(s.Shares) != 1 {
		t.Errorf("there are sides %v, ratios %v, shares %v", s.Sides, s.Ratios, s.Shares)
	}
	s.Only([]string{"peer"})
	if len(s.Sides)+len(s.Shares) != 0 {
		t.Errorf("there are sides %v, shares %v", s.Sides, s.Shares)
	}
}
