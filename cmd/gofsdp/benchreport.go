package main

import (
	"errors"
	"fmt"

	"github.com/gofsdp/gofsdp/bench/report"
)

type benchReportCommand struct {
	Dir    string `arg:"" optional:"" default:"bench/results" help:"Results of one machine, as gofsdp bench run writes them, or a directory of such."`
	Readme string `placeholder:"FILE" help:"Put the summary of the one set into this file, too, between the lines <!-- bench:begin --> and <!-- bench:end -->."`
}

// Run writes the pages and charts of all sets.
func (c *benchReportCommand) Run(a *app) error {
	sets, err := report.Sets(c.Dir)
	if err != nil {
		return asUser(err)
	}
	if c.Readme != "" && len(sets) != 1 {
		return asUser(fmt.Errorf("--readme takes one set, and %s has %d: name the directory of one", c.Dir, len(sets)))
	}
	for _, s := range sets {
		files, err := s.Write()
		if err != nil {
			return asUser(err)
		}
		a.printf("%s\n", s.Summary())
		for _, file := range files {
			a.printf("wrote %s\n", file)
		}
	}
	if c.Readme == "" {
		return nil
	}
	if err := sets[0].Splice(c.Readme); err != nil {
		return asUser(err)
	}
	a.printf("wrote %s\n", c.Readme)
	return nil
}

type benchCompareCommand struct {
	Old string `arg:"" help:"A result file, or a directory of them, from before."`
	New string `arg:"" help:"The same from after."`
}

// Help says what is compared, and what the exit code says.
func (benchCompareCommand) Help() string {
	return "Ratios and shares of the same scenario are compared, and never seconds, which change with the machine's day. " +
		"What differs by at least 1 % and by more than chance (exact Mann-Whitney test over the rounds, adjusted for the number of figures, p at most 0.05) is called slower or faster; " +
		"of memory, slower means more. The exit code is 1 if anything has become slower.\n\n" +
		"With five rounds a side one change can be told from chance only among six figures, and one of 5 % with 2 % of noise then six times of ten; " +
		"with fifteen rounds always, among many."
}

// Run prints what has changed. It fails where anything has become slower.
func (c *benchCompareCommand) Run(a *app) error {
	older, err := report.ReadSet(c.Old)
	newer, err2 := report.ReadSet(c.New)
	if err := errors.Join(err, err2); err != nil {
		return asUser(err)
	}
	compared := report.Compare(older, newer)
	for _, w := range compared.Warnings {
		a.say("gofsdp: warning: %s", w)
	}
	a.printf("%s", compared.Table())
	switch n := compared.Worse(); n {
	case 0:
		return nil
	case 1:
		return errors.New("one figure has become worse")
	default:
		return fmt.Errorf("%d figures have become worse", n)
	}
}
