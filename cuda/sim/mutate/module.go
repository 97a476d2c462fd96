package mutate

import (
	"fmt"
	"hash/fnv"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Kind is what a mutant has done to an instruction.
type Kind string

// Mutant is a kernel with one mistake.
type Mutant struct {
	Module  string // the name given to Read
	Kernel  string
	Kind    Kind
	Ordinal int     // among those of its kernel and kind, from 0
	Line    int     // of the PTX, from 1
	Source  []Place // of the instruction, of the call that is inlined there, and so on; none where the PTX names none
	Before  string  // the instruction
	After   string  // what stands in its place; "": nothing
}

// String names the mutant: attention.ptx:2396 attention_h64_bf16 "bar.warp.sync -1;" dropped.
func (m Mutant) String() string {
	after := ""
	if m.After != "" {
		after = " → " + m.After
	}
	source := ""
	for i, p := range m.Source {
		if i == 0 || p.File != m.Source[i-1].File {
			source += fmt.Sprintf(" %s", p.File)
		}
		source += fmt.Sprintf(":%d", p.Line)
	}
	return fmt.Sprintf("%s:%d %s,%s, %s: %s%s", m.Module, m.Line, m.Kernel, source, m.Kind, m.Before, after)
}

// Place is a line of CUDA source.
type Place struct {
	File string
	Line int
}

// Module is the text of PTX, cut into kernels.
type Module struct {
	name    string
	lines   []string
	kernels []span
	files   map[int]string
}

// span is where a kernel stands: lines from its .entry up to its closing brace.
type span struct {
	name       string
	first, end int
}

var (
	entryLine = regexp.MustCompile(`\.entry (\w+)\(`)
	fileLine  = regexp.MustCompile(`^\s*\.file\s+(\d+) "([^"]*)"`)
	locLine   = regexp.MustCompile(`^\s*\.loc\s+(\d+ \d+ \d+)(?:, function_name \S+, inlined_at (\d+ \d+ \d+))?`)
)

// Read cuts the text of a module.
func Read(name, text string) *Module {
	m := &Module{name: name, lines: strings.Split(text, "\n"), files: map[int]string{}}
	for i, l := range m.lines {
		if e := entryLine.FindStringSubmatch(l); e != nil {
			m.kernels = append(m.kernels, span{name: e[1], first: i})
		}
		if f := fileLine.FindStringSubmatch(l); f != nil {
			n, _ := strconv.Atoi(f[1])
			m.files[n] = path.Base(f[2])
		}
		if l == "}" && len(m.kernels) > 0 && m.kernels[len(m.kernels)-1].end == 0 {
			m.kernels[len(m.kernels)-1].end = i + 1
		}
	}
	return m
}

// Mutants returns all mutants of all kernels, in the order of the text.
func (m *Module) Mutants() []Mutant {
	var all []Mutant
	for _, k := range m.kernels {
		ordinals := map[Kind]int{}
		var source []Place
		callers := map[string]string{} // of places, the latest
		var code []instruction
		for _, line := range m.lines[k.first:k.end] {
			if in, ok := parse(line); ok {
				code = append(code, in)
			}
		}
		flow := flowOf(code)
		for i := k.first; i < k.end; i++ {
			if l := locLine.FindStringSubmatch(m.lines[i]); l != nil {
				callers[l[1]] = l[2]
				if !strings.Contains(l[1], " 0 ") { // code that no line asked for
					source = m.places(l[1], callers)
				}
			}
			in, ok := parse(m.lines[i])
			if !ok {
				continue
			}
			for _, c := range changes(in) {
				if flow.same(in, c) {
					continue
				}
				all = append(all, Mutant{
					Module: m.name, Kernel: k.name, Kind: c.kind, Ordinal: ordinals[c.kind], Line: i + 1, Source: source,
					Before: in.String(), After: c.after,
				})
				ordinals[c.kind]++
			}
		}
	}
	return all
}

// places returns a place "file line column", and that of who calls it, and so on.
func (m *Module) places(at string, callers map[string]string) []Place {
	var all []Place
	for at != "" && len(all) < 20 { // no call is as deep; what calls itself has no end
		var n, line, column int
		if _, err := fmt.Sscan(at, &n, &line, &column); err != nil {
			break
		}
		all = append(all, Place{m.files[n], line})
		at = callers[at]
	}
	return all
}

// With returns the module's text with a mutant in its kernel's place and without the other kernels; every line
// stays where it is.
func (m *Module) With(x Mutant) string {
	var b strings.Builder
	next := 0
	for _, k := range m.kernels {
		if k.name == x.Kernel {
			continue
		}
		for ; next < k.first; next++ {
			m.line(&b, next, x)
		}
		for ; next < k.end; next++ {
			b.WriteByte('\n')
		}
	}
	for ; next < len(m.lines); next++ {
		m.line(&b, next, x)
	}
	return b.String()
}

func (m *Module) line(b *strings.Builder, i int, x Mutant) {
	if i+1 == x.Line {
		b.WriteString(x.After)
	} else {
		b.WriteString(m.lines[i])
	}
	b.WriteByte('\n')
}

// Choose returns n of the mutants, in the order given: of each kind and each module as many as can be, of each
// kernel likewise, and of what a kernel has of a kind the one in the middle. So a kernel that changes changes
// what is chosen of it, and hardly anything else.
func Choose(all []Mutant, n int) []Mutant {
	type group struct {
		kernel string
		kind   Kind
	}
	groups := map[group][]Mutant{}
	for _, m := range all {
		g := group{m.Kernel, m.Kind}
		groups[g] = append(groups[g], m)
	}
	type candidate struct {
		Mutant
		hash uint64
	}
	var left []candidate
	for g, ms := range groups {
		h := fnv.New64a()
		fmt.Fprint(h, g.kernel, "/", g.kind)
		left = append(left, candidate{ms[len(ms)/2], h.Sum64()})
	}
	slices.SortFunc(left, func(a, b candidate) int {
		return strings.Compare(fmt.Sprintf("%016x", a.hash), fmt.Sprintf("%016x", b.hash))
	})
	taken := map[any]int{}
	var chosen []Mutant
	for len(chosen) < n && len(left) > 0 {
		best := 0
		for i := range left {
			a, b := left[i], left[best]
			if slices.Compare([]int{taken[a.Kind], taken[a.Module], taken[a.Kernel]}, []int{taken[b.Kind], taken[b.Module], taken[b.Kernel]}) < 0 {
				best = i
			}
		}
		c := left[best].Mutant
		left = slices.Delete(left, best, best+1)
		chosen = append(chosen, c)
		taken[c.Kind]++
		taken[c.Module]++
		taken[c.Kernel]++
	}
	at := map[string]int{}
	for i, m := range all {
		at[m.String()] = i
	}
	slices.SortFunc(chosen, func(a, b Mutant) int { return at[a.String()] - at[b.String()] })
	return chosen
}
