package model

// Config is everything about a decoder that its config.json says and that changes its numbers.
// Sizes are counts of elements; a Config that ParseConfig or Builtin gives out is consistent.
type Config struct {
	Family       string // "qwen2", "qwen3" or "llama": config.json's model_type
	Vocab        int    // rows of the embedding and of the head
	Hidden       int    // width of the residual stream
	Layers       int    // decoder blocks
	Heads        int    // query heads
	KVHeads      int    // key and value heads; divides Heads
	HeadSize     int    // elements of one head, even; Heads·HeadSize may differ from Hidden
	MLP          int    // width of the gated MLP
	MaxPositions int    // longest sequence the positions are meant for
	NormEps      float64
	RopeTheta    float64
	RopeScaling  *Llama3Scaling // nil: plain RoPE
	QKVBias      bool           // biases on the query, key and value projections
	QKNorm       bool           // RMS norm of each query and key head before RoPE
	Tied         bool           // the head is the embedding
	InitStd      float64        // initializer_range: standard deviation of fresh matrices
}

// Llama3Scaling stretches RoPE's low frequencies by Factor, leaves the high ones alone and blends
// in between, as Llama 3.1 does ("rope_type": "llama3").
type Llama3Scaling struct {
	Factor               float64
	LowFreqFactor        float64
	HighFreqFactor       float64
	OriginalMaxPositions int
}
