package scenario

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
)

// readSample reads what a side has written, and refuses what does not fit the
// work.
func readSample(path string, s *Scenario) (*Sample, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errors.New("it ended well but wrote no sample to the file that the task names")
	}
	if err != nil {
		return nil, err
	}
	var sample Sample
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&sample); err != nil {
		return nil, fmt.Errorf("its sample cannot be read: %w", err)
	}
	if err := sample.fit(s); err != nil {
		return nil, fmt.Errorf("its sample does not fit the task: %w", err)
	}
	return &sample, nil
}

// fit refuses a sample that is not of the scenario's work.
func (m *Sample) fit(s *Scenario) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if m.Format != TaskFormat {
		wrong("it has format %d, want %d", m.Format, TaskFormat)
	}
	if len(m.Cases) == 0 {
		wrong("it has no cases")
	}
	for i, c := range m.Cases {
		if slices.ContainsFunc(m.Cases[:i], func(o Case) bool { return o.Name == c.Name }) {
			wrong("case %q is there twice", c.Name)
		}
		if n := len(c.Seconds); n == 0 || s.Work.Kind == Steps && n != s.Work.Timed {
			wrong("case %q has %d times, want %d", c.Name, n, s.Work.Timed)
		}
		if len(c.Limit) != 0 && len(c.Limit) != len(c.Seconds) {
			wrong("case %q has %d limits for %d times", c.Name, len(c.Limit), len(c.Seconds))
		}
		if slices.ContainsFunc(slices.Concat(c.Seconds, c.Limit), func(t float64) bool { return !(t > 0) || math.IsInf(t, 0) }) {
			wrong("case %q has times or limits that are not above 0", c.Name)
		}
		if s.Work.Kind != Steps {
			continue
		}
		n := slices.IndexFunc(s.Work.Cases, func(o StepCase) bool { return o.Name == c.Name })
		if n < 0 {
			wrong("there is no case %q in the task", c.Name)
		} else if want := s.Work.tokensOf(s.Work.Cases[n]); c.Tokens != want {
			wrong("case %q trained on %d tokens a step, want %d", c.Name, c.Tokens, want)
		}
		if steps := s.Work.Warm + s.Work.Timed; s.Agree > 0 && len(c.Losses) < steps {
			wrong("case %q has %d losses, want one of each of %d steps", c.Name, len(c.Losses), steps)
		}
	}
	for _, want := range s.Work.Cases {
		if m.find(want.Name) == nil {
			wrong("it has no case %q", want.Name)
		}
	}
	return errors.Join(errs...)
}

// find returns the case of that name, or nil.
func (m *Sample) find(name string) *Case {
	for i := range m.Cases {
		if m.Cases[i].Name == name {
			return &m.Cases[i]
		}
	}
	return nil
}
