//go:build sim && cgo && linux

package sim

import (
	"fmt"
	"hash/fnv"
	"slices"
	"unsafe"

	host "github.com/gofsdp/gofsdp/device"
)

// The objects that describe a product to cuBLASLt: cublasLtMatmulDesc_t, cublasLtMatrixLayout_t and
// cublasLtMatmulPreference_t. They are the host's, of no context. As in libcublasLt 13.1, an attribute is checked for
// its size when it is set, and for its value when a product is asked for.
type (
	operation struct {
		name           string
		compute, scale int
		transA, transB int32
		epilogue       uint32
		bias           uint64
	}
	layout struct {
		name       string
		typ        int
		rows, cols uint64
		ld         int64
	}
	preference struct {
		name       string
		workspace  uint64
		schemes    uint32
		alignments [4]uint32 // of A, B, C and D, in bytes
	}
)

// ltState is what there is of them.
type ltState struct {
	operations  map[uintptr]*operation
	layouts     map[uintptr]*layout
	preferences map[uintptr]*preference
}

// Numbers of cublasLtMatmulDescAttributes_t, cublasLtMatmulPreferenceAttributes_t (the alignments of B, C and D follow
// that of A), cublasLtEpilogue_t and cublasLtReductionScheme_t: cublasLt.h.
const (
	ltTransA, ltTransB, ltEpilogue, ltBias            = 3, 4, 7, 8
	ltWorkspace, ltSchemes, ltAlignmentA              = 1, 3, 5
	epilogueDefault, epilogueBias                     = 1, 4
	schemeInPlace, schemeCompute, schemeOutput        = 1, 2, 4
	defaultSchemes, defaultAlignment                  = 7, 256
	operandAlignment, workspaceAlignment       uint64 = 16, 256 // of the simulator's algorithms
)

// names lists the objects that are left.
func (l *ltState) names() (all []string) {
	for _, o := range l.operations {
		all = append(all, o.name)
	}
	for _, o := range l.layouts {
		all = append(all, o.name)
	}
	for _, o := range l.preferences {
		all = append(all, o.name)
	}
	slices.Sort(all)
	return all
}

// describes makes an object of cuBLASLt's, and its handle in *to.
func describes[T any](m *Machine, objects map[uintptr]*T, kind int, to *uintptr, make func(name string) *T) error {
	if to == nil {
		return decline(BLASInvalidValue, "a null pointer for the %s", kindNames[kind])
	}
	*to = m.handle(kind)
	objects[*to] = make(fmt.Sprintf("%s %d", kindNames[kind], number(*to)))
	return nil
}

// drops destroys one; there may be none.
func drops[T any](objects map[uintptr]*T, kind int, handle uintptr) error {
	if handle == 0 {
		return nil
	}
	_, err := described(objects, kind, handle)
	delete(objects, handle)
	return err
}

// described finds one. The library would read whatever is there.
func described[T any](objects map[uintptr]*T, kind int, handle uintptr) (*T, error) {
	o, err := find(objects, kind, handle)
	return o, declineFor(BLASInvalidValue, err)
}

// sets copies an attribute's value, which is n bytes at from, to what is of that number.
func sets(of map[int][]byte, attribute int, from unsafe.Pointer, n uint64) error {
	to, ok := of[attribute]
	switch {
	case !ok:
		return decline(BLASInvalidValue, "attribute %d, of which the simulator has none", attribute)
	case from == nil:
		return decline(BLASInvalidValue, "a null pointer for attribute %d", attribute)
	case n != uint64(len(to)):
		return decline(BLASInvalidValue, "%d bytes for attribute %d, which has %d", n, attribute, len(to))
	}
	copy(to, unsafe.Slice((*byte)(from), n))
	return nil
}

// raw is a number's memory.
func raw[T any](x *T) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(x)), unsafe.Sizeof(*x)) }

func (o *operation) attributes() map[int][]byte {
	return map[int][]byte{ltTransA: raw(&o.transA), ltTransB: raw(&o.transB), ltEpilogue: raw(&o.epilogue), ltBias: raw(&o.bias)}
}

func (p *preference) attributes() map[int][]byte {
	all := map[int][]byte{ltWorkspace: raw(&p.workspace), ltSchemes: raw(&p.schemes)}
	for i := range p.alignments {
		all[ltAlignmentA+i] = raw(&p.alignments[i])
	}
	return all
}

// problem is a product's operation and the layouts of A, B, C and D.
type problem struct {
	*operation
	layouts [4]*layout
}

// problem finds them.
func (m *Machine) problem(op uintptr, layouts [4]uintptr) (p problem, err error) {
	if p.operation, err = described(m.lt.operations, kindOperation, op); err != nil {
		return p, err
	}
	for i, l := range layouts {
		if p.layouts[i], err = described(m.lt.layouts, kindLayout, l); err != nil {
			return p, err
		}
	}
	return p, nil
}

// product checks what is described, for matrices at four addresses, and returns it.
func (p *problem) product(alpha, beta *float32, a, b, d uint64) (*product, error) {
	la, lb, lc, ld := p.layouts[0], p.layouts[1], p.layouts[2], p.layouts[3]
	if c := (layout{ld.name, lc.typ, lc.rows, lc.cols, lc.ld}); c != *ld {
		return nil, decline(BLASNotSupported, "C is described as %+v, and the result as %+v: the simulator's results lie where C does", *lc, *ld)
	}
	g := gemmArguments{
		transA: int(p.transA), transB: int(p.transB), m: int(ld.rows), n: int(ld.cols), k: int(la.cols),
		alpha: alpha, beta: beta, a: a, b: b, c: d, typeA: la.typ, typeB: lb.typ, typeC: ld.typ,
		ldA: int(la.ld), ldB: int(lb.ld), ldC: int(ld.ld), compute: p.compute, algorithm: -1,
	}
	if g.transA != 0 {
		g.k = int(la.rows)
	}
	x, err := g.check()
	if err != nil {
		return nil, err
	}
	for i, want := range []matrix{x.a, x.b} {
		if l := p.layouts[i]; int(l.rows) != want.rows || int(l.cols) != want.cols {
			return nil, decline(BLASInvalidValue, "%s is described as %d × %d, and the product needs %d × %d", want.name, l.rows, l.cols, want.rows, want.cols)
		}
	}
	switch {
	case p.scale != typeF32:
		return nil, decline(BLASNotSupported, "alpha and beta of type %d: the simulator has fp32 (0)", p.scale)
	case x.m == 0 || x.n == 0:
		return nil, decline(BLASInvalidValue, "a product of %d × %d × %d", x.m, x.n, x.k)
	case p.epilogue == epilogueBias && p.bias == 0:
		return nil, decline(BLASInvalidValue, "an epilogue that adds a bias, and no bias")
	case p.epilogue == epilogueBias:
		x.bias = &matrix{"the bias", p.bias, x.c.typ, x.m, 1, x.m}
	case p.epilogue != epilogueDefault:
		return nil, decline(BLASNotSupported, "epilogue %d: the simulator has the default (1) and a bias (4)", p.epilogue)
	}
	return x, nil
}

// way is an algorithm of the simulator's, in the first words of a cublasLtMatmulAlgo_t: how parts of a sum are added,
// the workspace that takes, what product it was chosen for, and how A, B, C and D are aligned then.
type way struct {
	scheme, workspace, of uint64
	alignments            [4]uint32
}

const wayMark = 0x51a1_9047_0000_0000

// of tells products apart that have algorithms of their own.
func (p *problem) of() uint64 {
	o, h := *p.operation, fnv.New64a()
	o.name, o.bias = "", 0
	fmt.Fprint(h, o)
	for _, l := range p.layouts {
		fmt.Fprint(h, l.typ, l.rows, l.cols, l.ld, ";")
	}
	return h.Sum64()
}

// choose is cublasLtMatmulAlgoGetHeuristic for one algorithm: the way that a device is quickest with, of those that are
// allowed. There is none for A, B, a result and a bias that are not at multiples of 16 bytes.
func (p *problem) choose(by *preference) (way, bool, error) {
	one := float32(1)
	x, err := p.product(&one, new(float32), 0, 0, 0)
	if err != nil {
		return way{}, false, err
	}
	for _, n := range []uint64{uint64(by.alignments[0]), uint64(by.alignments[1]), uint64(by.alignments[3]), p.bias} {
		if n%operandAlignment != 0 {
			return way{}, false, nil
		}
	}
	elements := uint64(x.m * x.n)
	best := way{of: p.of(), alignments: by.alignments} // a sum in one sequence
	for _, w := range []struct{ scheme, workspace uint64 }{
		{schemeOutput, 2 * elements * uint64(x.c.typ.Size())},
		{schemeInPlace, 4096},
		{schemeCompute, 2 * elements * uint64(host.F32.Size())},
	} {
		if uint64(by.schemes)&w.scheme != 0 && w.workspace <= by.workspace {
			best.scheme, best.workspace = w.scheme, w.workspace
			break
		}
	}
	return best, true, nil
}

func (w way) write(to []uint64) {
	to[0], to[1], to[2] = wayMark|w.scheme, w.workspace, w.of
	copy(unsafe.Slice((*uint32)(unsafe.Pointer(&to[3])), 4), w.alignments[:])
}

// wayOf reads an algorithm for a product.
func (p *problem) wayOf(from []uint64) (way, error) {
	if from == nil {
		return way{}, decline(BLASNotSupported, "no algorithm: the simulator makes no choice of its own")
	}
	w := way{scheme: from[0] &^ wayMark, workspace: from[1], of: from[2]}
	copy(w.alignments[:], unsafe.Slice((*uint32)(unsafe.Pointer(&from[3])), 4))
	switch {
	case from[0]&^7 != wayMark:
		return w, decline(BLASInvalidValue, "an algorithm that cublasLtMatmulAlgoGetHeuristic has not returned")
	case w.of != p.of():
		return w, decline(BLASInvalidValue, "an algorithm that was chosen for another product")
	}
	return w, nil
}

// matmul is cublasLtMatmul of a product that has been checked, with n bytes of workspace.
func (h *blas) matmul(p *product, w way, workspace, n uint64, stream uintptr) error {
	for i, x := range []*matrix{&p.a, &p.b, &p.c, &p.c} {
		if n := uint64(w.alignments[i]); n != 0 && x.addr%n != 0 {
			return decline(BLASInvalidValue, "%s at %#x, which is no multiple of the %d bytes that were preferred", x.name, x.addr, n)
		}
	}
	if x := p.bias; x != nil && x.addr%operandAlignment != 0 {
		return decline(BLASInvalidValue, "%s at %#x, which is no multiple of the %d bytes that the algorithm takes", x.name, x.addr, operandAlignment)
	}
	if n < w.workspace {
		return decline(BLASInvalidValue, "a workspace of %d bytes for an algorithm that takes %d", n, w.workspace)
	}
	own, err := h.room(workspace, n)
	if err != nil {
		return err
	}
	var loose error
	if p.c.typ == host.BF16 && w.scheme&(schemeInPlace|schemeOutput) != 0 {
		loose = &unnoticed{fmt.Sprintf("reduction scheme %d, by which parts of a sum are rounded to bf16", w.scheme)}
	}
	return h.submit("cublasLtMatmul", stream, p, own, loose)
}
