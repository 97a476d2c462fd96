package device

// MatMul computes C[M,N] (+)= op(A)[M,K] · op(B)[K,N] + Bias[N].
//
// With weights W[out,in] the three products of a linear layer are: forward
// Y = X·Wᵀ (TransB), dX = dY·W (neither), dW = dYᵀ·X (TransA). Both transposed
// is refused. On the host in fp32 an element is one chain of fused
// multiply-adds in the order of K that starts from C (Accumulate), Bias or 0.
type MatMul struct {
	A    Tensor `op:"r"`   // [M,K], or [K,M] with TransA
	B    Tensor `op:"r"`   // [K,N], or [N,K] with TransB; the type of A
	Bias Tensor `op:"r"`   // [N] or absent; the type of A; not with Accumulate
	C    Tensor `op:"acc"` // [M,N]; the type of A, or F32

	M, N, K        int
	TransA, TransB bool
	Accumulate     bool // add to what C holds
}

// Check implements Op.
func (o *MatMul) Check() error {
	c := check(o)
	c.positive("M", o.M)
	c.positive("N", o.N)
	c.positive("K", o.K)
	c.tensor("A", o.A, false, o.M*o.K, F32, BF16, F64)
	c.tensor("B", o.B, false, o.K*o.N, o.A.Type)
	c.tensor("Bias", o.Bias, true, o.N, o.A.Type)
	c.tensor("C", o.C, false, o.M*o.N, o.A.Type, F32)
	if o.TransA && o.TransB {
		c.failf("both operands are transposed")
	}
	if o.Accumulate && !o.Bias.Absent() {
		c.failf("a bias cannot be added while accumulating")
	}
	return c.err()
}

// Cost implements Op.
func (o *MatMul) Cost() Cost {
	return Cost{2 * int64(o.M) * int64(o.N) * int64(o.K), bytesOf(o.A, o.B, o.Bias, o.C)}
}

// Reference implements Op.
func (o *MatMul) Reference() {
	a, b, c := load(o.A), load(o.B), loadAcc(o.C, o.Accumulate)
	var bias []float64
	if !o.Bias.Absent() {
		bias = load(o.Bias)
	}
	for m := range o.M {
		for n := range o.N {
			sum := c[m*o.N+n]
			if bias != nil {
				sum = bias[n]
			}
			for k := range o.K {
				i, j := m*o.K+k, k*o.N+n
				if o.TransA {
					i = k*o.M + m
				}
				if o.TransB {
					j = n*o.K + k
				}
				sum += a[i] * b[j]
			}
			c[m*o.N+n] = sum
		}
	}
	store(o.C, c)
}

// BiasBackward computes DBias[N] (+)= the sum over the rows of DOut[M,N], rows
// in order.
type BiasBackward struct {
	DOut  Tensor `op:"r"`   // [M,N]
	DBias Tensor `op:"acc"` // [N]; the type of DOut, or F32

	M, N       int
	Accumulate bool
}

// Check implements Op.
func (o *BiasBackward) Check() error {
	c := check(o)
	c.positive("M", o.M)
	c.positive("N", o.N)
	c.tensor("DOut", o.DOut, false, o.M*o.N, F32, BF16, F64)
	c.tensor("DBias", o.DBias, false, o.N, o.DOut.Type, F32)
	return c.err()
}

// Cost implements Op.
func (o *BiasBackward) Cost() Cost {
	return Cost{int64(o.M) * int64(o.N), bytesOf(o.DOut, o.DBias)}
}

// Reference implements Op.
func (o *BiasBackward) Reference() {
	dout, dbias := load(o.DOut), loadAcc(o.DBias, o.Accumulate)
	for m := range o.M {
		for n := range o.N {
			dbias[n] += dout[m*o.N+n]
		}
	}
	store(o.DBias, dbias)
}
