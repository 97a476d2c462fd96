package device

import "math"

// Embed copies row IDs[t] of Table to row t of Out: an embedding, or any
// gathering of rows.
type Embed struct {
	Table Tensor `op:"r"` // [Vocab,Dim]
	IDs   Tensor `op:"r"` // [Rows] I32: 0 ≤ id < Vocab
	Out   Tensor `op:"w"` // [Rows,Dim]

	Rows, Dim, Vocab int
}

// Check implements Op.
func (o *Embed) Check() error {
	c := check(o)
	c.positive("Rows", o.Rows)
	c.positive("Dim", o.Dim)
	c.positive("Vocab", o.Vocab)
	c.tensor("Table", o.Table, false, o.Vocab*o.Dim, F32, BF16, F64)
	c.tensor("IDs", o.IDs, false, o.Rows, I32)
	c.tensor("Out", o.Out, false, o.Rows*o.Dim, o.Table.Type)
	return c.err()
}

// Cost implements Op.
func (o *Embed) Cost() Cost { return Cost{0, 2*o.Out.Bytes() + o.IDs.Bytes()} }

// Reference implements Op. It copies bits.
func (o *Embed) Reference() {
	table, out, row := raw(o.Table), raw(o.Out), int(o.Table.Type.Size())*o.Dim
	for t, id := range o.IDs.I32() {
		mustIndex(o, "IDs", t, id, 0, int32(o.Vocab-1))
		copy(out[t*row:(t+1)*row], table[int(id)*row:])
	}
}

// EmbedBackward adds row t of DOut to row IDs[t] of DTable, t in order,
// and rounds a row once at the end. It always accumulates: where nothing was
// written before, Fill comes first.
type EmbedBackward struct {
	DOut   Tensor `op:"r"`  // [Rows,Dim]
	IDs    Tensor `op:"r"`  // [Rows] I32
	DTable Tensor `op:"rw"` // [Vocab,Dim]; the type of DOut, or F32

	Rows, Dim, Vocab int
}

// Check implements Op.
func (o *EmbedBackward) Check() error {
	c := check(o)
	c.positive("Rows", o.Rows)
	c.positive("Dim", o.Dim)
	c.positive("Vocab", o.Vocab)
	c.tensor("DOut", o.DOut, false, o.Rows*o.Dim, F32, BF16, F64)
	c.tensor("IDs", o.IDs, false, o.Rows, I32)
	c.tensor("DTable", o.DTable, false, o.Vocab*o.Dim, o.DOut.Type, F32)
	return c.err()
}

// Cost implements Op.
func (o *EmbedBackward) Cost() Cost {
	return Cost{o.DOut.Len, o.DOut.Bytes() + 2*o.DOut.Len*o.DTable.Type.Size() + o.IDs.Bytes()}
}

// Reference implements Op.
func (o *EmbedBackward) Reference() {
	dout, dtable := load(o.DOut), load(o.DTable)
	for t, id := range o.IDs.I32() {
		mustIndex(o, "IDs", t, id, 0, int32(o.Vocab-1))
		for i := range o.Dim {
			dtable[int(id)*o.Dim+i] += dout[t*o.Dim+i]
		}
	}
	store(o.DTable, dtable)
}

// SwiGLU computes Out = Gate/(1+e^−Gate) · Up, element by element (Shazeer,
// arXiv 2002.05202).
type SwiGLU struct {
	Gate Tensor `op:"r"` // [N]
	Up   Tensor `op:"r"` // [N]
	Out  Tensor `op:"w"` // [N]; may be Gate or Up

	N int
}

// Check implements Op.
func (o *SwiGLU) Check() error {
	c := check(o)
	c.positive("N", o.N)
	c.tensor("Gate", o.Gate, false, o.N, F32, BF16, F64)
	c.tensor("Up", o.Up, false, o.N, o.Gate.Type)
	c.tensor("Out", o.Out, false, o.N, o.Gate.Type)
	return c.err()
}

// Cost implements Op.
func (o *SwiGLU) Cost() Cost { return Cost{6 * int64(o.N), bytesOf(o.Gate, o.Up, o.Out)} }

// Reference implements Op.
func (o *SwiGLU) Reference() {
	gate, up := load(o.Gate), load(o.Up)
	for i, g := range gate {
		gate[i] = g * sigmoid(g) * up[i]
	}
	store(o.Out, gate)
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

// SwiGLUBackward computes, with σ = 1/(1+e^−Gate):
//
//	DUp = DOut·Gate·σ    DGate = DOut·Up·σ·(1 + Gate·(1−σ))
type SwiGLUBackward struct {
	Gate  Tensor `op:"r"` // [N]
	Up    Tensor `op:"r"` // [N]
	DOut  Tensor `op:"r"` // [N]
	DGate Tensor `op:"w"` // [N]; may be Gate or DOut
	DUp   Tensor `op:"w"` // [N]; may be Up

	N int
}

// Check implements Op.
func (o *SwiGLUBackward) Check() error {
	c := check(o)
	c.positive("N", o.N)
	c.tensor("Gate", o.Gate, false, o.N, F32, BF16, F64)
	c.tensor("Up", o.Up, false, o.N, o.Gate.Type)
	c.tensor("DOut", o.DOut, false, o.N, o.Gate.Type)
	c.tensor("DGate", o.DGate, false, o.N, o.Gate.Type)
	c.tensor("DUp", o.DUp, false, o.N, o.Gate.Type)
	return c.err()
}

// Cost implements Op.
func (o *SwiGLUBackward) Cost() Cost {
	return Cost{10 * int64(o.N), bytesOf(o.Gate, o.Up, o.DOut, o.DGate, o.DUp)}
}

// Reference implements Op.
func (o *SwiGLUBackward) Reference() {
	gate, up, dout := load(o.Gate), load(o.Up), load(o.DOut)
	dgate, dup := make([]float64, o.N), make([]float64, o.N)
	for i, g := range gate {
		s := sigmoid(g)
		dup[i] = dout[i] * g * s
		dgate[i] = dout[i] * up[i] * s * (1 + g*(1-s))
	}
	store(o.DGate, dgate)
	store(o.DUp, dup)
}
