package gpucheck

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// What the test binary is told by its environment: to run the cases of operations, for so long, and where to
// write what came of them.
const (
	CasesVariable   = "GOFSDP_GPU_CASES"   // the file, a CaseResult a line
	ForVariable     = "GOFSDP_GPU_FOR"     // a duration
	OrdinalVariable = "GOFSDP_GPU_ORDINAL" // of the GPU
	casesTest       = "TestEveryOperationIsItsReference"
)

// CaseResult is what the test binary says of a case.
type CaseResult struct {
	Operation string `json:"operation"`
	Type      string `json:"type"`
	Case      string `json:"case"`              // how it is found again
	Refused   string `json:"refused,omitempty"` // by name, such as a head size for which there is no kernel
	Wrong     string `json:"wrong,omitempty"`
}

// kernels runs the cases of the tests on the GPU, by the test binary.
func kernels(ctx context.Context, c *check) error {
	binary := filepath.Join(c.Tools, "gpucheck.test")
	if _, err := os.Stat(binary); err != nil {
		return lacks("the test binary %s is not there; make gpu-check-bundle builds it", binary)
	}
	dir, err := os.MkdirTemp("", "gofsdp-gpu-check-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cases := filepath.Join(dir, "cases")
	said, err := c.start(ctx, []string{CasesVariable + "=" + cases, ForVariable + "=" + c.Kernels.String(), OrdinalVariable + "=" + fmt.Sprint(c.first().Ordinal)},
		binary, "-test.run", "^"+casesTest+"$", "-test.count", "1", "-test.timeout", "0")
	results, unread := readCases(cases)
	c.cases(results)
	switch {
	case err != nil && len(c.failures) == 0:
		return failed(binary, err, said)
	case err != nil: // that is what the failures say
		return nil
	}
	return unread
}

// start runs a program and returns the end of what it writes.
func (c *check) start(ctx context.Context, environment []string, program string, args ...string) (string, error) {
	var all bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(append(os.Environ(), c.Environment...), environment...)
	cmd.Stdout = io.MultiWriter(&all, c.Log)
	cmd.Stderr = cmd.Stdout
	err := cmd.Run()
	return lastLines(all.String(), 12), errors.Join(err, ctx.Err())
}

// failed says why a test binary has ended so, what tells first.
func failed(binary string, err error, said string) error {
	cause := err.Error()
	for line := range strings.Lines(said) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "---") && !strings.HasPrefix(line, "===") && line != "FAIL" {
			cause = line
			break
		}
	}
	return fmt.Errorf("%s: %s\n%w; it said:\n%s", filepath.Base(binary), cause, err, said)
}

// lastLines returns the end of a text.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(len(lines)-n, 0):], "\n")
}

func readCases(path string) (list []CaseResult, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r CaseResult
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return list, err
		}
		list = append(list, r)
	}
	if err := lines.Err(); err != nil {
		return list, err
	}
	if len(list) == 0 {
		return nil, errors.New("the test binary has run no case")
	}
	return list, nil
}

// cases puts results together by operation. Each operation must have run in each type.
func (c *check) cases(results []CaseResult) {
	type counts struct{ right, wrong, refused float64 }
	by := map[string]map[string]*counts{}
	var types []string
	for _, r := range results {
		if by[r.Operation] == nil {
			by[r.Operation] = map[string]*counts{}
		}
		n := by[r.Operation][r.Type]
		if n == nil {
			n = &counts{}
			by[r.Operation][r.Type] = n
		}
		if !slices.Contains(types, r.Type) {
			types = append(types, r.Type)
		}
		switch {
		case r.Refused != "":
			n.refused++
		case r.Wrong != "":
			n.wrong++
			c.fail("%s %s: %s (%s)", r.Operation, r.Type, r.Wrong, r.Case)
		default:
			n.right++
		}
	}
	t := c.table("Random operations against their Go reference", Column{"operation", Text}, Column{"type", Text}, Column{"equal within bounds", Count}, Column{"wrong", Count}, Column{"refused by name", Count})
	t.Note = "A case is refused where no kernel is meant to take it, such as a head size that no model has."
	for _, name := range slices.Sorted(maps.Keys(by)) {
		for _, typ := range types {
			n := by[name][typ]
			if n == nil {
				n = &counts{}
			}
			t.add(name, typ, n.right, n.wrong, n.refused)
			if n.right == 0 && n.wrong == 0 {
				c.fail("no case of %s in %s has run: all were refused or none was made", name, typ)
			}
		}
	}
}
