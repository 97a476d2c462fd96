package scenario

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/fsdp"
	"github.com/gofsdp/gofsdp/model"
	"github.com/gofsdp/gofsdp/train"
)

// mostRanks and mostMB bound what a file can ask of a machine by a slip.
const (
	mostRanks = 64
	mostMB    = 1 << 20
)

// check tells wrong all mistakes of a scenario, each with its key.
func (s *Scenario) check(wrong func(key, format string, args ...any)) {
	for _, text := range []struct{ key, value, is string }{
		{"title", s.Title, "what is measured, in a few words"},
		{"compared", s.Compared, "what is compared"},
		{"counted", s.Counted, "how it is counted"},
		{"fair", s.Fair, "why that is fair"},
	} {
		if text.value == "" {
			wrong(text.key, "is missing; say %s", text.is)
		}
	}
	if s.Rounds < 1 {
		wrong("rounds", "is %d; every side runs once in a round, and 5 rounds are the least to judge by", s.Rounds)
	}
	s.Work.check(wrong)
	s.checkSides(wrong)
	for i, r := range s.Ratios {
		key := index("ratios", i)
		of, against := s.checkName(key+".of", r.Of, wrong), s.checkName(key+".against", r.Against, wrong)
		if of && against && strings.HasSuffix(r.Against, "*") && !strings.HasSuffix(r.Of, "*") {
			wrong(key+".against", `stands for several cases, and "of" for one; write a case, or a * in both`)
		}
		if r.Of == r.Against {
			wrong(key+".against", "is what it is compared with; name another side or case")
		}
		better := 1.0
		switch r.By {
		case BySpeed:
		case ByMemory:
			better = -1
		default:
			wrong(key+".by", "is %q; write %s or %s", r.By, BySpeed, ByMemory)
		}
		checkTargets(key, r.Firm, r.Aim, better, wrong)
	}
	for i, sh := range s.Shares {
		key := index("shares", i)
		s.checkName(key+".of", sh.Of, wrong)
		checkTargets(key, sh.Firm, sh.Aim, 1, wrong)
	}
	if s.Agree < 0 || s.Agree > 0 && s.Work.Kind != Steps {
		wrong("agree", "is %v; it is the greatest relative difference of the losses of training steps, or left out", s.Agree)
	}
}

func (s *Scenario) checkSides(wrong func(key, format string, args ...any)) {
	if len(s.Sides) == 0 {
		wrong("sides", "is empty; name the programs that are compared, each with its command")
	}
	for i, side := range s.Sides {
		key := index("sides", i)
		switch {
		case side.Name == "" || strings.ContainsAny(side.Name, "/*"):
			wrong(key+".name", "is %q; name the side, without / and *", side.Name)
		case slices.ContainsFunc(s.Sides[:i], func(o Side) bool { return o.Name == side.Name }):
			wrong(key+".name", "is %q a second time; give each side a name of its own", side.Name)
		}
		if len(side.Command) == 0 || side.Command[0] == "" {
			wrong(key+".command", "is empty; write the program and its arguments as a list")
		}
		switch {
		case s.Work.Kind == Startup && side.Marker == "":
			wrong(key+".marker", "is missing; write a regular expression of the line that ends the start-up")
		case s.Work.Kind != Startup && side.Marker != "":
			wrong(key+".marker", "is for work of kind %s alone; remove it", Startup)
		}
		if _, err := regexp.Compile(side.Marker); err != nil {
			wrong(key+".marker", "is no regular expression: %v", err)
		}
	}
}

// check tells what is wrong with the work: each kind has its keys, and no
// others.
func (w *Work) check(wrong func(key, format string, args ...any)) {
	kinds := []string{Steps, Collectives, Operations, Startup}
	if !slices.Contains(kinds, w.Kind) {
		wrong("work.kind", "is %q; write one of %s", w.Kind, strings.Join(kinds, ", "))
		return
	}
	trains := w.Kind == Steps || w.Kind == Operations
	for _, n := range []struct {
		key    string
		value  int
		needed bool
		most   int
	}{
		{"work.length", w.Length, trains, 1 << 20},
		{"work.sequences", w.Sequences, trains, 1 << 16},
		{"work.ranks", w.Ranks, true, mostRanks},
		{"work.threads", w.Threads, w.Kind != Startup, mostRanks},
		{"work.timed", w.Timed, w.Kind != Startup, 1 << 16},
	} {
		switch {
		case n.needed && (n.value < 1 || n.value > n.most):
			wrong(n.key, "is %d; for work of kind %s write a number from 1 to %d", n.value, w.Kind, n.most)
		case !n.needed && n.value != 0:
			wrong(n.key, "is not for work of kind %s; remove it", w.Kind)
		}
	}
	switch {
	case w.Kind == Collectives && w.Ranks == 1:
		wrong("work.ranks", "is 1; collectives need at least 2")
	case w.Kind == Operations && w.Ranks > 1:
		wrong("work.ranks", "is %d; operations are measured on 1", w.Ranks)
	}
	if w.Warm < 0 || w.Warm > 0 && w.Kind == Startup {
		wrong("work.warm", "is %d; write how many repetitions are not counted, of a start-up none", w.Warm)
	}
	if trains {
		if _, err := model.Resolve(w.Model); err != nil {
			wrong("work.model", "%w", err)
		}
		if w.Precision != "f32" && w.Precision != "bf16" {
			wrong("work.precision", "is %q; write f32 or bf16", w.Precision)
		}
		if w.Length > 0 && w.Sequences > 0 {
			if err := train.CheckRows(w.Sequences, w.Length); err != nil {
				key := "work.sequences"
				if w.Sequences == 1 {
					key = "work.length"
				}
				wrong(key, "%w", err)
			}
		}
	} else if w.Precision != "" {
		wrong("work.precision", "is not for work of kind %s; remove it", w.Kind)
	}
	w.checkCases(wrong)
	switch {
	case w.Kind != Collectives && len(w.Sizes) > 0:
		wrong("work.sizes", "is not for work of kind %s; remove it", w.Kind)
	case w.Kind == Collectives && len(w.Sizes) == 0:
		wrong("work.sizes", "is empty; write sizes of the whole tensor in MB, such as [1, 16]")
	}
	for i, mb := range w.Sizes {
		if mb < 1 || mb > mostMB || slices.Contains(w.Sizes[:i], mb) {
			wrong(index("work.sizes", i), "is %d; write sizes from 1 to %d MB, each once", mb, mostMB)
		}
	}
}

func (w *Work) checkCases(wrong func(key, format string, args ...any)) {
	switch {
	case w.Kind != Steps && len(w.Cases) > 0:
		wrong("work.cases", "is not for work of kind %s; remove it", w.Kind)
		return
	case w.Kind == Steps && len(w.Cases) == 0:
		wrong("work.cases", "is empty; write at least one way to do the step, with name and strategy")
	}
	for i, c := range w.Cases {
		key := index("work.cases", i)
		switch {
		case c.Name == "" || strings.ContainsAny(c.Name, "*"):
			wrong(key+".name", "is %q; name the case, without *", c.Name)
		case slices.ContainsFunc(w.Cases[:i], func(o StepCase) bool { return o.Name == c.Name }):
			wrong(key+".name", "is %q a second time; give each case a name of its own", c.Name)
		}
		if c.Ranks < 0 || c.Ranks > max(w.Ranks, 0) {
			wrong(key+".ranks", "is %d; write at most the %d of work.ranks, which is the greatest number", c.Ranks, w.Ranks)
		}
		if c.Mesh != "" {
			if m, err := fsdp.ParseMesh(c.Mesh); err != nil {
				wrong(key+".mesh", "%w", err)
			} else if m.Size() != w.ranksOf(c) {
				wrong(key+".mesh", "is %s, which has %d ranks; the case has %d", c.Mesh, m.Size(), w.ranksOf(c))
			}
		}
		if names := fsdp.Strategies(); !slices.Contains(names, fsdp.Strategy(c.Strategy)) {
			wrong(key+".strategy", "is %q; write one of %v", c.Strategy, names)
		}
		if c.MicroBatches < 0 || c.MicroBatches > 1<<10 {
			wrong(key+".micro_batches", "is %d; write a number from 1 to %d", c.MicroBatches, 1<<10)
		}
		kinds := []fsdp.Recompute{"", fsdp.RecomputeNone, fsdp.RecomputeSelective, fsdp.RecomputeBlock}
		if !slices.Contains(kinds, fsdp.Recompute(c.Recompute)) {
			wrong(key+".recompute", "is %q; write one of %v", c.Recompute, kinds[1:])
		}
	}
}

// ranksOf returns the ranks that do a case.
func (w *Work) ranksOf(c StepCase) int {
	if c.Ranks == 0 {
		return w.Ranks
	}
	return c.Ranks
}

// tokensOf returns the tokens of a case's step, over all ranks.
func (w *Work) tokensOf(c StepCase) int64 {
	return int64(w.ranksOf(c)) * int64(max(c.MicroBatches, 1)) * int64(w.Sequences) * int64(w.Length)
}

// checkName tells what is wrong with "SIDE" or "SIDE/CASE" and says whether it
// is right.
func (s *Scenario) checkName(key, name string, wrong func(key, format string, args ...any)) bool {
	side, c, cased := strings.Cut(name, "/")
	if !slices.ContainsFunc(s.Sides, func(o Side) bool { return o.Name == side }) {
		var names []string
		for _, o := range s.Sides {
			names = append(names, o.Name)
		}
		wrong(key, "names the side %q, and there are only: %s", side, strings.Join(names, ", "))
		return false
	}
	if s.Work.Kind != Steps { // what cases those have, the sides say
		if !cased && s.Work.Kind != Startup {
			wrong(key, "names a side that has several cases; write %s/CASE, or %s/* for each of them", side, side)
			return false
		}
		return true
	}
	var names []string
	for _, o := range s.Work.Cases {
		names = append(names, o.Name)
	}
	switch {
	case !cased && len(names) > 1:
		wrong(key, "names a side that has several cases; write %s/CASE with one of: %s", side, strings.Join(names, ", "))
	case cased && !slices.ContainsFunc(names, func(o string) bool { return caseMatches(c, o) }):
		wrong(key, "names the case %q, and there are only: %s", c, strings.Join(names, ", "))
	default:
		return true
	}
	return false
}

// caseMatches reports whether a name, which may end in "*", stands for a case.
func caseMatches(name, c string) bool {
	begin, several := strings.CutSuffix(name, "*")
	return name == c || several && strings.HasPrefix(c, begin)
}

// checkTargets tells what is wrong with two targets, of which better is 1 where
// more is better and -1 where less is.
func checkTargets(key string, firm, aim, better float64, wrong func(key, format string, args ...any)) {
	if firm < 0 || math.IsInf(firm, 0) || firm != firm {
		wrong(key+".firm", "is %v; write what must be reached, or leave it out", firm)
	}
	switch {
	case aim != 0 && firm == 0:
		wrong(key+".aim", "is a target beyond the firm one, which is missing; write firm")
	case aim != 0 && (aim <= 0 || math.IsInf(aim, 0) || aim != aim || (aim-firm)*better < 0):
		wrong(key+".aim", "is %v, no better than the firm target of %v; write a better one, or leave it out", aim, firm)
	}
}

func index(list string, i int) string { return fmt.Sprintf("%s[%d]", list, i) }
