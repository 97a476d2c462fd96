package mutate

import "strings"

// instruction is one line of PTX.
type instruction struct {
	guard string // "%p1", "!%p1", or ""
	op    string // with all that follows its dots
	args  []string
}

// parse reads a line that holds an instruction and nothing else.
func parse(line string) (instruction, bool) {
	line = strings.TrimSpace(line)
	if !strings.HasSuffix(line, ";") || strings.HasPrefix(line, ".") || strings.HasPrefix(line, "//") || strings.HasSuffix(line, ":") {
		return instruction{}, false
	}
	var in instruction
	line = strings.TrimSuffix(line, ";")
	if rest, ok := strings.CutPrefix(line, "@"); ok {
		var found bool
		if in.guard, line, found = strings.Cut(rest, " "); !found {
			return in, false
		}
	}
	op, rest := line, ""
	if i := strings.IndexAny(line, " \t"); i >= 0 {
		op, rest = line[:i], strings.TrimSpace(line[i:])
	}
	in.op = op
	depth, from := 0, 0
	for i, c := range rest {
		switch c {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case ',':
			if depth == 0 {
				in.args = append(in.args, strings.TrimSpace(rest[from:i]))
				from = i + 1
			}
		}
	}
	if rest != "" {
		in.args = append(in.args, strings.TrimSpace(rest[from:]))
	}
	return in, op != ""
}

// String writes the instruction as a line.
func (in instruction) String() string {
	s := in.op
	if in.guard != "" {
		s = "@" + in.guard + " " + s
	}
	if len(in.args) > 0 {
		s += " " + strings.Join(in.args, ", ")
	}
	return s + ";"
}

// is says whether the opcode begins with one of some, whole parts of it.
func (in instruction) is(ops ...string) bool {
	for _, op := range ops {
		if in.op == op || strings.HasPrefix(in.op, op+".") {
			return true
		}
	}
	return false
}

// with returns the instruction with another operand i.
func (in instruction) with(i int, arg string) instruction {
	in.args = append([]string(nil), in.args...)
	in.args[i] = arg
	return in
}

// swapped returns the instruction with operands i and j exchanged; false where they are the same.
func (in instruction) swapped(i, j int) (instruction, bool) {
	if i >= len(in.args) || j >= len(in.args) || in.args[i] == in.args[j] {
		return in, false
	}
	return in.with(i, in.args[j]).with(j, in.args[i]), true
}

// typ is the last part of the opcode.
func (in instruction) typ() string { return in.op[strings.LastIndexByte(in.op, '.')+1:] }

// access returns how many bytes a load, store or copy moves at an address.
func (in instruction) access() int {
	if in.is("ldmatrix") {
		return 16
	}
	if in.is("cp.async") {
		n, _ := immediate(in.args[2])
		return int(n)
	}
	n := map[string]int{"8": 1, "16": 2, "32": 4, "64": 8}[strings.TrimLeft(in.typ(), "busf")]
	switch {
	case strings.Contains(in.op, ".v2."):
		n *= 2
	case strings.Contains(in.op, ".v4."):
		n *= 4
	}
	return n
}
