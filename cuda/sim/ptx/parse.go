package ptx

import (
	"fmt"
	"path"
	"strings"
)

// parser reads a module. It looks one token ahead.
type parser struct {
	lex    lexer
	tok    token
	module *Module
	scope  *scope
	files  map[int]string
	loc    location

	sharedSize int        // of the module's own static shared variables
	dynamic    []variable // .extern .shared
	kernels    []*body
	dataNext   uint64

	registerCount int
}

// body is a kernel that has been read and is yet to be decoded.
type body struct {
	kernel     *Kernel
	statements []statement
	scope      *scope
}

// Parse reads the text of a module and makes its kernels ready to run. The name
// stands for the text in errors and faults. What it does not know is refused by
// name and line: instructions, types, directives.
func Parse(name, text string) (*Module, error) {
	p := &parser{
		lex:      lexer{text: text, line: 1},
		module:   &Module{Name: name, Kernels: map[string]*Kernel{}},
		scope:    newScope(nil),
		files:    map[int]string{},
		dataNext: dataWindow + 256,
	}
	if err := p.parse(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p.module, nil
}

func (p *parser) parse() error {
	if err := p.advance(); err != nil {
		return err
	}
	for p.tok.kind != tokenEnd {
		if err := p.topLevel(); err != nil {
			return err
		}
	}
	if p.module.Version == "" {
		return fmt.Errorf("line 1: a module begins with .version")
	}
	for _, b := range p.kernels { // after the text, as files may be named at its end
		if err := decodeKernel(b, p.files); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) advance() (err error) {
	p.tok, err = p.lex.next()
	return err
}

func (p *parser) errorf(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", p.tok.line, fmt.Sprintf(format, args...))
}

func (p *parser) is(text string) bool {
	return p.tok.text == text && p.tok.kind != tokenString
}

// accept passes the token if it is that text.
func (p *parser) accept(text string) (bool, error) {
	if !p.is(text) {
		return false, nil
	}
	return true, p.advance()
}

func (p *parser) expect(text string) error {
	if !p.is(text) {
		return p.errorf("%q where %q should be", p.tok.text, text)
	}
	return p.advance()
}

func (p *parser) word() (string, error) {
	if p.tok.kind != tokenWord {
		return "", p.errorf("%q where a name should be", p.tok.text)
	}
	s := p.tok.text
	return s, p.advance()
}

func (p *parser) integer() (int, error) {
	if p.tok.kind != tokenInteger || p.tok.bits > 1<<31 {
		return 0, p.errorf("%q where a small number should be", p.tok.text)
	}
	n := int(p.tok.bits)
	return n, p.advance()
}

// topLevel reads one directive of the module.
func (p *parser) topLevel() error {
	if p.tok.kind != tokenDot {
		return p.errorf("%q where a directive should be", p.tok.text)
	}
	switch p.tok.text {
	case ".version":
		if err := p.advance(); err != nil {
			return err
		}
		p.module.Version = p.tok.text
		return p.advance()
	case ".target":
		if err := p.advance(); err != nil {
			return err
		}
		p.module.Target = p.tok.text
		for {
			if err := p.advance(); err != nil {
				return err
			}
			if more, err := p.accept(","); !more {
				return err
			}
		}
	case ".address_size":
		if err := p.advance(); err != nil {
			return err
		}
		if n, err := p.integer(); err != nil || n != 64 {
			return p.errorf("addresses are 64 bits wide here")
		}
		return nil
	case ".file":
		return p.fileDirective()
	case ".section":
		return p.section()
	case ".loc":
		return p.locDirective()
	case ".visible", ".weak", ".common":
		return p.advance()
	case ".extern":
		if err := p.advance(); err != nil {
			return err
		}
		if !p.is(".shared") {
			return p.errorf("only shared memory may be .extern")
		}
		return p.variable(nil, true)
	case ".entry":
		return p.entry()
	case ".global", ".const", ".shared":
		return p.variable(nil, false)
	}
	return p.errorf("%s is not supported at the top", p.tok.text)
}

// fileDirective reads .file 1 "name", with time and size that may follow.
func (p *parser) fileDirective() error {
	if err := p.advance(); err != nil {
		return err
	}
	n, err := p.integer()
	if err != nil {
		return err
	}
	if p.tok.kind != tokenString {
		return p.errorf("%q where a file name should be", p.tok.text)
	}
	p.files[n] = path.Base(p.tok.text)
	if err := p.advance(); err != nil {
		return err
	}
	for p.is(",") {
		if err := p.advance(); err != nil {
			return err
		}
		if _, err := p.integer(); err != nil {
			return err
		}
	}
	return nil
}

// locDirective reads .loc file line column, and passes what tells of inlining.
func (p *parser) locDirective() error {
	if err := p.advance(); err != nil {
		return err
	}
	var n [3]int
	for i := range n {
		var err error
		if n[i], err = p.integer(); err != nil {
			return err
		}
	}
	if n[1] > 0 { // line 0: code that no line asked for
		p.loc = location{n[0], n[1]}
	}
	for p.is(",") || p.is("function_name") || p.is("inlined_at") {
		inlined := p.is("inlined_at")
		name := p.is("function_name")
		if err := p.advance(); err != nil {
			return err
		}
		if name {
			if _, err := p.word(); err != nil {
				return err
			}
			if p.is("+") {
				if err := p.advance(); err != nil {
					return err
				}
				if _, err := p.integer(); err != nil {
					return err
				}
			}
		}
		for range 3 {
			if inlined {
				if _, err := p.integer(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// section passes a section of debugging information.
func (p *parser) section() error {
	for !p.is("{") {
		if p.tok.kind == tokenEnd {
			return p.errorf("a section has no body")
		}
		if err := p.advance(); err != nil {
			return err
		}
	}
	for !p.is("}") {
		if p.tok.kind == tokenEnd {
			return p.errorf("a section does not end")
		}
		if err := p.advance(); err != nil {
			return err
		}
	}
	return p.advance()
}

// entry reads a kernel.
func (p *parser) entry() error {
	if err := p.advance(); err != nil {
		return err
	}
	line := p.tok.line
	name, err := p.word()
	if err != nil {
		return err
	}
	if p.module.Kernels[name] != nil {
		return fmt.Errorf("line %d: kernel %s is there twice", line, name)
	}
	k := &Kernel{Name: name, module: p.module, Shared: p.sharedSize}
	b := &body{kernel: k, scope: newScope(p.scope)}
	p.scope = b.scope
	if err := p.params(b); err != nil {
		return err
	}
	for p.tok.kind == tokenDot {
		directive := p.tok.text
		var n []int
		for {
			if err := p.advance(); err != nil {
				return err
			}
			if p.tok.kind != tokenInteger {
				break
			}
			v, err := p.integer()
			if err != nil {
				return err
			}
			n = append(n, v)
			if !p.is(",") {
				break
			}
		}
		switch directive {
		case ".maxntid", ".reqntid":
			k.MaxThreads = 1
			for _, v := range n {
				k.MaxThreads *= uint32(v)
			}
		case ".minnctapersm":
			if len(n) == 1 {
				k.MinBlocks = uint32(n[0])
			}
		case ".maxnreg":
		default:
			return p.errorf("%s is not supported on a kernel", directive)
		}
	}
	if !p.is("{") {
		return p.errorf("kernel %s has no body", name)
	}
	if err := p.block(b); err != nil {
		return err
	}
	p.scope = b.scope.parent
	align := 16
	for _, v := range p.dynamic {
		align = max(align, v.align)
	}
	k.dynamic = roundUp(k.Shared, align)
	for _, v := range p.dynamic {
		// The statements of this kernel refer to a copy of the symbol, as the
		// address depends on what else the kernel keeps in shared memory.
		b.scope.symbols[v.name].addr = uint64(sharedStart + k.dynamic)
	}
	p.module.Kernels[name] = k
	p.kernels = append(p.kernels, b)
	return nil
}

// params reads the parameters of a kernel.
func (p *parser) params(b *body) error {
	for _, v := range p.dynamic {
		b.scope.symbols[v.name] = &symbol{name: v.name, space: shared}
	}
	if !p.is("(") {
		return nil
	}
	if err := p.advance(); err != nil {
		return err
	}
	for !p.is(")") {
		if !p.is(".param") {
			return p.errorf("%q where .param should be", p.tok.text)
		}
		v, err := p.declaration()
		if err != nil {
			return err
		}
		k := b.kernel
		off := roundUp(k.ArgsSize, v.align)
		k.Params = append(k.Params, Param{v.name, v.size, v.align, off})
		k.ArgsSize = off + v.size
		if k.ArgsSize > 4352 {
			return p.errorf("kernel %s has more than 4352 bytes of parameters", k.Name)
		}
		b.scope.symbols[v.name] = &symbol{name: v.name, space: param, addr: uint64(off)}
		if !p.is(")") {
			if err := p.expect(","); err != nil {
				return err
			}
		}
	}
	return p.advance()
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// trimType returns the width in bytes of a type such as ".b32".
func trimType(s string) (size int, ok bool) {
	s = strings.TrimPrefix(s, ".")
	if s == "pred" {
		return 0, true
	}
	if strings.TrimLeft(s, "busf") == s {
		return 0, false
	}
	switch strings.TrimLeft(s, "busf") {
	case "8":
		return 1, true
	case "16":
		return 2, true
	case "32", "16x2":
		return 4, true
	case "64":
		return 8, true
	}
	return 0, false
}
