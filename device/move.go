package device

// Cast converts Src to the type of Dst, rounding to nearest even.
type Cast struct {
	Src Tensor `op:"r"` // [N]
	Dst Tensor `op:"w"` // [N]

	N int
}

// Check implements Op.
func (o *Cast) Check() error {
	c := check(o)
	c.positive("N", o.N)
	c.tensor("Src", o.Src, false, o.N, F32, BF16, F64)
	c.tensor("Dst", o.Dst, false, o.N, F32, BF16, F64)
	return c.err()
}

// Cost implements Op.
func (o *Cast) Cost() Cost { return Cost{0, bytesOf(o.Src, o.Dst)} }

// Reference implements Op.
func (o *Cast) Reference() { store(o.Dst, load(o.Src)) }

// Copy copies Src to Dst, of one type. Either may lie in host memory.
type Copy struct {
	Src Tensor `op:"r"` // [N]
	Dst Tensor `op:"w"` // [N]

	N int
}

// Check implements Op.
func (o *Copy) Check() error {
	c := check(o)
	c.positive("N", o.N)
	c.tensor("Src", o.Src, false, o.N, F32, BF16, I32, F64)
	c.tensor("Dst", o.Dst, false, o.N, o.Src.Type)
	return c.err()
}

// Cost implements Op.
func (o *Copy) Cost() Cost { return Cost{0, bytesOf(o.Src, o.Dst)} }

// Reference implements Op. It copies bits.
func (o *Copy) Reference() { copy(raw(o.Dst), raw(o.Src)) }

// Fill sets every element to Value.
type Fill struct {
	Dst Tensor `op:"w"` // [N]

	N     int
	Value float32
}

// Check implements Op.
func (o *Fill) Check() error {
	c := check(o)
	c.positive("N", o.N)
	c.tensor("Dst", o.Dst, false, o.N, F32, BF16, I32, F64)
	return c.err()
}

// Cost implements Op.
func (o *Fill) Cost() Cost { return Cost{0, o.Dst.Bytes()} }

// Reference implements Op.
func (o *Fill) Reference() {
	if o.Dst.Type == I32 {
		for i := range o.Dst.I32() {
			o.Dst.I32()[i] = int32(o.Value)
		}
		return
	}
	xs := make([]float64, o.N)
	for i := range xs {
		xs[i] = float64(o.Value)
	}
	store(o.Dst, xs)
}
