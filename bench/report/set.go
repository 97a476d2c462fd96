package report

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/gofsdp/gofsdp/bench/scenario"
)

// Set is the results of one machine, a scenario each.
type Set struct {
	Dir     string // where they are
	Results []*scenario.Result
}

// Sets reads dir, or, where it holds no results itself, all directories in it
// that do. Errors name the files.
func Sets(dir string) ([]*Set, error) {
	dirs, err := directories(dir)
	if err != nil {
		return nil, err
	}
	var sets []*Set
	var errs []error
	for _, d := range dirs {
		set, err := ReadSet(d)
		sets, errs = append(sets, set), append(errs, err)
	}
	return sets, errors.Join(errs...)
}

func directories(dir string) ([]string, error) {
	if files, err := resultFiles(dir); err != nil || len(files) > 0 {
		return []string{dir}, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		sub := filepath.Join(dir, e.Name())
		if !e.IsDir() {
			continue
		}
		files, err := resultFiles(sub)
		if err != nil {
			return nil, err
		}
		if len(files) > 0 {
			found = append(found, sub)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no results: no file SCENARIO.json, nor directories with such; name the directory that gofsdp bench run wrote to", dir)
	}
	return found, nil
}

// resultFiles lists the files of a directory that results are in, by name.
func resultFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if !e.IsDir() && filepath.Ext(e.Name()) == ".json" {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}

// ReadSet reads a directory of results, or a file with one. All mistakes are
// returned at once.
func ReadSet(path string) (*Set, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	files, dir := []string{path}, filepath.Dir(path)
	if info.IsDir() {
		if files, err = resultFiles(path); err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("%s has no results: no file SCENARIO.json", path)
		}
		dir = path
	}
	set := &Set{Dir: dir}
	var errs []error
	for _, file := range files {
		r, err := readResult(file)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if i := slices.IndexFunc(set.Results, func(o *scenario.Result) bool { return o.Scenario.Name == r.Scenario.Name }); i >= 0 {
			errs = append(errs, fmt.Errorf("%s: the scenario %s is there already, in another file; keep one", file, r.Scenario.Name))
			continue
		}
		set.Results = append(set.Results, r)
	}
	slices.SortStableFunc(set.Results, func(a, b *scenario.Result) int {
		return cmp.Or(cmp.Compare(kindOrder(a), kindOrder(b)),
			cmp.Compare(b.Scenario.Work.Precision, a.Scenario.Work.Precision), // f32 first
			cmp.Compare(a.Scenario.Name, b.Scenario.Name))
	})
	return set, errors.Join(errs...)
}

// kindOrder is the order in which scenarios are shown: what users ask first,
// first.
func kindOrder(r *scenario.Result) int {
	return slices.Index([]string{scenario.Steps, scenario.Collectives, scenario.Operations, scenario.Startup}, r.Scenario.Work.Kind)
}

// readResult reads one result, and refuses whatever else is in the file.
func readResult(file string) (*scenario.Result, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := new(scenario.Result)
	if err := json.Unmarshal(text, r); err != nil {
		return nil, fmt.Errorf("%s: no result of gofsdp bench run: %w", file, err)
	}
	switch name := r.Scenario.Name; {
	case name == "":
		return nil, fmt.Errorf("%s: no result of gofsdp bench run: it names no scenario", file)
	case r.Format != scenario.Format:
		return nil, fmt.Errorf("%s: format %d, want %d: another version of gofsdp wrote it; measure again with gofsdp bench run", file, r.Format, scenario.Format)
	case name != filepath.Base(name):
		return nil, fmt.Errorf("%s: %q is no name of a scenario: charts are files of that name", file, name)
	case kindOrder(r) < 0:
		return nil, fmt.Errorf("%s: work of the kind %q, which this version does not know", file, r.Scenario.Work.Kind)
	}
	return r, nil
}
