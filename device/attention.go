package device

import "math"

// Attention is causal self-attention over Seqs sequences of SeqLen rows each.
// Row i of a sequence attends to its rows Start[i]..i, so that documents that
// share a sequence do not see each other. Query head h reads key-value head
// h/(Heads/KVHeads).
//
//	p = softmax(Scale·q·kᵀ)    Out = p·v    LSE = log Σ exp(Scale·q·kᵀ)
//
// The score matrix is never stored (Dao, arXiv 2307.08691). In bf16, p may be
// rounded to bf16 before it is multiplied with v, as it is there.
type Attention struct {
	Q     Tensor `op:"r"` // [Seqs·SeqLen,Heads,HeadSize]
	K     Tensor `op:"r"` // [Seqs·SeqLen,KVHeads,HeadSize]
	V     Tensor `op:"r"` // as K
	Start Tensor `op:"r"` // [Seqs·SeqLen] I32: 0 ≤ Start[i] ≤ i, i within its sequence
	Out   Tensor `op:"w"` // as Q
	LSE   Tensor `op:"w"` // [Seqs·SeqLen,Heads] F32

	Seqs, SeqLen, Heads, KVHeads, HeadSize int
	Scale                                  float32
}

// Check implements Op.
func (o *Attention) Check() error {
	c := check(o)
	rows := o.Seqs * o.SeqLen
	checkHeads(c, rows, o.Heads, o.KVHeads, o.HeadSize)
	q, k := rows*o.Heads*o.HeadSize, rows*o.KVHeads*o.HeadSize
	c.tensor("Q", o.Q, false, q, F32, BF16, F64)
	c.tensor("K", o.K, false, k, o.Q.Type)
	c.tensor("V", o.V, false, k, o.Q.Type)
	c.tensor("Start", o.Start, false, rows, I32)
	c.tensor("Out", o.Out, false, q, o.Q.Type)
	c.tensor("LSE", o.LSE, false, rows*o.Heads, wide(o.Q.Type)...)
	return c.err()
}

// Cost implements Op: two products, half of each by causality.
func (o *Attention) Cost() Cost {
	return Cost{
		2 * int64(o.Seqs) * int64(o.Heads) * int64(o.HeadSize) * int64(o.SeqLen) * int64(o.SeqLen),
		bytesOf(o.Q, o.K, o.V, o.Out, o.LSE),
	}
}

// Reference implements Op.
func (o *Attention) Reference() {
	q, k, v := load(o.Q), load(o.K), load(o.V)
	out, lse := make([]float64, len(q)), make([]float64, o.Seqs*o.SeqLen*o.Heads)
	h := heads{o.Heads, o.KVHeads, o.HeadSize}
	for t, start := range o.Start.I32() {
		first := t - t%o.SeqLen // of the sequence
		mustIndex(o, "Start", t, start, 0, int32(t-first))
		for head := range o.Heads {
			lse[t*o.Heads+head] = h.attend(h.query(out, t, head), h.query(q, t, head), k, v,
				first+int(start), t+1, head, float64(o.Scale))
		}
	}
	store(o.Out, out)
	store(o.LSE, lse)
}

// heads finds a row's heads.
type heads struct{ heads, kvHeads, size int }

func (h heads) query(x []float64, t, head int) []float64 {
	return x[(t*h.heads+head)*h.size:][:h.size]
}

// key returns the key or value that a query head reads.
func (h heads) key(x []float64, t, head int) []float64 {
	return x[(t*h.kvHeads+head/(h.heads/h.kvHeads))*h.size:][:h.size]
}

// attend lets one query head attend to rows from..to-1 and returns its LSE.
func (h heads) attend(out, q, k, v []float64, from, to, head int, scale float64) float64 {
	scores, most, sum := make([]float64, to-from), math.Inf(-1), 0.0
	for j := range scores {
		scores[j] = scale * dot(q, h.key(k, from+j, head))
		most = max(most, scores[j])
	}
	for j, s := range scores {
		scores[j] = math.Exp(s - most)
		sum += scores[j]
	}
	for j, p := range scores {
		for i, x := range h.key(v, from+j, head) {
			out[i] += p / sum * x
		}
	}
	return most + math.Log(sum)
}

// AttentionParts returns in how many parts AttentionBackward sums over the query
// heads of a key-value head, neighbouring heads each, which are then added in
// order. One core goes over all queries that see one of 64 keys, so a short
// micro-batch of a model with few key-value heads has work for few: parts make
// that work for about 128. The shape alone decides, so that the order of the
// sums is the same on every device. In fp32, whose speed does not matter, there
// is one part.
func AttentionParts(typ DType, seqs, seqLen, heads, kvHeads int) int {
	if typ != BF16 {
		return 1
	}
	const tile, enough = 64, 128
	group, work := heads/kvHeads, seqs*kvHeads*((seqLen+tile-1)/tile)
	parts := min(group, (enough+work-1)/work)
	per := (group + parts - 1) / parts
	return (group + per - 1) / per
}

// AttentionBackward recomputes p from LSE. With D = Σ DOut·Out of a row:
//
//	ds = p·(DOut·vᵀ − D)    DQ = Scale·ds·k    DK = Scale·dsᵀ·q    DV = pᵀ·DOut
//
// The query heads of a key-value head are summed in order. In bf16, p and ds
// may be rounded to bf16 before they are multiplied with k, q and DOut.
type AttentionBackward struct {
	Q     Tensor `op:"r"` // as in Attention
	K     Tensor `op:"r"`
	V     Tensor `op:"r"`
	Start Tensor `op:"r"`
	Out   Tensor `op:"r"`
	LSE   Tensor `op:"r"`
	DOut  Tensor `op:"r"`       // as Q
	D     Tensor `op:"scratch"` // [Seqs·SeqLen,Heads] F32
	Parts Tensor `op:"scratch"` // [AttentionParts(...),2,Seqs·SeqLen,KVHeads,HeadSize] F32: a part's DK, DV; absent where there is one part
	DQ    Tensor `op:"w"`       // as Q
	DK    Tensor `op:"w"`       // as K
	DV    Tensor `op:"w"`       // as K

	Seqs, SeqLen, Heads, KVHeads, HeadSize int
	Scale                                  float32
}

// Check implements Op.
func (o *AttentionBackward) Check() error {
	c := check(o)
	rows := o.Seqs * o.SeqLen
	checkHeads(c, rows, o.Heads, o.KVHeads, o.HeadSize)
	q, k := rows*o.Heads*o.HeadSize, rows*o.KVHeads*o.HeadSize
	c.tensor("Q", o.Q, false, q, F32, BF16, F64)
	typ := o.Q.Type
	c.tensor("K", o.K, false, k, typ)
	c.tensor("V", o.V, false, k, typ)
	c.tensor("Start", o.Start, false, rows, I32)
	c.tensor("Out", o.Out, false, q, typ)
	c.tensor("LSE", o.LSE, false, rows*o.Heads, wide(typ)...)
	c.tensor("DOut", o.DOut, false, q, typ)
	c.tensor("D", o.D, false, rows*o.Heads, wide(typ)...)
	if o.Heads > 0 && o.KVHeads > 0 && rows > 0 {
		parts := AttentionParts(typ, o.Seqs, o.SeqLen, o.Heads, o.KVHeads)
		if parts == 1 && !o.Parts.Absent() {
			c.failf("Parts where there is one part")
		}
		c.tensor("Parts", o.Parts, parts == 1, parts*2*k, F32)
	}
	c.tensor("DQ", o.DQ, false, q, typ)
	c.tensor("DK", o.DK, false, k, typ)
	c.tensor("DV", o.DV, false, k, typ)
	return c.err()
}

// Cost implements Op: five products, half of each by causality.
func (o *AttentionBackward) Cost() Cost {
	return Cost{
		5 * int64(o.Seqs) * int64(o.Heads) * int64(o.HeadSize) * int64(o.SeqLen) * int64(o.SeqLen),
		bytesOf(o.Q, o.K, o.V, o.Out, o.LSE, o.DOut, o.DQ, o.DK, o.DV),
	}
}

// Reference implements Op.
func (o *AttentionBackward) Reference() {
	q, k, v, out, lse, dout := load(o.Q), load(o.K), load(o.V), load(o.Out), load(o.LSE), load(o.DOut)
	dq, dk, dv := make([]float64, len(q)), make([]float64, len(k)), make([]float64, len(v))
	d := make([]float64, len(lse))
	h, scale := heads{o.Heads, o.KVHeads, o.HeadSize}, float64(o.Scale)
	for t, start := range o.Start.I32() {
		first := t - t%o.SeqLen
		mustIndex(o, "Start", t, start, 0, int32(t-first))
		for head := range o.Heads {
			th := t*o.Heads + head
			qt, dt, dqt := h.query(q, t, head), h.query(dout, t, head), h.query(dq, t, head)
			d[th] = dot(dt, h.query(out, t, head))
			for j := first + int(start); j <= t; j++ {
				kj, dkj, dvj := h.key(k, j, head), h.key(dk, j, head), h.key(dv, j, head)
				p := math.Exp(scale*dot(qt, kj) - lse[th])
				ds := p * (dot(dt, h.key(v, j, head)) - d[th])
				for i := range o.HeadSize {
					dqt[i] += scale * ds * kj[i]
					dkj[i] += scale * ds * qt[i]
					dvj[i] += p * dt[i]
				}
			}
		}
	}
	store(o.D, d)
	store(o.DQ, dq)
	store(o.DK, dk)
	store(o.DV, dv)
}

// AttentionDecode continues Seqs sequences by SeqLen rows each. Sequence s has
// Cached[s] rows in its cache. The new rows' keys and values are written to the
// cache at Cached[s]+i, then row i attends to cache rows 0..Cached[s]+i. Rows
// that would lie at or beyond CacheLen are skipped: nothing is cached for them
// and their Out is zero. Who prefills with fewer real rows than SeqLen ignores
// the surplus outputs and counts only the real rows as cached: what the others
// left in the cache is overwritten before any row attends to it.
type AttentionDecode struct {
	Q      Tensor `op:"r"`  // [Seqs·SeqLen,Heads,HeadSize]
	K      Tensor `op:"r"`  // [Seqs·SeqLen,KVHeads,HeadSize]
	V      Tensor `op:"r"`  // as K
	Cached Tensor `op:"r"`  // [Seqs] I32
	KCache Tensor `op:"rw"` // [Seqs,CacheLen,KVHeads,HeadSize]
	VCache Tensor `op:"rw"` // as KCache
	Out    Tensor `op:"w"`  // as Q

	Seqs, SeqLen, CacheLen, Heads, KVHeads, HeadSize int
	Scale                                            float32
}

// Check implements Op.
func (o *AttentionDecode) Check() error {
	c := check(o)
	rows := o.Seqs * o.SeqLen
	checkHeads(c, rows, o.Heads, o.KVHeads, o.HeadSize)
	c.positive("CacheLen", o.CacheLen)
	q, k, cache := rows*o.Heads*o.HeadSize, rows*o.KVHeads*o.HeadSize, o.Seqs*o.CacheLen*o.KVHeads*o.HeadSize
	c.tensor("Q", o.Q, false, q, F32, BF16, F64)
	c.tensor("K", o.K, false, k, o.Q.Type)
	c.tensor("V", o.V, false, k, o.Q.Type)
	c.tensor("Cached", o.Cached, false, o.Seqs, I32)
	c.tensor("KCache", o.KCache, false, cache, o.Q.Type)
	c.tensor("VCache", o.VCache, false, cache, o.Q.Type)
	c.tensor("Out", o.Out, false, q, o.Q.Type)
	return c.err()
}

// Cost implements Op: as if the caches were full.
func (o *AttentionDecode) Cost() Cost {
	return Cost{
		4 * int64(o.Seqs*o.SeqLen) * int64(o.Heads*o.HeadSize) * int64(o.CacheLen),
		bytesOf(o.Q, o.K, o.V, o.KCache, o.VCache, o.Out),
	}
}

// Reference implements Op.
func (o *AttentionDecode) Reference() {
	q, k, v, kcache, vcache := load(o.Q), load(o.K), load(o.V), load(o.KCache), load(o.VCache)
	out := make([]float64, len(q))
	h, row := heads{o.Heads, o.KVHeads, o.HeadSize}, o.KVHeads*o.HeadSize
	for s, cached := range o.Cached.I32() {
		mustIndex(o, "Cached", s, cached, 0, math.MaxInt32)
		first := s * o.CacheLen // of the sequence's cache
		for i := range o.SeqLen {
			t, place := s*o.SeqLen+i, int(cached)+i
			if place >= o.CacheLen {
				break
			}
			copy(kcache[(first+place)*row:][:row], k[t*row:])
			copy(vcache[(first+place)*row:][:row], v[t*row:])
			for head := range o.Heads {
				h.attend(h.query(out, t, head), h.query(q, t, head), kcache, vcache,
					first, first+place+1, head, float64(o.Scale))
			}
		}
	}
	store(o.KCache, kcache)
	store(o.VCache, vcache)
	store(o.Out, out)
}
