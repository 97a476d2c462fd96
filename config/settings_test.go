package config_test

import (
	"fmt"
	"time"
)

// run is a configuration as the real one is composed: sections that packages own, one of them nested.
type run struct {
	Model   modelSettings   `yaml:"model" help:"What is trained."`
	Data    dataSettings    `yaml:"data" help:"What it is trained on."`
	Train   trainSettings   `yaml:"train"`
	Scaling scalingSettings `yaml:"scaling" help:"On how many devices."`
	Run     runSettings     `yaml:"run" help:"Where the run is kept and what happens when it fails, in the words that Ray Train has for these things."`
}

// finding is an error of a Check method, which tests tell from one of loading by its type.
type finding string

func (f finding) Error() string { return string(f) }

type modelSettings struct {
	Path    string `yaml:"path" default:"tiny" help:"A directory, a built-in shape or a name on the Hub."`
	Dropout bool   `yaml:"dropout" help:"Whether to drop."`
	Cached  int    `yaml:"-"` // no setting: of whoever owns the section
}

type dataSettings struct {
	Paths          []string `yaml:"paths" default:"[]" help:"Texts."`
	Include        []string `yaml:"include" default:"*.txt,*.md" help:"Patterns of the files that are read in a directory."`
	Stages         []string `yaml:"stages" default:"train" enum:"train,eval" help:"Parts."`
	SequenceLength int      `yaml:"sequence_length" default:"512" min:"1" max:"1048576" help:"Tokens in a pack."`
	Seed           int64    `yaml:"seed" help:"Of the order of documents."`
}

func (s *dataSettings) Check() []error {
	var errs []error
	if len(s.Paths) == 0 {
		errs = append(errs, finding("data.paths: is empty; name a directory, a pattern or a file"))
	}
	if s.SequenceLength%2 == 1 {
		errs = append(errs, finding(fmt.Sprintf("data.sequence_length: %d is odd", s.SequenceLength)))
	}
	return errs
}

type trainSettings struct {
	Precision string        `yaml:"precision" default:"auto" enum:"auto,fp32,bf16" help:"Type of the products."`
	Every     time.Duration `yaml:"every" default:"1m" min:"1s" max:"24h" help:"Time between reports."`
	Batch     int           `yaml:"batch" default:"8" min:"1" help:"Sequences in a step."`
	Optimizer struct {
		LearningRate float64 `yaml:"learning_rate" default:"1e-3" min:"0" help:"Peak of the learning rate."`
		Decay        float64 `yaml:"decay" default:"0.1" min:"0" max:"1" help:"Weight decay."`
	} `yaml:"optimizer" help:"AdamW."`
}

type scalingSettings struct {
	Workers int `yaml:"workers" default:"1" min:"1" help:"Ranks."`
}

type runSettings struct {
	Name        string `yaml:"name" help:"Name of the run."`
	StoragePath string `yaml:"storage_path" default:"runs" help:"Directory of runs."`
}

// Check of the whole sees all sections.
func (r *run) Check() []error {
	if r.Scaling.Workers > 0 && r.Train.Batch%r.Scaling.Workers != 0 {
		return []error{
			finding(fmt.Sprintf("train.batch: %d does not divide among %d workers", r.Train.Batch, r.Scaling.Workers)),
			finding("nothing fits"),
		}
	}
	return nil
}
