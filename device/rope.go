package device

import "math"

// QKNormRoPE normalises each head of Q and K (Qwen3; only with QWeight and
// KWeight) as AddRMSNorm does a row, then rotates it by its position: with
// h = HeadSize/2, c = Cos[pos,i] and s = Sin[pos,i],
//
//	out[i]   = x[i]·c − x[i+h]·s
//	out[i+h] = x[i+h]·c + x[i]·s     for i < h
//
// which is the half-split order of Hugging Face's weights (Su et al., arXiv
// 2104.09864, pair (i, i+h)).
type QKNormRoPE struct {
	Q       Tensor `op:"r"` // [Rows,Heads,HeadSize]
	K       Tensor `op:"r"` // [Rows,KVHeads,HeadSize]
	QWeight Tensor `op:"r"` // [HeadSize] or absent
	KWeight Tensor `op:"r"` // [HeadSize], present with QWeight
	Pos     Tensor `op:"r"` // [Rows] I32: rows of Cos and Sin
	Cos     Tensor `op:"r"` // [Positions,HeadSize/2] F32
	Sin     Tensor `op:"r"` // [Positions,HeadSize/2] F32
	QOut    Tensor `op:"w"` // as Q; may be Q
	KOut    Tensor `op:"w"` // as K; may be K
	QRStd   Tensor `op:"w"` // [Rows,Heads] F32, with QWeight
	KRStd   Tensor `op:"w"` // [Rows,KVHeads] F32, with KWeight

	Rows, Heads, KVHeads, HeadSize, Positions int
	Eps                                       float32
}

// Check implements Op.
func (o *QKNormRoPE) Check() error {
	c := check(o)
	checkHeads(c, o.Rows, o.Heads, o.KVHeads, o.HeadSize)
	q, k := o.Rows*o.Heads, o.Rows*o.KVHeads
	norm := !o.QWeight.Absent()
	c.tensor("Q", o.Q, false, q*o.HeadSize, F32, BF16, F64)
	c.tensor("K", o.K, false, k*o.HeadSize, o.Q.Type)
	c.tensor("QWeight", o.QWeight, true, o.HeadSize, o.Q.Type)
	c.tensor("KWeight", o.KWeight, !norm, o.HeadSize, o.Q.Type)
	if !norm && !o.KWeight.Absent() {
		c.failf("KWeight without QWeight")
	}
	checkRotation(c, o.Q.Type, o.Pos, o.Cos, o.Sin, o.Rows, o.Positions, o.HeadSize)
	c.tensor("QOut", o.QOut, false, q*o.HeadSize, o.Q.Type)
	c.tensor("KOut", o.KOut, false, k*o.HeadSize, o.Q.Type)
	c.tensor("QRStd", o.QRStd, !norm, q, wide(o.Q.Type)...)
	c.tensor("KRStd", o.KRStd, !norm, k, wide(o.Q.Type)...)
	return c.err()
}

// Cost implements Op.
func (o *QKNormRoPE) Cost() Cost {
	return Cost{6 * (o.Q.Len + o.K.Len), bytesOf(o.Q, o.K, o.QOut, o.KOut, o.QRStd, o.KRStd)}
}

// Reference implements Op.
func (o *QKNormRoPE) Reference() {
	rotation := loadRotation(o, o.Pos, o.Cos, o.Sin, o.Positions, o.HeadSize)
	normRotate(rotation, o.Q, o.QWeight, o.QOut, o.QRStd, o.Heads, float64(o.Eps))
	normRotate(rotation, o.K, o.KWeight, o.KOut, o.KRStd, o.KVHeads, float64(o.Eps))
}

// normRotate normalises, where there is a weight, and rotates heads.
func normRotate(by rotation, x, weight, out, rstd Tensor, heads int, eps float64) {
	xs, n := load(x), 2*by.half
	if !weight.Absent() {
		w, rs := load(weight), make([]float64, len(by.pos)*heads)
		for h := range rs {
			head := xs[h*n : (h+1)*n]
			rs[h] = 1 / math.Sqrt(dot(head, head)/float64(n)+eps)
			for i := range head {
				head[i] *= rs[h] * w[i]
			}
		}
		store(rstd, rs)
	}
	by.rotate(xs, heads, 1)
	store(out, xs)
}

// rotation is each row's position and the tables of angles.
type rotation struct {
	pos      []int32
	cos, sin []float64
	half     int
}

func loadRotation(op Op, pos, cos, sin Tensor, positions, headSize int) rotation {
	for t, p := range pos.I32() {
		mustIndex(op, "Pos", t, p, 0, int32(positions-1))
	}
	return rotation{pos.I32(), load(cos), load(sin), headSize / 2}
}

// rotate turns every head of every row in place; sign −1 turns back.
func (r rotation) rotate(xs []float64, heads int, sign float64) {
	for t, p := range r.pos {
		for head := range heads {
			x := xs[(t*heads+head)*2*r.half:][:2*r.half]
			for i := range r.half {
				c, s := r.cos[int(p)*r.half+i], sign*r.sin[int(p)*r.half+i]
				x[i], x[i+r.half] = x[i]*c-x[i+r.half]*s, x[i+r.half]*c+x[i]*s
			}
		}
	}
}

// QKNormParts returns in how many parts the gradients of QWeight and KWeight may
// be summed, so that many cores have work and a part is long: by the shape
// alone, so that the order of the sums is the same on every device.
func QKNormParts(rows, heads int) int { return min((rows*heads+8191)/8192, 32) }

// QKNormRoPEBackward rotates the gradients back and, with QWeight and KWeight,
// goes through the norms. Without them it needs neither Q nor K.
type QKNormRoPEBackward struct {
	DQOut    Tensor `op:"r"`       // gradient of QOut
	DKOut    Tensor `op:"r"`       // gradient of KOut
	Q        Tensor `op:"r"`       // QKNormRoPE's inputs, with QWeight
	K        Tensor `op:"r"`       //
	QWeight  Tensor `op:"r"`       //
	KWeight  Tensor `op:"r"`       //
	QRStd    Tensor `op:"r"`       //
	KRStd    Tensor `op:"r"`       //
	Pos      Tensor `op:"r"`       //
	Cos      Tensor `op:"r"`       //
	Sin      Tensor `op:"r"`       //
	Parts    Tensor `op:"scratch"` // [QKNormParts(Rows,Heads),2,HeadSize] F32, with QWeight: a part's sums for Q, then for K
	DQ       Tensor `op:"w"`       // may be DQOut
	DK       Tensor `op:"w"`       // may be DKOut
	DQWeight Tensor `op:"acc"`     // [HeadSize], with QWeight; the type of DQ, or F32
	DKWeight Tensor `op:"acc"`     // [HeadSize], with KWeight

	Rows, Heads, KVHeads, HeadSize, Positions int
	Accumulate                                bool // add to DQWeight and DKWeight
}

// Check implements Op.
func (o *QKNormRoPEBackward) Check() error {
	c := check(o)
	checkHeads(c, o.Rows, o.Heads, o.KVHeads, o.HeadSize)
	q, k := o.Rows*o.Heads, o.Rows*o.KVHeads
	norm := !o.QWeight.Absent()
	c.tensor("DQOut", o.DQOut, false, q*o.HeadSize, F32, BF16, F64)
	typ := o.DQOut.Type
	c.tensor("DKOut", o.DKOut, false, k*o.HeadSize, typ)
	c.tensor("Q", o.Q, !norm, q*o.HeadSize, typ)
	c.tensor("K", o.K, !norm, k*o.HeadSize, typ)
	c.tensor("QWeight", o.QWeight, true, o.HeadSize, typ)
	c.tensor("KWeight", o.KWeight, !norm, o.HeadSize, typ)
	if !norm && !o.KWeight.Absent() {
		c.failf("KWeight without QWeight")
	}
	c.tensor("QRStd", o.QRStd, !norm, q, wide(typ)...)
	c.tensor("KRStd", o.KRStd, !norm, k, wide(typ)...)
	checkRotation(c, typ, o.Pos, o.Cos, o.Sin, o.Rows, o.Positions, o.HeadSize)
	c.tensor("Parts", o.Parts, !norm, QKNormParts(o.Rows, o.Heads)*2*o.HeadSize, wide(typ)...)
	c.tensor("DQ", o.DQ, false, q*o.HeadSize, typ)
	c.tensor("DK", o.DK, false, k*o.HeadSize, typ)
	c.tensor("DQWeight", o.DQWeight, !norm, o.HeadSize, typ, F32)
	c.tensor("DKWeight", o.DKWeight, !norm, o.HeadSize, typ, F32)
	return c.err()
}

// Cost implements Op.
func (o *QKNormRoPEBackward) Cost() Cost {
	return Cost{6 * (o.DQ.Len + o.DK.Len), bytesOf(o.DQOut, o.DKOut, o.Q, o.K, o.DQ, o.DK)}
}

// Reference implements Op.
func (o *QKNormRoPEBackward) Reference() {
	rotation := loadRotation(o, o.Pos, o.Cos, o.Sin, o.Positions, o.HeadSize)
	o.head(rotation, o.DQOut, o.Q, o.QWeight, o.QRStd, o.DQ, o.DQWeight, o.Heads)
	o.head(rotation, o.DKOut, o.K, o.KWeight, o.KRStd, o.DK, o.DKWeight, o.KVHeads)
}

func (o *QKNormRoPEBackward) head(by rotation, dout, x, weight, rstd, dx, dweight Tensor, heads int) {
	d := load(dout)
	by.rotate(d, heads, -1)
	if weight.Absent() {
		store(dx, d)
		return
	}
	xs, w, rs := load(x), load(weight), load(rstd)
	dxs, dw := make([]float64, len(xs)), loadAcc(dweight, o.Accumulate)
	for h, r := range rs {
		from, to := h*o.HeadSize, (h+1)*o.HeadSize
		normBackward(dxs[from:to], dw, d[from:to], xs[from:to], w, r)
	}
	store(dx, dxs)
	store(dweight, dw)
}

func checkHeads(c *checker, rows, heads, kvHeads, headSize int) {
	c.positive("Rows", rows)
	c.positive("Heads", heads)
	c.positive("KVHeads", kvHeads)
	c.positive("HeadSize", headSize)
	if headSize%2 != 0 {
		c.failf("HeadSize is %d, want an even number", headSize)
	}
	if kvHeads > 0 && heads%kvHeads != 0 {
		c.failf("Heads (%d) is no multiple of KVHeads (%d)", heads, kvHeads)
	}
}

func checkRotation(c *checker, typ DType, pos, cos, sin Tensor, rows, positions, headSize int) {
	c.positive("Positions", positions)
	c.tensor("Pos", pos, false, rows, I32)
	c.tensor("Cos", cos, false, positions*headSize/2, wide(typ)...)
	c.tensor("Sin", sin, false, positions*headSize/2, wide(typ)...)
}
