package device

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// Op is an operation: a pointer to one of this package's structs. The set is
// closed: whoever adds one adds its reference here and all its implementations.
//
// A struct's Tensor fields are its operands; their tag says the access: "r"
// read, "w" written whole, "rw" both, "acc" read too only where the struct's
// Accumulate is true, "scratch" written in any way and of no meaning after.
// Operands may not overlap unless the field's comment says
// which may be one and the same.
type Op interface {
	// Check returns what is wrong with sizes and types, all of it.
	Check() error
	// Cost returns the work that cannot be avoided.
	Cost() Cost
	// Reference computes the operation on memory that the host can see, one
	// goroutine, plainly. It defines the operation.
	Reference()
}

// Cost is an operation's floating-point operations (multiply and add count as
// two, attention as causal) and the bytes that it must at least move.
type Cost struct{ FLOPs, Bytes int64 }

// Access says what an operation does with an operand.
type Access uint8

// The accesses; ReadWrite is both bits.
const (
	Read Access = 1 << iota
	Write
	ReadWrite = Read | Write
)

func (a Access) String() string { return [...]string{"-", "r", "w", "rw"}[a] }

// Operand is a tensor of an operation, by its field's name.
type Operand struct {
	Name   string
	T      *Tensor
	Access Access
	// Scratch says that the operation only keeps something there for itself.
	Scratch bool
}

// Operands lists the operands that are present, in the order of the struct.
// Writing to an Operand's T changes op. It allocates: for plans, wrappers and
// tests, not for a step.
func Operands(op Op) []Operand {
	v := reflect.ValueOf(op).Elem()
	fields := fieldsOf(v.Type())
	list := make([]Operand, 0, len(fields))
	for _, f := range fields {
		o := Operand{Name: f.name, Access: f.access, Scratch: f.scratch}
		if f.accumulates && v.FieldByName("Accumulate").Bool() {
			o.Access = ReadWrite
		}
		switch at := v.Field(f.index).Addr().Interface().(type) {
		case *Tensor:
			if o.T = at; !at.Absent() {
				list = append(list, o)
			}
		case *[]Tensor:
			for j := range *at {
				o.Name, o.T = fmt.Sprintf("%s[%d]", f.name, j), &(*at)[j]
				if !o.T.Absent() {
					list = append(list, o)
				}
			}
		}
	}
	return list
}

// field is what an operation's struct says of one of its operands, or of a
// list of them.
type field struct {
	index                int
	name                 string
	access               Access
	scratch, accumulates bool
}

// knownFields are the fields by the operation's type: a plan asks thousands of
// times, and reflection is slow.
var knownFields sync.Map // reflect.Type → []field

func fieldsOf(typ reflect.Type) []field {
	if known, ok := knownFields.Load(typ); ok {
		return known.([]field)
	}
	var list []field
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Type != reflect.TypeFor[Tensor]() && f.Type != reflect.TypeFor[[]Tensor]() {
			continue
		}
		o := field{index: i, name: f.Name}
		switch tag := f.Tag.Get("op"); tag {
		case "r":
			o.access = Read
		case "w":
			o.access = Write
		case "scratch":
			o.access, o.scratch = Write, true
		case "rw":
			o.access = ReadWrite
		case "acc":
			o.access, o.accumulates = Write, true
		default:
			panic(fmt.Sprintf("device: operand %s.%s has no access tag", typ.Name(), f.Name))
		}
		list = append(list, o)
	}
	knownFields.Store(typ, list)
	return list
}

// Name returns the operation's name, such as "MatMul".
func Name(op Op) string { return reflect.TypeOf(op).Elem().Name() }

// Clone returns a copy of op whose operands may be changed.
func Clone(op Op) Op {
	c := reflect.New(reflect.TypeOf(op).Elem())
	c.Elem().Set(reflect.ValueOf(op).Elem())
	for i := range c.Elem().NumField() {
		if f := c.Elem().Field(i); f.Kind() == reflect.Slice {
			s := reflect.MakeSlice(f.Type(), f.Len(), f.Len())
			reflect.Copy(s, f)
			f.Set(s)
		}
	}
	return c.Interface().(Op)
}

// checker collects what is wrong with an operation.
type checker struct {
	op   Op
	errs []error
}

func check(op Op) *checker { return &checker{op: op} }

func (c *checker) failf(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("%s: "+format, append([]any{Name(c.op)}, args...)...))
}

// tensor requires n elements of one of the types; an absent operand passes
// where optional. A type that comes from a missing operand (None) says nothing.
func (c *checker) tensor(name string, t Tensor, optional bool, n int, types ...DType) {
	if t.Absent() {
		if !optional {
			c.failf("%s is missing", name)
		}
		return
	}
	if t.Len != int64(n) {
		c.failf("%s has %d elements, want %d", name, t.Len, n)
	}
	var allowed []DType
	for _, typ := range types {
		if typ == None || typ == t.Type {
			return
		}
		if !slices.Contains(allowed, typ) {
			allowed = append(allowed, typ)
		}
	}
	c.failf("%s is %s, want one of %v", name, t.Type, allowed)
}

// positive requires sizes of at least one.
func (c *checker) positive(name string, n int) {
	if n < 1 {
		c.failf("%s is %d, want at least 1", name, n)
	}
}

// wide returns what statistics, tables and scales beside operands of typ may
// be: fp32, or float64 where the operands are.
func wide(typ DType) []DType {
	if typ == F64 {
		return []DType{F32, F64}
	}
	return []DType{F32}
}

func (c *checker) err() error { return errors.Join(c.errs...) }

// bytesOf sums the sizes of tensors.
func bytesOf(ts ...Tensor) (n int64) {
	for _, t := range ts {
		n += t.Bytes()
	}
	return n
}

// Format returns one line that says what op is: its name, its numbers (those
// that are not zero) and its operands, with type and length and, where they
// have one, the buffer. The same op gives the same line.
func Format(op Op) string {
	var s strings.Builder
	s.WriteString(Name(op))
	v := reflect.ValueOf(op).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Struct, reflect.Slice: // operands
		case reflect.Bool:
			if f.Bool() {
				fmt.Fprintf(&s, " %s", v.Type().Field(i).Name)
			}
		default:
			if !f.IsZero() {
				fmt.Fprintf(&s, " %s=%v", v.Type().Field(i).Name, f)
			}
		}
	}
	for i, o := range Operands(op) {
		sep := ", "
		if i == 0 {
			sep = ": "
		}
		fmt.Fprintf(&s, "%s%s %s[%d]", sep, o.Name, o.T.Type, o.T.Len)
		if o.T.Buf != 0 {
			fmt.Fprintf(&s, "@%d+%d", o.T.Buf, o.T.Off)
		}
	}
	return s.String()
}

// Ops returns a new, empty operation of every kind.
func Ops() []Op {
	return []Op{
		&MatMul{}, &BiasBackward{},
		&AddRMSNorm{}, &AddRMSNormBackward{},
		&QKNormRoPE{}, &QKNormRoPEBackward{},
		&Attention{}, &AttentionBackward{}, &AttentionDecode{},
		&Embed{}, &EmbedBackward{}, &SwiGLU{}, &SwiGLUBackward{},
		&HeadLoss{},
		&ReduceSum{}, &SumSquares{}, &CheckFinite{},
		&AdamW{},
		&Cast{}, &Copy{}, &Fill{},
	}
}
