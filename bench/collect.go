package bench

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/gofsdp/gofsdp/device"
)

// operation is one name and shape, with its measurements.
type operation struct {
	program Program
	op      device.Op    // the first of them, bound to memory
	typ     device.DType // of the first operand: what it computes in
	shape   string
	count   int // in one run of the program

	alone, aloneShare   []float64
	within, withinShare []float64 // each the mean over one run of the program
	run                 float64   // seconds in the run at hand
}

// collection groups the operations of a program.
type collection struct {
	program Program
	list    []*operation // in the order of their first launch
	byKey   map[string]*operation
	runs    int
}

func newCollection(p Program) *collection {
	return &collection{program: p, byKey: map[string]*operation{}}
}

// add notes that op took that long in the run at hand. Operations that differ
// only in where their operands lie, or in factors, are the same.
func (c *collection) add(op device.Op, seconds float64) {
	key := device.Name(op) + " " + shape(op) + " " + operands(op)
	o := c.byKey[key]
	if o == nil {
		o = &operation{program: c.program, op: op, typ: device.Operands(op)[0].T.Type, shape: shape(op)}
		c.byKey[key] = o
		c.list = append(c.list, o)
	}
	if c.runs == 0 {
		o.count++
	}
	o.run += seconds
}

// endRun closes one run of the program, during which the limits were r, and
// returns the seconds of all its operations.
func (c *collection) endRun(r rates) (sum float64) {
	for _, o := range c.list {
		each := o.run / float64(o.count)
		limit, _ := r.limit(o.typ, o.op.Cost())
		o.within, o.withinShare = append(o.within, each), append(o.withinShare, limit/each)
		sum += o.run
		o.run = 0
	}
	c.runs++
	return sum
}

// shape writes an operation's sizes and switches, such as "M=8 N=2 K=4 TransB".
func shape(op device.Op) string {
	var parts []string
	v := reflect.ValueOf(op).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		switch f := v.Field(i); {
		case f.Kind() == reflect.Int:
			parts = append(parts, fmt.Sprintf("%s=%d", name, f.Int()))
		case f.Kind() == reflect.Bool && f.Bool():
			parts = append(parts, name)
		}
	}
	return strings.Join(parts, " ")
}

// operands writes which operands there are and their types, such as
// "A f32, B f32".
func operands(op device.Op) string {
	var parts []string
	for _, o := range device.Operands(op) {
		parts = append(parts, o.Name+" "+o.T.Type.String())
	}
	return strings.Join(parts, ", ")
}

// others returns operations that no training step has, over the memory of an
// AdamW that one has: its state is spoilt by them.
func others(step *collection) *collection {
	var of *device.AdamW
	seen, most := map[string]bool{}, 0
	for _, o := range step.list {
		seen[device.Name(o.op)] = true
		if a, ok := o.op.(*device.AdamW); ok && a.N*o.count > most {
			of, most = a, a.N*o.count
		}
	}
	c := newCollection(InNone)
	if of == nil {
		return c
	}
	as := func(t device.Tensor, typ device.DType, n int) device.Tensor {
		t.Type, t.Len = typ, int64(n)
		return t
	}
	for _, op := range []device.Op{
		&device.ReduceSum{Srcs: []device.Tensor{of.Param, of.M}, Dst: of.V, N: of.N},
		&device.CheckFinite{X: of.Param, Flag: as(of.V, device.I32, 1), N: of.N},
		&device.Cast{Src: of.Param, Dst: as(of.V, device.BF16, of.N), N: of.N},
		&device.Copy{Src: of.Param, Dst: of.V, N: of.N},
		&device.Fill{Dst: of.V, N: of.N},
	} {
		if !seen[device.Name(op)] {
			c.add(op, 0)
		}
	}
	return c
}

// result returns what was measured. program is the program's whole time in
// seconds; r are the limits that say what bounds the operation.
func (o *operation) result(program float64, r rates) Operation {
	cost := o.op.Cost()
	_, bound := r.limit(o.typ, cost)
	x := Operation{
		Program: o.program, Name: device.Name(o.op), Shape: o.shape, Operands: operands(o.op), Count: o.count, FLOPs: cost.FLOPs, Bytes: cost.Bytes, Bound: bound,
		Alone:  Timing{SpreadOf(o.alone), SpreadOf(o.aloneShare)},
		Within: Timing{SpreadOf(o.within), SpreadOf(o.withinShare)},
	}
	if program > 0 {
		x.Part = float64(o.count) * x.Within.Seconds.Median / program
		x.Lost = x.Part * max(1-x.Within.Share.Median, 0)
	}
	return x
}

// sorted returns the results of a program's operations, those first that lose
// most time.
func sorted(c *collection, program float64, r rates) []Operation {
	var list []Operation
	for _, o := range c.list {
		list = append(list, o.result(program, r))
	}
	slices.SortStableFunc(list, func(a, b Operation) int { return cmp.Compare(b.Lost, a.Lost) })
	return list
}

// KindTimes is all operations of one name, by run of their program.
type KindTimes struct {
	Name    string
	Count   int       // in a run
	Seconds []float64 // of all of them
	Limit   []float64 // the least seconds that they could have taken
}

// times puts a program's operations together by name, most time first.
func (c *collection) times() []KindTimes {
	var list []KindTimes
	at := map[string]int{}
	for _, o := range c.list {
		name := device.Name(o.op)
		i, seen := at[name]
		if !seen {
			i = len(list)
			at[name] = i
			list = append(list, KindTimes{Name: name, Seconds: make([]float64, c.runs), Limit: make([]float64, c.runs)})
		}
		k := &list[i]
		k.Count += o.count
		for run := range k.Seconds {
			t := float64(o.count) * o.within[run]
			k.Seconds[run] += t
			k.Limit[run] += t * o.withinShare[run]
		}
	}
	slices.SortFunc(list, func(a, b KindTimes) int {
		return cmp.Or(cmp.Compare(SpreadOf(b.Seconds).Median, SpreadOf(a.Seconds).Median), cmp.Compare(a.Name, b.Name))
	})
	return list
}

// kinds sums up a program's operations by name. program is its whole time.
func (c *collection) kinds(program float64) []Kind {
	var list []Kind
	for _, t := range c.times() {
		shares := make([]float64, c.runs)
		for run := range shares {
			shares[run] = t.Limit[run] / t.Seconds[run]
		}
		k := Kind{Name: t.Name, Count: t.Count, Seconds: SpreadOf(t.Seconds), Share: SpreadOf(shares)}
		k.Part = k.Seconds.Median / program
		k.Lost = k.Part * max(1-k.Share.Median, 0)
		list = append(list, k)
	}
	return list
}
