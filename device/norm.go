package device

// AddRMSNorm computes, for each row of Dim elements, Sum = X + Residual,
// RStd = 1/√(mean(Sum²) + Eps) and Out = Sum · RStd · Weight (Zhang and
// Sennrich, arXiv 1910.07467). Without Residual there is no Sum: X is it. RStd
// and Out come from Sum as stored, after its rounding, so that computing them
// again from the stored Sum alone gives the same bits.
type AddRMSNorm struct {
	X        Tensor `op:"r"` // [Rows,Dim]
	Residual Tensor `op:"r"` // [Rows,Dim] or absent
	Weight   Tensor `op:"r"` // [Dim]
	Sum      Tensor `op:"w"` // [Rows,Dim], with Residual; may be X or Residual
	Out      Tensor `op:"w"` // [Rows,Dim]
	RStd     Tensor `op:"w"` // [Rows] F32

	Rows, Dim int
	Eps       float32
}

// Check implements Op.
func (o *AddRMSNorm) Check() error {
	c := check(o)
	n := o.Rows * o.Dim
	c.positive("Rows", o.Rows)
	c.positive("Dim", o.Dim)
	c.tensor("X", o.X, false, n, F32, BF16, F64)
	c.tensor("Residual", o.Residual, true, n, o.X.Type)
	c.tensor("Weight", o.Weight, false, o.Dim, o.X.Type)
	c.tensor("Sum", o.Sum, o.Residual.Absent(), n, o.X.Type)
	c.tensor("Out", o.Out, false, n, o.X.Type)
	c.tensor("RStd", o.RStd, false, o.Rows, F32, F64)
	if o.Residual.Absent() && !o.Sum.Absent() {
		c.failf("Sum without Residual")
	}
	return c.err()
}

// Cost implements Op.
func (o *AddRMSNorm) Cost() Cost {
	return Cost{5 * int64(o.Rows) * int64(o.Dim), bytesOf(o.X, o.Residual, o.Weight, o.Sum, o.Out, o.RStd)}
}

// AddRMSNormBackward computes DX, the gradient of Sum (so of X and of Residual
// alike), from DOut and from DSum, which reaches Sum by the residual stream:
//
//	g = DOut·Weight
//	DX = DSum + RStd·(g − Sum·RStd²·mean(g·Sum))
//	DWeight (+)= Σ over rows, in order, of DOut·Sum·RStd
type AddRMSNormBackward struct {
	DOut    Tensor `op:"r"`   // [Rows,Dim]
	DSum    Tensor `op:"r"`   // [Rows,Dim] or absent
	Sum     Tensor `op:"r"`   // [Rows,Dim]: AddRMSNorm's Sum, or its X
	Weight  Tensor `op:"r"`   // [Dim]
	RStd    Tensor `op:"r"`   // [Rows]
	DX      Tensor `op:"w"`   // [Rows,Dim]; may be DOut or DSum
	DWeight Tensor `op:"acc"` // [Dim]; the type of DOut, or F32

	Rows, Dim  int
	Accumulate bool // add to what DWeight holds
}

// Check implements Op.
func (o *AddRMSNormBackward) Check() error {
	c := check(o)
	n := o.Rows * o.Dim
	c.positive("Rows", o.Rows)
	c.positive("Dim", o.Dim)
	c.tensor("DOut", o.DOut, false, n, F32, BF16, F64)
	c.tensor("DSum", o.DSum, true, n, o.DOut.Type)
	c.tensor("Sum", o.Sum, false, n, o.DOut.Type)
	c.tensor("Weight", o.Weight, false, o.Dim, o.DOut.Type)
	c.tensor("RStd", o.RStd, false, o.Rows, F32, F64)
	c.tensor("DX", o.DX, false, n, o.DOut.Type)
	c.tensor("DWeight", o.DWeight, false, o.Dim, o.DOut.Type, F32)
	return c.err()
}

// Cost implements Op.
func (o *AddRMSNormBackward) Cost() Cost {
	return Cost{10 * int64(o.Rows) * int64(o.Dim), bytesOf(o.DOut, o.DSum, o.Sum, o.Weight, o.RStd, o.DX, o.DWeight)}
}
