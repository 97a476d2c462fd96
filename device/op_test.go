package device_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	. "github.com/gofsdp/gofsdp/device"
	"github.com/gofsdp/gofsdp/internal/optest"
)

func TestOpsListsEveryTypeThatHasAReference(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var declared, listed []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil && f.Name.Name == "Reference" {
				declared = append(declared, f.Recv.List[0].Type.(*ast.StarExpr).X.(*ast.Ident).Name)
			}
		}
	}
	for _, op := range Ops() {
		listed = append(listed, Name(op))
	}
	slices.Sort(declared)
	slices.Sort(listed)
	if !slices.Equal(declared, listed) {
		t.Fatalf("declared %v\nlisted   %v", declared, listed)
	}
}

func TestRandomCasesMakeEveryOperation(t *testing.T) {
	made := map[string]bool{}
	for _, c := range optest.Cases(t, optest.Rand(t), F32) {
		made[Name(c.Op)] = true
	}
	for _, op := range Ops() {
		if !made[Name(op)] {
			t.Errorf("no case of %s", Name(op))
		}
	}
}

func TestEveryTensorFieldSaysItsAccess(t *testing.T) {
	for _, op := range Ops() {
		v := reflect.ValueOf(op).Elem()
		fields := 0
		for i := range v.NumField() {
			f := v.Field(i)
			switch f.Interface().(type) {
			case Tensor:
				f.Set(reflect.ValueOf(Tensor{Type: F32, Len: 1}))
			case []Tensor:
				f.Set(reflect.ValueOf([]Tensor{{Type: F32, Len: 1}}))
			default:
				continue
			}
			fields++
		}
		operands := Operands(op) // panics where a tag is missing
		if len(operands) != fields {
			t.Errorf("%s has %d tensor fields and %d operands", Name(op), fields, len(operands))
		}
		if !slices.ContainsFunc(operands, func(o Operand) bool { return o.Access&Write != 0 }) {
			t.Errorf("%s writes nothing", Name(op))
		}
	}
}

func TestAccumulatingReadsWhatItWrites(t *testing.T) {
	op := &BiasBackward{DOut: Tensor{Type: F32}, DBias: Tensor{Type: F32}}
	for accumulate, want := range map[bool]string{false: "DOut:r DBias:w", true: "DOut:r DBias:rw"} {
		op.Accumulate = accumulate
		var got []string
		for _, o := range Operands(op) {
			got = append(got, o.Name+":"+o.Access.String())
		}
		if strings.Join(got, " ") != want {
			t.Errorf("Accumulate %v: %v", accumulate, got)
		}
	}
}

func TestAClonesOperandsAreItsOwn(t *testing.T) {
	op := &ReduceSum{Srcs: []Tensor{{Type: F32}, {Type: F32}}, Dst: Tensor{Type: F32}, N: 3}
	c := Clone(op).(*ReduceSum)
	for _, o := range Operands(c) {
		o.T.Addr = 7
	}
	if op.Srcs[0].Addr != 0 || op.Srcs[1].Addr != 0 || op.Dst.Addr != 0 {
		t.Fatal("a clone's operand changed the original")
	}
	if c.Srcs[1].Addr != 7 || c.Dst.Addr != 7 || c.N != 3 {
		t.Fatal("writing to an Operand's T does not change the operation")
	}
}

func TestCheckSaysAllThatIsWrongAtOnce(t *testing.T) {
	f := func(n int64) Tensor { return Tensor{Type: F32, Len: n} }
	ints := func(n int64) Tensor { return Tensor{Type: I32, Len: n} }
	for name, c := range map[string]struct {
		op   Op
		want []string
	}{
		"a right one": {&Copy{Src: f(3), Dst: f(3), N: 3}, nil},
		"an empty one": {&Copy{}, []string{
			"Copy: N is 0, want at least 1", "Copy: Src is missing", "Copy: Dst is missing",
		}},
		"wrong lengths and types": {&Embed{Table: f(7), IDs: f(2), Out: Tensor{Type: BF16, Len: 6}, Rows: 2, Dim: 3, Vocab: 2}, []string{
			"Embed: Table has 7 elements, want 6", "Embed: IDs is f32, want one of [i32]", "Embed: Out is bf16, want one of [f32]",
		}},
		"a product of two transposed": {&MatMul{A: f(1), B: f(1), C: f(1), Bias: f(1), M: 1, N: 1, K: 1, TransA: true, TransB: true, Accumulate: true}, []string{
			"MatMul: both operands are transposed", "MatMul: a bias cannot be added while accumulating",
		}},
		"a sum without a residual": {&AddRMSNorm{X: f(2), Weight: f(2), Sum: f(2), Out: f(2), RStd: f(1), Rows: 1, Dim: 2}, []string{
			"AddRMSNorm: Sum without Residual",
		}},
		"a residual without a sum": {&AddRMSNorm{X: f(2), Residual: f(2), Weight: f(2), Out: f(2), RStd: f(1), Rows: 1, Dim: 2}, []string{
			"AddRMSNorm: Sum is missing",
		}},
		"heads that do not divide": {&Attention{
			Q: f(18), K: f(12), V: f(12), Start: ints(1), Out: f(18), LSE: f(3),
			Seqs: 1, SeqLen: 1, Heads: 3, KVHeads: 2, HeadSize: 6,
		}, []string{"Attention: Heads (3) is no multiple of KVHeads (2)"}},
		"an odd head": {&Attention{
			Q: f(3), K: f(3), V: f(3), Start: ints(1), Out: f(3), LSE: f(1),
			Seqs: 1, SeqLen: 1, Heads: 1, KVHeads: 1, HeadSize: 3,
		}, []string{"Attention: HeadSize is 3, want an even number"}},
		"a norm of queries alone": {&QKNormRoPE{
			Q: f(2), K: f(2), QWeight: f(2), Pos: ints(1), Cos: f(1), Sin: f(1), QOut: f(2), KOut: f(2), QRStd: f(1), KRStd: f(1),
			Rows: 1, Heads: 1, KVHeads: 1, HeadSize: 2, Positions: 1,
		}, []string{"QKNormRoPE: KWeight is missing"}},
		"a norm of keys alone": {&QKNormRoPE{
			Q: f(2), K: f(2), KWeight: f(2), Pos: ints(1), Cos: f(1), Sin: f(1), QOut: f(2), KOut: f(2), KRStd: f(1),
			Rows: 1, Heads: 1, KVHeads: 1, HeadSize: 2, Positions: 1,
		}, []string{"QKNormRoPE: KWeight without QWeight"}},
		"a backward without scale": {&HeadLoss{Logits: f(3), Targets: ints(1), Loss: f(1), Rows: 1, Vocab: 3, Backward: true}, []string{
			"HeadLoss: Scale is missing",
		}},
		"sources of two types": {&ReduceSum{Srcs: []Tensor{{Type: BF16, Len: 2}, f(2)}, Dst: Tensor{Type: F64, Len: 2}, N: 2}, []string{
			"ReduceSum: Srcs[1] is f32, Srcs[0] is bf16", "ReduceSum: Dst is f64, want one of [f32 bf16]",
		}},
		"statistics wider than need be": {&HeadLoss{Logits: f(3), Targets: ints(1), Loss: Tensor{Type: F64, Len: 1}, Rows: 1, Vocab: 3}, []string{
			"HeadLoss: Loss is f64, want one of [f32]",
		}},
		"no sources": {&ReduceSum{Dst: f(2), N: 2}, []string{"ReduceSum: the number of sources is 0, want at least 1"}},
		"stochastic rounding of nothing": {&AdamW{Param: f(1), M: f(1), V: f(1), Grad: f(1), Hyper: f(HyperLen), N: 1, Stochastic: true}, []string{
			"AdamW: stochastic rounding without a bf16 copy",
		}},
	} {
		var got string
		if err := c.op.Check(); err != nil {
			got = err.Error()
		}
		if want := strings.Join(c.want, "\n"); got != want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, want)
		}
	}
}

func TestEveryCheckNamesOperationAndEveryMissingOperand(t *testing.T) {
	for _, op := range Ops() {
		err := op.Check()
		if err == nil {
			t.Errorf("an empty %s is right", Name(op))
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		for _, line := range lines {
			if !strings.HasPrefix(line, Name(op)+": ") {
				t.Errorf("%s: %q", Name(op), line)
			}
		}
		v := reflect.TypeOf(op).Elem()
		if last := v.Field(0).Name; last != "Srcs" && !strings.Contains(err.Error(), last+" is missing") {
			t.Errorf("%s does not miss %s", Name(op), last)
		}
	}
}

func TestFormatIsOneStableLine(t *testing.T) {
	op := &MatMul{
		A: Tensor{Type: BF16, Len: 6}, B: Tensor{Type: BF16, Len: 12, Buf: 3, Off: 256}, C: Tensor{Type: F32, Len: 8},
		M: 2, N: 4, K: 3, TransB: true,
	}
	if got := Format(op); got != "MatMul M=2 N=4 K=3 TransB: A bf16[6], B bf16[12]@3+256, C f32[8]" {
		t.Fatal(got)
	}
}
