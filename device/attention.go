package device

// Attention is causal self-attention over Seqs sequences of SeqLen rows each.
// Row i of a sequence attends to its rows Start[i]..i, so that documents that
// share a sequence do not see each other. Query head h reads key-value head
// h/(Heads/KVHeads).
//
//	p = softmax(Scale·q·kᵀ)    Out = p·v    LSE = log Σ exp(Scale·q·kᵀ)
//
// The score matrix is never stored (Dao, arXiv 2307.08691).
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
	c.tensor("LSE", o.LSE, false, rows*o.Heads, F32, F64)
	return c.err()
}

// Cost implements Op: two products, half of each by causality.
func (o *Attention) Cost() Cost {
	return Cost{2 * int64(o.Seqs) * int64(o.Heads) * int64(o.HeadSize) * int64(o.SeqLen) * int64(o.SeqLen),
		bytesOf(o.Q, o.K, o.V, o.Out, o.LSE)}
}

// AttentionBackward recomputes p from LSE. With D = Σ DOut·Out of a row:
//
//	ds = p·(DOut·vᵀ − D)    DQ = Scale·ds·k    DK = Scale·dsᵀ·q    DV = pᵀ·DOut
//
// The query heads of a key-value head are summed in order.
type AttentionBackward struct {
	Q     Tensor `op:"r"` // as in Attention
	K     Tensor `op:"r"`
	V     Tensor `op:"r"`
	Start Tensor `op:"r"`
	Out   Tensor `op:"r"`
	LSE   Tensor `op:"r"`
	DOut  Tensor `op:"r"` // as Q
	D     Tensor `op:"w"` // [Seqs·SeqLen,Heads] F32: scratch
	DQ    Tensor `op:"w"` // as Q
	DK    Tensor `op:"w"` // as K
	DV    Tensor `op:"w"` // as K

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
	c.tensor("LSE", o.LSE, false, rows*o.Heads, F32, F64)
	c.tensor("DOut", o.DOut, false, q, typ)
	c.tensor("D", o.D, false, rows*o.Heads, F32, F64)
	c.tensor("DQ", o.DQ, false, q, typ)
	c.tensor("DK", o.DK, false, k, typ)
	c.tensor("DV", o.DV, false, k, typ)
	return c.err()
}

// Cost implements Op: five products, half of each by causality.
func (o *AttentionBackward) Cost() Cost {
	return Cost{5 * int64(o.Seqs) * int64(o.Heads) * int64(o.HeadSize) * int64(o.SeqLen) * int64(o.SeqLen),
		bytesOf(o.Q, o.K, o.V, o.Out, o.LSE, o.DOut, o.DQ, o.DK, o.DV)}
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
	return Cost{4 * int64(o.Seqs*o.SeqLen) * int64(o.Heads*o.HeadSize) * int64(o.CacheLen),
		bytesOf(o.Q, o.K, o.V, o.KCache, o.VCache, o.Out)}
}
