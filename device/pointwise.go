package device

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

// EmbedBackward adds row t of DOut to row IDs[t] of DTable, t in order. It
// always accumulates: where nothing was written before, Fill comes first.
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
