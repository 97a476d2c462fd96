package device

import "math"

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
	c.tensor("RStd", o.RStd, false, o.Rows, wide(o.X.Type)...)
	if o.Residual.Absent() && !o.Sum.Absent() {
		c.failf("Sum without Residual")
	}
	return c.err()
}

// Cost implements Op.
func (o *AddRMSNorm) Cost() Cost {
	return Cost{5 * int64(o.Rows) * int64(o.Dim), bytesOf(o.X, o.Residual, o.Weight, o.Sum, o.Out, o.RStd)}
}

// Reference implements Op.
func (o *AddRMSNorm) Reference() {
	sum, weight := load(o.X), load(o.Weight)
	if !o.Residual.Absent() {
		for i, r := range load(o.Residual) {
			sum[i] += r
		}
		store(o.Sum, sum)
		sum = load(o.Sum) // as stored
	}
	out, rstd := make([]float64, o.Rows*o.Dim), make([]float64, o.Rows)
	for r := range o.Rows {
		row := sum[r*o.Dim : (r+1)*o.Dim]
		rstd[r] = 1 / math.Sqrt(dot(row, row)/float64(o.Dim)+float64(o.Eps))
		for i, x := range row {
			out[r*o.Dim+i] = x * rstd[r] * weight[i]
		}
	}
	store(o.Out, out)
	store(o.RStd, rstd)
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
	c.tensor("RStd", o.RStd, false, o.Rows, wide(o.DOut.Type)...)
	c.tensor("DX", o.DX, false, n, o.DOut.Type)
	c.tensor("DWeight", o.DWeight, false, o.Dim, o.DOut.Type, F32)
	return c.err()
}

// Cost implements Op.
func (o *AddRMSNormBackward) Cost() Cost {
	return Cost{10 * int64(o.Rows) * int64(o.Dim), bytesOf(o.DOut, o.DSum, o.Sum, o.Weight, o.RStd, o.DX, o.DWeight)}
}

// Reference implements Op.
func (o *AddRMSNormBackward) Reference() {
	dout, sum, weight, rstd := load(o.DOut), load(o.Sum), load(o.Weight), load(o.RStd)
	dx, dweight := make([]float64, o.Rows*o.Dim), loadAcc(o.DWeight, o.Accumulate)
	if !o.DSum.Absent() {
		dx = load(o.DSum)
	}
	for r := range o.Rows {
		from, to := r*o.Dim, (r+1)*o.Dim
		normBackward(dx[from:to], dweight, dout[from:to], sum[from:to], weight, rstd[r])
	}
	store(o.DX, dx)
	store(o.DWeight, dweight)
}

// normBackward adds one row's gradients to dx and dweight.
func normBackward(dx, dweight, dout, x, weight []float64, rstd float64) {
	g := make([]float64, len(x))
	for i := range g {
		g[i] = dout[i] * weight[i]
	}
	mean := dot(g, x) / float64(len(x))
	for i := range g {
		dx[i] += rstd * (g[i] - x[i]*rstd*rstd*mean)
		dweight[i] += dout[i] * x[i] * rstd
	}
}
