package ptx

import (
	"fmt"
	"strings"
)

// block reads statements in braces.
func (p *parser) block(b *body) error {
	type level struct{ scope *scope }
	var levels []level
	for first := true; first || len(levels) > 0; first = false {
		switch {
		case p.tok.kind == tokenEnd:
			return p.errorf("kernel %s does not end", b.kernel.Name)
		case p.is("{"):
			if len(levels) > 0 {
				p.scope = newScope(p.scope)
			}
			levels = append(levels, level{p.scope})
			if len(levels) > 64 {
				return p.errorf("more than 64 blocks in each other")
			}
			if err := p.advance(); err != nil {
				return err
			}
		case p.is("}"):
			levels = levels[:len(levels)-1]
			if len(levels) > 0 {
				p.scope = levels[len(levels)-1].scope
			}
			if err := p.advance(); err != nil {
				return err
			}
		default:
			if err := p.statement(b); err != nil {
				return err
			}
		}
	}
	return nil
}

// statement reads a directive, a label or an instruction.
func (p *parser) statement(b *body) error {
	if p.tok.kind == tokenDot {
		switch p.tok.text {
		case ".reg":
			return p.registers()
		case ".shared", ".local":
			return p.variable(b, false)
		case ".loc":
			return p.locDirective()
		case ".file":
			return p.fileDirective()
		case ".pragma":
			if err := p.advance(); err != nil {
				return err
			}
			if p.tok.kind != tokenString {
				return p.errorf("a pragma is a string")
			}
			if err := p.advance(); err != nil {
				return err
			}
			return p.expect(";")
		case ".branchtargets":
			return p.branchTargets(b)
		}
		return p.errorf("%s is not supported in a kernel", p.tok.text)
	}
	s := statement{place: place{line: p.tok.line, loc: p.loc}, scope: p.scope}
	start := p.tok.start
	if p.is("@") {
		if err := p.advance(); err != nil {
			return err
		}
		var err error
		if s.not, err = p.accept("!"); err != nil {
			return err
		}
		name, err := p.word()
		if err != nil {
			return err
		}
		s.guard = p.scope.register(name)
		if s.guard == nil || s.guard.class != predicate {
			return p.errorf("%s is no predicate", name)
		}
	}
	opcode, err := p.word()
	if err != nil {
		return err
	}
	if p.is(":") {
		if s.guard != nil {
			return p.errorf("a label has no guard")
		}
		if _, ok := p.scope.labels[opcode]; ok {
			return p.errorf("label %s is there twice", opcode)
		}
		p.scope.labels[opcode] = len(b.statements)
		return p.advance()
	}
	parts := strings.Split(opcode, ".")
	s.op, s.mods = parts[0], parts[1:]
	if decoders[s.op] == nil {
		return fmt.Errorf("line %d: unknown instruction %s", s.line, opcode)
	}
	for !p.is(";") {
		arg, err := p.operand()
		if err != nil {
			return err
		}
		s.args = append(s.args, arg)
		if !p.is(",") {
			break
		}
		if err := p.advance(); err != nil {
			return err
		}
	}
	if !p.is(";") {
		return p.errorf("%q where an instruction should end", p.tok.text)
	}
	s.text = strings.Join(strings.Fields(p.lex.text[start:p.tok.start]), " ")
	b.statements = append(b.statements, s)
	return p.advance()
}

// branchTargets reads the labels that a brx.idx may go to, and keeps them with
// the instructions: the label before them is their name.
func (p *parser) branchTargets(b *body) error {
	s := statement{place: place{p.tok.line, p.loc, ".branchtargets"}, op: ".branchtargets", scope: p.scope}
	for !p.is(";") {
		if err := p.advance(); err != nil { // the directive, or a comma
			return err
		}
		name, err := p.word()
		if err != nil {
			return err
		}
		s.args = append(s.args, operand{kind: operandSymbol, name: name})
		if !p.is(",") && !p.is(";") {
			return p.errorf("%q in a list of labels", p.tok.text)
		}
	}
	b.statements = append(b.statements, s)
	return p.advance()
}

// operand reads one operand, with a second one after | where there is one.
func (p *parser) operand() (operand, error) {
	o, err := p.single(true)
	if err != nil || !p.is("|") {
		return o, err
	}
	if err := p.advance(); err != nil {
		return o, err
	}
	q, err := p.single(false)
	return operand{kind: operandPair, name: o.name + "|" + q.name, list: []operand{o, q}}, err
}

// single reads one operand.
func (p *parser) single(compound bool) (operand, error) {
	switch {
	case p.is("!"):
		if err := p.advance(); err != nil {
			return operand{}, err
		}
		o, err := p.single(false)
		if err == nil && (o.kind != operandRegister || o.reg.class != predicate) {
			err = p.errorf("only predicates may be negated")
		}
		o.not = true
		return o, err
	case compound && p.is("{"):
		return p.vector()
	case compound && p.is("["):
		return p.address()
	case p.is("-"):
		if err := p.advance(); err != nil {
			return operand{}, err
		}
		o := operand{name: "-" + p.tok.text, bits: p.tok.bits, wide: p.tok.wide}
		switch p.tok.kind {
		case tokenInteger:
			o.kind, o.bits = operandImmediate, -p.tok.bits
		case tokenFloat:
			o.kind, o.bits = operandFloat, p.tok.bits^1<<31
			if o.wide {
				o.bits = p.tok.bits ^ 1<<63
			}
		default:
			return o, p.errorf("%q where a number should be", p.tok.text)
		}
		return o, p.advance()
	case p.tok.kind == tokenInteger:
		o := operand{kind: operandImmediate, name: p.tok.text, bits: p.tok.bits}
		return o, p.advance()
	case p.tok.kind == tokenFloat:
		o := operand{kind: operandFloat, name: p.tok.text, bits: p.tok.bits, wide: p.tok.wide}
		return o, p.advance()
	case p.tok.kind == tokenWord:
		o := p.named(p.tok.text)
		return o, p.advance()
	}
	return operand{}, p.errorf("%q where an operand should be", p.tok.text)
}

// named returns what a name stands for. A name that is not declared may be a label.
func (p *parser) named(name string) operand {
	o := operand{kind: operandSymbol, name: name}
	switch {
	case name == "_":
		o.kind = operandSink
	case isSpecial(name):
		o.kind = operandSpecial
	default:
		if r := p.scope.register(name); r != nil {
			o.kind, o.reg = operandRegister, r
		} else {
			o.sym = p.scope.symbol(name)
		}
	}
	return o
}

// vector reads {a, b}.
func (p *parser) vector() (operand, error) {
	o := operand{kind: operandVector}
	if err := p.advance(); err != nil {
		return o, err
	}
	for {
		e, err := p.single(false)
		if err != nil {
			return o, err
		}
		o.list = append(o.list, e)
		if len(o.list) > 8 {
			return o, p.errorf("a vector has more than 8 elements")
		}
		if !p.is(",") {
			return o, p.expect("}")
		}
		if err := p.advance(); err != nil {
			return o, err
		}
	}
}

// address reads [base], [base+off], [base+-off] or [number].
func (p *parser) address() (operand, error) {
	o := operand{kind: operandAddress}
	if err := p.advance(); err != nil {
		return o, err
	}
	base, err := p.single(false)
	if err != nil {
		return o, err
	}
	o.name = base.name
	switch base.kind {
	case operandRegister:
		if base.reg.class == predicate {
			return o, p.errorf("%s is a predicate, and no address", base.name)
		}
		o.reg = base.reg
	case operandImmediate:
		o.off = int64(base.bits)
	case operandSymbol:
		if base.sym == nil {
			return o, p.errorf("%s is not declared", base.name)
		}
		o.sym = base.sym
	default:
		return o, p.errorf("%s is no address", base.name)
	}
	if p.is("+") || p.is("-") {
		negative := p.is("-")
		if err := p.advance(); err != nil {
			return o, err
		}
		if p.is("-") {
			negative = !negative
			if err := p.advance(); err != nil {
				return o, err
			}
		}
		if p.tok.kind != tokenInteger {
			return o, p.errorf("%q where an offset should be", p.tok.text)
		}
		o.off = int64(p.tok.bits)
		if negative {
			o.off = -o.off
		}
		if err := p.advance(); err != nil {
			return o, err
		}
	}
	return o, p.expect("]")
}
